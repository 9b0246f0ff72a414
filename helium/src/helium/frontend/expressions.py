"""Evaluates the expressions of a kernel: plain Python where all is known, sizes on the host, instructions on tiles."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from helium import dtypes, sizes
from helium.errors import (
    EvaluationFailed,
    HostOnly,
    KernelError,
    TileOnly,
    UnknownName,
    UnknownOperation,
    UnsupportedSyntax,
    WrongArguments,
)
from helium.frontend import host, operations
from helium.frontend.access import Access
from helium.frontend.builder import Builder, Operand
from helium.frontend.source import Source
from helium.frontend.values import (
    SIZES,
    Device,
    Method,
    Missing,
    Relation,
    ScalarRef,
    TensorRef,
    TileVar,
    Weak,
    as_size,
    from_size,
)
from helium.sizes import Size
from helium.types import Value

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}
_SIZE_OPERATORS: dict[str, sizes.Operator] = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_ON_TILES = (Value, Weak, ScalarRef)


class Expressions:
    """Evaluates expression nodes in a scope; every kernel error raised below gets the node's place."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.builder = Builder()
        self.scope: dict[str, object] = {}
        self.ends: dict[str, Size] = {}
        self.outputs: dict[str, host.Made] = {}
        self.target = ""
        self.depth = 0

    @contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Give `node`'s place to errors and instructions; turn plain Python errors into kernel errors."""
        self.builder.line = self.source.line(node)
        try:
            yield
        except KernelError as error:
            error.location = error.location or self.source.location(node)
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            failed = EvaluationFailed(f"{type(error).__name__}: {error}", fix="correct the expression")
            failed.location = self.source.location(node)
            raise failed from error

    def evaluate(self, node: ast.expr) -> Any:
        """What `node` means."""
        method = getattr(self, f"_{type(node).__name__}", None)
        with self.at(node):
            if method is None:
                raise UnsupportedSyntax(
                    f"{type(node).__name__} in a kernel", fix="compute it outside, or write it with torch operations"
                )
            return method(node)

    # Leaves.

    def _Constant(self, node: ast.Constant) -> object:
        return node.value

    def _Name(self, node: ast.Name) -> object:
        for names in (self.scope, self.source.names, host.BUILTINS):
            if node.id in names:
                return names[node.id]
        raise UnknownName(f"{node.id!r} has no value here", fix="assign it before, or check the spelling")

    def _Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.evaluate(item) for item in node.elts)

    def _List(self, node: ast.List) -> list[Any]:
        return [self.evaluate(item) for item in node.elts]

    def _Slice(self, node: ast.Slice) -> slice:
        return slice(*(None if part is None else self.evaluate(part) for part in (node.lower, node.upper, node.step)))

    def _JoinedStr(self, node: ast.JoinedStr) -> str:
        return ast.unparse(node)

    # Operators.

    def _BinOp(self, node: ast.BinOp) -> object:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        self.builder.line = self.source.line(node)
        return self.binary(node.op, left, right)

    def binary(self, symbol: ast.operator, left: Any, right: Any) -> object:
        """``left symbol right`` for whatever the two are."""
        if isinstance(symbol, ast.MatMult):
            return self.call(torch.matmul, [left, right], {})
        if type(symbol) not in _BINARY:
            raise UnsupportedSyntax(f"the operator {type(symbol).__name__}", fix="use + - * / // % ** & | ^ @")
        name, python = _BINARY[type(symbol)]
        return self._combine(name, python, left, right)

    def _combine(self, name: str, python: Callable[[Any, Any], Any], left: Any, right: Any) -> object:
        if any(isinstance(side, _ON_TILES) for side in (left, right)):
            self._need_operand(left)
            self._need_operand(right)
            self._need_loop()
            return self.builder.binary(name, left, right)  # type: ignore[arg-type]
        if any(isinstance(side, SIZES) for side in (left, right)):
            return self._combine_sizes(name, left, right)
        for side in (left, right):
            if isinstance(side, (TensorRef, TileVar, Missing)):
                self._need_operand(side)
        return python(left, right)

    def _combine_sizes(self, name: str, left: Any, right: Any) -> object:
        if name in _SIZE_OPERATORS and all(isinstance(s, (int, *SIZES)) for s in (left, right)):
            return from_size(sizes.operation(_SIZE_OPERATORS[name], as_size(left), as_size(right)))
        if name in ("eq", "le", "ge", "lt", "gt", "ne"):
            return Relation(as_size(left), name, as_size(right))
        self._need_loop()
        return self.builder.binary(name, left, right)  # type: ignore[arg-type]

    def _need_operand(self, side: object) -> None:
        if isinstance(side, TensorRef):
            raise HostOnly(f"{side.name} is a whole tensor", fix=f"index it with tiles: {side.name}[tile]")
        if isinstance(side, TileVar):
            raise UnsupportedSyntax("a tile is not a number", fix="use tile.index, tile.begin or tile.end")
        if isinstance(side, Missing):
            raise UnknownOperation(side.reason, fix="use only [0] of it")

    def _need_loop(self) -> None:
        if not self.depth:
            raise TileOnly("arithmetic on tiles or scalar arguments outside a tile loop", fix="move it into the loop")

    def _UnaryOp(self, node: ast.UnaryOp) -> object:
        operand = self.evaluate(node.operand)
        if isinstance(operand, _ON_TILES):
            return self._unary_tile(node.op, operand)
        if isinstance(operand, SIZES) and isinstance(node.op, ast.USub):
            return from_size(sizes.operation("-", sizes.Const(0), as_size(operand)))
        self._need_operand(operand)
        functions: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
        }  # fmt: skip
        return functions[type(node.op)](operand)

    def _unary_tile(self, symbol: ast.unaryop, operand: Operand) -> object:
        self._need_loop()
        if isinstance(symbol, ast.UAdd):
            return operand
        if isinstance(symbol, ast.Not):
            raise UnsupportedSyntax("`not` of a tile", fix="use ~ on a bool tile")
        result = self.builder.unary("neg" if isinstance(symbol, ast.USub) else "not", operand)
        return result if isinstance(operand, Value) else Weak(result)

    def _Compare(self, node: ast.Compare) -> object:
        if len(node.ops) > 1:
            raise UnsupportedSyntax("a chain of comparisons", fix="write (a < b) & (b < c)")
        left, right = self.evaluate(node.left), self.evaluate(node.comparators[0])
        kind = type(node.ops[0])
        if kind in (ast.Is, ast.IsNot):
            return (left is right) == (kind is ast.Is)
        if kind not in _COMPARE:
            raise UnsupportedSyntax(f"the comparison {kind.__name__}", fix="use == != < <= > >=")
        if isinstance(left, tuple) and isinstance(right, tuple) and kind is ast.Eq and len(left) == len(right):
            return tuple(self._combine(*_COMPARE[kind], a, b) for a, b in zip(left, right, strict=True))
        return self._combine(*_COMPARE[kind], left, right)

    def _BoolOp(self, node: ast.BoolOp) -> object:
        values = [self.evaluate(value) for value in node.values]
        if any(isinstance(value, (*_ON_TILES, Relation)) for value in values):
            raise UnsupportedSyntax(
                "`and` / `or` of tiles or sizes", fix="use & and | on tiles; assert one relation each"
            )
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def _IfExp(self, node: ast.IfExp) -> object:
        condition = self.evaluate(node.test)
        if isinstance(condition, (*_ON_TILES, Relation)):
            raise UnsupportedSyntax(
                "a choice on data or sizes", fix="use torch.where, or choose on constants and dtypes"
            )
        return self.evaluate(node.body if condition else node.orelse)

    # Attributes, subscripts, calls.

    def _Attribute(self, node: ast.Attribute) -> object:
        owner, name = self.evaluate(node.value), node.attr
        if isinstance(owner, TensorRef):
            return host.tensor_attribute(owner, name)
        if isinstance(owner, TileVar):
            return self._tile_attribute(owner, name)
        if isinstance(owner, (Value, Weak)):
            return self._value_attribute(owner, name)
        if isinstance(owner, Device):
            raise UnknownOperation(f"a device has no {name} in a kernel", fix="pass device=x.device on as it is")
        try:
            return getattr(owner, name)
        except AttributeError as error:
            raise UnknownOperation(str(error), fix="check the spelling") from error

    def _tile_attribute(self, tile: TileVar, name: str) -> object:
        if name not in ("index", "begin", "end", "block_size", "id"):
            raise UnknownOperation(f"a tile has no {name!r}", fix="it has index, begin, end, block_size and id")
        return self.builder.axis_value(tile.axis, name)

    def _value_attribute(self, owner: Value | Weak, name: str) -> object:
        value = owner.value if isinstance(owner, Weak) else owner
        if name == "dtype":
            return dtypes.TORCH[value.type.dtype]
        if name == "T":
            return self.call(torch.t, [value], {})
        if name in operations.METHODS:
            return Method(value, name)
        raise UnknownOperation(f"a tile has no {name!r}", fix="use the torch operations listed in helium's README")

    def _Subscript(self, node: ast.Subscript) -> object:
        owner, index = self.evaluate(node.value), self.evaluate(node.slice)
        self.builder.line = self.source.line(node)
        if isinstance(owner, TensorRef):
            return self.access(owner, index).load()
        if isinstance(owner, Value):
            return self._insert_dimensions(owner, index if isinstance(index, tuple) else (index,))
        return owner[index]

    def access(self, tensor: TensorRef, index: object) -> Access:
        """The access ``tensor[index]``."""
        if not self.depth:
            raise TileOnly(
                f"{tensor.name} is read or written outside a tile loop", fix="move it into `for … in hl.tile(…)`"
            )
        items = index if isinstance(index, (tuple, list)) else (index,)
        return Access(self.builder, tensor, items, self.ends)

    def _insert_dimensions(self, tile: Value, index: tuple[object, ...]) -> Value:
        for dim, item in enumerate(index):
            if item is None:
                tile = self.builder.unsqueeze(tile, dim)
            elif item != slice(None):
                raise UnsupportedSyntax(
                    "part of a tile", fix="only `:` and None index a tile; index the tensor instead"
                )
        return tile

    def _Call(self, node: ast.Call) -> object:
        function = self.evaluate(node.func)
        args = [self.evaluate(arg) for arg in node.args]
        kwargs = {keyword.arg or "": self.evaluate(keyword.value) for keyword in node.keywords}
        self.builder.line = self.source.line(node)
        return self.call(function, args, kwargs)

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> object:
        """Call a tile operation, a host operation, or plain Python."""
        if isinstance(function, Method):
            return self._call_method(function, args, kwargs)
        on_tiles = any(isinstance(a, (TileVar, *_ON_TILES)) for a in _spread([*args, *kwargs.values()]))
        handler = operations.FUNCTIONS.get(function) if self.depth or on_tiles else None
        if handler is not None and (on_tiles or not host.plain(args)):
            return self._run(handler, (self.builder, *args), kwargs)
        special = host.FUNCTIONS.get(function)
        if special is not None:
            return self._run(special, (self, *args), kwargs)
        if function in host.STRUCTURE:
            return function(*args, **kwargs)
        if on_tiles or any(isinstance(a, (TensorRef, *SIZES)) for a in _spread([*args, *kwargs.values()])):
            name = getattr(function, "__name__", repr(function))
            raise UnknownOperation(f"{name} is not known to kernels", fix="use the torch operations in helium's README")
        return function(*args, **kwargs)

    def _call_method(self, method: Method, args: list[Any], kwargs: dict[str, Any]) -> object:
        if isinstance(method.owner, TensorRef):
            return self._run(host.METHODS[method.name], (self, method.owner, *args), kwargs)
        return self._run(operations.METHODS[method.name], (self.builder, method.owner, *args), kwargs)

    def _run(self, handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        for operand in args[1:]:
            if isinstance(operand, Missing) or (
                isinstance(operand, TensorRef) and self.depth and args[0] is self.builder
            ):
                self._need_operand(operand)
        kwargs = {name: value for name, value in kwargs.items() if not isinstance(value, Device)}
        kwargs.pop("device", None)
        try:
            return handler(*args, **kwargs)
        except (TypeError, AttributeError) as error:
            if isinstance(error, KernelError):
                raise
            raise WrongArguments(str(error), fix="call it as in torch, with tiles") from error


def _spread(items: list[Any]) -> Iterator[object]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from _spread(cast("list[Any]", item))
        else:
            yield item
