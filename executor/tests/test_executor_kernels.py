"""Custom kernels: linked from a provider, or what they mean compiled instead; providers that break the contract."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import executor
from executor import kernels, targets
from executor.compiler.operations import kernels as operations
from executor.errors import KernelError, ProgramRunError, UnsupportedError

pytestmark = pytest.mark.system

SOURCE = """
#include <stdint.h>
static float twice(float x) { return x + x; }
int scale(void *const *buffers, const int64_t *sizes, void *workspace)
{
    const float *x = buffers[0];
    float *y = buffers[1], *t = workspace;
    if ((uintptr_t)workspace % 64) return 9;
    for (int i = 0; i < COUNT; i++) t[i] = twice(x[i]);
    for (int i = 0; i < COUNT; i++) y[i] = t[i] * FACTOR / 2;
    return 0;
}
"""


@dataclass(frozen=True)
class Artifact:
    target: str
    form: str
    code: bytes
    symbol: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    symbols: tuple[str, ...] = ()
    workspace: int = 0
    digest: str = ""


class UnsupportedTarget(Exception):
    known = ()


class Scale:
    """y = factor * x, in C or as an object."""

    interface = (1, 0)
    name = "edgetest::scale"

    def __init__(self, form: str = "c", changes: dict[str, Any] | None = None) -> None:
        self.form, self.changes = form, changes or {}

    def reference(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def artifact(self, x: Any, factor: float, *, target: str) -> Artifact:
        if self.changes.get("target") == "":
            raise UnsupportedTarget
        count = int(np.prod(x.shape))
        text = SOURCE.replace("COUNT", str(count)).replace("FACTOR", f"{factor}f").encode()
        code = text if self.form == "c" else _object(text)
        digest = hashlib.sha256(code).hexdigest()
        made = Artifact(target, self.form, code, "scale", (x,), (x,), workspace=4 * count, digest=digest)
        return replace(made, **self.changes)


def _object(text: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "kernel.o")
        command = ["gcc", "-O1", "-fPIC", "-c", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=text, capture_output=True, check=True)
        return made.read_bytes()


class Provider:
    interface = (1, 0)
    namespace = "edgetest"

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def find(self, name: str) -> Any:
        return self.kernel if name == "edgetest::scale" else None


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.edgetest.scale(x + 1, 3.0)
        return torch.ops.edgetest.scale(y[:2], 5.0) - 1


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("edgetest", "DEF") as made:
        made.define("scale(Tensor x, float factor) -> Tensor")
        made.impl("scale", lambda x, factor: x * factor, "CPU")
        made.impl("scale", lambda x, factor: torch.empty_like(x), "Meta")
        yield


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def install(*providers: Any) -> None:
        kernels.provider.cache_clear()
        points = [_Point(f"module{place}:provider", made) for place, made in enumerate(providers)]
        monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == kernels.GROUP else [])

    yield install
    kernels.provider.cache_clear()


@dataclass(frozen=True)
class _Distribution:
    name: str = "some-kernels"
    version: str = "2.0"


@dataclass(frozen=True)
class _Point:
    value: str
    made: Any
    name: str = "edgetest"
    dist: _Distribution = _Distribution()

    def load(self) -> Any:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


X = torch.linspace(-1, 1, 24).reshape(4, 6)


@pytest.mark.parametrize("form", ["c", "object"])
def test_kernels_are_linked_into_the_program(form: str, provide: Any, tmp_path: Path) -> None:
    provide(Provider(Scale(form)))
    model: nn.Module = Model() if form == "c" else _Once()
    program = executor.compile(model, (X,))
    program.save(tmp_path / "kernel.edge")
    assert program.verify()
    assert any("edgetest::scale: linked" in note for note in program.report().notes)
    assert any(row.external.startswith("scale") for row in program.report().rows)
    for allow_code in (True, False):
        with executor.load(tmp_path / "kernel.edge", allow_code=allow_code) as runtime:
            np.testing.assert_allclose(runtime(X.numpy()), model(X).numpy(), rtol=1e-6)


class _Counting(Scale):
    """Counts how often it is asked for its meaning."""

    asked = 0

    def reference(self, x: Tensor, factor: float) -> Tensor:
        self.asked += 1
        return x * factor


class _Refused(_Counting):
    """Its meaning is one that torch.export refuses."""

    def reference(self, x: Tensor, factor: float) -> Tensor:
        return super().reference(x, factor) if x.sum() > 0 else x


class _Opaque(Scale):
    """Its meaning depends on its data in a way that has no loops."""

    def reference(self, x: Tensor, factor: float) -> Tensor:
        return x[x > 0] * factor


class _Often(nn.Module):
    """Five calls of one kind, and one of another."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(5):
            x = torch.ops.edgetest.scale(x + step, 2.0)
        return torch.ops.edgetest.scale(x, 3.0)


@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_a_kernel_is_asked_once_for_what_it_means_however_often_it_is_called(
    kernels: Literal["auto", "none"], provide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = _counted_exports(monkeypatch)
    provide(Provider(kernel := _Counting()))
    executor.compile(_Once(), (X,), kernels=kernels)
    once = kernel.asked  # export itself may run a function more than once
    program = executor.compile({"a": (_Often(), (X,)), "b": (_Often(), (X,))}, kernels=kernels)
    assert once >= 1
    assert kernel.asked == once + 2 * once
    assert exported == ["edgetest::scale"] * 3
    assert program.verify()


def test_torch_is_asked_once_to_export_what_it_refuses(provide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = _counted_exports(monkeypatch)
    provide(Provider(_Refused()))
    program = executor.compile(_Often(), (X,))
    assert exported == ["edgetest::scale"] * 2
    assert any("runs compiled only" in note for note in program.report().notes)
    assert program.verify()


def _counted_exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels whose references are exported from now on."""
    names: list[str] = []
    export = operations.export

    def counted(name: str, *rest: Any) -> Any:
        names.append(name)
        return export(name, *rest)

    monkeypatch.setattr(operations, "export", counted)
    return names


def test_a_kernel_whose_meaning_has_no_loops_runs_compiled_and_is_never_interpreted(
    provide: Any, tmp_path: Path
) -> None:
    provide(Provider(_Opaque()))
    program = executor.compile(_Once(), (X,))
    assert any("runs compiled only" in note for note in program.report().notes)
    assert program.verify()
    program.save(tmp_path / "kernel.edge")
    with (
        executor.load(tmp_path / "kernel.edge", allow_code=False) as runtime,
        pytest.raises(ProgramRunError, match="edgetest::scale runs compiled only"),
    ):
        runtime(X.numpy())


class _Once(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.edgetest.scale(x * 2, 3.0)


@pytest.mark.parametrize("how", ["off", "unsupported"])
def test_what_a_kernel_means_is_compiled_where_its_code_is_not(how: str, provide: Any) -> None:
    provide(Provider(Scale(changes={"target": ""} if how == "unsupported" else None)))
    program = executor.compile(Model(), (X,), kernels="none" if how == "off" else "auto")
    assert program.verify()
    assert any("its reference is compiled instead" in note for note in program.report().notes)
    assert not any(row.external for row in program.report().rows)


def test_a_kernel_that_nobody_provides_is_refused(provide: Any) -> None:
    provide()
    with pytest.raises(UnsupportedError, match=r"edgetest\.scale without a kernel.*test_executor_kernels\.py:\d+"):
        executor.compile(Model(), (X,))


@pytest.mark.parametrize(
    ("providers", "problem"),
    [
        ([Provider(Scale()), Provider(Scale())], "provided by some-kernels 2.0 and some-kernels 2.0"),
        ([ImportError("no such thing")], "some-kernels 2.0 cannot be imported: no such thing"),
        ([type("Old", (Provider,), {"interface": (2, 0)})(Scale())], r"has interface \(2, 0\)"),
        ([type("Bad", (), {"interface": (1, 0)})()], "has no function 'find'"),
        ([Provider(type("Odd", (Scale,), {"artifact": lambda self, x: x})())], "takes no 'target'"),
        ([Provider(Scale(changes={"form": "ptx"}))], "has form 'ptx'"),
        ([Provider(Scale(changes={"target": "wasm32"}))], "is for 'wasm32'"),
        ([Provider(Scale(changes={"outputs": ()}))], r"has outputs \[\]"),
        ([Provider(Scale(changes={"symbols": ("n",)}))], "has the symbols"),
        ([Provider(Scale("object"))], "two different artifacts have the symbol 'scale'"),
        ([Provider(type("Broken", (Scale,), {"artifact": _object})())], "makes no code"),
    ],
)
def test_providers_that_break_the_contract_are_named(providers: list[Any], problem: str, provide: Any) -> None:
    provide(*providers)
    if "makes no code" in problem:
        providers[0].kernel.artifact = lambda *args, target: 1 / 0
    with pytest.raises(KernelError, match=problem):
        executor.compile(Model(), (X,))


@pytest.mark.unit
def test_targets_have_one_grammar() -> None:
    base, *features = targets.host().split("+")
    assert targets.resolve("host").name == targets.host()
    assert targets.resolve(base).vector <= targets.resolve("host").vector
    assert features == sorted(features)
