"""Worlds of the kits, whose ranks are threads or processes; the capability sheet, random programs, the example."""

import os
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from torchcomms import PeerFailed, ReduceOp
from torchcomms.backend import Capabilities
from torchcomms.errors import CommsTimeout
from torchcomms.testing import CommProcesses, CommThreads, ProcessWorld, Report, ThreadWorld, check_backend, generate
from torchcomms.testing.kit import CHECKS
from torchcomms.testing.operations import OPERATIONS, Case, perform
from torchcomms.testing.processes import RankEnded
from torchcomms.testing.samples import all_dtypes, numbers, reduced, reductions
from torchcomms.testing.world import World, results

ROOT = Path(__file__).parents[1]


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.system
def test_ranks_are_processes_that_end_with_their_world():
    with ProcessWorld("tcp", 3) as world:
        pids = world.pids
        assert len({*pids, os.getpid()}) == 4
        assert world.run(partial(perform, [Case("all_reduce", 5)])) == [[""]] * 3
        second = world.open(epoch=1)
        assert second.run(partial(perform, [Case("scan", 5)])) == [[""]] * 3
        second.close()
    assert not any(map(alive, pids))


@pytest.mark.system
def test_a_killed_rank_is_told_apart_from_one_that_raises():
    with CommProcesses("tcp", 2) as world:
        assert isinstance(world.run(torch.empty)[0], TypeError)  # raised there, told here
        assert world.kill(1)
        ended, other = world.run(partial(perform, []))[::-1]
        assert isinstance(ended, RankEnded)
        assert ended.exitcode == -9
        assert not isinstance(other, RankEnded)


@pytest.mark.system
def test_what_cannot_be_sent_to_a_process_is_refused_with_the_cure():
    with ProcessWorld("tcp", 2) as world:
        refused = world.run(lambda backend: backend)
        assert all(isinstance(one, TypeError) and "functools.partial" in str(one) for one in refused)
        assert world.run(partial(perform, [])) == [[], []]


@pytest.mark.system
def test_an_open_that_fails_leaves_the_world_as_it_was():
    with ProcessWorld("tcp", 3) as world:
        with pytest.raises(CommsTimeout) as late:
            world.open(ranks=[0, 1], timeout=0.2)
        assert late.value.missing == {2}
        assert world.run(partial(perform, [Case("broadcast", 5)])) == [[""]] * 3


@pytest.mark.system
def test_the_kit_runs_on_processes_in_one_line():
    wanted = ["core.values", "core.death_wakes", "core.missing", "derived.barrier", "fault.death"]
    report = check_backend(lambda size: ProcessWorld("tcp", size), only=wanted)
    assert not report.failed, str(report)
    assert set(report.ran) == set(wanted)
    assert report.facts["fault.death"] > 0


def take_part(backend):
    if backend.rank == 1:
        raise ValueError("not today")
    return backend.rank


@pytest.mark.unit
def test_a_thread_world_tells_what_a_rank_raised_and_takes_no_thread_with_it():
    with ThreadWorld("inproc", 2) as world:
        assert world.size == len(world.backends) == 2
        outcomes = world.run(take_part)
        assert outcomes[0] == 0
        assert str(outcomes[1]) == "not today"
        with pytest.raises(ValueError, match="not today"):
            results(world, take_part)
        assert world.kill(0)


@pytest.mark.unit
def test_a_world_of_communicators_kills_by_the_backend():
    with CommThreads("inproc", 2) as world:
        assert world.kill(1)
        lost = world.run(lambda comm: comm.all_reduce(torch.ones(2), ReduceOp.SUM))[0]
        assert isinstance(lost, PeerFailed)
        assert lost.ranks == {1}


class Third:
    """A world of somebody else's, with the least that a world is."""

    def __init__(self, size):
        self._threads = ThreadWorld("inproc", size)
        self.size, self.run, self.kill, self.close = size, self._threads.run, self._threads.kill, self._threads.close


@pytest.mark.contract
def test_a_world_without_open_leaves_the_checks_of_it_unclaimed():
    checked: type[World] = Third
    report = check_backend(checked, only=["core"])
    assert not report.failed, str(report)
    assert set(report.unclaimed) == {check.id for check in CHECKS if check.needs}
    assert all("open" in reason for reason in report.unclaimed.values())


@pytest.mark.unit
def test_the_sheet_tells_what_was_claimed_seen_and_failed():
    facts = {"matrix.scan": {"int8": "sum max", "uint8": "sum max", "float4": ""}, "fault.death": 3.5}
    facts["matrix.broadcast"] = {"int8": "moves"}
    failed = {"core.fifo": "Matching is first in, first out. Seen: something else"}
    claims = Capabilities(death_bound_ms=40.0, mismatch="inline")
    ran = ("core.fifo", "core.tags", "fault.death", "matrix.scan", "matrix.broadcast")
    page = Report(ran, {"window.put": "no windows"}, failed, facts, "mine", claims).sheet()
    for line in (
        "# Backend mine",
        "| death of a peer noticed | within 40 ms |",
        "| mismatches found | inline |",
        "| scan | int8, uint8: sum max |",
        "| broadcast | int8 |",
        "| reduce | not checked |",
        "- core.fifo: Matching is first in, first out. Seen: something else",
    ):
        assert line in page.splitlines()
    assert "| FAILED |" in page
    assert "last survivor after 3.5 ms" in page
    assert "not claimed" in page


@pytest.mark.unit
def test_random_programs_shrink_to_the_simplest_that_fails():
    failed = []

    def holds(program):
        if any(case.operation == "scan" and case.count >= 1000 for case in program):
            failed.append(program)
            raise AssertionError("a scan of so many")

    with pytest.raises(AssertionError, match="a scan of so many"):
        generate.for_programs(holds, ["float32", "int8"], 3, 40)
    (case,) = failed[-1]
    assert (case.operation, case.count) == ("scan", 1000)


@pytest.mark.unit
def test_without_hypothesis_there_is_a_fixed_sample(monkeypatch):
    monkeypatch.setattr(generate.importlib.util, "find_spec", lambda name: None)
    drawn = [[], []]
    for seen in drawn:
        generate.for_programs(seen.append, sorted(all_dtypes()), 3, 50)
    assert drawn[0] == drawn[1]
    assert {case.operation for program in drawn[0] for case in program} == set(OPERATIONS)


@pytest.mark.unit
def test_a_broken_world_ends_the_programs_with_its_error_and_shrinks_nothing():
    seen = []

    def breaks(program):
        seen.append(program)
        raise PeerFailed("gone", ranks={1})

    with pytest.raises(PeerFailed, match="gone"):
        generate.for_programs(breaks, ["float32"], 2, 20)
    assert len(seen) == 1


@pytest.mark.unit
@pytest.mark.parametrize("name", sorted(all_dtypes()))
def test_the_reference_of_one_rank_is_what_it_contributes(name):
    dtype = all_dtypes()[name]
    for op in reductions(dtype):
        mine = numbers(1, 9, dtype)
        if op.kind != "premul_sum":
            assert torch.equal(reduced([mine], op).view(torch.uint8), mine.view(torch.uint8))


@pytest.mark.contract
@pytest.mark.slow
def test_the_example_of_a_backend_of_ones_own_passes_the_whole_kit():
    backend = runpy.run_path(str(ROOT / "examples" / "store_backend.py"))["StoreBackend"]
    report = check_backend(lambda size: ThreadWorld(backend, size))
    assert not report.failed, str(report)
    assert {one.partition(".")[0] for one in report.ran} == {
        "core",
        "derived",
        "matrix",
        "reduction",
        "fault",
        "memory",
    }
    unclaimed = {one for one in report.unclaimed if one.partition(".")[0] in ("core", "fault")}
    assert unclaimed == {"core.lost", "core.death_wakes", "fault.death", "fault.left"}
