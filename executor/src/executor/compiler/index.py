"""Index arithmetic: build int64 expressions, substitute axes, and simplify sums of products, // and %.

An index is put into the form `constant + sum of coefficient * atom`, an atom being an axis, a quotient, a remainder or
anything opaque. Extents bound the axes, which is what makes most quotients and remainders of reshapes vanish. int64
wraps around: quotients and remainders of what may do so stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod

from executor import ir

Range = tuple[int, int] | None
Terms = dict[ir.Expr, int]
Change = Callable[[ir.Expr], ir.Expr]

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def const(value: int) -> ir.Const:
    """A whole number."""
    return ir.Const(value, "int64")


def add(left: ir.Expr, right: ir.Expr) -> ir.Expr:
    """left + right"""
    if left == const(0):
        return right
    return left if right == const(0) else ir.Op("add", "int64", (left, right))


def scale(expr: ir.Expr, factor: int) -> ir.Expr:
    """expr * factor"""
    if factor == 0:
        return const(0)
    return expr if factor == 1 else ir.Op("mul", "int64", (expr, const(factor)))


def quotient(expr: ir.Expr, divisor: int) -> ir.Expr:
    """expr // divisor"""
    return expr if divisor == 1 else ir.Op("idiv", "int64", (expr, const(divisor)))


def remainder(expr: ir.Expr, divisor: int) -> ir.Expr:
    """expr % divisor"""
    return const(0) if divisor == 1 else ir.Op("imod", "int64", (expr, const(divisor)))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense row-major tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def linear(indexes: Sequence[ir.Expr], strides: Sequence[int], offset: int = 0) -> ir.Expr:
    """offset + sum(index * stride)"""
    total: ir.Expr = const(offset)
    for index, stride in zip(indexes, strides, strict=True):
        total = add(total, scale(index, stride))
    return total


def delinear(flat: ir.Expr, shape: Sequence[int]) -> tuple[ir.Expr, ...]:
    """The coordinates in `shape` of flat position `flat`, which is in range."""
    found: list[ir.Expr] = []
    for axis, stride in enumerate(contiguous(shape)):
        at = quotient(flat, stride)
        found.append(at if axis == 0 and shape[axis] != 1 else remainder(at, shape[axis]))
    return tuple(found)


def substitute(expr: ir.Expr, mapping: Mapping[ir.Expr, ir.Expr]) -> ir.Expr:
    """`expr` with each of the given expressions replaced, wherever it stands."""
    done: dict[int, ir.Expr] = {}

    def go(node: ir.Expr) -> ir.Expr:
        if (found := done.get(id(node))) is None:
            replaced = mapping.get(node) if isinstance(node, ir.Axis | ir.Local | ir.Load) else None
            found = done[id(node)] = rebuild(node, go) if replaced is None else replaced
        return found

    return go(expr)


def rebuild(node: ir.Expr, change: Change) -> ir.Expr:
    """`node` with `change` applied to what is directly below it."""
    match node:
        case ir.Load(index=index):
            return replace(node, index=change(index))
        case ir.Check(value=value):
            return replace(node, value=change(value))
        case ir.Op(args=args):
            return replace(node, args=tuple(change(arg) for arg in args))
    return node


class Simplifier:
    """Simplifies the indexes of expressions over axes of the given extents. Results are shared and cached."""

    def __init__(self, extents: Sequence[int]) -> None:
        self._extents = extents
        self._done: dict[int, tuple[ir.Expr, ir.Expr]] = {}

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        """`expr` with everything of int64 in it simplified."""
        if (found := self._done.get(id(expr))) is None:
            arithmetic = isinstance(expr, ir.Op) and expr.dtype == "int64"
            # The key is kept alive along with the result: ids are reused otherwise.
            result = _expression(*self._linear(expr)) if arithmetic else rebuild(expr, self)
            found = self._done[id(expr)] = (expr, result)
        return found[1]

    def _linear(self, expr: ir.Expr) -> tuple[Terms, int]:
        match expr:
            case ir.Const(value=value):
                return {}, int(value)
            case ir.Axis(index=axis):
                return ({}, 0) if self._extents[axis] == 1 else ({expr: 1}, 0)
            case ir.Op(name="add" | "sub" as name, dtype="int64", args=(left, right)):
                return _combine(self._linear(left), self._linear(right), 1 if name == "add" else -1)
            case ir.Op(name="neg", dtype="int64", args=(inner,)):
                return _scaled(self._linear(inner), -1)
            case ir.Op(name="mul", dtype="int64", args=(left, right)):
                return self._product(self._linear(left), self._linear(right))
            case ir.Op(name="idiv", dtype="int64", args=(inner, ir.Const(value=int() as divisor))) if divisor > 0:
                return self._quotient(*self._linear(inner), divisor)
            case ir.Op(name="imod", dtype="int64", args=(inner, ir.Const(value=int() as divisor))) if divisor > 0:
                return self._remainder(*self._linear(inner), divisor)
        return {rebuild(expr, self): 1}, 0

    def _product(self, left: tuple[Terms, int], right: tuple[Terms, int]) -> tuple[Terms, int]:
        if not left[0]:
            return _scaled(right, left[1])
        if not right[0]:
            return _scaled(left, right[1])
        return {ir.Op("mul", "int64", (_expression(*left), _expression(*right))): 1}, 0

    def _quotient(self, terms: Terms, constant: int, divisor: int) -> tuple[Terms, int]:
        if self._sum_bounds(terms, constant) is None:
            return _quotient_atom(terms, constant, divisor), 0
        whole = {atom: factor // divisor for atom, factor in terms.items() if factor % divisor == 0}
        rest = {atom: factor for atom, factor in terms.items() if factor % divisor}
        base, left = divmod(constant, divisor)
        if self._within(rest, left, divisor):
            return whole, base
        grain = self._grain(rest, left, divisor)
        coarse = {atom: factor // grain for atom, factor in rest.items() if factor % grain == 0}
        return _combine((whole, base), (_quotient_atom(coarse, left // grain, divisor // grain), 0), 1)

    def _remainder(self, terms: Terms, constant: int, divisor: int) -> tuple[Terms, int]:
        if self._sum_bounds(terms, constant) is None:
            return _remainder_atom(terms, constant, divisor, 1), 0
        rest = {atom: factor % divisor for atom, factor in terms.items() if factor % divisor}
        left = constant % divisor
        if self._within(rest, left, divisor):
            return rest, left
        grain = self._grain(rest, left, divisor)
        coarse = {atom: factor // grain for atom, factor in rest.items() if factor % grain == 0}
        fine = {atom: factor for atom, factor in rest.items() if factor % grain}
        return _combine((_remainder_atom(coarse, left // grain, divisor // grain, grain), 0), (fine, left % grain), 1)

    def _grain(self, terms: Terms, constant: int, divisor: int) -> int:
        """The largest found g that divides `divisor` so that the terms are multiples of g, plus a rest below g."""
        factors = sorted((abs(factor) for factor in terms.values()), reverse=True)
        for count in range(1, len(factors) + 1):
            grain = gcd(divisor, *factors[:count])
            fine = {atom: factor for atom, factor in terms.items() if factor % grain}
            if self._within(fine, constant % grain, grain):
                return grain
        return 1

    def _within(self, terms: Terms, constant: int, limit: int) -> bool:
        bounds = self._sum_bounds(terms, constant)
        return bounds is not None and bounds[0] >= 0 and bounds[1] < limit

    def _sum_bounds(self, terms: Terms, constant: int) -> Range:
        """The least and greatest value; None if they are not known, or where the sum may wrap around."""
        low = high = constant
        for atom, factor in terms.items():
            bounds = self._bounds(atom)
            if bounds is None:
                return None
            low += min(factor * bounds[0], factor * bounds[1])
            high += max(factor * bounds[0], factor * bounds[1])
        return None if low < _LEAST or high > _GREATEST else (low, high)

    def _bounds(self, atom: ir.Expr) -> Range:
        match atom:
            case ir.Axis(index=axis):
                return 0, self._extents[axis] - 1
            case ir.Check(size=int() as size):
                return 0, size - 1
            case ir.Op(name="imod", args=(_, ir.Const(value=int() as divisor))) if divisor > 0:
                return 0, divisor - 1
            case ir.Op(name="idiv", args=(inner, ir.Const(value=int() as divisor))) if divisor > 0:
                bounds = self._sum_bounds(*self._linear(inner))
                return None if bounds is None else (bounds[0] // divisor, bounds[1] // divisor)
        return None


def affine(index: ir.Expr, axes: int) -> tuple[int, tuple[int, ...]] | None:
    """(offset, stride of each axis) of a simplified index; None if it is not of that form."""
    strides, offset = [0] * axes, 0
    for term in _addends(index):
        match term:
            case ir.Const(value=value):
                offset += int(value)
            case ir.Axis(index=axis):
                strides[axis] += 1
            case ir.Op(name="mul", args=(ir.Axis(index=axis), ir.Const(value=value))):
                strides[axis] += int(value)
            case _:
                return None
    return offset, tuple(strides)


def _addends(expr: ir.Expr) -> list[ir.Expr]:
    if isinstance(expr, ir.Op) and expr.name == "add":
        return [term for arg in expr.args for term in _addends(arg)]
    return [expr]


def _scaled(form: tuple[Terms, int], factor: int) -> tuple[Terms, int]:
    terms, constant = form
    return ({atom: value * factor for atom, value in terms.items()} if factor else {}), constant * factor


def _combine(left: tuple[Terms, int], right: tuple[Terms, int], sign: int) -> tuple[Terms, int]:
    terms = dict(left[0])
    for atom, factor in right[0].items():
        terms[atom] = terms.get(atom, 0) + sign * factor
    terms = {atom: factor for atom, factor in terms.items() if factor}
    return _recombine(terms, left[1] + sign * right[1])


def _recombine(terms: Terms, constant: int) -> tuple[Terms, int]:
    """d*f * (e // d) + f * (e % d) is f * e."""
    for atom, factor in terms.items():
        match atom:
            case ir.Op(name="imod", args=(inner, ir.Const(value=int() as divisor) as given)):
                partner = ir.Op("idiv", "int64", (inner, given))
                if terms.get(partner) == factor * divisor:
                    rest = {other: value for other, value in terms.items() if other not in (atom, partner)}
                    return _combine((rest, constant), _scaled(_parts(inner), factor), 1)
    return terms, constant


def _parts(expr: ir.Expr) -> tuple[Terms, int]:
    """The form of an expression that `_expression` made."""
    terms: Terms = {}
    constant = 0
    for term in _addends(expr):
        match term:
            case ir.Const(value=value):
                constant += int(value)
            case ir.Op(name="mul", args=(atom, ir.Const(value=int() as factor))):
                terms[atom] = factor
            case _:
                terms[term] = 1
    return terms, constant


def _quotient_atom(terms: Terms, constant: int, divisor: int) -> Terms:
    if len(terms) == 1 and constant == 0:
        ((atom, factor),) = terms.items()
        match atom:
            case ir.Op(name="idiv", args=(inner, ir.Const(value=int() as first))) if (
                factor == 1 and 0 < first * divisor <= _GREATEST
            ):
                return {ir.Op("idiv", "int64", (inner, const(first * divisor))): 1}
    return {ir.Op("idiv", "int64", (_expression(terms, constant), const(divisor))): 1}


def _remainder_atom(terms: Terms, constant: int, divisor: int, factor: int) -> Terms:
    if len(terms) == 1 and constant == 0:
        ((atom, inner_factor),) = terms.items()
        match atom:
            case ir.Op(name="imod", args=(inner, ir.Const(value=int() as first))) if (
                inner_factor == 1 and first > 0 and first % divisor == 0
            ):
                return {ir.Op("imod", "int64", (inner, const(divisor))): factor}
    return {ir.Op("imod", "int64", (_expression(terms, constant), const(divisor))): factor}


def _expression(terms: Terms, constant: int) -> ir.Expr:
    """The canonical expression of a form: axes in order, then the rest, then the constant."""
    total: ir.Expr = const(0)
    for atom, factor in sorted(terms.items(), key=_rank):
        total = add(total, scale(atom, _wrapped(factor)))
    return add(total, const(_wrapped(constant)))


def _wrapped(value: int) -> int:
    """The int64 that `value` is, sums and products of int64 being the same however they wrap around on the way."""
    return (value - _LEAST) % (1 << 64) + _LEAST


def _rank(term: tuple[ir.Expr, int]) -> tuple[int, str]:
    atom = term[0]
    return (atom.index, "") if isinstance(atom, ir.Axis) else (1 << 30, repr(atom))


def reshape(at: Sequence[ir.Expr], came: Sequence[int], due: Sequence[int]) -> tuple[ir.Expr, ...]:
    """The indexes into a tensor of shape `due` of the element at `at` of shape `came`, of the same size.

    Dimensions are matched in groups of equal products, so that those that stay get no arithmetic.
    """
    found: list[ir.Expr] = []
    left = right = 0
    while right < len(due):
        last, end = _group(came, due, left, right)
        group, target = came[left:last], due[right:end]
        if list(group) == list(target):
            found += at[left:last]
        else:
            found += delinear(linear(at[left:last], contiguous(group)), target)
        left, right = last, end
    return tuple(found)


def _group(came: Sequence[int], due: Sequence[int], left: int, right: int) -> tuple[int, int]:
    """The ends of the shortest groups from `left` and `right` on that have equal products."""
    last, end = left, right + 1
    size, target = 1, due[right]
    while size != target or (size == 1 and last < len(came) and came[last] == 1 and last == left):
        if size < target or (size == target == 1):
            if last == len(came):
                return len(came), len(due)
            size *= came[last]
            last += 1
        elif end < len(due):
            target *= due[end]
            end += 1
        else:
            return len(came), len(due)
    return last, end


def size_of(shape: Sequence[int]) -> int:
    """How many elements."""
    return prod(shape)
