"""Small program files made by hand, so that the file and the runtime are tested without the compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from executor.file import Blob, WeightData, write
from executor.manifest import Leaf, Method, State, Symbol

from executor import targets, trees

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
            segments=[Blob("ir", b"{}"), code, *extra],
        )
        return tmp_path / name

    return make
