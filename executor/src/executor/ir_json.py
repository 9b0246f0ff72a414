"""The JSON form of the loop IR, as in the `ir` segment of a program file.

Each record is a list: its lower-case name, then its fields in their order, as in `["op", "add", "float32", [a, b]]`.
A float that JSON lacks is the string "inf", "-inf" or "nan".
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args

from executor import ir
from executor.errors import ManifestError
from executor.manifest_json import parse

_RECORDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        *get_args(ir.Expr),
        *get_args(ir.Statement),
        *get_args(ir.Function),
        *(ir.Strided, ir.Buffer, ir.Step, ir.Block, ir.MethodBody, ir.LoopProgram),
    )
}
_FIELDS = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in _RECORDS.values()}
_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def dump(program: ir.LoopProgram) -> bytes:
    """`program` as UTF-8 JSON."""
    return json.dumps(_form(program), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def load(text: bytes) -> ir.LoopProgram:
    """The program that `text` describes; ManifestError if it describes none."""
    program = _value(parse(text), "ir")
    if not isinstance(program, ir.LoopProgram):
        raise ManifestError("the ir segment holds no program")
    return program


def _form(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, tuple):
        return [None, *map(_form, value)]
    if fields := _FIELDS.get(type(value)):
        return [type(value).__name__.lower(), *(_form(getattr(value, name)) for name in fields)]
    return value


def _value(form: Any, where: str) -> Any:
    if not isinstance(form, list):
        return form
    if not form:
        raise ManifestError(f"{where}: an empty list, where a record or a sequence is due")
    tag, *rest = form
    if tag is None:
        return tuple(_value(part, where) for part in rest)
    if not isinstance(tag, str) or tag not in _RECORDS:
        raise ManifestError(f"{where}: no record is called {tag!r}")
    kind = _RECORDS[tag]
    if len(rest) != len(_FIELDS[kind]):
        raise ManifestError(f"{where}: a {tag} has the fields {_FIELDS[kind]}; {len(rest)} came")
    values = [_value(part, f"{where}.{tag}") for part in rest]
    if kind is ir.Const and values[0] in _SPECIAL:
        values[0] = _SPECIAL[values[0]]
    return kind(*values)
