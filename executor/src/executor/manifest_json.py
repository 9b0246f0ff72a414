"""The strict JSON form of a manifest: every field present, none unknown, each of its own type."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from executor import trees
from executor.errors import ManifestError
from executor.manifest import Dim, Leaf, Manifest, Method, Segment, State, Symbol, Weight

T = TypeVar("T")


def dump(manifest: Manifest) -> bytes:
    """`manifest` as UTF-8 JSON."""
    form = {
        "producer": manifest.producer,
        "version": manifest.version,
        "methods": [_dump_method(method) for method in manifest.methods],
        "state": [_fields(entry) for entry in manifest.state],
        "weights": [_fields(weight) for weight in manifest.weights],
        "segments": [_fields(segment) for segment in manifest.segments],
    }
    return json.dumps(form, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def load(text: bytes) -> Manifest:
    """The manifest that `text` describes; ManifestError if it is malformed or contradicts itself."""
    entry = _Entry(parse(text), "manifest")
    manifest = Manifest(
        producer=entry.text("producer"),
        version=entry.text("version"),
        methods=entry.each("methods", _load_method),
        state=entry.each("state", _load_state),
        weights=entry.each("weights", _load_weight),
        segments=entry.each("segments", _load_segment),
    )
    entry.end()
    return manifest


def parse(text: bytes) -> Any:
    """JSON without its loopholes (doubled keys, NaN, bottomless nesting); ManifestError otherwise."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"malformed JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(f"doubled keys among {[key for key, _ in pairs][:8]}")
    return made


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _dump_method(method: Method) -> dict[str, Any]:
    return _fields(method) | {
        "inputs": [_fields(leaf) for leaf in method.inputs],
        "outputs": [_fields(leaf) for leaf in method.outputs],
        "symbols": [_fields(symbol) for symbol in method.symbols],
        "input_tree": trees.to_json(method.input_tree),
        "output_tree": trees.to_json(method.output_tree),
    }


class _Entry:
    """A JSON object whose fields are taken one by one, each checked for its type."""

    def __init__(self, form: object, where: str) -> None:
        if not isinstance(form, dict):
            raise ManifestError(f"{where}: {str(form)[:80]!r} where an object is due")
        self._form = dict(form)
        self._where = where

    def _take(self, key: str, *kinds: type) -> Any:
        if key not in self._form:
            raise ManifestError(f"{self._where}: the field {key!r} is missing")
        value = self._form.pop(key)
        if type(value) not in kinds:
            due = " or ".join(kind.__name__ for kind in kinds)
            raise ManifestError(f"{self._where}.{key}: {str(value)[:80]!r} where {due} is due")
        return value

    def text(self, key: str) -> str:
        return self._take(key, str)  # type: ignore[no-any-return]

    def optional_text(self, key: str) -> str | None:
        return self._take(key, str, type(None))  # type: ignore[no-any-return]

    def number(self, key: str) -> int:
        return self._take(key, int)  # type: ignore[no-any-return]

    def dim(self, key: str) -> Dim:
        return self._take(key, int, str)  # type: ignore[no-any-return]

    def tree(self, key: str) -> trees.Tree:
        return trees.from_json(self._take(key, dict))

    def each(self, key: str, load: Callable[[_Entry], T]) -> tuple[T, ...]:
        made = []
        for index, form in enumerate(self._take(key, list)):
            entry = _Entry(form, f"{self._where}.{key}[{index}]")
            made.append(load(entry))
            entry.end()
        return tuple(made)

    def plain(self, key: str, *kinds: type) -> tuple[Any, ...]:
        """A list of values of the given types."""
        values = self._take(key, list)
        if odd := [value for value in values if type(value) not in kinds]:
            raise ManifestError(f"{self._where}.{key}: {str(odd[0])[:80]!r} has no place in it")
        return tuple(values)

    def codes(self, key: str) -> tuple[tuple[int, str], ...]:
        pairs = self.plain(key, list)
        if any([type(part) for part in pair] != [int, str] for pair in pairs):
            raise ManifestError(f"{self._where}.{key}: pairs of a code and its text are due")
        return tuple((code, text) for code, text in pairs)

    def end(self) -> None:
        if self._form:
            raise ManifestError(f"{self._where}: unknown fields {sorted(self._form)[:8]}")


def _load_method(entry: _Entry) -> Method:
    return Method(
        name=entry.text("name"),
        inputs=entry.each("inputs", _load_leaf),
        outputs=entry.each("outputs", _load_leaf),
        input_tree=entry.tree("input_tree"),
        output_tree=entry.tree("output_tree"),
        state=entry.plain("state", str),
        symbols=entry.each("symbols", _load_symbol),
        arena=entry.dim("arena"),
        errors=entry.codes("errors"),
    )


def _load_leaf(entry: _Entry) -> Leaf:
    return Leaf(entry.text("name"), entry.text("dtype"), entry.plain("shape", int, str))


def _load_symbol(entry: _Entry) -> Symbol:
    bounds = entry.number("minimum"), entry.number("maximum")
    return Symbol(entry.text("name"), *bounds, entry.number("input"), entry.number("axis"))


def _load_state(entry: _Entry) -> State:
    tensor = entry.text("name"), entry.text("dtype"), entry.plain("shape", int)
    return State(*tensor, initial=entry.optional_text("initial"))


def _load_weight(entry: _Entry) -> Weight:
    tensor = entry.text("name"), entry.text("dtype"), entry.plain("shape", int)
    return Weight(*tensor, entry.number("segment"), entry.number("offset"), entry.number("length"))


def _load_segment(entry: _Entry) -> Segment:
    place = entry.number("offset"), entry.number("length")
    return Segment(entry.text("kind"), *place, entry.text("sha256"), entry.text("target"))
