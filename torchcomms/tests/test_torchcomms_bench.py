"""`torchcomms bench` and the benchmarks of the folder, at tiny sizes."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from torchcomms.bench import OPERATIONS, Plan, Row
from torchcomms.bench.plan import read_sizes
from torchcomms.bench.show import MARKER, size_name, table
from torchcomms.errors import InvalidCall

FOLDER = Path(__file__).parents[1] / "benchmarks"
unit = pytest.mark.unit
system = pytest.mark.system
TINY = {"seconds": 0.001}
RUN = """
import sys
from torchcomms.bench import Plan
from torchcomms.bench.rank import main
main(Plan.load(sys.argv[1]))
"""


@unit
@pytest.mark.parametrize(
    ("text", "sizes"),
    [("8:64", (8, 16, 32, 64)), ("1K:1M:32", (1 << 10, 1 << 15, 1 << 20)), ("8,4k,2MiB", (8, 4096, 2 << 20))],
)
def test_sizes(text, sizes):
    assert read_sizes(text) == sizes


@unit
@pytest.mark.parametrize("text", ["64:8", "8:64:1", "8:64:2:2", "0:8", "x", "8:"])
def test_sizes_that_are_none(text):
    with pytest.raises(InvalidCall):
        read_sizes(text)


@unit
def test_bus_bandwidth_is_that_of_nccl_tests():
    factors = {name: Plan.read(name, "8", 2).bus_factor(4) for name in OPERATIONS}
    assert factors == {
        "all_gather": 0.75,
        "all_reduce": 1.5,
        "all_to_all": 0.75,
        "barrier": 1.0,
        "broadcast": 1.0,
        "reduce": 1.0,
        "reduce_scatter": 0.75,
    }


@unit
def test_a_plan_survives_its_way_to_the_ranks():
    plan = Plan.read("all_reduce", "8:64", 2, peer="gloo")
    assert Plan.load(plan.dump()) == plan


@unit
def test_the_table_has_bandwidths_the_ratio_to_the_peer_and_who_was_wrong():
    spread = {"median": 1000.0, "p10": 900.0, "p90": 1100.0}
    row = Row(4, 4_000_000, 10, {"shm": spread, "gloo": {**spread, "median": 2500.0}}, ("gloo",))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(Plan.read("all_reduce", "4000000", 4), [row]))
    text = console.export_text()
    assert [word for word in ("4.00", "6.00", "2.50", "yes") if word not in text] == []
    assert "wrong results or inputs overwritten: gloo" in text


@unit
def test_sizes_in_words():
    assert [size_name(count) for count in (0, 8, 4096, 3 << 20, 1 << 30, 1025)] == [
        "0 B",
        "8 B",
        "4 KiB",
        "3 MiB",
        "1 GiB",
        "1025 B",
    ]


@system
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_right_and_timed_beside_a_peer(ranks, tmp_path, operation):
    script = tmp_path / "rank.py"
    script.write_text(RUN)
    plan = Plan.read(operation, "4,1K", 3, backend="tcp", dtype="bfloat16", peer="gloo", **TINY)
    first, *others = ranks(3, script, plan.dump())
    written, errors = first.communicate()
    assert [rank.wait() for rank in (first, *others)] == [0, 0, 0], errors
    rows = [Row.load(line.removeprefix(MARKER)) for line in written.splitlines()]
    assert len(rows) == plan.rows()
    for row in rows:
        assert row.ranks == 3
        assert set(row.times) == {"tcp", "gloo"}
        assert "tcp" not in row.wrong
        assert all(0 < times["p10"] <= times["median"] <= times["p90"] for times in row.times.values())


@system
def test_the_command_prints_json_of_ranks_that_it_starts(command):
    done = command("bench", "all_reduce", "--backend", "tcp", "--sizes", "64", "--seconds", "0.001", "--json")
    written, errors = done.communicate()
    assert done.returncode == 0, errors
    found = json.loads(written)
    assert found["plan"]["ranks"] == 2
    assert [row["bytes"] for row in found["rows"]] == [64]
    assert found["rows"][0]["times"]["tcp"]["median"] > 0


@pytest.fixture
def benchmarks(monkeypatch):
    """The benchmarks' folder on the path, as for its scripts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == FOLDER:
            del sys.modules[name]


DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from turns import compare, table
from world import Case
cases = [Case("all_reduce", 64, inner=1, samples=2), Case("barrier", 0, inner=1, samples=2)]
rows, absent = compare(cases, ("tcp", "gloo", "MPICH", "no such"), 2, rounds=2)
print(json.dumps([rows, absent, table(rows, ("tcp", "gloo", "MPICH"))]))
"""


@system
def test_libraries_take_turns_and_what_is_absent_is_said(start, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    done = start(script, FOLDER, TORCHCOMMS_BENCH_MPICH="")
    written, errors = done.communicate()
    assert done.returncode == 0, errors
    rows, absent, lines = json.loads(written)
    assert [set(row["times"]) - {"C", "copy"} for row in rows] == [{"tcp", "gloo"}] * 2
    assert any("MPICH: absent: TORCHCOMMS_BENCH_MPICH is not set" in one for one in absent)
    assert any("no such: " in one and "no backend 'no such' is installed" in one for one in absent)
    assert lines[2].startswith("| all_reduce 64 B | ")


@unit
def test_what_is_slow_makes_fewer_calls(benchmarks):
    from turns import affordable
    from world import Case

    case = Case("all_reduce", 8, inner=100, samples=10)
    assert affordable(case, [1.0]) == case
    slow = affordable(case, [10_000.0])
    assert asdict(slow) == {**asdict(case), "inner": slow.inner, "samples": slow.samples}
    assert slow.inner * slow.samples <= 30
