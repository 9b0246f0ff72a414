"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from executor.cli import main

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "classifier.py": ["classifier.edge: ", "label 0 of probability 0.1211\neager: label 0 of probability 0.1211"],
    "running_mean.py": ["mean of 1, 2, 6: [3. 3. 3.]", "mean of 1, 3: [2. 2. 2.]", "mean of 9: [9. 9. 9.]"],
}


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SAID)


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_says_what_it_should(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for line in SAID[name]:
        assert line in done.stdout


def test_the_command_line_compiles_verifies_and_times_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    path = str(tmp_path / "classifier.edge")
    assert main(["compile", "classifier:make", "-o", path]) == 0
    assert main(["verify", path]) == 0
    assert main(["verify", path, "--interpret"]) == 0
    assert main(["bench", path, "--seconds", "0.05"]) == 0
    shown = capsys.readouterr().out
    assert "ok" in shown
    assert "DIFFERS" not in shown
