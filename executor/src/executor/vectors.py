"""Test vectors: inputs and expected outputs inside a program file, and their replay.

A `vectors` segment is a u64 with the length of a JSON header, the header, then the arrays, each on 64 bytes:
`{"cases": [{"method", "inputs": [array, …], "outputs": [array, …], "rtol", "atol", "reset"}]}`, an array being
`{"dtype", "shape", "offset"}` with its offset counted from the first one. Cases run in order; `reset` brings the state
back before its case.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.arrays import DTYPES, Array
from executor.errors import ManifestError, VerificationError
from executor.manifest import ALIGNMENT, LARGEST, nbytes
from executor.manifest_json import parse

if TYPE_CHECKING:
    from executor.runtime import Runtime

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Case:
    """One call: flat inputs and the outputs due, within `atol + rtol * |due|`."""

    method: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    rtol: float = 1e-4
    atol: float = 1e-5
    reset: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far one output of one case is from the one due."""

    method: str
    output: str
    max_abs_diff: float
    within: bool


def encode(cases: Sequence[Case]) -> bytes:
    """`cases` as the bytes of a `vectors` segment."""
    arrays = [np.asarray(array, order="C") for case in cases for array in (*case.inputs, *case.outputs)]
    offsets = iter(_offsets([array.nbytes for array in arrays]))
    header = json.dumps({"cases": [_describe_case(case, offsets) for case in cases]}).encode()
    body = bytearray(_LENGTH.pack(len(header)) + header)
    body += bytes(-len(body) % ALIGNMENT)
    for array in arrays:
        body += array.tobytes()
        body += bytes(-len(body) % ALIGNMENT)
    return bytes(body)


def decode(data: memoryview) -> list[Case]:
    """The cases of a `vectors` segment; ManifestError if it is malformed."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        body = data[start + -start % ALIGNMENT :]
        return [_case(form, body) for form in parse(bytes(data[_LENGTH.size : start]))["cases"]]
    except (struct.error, KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"malformed test vectors: {error}") from error


def replay(runtime: Runtime, cases: Sequence[Case]) -> list[Comparison]:
    """Run `cases` on `runtime` and compare each output; afterwards the state is as it was."""
    found: list[Comparison] = []
    before = runtime.state.snapshot()
    try:
        for case in cases:
            if case.reset:
                runtime.state.reset()
            found += _compare(case, runtime)
    finally:
        runtime.state.restore(before)
    return found


def require(comparisons: Sequence[Comparison]) -> None:
    """VerificationError naming the outputs that are not within their tolerance."""
    bad = [f"{c.method}.{c.output} by {c.max_abs_diff:.3g}" for c in comparisons if not c.within]
    if bad:
        raise VerificationError(
            f"outputs beyond tolerance: {', '.join(bad)}; compile the model again with this version"
        )


def _compare(case: Case, runtime: Runtime) -> Iterator[Comparison]:
    if case.method not in runtime.methods:
        raise ManifestError(f"test vectors for {case.method!r}; the program has {sorted(runtime.methods)}")
    method = runtime.methods[case.method]
    outputs = method.flat(case.inputs)
    for leaf, came, due in zip(method.method.outputs, outputs, case.outputs, strict=True):
        if came.shape != due.shape or came.dtype != due.dtype:
            yield Comparison(case.method, leaf.name, float("inf"), False)
            continue
        first, second = (_comparable(array, leaf.dtype) for array in (came, due))
        within = bool(np.allclose(first, second, rtol=case.rtol, atol=case.atol, equal_nan=True))
        yield Comparison(case.method, leaf.name, max_abs_diff(first, second), within)


def max_abs_diff(first: Array, second: Array) -> float:
    """The largest distance of two arrays; equal infinities and NaNs are at distance 0."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.subtract(first, second, dtype=np.float64))
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    return float(np.where(same, 0.0, distance).max(initial=0.0))


def _comparable(array: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _offsets(sizes: Sequence[int]) -> Iterator[int]:
    at = 0
    for size in sizes:
        yield at
        at += size + -size % ALIGNMENT


def _describe_case(case: Case, offsets: Iterator[int]) -> dict[str, Any]:
    def describe(array: Array) -> dict[str, Any]:
        return {"dtype": array.dtype.name, "shape": list(array.shape), "offset": next(offsets)}

    return {
        "method": case.method,
        "inputs": [describe(array) for array in case.inputs],
        "outputs": [describe(array) for array in case.outputs],
        "rtol": case.rtol,
        "atol": case.atol,
        "reset": case.reset,
    }


def _case(form: dict[str, Any], body: memoryview) -> Case:
    inputs, outputs = (tuple(_array(entry, body) for entry in form[key]) for key in ("inputs", "outputs"))
    return Case(str(form["method"]), inputs, outputs, float(form["rtol"]), float(form["atol"]), bool(form["reset"]))


def _array(form: dict[str, Any], body: memoryview) -> Array:
    dtype, shape, offset = DTYPES[form["dtype"]], tuple(form["shape"]), form["offset"]
    if not all(type(size) is int and 0 <= size <= LARGEST for size in (*shape, offset)):
        raise ValueError(f"an array of shape {shape} at {offset}")
    if offset + nbytes(form["dtype"], shape) > len(body):
        raise ValueError(f"an array of shape {shape} reaches past the end")
    return np.ndarray(shape, dtype, buffer=body, offset=offset)
