"""Links an artifact with the system's C compiler and calls it on guarded buffers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from helium.contract import TensorSpec, evaluate

_GUARD = 64  # bytes of a known pattern on either side of whatever the code may write
_PATTERN = 0xA5


class LinkError(Exception):
    """The artifact does not become a shared object; the text is the compiler's."""


def compiler() -> str | None:
    """The system's C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class Library:
    """An artifact as a function in this process.

    Raises:
        LinkError: The compiler refuses it, or it lacks its symbol.
    """

    def __init__(self, artifact: Any) -> None:
        self.artifact = artifact
        with tempfile.TemporaryDirectory() as folder:
            handle = ctypes.CDLL(str(_link(artifact, Path(folder))))  # the mapping outlives the file
        try:
            self._function = handle[artifact.symbol]
        except AttributeError as error:
            raise LinkError(f"the object has no global symbol {artifact.symbol!r}") from error
        self._function.restype = ctypes.c_int

    def __call__(self, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Run:
        """Call it once, with buffers and a workspace of this call's own."""
        outputs = [GuardedTensor(spec, sizes) for spec in self.artifact.outputs]
        workspace = Guarded(self.artifact.workspace)
        addresses = [tensor.data_ptr() for tensor in inputs] + [output.address for output in outputs]
        buffers = (ctypes.c_void_p * len(addresses))(*addresses)
        numbers = [sizes[symbol] for symbol in self.artifact.symbols]
        code = self._function(buffers, (ctypes.c_int64 * len(numbers))(*numbers), ctypes.c_void_p(workspace.address))
        return Run(code, outputs, workspace)


class Guarded:
    """Memory that the code may write, 64-aligned, between two guards; filled with the pattern too."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = torch.full((size + 2 * _GUARD + 64,), _PATTERN, dtype=torch.uint8)
        self._begin = _GUARD + -(self._memory.data_ptr() + _GUARD) % 64
        self.address = self._memory.data_ptr() + self._begin

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside it."""
        outside = torch.cat([self._memory[: self._begin], self._memory[self._begin + self.size :]])
        return bool((outside == _PATTERN).all())


class GuardedTensor(Guarded):
    """A tensor between two guards."""

    def __init__(self, spec: TensorSpec, sizes: Mapping[str, int]) -> None:
        self.shape = [evaluate(extent, sizes) for extent in spec.shape]
        self._strides = [evaluate(extent, sizes) for extent in spec.strides]
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self._strides, strict=True))
        super().__init__((last + 1 if 0 not in self.shape else 0) * self._dtype.itemsize)

    @property
    def tensor(self) -> torch.Tensor:
        """A view of what was written."""
        inside = self._memory[self._begin : self._begin + self.size]
        return inside.view(self._dtype).as_strided(self.shape, self._strides)


class Run:
    """What one call returned and wrote."""

    def __init__(self, code: int, outputs: list[GuardedTensor], workspace: Guarded) -> None:
        self.code, self._outputs, self._workspace = code, outputs, workspace

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """The outputs, in order."""
        return tuple(output.tensor for output in self._outputs)

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside the outputs and the workspace."""
        return all(guarded.intact for guarded in (*self._outputs, self._workspace))


def _link(artifact: Any, folder: Path) -> Path:
    source = folder / ("kernel.c" if artifact.form == "c" else "kernel.o")
    source.write_bytes(artifact.code)
    library = folder / "kernel.so"
    flags = ["-std=c11", "-O1", "-fPIC"] if artifact.form == "c" else []
    # -z text refuses what would have to be patched in the code at load time; -z defs what nobody defines.
    command = [compiler() or "cc", *flags, "-shared", "-Wl,-z,text", str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise LinkError(done.stderr.strip() or f"{command[0]} returned {done.returncode}")
    return library
