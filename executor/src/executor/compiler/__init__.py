"""The compiler: from nn.Module to a Program. Importing it brings torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from torch import nn

from executor import ir, targets
from executor.compiler.builder import Builder
from executor.compiler.capture import Captured, capture
from executor.compiler.constants import Constants, Pool
from executor.compiler.emit.module import module
from executor.compiler.finish import Functions, block_of
from executor.compiler.link import Kernels
from executor.compiler.method import MethodLowering
from executor.compiler.plan import planned
from executor.compiler.reference import expected
from executor.compiler.results import method_of, stateful, used_constants
from executor.compiler.toolchain import shared_object
from executor.errors import CompileError
from executor.program import Program

Methods = Mapping[str, tuple[nn.Module, tuple[Any, ...]]]


def compile_program(
    model: nn.Module | Methods,
    args: tuple[Any, ...] | None,
    target: str,
    dynamic_shapes: object,
    kernels: Literal["auto", "none"],
) -> Program:
    """See executor.compiler."""
    started = time.perf_counter()
    with _deep():
        return _compiled(model, args, targets.resolve(target), dynamic_shapes, kernels == "auto", started)


@contextmanager
def _deep() -> Iterator[None]:
    """Room for formulas of hundreds of operations, which are functions that call each other."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _compiled(
    model: nn.Module | Methods,
    args: tuple[Any, ...] | None,
    machine: targets.Target,
    dynamic_shapes: object,
    kernels: bool,
    started: float,
) -> Program:
    captured = [
        capture(name, module_, given) for name, (module_, given) in _methods(model, args, dynamic_shapes).items()
    ]
    constants, states, functions = Constants(), _states(captured), Functions()
    linked = Kernels(machine.name, enabled=kernels)
    builders = [_lowered(method, constants, states, linked) for method in captured]
    bodies = [_body(method, builder, functions) for method, builder in zip(captured, builders, strict=True)]
    bodies, weights = used_constants(bodies, constants, states)
    program = ir.LoopProgram(tuple(functions.made), tuple(bodies))
    sources = {"program": module(program, machine), **linked.sources()}
    code = shared_object(sources, machine, linked.objects())
    return Program(
        target=machine.name,
        ir=program,
        methods=tuple(method_of(c, b, body) for c, b, body in zip(captured, builders, bodies, strict=True)),
        state=tuple(stateful(held) for held in states.held),
        weights=tuple(weights),
        source="\n".join(sources.values()),
        code=code,
        notes=tuple(linked.notes),
        cases=tuple(case for method in captured for case in expected(method, states)),
        seconds=time.perf_counter() - started,
    )


def _methods(model: nn.Module | Methods, args: tuple[Any, ...] | None, dynamic_shapes: object) -> Methods:
    if dynamic_shapes is not None:
        raise CompileError(
            "dynamic_shapes is not supported by this version: compile a method for each size, over shared buffers"
        )
    if isinstance(model, nn.Module):
        if not isinstance(args, tuple):
            raise CompileError(f"args is {type(args).__name__}: give a tuple of example arguments")
        return {"forward": (model, args)}
    if args is not None:
        raise CompileError("args was given beside a dict of methods: each method there has its own arguments")
    if odd := [name for name in model if not (name.isidentifier() and name.isascii())] or not model:
        raise CompileError(f"methods named {odd or list(model)}: give at least one, named by identifiers")
    return model


def _states(captured: Sequence[Captured]) -> Pool:
    """The buffers that any method writes."""
    states = Pool()
    for method in captured:
        tensors = dict(method.tensors.values())
        for name in method.mutated:
            states.add(name, tensors[name])
    return states


def _lowered(method: Captured, constants: Constants, states: Pool, linked: Kernels) -> Builder:
    builder = Builder()
    MethodLowering(method, constants, states, builder, linked).run()
    return builder


def _body(method: Captured, builder: Builder, functions: Functions) -> ir.MethodBody:
    block, arena = planned(block_of(builder, functions))
    return ir.MethodBody(method.name, block, arena)
