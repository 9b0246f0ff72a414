"""The tcp backend beyond the contract: early messages, who is blamed, options, and the life of a connection."""

import socket
from functools import partial

import pytest
import torch

from torchcomms.backend import P2P
from torchcomms.errors import CommsTimeout, EarlyOverflow, NoRendezvous, PeerFailed
from torchcomms.providers.inbox import Allowance, Batch, Inbox
from torchcomms.providers.tcp import TcpBackend, TcpOptions, lifeline, wire
from torchcomms.providers.tcp.rendezvous import listen
from torchcomms.testing import ThreadWorld
from torchcomms.testing.world import results, soon

pytestmark = pytest.mark.unit


def flood(count, backend):
    if backend.rank == 0:
        backend.post([P2P("send", torch.zeros(1000), 1, 7) for _ in range(count)]).wait_host(soon())
    else:
        backend.post([P2P("recv", torch.zeros(1), 0, 8)]).wait_host(soon(0.3))


def test_messages_that_nobody_expects_are_kept_up_to_a_limit():
    with ThreadWorld(TcpBackend, 2, options=TcpOptions(early_limit=10_000)) as world:
        assert isinstance(world.run(partial(flood, 2))[1], CommsTimeout)
    with ThreadWorld(TcpBackend, 2, options=TcpOptions(early_limit=10_000)) as world:
        error = world.run(partial(flood, 3))[1]
        assert isinstance(error, EarlyOverflow)
        assert (error.peer, error.limit) == (0, 10_000)
        assert "rank 0 on tag 7" in str(error)
        assert "raise early_limit" in str(error)
        with pytest.raises(EarlyOverflow):
            world.members[1].post([])


def test_room_that_a_receive_has_freed_counts_again():
    allowance = Allowance(10)
    inboxes = [Inbox(peer, allowance) for peer in range(2)]
    for _ in range(3):
        arrival = inboxes[0].arrive(0, 8)
        with pytest.raises(EarlyOverflow):
            inboxes[1].arrive(0, 8)
        arrival.finish()
        batch = Batch([P2P("recv", torch.zeros(8, dtype=torch.uint8), 0, 0)], 1)
        inboxes[0].expect(batch.messages[0])
        assert batch.settled


def needing(backend):
    if backend.rank == 1:
        with backend.engine._lock:
            backend.engine._bury(2)  # as if its machine were silent; rank 0 has not noticed yet
        backend.close()
    elif backend.rank == 0:
        try:
            backend.post([P2P("recv", torch.zeros(1), 1, 0)]).wait_host(soon())
        except PeerFailed as error:
            return error.ranks
    return None


def test_a_rank_that_leaves_for_a_death_passes_it_on():
    with ThreadWorld(TcpBackend, 3) as world:
        assert results(world, needing)[0] == {2}


def test_a_goodbye_tells_the_dead_however_it_is_cut():
    stream = wire.goodbye({7, 3})
    reader = wire.FrameReader(Inbox())
    for byte in stream:
        reader.space()[0] = byte
        reader.advance(1)
    assert reader.said_goodbye
    assert reader.blamed == {3, 7}


def pair(host):
    with socket.create_server((host, 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def test_a_lifeline_tells_a_closed_peer_from_a_silent_one():
    one, other = pair("127.0.0.1")
    with one, other:
        lifeline.watch(one, 2)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        # A probe each second, of which all within three heartbeats must be lost.
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5
        assert not lifeline.is_remote(one)
        assert lifeline.state(one) is lifeline.State.ALIVE
        other.close()
        assert lifeline.state(one) is lifeline.State.CLOSED
    one, other = pair("127.0.0.1")
    with one, other:
        lifeline.watch(one, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        other.close()  # with a reset, as of a machine that has started again
        assert lifeline.state(one) is lifeline.State.GONE


def test_an_address_that_is_not_here_is_told():
    with pytest.raises(NoRendezvous, match=r"cannot listen at '203\.0\.113\.1'"):
        listen("203.0.113.1")
