"""Configurations from TOML and `--dotted.key value` overrides, and back to TOML; an unknown key fails."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from forge.errors import ConfigError

__all__ = ["dump", "from_mapping", "load", "parse_overrides"]

T = TypeVar("T")


def load(kind: type[T], path: Path | None, overrides: Sequence[str] = ()) -> T:
    """A configuration of dataclass `kind` from a file (or its defaults) with command-line overrides on top."""
    try:
        values = {} if path is None else tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; give the path of a TOML file", key="") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", key="") from error
    for key, value in parse_overrides(overrides).items():
        _set(values, key.split("."), value)
    return from_mapping(kind, values)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--a.b-c 1 --d=x` → {"a.b_c": 1, "d": "x"}; a value is TOML if it can be, else text."""
    overrides: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        key, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not key or not (equals or rest):
            raise ConfigError(f"{flag!r} is no override; write --section.key value", key=flag)
        overrides[key.replace("-", "_")] = _value(text if equals else rest.pop(0))
    return overrides


def from_mapping(kind: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """A dataclass from nested mappings; raises `ConfigError` naming the key and, for an unknown one, the nearest."""
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1) or known
            raise ConfigError(f"unknown key {prefix}{key}; did you mean {prefix}{near[0]}?", key=f"{prefix}{key}")
    return kind(**{key: _convert(hints[key], value, f"{prefix}{key}") for key, value in values.items()})


def dump(config: object) -> str:
    """TOML text from which `load` makes an equal configuration."""
    lines: list[str] = []
    _write(config, "", lines)
    return "\n".join(lines) + "\n"


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _set(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{'.'.join(path)}: {part} is a value, not a section", key=".".join(path))
    values[path[-1]] = value


def _convert(hint: Any, value: Any, key: str) -> Any:
    """`value` as the type that the field declares."""
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_mapping(hint, value, f"{key}.")  # type: ignore[arg-type]
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _first_fit(options, value, key)
    if origin is Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list) and (options[-1] is Ellipsis or len(value) == len(options)):
        return tuple(_convert(options[0], item, key) for item in value)
    if origin is not None and origin not in (Literal, tuple) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"{key} is {value!r}; it must be {_describe(hint)}", key=key)


def _first_fit(options: Sequence[Any], value: Any, key: str) -> Any:
    for option in options:
        try:
            return _convert(option, value, key)
        except ConfigError:
            continue
    raise ConfigError(f"{key} is {value!r}; it must be {' or '.join(map(_describe, options))}", key=key)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {get_args(hint)[0].__name__}"
    return "a table" if is_dataclass(hint) or get_origin(hint) else f"a {getattr(hint, '__name__', hint)}"


def _write(config: object, section: str, lines: list[str]) -> None:
    """Plain values first: in TOML everything after a table's header belongs to it."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}  # type: ignore[arg-type]
    if section:
        lines += ["", f"[{section}]"]
    dotted = f"{section}." if section else ""
    tables = {name: value for name, value in values.items() if is_dataclass(value)}
    for name, value in values.items():
        if name not in tables:
            lines.append(f"{name} = {_literal(value)}")
    for name, value in tables.items():
        _write(value, f"{dotted}{name}", lines)


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(key))} = {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    raise ConfigError(f"{value!r} has no TOML form; use text, numbers, lists and tables", key="")


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
