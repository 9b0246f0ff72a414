"""Passes: loop nests over the live lanes of a tile that store it, keep it in scratch, or reduce it, several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from helium import ir
from helium.emit.cpu import elementwise, memory
from helium.emit.cpu.code import V
from helium.emit.cpu.evaluate import Coords, Evaluator, Memo
from helium.emit.cpu.scope import Buffer, Coord, Scope
from helium.types import Block, Extent, Value, Whole

UNROLL = 4
"""Vectors per iteration of a pass: enough independent additions to hide their latency."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Compute `value` and keep it in scratch."""

    value: Value
    buffer: Buffer


Root = ir.Store | ir.Reduce | Keep
"""What makes a pass run."""


@dataclass(slots=True)
class Fold:
    """A reduction under way: the accumulators, one per unrolled vector."""

    root: ir.Reduce
    slots: list[V] = field(default_factory=list)


class Passes:
    """Emits loop nests in a scope. `wide` tells which extents have more than one lane in this function."""

    def __init__(self, evaluator: Evaluator, lanes: int, wide: Callable[[Extent], bool]) -> None:
        self.evaluator, self.lanes, self.wide = evaluator, lanes, wide
        self.c, self.frame = evaluator.code, evaluator.frame

    def count(self, scope: Scope, extent: Extent) -> V:
        """The live lanes of an extent."""
        if isinstance(extent, Block):
            return scope.axes[extent.axis].count
        return self.frame.size(extent.size) if isinstance(extent, Whole) else self.c.i64(extent.size)

    @staticmethod
    def subject(root: Root) -> Value:
        """The tile that a root runs over."""
        return root.source if isinstance(root, ir.Reduce) else root.value

    def domain(self, value: Value) -> tuple[Extent, ...]:
        """The wide extents of a value: roots of one domain can share a pass."""
        return tuple(extent for extent in value.type.shape if self.wide(extent))

    # Nests.

    def run(self, scope: Scope, roots: list[Root]) -> None:
        """One nest for roots of one domain; reductions share it only where the domain has one dimension."""
        domain = self.domain(self.subject(roots[0]))
        reduces = [root for root in roots if isinstance(root, ir.Reduce)]
        if reduces and len(domain) > 1:
            assert len(roots) == 1
            self._reduce_tile(scope, reduces[0])
        else:
            self._nest(scope, roots, [Fold(root) for root in reduces], domain, ())

    def _nest(
        self, scope: Scope, roots: list[Root], folds: list[Fold], domain: tuple[Extent, ...], outer: Coords
    ) -> None:
        if len(domain) > 1:
            with self.c.loop(self.c.i64(0), self.count(scope, domain[0])) as index:
                self._nest(scope, roots, folds, domain[1:], (*outer, Coord(index)))
            return
        for fold in folds:
            self._open(fold)
        self.vectorised(
            self.count(scope, domain[0]),
            lambda coord, lane: self._iteration(scope, roots, folds, (*outer, coord), lane),
        )
        for fold in folds:
            scope.scalars[fold.root.result] = self._close(fold)

    def vectorised(self, count: V, step: Callable[[Coord, int], None]) -> None:
        """Call `step` for all lanes below `count`: unrolled vectors, single vectors, then one masked vector."""
        c, width = self.c, self.lanes
        big = width * UNROLL
        unrolled, vectors = c.b.and_(count, c.i64(-big)), c.b.and_(count, c.i64(-width))
        with c.loop(c.i64(0), unrolled, big) as index:
            for lane in range(UNROLL):
                step(Coord(c.b.add(index, c.i64(lane * width)), width), lane)
        with c.loop(unrolled, vectors, width) as index:
            step(Coord(index, width), 0)
        with c.b.if_then(c.b.icmp_signed("<", vectors, count)):
            step(Coord(vectors, width, memory.run_mask(c, vectors, count, width)), 0)

    def _iteration(self, scope: Scope, roots: list[Root], folds: list[Fold], places: Coords, lane: int) -> None:
        memo: Memo = {}
        own = [self.spread(self.subject(root), places) for root in roots]
        values = [
            self.evaluator.at(scope, self.subject(root), coords, memo) for root, coords in zip(roots, own, strict=True)
        ]
        for root, coords, value in zip(roots, own, values, strict=True):
            if isinstance(root, ir.Reduce):
                fold = next(f for f in folds if f.root is root)
                self._fold(fold, value, places[-1], lane)
            else:
                self._write(scope, root, value, coords, memo)

    def spread(self, value: Value, places: Coords) -> Coords:
        """Coordinates for every dimension of `value`: `places` for the wide ones in order, zero for the others."""
        left = iter(places)
        return tuple(next(left) if self.wide(extent) else self.evaluator.zero for extent in value.type.shape)

    def _write(self, scope: Scope, root: ir.Store | Keep, value: V, coords: Coords, memo: Memo) -> None:
        if isinstance(root, Keep):
            place = self.evaluator.buffer_place(root.buffer, coords)
            memory.store(self.c, place, value, root.buffer.dtype, self.frame.dummy)
        else:
            place = self.evaluator.place(scope, root.tensor, root.indices, root.mask, coords, memo)
            memory.store(self.c, place, value, root.value.type.dtype, self.frame.dummy)

    # Reductions.

    def _open(self, fold: Fold) -> None:
        kind = memory.register_type(fold.root.source.type.dtype, self.lanes)
        start = self.c.const(kind, elementwise.identity(fold.root.op, fold.root.source.type.dtype))
        fold.slots = [self.c.slot(kind) for _ in range(UNROLL)]
        for slot in fold.slots:
            self.c.b.store(start, slot)

    def _fold(self, fold: Fold, value: V, coord: Coord, lane: int) -> None:
        c, dtype, slot = self.c, fold.root.source.type.dtype, fold.slots[lane]
        value = c.splat(value, self.lanes)
        if coord.mask is not None:
            neutral = c.const(value.type, elementwise.identity(fold.root.op, dtype))
            value = c.b.select(coord.mask, value, neutral)
        c.b.store(elementwise.fold(c, fold.root.op, c.b.load(slot, typ=value.type), value, dtype), slot)

    def _close(self, fold: Fold) -> V:
        c, dtype = self.c, fold.root.source.type.dtype
        kind = memory.register_type(dtype, self.lanes)
        parts = [c.b.load(slot, typ=kind) for slot in fold.slots]
        while len(parts) > 1:
            parts = [
                elementwise.fold(c, fold.root.op, a, b, dtype) for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return elementwise.fold_lanes(c, fold.root.op, parts[0], dtype)

    def _reduce_tile(self, scope: Scope, root: ir.Reduce) -> None:
        """A reduction that leaves a tile, which goes to its buffer: along the last wide dimension, or across it."""
        shape = root.source.type.shape
        outer = [d for d, extent in enumerate(shape) if self.wide(extent) and d != root.dim]
        coords = [self.evaluator.zero] * len(shape)
        inner = root.dim > outer[-1]
        self._reduce_at(scope, root, outer if inner else outer[:-1], coords, None if inner else outer[-1])

    def _reduce_at(
        self, scope: Scope, root: ir.Reduce, outer: list[int], coords: list[Coord], across: int | None
    ) -> None:
        if outer:
            with self.c.loop(self.c.i64(0), self.count(scope, root.source.type.shape[outer[0]])) as index:
                coords[outer[0]] = Coord(index)
                self._reduce_at(scope, root, outer[1:], coords, across)
        elif across is None:
            self._reduce_row(scope, root, coords)
        else:
            self._reduce_columns(scope, root, coords, across)

    def _reduce_row(self, scope: Scope, root: ir.Reduce, coords: list[Coord]) -> None:
        fold = Fold(root)
        self._open(fold)

        def step(coord: Coord, lane: int) -> None:
            coords[root.dim] = coord
            self._fold(fold, self.evaluator.at(scope, root.source, tuple(coords), {}), coord, lane)

        self.vectorised(self.count(scope, root.source.type.shape[root.dim]), step)
        self._put(scope, root, self._close(fold), coords)

    def _reduce_columns(self, scope: Scope, root: ir.Reduce, coords: list[Coord], across: int) -> None:
        c, shape, dtype = self.c, root.source.type.shape, root.source.type.dtype
        kind = memory.register_type(dtype, self.lanes)
        slot = c.slot(kind)

        def step(coord: Coord, lane: int) -> None:
            c.b.store(c.const(kind, elementwise.identity(root.op, dtype)), slot)
            coords[across] = coord
            with c.loop(c.i64(0), self.count(scope, shape[root.dim])) as index:
                coords[root.dim] = Coord(index)
                value = c.splat(self.evaluator.at(scope, root.source, tuple(coords), {}), self.lanes)
                c.b.store(elementwise.fold(c, root.op, c.b.load(slot, typ=kind), value, dtype), slot)
            self._put(scope, root, c.b.load(slot, typ=kind), coords)

        self.vectorised(self.count(scope, shape[across]), step)

    def _put(self, scope: Scope, root: ir.Reduce, value: V, coords: list[Coord]) -> None:
        own = tuple(coord for d, coord in enumerate(coords) if d != root.dim)
        place = self.evaluator.buffer_place(scope.buffers[root.result], own)
        memory.store(self.c, place, value, root.result.type.dtype, self.frame.dummy)
