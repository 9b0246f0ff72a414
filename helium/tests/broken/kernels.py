"""A kernel that keeps the contract, and small variations of it, each of which breaks one clause."""

import itertools
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from helium.contract import Artifact, TensorSpec, UnsupportedTarget

HERE = f"{platform.machine()}-{sys.platform}"
NAMESPACE = "helium_kit_tests"

BODY = """
#include <stdint.h>
{prelude}
int scale(void *const *buffers, const int64_t *sizes, void *workspace) {{
    const float *x = buffers[0];
    float *y = buffers[1];
    int64_t count = {count};
    for (int64_t i = 0; i < count; i++) y[i] = x[i] * {factor}f;
    {coda}
    return {code};
}}
"""


library = torch.library.Library(NAMESPACE, "DEF")
for operation in ("scale", "scale_without_fake"):
    library.define(f"{operation}(Tensor x, float factor) -> Tensor")
    library.impl(operation, lambda x, factor: (x * factor).contiguous(), "CPU")
library.impl("scale", lambda x, factor: torch.empty(x.shape, dtype=x.dtype, device="meta"), "Meta")


def times(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The product; on meta tensors without torch's own arithmetic, which takes seconds to import."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta") if x.is_meta else (x * factor).contiguous()


class Scale:
    """``x * factor``: keeps every clause."""

    interface: Any = (1, 0)
    name = f"{NAMESPACE}::scale"
    fails = ""
    parts: ClassVar[dict[str, str]] = {"prelude": "", "coda": "", "code": "0"}
    flags: ClassVar[list[str]] = ["-fPIC", "-O2"]

    def __call__(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return times(x, factor)

    def reference(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def abstract(self, x: Any, factor: float) -> tuple[TensorSpec, ...]:
        return (TensorSpec.contiguous(x.shape, x.dtype),)

    def source(self, x: Any, factor: float) -> str:
        names = {symbol: f"sizes[{i}]" for i, symbol in enumerate(self.symbols(x))}
        count = "*".join(names.get(factor, factor) for extent in x.shape for factor in str(extent).split("*"))
        return BODY.format(**{"count": count or "1", "factor": float(factor), **self.parts})

    def symbols(self, x: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(extent for extent in x.shape if isinstance(extent, str)))

    def artifact(self, x: Any, factor: float, *, target: str) -> Any:
        if target != HERE:
            raise UnsupportedTarget(target, [HERE])
        code = compiled(self.source(x, factor), tuple(self.flags))
        return self.wrapped(x, code, Artifact)

    def wrapped(self, x: Any, code: bytes, make: Any, **more: Any) -> Any:
        outputs = (TensorSpec.contiguous(x.shape, x.dtype),)
        fields = {"inputs": (x,), "outputs": outputs, "symbols": self.symbols(x), "workspace": 0}
        return make(target=HERE, form="object", code=code, symbol="scale", **fields, **more)


@cache
def compiled(source: str, flags: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scale.c")
        path.write_text(source)
        subprocess.run(["cc", *flags, "-c", str(path), "-o", f"{folder}/scale.o"], check=True, timeout=60)
        return Path(folder, "scale.o").read_bytes()


class AsC(Scale):
    """Keeps every clause with an artifact of form "c"."""

    def artifact(self, x: Any, factor: float, *, target: str) -> Any:
        artifact = super().artifact(x, factor, target=target)
        source = self.source(x, factor).encode()
        return Artifact(HERE, "c", source, "scale", artifact.inputs, artifact.outputs, artifact.symbols, 0)


class NoArtifacts(Scale):
    """Keeps every clause and compiles for nothing that runs here."""

    def artifact(self, x: Any, factor: float, *, target: str) -> Any:
        raise UnsupportedTarget(target, ["wasm32"])


class OldInterface(Scale):
    fails = "interface"
    interface = (2, 0)


class SpacedName(Scale):
    fails = "name-grammar"
    name = "scale me"


class NoTarget(Scale):
    fails = "signatures"

    def artifact(self, x: Any, factor: float) -> Any:  # type: ignore[override]
        return super().artifact(x, factor, target=HERE)


class WrongResult(Scale):
    fails = "reference-agrees"

    def __call__(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return times(x, factor + 0.01)


class WrongDtype(Scale):
    fails = "abstract-agrees"

    def abstract(self, x: Any, factor: float) -> tuple[TensorSpec, ...]:
        return (TensorSpec.contiguous(x.shape, "float64"),)


class ForgetsSymbols(Scale):
    fails = "abstract-symbolic"

    def abstract(self, x: Any, factor: float) -> tuple[TensorSpec, ...]:
        return (TensorSpec.contiguous([1 if isinstance(size, str) else size for size in x.shape], x.dtype),)


class EatsInput(Scale):
    fails = "inputs-unchanged"

    def __call__(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        result = times(x, factor)
        x.zero_()
        return result


class ReusesOutput(Scale):
    fails = "outputs-fresh"

    def __init__(self) -> None:
        self.kept: dict[Any, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        kept = self.kept.setdefault((x.shape, x.device), torch.empty(x.shape, device=x.device))
        return kept.copy_(times(x, factor))


class IgnoresStrides(Scale):
    fails = "noncontiguous"

    def __call__(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return times(x.as_strided(x.shape, torch.empty(x.shape).stride()), factor)


class NoFake(Scale):
    fails = "operation"
    name = f"{NAMESPACE}::scale_without_fake"


class KeyErrorForTarget(Scale):
    fails = "unsupported-target"

    def artifact(self, x: Any, factor: float, *, target: str) -> Any:
        return {HERE: super().artifact}[target](x, factor, target=target)


class Raises(Scale):
    fails = "artifact-compiles"

    def artifact(self, x: Any, factor: float, *, target: str) -> Any:
        raise (RuntimeError("out of registers") if target == HERE else UnsupportedTarget(target, [HERE]))


class WrongDigest(Scale):
    fails = "artifact-fields"

    def wrapped(self, x: Any, code: bytes, make: Any, **more: Any) -> Any:
        return super().wrapped(x, code, SimpleNamespace, digest="0")


class Stamped(Scale):
    fails = "artifact-digest-stable"
    stamps = itertools.count()

    def source(self, x: Any, factor: float) -> str:
        return f"const int stamp = {next(self.stamps)};\n" + super().source(x, factor)


class CallsOut(Scale):
    fails = "artifact-no-undefined-symbols"
    parts: ClassVar = {
        "prelude": "void hook(int64_t);",
        "coda": "if (workspace == buffers[0]) hook(count);",
        "code": "0",
    }


class AbsoluteAddresses(Scale):
    fails = "artifact-links"
    parts: ClassVar = {
        "prelude": "static const int table[] = {0, 3};",
        "coda": "",
        "code": "table[(intptr_t)workspace & 1]",
    }
    flags: ClassVar = ["-fno-pic", "-fno-pie", "-O2"]


class FailsWithNumbers(Scale):
    fails = "artifact-runs"

    def source(self, x: Any, factor: float) -> str:
        return (
            super().source(x, factor) if self.symbols(x) else super().source(x, factor).replace("return 0", "return 7")
        )


class FirstSizeOnly(Scale):
    fails = "artifact-symbolic"

    def source(self, x: Any, factor: float) -> str:
        return super().source(x, factor).replace("sizes[1]", "1")


class OneTooMany(Scale):
    fails = "artifact-in-bounds"
    parts: ClassVar = {"prelude": "", "coda": "y[count] = 1;", "code": "0"}


class SharedScratch(Scale):
    fails = "artifact-reentrant"
    parts: ClassVar = {"prelude": "static volatile int64_t calls;", "coda": "calls++;", "code": "0"}


@dataclass
class Provider:
    """Keeps every clause unless told otherwise."""

    fails: str = ""
    interface: Any = (1, 0)
    namespace: Any = NAMESPACE
    found: Any = None
    otherwise: Any = None

    def find(self, name: str) -> Any:
        return (self.found or Scale()) if name == Scale.name else self.otherwise


GOOD = (Scale(), AsC(), NoArtifacts())
KERNELS = tuple(cls() for cls in Scale.__subclasses__() if cls.fails)
PROVIDERS = (
    Provider("provider-interface", interface="1.0"),
    Provider("provider-namespace", namespace="helium-kit"),
    Provider("provider-finds", found=SpacedName()),
    Provider("provider-unknown", otherwise=Scale()),
)
