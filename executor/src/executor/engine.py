"""A loaded program in memory: its weights, its state, and one callable for each method.

Imported at the first call, because it brings numpy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from executor.arrays import DTYPES, Array, address, aligned
from executor.binding import Binder, Sizes
from executor.errors import ProgramRunError
from executor.expressions import evaluate
from executor.file import ProgramFile
from executor.interpret import Interpreter
from executor.manifest import Method, Weight
from executor.native import Library
from executor.state import StateBuffers

Run = Callable[[Sequence[Array], Sizes], list[Array]]


class Engine:
    """What a runtime makes at the first call. `binders` and `runs` have one entry for each method."""

    def __init__(self, file: ProgramFile, library: Library | None, lock: RLock) -> None:
        manifest = file.manifest
        weights = {weight.name: _mapped(file, weight) for weight in manifest.weights}
        self.state = StateBuffers(manifest, weights, lock)
        self.binders = {method.name: Binder(method) for method in manifest.methods}
        self.runs: dict[str, Run]
        if library is None:
            ((_, text),) = file.find("ir")
            interpreter = Interpreter(bytes(text), manifest, self.state.buffers, weights)
            self.runs = {method.name: partial(interpreter.run, method) for method in manifest.methods}
        else:
            state, constants = _addresses(self.state.buffers.values()), _addresses(weights.values())
            self.runs = {method.name: NativeMethod(method, library, state, constants) for method in manifest.methods}


class NativeMethod:
    """One compiled method, called with dense arrays; it owns its arena. Not for two threads at once."""

    def __init__(self, method: Method, library: Library, state: ctypes.Array[Any], weights: ctypes.Array[Any]) -> None:
        self._method = method
        self._function = library.function(method.name)
        self._inputs = (ctypes.c_void_p * len(method.inputs))()
        self._outputs = (ctypes.c_void_p * len(method.outputs))()
        self._symbols = (ctypes.c_int64 * len(method.symbols))()
        self._kept = (state, weights)
        self._arena = aligned("uint8", (0,))
        self._sizes: Sizes | None = None
        self._results: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        self._arguments: tuple[int | None, ...] = ()

    def __call__(self, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The outputs, each a new array; ProgramRunError if the code reports an error."""
        if sizes != self._sizes:
            self._plan(sizes)
        self._inputs[:] = [address(array) for array in inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in self._results]
        self._outputs[:] = [address(array) for array in outputs]
        code = self._function(*self._arguments)
        if code:
            raise ProgramRunError(self._method.name, code, dict(self._method.errors).get(code, "no text for it"))
        return outputs

    def _plan(self, sizes: Sizes) -> None:
        """Output shapes and an arena for these sizes; kept until others come."""
        method = self._method
        values = dict(zip([symbol.name for symbol in method.symbols], sizes, strict=True))
        self._results = [
            (tuple(evaluate(dim, values) for dim in leaf.shape), DTYPES[leaf.dtype]) for leaf in method.outputs
        ]
        needed = evaluate(method.arena, values)
        if needed > self._arena.size:
            self._arena = aligned("uint8", (needed,))
        self._symbols[:] = list(sizes)
        state, weights = self._kept
        vectors = [ctypes.addressof(vector) for vector in (self._inputs, self._outputs, state, weights)]
        self._arguments = (*vectors, address(self._arena), ctypes.addressof(self._symbols), None)
        self._sizes = sizes


def _mapped(file: ProgramFile, weight: Weight) -> Array:
    """A weight where it lies in the mapped file, read-only."""
    return np.ndarray(weight.shape, DTYPES[weight.dtype], buffer=file.segment(weight.segment), offset=weight.offset)


def _addresses(arrays: Iterable[Array]) -> ctypes.Array[Any]:
    found = [address(array) for array in arrays]
    return (ctypes.c_void_p * len(found))(*found)
