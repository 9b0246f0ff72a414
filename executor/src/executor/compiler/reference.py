"""What the model itself gives for its example arguments: the outputs that a program is held against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from executor import trees
from executor.compiler.capture import Captured
from executor.compiler.constants import Pool
from executor.vectors import Case

# Of the largest value of an output: sums of thousands of products in another order.
_SHARE = 2e-5


def expected(method: Captured, states: Pool) -> list[Case]:
    """One call from the first state, and where there is state a second one after it. The module is left as it was."""
    inputs = tuple(tensor.detach().cpu().numpy().copy() for tensor in method.arguments)
    with _restored(method, states), torch.no_grad():
        return [_case(method, inputs, reset=call == 0) for call in range(2 if method.mutated else 1)]


def _case(method: Captured, inputs: tuple[np.ndarray, ...], reset: bool) -> Case:
    given: dict[str, object] = trees.unflatten(method.input_tree, [tensor.clone() for tensor in method.arguments])
    made = method.model(*given.values())
    leaves, _ = trees.flatten(made, lambda value: isinstance(value, Tensor))
    outputs = tuple(tensor.detach().cpu().numpy().copy() for tensor in leaves)
    largest = max(
        (float(np.abs(o[np.isfinite(o)]).max(initial=0)) for o in outputs if o.dtype.kind == "f"), default=0.0
    )
    return Case(method.name, inputs, outputs, rtol=1e-4, atol=_SHARE * max(largest, 0.5), reset=reset)


@contextmanager
def _restored(method: Captured, states: Pool) -> Iterator[None]:
    """State as it was at capture, now and afterwards."""
    own = [(tensor, states.number(tensor)) for _, tensor in method.tensors.values()]
    before = [(tensor, tensor.detach().clone()) for tensor, number in own if number is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
