"""The pickler for messages that hold functions or classes which the other side cannot import."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from monarch.engine.tensors import reduce_tensor


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with tensors out of band and unimportable modules by value."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (FunctionType, type)):
            _register(obj.__module__)
        elif (pieces := reduce_tensor(obj)) is not NotImplemented:
            return pieces
        return super().reducer_override(obj)


def _register(name: str) -> None:
    """Tell cloudpickle of a module that is loaded here but that the other side could not find."""
    from monarch.engine.pickling import importable

    if name != "__main__" and name in sys.modules and not importable(name):
        cloudpickle.register_pickle_by_value(sys.modules[name])
