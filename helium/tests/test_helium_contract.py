"""The contract module: what it says, that it imports nothing heavy, and the algebra of its small types."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helium import contract
from helium.contract import Artifact, Target, TensorSpec, digest_of, evaluate, is_name, product, symbols

LISTING = Path(__file__).parent / "contract-v1.txt"


def listing() -> str:
    """Every public name of the contract with its signature, one a line."""
    lines = []
    for name, value in sorted(vars(contract).items()):
        if name.startswith("_") or name == "TYPE_CHECKING" or inspect.ismodule(value):
            continue
        if getattr(value, "__module__", "helium").split(".")[0] != "helium":
            continue
        lines += _listed(name, value)
    return "\n".join(lines) + "\n"


def _listed(name: str, value: object) -> list[str]:
    if inspect.isfunction(value):
        return [f"def {name}{inspect.signature(value)}"]
    if not inspect.isclass(value):
        return [f"{name} = {value!r}"]
    lines = [f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"]
    if dataclasses.is_dataclass(value):
        lines += [f"    {field.name}: {field.type}{_default(field)}" for field in dataclasses.fields(value)]
    shown = {"__call__", "__init__"} if issubclass(value, Exception) else {"__call__"}
    for member, found in sorted(vars(value).items()):
        function = found.__func__ if isinstance(found, classmethod) else found
        if isinstance(found, property):
            lines.append(f"    {member}: {inspect.signature(found.fget).return_annotation}")
        elif inspect.isfunction(function) and (member in shown or not member.startswith("_")):
            lines.append(f"    def {member}{inspect.signature(function)}")
    return lines


def _default(field: "dataclasses.Field[object]") -> str:
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


@pytest.mark.contract
def test_signatures_are_the_committed_ones():
    how = f"a contract changes with its minor; then: python {Path(__file__).name} > {LISTING.name}"
    assert listing() == LISTING.read_text(), how


@pytest.mark.system
def test_contract_imports_neither_torch_nor_triton():
    code = "import sys, helium.contract; print([m for m in ('torch', 'triton', 'ray', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


words = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
features = st.lists(st.from_regex(r"[a-z][a-z0-9_.]{0,6}", fullmatch=True), unique=True, max_size=4).map(tuple)
systems = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
targets = st.one_of(
    st.builds(Target, words, systems, features),
    st.builds(Target, st.sampled_from(["wasm32", "thumbv7em", "thumbv6m"]), st.just(""), features),
)


@pytest.mark.unit
@given(targets)
def test_target_survives_its_text(target):
    again = Target.parse(str(target))
    assert str(again) == str(target)
    assert (again.arch, again.os, set(again.features)) == (target.arch, target.os, set(target.features))


@pytest.mark.unit
@given(targets, st.randoms())
def test_target_text_does_not_depend_on_the_order_of_features(target, random):
    shuffled = list(target.features)
    random.shuffle(shuffled)
    assert str(dataclasses.replace(target, features=tuple(shuffled))) == str(target)


@pytest.mark.unit
@given(targets, features)
def test_target_runs_where_its_features_are(target, more):
    machine = dataclasses.replace(target, features=tuple({*target.features, *more}))
    assert target.runs_on(machine)
    assert machine.runs_on(target) == (set(more) <= set(target.features))


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["", "host", "x86_64", "x86_64-", "-linux", "X86-linux", "x86_64-linux+", "x86_64-linux+avx2+avx2", "a-b-c"]
)
def test_malformed_targets_are_refused(text):
    with pytest.raises(ValueError, match="target"):
        Target.parse(text)


@pytest.mark.unit
def test_host_is_for_the_caller_to_resolve():
    with pytest.raises(ValueError, match="resolve it first"):
        Target.parse("host")


extents = st.one_of(
    st.integers(0, 50), st.lists(st.sampled_from(["m", "n", "2", "3"]), min_size=1, max_size=4).map("*".join)
)


@pytest.mark.unit
@given(st.lists(extents, max_size=4), st.integers(0, 9), st.integers(0, 9))
def test_product_of_extents_evaluates_to_the_product(parts, m, n):
    sizes, expected = {"m": m, "n": n}, 1
    for part in parts:
        expected *= evaluate(part, sizes)
    assert evaluate(product(*parts), sizes) == expected


@pytest.mark.unit
@given(st.permutations(["m", "n", "n", 2, 3]))
def test_product_has_one_spelling(parts):
    assert product(*parts) == "6*m*n*n"


@pytest.mark.unit
@pytest.mark.parametrize("extent", [-1, "", "n+1", "4 * n", "*n", "0*n", "n*"])
def test_malformed_extents_are_refused(extent):
    with pytest.raises(ValueError, match="extent"):
        TensorSpec((extent,), "float32", (1,))


@pytest.mark.unit
def test_spec_refuses_what_is_no_tensor():
    with pytest.raises(ValueError, match="complex64"):
        TensorSpec((2,), "complex64", (1,))
    with pytest.raises(ValueError, match="1 strides for a tensor of 2 dimensions"):
        TensorSpec((2, 3), "float32", (1,))


@pytest.mark.unit
def test_contiguous_spec_has_row_major_strides_over_symbols():
    assert TensorSpec.contiguous(("b", 4, "n"), "float16").strides == ("4*n", "n", 1)
    assert symbols([TensorSpec.contiguous(("b", "n"), "int8"), TensorSpec(("n", "k"), "int8", ("ld", 1))]) == (
        "b", "n", "k", "ld",
    )  # fmt: skip


def _artifact(**changes: object) -> Artifact:
    spec = TensorSpec.contiguous(("n",), "float32")
    fields = {"target": "wasm32", "form": "c", "code": b"int f;", "symbol": "f", "inputs": (spec,), "outputs": (spec,)}
    return Artifact(**{**fields, "symbols": ("n",), "workspace": 0, **changes})


@pytest.mark.unit
def test_digest_is_pinned():
    # A cache outlives a version of helium: the digest of the same artifact may not change within a major.
    assert _artifact().digest == "9998e689ee04b22fa4d849ca6205eb01490e8d05a4a38ba1de3b1b0b045f0442"


@pytest.mark.unit
@pytest.mark.parametrize(
    "change",
    [{"target": "thumbv7em"}, {"form": "object"}, {"code": b"int g;"}, {"symbol": "g"}, {"inputs": ()},
     {"outputs": ()}, {"symbols": ()}, {"workspace": 64}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_digest_is_of_every_field(change):
    assert _artifact(**change).digest != _artifact().digest


@pytest.mark.unit
def test_given_digest_has_to_be_the_right_one():
    good = _artifact()
    assert _artifact(digest=good.digest) == good
    assert digest_of(good) == good.digest
    with pytest.raises(ValueError, match="leave it out"):
        _artifact(digest="0")


@pytest.mark.unit
def test_names_have_two_halves():
    assert is_name("helium::rms_norm")
    assert not any(map(is_name, ["rms_norm", "a::b::c", "::x", "a::", "a:b", "a::1b", "a::b c"]))


if __name__ == "__main__":
    sys.stdout.write(listing())
