"""The runtime: arguments in, results out, state between calls, and errors that name what is wrong."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor import native, targets, trees
from executor.errors import (
    DamagedFileError,
    InputError,
    MethodError,
    ProgramRunError,
    RuntimeClosedError,
    StateError,
    TargetMismatchError,
    TreeError,
)
from executor.file import Blob
from executor.manifest import Leaf, Method, Symbol
from executor.native import runs_on
from executor.runtime import Runtime, load

pytestmark = pytest.mark.unit

Write = Callable[..., Path]
Make = Callable[..., Method]
ONES = np.ones((2, 4), np.float32)


@pytest.fixture(params=[True, False], ids=["compiled", "interpreted"])
def runtime(write_program: Write, request: pytest.FixtureRequest) -> Runtime:
    return load(write_program(), allow_code=request.param)


def test_a_call_gives_the_model_s_own_tree_and_keeps_state(runtime: Runtime) -> None:
    first, second = runtime(ONES), runtime.forward(ONES)
    assert first["status"] == "done"
    np.testing.assert_array_equal(first["y"], np.full((2, 4), 7, np.float32))
    np.testing.assert_array_equal(second["y"], first["y"] + 1)
    assert type(first["y"]) is np.ndarray
    assert first["y"].dtype == np.float32


def test_sizes_are_read_from_the_input_and_the_arena_grows(runtime: Runtime) -> None:
    for n in (3, 100, 1, 100, 7):
        x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
        runtime.state.reset()
        np.testing.assert_array_equal(runtime(x=x)["y"], x * 2 + 5)


class Foreign:
    """A tensor of a library that only speaks DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "give",
    [
        lambda x: x,
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(x.T.copy()).T,
        Foreign,
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.broadcast_to(x[:1], x.shape) * 0 + x,
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    ],
    ids=[
        "numpy",
        "torch",
        "torch strided",
        "dlpack",
        "fortran",
        "strided",
        "reversed",
        "product",
        "unaligned",
        "read-only",
    ],
)
def test_any_array_of_the_right_dtype_and_shape_is_taken(runtime: Runtime, give: Callable[[Any], Any]) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(runtime(give(x))["y"], x * 2 + 5)


WRONG: list[tuple[Any, str, str]] = [
    (ONES.astype(np.float64), r"float64\[2, 4\]", r"float32\[n, 4\]"),
    (ONES.astype(">f4"), r">f4\[2, 4\]|float32\[2, 4\]", r"float32\[n, 4\]"),
    (ONES[0], r"float32\[4\]", r"float32\[n, 4\]"),
    (np.ones((2, 5), np.float32), r"float32\[2, 5\]", r"float32\[n, 4\] where n=2"),
    (np.ones((101, 4), np.float32), "size 101 in dimension 0", "n with n from 1 to 100"),
    (np.ones((0, 4), np.float32), "size 0 in dimension 0", "n with n from 1 to 100"),
    ([[1.0]], "a list", r"float32\[n, 4\]"),
    (torch.ones(2, 4, requires_grad=True), "a Tensor that gives no array .*detach", r"float32\[n, 4\]"),
    (torch.ones(2, 4, dtype=torch.bfloat16), "a Tensor that gives no array", r"float32\[n, 4\]"),
    (3, "a int", r"float32\[n, 4\]"),
    ("x", "a str", r"float32\[n, 4\]"),
]


@pytest.mark.parametrize(("value", "came", "due"), WRONG, ids=[came for _, came, _ in WRONG])
def test_a_wrong_input_is_named_with_what_came_and_what_was_due(
    runtime: Runtime, value: Any, came: str, due: str
) -> None:
    with pytest.raises(InputError, match=rf"^input 'x': came ({came}).*; due {due}"):
        runtime(value)


def test_missing_unknown_doubled_and_surplus_arguments_are_named(runtime: Runtime) -> None:
    with pytest.raises(InputError, match=r"'x': came nothing; due float32\[n, 4\]"):
        runtime()
    with pytest.raises(InputError, match=r"'z': .*one of \['x'\]"):
        runtime(ONES, z=1)
    with pytest.raises(InputError, match="'x': came two values"):
        runtime(ONES, x=ONES)
    with pytest.raises(InputError, match="came 2 positional arguments"):
        runtime(ONES, ONES)


def test_nested_inputs_are_matched_and_places_named(write_program: Write, make_method: Make) -> None:
    inner = trees.Tree("dict", (trees.leaf(0),), ("tokens",))
    tree = trees.Tree("dict", (trees.Tree("tuple", (inner,)), trees.const(None)), ("batch", "mask"))
    runtime = load(write_program(make_method(input_tree=tree)))
    np.testing.assert_array_equal(runtime(({"tokens": ONES},))["y"], ONES + 6)
    np.testing.assert_array_equal(runtime(batch=({"tokens": ONES},), mask=None)["y"], ONES + 7)
    with pytest.raises(TreeError, match=r"batch\[0\]: came a dict of \['ids'\]; due a dict of \['tokens'\]"):
        runtime(({"ids": ONES},))
    with pytest.raises(TreeError, match=r"mask: .*constant None"):
        runtime(({"tokens": ONES},), 3)


def test_a_symbol_is_solved_from_a_formula(write_program: Write, make_method: Make) -> None:
    inputs = (Leaf("x", "float32", ("2*n + 1", 4)),)
    changes = {"inputs": inputs, "outputs": (Leaf("y", "float32", ("n", 4)),), "symbols": (Symbol("n", 0, 9, 0, 0),)}
    runtime = load(write_program(make_method(**changes)))
    assert runtime(np.ones((7, 4), np.float32))["y"].shape == (3, 4)
    assert runtime(np.ones((1, 4), np.float32))["y"].shape == (0, 4)
    with pytest.raises(InputError, match=r"size 6 in dimension 0; due 2\*n \+ 1 with n from 0 to 9"):
        runtime(np.ones((6, 4), np.float32))


def test_scalars_go_in_and_zero_d_arrays_come_out(write_program: Write, make_method: Make) -> None:
    changes = {
        "inputs": (Leaf("x", "float32", ("n", 4)), Leaf("at", "int8", ())),
        "input_tree": trees.Tree("dict", (trees.leaf(0), trees.leaf(1)), ("x", "at")),
        "outputs": (Leaf("y", "float32", ("n", 4)), Leaf("z", "int64", ())),
        "output_tree": trees.Tree("list", (trees.leaf(1), trees.leaf(0))),
    }
    runtime = load(write_program(make_method(**changes)))
    result = runtime(ONES, 3)
    assert isinstance(result, list)
    assert type(result[0]) is np.ndarray
    assert result[0].shape == ()
    with pytest.raises(InputError, match="'at': came the int 300, which it cannot hold"):
        runtime(ONES, 300)
    with pytest.raises(InputError, match=r"'at': came the float 0\.5; due int8\[\]"):
        runtime(ONES, 0.5)


def test_an_error_code_is_told_in_the_program_s_words(runtime: Runtime) -> None:
    with pytest.raises(ProgramRunError, match="method 'forward' stopped with error 7: x is negative") as caught:
        runtime(-ONES)
    assert caught.value.code == 7


def test_state_is_snapshot_restored_and_reset(runtime: Runtime) -> None:
    assert runtime.state.names() == ["count"]
    runtime(ONES)
    kept = runtime.state.snapshot()
    runtime(ONES)
    assert runtime.state.snapshot()["count"] == [7]
    runtime.state.restore(kept)
    assert runtime.state.snapshot()["count"] == [6]
    runtime.state.reset()
    assert runtime.state.snapshot()["count"] == [5]
    assert kept["count"] == [6]


def test_a_snapshot_that_does_not_fit_changes_nothing(runtime: Runtime) -> None:
    with pytest.raises(StateError, match=r"a snapshot of \['other'\]; this program's state is \['count'\]"):
        runtime.state.restore({"other": np.zeros(1)})
    with pytest.raises(StateError, match=r"state 'count': a snapshot of float64\[1\]; due float32\[1\]"):
        runtime.state.restore({"count": np.zeros(1)})
    assert runtime.state.snapshot()["count"] == [5]


def test_threads_take_turns(runtime: Runtime) -> None:
    calls = 400
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: float(runtime(ONES)["y"][0, 0]), range(calls)))
    assert sorted(results) == [7 + index for index in range(calls)]


def test_methods_are_listed_completed_and_described(write_program: Write, make_method: Make) -> None:
    runtime = load(write_program())
    assert "forward" in dir(runtime)
    assert list(runtime.methods) == ["forward"]
    assert repr(runtime.forward) == "forward(x: float32[n, 4]) -> (y: float32[n, 4])"
    assert "forward (compiled)" in repr(runtime)
    with pytest.raises(MethodError, match=r"no method 'decode' in this program; it has \['forward'\]"):
        runtime.decode(ONES)


def test_code_without_a_method_s_function_is_refused(write_program: Write, make_method: Make) -> None:
    runtime = load(write_program(make_method(name="one"), make_method(name="two")))
    with pytest.raises(MethodError, match="several methods and none is 'forward'"):
        runtime(ONES)
    with pytest.raises(DamagedFileError, match="lacks edge_one"):
        runtime.one(ONES)


def test_a_closed_runtime_says_so_and_closing_again_is_fine(write_program: Write) -> None:
    with load(write_program()) as runtime:
        result = runtime(ONES)["y"]
    runtime.close()
    np.testing.assert_array_equal(result, ONES + 6)
    for use in (lambda: runtime(ONES), lambda: runtime.state, runtime.cases):
        with pytest.raises(RuntimeClosedError, match="closed; load the file again"):
            use()


def test_threads_must_be_a_number_of_threads(write_program: Write) -> None:
    with pytest.raises(ValueError, match="threads=0"):
        load(write_program(), threads=0)


def test_without_code_any_machine_s_program_is_interpreted(write_program: Write) -> None:
    runtime = load(write_program(target="vax-vms"), allow_code=False)
    assert "(interpreted)" in repr(runtime)
    np.testing.assert_array_equal(runtime(ONES)["y"], ONES + 6)


def test_code_for_another_machine_is_refused_before_it_is_loaded(write_program: Write) -> None:
    with pytest.raises(TargetMismatchError, match=r"code for .'vax-vms'.*compile it with target=.*allow_code=False"):
        load(write_program(target="vax-vms"))


def test_the_code_that_uses_the_most_of_this_machine_is_chosen(
    write_program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "host", lambda: "vax-vms+fast+loud")
    extra = tuple(Blob("code", b"?", target) for target in ("vax-vms", "vax-vms+fast+cold", "pdp-vms+fast+loud"))
    path = write_program(target="vax-vms+fast", extra=extra)
    np.testing.assert_array_equal(load(path)(ONES)["y"], ONES + 6)


@pytest.mark.parametrize(
    ("target", "host", "runs"),
    [
        ("x86_64-linux", "x86_64-linux+avx2", True),
        ("x86_64-linux+avx2", "x86_64-linux+avx2+avx512", True),
        ("x86_64-linux+avx512", "x86_64-linux+avx2", False),
        ("aarch64-linux", "x86_64-linux", False),
    ],
)
def test_a_target_may_ask_for_less_than_there_is_never_for_more(target: str, host: str, runs: bool) -> None:
    assert runs_on(target, host) is runs


def test_code_that_cannot_be_loaded_is_a_damaged_file(write_program: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "host", lambda: "vax-vms+fast")
    with pytest.raises(DamagedFileError, match="its code cannot be loaded"):
        load(write_program(target="vax-vms", extra=(Blob("code", b"no library", "vax-vms+fast"),)))


def test_without_memory_files_a_private_file_serves(write_program: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    np.testing.assert_array_equal(load(write_program())(ONES)["y"], ONES + 6)


def test_many_loads_leak_neither_descriptors_nor_mappings(write_program: Write) -> None:
    def open_now() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:edge")

    path = write_program()
    load(path).close()
    before = open_now()
    for _ in range(20):
        with load(path) as runtime:
            runtime(ONES)
    for _ in range(20):
        load(path)(ONES)
    assert open_now() == before


def test_two_programs_at_once_keep_to_their_own_code(write_program: Write, tmp_path: Path) -> None:
    """Descriptor numbers come back, and the loader knows libraries by name: each load needs a name of its own."""
    (tmp_path / "other.c").write_text(
        "int edge_forward(const void **i, float **o, void *s, void *w, void *a, long *n, void *p)"
        "{ for (long k = 0; k < n[0] * 4; k++) o[0][k] = -1; return 0; }"
    )
    command = ["gcc", "-shared", "-fPIC", "-o", "other.so", "other.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    first = load(write_program())
    name = f"{targets.host().split('+')[0]}"
    plain = write_program(name="plain.edge", target="vax-vms", extra=(Blob("code", _read(tmp_path), name),))
    second = load(plain)
    np.testing.assert_array_equal(first(ONES)["y"], ONES + 6)
    np.testing.assert_array_equal(second(ONES)["y"], ONES * -1)


def _read(folder: Path) -> bytes:
    return (folder / "other.so").read_bytes()


PURE = """
import sys
import executor
executor_only = [name for name in ("numpy", "torch") if name in sys.modules]
assert not executor_only, executor_only
runtime = executor.load(sys.argv[1])
loaded = [name for name in ("numpy", "torch") if name in sys.modules]
assert not loaded, loaded
sys.modules["torch"] = None
import numpy
print(runtime(numpy.ones((2, 4), numpy.float32))["y"].tolist()[0][0])
"""


@pytest.mark.system
def test_loading_brings_no_numpy_and_running_no_torch(write_program: Write) -> None:
    command = [sys.executable, "-c", PURE, str(write_program())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "7.0"), done.stderr


def test_names_of_loads_differ_and_mean_the_same_file() -> None:
    names = {native._unique("/proc/self/fd/0") for _ in range(300)}
    assert len(names) == 300
    assert {os.path.normpath(name) for name in names} == {"/proc/self/fd/0"}
