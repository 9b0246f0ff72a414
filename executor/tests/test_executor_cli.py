"""The command line: each command on a small file, its help, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor import vectors
from executor.cli import main
from executor.file import Blob
from executor.manifest import Method

pytestmark = pytest.mark.unit

Write = Callable[..., Path]
Make = Callable[..., Method]
ONES = np.ones((2, 4), np.float32)


def blob(*due: float) -> Blob:
    """Test vectors: calls on ones, one after another."""
    cases = [vectors.Case("forward", (ONES,), (ONES * value,), reset=not index) for index, value in enumerate(due)]
    return Blob("vectors", vectors.encode(cases))


def test_run_prints_outputs(write_program: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", ONES)
    assert main(["run", str(write_program()), "--input", f"x={tmp_path / 'x.npy'}"]) == 0
    assert capsys.readouterr().out.startswith("y: float32[2, 4]\n[[7. 7. 7. 7.]")


def test_run_keeps_outputs_by_name(write_program: Write, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ONES)
    command = ["run", str(write_program()), "--method", "forward", "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([*command, "--output", str(tmp_path / "out.npz")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], ONES * 7)


def test_inspect_shows_methods_state_and_segments(write_program: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(write_program())]) == 0
    shown = capsys.readouterr().out
    for line in (
        "method forward: arena 16*n bytes, state ['count']",
        "  in  x: float32[n, 4]",
        "  n from 1 to 100",
        "state count: float32[1], starts as start",
        "weights: 2, 8 bytes",
        "bytes at 64",
    ):
        assert line in shown


def test_inspect_gives_the_manifest_as_json(write_program: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(write_program())]) == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["name"] == "forward"


def test_verify_replays_the_vectors(write_program: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(write_program(extra=(blob(7, 8),)))]) == 0
    assert capsys.readouterr().out == "forward.y: largest difference 0  ok\n" * 2


def test_verify_fails_where_an_output_differs(write_program: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(write_program(extra=(blob(7, 8.5),)))]) == 1
    shown = capsys.readouterr()
    assert "forward.y: largest difference 0.5  DIFFERS" in shown.out
    assert "outputs beyond tolerance: forward.y by 0.5" in shown.err


def test_bench_times_a_method(write_program: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_program(extra=(blob(7),)))
    assert main(["bench", path, "--seconds", "0.01"]) == 0
    assert main(["bench", path, "--seconds", "0.01", "--size", "n=9"]) == 0
    assert capsys.readouterr().out.count("forward: median ") == 2


def test_errors_are_one_line_and_status_1(
    write_program: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(write_program())
    (tmp_path / "text.npy").write_text("words")
    failing = {
        "no such file": ["inspect", str(tmp_path / "missing.edge")],
        "no program file": ["inspect", str(_other(tmp_path))],
        "no method 'decode': choose one of ['forward']": ["run", program, "--method", "decode"],
        "method 'forward' takes ['x']": ["run", program],
        "is no NAME=VALUE": ["run", program, "--input", "x"],
        "neither a number nor a .npy file": ["run", program, "--input", f"x={tmp_path / 'text.npy'}"],
        "input 'x': came a int": ["run", program, "--input", "x=3"],
        "holds no test vectors": ["verify", program],
        "give whole numbers for ['n']": ["bench", program, "--size", "k=3"],
        "names no factory": ["compile", "json", "-o", "x"],
        "cannot import 'no_such_module'": ["compile", "no_such_module:make", "-o", "x"],
        "has no function 'make'": ["compile", "json:make", "-o", "x"],
        "returned a int": ["compile", "builtins:int", "-o", "x"],
    }
    for message, command in failing.items():
        assert main(command) == 1
        error = capsys.readouterr().err
        assert message in error.lower() or message in error
        assert error.count("\n") == 1


def _other(folder: Path) -> Path:
    (folder / "other.edge").write_bytes(b"MZ" * 100)
    return folder / "other.edge"


COMMANDS = ["compile", "run", "inspect", "verify", "bench"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"executor {command}" in capsys.readouterr().out


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "command" in capsys.readouterr().err


@pytest.mark.system
def test_the_installed_command_lists_its_commands() -> None:
    script = os.path.join(os.path.dirname(sys.executable), "executor")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert command in done.stdout
