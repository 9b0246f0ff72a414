"""The C compilers: whichever is there, and what is said when none is or it fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import executor
from executor import targets
from executor.compiler import toolchain
from executor.errors import ToolchainError


@pytest.mark.slow
@pytest.mark.system
def test_zig_takes_the_place_of_gcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert toolchain.compiler() == toolchain.ZIG
    model = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Softmax(-1))
    x = torch.linspace(-1, 1, 60).reshape(3, 20)
    executor.compile(model, (x,)).save(tmp_path / "zig.edge")
    with executor.load(tmp_path / "zig.edge") as runtime, torch.no_grad():
        np.testing.assert_allclose(runtime(x.numpy()), model(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.unit
def test_a_lacking_compiler_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="install gcc, or the package ziglang"):
        toolchain.compiler()


@pytest.mark.system
def test_a_failing_compiler_is_told_in_its_own_words() -> None:
    with pytest.raises(ToolchainError, match=r"program\.c:1"):
        toolchain.shared_object({"program": "int f("}, targets.resolve("host"), {})
