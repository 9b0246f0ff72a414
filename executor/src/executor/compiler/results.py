"""From compiled methods to what a program file lists: weights, state and methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from executor import ir
from executor.compiler.builder import Builder
from executor.compiler.capture import Captured
from executor.compiler.constants import Constants, Held, Pool, data_of
from executor.file import WeightData
from executor.manifest import Method, State


def used_constants(
    bodies: Sequence[ir.MethodBody], constants: Constants, states: Pool
) -> tuple[list[ir.MethodBody], list[WeightData]]:
    """The bodies with their constants numbered anew, and those that some step uses, then state's initial values."""
    used = sorted({b.index for body in bodies for b in body.block.buffers if b.kind == "weight"})
    place = {number: position for position, number in enumerate(used)}
    weights = [_weight(constants.held[number], constants.held[number].name) for number in used]
    weights += [_weight(held, initial_name(held)) for held in states.held if initial_name(held)]
    return [_renumbered(body, place) for body in bodies], weights


def initial_name(held: Held) -> str:
    """The name of the weight that a state entry starts as; "" if it starts as zeros."""
    return f"{held.name}.initial" if held.tensor.any() else ""


def stateful(held: Held) -> State:
    """A state entry as the file lists it."""
    return State(held.name, held.dtype, tuple(held.tensor.shape), initial_name(held) or None)


def method_of(captured: Captured, builder: Builder, body: ir.MethodBody) -> Method:
    """A method as the file lists it."""
    states = tuple(buffer.name for buffer in body.block.buffers if buffer.kind == "state")
    outputs = tuple(
        replace(leaf, name=f"output{place}") if len(captured.outputs) > 1 else replace(leaf, name="output")
        for place, leaf in enumerate(captured.output_leaves)
    )
    return Method(
        name=captured.name,
        inputs=captured.leaves,
        outputs=outputs,
        input_tree=captured.input_tree,
        output_tree=captured.output_tree,
        state=states,
        arena=body.arena,
        errors=tuple((code, text) for text, code in builder.codes.items()),
    )


def _weight(held: Held, name: str) -> WeightData:
    return WeightData(name, held.dtype, tuple(held.tensor.shape), data_of(held.tensor))


def _renumbered(body: ir.MethodBody, place: dict[int, int]) -> ir.MethodBody:
    buffers = tuple(
        replace(buffer, index=place[buffer.index]) if buffer.kind == "weight" else buffer
        for buffer in body.block.buffers
    )
    return replace(body, block=replace(body.block, buffers=buffers))
