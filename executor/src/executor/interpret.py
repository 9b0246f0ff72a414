"""The numpy interpreter of the loop IR: what a program means, and how it runs where no code is allowed or fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from executor import ir, ir_json
from executor.arrays import DTYPES, Array
from executor.binding import Sizes
from executor.errors import ExecutorError, ManifestError, ProgramRunError
from executor.expressions import Values, evaluate
from executor.interpret_nest import run_nest
from executor.manifest import Manifest, Method


class Interpreter:
    """The methods of one program over its state and weights, which are given in the manifest's order."""

    def __init__(
        self, text: bytes, manifest: Manifest, state: Mapping[str, Array], weights: Mapping[str, Array]
    ) -> None:
        with _told("ir"):
            self._program = ir_json.load(text)
            self._bodies = {body.name: body for body in self._program.methods}
        self._state = [_flat(array, writeable=True) for array in state.values()]
        self._weights = [_flat(array, writeable=False) for array in weights.values()]
        if missing := sorted({method.name for method in manifest.methods} - self._bodies.keys()):
            raise ManifestError(f"the ir lacks the methods {missing}")

    def run(self, method: Method, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The outputs of one call, each a new array; ProgramRunError if a check of the program fails."""
        values = dict(zip([symbol.name for symbol in method.symbols], sizes, strict=True))
        outputs = [_output(leaf.dtype, leaf.shape, values) for leaf in method.outputs]
        given: dict[str, list[Array]] = {
            "input": [_flat(array, writeable=False) for array in inputs],
            "output": [_flat(array, writeable=True) for array in outputs],
            "state": self._state,
            "weight": self._weights,
        }
        try:
            with _told(f"ir of method {method.name!r}"), np.errstate(all="ignore"):
                self._run_block(self._bodies[method.name].block, given, values, method.name)
        except ProgramRunError as error:
            text = dict(method.errors).get(error.code, "no text for it")
            raise ProgramRunError(method.name, error.code, text) from None
        return outputs

    def _run_block(self, block: ir.Block, given: Mapping[str, Sequence[Array]], values: Values, method: str) -> None:
        buffers = [_buffer(buffer, given, values) for buffer in block.buffers]
        for step in block.steps:
            function = self._program.functions[step.function]
            chosen = [buffers[index] for index in step.buffers]
            _check_parameters(function, [block.buffers[index] for index in step.buffers], method)
            if isinstance(function, ir.External):
                self._run_block(function.reference, {"parameter": chosen}, values, method)
            else:
                run_nest(function, chosen, values, method)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever a malformed program does to the interpreter is told as what it is."""
    try:
        yield
    except ExecutorError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ManifestError(f"the {what} is malformed: {error!r}") from error


def _flat(array: Array, *, writeable: bool) -> Array:
    flat = array.reshape(-1).view()
    flat.flags.writeable = writeable
    return flat


def _output(dtype: str, shape: Sequence[ir.Dim], values: Values) -> Array:
    return np.zeros([evaluate(dim, values) for dim in shape], DTYPES[dtype])


def _buffer(buffer: ir.Buffer, given: Mapping[str, Sequence[Array]], values: Values) -> Array:
    """The flat array that a buffer of a block stands for."""
    if buffer.kind == "temp":
        return _output(buffer.dtype, buffer.shape, values).reshape(-1)
    found = given[buffer.kind][buffer.index]
    if found.dtype != DTYPES[buffer.dtype]:
        raise TypeError(f"buffer {buffer.name!r} is of {buffer.dtype}, what it stands for of {found.dtype}")
    return found


def _check_parameters(function: ir.Function, buffers: Sequence[ir.Buffer], method: str) -> None:
    due, came = function.parameters, tuple(buffer.dtype for buffer in buffers)
    if due != came:
        raise ManifestError(f"method {method!r}: a function of {due} called on {came}")
