"""The hier backend on pretended hosts, its ranks being threads: the kit, rounding, bits, and errors by global rank."""

from functools import partial

import pytest
import torch

from torchcomms.backend import P2P, ReduceOp
from torchcomms.discovery import find
from torchcomms.errors import CommsTimeout, MessageMismatch, PeerFailed
from torchcomms.providers.hier import HierBackend, HierOptions
from torchcomms.testing import CommThreads, ThreadWorld, check_backend, check_communicator
from torchcomms.testing.world import results, soon

pytestmark = pytest.mark.contract
KINDS = ["core", "derived", "reduction", "fault", "memory"]
# The local backend, the wire, and the host of each rank: equal hosts, unequal ones, one rank on each, all on one.
FORMS = [
    ("inproc", "inproc", "aabba"),
    ("inproc", "tcp", "aaaba"),
    ("tcp", "tcp", "abcde"),
    ("tcp", "inproc", "aaaaa"),
    ("shm", "tcp", "ababa"),
]


def pretending(local, wire, hosts):
    """A class whose ranks are on the hosts of those letters."""
    if not find(local).capabilities().usable:
        pytest.skip(f"{local}: {find(local).capabilities().reason}")

    class Pretending(HierBackend):
        @classmethod
        def open(cls, *, rank, options=None, **rest):
            return super().open(rank=rank, options=HierOptions(wire=wire, local=local, host=hosts[rank]), **rest)

    return Pretending


def world(size, *form):
    return ThreadWorld(pretending(*form), size)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_hier_keeps_the_contract(form):
    report = check_backend(lambda size: world(size, *form), only=KINDS)
    assert not report.failed, str(report)
    assert not report.unclaimed


@pytest.mark.slow
def test_every_operation_on_every_dtype_over_unequal_hosts():
    report = check_backend(lambda size: world(size, "inproc", "tcp", "aabab"), only=["matrix.five", "matrix.programs"])
    assert not report.failed, str(report)
    assert len(report.ran) == 2


def test_communicators_over_hier_keep_their_contract():
    kind = pretending("inproc", "tcp", "abbab")
    report = check_communicator(lambda size: CommThreads(kind, size))
    assert not report.failed, str(report)


@pytest.fixture
def four():
    """`four(function)`: what it returns on each of four ranks, two on each host."""
    made = []

    def four(function, hosts="aabb"):
        made.append(world(4, "inproc", "tcp", hosts))
        return results(made[-1], function)

    yield four
    for one in made:
        one.close()


def add(count, op, backend):
    values = torch.full((count,), 256.0 if backend.rank == 0 else 1.0, dtype=torch.bfloat16)
    backend.all_reduce(values, op).wait()
    return values.unique().tolist()


@pytest.mark.parametrize("count", [3, 100_000])  # through the leaders, and on rails
def test_half_types_are_rounded_once_over_both_stages(four, count):
    # 259 is 260 in bfloat16; rounded inside the hosts too, it would be 258, 129 and 64.5.
    assert four(partial(add, count, ReduceOp.SUM)) == [[260.0]] * 4
    assert four(partial(add, count, ReduceOp.PREMUL_SUM(0.5))) == [[130.0]] * 4
    assert four(partial(add, count, ReduceOp.AVG)) == [[65.0]] * 4


def noisy(backend):
    start = torch.randn(90_001, generator=torch.Generator().manual_seed(backend.rank))
    seen = []
    for _ in range(2):
        tensor = start.clone()
        backend.all_reduce(tensor, ReduceOp.SUM).wait()
        part = torch.empty(30_000)
        backend.reduce_scatter(part, [*start[:90_000].split(30_000), start[:30_000]], ReduceOp.SUM).wait()
        whole = [torch.empty(30_000) for _ in range(4)]
        backend.all_gather(whole, part).wait()
        seen.append(b"".join(one.numpy().tobytes() for one in (tensor, *whole)))
    return seen


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "abab"])
def test_all_ranks_hold_the_same_bits_and_a_repeat_does_too(four, hosts):
    assert len({bits for rank in four(noisy, hosts) for bits in rank}) == 1


def integer_average(backend):
    tensor = torch.tensor([backend.rank, -7, 32_000], dtype=torch.int16)
    backend.all_reduce(tensor, ReduceOp.AVG).wait()
    return tensor.tolist()


def test_an_integer_average_is_that_of_the_exact_sum(four):
    assert four(integer_average) == [[1, -7, 32_000]] * 4


def everyone(backend):
    arrived = [torch.zeros(1) for _ in range(4)]
    batch = [P2P("recv", arrived[peer], peer, 3) for peer in range(4)]
    batch += [P2P("send", torch.full((1,), float(backend.rank)), peer, 3) for peer in range(4)]
    backend.post(batch).wait_host(soon())
    return [one.item() for one in arrived]


def test_one_batch_may_go_to_mates_and_to_other_hosts_and_to_oneself(four):
    assert four(everyone) == [[0.0, 1.0, 2.0, 3.0]] * 4


def wrong(backend):
    if backend.rank == 2:
        late = short = None
        try:
            backend.post([P2P("recv", torch.zeros(2), 3, 1)]).wait_host(soon(0.05))
        except CommsTimeout as error:
            late = error.missing
        backend.post([P2P("send", torch.zeros(1), 3, 2)]).wait_host(soon())
        try:
            backend.post([P2P("recv", torch.zeros(2), 3, 4)]).wait_host(soon())
        except MessageMismatch as error:
            short = error.peer, error.expected, error.actual, "rank 3 sent 4 bytes" in str(error)
        return late, short
    if backend.rank == 3:
        backend.post([P2P("recv", torch.zeros(1), 2, 2)]).wait_host(soon())
        backend.post([P2P("send", torch.zeros(1), 2, 4)]).wait_host(soon())
    return None


def test_errors_inside_a_host_name_ranks_of_the_whole_group(four):
    assert four(wrong)[2] == ({3}, (3, 8, 4, True))


def leave(backend):
    if backend.rank == 1:
        backend.close()
        return None
    try:
        backend.all_reduce(torch.ones(4), ReduceOp.SUM).wait_host(soon())
    except PeerFailed as error:
        first = error.ranks
    try:
        backend.post([P2P("send", torch.ones(1), 0, 1)])
    except PeerFailed as error:
        return first == error.ranks, bool(first)


def test_a_rank_that_left_while_it_was_needed_ends_the_collective_on_all_hosts(four):
    assert four(leave) == [(True, True), None, (True, True), (True, True)]


def test_what_a_group_consists_of_is_asked_for_by_options(four):
    def parts(backend):
        return str(backend.layout.topology), backend.layout.local.name, backend.layout.wire.name

    assert four(parts, "abba") == [("2 hosts (ranks 0, 3; ranks 1, 2)", "inproc", "tcp")] * 4
