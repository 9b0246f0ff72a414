"""Calls compiled code: finds it by the arguments' dtypes, shapes and strides, makes the outputs, and goes."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from helium import dtypes, ir, schedule
from helium.errors import DeviceMismatch, SizeMismatch
from helium.runtime.compile import Compiled, compile_kernel, shape_of, stride_kind
from helium.sizes import Dim, IntArg, Size, evaluate
from helium.specialise import Bound

if TYPE_CHECKING:
    from helium.decorator import Kernel

Tensor = torch.Tensor
LIMIT = 4096
"""Argument shapes that a kernel remembers; past it, it starts over."""
_ARGUMENTS = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything of a call that depends on shapes alone."""

    compiled: Compiled
    function: Callable[..., int]
    inputs: tuple[int, ...]
    """Positions of the tensors among the arguments."""
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    """Shape, strides and dtype of each: torch.empty_strided is the fastest of torch's factories."""
    pack: Callable[..., bytes]
    sizes: Any
    address: int
    """Of `sizes`."""
    scratch: int
    """Bytes per thread."""
    returns: tuple[int, ...]
    """What to return: positions among the inputs and then the outputs."""
    single: bool

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Run on these arguments, whose shapes must be those that this launch was made for."""
        tensors = [args[i] for i in self.inputs]
        for shape, strides, dtype in self.outputs:
            tensors.append(torch.empty_strided(shape, strides, dtype=dtype))
        threads = torch.get_num_threads()
        scratch = _scratch(self.scratch * threads) if self.scratch else 0
        self.function(self.pack(*[t.data_ptr() for t in tensors]), self.address, scratch, threads)
        if self.single:
            return tensors[self.returns[0]]
        return tuple(tensors[i] for i in self.returns)


def _scratch(size: int) -> int:
    """The address of this thread's scratch memory, of `size` bytes at least, aligned to 64."""
    held: Tensor | None = getattr(_local, "scratch", None)
    if held is None or held.numel() < size + 64:
        held = _local.scratch = torch.empty(size + 64, dtype=torch.uint8)
    return (held.data_ptr() + 63) & -64


class Launcher:
    """The launches of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known: dict[Any, Callable[[tuple[Any, ...]], Any]] = {}
        self._compiled: dict[Any, Compiled] = {}
        self._lock = threading.Lock()

    def prepare(self, key: Any, args: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Any]:
        """The launch for `args`, made and remembered under `key`."""
        with self._lock:
            if len(self.known) >= LIMIT:
                self.known.clear()
            launch = self.known[key] = self._make(args)
        return launch

    def compiled(self, bound: Bound) -> Compiled:
        """The code for arguments of this kind, compiled at the first."""
        kernel = self.kernel.lower_bound(bound)
        kinds = {name: stride_kind(tensor) for name, tensor in bound.tensors.items()}
        sizes = [torch.Size(shape_of(o, bound.tensors, bound.scalars)).numel() for o in kernel.outputs]
        blocks = schedule.choose(kernel, self.kernel.config, max(sizes, default=0))
        key = (bound.key, tuple(kinds.values()), tuple(blocks.values()))
        if key not in self._compiled:
            self._compiled[key] = compile_kernel(kernel, kinds, blocks)
        return self._compiled[key]

    def _make(self, args: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Any]:
        bound = self.kernel.bind(*args)
        if self._on_accelerator(bound):
            return self._triton()
        kernel = self.kernel.lower_bound(bound)
        check_guards(self.kernel.name, kernel, bound)
        compiled = self.compiled(bound)
        tensors = dict(bound.tensors)
        outputs = []
        for output in kernel.outputs:
            shape, dtype = shape_of(output, bound.tensors, bound.scalars), dtypes.TORCH[output.dtype]
            made = tensors[output.name] = torch.empty(shape, dtype=dtype, device="meta")
            outputs.append((tuple(made.shape), made.stride(), dtype))
        sizes = compiled.sizes(tensors, bound.scalars)
        scratch = compiled.scratch(sizes)
        array = (ctypes.c_int64 * (len(sizes) + 1))(*sizes, scratch)
        names = list(tensors)
        return Launch(
            compiled, compiled.native.function(*_ARGUMENTS), self._positions(bound), tuple(outputs),
            struct.Struct(f"{len(names)}Q").pack, array, ctypes.addressof(array), scratch,
            tuple(names.index(name) for name in kernel.returns), not kernel.returns_tuple and bool(kernel.returns),
        )  # fmt: skip

    def _positions(self, bound: Bound) -> tuple[int, ...]:
        names = list(self.kernel.signature.parameters)
        return tuple(names.index(name) for name in bound.tensors)

    def _on_accelerator(self, bound: Bound) -> bool:
        devices = {tensor.device for tensor in bound.tensors.values()}
        kinds = {device.type for device in devices}
        if len(devices) > 1 or kinds - {"cpu", "cuda", "xpu"}:
            raise DeviceMismatch(self.kernel.name, sorted(map(str, devices)), ("cpu", "cuda", "xpu"))
        return bool(kinds - {"cpu"})

    def _triton(self) -> Callable[[tuple[Any, ...]], Any]:
        """The kernel on an accelerator. Imported here: triton is an extra, and slow to import."""
        from helium.emit.triton_launch import Launcher as TritonLauncher

        launcher = TritonLauncher(self.kernel)
        return lambda args: launcher(*args)


def check_guards(name: str, kernel: ir.Kernel, bound: Bound) -> None:
    """Hold the arguments to the sizes that the kernel requires.

    Raises:
        SizeMismatch: One does not hold; names it and the line that needs it.
    """

    def lookup(leaf: Dim | IntArg) -> int:
        if isinstance(leaf, IntArg):
            return int(bound.scalars[leaf.name])
        return int(bound.tensors[leaf.tensor].shape[leaf.axis])

    for guard in kernel.guards:
        left, right = evaluate(guard.left, lookup), evaluate(guard.right, lookup)
        if not (left == right if guard.relation == "==" else left <= right):
            condition = f"{_spoken(guard.left)} {guard.relation} {_spoken(guard.right)}"
            raise SizeMismatch(name, condition, f"they are {left} and {right}", guard.line)


def _spoken(size: Size) -> str:
    return f"{size.tensor}.shape[{size.axis}]" if isinstance(size, Dim) else str(size)
