"""Whole models: a decoder with its cache in place, methods that share state, counters, and what a report tells."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import executor
from executor.errors import CompileError, ProgramRunError, UnsupportedError, UnsupportedTargetError
from executor.program import Program

pytestmark = pytest.mark.system


def _benchmark_models() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "models.py"
    spec = importlib.util.spec_from_file_location("executor_benchmark_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = _benchmark_models()
SMALL = models.Config(width=48, layers=3, heads=6, kv_heads=2, hidden=80, vocab=64, context=16, tied=True)


@pytest.fixture(scope="module")
def decoder() -> tuple[nn.Module, Program]:
    model, args = models.decoder(SMALL)
    return model, executor.compile(model, args)


def test_a_decoder_generates_what_eager_generates(decoder: tuple[nn.Module, Program], tmp_path: Path) -> None:
    model, program = decoder
    program.save(tmp_path / "decoder.edge")
    with executor.load(tmp_path / "decoder.edge") as runtime, torch.no_grad():
        token = 3
        for position in range(8):
            due = model(torch.tensor([[token]]), torch.tensor([position]))
            came = runtime(np.array([[token]]), np.array([position]))
            np.testing.assert_allclose(came, due.numpy(), rtol=1e-4, atol=1e-4)
            token = int(due.argmax())
        for layer, keys in enumerate(runtime.state.snapshot().values()):
            assert keys.any(), layer


def test_equal_layers_share_functions_and_the_cache_is_not_copied(decoder: tuple[nn.Module, Program]) -> None:
    _, program = decoder
    (method,) = program.ir.methods
    assert len(program.ir.functions) < len(method.block.steps) / 2
    cache = SMALL.kv_heads * SMALL.context * SMALL.head_dim
    temporaries = [np.prod(b.shape, dtype=int) for b in method.block.buffers if b.kind == "temp"]
    assert max(temporaries) < cache
    assert isinstance(method.arena, int)
    assert method.arena < 16 * 1024


def test_verification_runs_without_torch(decoder: tuple[nn.Module, Program]) -> None:
    verification = decoder[1].verify()
    assert verification
    assert len(verification.differences) == 2
    assert verification.max_abs_diff < 1e-3
    assert "call 2" in str(verification)


def test_tied_weights_are_stored_once(decoder: tuple[nn.Module, Program]) -> None:
    model, program = decoder
    own = sum(parameter.numel() * 4 for parameter in model.parameters())
    stored = sum(memoryview(weight.data).nbytes for weight in program.weights)
    assert stored <= own + 4 * 2 * SMALL.context * SMALL.head_dim


def test_a_report_counts_what_runs(decoder: tuple[nn.Module, Program]) -> None:
    _, program = decoder
    report = program.report()
    (memory,) = report.memory
    assert memory.lower_bound <= memory.arena
    head = next(row for row in report.rows if row.flops >= 2 * SMALL.width * SMALL.vocab and row.calls == 1)
    assert (head.operation, head.source.split(":")[0]) == ("aten.linear", "models.py")
    assert "MFLOP" in str(report)


def test_an_index_out_of_range_is_told(decoder: tuple[nn.Module, Program], tmp_path: Path) -> None:
    decoder[1].save(tmp_path / "decoder.edge")
    with (
        executor.load(tmp_path / "decoder.edge") as runtime,
        pytest.raises(ProgramRunError, match=r"embedding: an index outside 0\.\.63"),
    ):
        runtime(np.array([[64]]), np.array([0]))


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(5.0))
        self.register_buffer("history", torch.zeros(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.count += 1
        self.history.copy_(torch.cat([self.history[1:], self.count[None]]))
        return {"y": x + self.count, "history": self.history}


class _Reader(nn.Module):
    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, scale: float, parts: dict[str, Tensor]) -> tuple[Tensor, None, int]:
        return parts["x"] * self.counter.count * scale, None, 3


def test_methods_share_state_with_its_initial_value(tmp_path: Path) -> None:
    counter = _Counter()
    program = executor.compile(
        {
            "step": (counter, (torch.zeros(2),)),
            "read": (_Reader(counter), (2.0, {"x": torch.ones(3)})),
        }
    )
    assert float(counter.count) == 5, "compiling leaves the module as it was"
    assert program.verify()
    program.save(tmp_path / "counter.edge")
    with executor.load(tmp_path / "counter.edge") as runtime:
        zeros = np.zeros(2, np.float32)
        assert [float(runtime.step(zeros)["y"][0]) for _ in range(3)] == [6, 7, 8]
        assert runtime.step(zeros)["history"].tolist() == [6, 7, 8, 9]
        value, nothing, three = runtime.read(2.0, {"x": np.ones(3, np.float32)})
        assert (value.tolist(), nothing, three) == ([18, 18, 18], None, 3)
        runtime.state.reset()
        assert float(runtime.step(zeros)["y"][0]) == 6


class _Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0, 2.0]))
        self.register_buffer("b", torch.tensor([3.0, 4.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old.flip(0))
        return self.a, self.b, x


class _Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.arange(6.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.window * 2
        self.window[1:] = self.window[:-1].clone()
        self.window[0] = x
        return before, self.window.sum()


@pytest.mark.parametrize(("model", "args"), [(_Swap(), (torch.ones(1),)), (_Shift(), (torch.tensor(9.0),))])
def test_state_that_feeds_on_itself_keeps_its_old_values_as_long_as_needed(
    model: nn.Module, args: tuple[Tensor, ...]
) -> None:
    verification = executor.compile(model, args).verify()
    assert verification, str(verification)
    assert verification.max_abs_diff == 0


def test_what_is_not_supported_names_the_line_and_the_cure() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort().values

    with pytest.raises(UnsupportedError, match=r"aten\.sort.*test_executor_models\.py:\d+; write it with") as caught:
        executor.compile(Sorted(), (torch.ones(3),))
    assert caught.value.source.startswith("test_executor_models.py:")
    with pytest.raises(UnsupportedError, match=r"dtype float64.*model\.float\(\)"):
        executor.compile(nn.ReLU(), (torch.ones(3, dtype=torch.float64),))


def test_arguments_of_compile_are_checked() -> None:
    with pytest.raises(CompileError, match="dynamic_shapes is not supported"):
        executor.compile(nn.ReLU(), (torch.ones(3),), dynamic_shapes={"input": {}})
    with pytest.raises(CompileError, match="give a tuple"):
        executor.compile(nn.ReLU(), torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(CompileError, match="its own arguments"):
        executor.compile({"run": (nn.ReLU(), (torch.ones(3),))}, (torch.ones(3),))
    with pytest.raises(CompileError, match="named by identifiers"):
        executor.compile({"a b": (nn.ReLU(), (torch.ones(3),))})
    with pytest.raises(CompileError, match="missing a required argument"):
        executor.compile(nn.ReLU(), ())
    with pytest.raises(UnsupportedTargetError, match="'sparc-solaris'"):
        executor.compile(nn.ReLU(), (torch.ones(3),), target="sparc-solaris")


def test_importing_brings_neither_torch_nor_numpy() -> None:
    code = "import sys, executor; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_distribution_of_the_same_import_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "executor-9.dist-info").mkdir()
    (tmp_path / "executor-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: executor\nVersion: 9\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import executor"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert "the distribution executor 9 installs a package of this name too" in done.stderr
