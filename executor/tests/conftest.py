"""Small program files made by hand, so that the file and the runtime are tested without the compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from executor import ir, ir_json, targets, trees
from executor.file import Blob, WeightData, write
from executor.manifest import Leaf, Method, State, Symbol

SCALE_AND_COUNT = """
#include <stdint.h>
int edge_forward(const void *const *inputs, void *const *outputs, void *const *state, const void *const *weights,
                 void *arena, const int64_t *symbols, void *pool)
{
    const float *x = inputs[0], *scale = weights[1];
    float *y = outputs[0], *count = state[0], *scratch = arena;
    (void)pool;
    if (((uintptr_t)arena | (uintptr_t)count | (uintptr_t)scale) % 64) return 2;
    for (int64_t i = 0; i < symbols[0] * 4; i++) {
        if (x[i] < 0) return 7;
        scratch[i] = x[i] * scale[0];
    }
    for (int64_t i = 0; i < symbols[0] * 4; i++) y[i] = scratch[i] + count[0];
    count[0] += 1;
    return 0;
}
"""

_X, _SCALE, _COUNT, _Y = range(4)


def _loops() -> bytes:
    """SCALE_AND_COUNT in the loop IR."""
    place = _int("add", _int("mul", ir.Axis(0), ir.Const(4, "int64")), ir.Axis(1))
    x, first = ir.Load(_X, place), ir.Const(0, "int64")
    negative = ir.Op("cast", "int64", (ir.Op("lt", "bool", (x, ir.Const(0.0, "float32"))),))
    scaled = _float("add", _float("mul", x, ir.Load(_SCALE, first)), ir.Load(_COUNT, first))
    store = ir.Store(_Y, (), _int("add", place, ir.Check(negative, 1, False, 7)), scaled)
    count = ir.Store(0, (), first, _float("add", ir.Load(0, first), ir.Const(1.0, "float32")))
    functions = (ir.Nest(("float32",) * 4, ("n", 4), (store,)), ir.Nest(("float32",), (), (count,)))
    buffers = (
        ir.Buffer("x", "input", "float32", ("n", 4), 0),
        ir.Buffer("scale", "weight", "float32", (1,), 1),
        ir.Buffer("count", "state", "float32", (1,), 0),
        ir.Buffer("y", "output", "float32", ("n", 4), 0),
    )
    block = ir.Block(buffers, (ir.Step(0, (0, 1, 2, 3)), ir.Step(1, (2,))))
    return ir_json.dump(ir.LoopProgram(functions, (ir.MethodBody("forward", block),)))


def _int(name: str, *args: ir.Expr) -> ir.Op:
    return ir.Op(name, "int64", args)


def _float(name: str, *args: ir.Expr) -> ir.Op:
    return ir.Op(name, "float32", args)


Write = Callable[..., Path]
Make = Callable[..., Method]


def _method(**changes: object) -> Method:
    """y[n, 4] = x[n, 4] * scale + count, then count += 1; error 7 where x is negative."""
    parts: dict[str, object] = {
        "name": "forward",
        "inputs": (Leaf("x", "float32", ("n", 4)),),
        "outputs": (Leaf("y", "float32", ("n", 4)),),
        "input_tree": trees.Tree("dict", (trees.leaf(0),), ("x",)),
        "output_tree": trees.Tree("dict", (trees.leaf(0), trees.const("done")), ("y", "status")),
        "state": ("count",),
        "symbols": (Symbol("n", 1, 100, 0, 0),),
        "arena": "16*n",
        "errors": ((7, "x is negative"),),
    }
    return Method(**{**parts, **changes})  # type: ignore[arg-type]


@pytest.fixture
def make_method() -> Make:
    """A function that describes the method of SCALE_AND_COUNT, with changes."""
    return _method


@pytest.fixture(scope="session")
def shared_object(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """SCALE_AND_COUNT, compiled for this machine."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests of the runtime compile a few lines of C: install gcc"
    folder = tmp_path_factory.mktemp("code")
    (folder / "code.c").write_text(SCALE_AND_COUNT)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", "code.so", "code.c"], cwd=folder, check=True)
    return (folder / "code.so").read_bytes()


@pytest.fixture
def write_program(tmp_path: Path, shared_object: bytes) -> Write:
    """A function that writes the program of `make_method` and returns its path."""

    def make(
        *methods: Method, name: str = "program.edge", target: str | None = None, extra: tuple[Blob, ...] = ()
    ) -> Path:
        base = targets.host().split("+")[0]
        code = Blob("code", shared_object, base if target is None else target)
        five, two = struct.pack("<f", 5), struct.pack("<f", 2)
        write(
            tmp_path / name,
            methods=methods or (_method(),),
            state=[State("count", "float32", (1,), "start")],
            weights=[WeightData("start", "float32", (1,), five), WeightData("scale", "float32", (1,), two)],
            segments=[Blob("ir", _loops()), code, *extra],
        )
        return tmp_path / name

    return make
