"""Collectives of Python objects, in the names of upstream's module `objcol`.

Objects travel as `torch.save` writes them. They are read with `weights_only=True` unless the caller says otherwise, and
then nothing but tensors and plain values comes in. All functions block; `timeout` is that of each operation in them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcomms.errors import InvalidCall

if TYPE_CHECKING:
    from torchcomms.comm.torchcomm import TorchComm

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def all_gather_object(
    comm: TorchComm,
    object_list: list[Any],
    obj: object,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Put rank r's `obj` into `object_list[r]` on every rank."""
    _check_length(object_list, comm.get_size(), "object_list")
    mine = _pack(obj, comm)
    parts = _gather_sized(comm, mine, timeout)
    comm.all_gather(parts, mine, False, timeout=timeout)
    object_list[:] = [_unpack(part, weights_only) for part in parts]


def gather_object(
    comm: TorchComm,
    obj: object,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Put rank r's `obj` into `object_gather_list[r]` of rank `root`."""
    here = comm.get_rank() == root
    if here:
        _check_length(object_gather_list, comm.get_size(), "object_gather_list of the root")
    mine = _pack(obj, comm)
    parts = _gather_sized(comm, mine, timeout)
    comm.gather(parts if here else None, mine, root, False, timeout=timeout)
    if here and object_gather_list is not None:
        object_gather_list[:] = [_unpack(part, weights_only) for part in parts]


def broadcast_object_list(
    comm: TorchComm,
    object_list: list[Any],
    root: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Put the objects of rank `root` into every rank's list of the same length."""
    sending = comm.get_rank() == root
    parts = [_pack(obj, comm) for obj in object_list] if sending else []
    sizes = _sizes(parts, len(object_list), comm)
    comm.broadcast(sizes, root, False, timeout=timeout)
    whole = torch.cat(parts) if sending and parts else _bytes(int(sizes.sum()), comm)
    comm.broadcast(whole, root, False, timeout=timeout)
    if not sending:
        object_list[:] = _unpack_all(whole, sizes, weights_only)


def scatter_object_list(
    comm: TorchComm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Put object r of rank `root` into the first place of rank r's output list."""
    if not scatter_object_output_list:
        raise InvalidCall("scatter_object_output_list is empty: pass a list with a place for the object")
    parts: list[Tensor] = []
    if comm.get_rank() == root:
        _check_length(scatter_object_input_list, comm.get_size(), "scatter_object_input_list of the root")
        parts = [_pack(obj, comm) for obj in scatter_object_input_list or ()]
    sizes = _sizes(parts, comm.get_size(), comm)
    comm.broadcast(sizes, root, False, timeout=timeout)
    mine = _bytes(int(sizes[comm.get_rank()]), comm)
    comm.scatter(mine, parts or None, root, False, timeout=timeout)
    scatter_object_output_list[0] = _unpack(mine, weights_only)


def send_object_list(comm: TorchComm, object_list: Sequence[Any], dst: int, timeout: timedelta | None = None) -> None:
    """Send the objects to rank `dst`, which receives as many."""
    parts = [_pack(obj, comm) for obj in object_list]
    comm.send(_sizes(parts, len(parts), comm), dst, False, timeout=timeout)
    comm.send(torch.cat([_bytes(0, comm), *parts]), dst, False, timeout=timeout)


def recv_object_list(
    comm: TorchComm,
    object_list: list[Any],
    src: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Put the objects that rank `src` sends into the list, whose length is their number."""
    sizes = _sizes([], len(object_list), comm)
    comm.recv(sizes, src, False, timeout=timeout)
    whole = _bytes(int(sizes.sum()), comm)
    comm.recv(whole, src, False, timeout=timeout)
    object_list[:] = _unpack_all(whole, sizes, weights_only)


def _pack(obj: object, comm: TorchComm) -> Tensor:
    written = io.BytesIO()
    torch.save(obj, written)
    return torch.frombuffer(written.getbuffer(), dtype=torch.uint8).to(comm.get_device(), copy=True)


def _unpack(part: Tensor, weights_only: bool) -> Any:
    return torch.load(io.BytesIO(part.cpu().numpy().tobytes()), weights_only=weights_only)


def _unpack_all(whole: Tensor, sizes: Tensor, weights_only: bool) -> list[Any]:
    return [_unpack(part, weights_only) for part in torch.split(whole, sizes.tolist())]


def _sizes(parts: Sequence[Tensor], count: int, comm: TorchComm) -> Tensor:
    """The lengths of `parts`, or room for `count` lengths."""
    known = [part.numel() for part in parts] or [0] * count
    return torch.tensor(known, dtype=torch.int64, device=comm.get_device())


def _bytes(count: int, comm: TorchComm) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=comm.get_device())


def _gather_sized(comm: TorchComm, mine: Tensor, timeout: timedelta | None) -> list[Tensor]:
    """Room for every rank's bytes."""
    sizes = _sizes([], comm.get_size(), comm)
    comm.all_gather_single(sizes, _sizes([mine], 1, comm), False, timeout=timeout)
    return [_bytes(size, comm) for size in sizes.tolist()]


def _check_length(objects: Sequence[Any] | None, size: int, name: str) -> None:
    if objects is None or len(objects) != size:
        seen = "None" if objects is None else f"{len(objects)} objects"
        raise InvalidCall(f"{name} is {seen}; pass a list of {size}, one for each rank")
