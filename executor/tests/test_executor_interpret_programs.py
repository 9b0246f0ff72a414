"""The interpreter on whole programs: steps, temporaries, kernels, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from executor import ir, ir_json, trees
from executor.errors import ManifestError
from executor.interpret import Interpreter
from executor.manifest import Leaf, Manifest, Method, Symbol

pytestmark = pytest.mark.unit


def op(name: str, *args: ir.Expr, dtype: str = "int64") -> ir.Op:
    return ir.Op(name, dtype, args)


def program(*, external: bool = False, place: int = 0) -> tuple[ir.LoopProgram, Manifest]:
    """y[n] = x[n] + 1, through a temporary; with `external`, by the reference of a kernel."""
    add = op("add", ir.Load(0, ir.Axis(0)), ir.Const(1.0, "float32"), dtype="float32")
    nest = ir.Nest(("float32", "float32"), ("n",), (ir.Store(1, (), ir.Axis(0), add),))
    copy = ir.Nest(("float32", "float32"), ("n",), (ir.Store(1, (), ir.Axis(0), ir.Load(0, ir.Axis(0))),))
    parameters = tuple(ir.Buffer(name, "parameter", "float32", ("n",), index) for index, name in enumerate("xy"))
    kernel = ir.External(nest.parameters, "kernel", "0", ("n",), 0, ir.Block(parameters, (ir.Step(0, (0, 1)),)))
    buffers = (
        ir.Buffer("x", "input", "float32", ("n",), place),
        ir.Buffer("t", "temp", "float32", ("n",)),
        ir.Buffer("y", "output", "float32", ("n",), 0),
    )
    block = ir.Block(buffers, (ir.Step(2 if external else 0, (0, 1)), ir.Step(1, (1, 2))))
    method = Method(
        "forward", (Leaf("x", "float32", ("n",)),), (Leaf("y", "float32", ("n",)),),
        trees.Tree("dict", (trees.leaf(0),), ("x",)), trees.leaf(0), symbols=(Symbol("n", 0, 9, 0, 0),),
    )  # fmt: skip
    manifest = Manifest("test", "1", (method,), (), (), ())
    return ir.LoopProgram((nest, copy, kernel), (ir.MethodBody("forward", block),)), manifest


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_steps_run_in_order_through_temporaries_and_kernels(external: bool, size: int) -> None:
    loops, manifest = program(external=external)
    interpreter = Interpreter(ir_json.dump(loops), manifest, {}, {})
    x = np.arange(size, dtype=np.float32)
    (y,) = interpreter.run(manifest.methods[0], [x], (size,))
    np.testing.assert_array_equal(y, x + 1)


def test_a_malformed_program_is_an_error_that_says_so() -> None:
    loops, manifest = program(place=7)
    interpreter = Interpreter(ir_json.dump(loops), manifest, {}, {})
    with pytest.raises(ManifestError, match="the ir of method 'forward' is malformed"):
        interpreter.run(manifest.methods[0], [np.zeros(2, np.float32)], (2,))
    with pytest.raises(ManifestError, match=r"the ir lacks the methods \['forward'\]"):
        Interpreter(ir_json.dump(ir.LoopProgram((), ())), manifest, {}, {})


def test_inputs_cannot_be_stored_to() -> None:
    loops, manifest = program()
    block = loops.methods[0].block
    swapped = ir.LoopProgram(
        loops.functions, (ir.MethodBody("forward", ir.Block(block.buffers, (ir.Step(0, (2, 0)),))),)
    )
    interpreter = Interpreter(ir_json.dump(swapped), manifest, {}, {})
    with pytest.raises(ManifestError, match="a store into what it only reads"):
        interpreter.run(manifest.methods[0], [np.zeros(2, np.float32)], (2,))
