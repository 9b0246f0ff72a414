"""The gloo backend: the kit, deaths of real processes, what gloo alone does not survive, and what it leaves behind."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore, TCPStore

from torchcomms.backend import P2P, ReduceOp
from torchcomms.errors import (
    CommsAborted,
    CommsClosed,
    CommsTimeout,
    EarlyOverflow,
    InvalidCall,
    MessageMismatch,
    PeerFailed,
)
from torchcomms.providers.c10d import GlooBackend, GlooOptions, frame, link
from torchcomms.testing import ThreadWorld, check_backend

OPENED = """
import os, sys, time, torch
from torch.distributed import TCPStore
from torchcomms.backend import P2P, ReduceOp
from torchcomms.errors import CommsClosed, PeerFailed
from torchcomms.providers.c10d import GlooBackend
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
backend = GlooBackend.open(rank=rank, size=size, store=store, device="cpu", timeout=60.0)
"""

VICTIM = """
tensor = torch.ones(1 << 17)
backend.barrier().wait()
print("ready", flush=True)
try:
    while True:
        backend.all_reduce(tensor, ReduceOp.AVG).wait()
except PeerFailed as error:
    print("failed", sorted(error.ranks), time.time(), flush=True)
sys.stdin.read()
"""

HIDDEN = """
if rank == 1 and not os.fork():
    sys.stdin.read()  # keeps its parent's connections open after the parent's death
    os._exit(0)
backend.barrier().wait()
print("ready", flush=True)
try:
    backend.post([P2P("recv", torch.ones(1), (rank + 1) % 3)]).wait()
except PeerFailed as error:
    print("failed", sorted(error.ranks), time.time(), flush=True)
sys.stdin.read()
"""

FORK = """
backend.all_reduce(torch.ones(3), ReduceOp.SUM).wait()
child = os.fork()
if not child:
    refused = 1
    try:
        backend.barrier().wait()
    except CommsClosed as error:
        refused = 0 if str(os.getppid()) in str(error) else 2
    backend.close()
    del backend
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
total = torch.ones(100_000)
backend.all_reduce(total, ReduceOp.SUM).wait()
print("sum", total.mean().item())
"""


@pytest.fixture
def world():
    opened = []

    def world(size, **arguments):
        opened.append(ThreadWorld(GlooBackend, size, **arguments))
        return opened[-1]

    yield world
    for one in opened:
        one.close()


@pytest.fixture
def ranks(start, tmp_path):
    """`ranks(size, body)`: processes that opened a gloo backend and run the body."""
    stores = []

    def ranks(size, body):
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        script = tmp_path / "rank.py"
        script.write_text(OPENED + body)
        meeting = {"MASTER_PORT": str(stores[-1].port), "WORLD_SIZE": str(size)}
        return [start(script, RANK=str(rank), **meeting) for rank in range(size)]

    return ranks


def send(tensor, peer, tag=0):
    return P2P("send", tensor, peer, tag)


def recv(tensor, peer, tag=0):
    return P2P("recv", tensor, peer, tag)


@pytest.mark.contract
def test_the_kit_passes():
    report = check_backend(lambda size: ThreadWorld(GlooBackend, size), only=["core", "derived", "fault", "memory"])
    assert not report.failed, str(report)


@pytest.mark.contract
@pytest.mark.slow
def test_the_kit_passes_on_every_dtype_and_reduction():
    report = check_backend(lambda size: ThreadWorld(GlooBackend, size), only=["matrix", "reduction"])
    assert not report.failed, str(report)


@pytest.mark.system
def test_one_of_four_killed_in_a_collective_is_named_by_all_survivors_at_once(ranks):
    group = ranks(4, VICTIM)
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 4
    killed = time.time()
    group[2].kill()
    for survivor in (0, 1, 3):
        word, names, moment = group[survivor].stdout.readline().split()
        assert (word, names) == ("failed", "[2]")
        assert float(moment) - killed < 1.0


@pytest.mark.system
def test_a_death_is_noticed_though_a_forked_child_keeps_the_connections_open(ranks):
    group = ranks(3, HIDDEN)
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 3
    killed = time.time()
    group[1].kill()
    for survivor in (0, 2):
        word, names, moment = group[survivor].stdout.readline().split()
        assert (word, names) == ("failed", "[1]")
        assert float(moment) - killed < 1.0


@pytest.mark.system
def test_a_forked_child_is_refused_and_its_parent_unharmed(ranks):
    for rank in ranks(2, FORK):
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert written == "sum 2.0\n"


@pytest.mark.unit
def test_abort_ends_the_waits_of_every_thread(world):
    backend = world(2).backends[0]
    tickets = [backend.post([recv(torch.ones(1 << 16), 1, tag)]) for tag in range(3)]
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(ticket.wait) for ticket in tickets]
        backend.abort("enough")
        errors = [wait.exception(timeout=5.0) for wait in waits]
    assert [type(error) for error in errors] == [CommsAborted] * 3
    assert {error.reason for error in errors} == {"enough"}


@pytest.mark.unit
@pytest.mark.parametrize("sent", [3, 100_000])
@pytest.mark.parametrize("expected", [2, 90_000, 110_000])
def test_another_length_is_an_error_at_the_receiver_and_the_group_goes_on(world, sent, expected):
    def differ(backend):
        if backend.rank == 0:
            backend.post([send(torch.ones(sent, dtype=torch.uint8), 1)]).wait()
        else:
            with pytest.raises(MessageMismatch) as caught:
                backend.post([recv(torch.ones(expected, dtype=torch.uint8), 0)]).wait()
            assert (caught.value.expected, caught.value.actual) == (expected, sent)
        total = torch.ones(50_000)
        backend.all_reduce(total, ReduceOp.SUM).wait()
        return float(total.sum())

    assert world(2).run(differ) == [100_000.0] * 2


@pytest.mark.unit
def test_long_messages_wait_for_no_receive_and_tags_keep_apart(world):
    tensors = {tag: torch.full((100_000,), float(tag)) for tag in (-7, 0, 1 << 40)}

    def exchange(backend):
        for tag, tensor in tensors.items():
            backend.post([send(tensor, 1 - backend.rank, tag)]).wait()
        received = {tag: torch.zeros(100_000) for tag in reversed(tensors)}
        for tag, tensor in received.items():
            backend.post([recv(tensor, 1 - backend.rank, tag)]).wait()
        return all(torch.equal(received[tag], tensors[tag]) for tag in tensors)

    assert world(2).run(exchange) == [True, True]


@pytest.mark.unit
def test_a_send_to_a_rank_that_left_fails_by_its_name(world):
    first, second = world(2).backends
    second.close()
    with pytest.raises(PeerFailed) as caught:
        first.post([send(torch.ones(100_000), 1)]).wait()
    assert caught.value.ranks == {1}
    assert not first.lost()


@pytest.mark.unit
def test_close_ends_the_waits_of_other_threads(world):
    backend = world(2).backends[0]
    ticket = backend.post([recv(torch.ones(1), 1)])
    with ThreadPoolExecutor(1) as thread:
        wait = thread.submit(ticket.wait)
        backend.close()
        assert isinstance(wait.exception(timeout=5.0), CommsClosed)


@pytest.mark.unit
def test_twenty_groups_opened_and_closed_or_dropped_leave_no_descriptor_or_thread():
    def use(group):
        outcomes = group.run(lambda backend: backend.all_reduce(torch.ones(30_000), ReduceOp.SUM).wait())
        assert outcomes == [None] * 3

    def state():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), threading.active_count()

    first = ThreadWorld(GlooBackend, 3)
    use(first)
    first.close()
    before = state()
    for turn in range(20):
        group = ThreadWorld(GlooBackend, 3)
        use(group)
        if turn % 2:
            group.close()
        else:
            group._threads.shutdown()
        del group
    until = time.monotonic() + 5.0  # the system may list a thread for a moment after its end
    while state() != before and time.monotonic() < until:
        continue
    assert state() == before


@pytest.mark.unit
def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(CommsTimeout) as caught:
        GlooBackend.open(rank=0, size=2, store=HashStore(), device="cpu", timeout=0.05)
    assert caught.value.missing == {1}


@pytest.mark.unit
def test_an_interface_that_is_not_there_is_an_error_that_says_so():
    with pytest.raises(InvalidCall, match="no-such-interface"):
        GlooBackend.open(
            rank=0,
            size=1,
            store=HashStore(),
            device="cpu",
            timeout=5.0,
            options=GlooOptions(interface="no-such-interface"),
        )


@pytest.mark.unit
def test_gloo_listens_where_it_is_told(world):
    group = world(2, options=GlooOptions(host="127.0.0.1", interface="lo"))
    assert group.run(lambda backend: backend.barrier().wait()) == [None, None]


@pytest.mark.unit
@given(st.sampled_from([frame.DATA, frame.READ]), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 20_000))
def test_a_frame_says_kind_tag_and_length_and_carries_what_is_short(kind, tag, length):
    sent = memoryview(bytes(index % 251 for index in range(length)))
    packed = memoryview(frame.pack(kind, tag, sent).numpy()).cast("B")
    assert frame.parse(packed) == (kind, tag, length)
    assert packed.nbytes <= frame.LONGEST
    assert frame.payload(packed, length) == (sent if length <= frame.ROOM else b"")


@pytest.mark.unit
@given(st.sets(st.integers(0, 100_000)))
def test_a_goodbye_names_the_dead(lost):
    packed = memoryview(frame.goodbye(lost).numpy()).cast("B")
    kind, _, length = frame.parse(packed)
    assert kind == frame.GOODBYE
    assert frame.blamed(packed, length) == lost


@pytest.mark.unit
def test_many_short_messages_one_way_keep_no_more_than_their_latest(world):
    def flow(backend):
        for number in range(200):
            tensor = torch.full((2,), number)
            backend.post([send(tensor, 1) if backend.rank == 0 else recv(tensor, 0)]).wait()
        backend.barrier().wait()
        return len(backend.engine._links[1 - backend.rank]._sendings)

    assert max(world(2).run(flow)) <= 2 * link.UNTOLD


@pytest.mark.unit
def test_more_than_may_lie_here_unasked_for_ends_the_group_with_the_limit(world):
    def flood(backend):
        if backend.rank == 0:
            backend.post([send(torch.ones(1000), 1, 1)]).wait()
        else:
            backend.post([recv(torch.ones(1), 0, 2)]).wait()

    outcome = world(2, options=GlooOptions(early_limit=1000)).run(flood)[1]
    assert isinstance(outcome, EarlyOverflow)
    assert (outcome.peer, outcome.limit) == (0, 1000)
