"""The main job, in small: every stage really runs, and the report says what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

DEMO = Path(__file__).with_name("demo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, str(DEMO), "--quick", "--seed", "3", "--out", str(out)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-8000:]
    assert "stage" in finished.stdout
    return out


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_every_key_is_there_with_its_type(report):
    assert isinstance(report["exact_match_before"], float)
    assert isinstance(report["exact_match_after"], float)
    assert isinstance(report["export_max_abs_diff"], float)
    assert isinstance(report["smollm2_tokens_equal"], bool)
    assert isinstance(report["comm_backend"], str)
    assert type(report["processes"]) is int
    assert all(isinstance(name, str) and isinstance(s, float) and s > 0 for name, s in report["stages"].items())


def test_the_real_model_says_the_same_without_torch(report):
    assert report["smollm2_tokens_equal"] is True
    assert "Paris" in report["smollm2_answers"][0][1]
    assert report["torch_importable"] is False


def test_the_exported_policy_is_the_policy(report):
    assert report["export_max_abs_diff"] < 1e-3
    assert report["export_answers_equal"] is True


def test_all_five_packages_were_really_used(report):
    assert report["processes"] >= 3
    assert report["comm_backend"] == "tcp"
    assert report["kernel"]["name"].startswith("helium::")
    assert report["kernel"]["target"].partition("-")[0] == os.uname().machine
    assert report["kernel"]["roofline_share"] > 0


def test_warm_start_can_already_sort_a_little(report):
    assert 0.02 < report["exact_match_before"] < 0.9
    assert 0.0 <= report["exact_match_after"] <= 1.0


def test_the_page_shows_curve_and_rollouts(folder):
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "Sample rollouts" in page
    assert "SmolLM2-135M-Instruct" in page
