"""The README's example and the scripts in examples/ run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]


def run(path: Path) -> str:
    result = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_example_of_the_readme(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "readme.py").write_text(code)
    assert run(tmp_path / "readme.py") == "[2, 2, 2, 2] 3 4 {'hosts': 0, 'procs': 2}\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("parameter_server", "weights [1.0, -2.0, 0.5]"), ("survive_a_death", "'procs': 1} was killed by SIGKILL")],
)
def test_example(name: str, shown: str) -> None:
    assert shown in run(ROOT / "examples" / f"{name}.py")


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"parameter_server", "survive_a_death"}
