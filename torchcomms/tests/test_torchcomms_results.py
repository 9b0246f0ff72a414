"""What is claimed of performance follows from the committed records."""

import json
import runpy
from pathlib import Path

import pytest

import torchcomms

pytestmark = pytest.mark.unit
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_table_is_that_of_the_records():
    assert (BENCHMARKS / "RESULTS.md").read_text() == runpy.run_path(str(BENCHMARKS / "results.py"))["render"]()


def test_the_bounds_on_noticing_a_death_are_twice_the_worst_that_was_measured_or_more():
    late = {}
    for row in json.loads((BENCHMARKS / "bench_death.json").read_text())["rows"]:
        late.setdefault(row["subject"], []).append(row["last"])
    ours = sorted(set(late) & set(torchcomms.backends()) - {"gloo"})  # that of the records is torch's own
    assert "tcp" in ours
    for name in ours:
        assert len(late[name]) >= 10
        assert 2 * max(late[name]) <= torchcomms.find(name).capabilities().death_bound_ms, name
