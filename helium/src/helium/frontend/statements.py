"""Executes the statements of a kernel: assignments, tile loops with carried values, constant branches, guards."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from helium import ir
from helium import language as hl
from helium.errors import CarriedChange, UnpackMismatch, UnsupportedSyntax
from helium.frontend.expressions import Expressions
from helium.frontend.host import TileRange
from helium.frontend.values import Missing, Relation, ScalarRef, TensorRef, TileVar, Weak
from helium.types import Value


class Reader(Expressions):
    """Reads a kernel's body into `loops`, `outputs` and `returned`."""

    def read(self, body: Sequence[ast.stmt]) -> None:
        """Execute statements in order, stopping after a `return`."""
        for statement in body:
            self._execute(statement)
            if self.finished:
                return

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.finished = False
        self.returned: object = None
        self._axes: set[str] = set()

    def _execute(self, node: ast.stmt) -> None:
        method = getattr(self, f"_{type(node).__name__}", None)
        with self.at(node):
            if method is None:
                raise UnsupportedSyntax(
                    f"{type(node).__name__} in a kernel",
                    fix="use assignments, tile loops, assert, constant ifs, return",
                )
            method(node)

    # Simple statements.

    def _Expr(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def _Pass(self, node: ast.Pass) -> None:
        return

    def _Assign(self, node: ast.Assign) -> None:
        single = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        self.target = node.targets[0].id if single and isinstance(node.targets[0], ast.Name) else ""
        value = self.evaluate(node.value)
        self.target = ""
        for target in node.targets:
            self._assign(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self.evaluate(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        as_load = ast.copy_location(_loaded(node.target), node.target)
        left, right = self.evaluate(as_load), self.evaluate(node.value)
        self.builder.line = self.source.line(node)
        self._assign(node.target, self.binary(node.op, left, right))

    def _assign(self, target: ast.expr, value: Any) -> None:
        with self.at(target):
            if isinstance(target, ast.Name):
                self.scope[target.id] = value
            elif isinstance(target, (ast.Tuple, ast.List)):
                self._unpack(target, value)
            elif isinstance(target, ast.Subscript):
                self._store(target, value)
            else:
                raise UnsupportedSyntax(f"assigning to {ast.unparse(target)}", fix="assign to names and tensor[tile]")

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
            count = len(value) if isinstance(value, (tuple, list)) else 1
            raise UnpackMismatch(
                f"{len(target.elts)} names for {count} value{'s' * (count != 1)}",
                fix="give as many names as there are tiles or sizes",
            )
        for part, item in zip(target.elts, value, strict=True):
            self._assign(part, item)

    def _store(self, target: ast.Subscript, value: Any) -> None:
        owner, index = self.evaluate(target.value), self.evaluate(target.slice)
        if not isinstance(owner, TensorRef):
            raise UnsupportedSyntax("assigning to part of a tile", fix="use torch.where to choose between values")
        if isinstance(value, (TensorRef, TileVar, Missing)):
            self._need_operand(value)
        self.builder.line = self.source.line(target)
        self.access(owner, index).store(value)

    def _Assert(self, node: ast.Assert) -> None:
        condition = self.evaluate(node.test)
        for part in condition if isinstance(condition, tuple) else (condition,):
            self._require(part)

    def _require(self, condition: object) -> None:
        if isinstance(condition, Relation):
            left, right = condition.left, condition.right
            if condition.relation in ("eq", "le"):
                self.builder.guard(left, "==" if condition.relation == "eq" else "<=", right)
            elif condition.relation == "ge":
                self.builder.guard(right, "<=", left)
            else:
                raise UnsupportedSyntax("an assertion with this relation of sizes", fix="assert ==, <= or >=")
        elif not condition:
            raise UnsupportedSyntax("this assertion never holds", fix="call the kernel with other dtypes or ranks")

    def _Return(self, node: ast.Return) -> None:
        if self.depth:
            raise UnsupportedSyntax("return inside a loop", fix="return after the loop")
        self.returned = None if node.value is None else self.evaluate(node.value)
        self.finished = True

    def _If(self, node: ast.If) -> None:
        condition = self.evaluate(node.test)
        if isinstance(condition, (Value, Weak, ScalarRef, Relation)):
            raise UnsupportedSyntax(
                "a branch on data or sizes", fix="use torch.where, or branch on constants and dtypes"
            )
        self.read(node.body if condition else node.orelse)

    # Loops.

    def _For(self, node: ast.For) -> None:
        unrolled = isinstance(node.iter, ast.Call) and self.evaluate(node.iter.func) is hl.static_range
        if unrolled and isinstance(node.iter, ast.Call):
            values: Any = range(*(self.evaluate(arg) for arg in node.iter.args))
        else:
            values = self.evaluate(node.iter)
        if node.orelse:
            raise UnsupportedSyntax("`else` of a loop", fix="put it after the loop")
        if isinstance(values, TileRange):
            self._tile_loop(node, values)
        elif isinstance(values, (range, list, tuple, enumerate, zip)):
            for value in values:
                self._assign(node.target, value)
                self.read(node.body)
        else:
            raise UnsupportedSyntax("a loop over this", fix="loop over hl.tile(...), or over constants")

    def _tile_loop(self, node: ast.For, tiles: TileRange) -> None:
        names = self._axis_names(node.target, len(tiles.ends))
        axes = tuple(map(ir.Axis, names, tiles.begins, tiles.ends, tiles.blocks))
        self.ends.update(zip(names, tiles.ends, strict=True))
        grouped = isinstance(node.target, (ast.Tuple, ast.List))
        line = self.source.line(node)
        entries = self._enter(node)
        self.depth += 1
        with self.builder.body() as body:
            self.builder.line = line
            variables = tuple(self._variable(name, tiles.points) for name in names)
            self._assign(node.target, variables if grouped or len(variables) > 1 else variables[0])
            self.read(node.body)
            carried = tuple(self._leave(node, name, *pair) for name, pair in entries.items())
        self.depth -= 1
        for name, carry in zip(entries, carried, strict=True):
            self.scope[name] = carry.result
        self.builder.append(ir.Loop(axes, tuple(body), carried, line))

    def _variable(self, axis: str, point: bool) -> object:
        return self.builder.axis_value(axis, "begin") if point else TileVar(axis)

    def _axis_names(self, target: ast.expr, count: int) -> list[str]:
        if isinstance(target, (ast.Tuple, ast.List)):
            wanted = [ast.unparse(part) for part in target.elts]
            if len(wanted) != count:
                raise UnpackMismatch(f"{len(wanted)} names for {count} tile{'s' * (count != 1)}", fix=f"write {count}")
        else:
            name = ast.unparse(target)
            wanted = [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
        return [self._unique(name) for name in wanted]

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._axes:
            unique, number = f"{name}_{number}", number + 1
        self._axes.add(unique)
        return unique

    def _enter(self, node: ast.For) -> dict[str, tuple[Value, Value]]:
        """Make an entry value for each variable that lives on from one iteration to the next."""
        if not self.depth:
            return {}
        entries: dict[str, tuple[Value, Value]] = {}
        for name in _assigned(node.body):
            current = self.scope.get(name)
            initial = current.value if isinstance(current, Weak) else current
            if isinstance(initial, float | int) and not isinstance(initial, bool):
                initial = self.builder.tile(float(initial), "float32") if isinstance(initial, float) else None
            if isinstance(initial, Value):
                entry = self.builder.new(initial.type, name)
                entries[name] = (initial, entry)
                self.scope[name] = entry
        return entries

    def _leave(self, node: ast.For, name: str, initial: Value, entry: Value) -> ir.Carried:
        final = self.scope[name]
        if not isinstance(final, (Value, Weak)):
            raise CarriedChange(f"{name!r} stops being a tile in the loop", fix="use another name inside the loop")
        update = self.builder.tile(final)
        if update.type != entry.type:
            raise CarriedChange(
                f"{name!r} enters the loop as {entry.type} and leaves an iteration as {update.type}",
                fix=f"start it as hl.zeros of that shape and dtype, or convert with {name} = (…).to(dtype)",
            )
        return ir.Carried(initial, entry, update, self.builder.new(entry.type, name))


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return ast.Name(ast.unparse(target), ast.Load())


def _assigned(body: Sequence[ast.stmt]) -> list[str]:
    """The names that statements assign, each once, in order of first assignment."""
    names: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id)
    return list(names)
