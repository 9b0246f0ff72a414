"""The interpreter: all points at once, a walk from point to point, and compiled code give the same."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from executor import interpret_nest, ir, ir_json, targets, trees
from executor.compiler.emit.module import module
from executor.compiler.toolchain import shared_object
from executor.errors import ManifestError, ProgramRunError
from executor.expressions import evaluate
from executor.file import Blob, write
from executor.interpret_nest import run_nest
from executor.interpret_ops import apply, settle
from executor.manifest import Leaf, Method
from executor.runtime import load

pytestmark = pytest.mark.unit

SIZE = 300
VALUES = {"n": 3}


class Walk:
    """The meaning of a nest, word for word: point by point, statement by statement, element by element."""

    def __init__(self, nest: ir.Nest, buffers: Sequence[np.ndarray[Any, Any]]) -> None:
        self.nest, self.buffers = nest, buffers

    def run(self) -> None:
        for point in self.points(self.nest.outer):
            self.scalars: dict[int, Any] = {}
            for index, statement in enumerate(self.nest.body):
                self.statement(index, statement, point)

    def points(self, dims: Sequence[ir.Dim]) -> Any:
        return itertools.product(*(range(evaluate(dim, VALUES)) for dim in dims))

    def statement(self, index: int, statement: ir.Statement, point: tuple[int, ...]) -> None:
        match statement:
            case ir.Let(value=value):
                self.scalars[index] = self.value(value, point)
            case ir.Reduce(op=op, extents=extents, value=value, dtype=dtype):
                found = np.array([self.value(value, point + inner) for inner in self.points(extents)])
                self.scalars[index] = getattr(found, op)()
                if op not in ("argmin", "argmax"):
                    self.scalars[index] = settle(self.scalars[index], dtype)
            case ir.Dot(extent=extent, left=left, right=right):
                self.scalars[index] = np.float32(
                    sum(
                        self.side(left, (*point, k)) * self.side(right, (*point, k))
                        for k in range(evaluate(extent, VALUES))
                    )
                )
            case ir.Store(buffer=buffer, extents=extents, index=at, value=value):
                for inner in self.points(extents):
                    self.buffers[buffer][int(self.value(at, point + inner))] = self.value(value, point + inner)

    def side(self, side: ir.Strided, point: tuple[int, ...]) -> float:
        strides = [evaluate(stride, VALUES) for stride in side.strides]
        at = evaluate(side.offset, VALUES) + sum(s * p for s, p in zip(strides, point, strict=True))
        return float(self.buffers[side.buffer][at])

    def value(self, expr: ir.Expr, point: tuple[int, ...]) -> Any:
        match expr:
            case ir.Const(value=value, dtype=dtype):
                return settle(value, dtype)
            case ir.Axis(index=index):
                return np.asarray(point[index])
            case ir.Size(expression=expression):
                return np.asarray(evaluate(expression, VALUES))
            case ir.Local(index=index):
                return np.asarray(self.scalars[index])
            case ir.Load(buffer=buffer, index=at):
                return np.asarray(self.buffers[buffer][int(self.value(at, point))])
            case ir.Check(value=value, wrap=wrap):
                at = int(self.value(value, point))
                return np.asarray(at + evaluate(expr.size, VALUES) if wrap and at < 0 else at)
            case ir.Op(name=name, args=args, dtype=dtype):
                return apply(name, [self.value(arg, point) for arg in args], dtype)
        raise AssertionError(expr)


def integer(value: int) -> ir.Const:
    return ir.Const(value, "int64")


def op(name: str, *args: ir.Expr, dtype: str = "int64") -> ir.Op:
    return ir.Op(name, dtype, args)


def linear(sizes: Sequence[ir.Dim]) -> ir.Expr:
    """The row-major position of the axes."""
    index: ir.Expr = integer(0)
    for axis, size in enumerate(sizes):
        extent = integer(size) if isinstance(size, int) else ir.Size(size)
        index = op("add", op("mul", index, extent), ir.Axis(axis))
    return index


# Buffers of every nest: 0 float32 and 1 int64 to read, 2 the output.
PARAMETERS = {"float32": 0, "int64": 1}


@st.composite
def indexes(draw: st.DrawFn, rank: int, scalars: dict[str, list[int]], depth: int) -> ir.Expr:
    """An index of a buffer of SIZE elements that is in range."""
    value = draw(expressions("int64", rank, scalars, depth - 1))
    inside = op("imod", value, integer(SIZE))
    if draw(st.booleans()):
        return inside
    return ir.Check(op("sub", inside, integer(SIZE)), SIZE, True, 1)


@st.composite
def expressions(draw: st.DrawFn, dtype: str, rank: int, scalars: dict[str, list[int]], depth: int) -> ir.Expr:
    """An expression of `dtype` over `rank` axes and the scalars there are, by dtype."""
    leaves: list[ir.Expr] = [ir.Local(index) for index in scalars[dtype]]
    if dtype == "int64":
        leaves += [ir.Axis(axis) for axis in range(rank)] + [ir.Size("2*n - 1"), integer(draw(st.integers(-9, 9)))]
    elif dtype == "float32":
        leaves.append(ir.Const(draw(st.integers(-8, 8)) / 4, dtype))
    else:
        leaves.append(ir.Const(draw(st.booleans()), dtype))
    if depth <= 0:
        return draw(st.sampled_from(leaves))
    kind = draw(st.sampled_from(["leaf", "load", "op", "divide", "where", "compare", "cast"]))
    below = lambda of: draw(expressions(of, rank, scalars, depth - 1))  # noqa: E731
    if kind == "leaf":
        return draw(st.sampled_from(leaves))
    if dtype == "bool":
        if kind in ("load", "compare"):
            of = draw(st.sampled_from(["float32", "int64"]))
            return op(draw(st.sampled_from(sorted(ir.COMPARISONS))), below(of), below(of), dtype="bool")
        return op(draw(st.sampled_from(["and", "or", "xor"])), below("bool"), below("bool"), dtype="bool")
    if kind == "load":
        return ir.Load(PARAMETERS[dtype], draw(indexes(rank, scalars, depth)))
    if kind == "where":
        load = ir.Load(PARAMETERS[dtype], draw(indexes(rank, scalars, depth)))
        return op("where", below("bool"), *draw(st.permutations([load, below(dtype)])), dtype=dtype)
    if kind == "cast" and dtype == "float32":
        return op("cast", below("int64"), dtype=dtype)
    if kind == "divide" and dtype == "int64":
        divisor = integer(draw(st.integers(-9, 9).filter(bool)))
        return op(draw(st.sampled_from(["idiv", "imod", "trunc_div", "fmod"])), below(dtype), divisor)
    names = ["add", "sub", "mul", "min", "max"] + (["xor", "and", "or"] if dtype == "int64" else [])
    return op(draw(st.sampled_from(names)), below(dtype), below(dtype), dtype=dtype)


@st.composite
def nests(draw: st.DrawFn) -> tuple[ir.Nest, int]:
    """A nest over buffers of SIZE elements, and the size of its output."""
    outer = tuple(draw(st.lists(st.sampled_from([1, 2, "n", 4]), max_size=3)))
    scalars: dict[str, list[int]] = {"float32": [], "int64": [], "bool": []}
    body: list[ir.Statement] = []
    for _ in range(draw(st.integers(0, 2))):
        dtype = draw(st.sampled_from(["float32", "int64"]))
        kind = draw(st.sampled_from(["let", "reduce", "dot"]))
        if kind == "let":
            body.append(ir.Let(draw(expressions(dtype, len(outer), scalars, 2)), dtype))
        elif kind == "reduce":
            extents = tuple(draw(st.lists(st.sampled_from([1, "n", 4]), min_size=1, max_size=2)))
            name = draw(st.sampled_from(["sum", "min", "max", "argmin", "argmax"]))
            body.append(
                ir.Reduce(name, extents, draw(expressions(dtype, len(outer) + len(extents), scalars, 2)), dtype)
            )
            dtype = "int64" if name.startswith("arg") else dtype
        else:
            dtype, sides = "float32", []
            for _ in range(2):
                strides = tuple(draw(st.lists(st.integers(0, 2), min_size=len(outer) + 1, max_size=len(outer) + 1)))
                sides.append(ir.Strided(0, draw(st.integers(0, 2)), strides))
            body.append(ir.Dot("n", *sides))
        scalars[dtype].append(len(body) - 1)
    extents = tuple(draw(st.lists(st.sampled_from([1, 2, "n"]), max_size=2)))
    whole = outer + extents
    out = draw(st.sampled_from(["float32", "int64", "bool"]))
    body.append(ir.Store(2, extents, linear(whole), draw(expressions(out, len(whole), scalars, 3))))
    return ir.Nest(("float32", "int64", out), outer, tuple(body)), math.prod(evaluate(dim, VALUES) for dim in whole)


def buffers_for(nest: ir.Nest, size: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    floats = (random.integers(-16, 16, SIZE) / 4).astype(np.float32)
    return [floats, random.integers(-50, 50, SIZE), np.zeros(size, nest.parameters[2])]


@settings(max_examples=100, deadline=None)
@given(nests())
def test_all_points_at_once_is_a_walk_from_point_to_point(made: tuple[ir.Nest, int]) -> None:
    nest, size = made
    walked, run = buffers_for(nest, size), buffers_for(nest, size)
    with np.errstate(all="ignore"):
        Walk(nest, walked).run()
        run_nest(nest, run, VALUES, "m")
    np.testing.assert_allclose(run[2], walked[2], rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(made=nests(), piece=st.integers(1, 5))
def test_pieces_make_no_difference(made: tuple[ir.Nest, int], piece: int) -> None:
    nest, size = made
    whole, cut = buffers_for(nest, size), buffers_for(nest, size)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        run_nest(nest, whole, VALUES, "m")
        patch.setattr(interpret_nest, "_PIECE", piece)
        run_nest(nest, cut, VALUES, "m")
    np.testing.assert_allclose(cut[2], whole[2], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failing case: all of it is wanted
def test_compiled_code_gives_what_the_interpreter_gives(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Many nests in one program, at sizes that fill vectors and leave rests."""

    @settings(max_examples=4, phases=[Phase.generate], derandomize=True, deadline=None, database=None)
    @given(st.lists(nests(), min_size=16, max_size=16))
    def compare(made: list[tuple[ir.Nest, int]]) -> None:
        path = tmp_path_factory.mktemp("compiled") / "nests.edge"
        _write(path, [enlarged(nest) for nest, _ in made])
        floats, integers, _ = buffers_for(made[0][0], 0)
        due = load(path, allow_code=False)(floats, integers)
        with load(path) as compiled:
            came = compiled(floats, integers)
        for index, (first, second) in enumerate(zip(came, due, strict=True)):
            scale = np.abs(second[np.isfinite(second)], dtype=np.float64).max(initial=1)
            np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6 * scale, err_msg=str(made[index]))

    compare()


@pytest.mark.parametrize("divisor", [-7, -3, -1, 1, 3, 7])
def test_compiled_division_rounds_down_whatever_the_signs(divisor: int, tmp_path: Path) -> None:
    """Of numbers, positions, their sums and products, wrapped around or not, and of what data says."""
    axis, huge = ir.Axis(0), integer(2**61)
    left: list[ir.Expr] = [integer(-5), integer(5), axis, op("sub", axis, integer(18)), ir.Load(1, axis)]
    left += [op("add", axis, integer(-18)), op("mul", axis, integer(-2)), op("mul", axis, huge), op("neg", axis)]
    left += [op("add", op("mul", axis, huge), huge), op("imod", axis, integer(-4)), op("idiv", axis, integer(-4))]
    values = [(name, value) for value in left for name in ("idiv", "imod")]
    stores = [ir.Store(2, (), axis, op(name, value, integer(divisor))) for name, value in values]
    _write(tmp_path / "divisions.edge", [ir.Nest(("float32", "int64", "int64"), (37,), (s,)) for s in stores])
    floats, integers, _ = buffers_for(ir.Nest(("float32", "int64", "int64"), (), ()), 0)
    due = load(tmp_path / "divisions.edge", allow_code=False)(floats, integers)
    assert due[0][0] == -5 // divisor
    assert due[1][0] == -5 % divisor
    with load(tmp_path / "divisions.edge") as compiled:
        for (name, value), first, second in zip(values, compiled(floats, integers), due, strict=True):
            np.testing.assert_array_equal(first, second, err_msg=f"{name} of {value} by {divisor}")


def enlarged(part: Any) -> Any:
    """A nest with its sizes as numbers, 4 become 37: what the C emitter of this version takes, and vectorises."""
    if isinstance(part, ir.Size):
        return integer(evaluate(part.expression, VALUES))
    if isinstance(part, tuple):
        return tuple(map(enlarged, part))
    if isinstance(part, ir.Axis | ir.Local):
        return part
    if dataclasses.is_dataclass(part):
        return type(part)(*(enlarged(getattr(part, field.name)) for field in dataclasses.fields(part)))
    return {"n": VALUES["n"], 4: 37}.get(part, part)


def _write(path: Path, made: list[ir.Nest]) -> None:
    """A program that runs each nest on the two inputs into an output of its own."""
    shapes = [(math.prod((*nest.outer, *nest.body[-1].extents)),) for nest in made]
    buffers = [ir.Buffer("f", "input", "float32", (SIZE,), 0), ir.Buffer("i", "input", "int64", (SIZE,), 1)]
    buffers += [ir.Buffer("y", "output", n.parameters[2], shapes[at], at) for at, n in enumerate(made)]
    steps = tuple(ir.Step(at, (0, 1, at + 2)) for at in range(len(made)))
    loops = ir.LoopProgram(tuple(made), (ir.MethodBody("forward", ir.Block(tuple(buffers), steps)),))
    leaves = [Leaf(f"{buffer.name}{at}", buffer.dtype, buffer.shape) for at, buffer in enumerate(buffers)]
    inputs, outputs = (
        trees.Tree("dict", (trees.leaf(0), trees.leaf(1)), ("f", "i")),
        tuple(map(trees.leaf, range(len(made)))),
    )
    method = Method("forward", tuple(leaves[:2]), tuple(leaves[2:]), inputs, trees.Tree("tuple", outputs))
    target = targets.resolve("host")
    code = shared_object({"nests": module(loops, target)}, target, {})
    write(path, methods=[method], segments=[Blob("ir", ir_json.dump(loops)), Blob("code", code, target.name)])


def test_a_store_that_reads_what_it_stored_runs_in_order() -> None:
    previous = op(
        "where",
        op("gt", ir.Axis(1), integer(0), dtype="bool"),
        ir.Load(0, op("max", op("sub", linear([2, 4]), integer(1)), integer(0))),
        ir.Const(0.0, "float32"),
        dtype="float32",
    )
    value = op("add", ir.Load(0, linear([2, 4])), previous, dtype="float32")
    nest = ir.Nest(("float32",), (2,), (ir.Store(0, (4,), linear([2, 4]), value),))
    buffer = np.arange(8, dtype=np.float32)
    run_nest(nest, [buffer], {}, "m")
    np.testing.assert_array_equal(buffer.reshape(2, 4), np.arange(8).reshape(2, 4).cumsum(1))


def test_repeated_places_add_up_in_order_and_the_last_store_wins() -> None:
    place = ir.Load(1, ir.Axis(0))
    added = op("add", ir.Load(0, place), ir.Const(1.0, "float32"), dtype="float32")
    buffer, places = np.zeros(3, np.float32), np.array([2, 0, 2, 2])
    run_nest(ir.Nest(("float32", "int64"), (), (ir.Store(0, (4,), place, added),)), [buffer, places], {}, "m")
    assert buffer.tolist() == [1, 0, 3]
    last = op("cast", ir.Axis(0), dtype="float32")
    run_nest(ir.Nest(("float32", "int64"), (), (ir.Store(0, (4,), place, last),)), [buffer, places], {}, "m")
    assert buffer.tolist() == [1, 0, 3]


def guarded(index: ir.Expr) -> ir.Nest:
    """A nest that loads at an index only where that is in range, as if `where` guarded it; else it gives -1."""
    inside = op("lt", ir.Load(1, ir.Axis(0)), integer(SIZE), dtype="bool")
    value = op("where", inside, ir.Load(0, index), ir.Const(-1.0, "float32"), dtype="float32")
    return ir.Nest(("float32", "int64", "float32"), (2,), (ir.Store(2, (), ir.Axis(0), value),))


@pytest.mark.parametrize("last", [5, 999])
def test_both_branches_of_where_are_evaluated_compiled_and_interpreted(last: int, tmp_path: Path) -> None:
    nest = guarded(ir.Check(ir.Load(1, ir.Axis(0)), SIZE, False, 9))
    _write(tmp_path / "guarded.edge", [nest])
    floats, integers = np.arange(SIZE, dtype=np.float32), np.full(SIZE, last)
    integers[0] = 3
    for allow_code in (True, False):
        with load(tmp_path / "guarded.edge", allow_code=allow_code) as runtime:
            if last >= SIZE:
                with pytest.raises(ProgramRunError, match="error 9"):
                    runtime(floats, integers)
            else:
                assert runtime(floats, integers)[0].tolist() == [3, 5]


def test_a_load_out_of_range_is_refused_in_the_branch_not_taken_too() -> None:
    buffers = [np.arange(SIZE, dtype=np.float32), np.array([3, 999]), np.zeros(2, np.float32)]
    with pytest.raises(ManifestError, match="a load of element 999"):
        run_nest(guarded(ir.Load(1, ir.Axis(0))), buffers, {}, "m")


@pytest.mark.parametrize(
    "body",
    [
        ir.Store(0, (), integer(999), ir.Const(0.0, "float32")),
        ir.Store(0, (), integer(0), ir.Load(0, integer(-1))),
        ir.Dot(999, ir.Strided(0, 0, (1,)), ir.Strided(0, 0, (1,))),
        ir.Dot(2, ir.Strided(0, 0, (-1,)), ir.Strided(0, 0, (1,))),
    ],
    ids=["store", "load", "product", "backward"],
)
def test_what_reaches_out_of_a_buffer_is_refused(body: ir.Statement) -> None:
    with pytest.raises(ManifestError, match="method 'm'"):
        run_nest(ir.Nest(("float32",), (), (body,)), [np.zeros(SIZE, np.float32)], {}, "m")
