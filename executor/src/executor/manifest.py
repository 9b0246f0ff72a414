"""The manifest of a program file: frozen dataclasses, their validation, and their strict JSON form.

Compiled code meets these through one C signature, the same for each method:

    int edge_<method>(const void *const *inputs, void *const *outputs, void *const *state,
                      const void *const *weights, void *arena, const int64_t *symbols, void *pool);

`inputs` and `outputs` are the flat leaves in the method's order, aligned to their dtype; `state` and `weights` hold
every entry of the manifest in its order, on 64 bytes, whichever the method uses; `arena` is on 64 bytes; `symbols` is
in the order of `Method.symbols`; the result is 0 or a code of `Method.errors`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from executor.errors import ManifestError
from executor.expressions import evaluate, symbols_of
from executor.trees import Tree, check_tree, leaf_count

Dim = int | str
Shape = tuple[Dim, ...]

ALIGNMENT = 64
WEIGHTS_ALIGNMENT = 64 * 1024
LARGEST = 2**62
LARGEST_RANK = 32

ITEM_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
KINDS = ("code", "debug", "ir", "source", "vectors", "weights")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor going in or out: dims are whole numbers or expressions over the method's symbols."""

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size known at the call: `inputs[input].shape[axis]` is a linear expression of it alone; bounds inclusive."""

    name: str
    minimum: int
    maximum: int
    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of a program.

    `input_tree` is a dict from parameter name to that parameter's tree, in positional order; `output_tree` is the
    tree of the result. `state` names the entries that it reads or writes; `arena` is in bytes; `errors` maps the
    codes that its function returns to what they mean.
    """

    name: str
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    input_tree: Tree
    output_tree: Tree
    state: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    arena: Dim = 0
    errors: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A buffer that lives from call to call. `initial` names the weight that it starts as; None is zeros."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return ITEM_SIZES[self.dtype] * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant: `length` bytes, dense and row-major, at `offset` of segment number `segment`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    segment: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes of the file. `target` is given for code; `sha256` is in hexadecimal."""

    kind: str
    offset: int
    length: int
    sha256: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a program file but its bytes; construction checks that the parts agree (ManifestError)."""

    producer: str
    version: str
    methods: tuple[Method, ...]
    state: tuple[State, ...]
    weights: tuple[Weight, ...]
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for what, entries in (("method", self.methods), ("state", self.state), ("weight", self.weights)):
            _check_names(what, [entry.name for entry in entries])
        _require(bool(self.methods), "no methods: a program has at least one")
        for segment in self.segments:
            _check_range(f"segment of kind {segment.kind!r}", segment.offset, segment.length)
        for weight in self.weights:
            _check_weight(weight, self.segments)
        weights = {weight.name: weight for weight in self.weights}
        for entry in self.state:
            _check_state(entry, weights)
        for method in self.methods:
            _check_method(method, {entry.name for entry in self.state})


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    return ITEM_SIZES[dtype] * prod(shape)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ManifestError(problem)


def _check_names(what: str, names: list[str]) -> None:
    doubled = [name for name, count in Counter(names).items() if count > 1]
    _require(not doubled, f"two entries named {doubled} of kind {what}: names are unique")
    _require(all(names), f"a {what} without a name")


def _check_range(what: str, offset: int, length: int) -> None:
    _require(0 <= offset <= LARGEST and 0 <= length <= LARGEST, f"{what}: offset {offset}, length {length}")


def _check_tensor(what: str, dtype: str, shape: Shape) -> None:
    _require(dtype in ITEM_SIZES, f"{what}: dtype {dtype!r} is none of {sorted(ITEM_SIZES)}")
    sizes = [dim for dim in shape if isinstance(dim, int)]
    _require(len(shape) <= LARGEST_RANK, f"{what}: {len(shape)} dimensions; at most {LARGEST_RANK} are allowed")
    _require(min(sizes, default=0) >= 0, f"{what}: negative dimension in shape {list(shape)}")
    _require(prod(sizes) * ITEM_SIZES[dtype] <= LARGEST, f"{what}: shape {list(shape)} is too large")


def _check_weight(weight: Weight, segments: tuple[Segment, ...]) -> None:
    what = f"weight {weight.name!r}"
    _check_tensor(what, weight.dtype, weight.shape)
    _check_range(what, weight.offset, weight.length)
    _require(weight.offset % ALIGNMENT == 0, f"{what}: offset {weight.offset} is not on {ALIGNMENT} bytes")
    due = nbytes(weight.dtype, weight.shape)
    _require(weight.length == due, f"{what}: {weight.length} bytes where its shape needs {due}")
    _require(0 <= weight.segment < len(segments), f"{what}: no segment {weight.segment}")
    segment = segments[weight.segment]
    _require(segment.kind == "weights", f"{what}: segment {weight.segment} holds {segment.kind!r}, not weights")
    _require(weight.offset + weight.length <= segment.length, f"{what}: reaches past the end of its segment")


def _check_state(entry: State, weights: dict[str, Weight]) -> None:
    what = f"state {entry.name!r}"
    _check_tensor(what, entry.dtype, entry.shape)
    if entry.initial is None:
        return
    initial = weights.get(entry.initial)
    _require(initial is not None, f"{what}: its initial value {entry.initial!r} is not among the weights")
    same = initial is not None and (initial.dtype, initial.shape) == (entry.dtype, entry.shape)
    _require(same, f"{what}: its initial value {entry.initial!r} has another dtype or shape")


def _check_method(method: Method, state: set[str]) -> None:
    what = f"method {method.name!r}"
    _require(method.name.isidentifier() and method.name.isascii(), f"{what}: its name is no identifier")
    symbols = {symbol.name for symbol in method.symbols}
    for leaf in (*method.inputs, *method.outputs):
        _check_tensor(f"{what}, tensor {leaf.name!r}", leaf.dtype, leaf.shape)
        for dim in leaf.shape:
            _check_dim(what, dim, symbols)
    _check_dim(what, method.arena, symbols)
    for what_names, names in (("symbol", [s.name for s in method.symbols]), ("input", [i.name for i in method.inputs])):
        _check_names(f"{what}, {what_names}", names)
    for symbol in method.symbols:
        _check_symbol(what, symbol, method.inputs)
    _require(set(method.state) <= state, f"{what}: uses unknown state {sorted(set(method.state) - state)}")
    _check_tree(what, method.input_tree, len(method.inputs))
    _require(method.input_tree.kind == "dict", f"{what}: its input tree is no dict of parameters")
    _check_tree(what, method.output_tree, len(method.outputs))


def _check_tree(what: str, tree: Tree, leaves: int) -> None:
    check_tree(tree)
    _require(leaf_count(tree) == leaves, f"{what}: a tree of {leaf_count(tree)} leaves for {leaves} tensors")


def _check_dim(what: str, dim: Dim, symbols: set[str]) -> None:
    unknown = symbols_of(dim) - symbols
    _require(not unknown, f"{what}: expression {dim!r} uses unknown symbols {sorted(unknown)}")


def _check_symbol(what: str, symbol: Symbol, inputs: tuple[Leaf, ...]) -> None:
    what = f"{what}, symbol {symbol.name!r}"
    _require(0 <= symbol.minimum <= symbol.maximum <= LARGEST, f"{what}: from {symbol.minimum} to {symbol.maximum}")
    _require(0 <= symbol.input < len(inputs), f"{what}: no input {symbol.input}")
    shape = inputs[symbol.input].shape
    _require(0 <= symbol.axis < len(shape), f"{what}: no axis {symbol.axis} in shape {list(shape)}")
    dim = shape[symbol.axis]
    _require(symbols_of(dim) == {symbol.name}, f"{what}: read from {dim!r}, which is not of this symbol alone")
    scale, _ = linear(dim, symbol.name)
    _require(scale > 0, f"{what}: read from {dim!r}, which does not grow linearly with it")


def linear(dim: Dim, symbol: str) -> tuple[int, int]:
    """(scale, offset) of `dim` = scale * symbol + offset; scale 0 if it is not of that form."""
    at = [evaluate(dim, {symbol: value}) for value in (1, 2, 3, 1000)]
    scale = at[1] - at[0]
    straight = at[2] - at[1] == scale and at[3] - at[0] == 999 * scale
    return (scale if straight else 0), at[0] - scale
