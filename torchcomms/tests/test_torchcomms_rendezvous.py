"""How tcp ranks meet: addresses, strangers, and the variables of a launcher."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from torchcomms.backend import ReduceOp
from torchcomms.bootstrap import Named
from torchcomms.providers.tcp import TcpBackend, TcpOptions
from torchcomms.providers.tcp.rendezvous import local_address
from torchcomms.testing import ThreadWorld

pytestmark = pytest.mark.unit


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", *(["::1"] if has_ipv6() else [])])
def test_ranks_meet_at_the_address_that_they_are_given(host):
    world = ThreadWorld(TcpBackend, 2, options=TcpOptions(host=host))

    def add(backend):
        tensor = torch.ones(3)
        backend.all_reduce(tensor, ReduceOp.SUM).wait()
        return tensor.tolist()

    try:
        assert world.run(add) == [[2.0] * 3] * 2
    finally:
        world.close()


def test_the_address_is_the_one_from_which_the_store_is_reached():
    class Hosted:
        host = "localhost"

    assert local_address(Hosted()) in ("127.0.0.1", "::1")
    assert local_address(Named("name", Hosted())) in ("127.0.0.1", "::1")
    assert local_address(HashStore()) == "127.0.0.1"


def test_a_stranger_who_does_not_know_the_secret_is_hung_up_on():
    store = HashStore()

    def start(rank):
        return TcpBackend.open(rank=rank, size=2, store=store, device="cpu", timeout=20.0)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(start, 0)
        store.wait(["torchcomms/tcp/0.1/0"], timedelta(seconds=20))
        place = json.loads(store.get("torchcomms/tcp/0.1/0"))
        with socket.create_connection((place["host"], place["port"]), 20) as stranger:
            stranger.sendall(b"\0" * 20)
            assert stranger.recv(1) == b""
        second = threads.submit(start, 1)
        for backend in (first.result(), second.result()):
            assert backend.lost() == frozenset()
            backend.close()


def test_a_named_store_keeps_its_keys_apart():
    plain = HashStore()
    one, other = Named("one", plain), Named("other", plain)
    one.set("key", "a")
    other.set("key", b"b")
    assert (one.get("key"), other.get("key")) == (b"a", b"b")
    assert (one.add("count", 2), other.add("count", 1)) == (2, 1)
    one.wait(["key"], timedelta(seconds=1))
