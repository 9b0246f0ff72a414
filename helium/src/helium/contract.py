"""The kernel-callable contract, interface (1, 0): what a kernel is to the programs that call it or compile it in.

A *provider* is named by an entry point of the group ``helium.kernels.v1``, the entry point's name being its namespace;
it finds *kernels* by name. A kernel can be called, tells the shapes of its outputs, has a plain torch reference, and
compiles for a target into an *artifact*: code with a C signature that needs neither Python nor torch.

Consumers read arguments and results by attribute, so that a provider may bring dataclasses of its own with the same
fields, and need not import this module; its UnsupportedTarget is known by the class name, and by the attribute `known`
that lists what the kernel can do. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from helium.errors import UnsupportedTarget as UnsupportedTarget

if TYPE_CHECKING:
    from typing import Self

INTERFACE: Final = (1, 0)
"""Major and minor. A consumer accepts an equal major and a minor that is at least the one it needs."""

GROUP: Final = "helium.kernels.v1"
"""The entry-point group of providers."""

DTYPES: Final = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""The names of element types: torch's own, without the "torch."."""

Extent: TypeAlias = int | str
"""A size or a stride in elements: a number, or a product of numbers and symbols such as "n", "4*n" or "m*n"."""

_NAME: Final = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_FACTOR: Final = re.compile(r"[1-9]\d*|[A-Za-z_]\w*", re.ASCII)


def _checked(extent: Extent) -> Extent:
    good = extent >= 0 if isinstance(extent, int) else all(map(_FACTOR.fullmatch, extent.split("*")))
    if not good:
        raise ValueError(f'extent {extent!r} is neither a number from 0 nor a product of symbols like "n" or "4*n"')
    return extent


def is_name(name: str) -> bool:
    """Whether `name` is "namespace::kernel", each half an identifier as torch.library takes it."""
    return _NAME.fullmatch(name) is not None


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The number that `extent` stands for, given a size for each symbol.

    Raises:
        KeyError: A symbol is not in `sizes`.
    """
    if isinstance(extent, int):
        return extent
    return math.prod(int(factor) if factor.isdecimal() else sizes[factor] for factor in extent.split("*"))


def product(*extents: Extent) -> Extent:
    """The product of extents, in one spelling: the number first if it is not 1, then the symbols in order."""
    factors = [factor for extent in extents for factor in str(extent).split("*")]
    number = math.prod(int(factor) for factor in factors if factor.isdecimal())
    symbols = sorted(factor for factor in factors if not factor.isdecimal())
    if not symbols or number == 0:
        return number
    return "*".join([str(number), *symbols] if number != 1 else symbols)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its elements. Equal symbols are equal sizes, within all the arguments of one call.

    Raises:
        ValueError: An extent, the dtype or the number of strides is not well formed.
    """

    shape: tuple[Extent, ...]
    dtype: str
    strides: tuple[Extent, ...]
    """In elements."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.strides)} strides for a tensor of {len(self.shape)} dimensions")
        for extent in (*self.shape, *self.strides):
            _checked(extent)

    @classmethod
    def contiguous(cls, shape: Iterable[Extent], dtype: str) -> Self:
        """A row-major tensor: ``contiguous(("m", "n"), "float32")`` has the strides ("n", 1)."""
        shape = tuple(shape)
        return cls(shape, dtype, tuple(product(*shape[i + 1 :]) for i in range(len(shape))))


def symbols(specs: Iterable[TensorSpec]) -> tuple[str, ...]:
    """Every symbol of `specs`, in the order in which shapes and then strides first name it."""
    extents = (str(extent) for spec in specs for extent in (*spec.shape, *spec.strides))
    factors = (factor for extent in extents for factor in extent.split("*"))
    return tuple(dict.fromkeys(factor for factor in factors if not factor.isdecimal()))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kernel compiled for a target: ``int symbol(void *const *buffers, const int64_t *sizes, void *workspace)``.

    It returns 0 or an error code. `buffers` are the inputs and then the outputs, all the caller's; `sizes` holds a
    number for each of `symbols`; `workspace` is the caller's too, `workspace` bytes aligned to 64. Scalars are baked
    in. The code is reentrant and single-threaded. Form "c" is C11 that includes stdint and math only; form "object" is
    a relocatable object: position independent, no undefined symbols.

    Leave `digest` out: it is computed of everything above it.

    Raises:
        ValueError: `digest` was given and is another.
    """

    target: str
    form: Literal["c", "object"]
    code: bytes
    symbol: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[str, ...]
    workspace: int
    digest: str = ""

    def __post_init__(self) -> None:
        digest = digest_of(self)
        if self.digest not in ("", digest):
            raise ValueError(f"digest {self.digest} is not that of the artifact, {digest}; leave it out")
        object.__setattr__(self, "digest", digest)


def digest_of(artifact: Artifact) -> str:
    """SHA-256 in hexadecimal: of the fields but `code` as compact JSON, a zero byte, and `code`.

    The JSON is the list [target, form, symbol, inputs, outputs, symbols, workspace], a spec being [shape, dtype,
    strides]. Equal digests are the same code.
    """
    specs = [[[s.shape, s.dtype, s.strides] for s in group] for group in (artifact.inputs, artifact.outputs)]
    head = [artifact.target, artifact.form, artifact.symbol, *specs, artifact.symbols, artifact.workspace]
    return hashlib.sha256(json.dumps(head, separators=(",", ":")).encode() + b"\0" + artifact.code).hexdigest()


class KernelCallable(Protocol):
    """A kernel. Arguments are positional: tensors, and numbers as Python's float, int and bool."""

    @property
    def interface(self) -> tuple[int, int]:
        """The interface that the kernel was written to."""
        ...

    @property
    def name(self) -> str:
        """ "namespace::kernel": also its torch.library operation, so that torch.export keeps it as one node."""
        ...

    def __call__(self, *args: Any) -> Any:
        """Run it: fresh outputs, a tensor or a tuple of tensors; the inputs are left as they are."""
        ...

    def abstract(self, *args: TensorSpec | float | int | bool) -> tuple[TensorSpec, ...]:
        """The outputs' specs, in order; symbols in the arguments are carried into the results."""
        ...

    def reference(self, *args: Any) -> Any:
        """What the kernel means, in plain torch."""
        ...

    def artifact(self, *args: TensorSpec | float | int | bool, target: str) -> Artifact:
        """Compile it for `target`. Raises :class:`UnsupportedTarget` where it cannot."""
        ...


class KernelProvider(Protocol):
    """What an entry point of the group ``helium.kernels.v1`` names; the entry point's name is the namespace."""

    @property
    def interface(self) -> tuple[int, int]:
        """The interface that the provider was written to."""
        ...

    @property
    def namespace(self) -> str:
        """The part of a kernel's name before "::"."""
        ...

    def find(self, name: str) -> KernelCallable | None:
        """The kernel of the whole name "namespace::kernel", or None."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to compile for, spelt ``<arch>-<os>[+<feature>…]``, such as "x86_64-linux+avx2+avx512".

    WebAssembly and bare Arm have no operating system: "wasm32", "thumbv7em". "host" is no target: the caller resolves
    it. `str(target)` is the one canonical spelling, features in order.
    """

    arch: str
    os: str = ""
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join([f"{self.arch}-{self.os}" if self.os else self.arch, *sorted(self.features)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`, features in any order.

        Raises:
            ValueError: `text` is not of the grammar.
        """
        match = _TARGET.fullmatch(text)
        if match is None or text == "host":
            hint = "; resolve it first" if text == "host" else ""
            raise ValueError(f'target {text!r} is not "<arch>-<os>[+<feature>…]" like "x86_64-linux+avx512"{hint}')
        features = tuple(sorted(match["features"].split("+")[1:]))
        if len(set(features)) != len(features):
            raise ValueError(f"target {text!r} names a feature twice")
        return cls(match["bare"] or match["arch"], match["os"] or "", features)

    def runs_on(self, machine: Target) -> bool:
        """Whether code for this target runs on `machine`: it may ask for fewer features, never for more."""
        same = (self.arch, self.os) == (machine.arch, machine.os)
        return same and set(self.features) <= set(machine.features)


_TARGET: Final = re.compile(
    r"(?:(?P<bare>(?:wasm|thumb)[a-z0-9]*)|(?P<arch>[a-z][a-z0-9_]*)-(?P<os>[a-z][a-z0-9]*))"
    r"(?P<features>(?:\+[a-z][a-z0-9_.]*)*)",
    re.ASCII,
)
