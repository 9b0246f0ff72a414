"""`torchcomms trace`: merging dumps, and naming the rank that is behind."""

import json

import pytest
from typer.testing import CliRunner

from torchcomms.cli import app
from torchcomms.errors import InvalidCall
from torchcomms.hooks.ring import Ring
from torchcomms.trace import Dump, merge, read, timeline, verdicts

pytestmark = pytest.mark.unit


def dump(rank, *calls, ranks=2, error=None):
    """One rank's records: names of operations, of which the last is still under way."""
    ring = Ring(10)
    for number, name in enumerate(calls, 1):
        ring.begin(
            group="train",
            backend="tcp",
            operation=name,
            op_id=number,
            collective_seq_id=number,
            p2p_seq_id=0,
            inputs=(([4], "Float"),),
            outputs=(),
            timeout_ms=1000,
            site=f"train.py:{10 + number}",
        )
        if number < len(calls) or error is not None:
            ring.end("train", number, error if number == len(calls) else None)
    return Dump(rank, {"train": frozenset(range(ranks))}, ring.entries(True))


def test_the_rank_that_is_behind_is_named_with_its_place_and_the_others():
    (line,) = verdicts([dump(0, "barrier", "all_reduce", "broadcast"), dump(1, "barrier", "all_reduce")])
    assert line == (
        "train: rank 1 is behind: it is in all_reduce #2 at train.py:12, others in broadcast #3 at train.py:13 (rank 0)"
    )


def test_a_rank_without_records_and_one_that_called_nothing_are_named():
    (line,) = verdicts([dump(0, "barrier", ranks=3), dump(2, ranks=3)])
    assert "no records of rank 1" in line
    assert "rank 2 is behind: it has called nothing" in line


def test_ranks_in_different_operations_and_their_errors_are_named():
    error = ValueError("it broke")
    (line,) = verdicts([dump(0, "barrier"), dump(1, "scan", error=error)])
    assert "ranks differ: rank 0 in barrier #1 at train.py:11, rank 1 in scan #1 at train.py:11" in line
    assert "rank 1 failed in scan #1: ValueError: it broke" in line
    assert verdicts([dump(0, "scan"), dump(1, "scan")]) == ["train: all ranks agree, last in scan #1"]


def test_a_timeline_has_a_process_for_each_rank_and_a_slice_for_each_operation():
    events = timeline([dump(1, "barrier", "scan"), dump(0, "barrier")])["traceEvents"]
    names = {(event["pid"], event["args"]["name"]) for event in events if event["ph"] == "M"}
    assert names == {(0, "rank 0"), (0, "train"), (1, "rank 1"), (1, "train")}
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["pid"], event["name"]) for event in slices] == [(0, "barrier"), (1, "barrier"), (1, "scan")]
    assert all(event["dur"] >= 0 for event in slices)
    assert slices[2]["args"]["site"] == "train.py:12"


def test_merging_writes_the_timeline_and_refuses_what_is_no_dump(tmp_path):
    for rank in range(2):
        one = dump(rank, "barrier", "scan")
        config = {name: {"ranks": str(sorted(ranks))} for name, ranks in one.groups.items()}
        text = {"rank": rank, "pg_config": config, "entries": one.entries}
        (tmp_path / f"train.{rank}.json").write_text(json.dumps(text))
    output = tmp_path / "trace.json"
    for _ in range(2):
        said = merge([tmp_path], output)
        assert said == ["train: all ranks agree, last in scan #2", f"2 dumps in {output}"]
    assert json.loads(output.read_text())["displayTimeUnit"] == "ms"
    with pytest.raises(InvalidCall, match=r"trace.json is no dump"):
        read(output)
    with pytest.raises(InvalidCall, match="TORCHCOMMS_TRACE_DIR"):
        merge([output], output)


def test_the_command_says_who_is_behind_and_what_is_wrong_with_a_file(tmp_path):
    for rank, calls in enumerate([("barrier", "scan"), ("barrier",)]):
        one = dump(rank, *calls)
        text = {"rank": rank, "pg_config": {"train": {"ranks": "[0,1]"}}, "entries": one.entries}
        (tmp_path / f"train.{rank}.json").write_text(json.dumps(text))
    done = CliRunner().invoke(app, ["trace", str(tmp_path), "-o", str(tmp_path / "all.json")])
    assert done.exit_code == 0
    assert "rank 1 is behind: it is in barrier #1" in done.output
    (tmp_path / "bad.json").write_text("[]")
    done = CliRunner().invoke(app, ["trace", str(tmp_path / "bad.json")])
    assert done.exit_code == 2
    assert "no dump of a flight recorder" in done.output.replace("\n", " ")
