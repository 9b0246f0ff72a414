"""Reads one kernel function, for one combination of argument dtypes and ranks, into the IR."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from helium import ir
from helium.errors import KernelError, UnsupportedSyntax
from helium.frontend.source import Source
from helium.frontend.statements import Reader
from helium.frontend.values import ScalarRef, TensorRef
from helium.rewrite import simplify
from helium.sizes import Dim, IntArg


def lower(
    source: Source, params: Sequence[ir.TensorParam | ir.ScalarParam | None], constants: dict[str, object]
) -> ir.Kernel:
    """The IR of a kernel.

    Args:
        source: The function.
        params: One for each parameter of the function; None where it is a constant of the compilation.
        constants: Values of those parameters (None, strings, dtypes).

    Raises:
        KernelError: The function is not a kernel; says where, why and what to do.
    """
    reader = Reader(source)
    reader.scope.update(constants)
    given = [p for p in params if p is not None]
    for param in given:
        reader.scope[param.name] = _argument(param)
    with torch.no_grad():
        reader.read(source.tree.body)
    returns, is_tuple = _returns(reader, source.tree)
    loops = tuple(i for i in reader.builder.bodies[0] if isinstance(i, ir.Loop))
    kernel = ir.Kernel(
        source.name, tuple(given), tuple(reader.outputs.values()), tuple(reader.builder.guards), loops, returns,
        is_tuple, source.file, source.first_line,
    )  # fmt: skip
    return simplify(kernel)


def _argument(param: ir.TensorParam | ir.ScalarParam) -> TensorRef | ScalarRef | IntArg:
    if isinstance(param, ir.TensorParam):
        return TensorRef(param.name, param.dtype, tuple(Dim(param.name, i) for i in range(param.rank)))
    return IntArg(param.name) if param.dtype == "int64" else ScalarRef(param.name, param.dtype)


def _returns(reader: Reader, tree: ast.FunctionDef) -> tuple[tuple[str, ...], bool]:
    returned = reader.returned
    items = returned if isinstance(returned, (tuple, list)) else () if returned is None else (returned,)
    if not all(isinstance(item, TensorRef) for item in items):
        error: KernelError = UnsupportedSyntax(
            "something returned that is no tensor", fix="return outputs or arguments"
        )
        last = [node for node in ast.walk(tree) if isinstance(node, ast.Return)][-1]
        error.location = reader.source.location(last)
        raise error
    names = tuple(item.name for item in items if isinstance(item, TensorRef))
    return names, isinstance(returned, (tuple, list))
