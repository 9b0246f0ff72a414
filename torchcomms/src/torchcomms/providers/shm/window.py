"""Windows: tensors of `empty` that the other ranks read and write, and counters that say when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms.messages import flat
from torchcomms.errors import CommsClosed, CommsTimeout, InvalidCall, UnsupportedTensor
from torchcomms.providers.shm.heap import mapped, tensor_of

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.providers.shm.backend import ShmBackend

PARK = 10e-3  # seconds asleep before looking at deadlines and deaths
WRAP, HALF = 1 << 32, 1 << 31


class Put:
    """A put, which was done when it was made: a `Ticket`."""

    __slots__ = ()

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        return None

    def wait_host(self, deadline: float) -> None:
        return None


class Signal:
    """Complete when the counter at `address` has come to `wanted`: a `Ticket`."""

    __slots__ = ("_address", "_deadline", "_peer", "_wanted", "_window")

    def __init__(self, window: ShmWindow, address: int, wanted: int, peer: int, deadline: float) -> None:
        self._window, self._address, self._wanted, self._peer, self._deadline = window, address, wanted, peer, deadline

    def test(self) -> bool:
        backend = self._window.opened()
        if self._behind(backend.core.count_wait(self._address, 0, 0)):
            backend.queue.look()
            return False
        return True

    def wait(self) -> None:
        self.wait_host(self._deadline)

    def wait_host(self, deadline: float) -> None:
        while True:
            backend = self._window.opened()
            seen = backend.core.count_wait(self._address, 0, 0)
            if not self._behind(seen):
                return
            backend.queue.look()
            patience = min(PARK, deadline - time.monotonic())
            if patience <= 0:
                peer = self._peer
                raise CommsTimeout(f"rank {peer} did not signal in time; look where it is", missing={peer})
            backend.core.count_wait(self._address, seen, int(patience * 1e9))

    def _behind(self, seen: int) -> bool:
        return (seen - self._wanted) % WRAP >= HALF


class ShmWindow:
    """`torchcomms.backend.Window` over heaps. It keeps the tensor of this rank until `close`."""

    def __init__(self, backend: ShmBackend, tensor: Tensor) -> None:
        place = backend.heap.place(tensor)
        # All ranks take part in what follows, so that a tensor from elsewhere is an error everywhere.
        counters = backend.empty((backend.size,), torch.int32).zero_()
        mine = [-1 if place is None else place, backend.heap.place(counters) or 0, tensor.nbytes]
        rows = [torch.empty(3, dtype=torch.int64) for _ in range(backend.size)]
        backend.all_gather(rows, torch.tensor(mine)).wait()
        told = [(int(row[0]), int(row[1]), int(row[2])) for row in rows]
        _check(told)
        self._backend: ShmBackend | None = backend
        self._tensor, self._counters, self._told = tensor, counters, told
        self._taken = [0] * backend.size
        backend.barrier().wait()

    def opened(self) -> ShmBackend:
        """The backend; raises if the window or the backend is closed."""
        if self._backend is None:
            raise CommsClosed("this window is closed; open a new one")
        self._backend.queue.check()
        return self._backend

    def put(self, source: Tensor, peer: int, offset: int) -> Put:
        target = self.remote(peer).view(-1)
        if source.dtype != target.dtype or not 0 <= offset <= target.numel() - source.numel():
            raise InvalidCall(
                f"{source.numel()} elements of {source.dtype} do not go to {offset} in a window of "
                f"{target.numel()} of {target.dtype}"
            )
        target[offset : offset + source.numel()].copy_(flat(source))
        return Put()

    def signal(self, peer: int) -> Put:
        backend = self.opened()
        backend.core.count_up(self._counter(backend, peer, backend.rank))
        return Put()

    def wait_signal(self, peer: int) -> Signal:
        backend = self.opened()
        address = self._counter(backend, backend.rank, peer)
        self._taken[peer] = (self._taken[peer] + 1) % WRAP
        return Signal(self, address, self._taken[peer], peer, time.monotonic() + backend.timeout)

    def remote(self, rank: int) -> Tensor:
        backend = self.opened()
        if rank == backend.rank:
            return self._tensor
        self._check_rank(backend, rank)
        place, _, size = self._told[rank]
        if not size:
            return torch.empty_like(self._tensor)
        memory = mapped(backend.group, backend.group.heap(rank) + place, size)
        return tensor_of(memory, self._tensor.dtype).view(self._tensor.shape)

    def close(self) -> None:
        self._backend = None

    def _counter(self, backend: ShmBackend, owner: int, source: int) -> int:
        self._check_rank(backend, owner if owner != backend.rank else source)
        return backend.group.heap(owner) + self._told[owner][1] + 4 * source

    def _check_rank(self, backend: ShmBackend, rank: int) -> None:
        if not 0 <= rank < backend.size:
            raise InvalidCall(
                f"peer {rank} is not a rank of this group of {backend.size}; pass 0 to {backend.size - 1}"
            )


def _check(told: list[tuple[int, int, int]]) -> None:
    elsewhere = [rank for rank, (place, _, size) in enumerate(told) if place < 0 and size]
    if elsewhere:
        raise UnsupportedTensor(f"the tensors of ranks {elsewhere} lie elsewhere: make windows of `empty`'s tensors")
    if len({size for _, _, size in told}) > 1:
        raise InvalidCall(f"the windows have {[size for _, _, size in told]} bytes; make them equal on all ranks")
