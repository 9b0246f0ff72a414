"""The loop IR and its JSON form."""

from __future__ import annotations

import math

import pytest

from executor import ir, ir_json
from executor.errors import ManifestError

pytestmark = pytest.mark.unit


def _program() -> ir.LoopProgram:
    x, i = ir.Load(0, ir.Axis(0)), ir.Axis(0)
    body = (
        ir.Reduce("max", (4,), x, "float32"),
        ir.Dot("n", ir.Strided(0, 0, (0, 1)), ir.Strided(1, "4*n", ("n", 1))),
        ir.Let(ir.Op("max", "float32", (ir.Local(0), ir.Const(-math.inf, "float32"))), "float32"),
        ir.Store(1, (), ir.Check(i, "n", True, 3), ir.Op("add", "float32", (ir.Local(1), ir.Local(2)))),
    )
    nest = ir.Nest(("float32", "float32"), ("n",), body)
    temp = ir.Buffer("t", "temp", "uint8", (64,), offset=0)
    reference = ir.Block((ir.Buffer("p", "parameter", "float32", (4,), 0),), (ir.Step(0, (0, 0)),))
    external = ir.External(("float32", "uint8"), "kernel", "00", (4, "n"), 64, reference)
    block = ir.Block(
        (ir.Buffer("x", "input", "float32", ("n",), 0), temp),
        (ir.Step(0, (0, 0), "aten.mm", "m.py:1"), ir.Step(1, (0, 1))),
    )
    return ir.LoopProgram((nest, external), (ir.MethodBody("forward", block, "64*n"),))


def test_the_json_form_gives_the_program_back() -> None:
    program = _program()
    assert ir_json.load(ir_json.dump(program)) == program


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[", "malformed JSON"),
        (b"[]", "empty list"),
        (b"3", "no program"),
        (b'["axis", 0]', "no program"),
        (b'["axis", 0, 1]', "a axis has the fields"),
        (b'["loop", 0]', "no record is called 'loop'"),
        (b'[["axis", 0]]', "no record is called"),
    ],
)
def test_malformed_json_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(ManifestError, match=problem):
        ir_json.load(text)


def test_walk_visits_every_expression() -> None:
    index = ir.Check(ir.Axis(1), 4, False, 1)
    expr = ir.Op("neg", "float32", (ir.Load(0, index),))
    assert list(ir.walk(expr)) == [expr, expr.args[0], index, ir.Axis(1)]


def test_dtypes_of_expressions() -> None:
    nest = _program().functions[0]
    assert isinstance(nest, ir.Nest)
    assert ir.dtype_of(ir.Load(0, ir.Axis(0)), nest) == "float32"
    assert ir.dtype_of(ir.Axis(0), nest) == "int64"
    assert [ir.dtype_of(ir.Local(index), nest) for index in range(3)] == ["float32"] * 3
    assert ir.made_by(ir.Reduce("argmax", (4,), ir.Axis(0), "float32")) == "int64"
