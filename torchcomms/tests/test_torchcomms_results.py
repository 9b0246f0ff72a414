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


def test_the_bound_on_noticing_a_death_is_twice_the_worst_that_was_measured_or_more():
    late = [row["last"] for row in json.loads((BENCHMARKS / "bench_death.json").read_text())["rows"]]
    assert len(late) >= 10
    assert 2 * max(late) <= torchcomms.find("tcp").capabilities().death_bound_ms
