"""A helium kernel inside a model: one node of the graph, compiled for the target, interpreted by its meaning."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

import executor
from helium import library


class Normed(nn.Module):
    """Two normed linear layers; the norm is a helium kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24) + 0.5)
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.up(library.rms_norm(x, self.weight, 1e-5)).relu())
        return library.softmax(library.rms_norm(x, self.weight, 1e-5))


@pytest.fixture(scope="module")
def compiled():
    torch.manual_seed(0)
    model, x = Normed().eval(), torch.randn(3, 24)
    return model, x, executor.compile(model, (x,))


@pytest.mark.unit
def test_the_kernel_stays_one_node():
    exported = torch.export.export(Normed().eval(), (torch.randn(3, 24),), strict=False)
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert targets.count("helium.rms_norm.default") == 2


@pytest.mark.system
def test_the_program_runs_without_torch(compiled):
    _, _, program = compiled
    verification = program.verify()
    assert verification, str(verification)
    assert "helium::rms_norm" in str(program.report())


@pytest.mark.unit
def test_the_interpreter_runs_what_the_kernel_means(compiled, tmp_path):
    model, x, program = compiled
    program.save(tmp_path / "normed.edge")
    with executor.load(tmp_path / "normed.edge", allow_code=False) as runtime:
        numpy.testing.assert_allclose(runtime(x.numpy()), model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
