"""One call that gives a joiner the module and optimizer state of a survivor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor

from torchcomms import objcol
from torchcomms.comm.core import Core

if TYPE_CHECKING:
    from torchcomms.comm.torchcomm import TorchComm

T = TypeVar("T")


class State(Core):
    """The part of a communicator that copies whole states."""

    def sync_state(self, state_dict: T, root: int = 0) -> T:
        """The state of rank `root` on every rank, in nested dicts, lists and tuples of tensors and plain values.

        Where this rank's `state_dict` has a tensor of the same shape and dtype at the same place, it is filled and
        is in the result, so that a module's own parameters need not be loaded again; elsewhere new tensors are made on
        this communicator's device. Plain values are those that `torch.load(weights_only=True)` admits.

            state = comm.sync_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, root)
            model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])

        An optimizer's state that does not exist yet on a joiner comes as new tensors for `load_state_dict`.
        """
        comm = cast("TorchComm", self)
        sending = self._rank == root
        frame = [_map(state_dict, _outline) if sending else None]
        objcol.broadcast_object_list(comm, frame, root)
        mine = dict(_leaves(state_dict, ()))
        result = state_dict if sending else _place(frame[0], mine, self._device)
        for _, tensor in _leaves(result, ()):
            # Tensors elsewhere (an optimizer's step counts stay on the CPU) travel by way of a copy.
            there = tensor if tensor.device.type == self._device.type else tensor.to(self._device)
            comm.broadcast(there, root)
            if there is not tensor and not sending:
                tensor.detach().copy_(there)
        return cast(T, result)


def _outline(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _map(tree: object, function: Callable[[Tensor], object]) -> object:
    """The tree with `function` applied to each tensor; containers become plain dicts, lists and tuples."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _map(value, function) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        mapped = [_map(value, function) for value in tree]
        return tuple(mapped) if isinstance(tree, tuple) else mapped
    return tree


def _leaves(tree: object, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))


def _place(frame: object, mine: dict[tuple[object, ...], Tensor], device: torch.device) -> object:
    """The root's tree over this rank's tensors where they fit, and over new ones."""
    outlines = iter(dict(_leaves(frame, ())))

    def find(outline: Tensor) -> Tensor:
        own = mine.get(next(outlines))
        if own is not None and (own.shape, own.dtype) == (outline.shape, outline.dtype):
            return own
        return torch.empty(outline.shape, dtype=outline.dtype, device=device)

    return _map(frame, find)
