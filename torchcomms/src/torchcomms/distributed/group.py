"""`CommsGroup`: a process group of torch.distributed whose operations a `TorchComm` carries out.

What torch asks of a group: who is in it, its names, which devices it moves, and its end. The operations are in
`operations`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms._register import NAME
from torchcomms.comm import TorchComm
from torchcomms.distributed.work import Pending
from torchcomms.errors import UnsupportedTensor

if TYPE_CHECKING:
    from torchcomms.work import Work


# Torch's stubs know some of the forms of its operations and not others, so that no override could satisfy them.
_Group: Any = dist.ProcessGroup


class Identity(_Group):  # type: ignore[misc]
    """The group without its operations.

    A group made by torch answers for its names from the backends registered with it, and a subclass has none for the
    devices that it moves itself; so those answers are here, under the names by which C++ looks them up.
    """

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False

    def __init__(self, comms: Mapping[str, TorchComm], store: Any = None) -> None:
        first = next(iter(comms.values()))
        super().__init__(first.get_rank(), first.get_size())
        self._comms, self._store = dict(comms), store
        self._group_name, self._group_desc = first.get_name(), "undefined"
        self._coalesced: list[Work] | None = None
        self._closing = weakref.finalize(self, _close, tuple(comms.values()))

    def get_comm(self, device: torch.device | str = "cpu") -> TorchComm:
        """The communicator that moves tensors of `device`."""
        return self._comms[torch.device(device).type]

    def moves(self, devices: Iterable[str]) -> bool:
        """Whether it moves the tensors of all `devices` itself."""
        return set(devices) <= set(self._comms)

    def comms(self) -> tuple[TorchComm, ...]:
        """All its communicators, one for each device that it moves itself."""
        return tuple(self._comms.values())

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return next(iter(self._comms.values())).get_rank()

    def getSize(self) -> int:
        return next(iter(self._comms.values())).get_size()

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [*map(torch.device, self._comms), *super()._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        # What torch asks of a backend of one device, this group answers itself for its own.
        return self if device.type in self._comms else super()._get_backend(device)

    def get_group_store(self) -> Any:
        return self._store

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> Self | None:
        """A group of some of its ranks, for the devices that it moves itself; None on ranks that are not among them."""
        if self.rank() not in new_ranks:
            return None
        name = group_name or f"{self._group_name}:{'.'.join(map(str, new_ranks))}"
        kinds = set(self._comms) if device_types is None else {device.type for device in device_types}
        wait = next(iter(self._comms.values())).get_options().timeout if timeout is None else timeout
        comms = {kind: part(self._comms[kind], new_ranks, name, wait) for kind in self._comms if kind in kinds}
        group = type(self)(comms, PrefixStore(f"{name}/", self._store))
        group._set_group_desc(group_desc or "undefined")
        return group

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` gives memory of the backend: FSDP2 asks before it makes its buffers."""
        return device.type in self._comms

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of `size` elements in the memory that the backend moves fastest."""
        return self._comms[device.type].empty(size, dtype=dtype)

    def _start_coalescing(self, device: torch.device) -> None:
        """From now on operations only start, and `_end_coalescing` returns one work for all."""
        self._coalesced = []
        if device.type not in self._comms:
            _Group._get_backend(self, device)._start_coalescing()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        if device.type not in self._comms:
            work: dist.Work = _Group._get_backend(self, device)._end_coalescing()
            return work
        return self._pending(works, [])

    def _pending(self, works: Sequence[Work], result: list[Tensor], source: int = -1) -> Pending:
        if self._coalesced is not None:
            self._coalesced += works
        return Pending(works, result, source)

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of operations from now on."""
        for comm in self._comms.values():
            comm.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """End every wait of this group on this rank with `CommsAborted`."""
        for comm in self._comms.values():
            comm.abort("abort() of the process group was called")
        for backend in self._others():
            backend.abort()

    def shutdown(self) -> None:
        """Close the communicators; the group is of no more use. May be called again."""
        self._closing()
        for backend in self._others():
            backend.shutdown()

    def _others(self) -> list[Any]:
        """The backends of devices that torch moves."""
        return [_Group._get_backend(self, device) for device in super()._device_types]

    def _pass_on(self, tensor: Tensor, operation: str, *arguments: object) -> dist.Work:
        """Let the backend that torch has for the tensor's device carry the operation out."""
        work: dist.Work = getattr(_Group._get_backend(self, tensor.device), operation)(*arguments)
        return work

    def _comm_of(self, tensor: Tensor) -> TorchComm | None:
        """The communicator of the tensor's device, or None for devices that torch moves."""
        comm = self._comms.get(tensor.device.type)
        if comm is None and tensor.device.type not in {device.type for device in super()._device_types}:
            moved = ", ".join(device.type for device in self._device_types)
            raise UnsupportedTensor(
                f"the tensor is on {tensor.device}, and this group moves tensors on {moved}: "
                f'name a backend for each device, as in init_process_group("cpu:{NAME},cuda:nccl")'
            )
        return comm


def part(comm: TorchComm, ranks: Sequence[int], name: str, timeout: timedelta) -> TorchComm:
    """The communicator of some of the ranks of `comm`, this one among them."""
    child = comm.split(list(ranks), name, timeout=timeout)
    assert child is not None
    return child


def _close(comms: tuple[TorchComm, ...]) -> None:
    for comm in comms:
        comm.finalize()
