"""The simulation: times by hand, symmetry against every rank, contention, reports, scale, calibration."""

import time

import pytest
import torch

from torchcomms.algorithms import hierarchical, reducing
from torchcomms.algorithms.choice import ALGORITHMS, always
from torchcomms.algorithms.messages import recv, send
from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsTimeout, InvalidCall, MessageMismatch
from torchcomms.providers.inproc import InprocBackend
from torchcomms.sim import Calibration, Link, Topology, example, flips, holds, none, rotation, simulate
from torchcomms.sim.calibration import LENGTHS
from torchcomms.sim.operations import OPERATIONS, Workload, symmetry_of
from torchcomms.sim.probe import measure
from torchcomms.testing import ThreadWorld

pytestmark = pytest.mark.unit

US = 1e-6
PLAIN = {"inside": Link(1 * US, 1e-9), "between": Link(5 * US, 2e-9)}


def cluster(hosts, local, **more):
    return Topology(hosts, local, **{**PLAIN, **more})


def one_message(nbytes, *pairs):
    """A schedule in which each (source, target) sends once, all at the start."""

    def schedule(group):
        tensor = group.ghost(nbytes, torch.uint8)
        batch = [send(tensor, target) for source, target in pairs if source == group.rank]
        yield group.post(batch + [recv(tensor, source) for source, target in pairs if target == group.rank])

    return schedule


def test_a_message_takes_latency_and_its_bytes():
    assert simulate(one_message(1000, (0, 1)), cluster(1, 2)).seconds == pytest.approx(2 * US)
    report = simulate(one_message(1000, (0, 2)), cluster(2, 2))
    assert report.seconds == pytest.approx(7 * US)
    assert report.messages == {"between": 1}
    assert report.nbytes == {"between": 1000}


def test_posting_copying_and_reducing_take_a_ranks_own_time():
    def schedule(group):
        group.copied(1000)
        group.reduced(500)
        yield group.post([])

    assert simulate(schedule, cluster(1, 1, copy=1e-9, reduce=2e-9)).seconds == pytest.approx(2 * US)
    paid = simulate(one_message(0, (0, 1)), cluster(1, 2, post=3 * US))
    assert paid.seconds == pytest.approx(4 * US)


def test_a_rank_sends_its_messages_one_after_another():
    assert simulate(one_message(1000, (0, 1), (0, 2)), cluster(1, 3)).seconds == pytest.approx(3 * US)


def test_a_rank_takes_messages_one_after_another():
    assert simulate(one_message(1000, (0, 2), (1, 2)), cluster(1, 3)).seconds == pytest.approx(3 * US)


def test_ranks_of_a_host_share_its_way_out():
    nic = Link(5 * US, 2e-9, shared=2e-9)
    assert simulate(one_message(1000, (0, 2), (1, 3)), cluster(2, 2, between=nic)).seconds == pytest.approx(9 * US)
    free = simulate(one_message(1000, (0, 2), (1, 3)), cluster(2, 2))
    assert free.seconds == pytest.approx(7 * US)


def test_a_channel_that_is_wide_enough_for_all_ranks_delays_none():
    nic = Link(5 * US, 2e-9, shared=1e-9)
    assert simulate(one_message(1000, (0, 2), (1, 3)), cluster(2, 2, between=nic)).seconds == pytest.approx(7 * US)


def test_a_message_that_waits_for_its_sender_does_not_hold_the_hosts_channel():
    """Rank 0 sends two; the second leaves later, and rank 1's passes it on the way out."""
    nic = Link(5 * US, 4e-9, shared=1e-9)
    report = simulate(one_message(1000, (0, 2), (0, 3), (1, 4)), cluster(5, 2, between=nic))
    assert report.seconds == pytest.approx(13 * US)  # rank 0: 4 + 4, and the way


def test_hosts_of_a_pod_share_the_spine():
    topology = cluster(4, 1, pod=2, spine=3e-9)
    crossing = simulate(one_message(1000, (0, 2), (1, 3)), topology)
    assert crossing.seconds == pytest.approx(11 * US)  # the spine takes 3 µs for each
    assert crossing.nbytes == {"between": 2000, "spine": 2000}
    assert simulate(one_message(1000, (0, 1)), topology).seconds == pytest.approx(7 * US)


def test_the_report_names_the_link_that_was_busiest():
    report = simulate(one_message(1000, (0, 2), (1, 2)), cluster(1, 3))
    assert report.hot[0].name == "receives of rank 2"
    assert report.hot[0].nbytes == 2000
    assert report.hot[0].busy == pytest.approx(2 * US)
    assert "busiest: receives of rank 2, 67%" in str(report)


def test_schedules_that_wait_for_ever_or_disagree_about_lengths_are_errors():
    def alone(group):
        yield group.post([recv(group.ghost(1, torch.uint8), 1 - group.rank)] if group.rank else [])

    with pytest.raises(CommsTimeout, match="rank 1 wait"):
        simulate(alone, cluster(1, 2))

    def differ(group):
        tensor = group.ghost(2 - group.rank, torch.uint8)
        yield group.post([recv(tensor, 0) if group.rank else send(tensor, 1)])

    with pytest.raises(MessageMismatch, match="sends 2 bytes to rank 1, which expects 1"):
        simulate(differ, cluster(1, 2))


CONTENDED = {
    "inside": Link(1 * US, 1e-9, 0.1 * US, 0.7e-9),
    "between": Link(5 * US, 2e-9, 0.2 * US, 0.9e-9),
    "post": 0.3 * US,
    "copy": 0.1e-9,
    "reduce": 0.2e-9,
}


def symmetric_cases():
    for hosts, local in ((4, 2), (8, 4), (3, 2), (5, 3)):
        topology = Topology(hosts, local, **CONTENDED)
        for operation in OPERATIONS:
            for algorithm in ALGORITHMS.get(operation, ("exchange",)):
                yield topology, operation, algorithm
    yield Topology(8, 2, **CONTENDED, pod=2, spine=1.1e-9), "all_reduce", "ring"
    yield Topology(8, 2, **CONTENDED, pod=2, spine=1.1e-9), "all_reduce", "halving"
    yield Topology(8, 2, **CONTENDED, pod=4, spine=1.1e-9), "all_to_all", "exchange"


@pytest.mark.parametrize("nbytes", [8, 48_000, 1 << 20])
def test_representatives_give_to_the_last_bit_what_all_ranks_give(nbytes):
    compared = 0
    for topology, operation, algorithm in symmetric_cases():
        symmetry = symmetry_of(operation, algorithm, topology, nbytes)
        if symmetry.kind == "none":
            continue
        workload = Workload(operation, nbytes, even=True)
        table = always(operation, algorithm, topology.local) if operation in ALGORITHMS else None
        few, every = (
            simulate(workload, topology, choices=table, symmetry=moves) for moves in (symmetry, none(topology.size))
        )
        assert few.seconds == every.seconds, (topology, operation, algorithm)
        assert (few.messages, few.nbytes) == (every.messages, every.nbytes)
        assert (few.copied, few.reduced) == (every.copied, every.reduced)
        assert [hot.busy for hot in few.hot] == pytest.approx([hot.busy for hot in every.hot])
        assert few.simulated == symmetry.cell < every.simulated == topology.size
        assert holds(symmetry, workload, range(topology.size // symmetry.cell), table)
        compared += 1
    assert compared > 40


def test_a_symmetry_that_does_not_hold_is_found():
    topology = cluster(4, 2)
    workload = Workload("broadcast", 1000)
    assert not holds(rotation(8, 2), workload, range(1, 4))
    assert not holds(flips(8, 2), Workload("all_reduce", 10_000), range(1, 4), always("all_reduce", "ring"))
    assert symmetry_of("broadcast", "tree", topology, 8).kind == "none"
    assert rotation(8, 8).kind == flips(8, 8).kind == flips(6, 2).kind == "none"


def test_cells_move_as_wholes():
    with pytest.raises(InvalidCall, match="as wholes"):
        simulate(Workload("barrier", 0), cluster(2, 4), symmetry=rotation(8, 2))


def test_times_by_the_textbook():
    """Without contention: ring 2(n-1) rounds of a share; doubling log2 n rounds of all; Rabenseifner's halves."""
    size, nbytes = 16, 1 << 20
    topology = Topology(size, 1, **PLAIN)
    alpha, beta = 5 * US, 2e-9
    rounds = {
        "ring": 2 * (size - 1) * (alpha + nbytes / size * beta),
        "doubling": 4 * (alpha + nbytes * beta),
        "halving": 8 * alpha + 2 * (1 - 1 / size) * nbytes * beta,
        "tree": 8 * (alpha + nbytes * beta),
    }
    for algorithm, seconds in rounds.items():
        assert simulate("all_reduce", topology, nbytes, algorithm=algorithm).seconds == pytest.approx(seconds)


def test_hierarchy_carries_less_between_hosts():
    flat, layered = (
        simulate("all_reduce", example(16), 1 << 20, algorithm=algorithm) for algorithm in ("halving", "hierarchical")
    )
    assert layered.nbytes["between"] < flat.nbytes["between"] / 3
    assert layered.seconds < flat.seconds


def test_the_long_ring_of_the_hierarchy_between_hosts_that_are_no_power_of_two():
    assert hierarchical.in_ring(3, 1 << 20)
    assert not hierarchical.in_ring(4, 1 << 20)
    assert not hierarchical.in_ring(3, 1 << 10)
    long = simulate("all_reduce", example(3, 2), 3 << 20, algorithm="hierarchical")
    assert long.simulated == 2
    assert long.messages["between"] == 6 * 2 * 2


def test_a_tensor_over_64_mib_goes_in_pieces():
    whole = simulate("all_reduce", example(4), reducing.STAGED, algorithm="halving")
    double = simulate("all_reduce", example(4), 2 * reducing.STAGED, algorithm="halving")
    assert double.messages["between"] == 2 * whole.messages["between"]
    assert 1.5 * whole.seconds < double.seconds <= 2 * whole.seconds


def test_ghosts_cost_what_tensors_cost():
    """The same generator moves the same messages in a rehearsal with data and in the simulation."""
    from torchcomms.sim.rehearsal import Rehearsal, Rehearsed

    sent = []

    class Counting(Rehearsed):
        def post(self, batch):
            sent.extend(one.tensor.nbytes for one in batch if one.kind == "send")
            return super().post(batch)

    for algorithm in ALGORITHMS["all_reduce"]:
        for dtype in (torch.float32, torch.bfloat16):
            sent.clear()
            table = always("all_reduce", algorithm, 2)
            world = Rehearsal(6, choices=table)
            world.groups = [Counting(world, rank, table) for rank in range(6)]
            world.run(lambda group, dtype=dtype: reducing.all_reduce(group, torch.ones(100, dtype=dtype), ReduceOp.SUM))
            report = simulate(Workload("all_reduce", 100 * dtype.itemsize, dtype), cluster(3, 2), choices=table)
            assert sum(report.messages.values()) == len(sent)
            assert sum(report.nbytes.values()) == sum(sent)


def test_the_largest_cluster_is_a_matter_of_a_moment_where_a_host_stands_for_all():
    started = time.process_time()
    report = simulate("all_reduce", example(16_384), 64 << 20, algorithm="hierarchical")
    assert time.process_time() - started < 10
    assert (report.ranks, report.simulated) == (131_072, 8)
    assert report.messages["inside"] == 131_072 * 14


@pytest.mark.slow
def test_a_ring_of_a_hundred_thousand_ranks_within_ten_seconds():
    started = time.process_time()
    report = simulate("all_reduce", example(100_000, 1), 1 << 20, algorithm="ring")
    assert time.process_time() - started < 10
    assert report.messages["between"] == 2 * 99_999 * 100_000


def test_unknown_words_and_hopeless_cases_are_refused():
    with pytest.raises(InvalidCall, match="no operation 'fly'"):
        simulate("fly", cluster(1, 2))
    with pytest.raises(InvalidCall, match="has no algorithm 'magic'"):
        simulate("all_reduce", cluster(1, 2), 8, algorithm="magic")
    with pytest.raises(InvalidCall, match="too much"):
        simulate("reduce", example(4096), 8, algorithm="shares")
    with pytest.raises(InvalidCall, match="greater than 0"):
        cluster(1, 2, inside=Link(0.0, 1e-9))
    with pytest.raises(InvalidCall, match="do not fill pods of 3"):
        cluster(4, 1, pod=3)


def test_a_calibration_gives_back_the_model_that_its_measurements_came_from():
    link, post = Link(10 * US, 1e-9, shared=1.5e-9), 2 * US
    pair = {"ranks": 2.0, "one way": 14 * US, "burst": post, "exchange": 20 * US}
    every = {"ranks": 4.0, "exchange": 20 * US, "copy": 1e-10, "reduce": 2e-10}
    for nbytes in LENGTHS:
        pair[f"one way {nbytes}"] = 14 * US + nbytes * link.byte
        every[f"exchange {nbytes}"] = 4 * nbytes * link.shared
    topology = Calibration("tcp", pair, every).topology(4)
    assert topology.inside.latency == pytest.approx(link.latency)
    assert topology.inside.byte == pytest.approx(link.byte)
    assert topology.inside.shared == pytest.approx(link.shared)
    assert topology.inside.gap == 0.0
    assert (topology.post, topology.copy, topology.reduce) == (post, 1e-10, 2e-10)
    assert topology.size == 4


@pytest.mark.parametrize("size", [2, 3])
def test_the_probe_measures_any_backend(size):
    world = ThreadWorld(InprocBackend, size)
    try:
        told = []
        facts = world.run(lambda backend: measure(backend, 1, told.append))
    finally:
        world.close()
    assert told
    for one in facts:
        assert one["ranks"] == size
        assert all(seconds > 0 for seconds in one.values())
    pair = facts[0]
    assert Calibration("inproc", pair, pair).topology(2).inside.latency > 0
