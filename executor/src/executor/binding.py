"""From the arguments of a call to flat, checked, contiguous arrays, and from flat outputs to the model's own tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from executor import trees
from executor.arrays import DTYPES, Array, from_any
from executor.errors import InputError
from executor.expressions import evaluate
from executor.manifest import Leaf, Method, linear

Sizes = tuple[int, ...]


class Binder:
    """One method's calling convention, prepared so that a call does as little as can be."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._parameters = dict(zip(method.input_tree.keys, method.input_tree.children, strict=True))
        flat = [child == trees.leaf(index) for index, child in enumerate(method.input_tree.children)]
        self._flat = len(flat) if all(flat) else -1
        self._checks = [(leaf, DTYPES[leaf.dtype], _static_shape(leaf)) for leaf in method.inputs]
        self._single = method.output_tree == trees.leaf(0)
        # The shapes of the last call and their symbols' values: most calls are like the one before.
        self._last: tuple[list[Sizes], Sizes] = ([], ())
        self._scales = [linear(method.inputs[s.input].shape[s.axis], s.name) for s in method.symbols]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Array], Sizes]:
        """The inputs, dense and of the due dtypes and shapes, and the symbols' values; else InputError or TreeError."""
        leaves = args if len(args) == self._flat and not kwargs else self._leaves(args, kwargs)
        arrays = [self._check(value, *check) for value, check in zip(leaves, self._checks, strict=True)]
        if not self._scales:
            return arrays, ()
        shapes = [array.shape for array in arrays]
        if shapes != self._last[0]:
            self._last = shapes, self._sizes(arrays)
        return arrays, self._last[1]

    def result(self, outputs: list[Array]) -> Any:
        """The outputs in the structure that the model returns them in."""
        return outputs[0] if self._single else trees.unflatten(self._method.output_tree, outputs)

    def _check(self, value: Any, leaf: Leaf, dtype: np.dtype[Any], shape: Sizes | None) -> Array:
        array = value if type(value) is np.ndarray else from_any(value, leaf)
        if array.dtype != dtype:
            array = _as_bfloat16(array, leaf)
        if array.shape != shape and (shape is not None or len(array.shape) != len(leaf.shape)):
            raise InputError(leaf.name, f"{array.dtype}{list(array.shape)}", str(leaf))
        return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")

    def _sizes(self, arrays: list[Array]) -> Sizes:
        """The symbols' values, read from where the manifest says, and every shape checked against them."""
        method, values = self._method, {}
        for symbol, (scale, offset) in zip(method.symbols, self._scales, strict=True):
            leaf, size = method.inputs[symbol.input], arrays[symbol.input].shape[symbol.axis]
            value, rest = divmod(size - offset, scale)
            if rest or not symbol.minimum <= value <= symbol.maximum:
                bounds = f"{leaf.shape[symbol.axis]} with {symbol.name} from {symbol.minimum} to {symbol.maximum}"
                raise InputError(leaf.name, f"size {size} in dimension {symbol.axis}", bounds)
            values[symbol.name] = value
        for leaf, array in zip(method.inputs, arrays, strict=True):
            due = tuple(evaluate(dim, values) for dim in leaf.shape)
            if array.shape != due:
                which = ", ".join(f"{name}={value}" for name, value in values.items())
                raise InputError(leaf.name, f"{array.dtype}{list(array.shape)}", f"{leaf} where {which}")
        return tuple(values.values())

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat leaves of a call in the general form."""
        leaves: list[Any] = [None] * len(self._method.inputs)
        for name, value in self._arguments(args, kwargs):
            for index, part in trees.match(self._parameters[name], value, str(name)):
                leaves[index] = part
        return leaves

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str | int, Any]]:
        names = list(self._parameters)
        if len(args) > len(names):
            raise InputError(f"argument {len(names)}", f"{len(args)} positional arguments", f"{len(names)}: {names}")
        given: dict[str | int, Any] = dict(zip(names, args, strict=False))
        for name in kwargs:
            if name not in self._parameters:
                raise InputError(name, "an argument of that name", f"one of {names}")
            if name in given:
                raise InputError(name, "two values, by place and by name", "one")
            given[name] = kwargs[name]
        for parameter, tree in self._parameters.items():
            if parameter in given:
                yield parameter, given[parameter]
            elif trees.leaf_count(tree):
                raise InputError(str(parameter), "nothing", self._describe(tree))

    def _describe(self, tree: trees.Tree) -> str:
        if tree.kind == "leaf" and isinstance(tree.value, int):
            return str(self._method.inputs[tree.value])
        return f"a {tree.kind} of {[*tree.keys] or len(tree.children)}"


def _static_shape(leaf: Leaf) -> Sizes | None:
    """The shape where no symbol is in it."""
    dims = tuple(dim for dim in leaf.shape if isinstance(dim, int))
    return dims if len(dims) == len(leaf.shape) else None


def _as_bfloat16(array: Array, leaf: Leaf) -> Array:
    """The bits of a bfloat16 array of a library that adds the dtype to numpy; InputError for any other dtype."""
    if leaf.dtype == "bfloat16" and array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    raise InputError(leaf.name, f"{array.dtype}{list(array.shape)}", str(leaf))
