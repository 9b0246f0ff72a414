"""Compiles emitted Triton for a GPU that need not be here, and reads off what the code will take of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from helium.config import Config
from helium.decorator import Kernel
from helium.emit.triton import source
from helium.emit.triton_launch import load
from helium.errors import UnsupportedTarget

KNOWN = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")
"""Targets that are tried; others of the same spelling are handed to Triton as they are."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One GPU function: its text, its machine code, and what it takes. None where it could not be read off.

    Attributes:
        name: Of the emitted function.
        target: "cuda:<compute capability>" or "hip:<architecture>".
        assembly: PTX or AMDGCN text.
        binary: cubin or hsaco.
        registers: Of each thread (vector registers on AMD).
        spills: Of each thread: bytes of local memory for registers that did not fit (registers on AMD).
        shared: Bytes of each program.
        warps: Of each program.
    """

    name: str
    target: str
    assembly: str
    binary: bytes
    registers: int | None
    spills: int | None
    shared: int
    warps: int


def compile_for(
    kernel: Kernel, *args: Any, target: str = "cuda:90", config: Config | None = None
) -> tuple[Compiled, ...]:
    """Every function that a call of `kernel` would launch, in order, compiled; no GPU is needed.

    Args:
        args: Tensors, or specs whose sizes are numbers, and numbers.
        target: "cuda:<compute capability>" or "hip:<architecture>".

    Raises:
        UnsupportedTarget: The target has neither spelling.
        ModuleNotFoundError: triton is not installed.
    """
    gpu = _gpu(target)
    bound = kernel.bind(*args)
    tensors = {name: _meta(tensor) for name, tensor in bound.tensors.items()}
    module = load(source(kernel, *args, config=config))
    launches = _recorded(module, lambda: getattr(module, kernel.source.name)(**tensors, **bound.scalars))
    return tuple(_compiled(launch, gpu, target) for launch in launches)


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the launcher would have run: a function, its arguments by name, and Triton's options."""

    function: Any
    arguments: Mapping[str, Any]
    options: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Stands in for a Triton function, so that the launcher says what it would launch."""

    function: Any
    record: Callable[[_Launch], None]

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        names = self.function.arg_names
        given = dict(zip(names, args, strict=False)) | kwargs
        options = {name: value for name, value in kwargs.items() if name not in names}
        self.record(_Launch(self.function, {name: given[name] for name in names}, options))


def _recorded(module: ModuleType, call: Callable[[], object]) -> list[_Launch]:
    """What `call` launches of the functions of `module`."""
    launches: list[_Launch] = []
    functions = {name: value for name, value in vars(module).items() if hasattr(value, "arg_names")}
    vars(module).update({name: _Recorder(value, launches.append) for name, value in functions.items()})
    try:
        call()
    finally:
        vars(module).update(functions)  # they call each other
    return launches


def _gpu(target: str) -> Any:
    from triton.backends.compiler import GPUTarget

    kind, _, arch = target.partition(":")
    if kind == "cuda" and arch.isdecimal():
        return GPUTarget("cuda", int(arch), 32)
    if kind == "hip" and arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise UnsupportedTarget(target, KNOWN)


def _meta(tensor: Any) -> torch.Tensor:
    """A tensor without memory, of a tensor or a spec."""
    dtype = tensor.dtype if isinstance(tensor.dtype, torch.dtype) else getattr(torch, tensor.dtype)
    strides = tensor.stride() if isinstance(tensor, torch.Tensor) else tensor.strides
    return torch.empty_strided(tuple(tensor.shape), tuple(strides), dtype=dtype, device="meta")


def _compiled(launch: _Launch, gpu: Any, target: str) -> Compiled:
    import triton
    from triton.compiler import ASTSource

    function, constants, attributes = launch.function, {}, {}
    signature: dict[str, str] = {}
    for i, parameter in enumerate(function.params):
        value = launch.arguments[parameter.name]
        signature[parameter.name] = kind = _type(parameter, value)
        if kind == "constexpr":
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    made = triton.compile(
        ASTSource(function, signature, constants, attributes), target=gpu, options=dict(launch.options)
    )
    text, code = ("ptx", "cubin") if gpu.backend == "cuda" else ("amdgcn", "hsaco")
    assembly, binary = made.asm[text], made.asm[code]
    registers, spills = _nvidia(binary) if gpu.backend == "cuda" else _amd(assembly)
    shared, warps = made.metadata.shared, made.metadata.num_warps
    return Compiled(function.__name__, target, assembly, binary, registers, spills, shared, warps)


def _type(parameter: Any, value: Any) -> str:
    """The type that Triton's own launcher would give a value: it bakes in ones."""
    from triton.runtime.jit import mangle_type

    if parameter.is_constexpr:
        return "constexpr"
    if parameter.annotation_type:
        return str(parameter.annotation_type)
    return "constexpr" if type(value) is int and value == 1 else str(mangle_type(value))


def _nvidia(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and spilled bytes as cuobjdump says, which comes with triton; None where it does not."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    return _number(r"REG:(\d+)", said), _number(r"LOCAL:(\d+)", said)


def _amd(assembly: str) -> tuple[int | None, int | None]:
    """Vector registers and how many of them were spilled, from the metadata in the text."""
    return _number(r"\.vgpr_count:\s*(\d+)", assembly), _number(r"\.vgpr_spill_count:\s*(\d+)", assembly)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None
