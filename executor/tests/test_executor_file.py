"""The program file: what is written is read back, and nothing damaged is ever used."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor import manifest_json, trees
from executor.errors import DamagedFileError, FileVersionError, ManifestError, ProgramFileError
from executor.file import HEADER, MAGIC, MAJOR, MINOR, Blob, ProgramFile, WeightData, write
from executor.manifest import Leaf, Manifest, Method, Segment, State, Symbol, Weight

pytestmark = pytest.mark.unit

Rewrite = Callable[[dict[str, Any]], None]


def small(**changes: Any) -> Method:
    parts: dict[str, Any] = {
        "name": "forward",
        "inputs": (Leaf("x", "float32", ("2*n", 3)),),
        "outputs": (Leaf("y", "int64", ()),),
        "input_tree": trees.Tree("dict", (trees.leaf(0),), ("x",)),
        "output_tree": trees.leaf(0),
        "symbols": (Symbol("n", 1, 8, 0, 0),),
        "arena": "max(n, 4) * 64",
        "errors": ((3, "it rained"),),
    }
    return Method(**parts | changes)


def write_small(path: Path) -> Manifest:
    return write(
        path,
        methods=[small()],
        state=[State("cache", "float32", (2, 2), "w"), State("zeros", "bool", (0, 4))],
        weights=[WeightData("w", "float32", (2, 2), bytes(range(16))), WeightData("v", "uint8", (3,), b"abc")],
        segments=[Blob("ir", b"{}"), Blob("code", b"\x7fELF", "riscv64-linux"), Blob("debug", b"")],
        version="0.1.0",
    )


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    write_small(tmp_path / "small.edge")
    return tmp_path / "small.edge"


def rewritten(path: Path, change: Rewrite) -> Path:
    """The same file with its manifest changed, and with the header right for it."""
    data = path.read_bytes()
    *_, offset, length, _ = HEADER.unpack(data[: HEADER.size])
    form = json.loads(data[offset : offset + length])
    change(form)
    text = json.dumps(form).encode()
    header = HEADER.pack(MAGIC, MAJOR, MINOR, offset, len(text), hashlib.sha256(text).digest())
    path.write_bytes(header + data[HEADER.size : offset] + text)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    manifest = write_small(tmp_path / "small.edge")
    file = ProgramFile(tmp_path / "small.edge")
    assert file.manifest == manifest
    assert [bytes(data) for _, data in file.find("code")] == [b"\x7fELF"]
    weights = file.segment(manifest.weights[0].segment)
    assert [bytes(weights[w.offset : w.offset + w.length]) for w in manifest.weights] == [bytes(range(16)), b"abc"]
    file.close()


def test_segments_lie_on_their_boundaries(small_file: Path) -> None:
    file = ProgramFile(small_file)
    for segment in file.manifest.segments:
        assert segment.offset % (65536 if segment.kind == "weights" else 64) == 0
    assert [weight.offset for weight in file.manifest.weights] == [0, 64]
    file.close()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(small_file: Path) -> None:
    before = small_file.read_bytes()
    with pytest.raises(ManifestError, match="two entries named"):
        write(small_file, methods=[small(), small()], segments=[Blob("ir", b"{}")])
    assert small_file.read_bytes() == before
    assert [path.name for path in small_file.parent.iterdir()] == [small_file.name]


def test_ir_is_always_there_and_kinds_are_known(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="0 segments of kind 'ir'"):
        write(tmp_path / "a", methods=[small()], segments=[])
    for kind in ("weights", "poem"):
        with pytest.raises(ManifestError, match=kind):
            write(tmp_path / "a", methods=[small()], segments=[Blob("ir", b"{}"), Blob(kind, b"")])


def test_closing_while_a_segment_is_held_keeps_it_readable(small_file: Path) -> None:
    file = ProgramFile(small_file)
    held = file.segment(0)
    file.close()
    file.close()
    assert bytes(held) == b"{}"


def test_an_unknown_kind_is_skipped(small_file: Path) -> None:
    def change(form: dict[str, Any]) -> None:
        form["segments"][2] |= {"kind": "hologram", "sha256": "?"}

    file = ProgramFile(rewritten(small_file, change))
    assert [segment.kind for segment in file.manifest.segments] == ["ir", "code", "hologram", "weights"]
    file.close()


def test_a_later_minor_is_read_and_a_later_major_refused(small_file: Path) -> None:
    data = bytearray(small_file.read_bytes())
    data[6] = 9
    small_file.write_bytes(data)
    ProgramFile(small_file).close()
    data[4] = 2
    small_file.write_bytes(data)
    with pytest.raises(FileVersionError, match="format 2, where this version reads 1; install"):
        ProgramFile(small_file)


@pytest.mark.parametrize("data", [b"", b"EDGE", b"PK" * 100], ids=["empty", "short", "other"])
def test_another_file_is_refused_with_cause_and_cure(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.edge"
    path.write_bytes(data)
    with pytest.raises(ProgramFileError) as caught:
        ProgramFile(path)
    assert caught.value.path == str(path)
    assert caught.value.what
    assert caught.value.cure


def _segment(index: int, **changes: Any) -> Rewrite:
    return lambda form: form["segments"][index].update(changes)


def _weight(**changes: Any) -> Rewrite:
    return lambda form: form["weights"][0].update(changes)


def _method(**changes: Any) -> Rewrite:
    return lambda form: form["methods"][0].update(changes)


HOSTILE: dict[str, tuple[Rewrite, str]] = {
    "a segment past the end": (_segment(0, offset=1 << 40), "truncated"),
    "an endless segment": (_segment(0, length=(1 << 62)), "truncated"),
    "a length beyond 64 bits": (_segment(0, length=1 << 80), "length"),
    "a negative offset": (_segment(0, offset=-64), "offset -64"),
    "a negative length": (_segment(0, length=-1), "length -1"),
    "overlapping segments": (_segment(1, offset=64, length=4), "lies on"),
    "a segment on the header": (_segment(0, offset=0), "lies on"),
    "a crooked segment": (_segment(2, offset=4 * 64 + 1, length=0), "not on 64 bytes"),
    "a wrong hash": (_segment(0, sha256="0" * 64), "does not match its sha256"),
    "no ir": (_segment(0, kind="debug"), "0 segments of kind 'ir'"),
    "a number as text": (_segment(0, length="2"), "int is due"),
    "a number as a fraction": (_segment(0, length=2.0), "int is due"),
    "a number as a truth": (_segment(0, length=True), "int is due"),
    "a weight past its segment": (_weight(offset=1 << 20), "past the end"),
    "a weight of another length": (_weight(length=12), "its shape needs 16"),
    "a weight in no segment": (_weight(segment=9), "no segment 9"),
    "a weight in code": (_weight(segment=1), "holds 'code'"),
    "a weight of an odd dtype": (_weight(dtype="float33"), "float33"),
    "a weight of a negative shape": (_weight(shape=[-2, -2]), "negative dimension"),
    "a weight of a huge shape": (_weight(shape=[1 << 61, 1 << 61]), "too large"),
    "a weight of many dimensions": (_weight(shape=[1] * 100), "at most 32"),
    "an unknown field": (lambda form: form.update(extra=1), r"unknown fields \['extra'\]"),
    "a missing field": (lambda form: form.pop("weights"), "'weights' is missing"),
    "no methods": (lambda form: form.update(methods=[]), "no methods"),
    "a method with an odd name": (_method(name="a; b"), "no identifier"),
    "an expression that is code": (_method(arena="exit()"), "no place in an expression"),
    "an unknown symbol": (_method(arena="4*k"), "unknown symbols"),
    "a tree of other leaves": (_method(output_tree={"tuple": []}), "0 leaves for 1"),
    "unknown state": (_method(state=["mind"]), "unknown state"),
    "a symbol read from nowhere": (
        lambda form: form["methods"][0]["symbols"][0].update(axis=7),
        "no axis 7",
    ),
    "a symbol read from a constant": (
        lambda form: form["methods"][0]["symbols"][0].update(axis=1),
        "not of this symbol",
    ),
    "a symbol read from a square": (_method(inputs=[{"name": "x", "dtype": "int8", "shape": ["n*n", 3]}]), "linear"),
    "state from an unknown weight": (lambda form: form["state"][0].update(initial="u"), "not among the weights"),
    "state from another shape": (lambda form: form["state"][0].update(initial="v"), "another dtype or shape"),
    "odd error codes": (_method(errors=[["3", "text"]]), "pairs of a code"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(small_file: Path, case: str) -> None:
    change, message = HOSTILE[case]
    with pytest.raises(DamagedFileError, match=message):
        ProgramFile(rewritten(small_file, change))


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{", b"\xff", b'{"a":1,"a":2}', b'{"a":NaN}', b"[" * 100_000, b"9" * 10_000],
    ids=["empty", "null", "list", "open", "bytes", "doubled", "nan", "deep", "digits"],
)
def test_malformed_json_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        manifest_json.load(text)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "flipped.edge"
    manifest = write_small(path)
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, HEADER.size))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        file = ProgramFile(path)
    except ProgramFileError:
        return
    # Only padding and the minor version may differ without notice.
    assert file.manifest == manifest
    assert 6 <= at < 8 or not any(s.offset <= at < s.offset + s.length for s in manifest.segments)
    file.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "short.edge"
    write_small(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ProgramFileError):
        ProgramFile(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_json_in_the_place_of_any_other_is_handled(tmp_path: Path, data: st.DataObject) -> None:
    """A mutation of a right manifest is refused, or is itself a right one."""
    form = json.loads(manifest_json.dump(write_small(tmp_path / "fuzz.edge")))
    place: Any = form
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(json_values)
    with contextlib.suppress(ManifestError):
        loaded = manifest_json.load(json.dumps(form, allow_nan=True).encode())
        assert manifest_json.load(manifest_json.dump(loaded)) == loaded


def test_contradictions_are_found_when_a_manifest_is_made() -> None:
    segment = Segment("weights", 0, 64, "")
    weight = Weight("w", "int8", (64,), 0, 0, 64)
    good = Manifest("p", "1", (small(),), (), (weight,), (segment,))
    with pytest.raises(ManifestError, match="not on 64 bytes"):
        replace(good, weights=(replace(weight, offset=8),))
    with pytest.raises(ManifestError, match="from 3 to 2"):
        replace(good, methods=(small(symbols=(Symbol("n", 3, 2, 0, 0),)),))
    with pytest.raises(ManifestError, match="two entries named"):
        replace(good, weights=(weight, weight))
