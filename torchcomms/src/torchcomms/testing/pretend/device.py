"""The pretend device: tensors of torch's device type for outsiders, held in CPU memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from torchcomms.testing.pretend.stream import synchronize

NAME = "pretend"
_FACTORIES = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class PretendTensor(Tensor):
    """A tensor on the pretend device; its values are in `held`. Computations wait for the current stream first."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[PretendTensor], held: Tensor) -> PretendTensor:
        make: Any = Tensor._make_wrapper_subclass
        made: PretendTensor = make(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.held})"

    def data_ptr(self) -> int:
        """Where the values are."""
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        target = arguments.get("device")
        if target is not None:
            arguments["device"] = torch.device("cpu")
        if not (func.is_view or func._schema.name.removeprefix("aten::") in _FACTORIES):
            synchronize()
        owners: dict[int, PretendTensor] = {}
        result = func(*tree_map(_opened(owners), args), **tree_map(_opened(owners), arguments))
        leaves = target is not None and torch.device(target).type != NAME
        return result if leaves else tree_map(_closed(owners), result)


def _opened(owners: dict[int, PretendTensor]) -> Callable[[object], object]:
    def open_one(value: object) -> object:
        if not isinstance(value, PretendTensor):
            return value
        owners[id(value.held)] = value
        return value.held

    return open_one


def _closed(owners: dict[int, PretendTensor]) -> Callable[[object], object]:
    def close_one(value: object) -> object:
        if not isinstance(value, Tensor) or isinstance(value, PretendTensor):
            return value
        owner = owners.get(id(value))
        # A lazy conjugate or negative is made at once: the wrapper could not say that it is one.
        return PretendTensor(value.resolve_conj().resolve_neg()) if owner is None else owner

    return close_one


@cache
def register() -> torch.device:
    """Make the device known to torch in this process; it stays."""
    # Torch's own way, marked experimental, to have a device in Python; there is no public one without C++.
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    for name, function in _KERNELS.items():
        torch.library.impl(f"aten::{name}", "PrivateUse1")(function)
    return torch.device(NAME, 0)


def _empty(size: Any, *, dtype: Any = None, **ignored: Any) -> PretendTensor:
    return PretendTensor(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **ignored: Any) -> PretendTensor:
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype))


def _arange(*bounds: Any, dtype: Any = None, **ignored: Any) -> PretendTensor:
    return PretendTensor(torch.arange(*bounds, dtype=dtype))


# Everything else that makes tensors is made of these by torch.
_KERNELS: dict[str, Callable[..., PretendTensor]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "arange": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
}
