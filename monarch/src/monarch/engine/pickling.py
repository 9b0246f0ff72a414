"""Pickling of arguments and results: protocol 5, tensors out of band, cloudpickle only where it must be.

By value go functions and classes that the other side cannot import: those of `__main__`, lambdas, closures, and those
of modules that no finder finds. Everything else goes by reference.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from monarch.engine.framing import Bytes
from monarch.engine.tensors import reduce_tensor
from monarch.engine.unpicklable import explain
from monarch.errors import NotPicklable

SMALL = 1 << 12
"""Buffers below this many bytes stay inside the pickle."""


@dataclass(slots=True)
class Packed:
    """A pickle and the buffers that it refers to."""

    body: Bytes
    buffers: list[Bytes]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.body) + sum(map(len, self.buffers)) if self.buffers else len(self.body)

    def detached(self) -> Packed:
        """The same with buffers that no longer are the caller's memory."""
        return Packed(self.body, [bytes(buffer) for buffer in self.buffers])


class _NeedsValue(Exception):
    """The fast pickler met something that must go by value."""


class _Buffers(list[Bytes]):
    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < SMALL:
            return True
        self.append(raw)
        return False


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (FunctionType, type)):
            if _goes_by_value(obj):
                raise _NeedsValue
            return NotImplemented
        return reduce_tensor(obj)


def dumps(value: Any, what: str) -> Packed:
    """Pickle; NotPicklable names the path inside `what` that cannot travel."""
    file, buffers = io.BytesIO(), _Buffers()
    try:
        _Pickler(file, 5, buffer_callback=buffers).dump(value)
        return Packed(file.getvalue(), buffers)
    except _NeedsValue:
        return _dumps_by_value(value, what)
    except Exception as error:
        raise _explained(value, what, error) from error


def loads(body: Bytes, buffers: Sequence[Any] = ()) -> Any:
    """Unpickle; the value takes the buffers over."""
    return pickle.loads(body, buffers=buffers)


def _dumps_by_value(value: Any, what: str) -> Packed:
    from monarch.engine.byvalue import ValuePickler

    file, buffers = io.BytesIO(), _Buffers()
    try:
        ValuePickler(file, 5, buffer_callback=buffers).dump(value)
    except Exception as error:
        raise _explained(value, what, error) from error
    return Packed(file.getvalue(), buffers)


def _explained(value: Any, what: str, error: Exception) -> NotPicklable:
    path, culprit, reason = explain(value, what, lambda part: dumps_quietly(part) is None, error)
    return NotPicklable(
        f"{path} cannot travel: {type(culprit).__qualname__} is not picklable ({reason}). Send data instead, or make"
        " it in the actor",
        path=path,
    )


def dumps_quietly(value: Any) -> Packed | None:
    """Pickle, or None for what cannot be."""
    from monarch.engine.byvalue import ValuePickler

    file, buffers = io.BytesIO(), _Buffers()
    try:
        ValuePickler(file, 5, buffer_callback=buffers).dump(value)
    except Exception:
        return None
    return Packed(file.getvalue(), buffers)


def _goes_by_value(obj: FunctionType | type) -> bool:
    name = getattr(obj, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name or not importable(obj.__module__)


@lru_cache(maxsize=4096)
def importable(module: str) -> bool:
    """Whether another interpreter with the same `sys.path` can import this module."""
    if module == "__main__" or module not in sys.modules:
        return False
    spec = getattr(sys.modules[module], "__spec__", None)
    if spec is None or spec.origin in ("built-in", "frozen"):
        return True
    parent = module.rpartition(".")[0]
    if parent and not importable(parent):
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    for finder in sys.meta_path:
        found = finder.find_spec(module, path)
        if found is not None:
            return bool(found.origin == spec.origin)
    return False
