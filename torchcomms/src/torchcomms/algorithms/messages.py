"""What the algorithms share: the group they run in, messages on the derived operations' tag, and flat views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torchcomms.algorithms.ghost import Ghost
from torchcomms.backend import P2P
from torchcomms.errors import InvalidCall

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Ticket

# One tag is enough: schedules of a group run in the same order everywhere, and matching is FIFO per (peer, tag).
TAG = -1


class Group(Protocol):
    """What an algorithm needs of a backend."""

    rank: int
    size: int

    def post(self, batch: Sequence[P2P]) -> Ticket:
        """Start messages, as `Backend.post`."""

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory until the end of the schedule, as `Backend.scratch`."""


def send(tensor: Tensor, peer: int) -> P2P:
    """A message to `peer`."""
    return P2P("send", tensor, peer, TAG)


def recv(tensor: Tensor, peer: int) -> P2P:
    """A message from `peer` into `tensor`."""
    return P2P("recv", tensor, peer, TAG)


def flat(tensor: Tensor) -> Tensor:
    """The same memory in one dimension, outside of autograd; needs a contiguous tensor."""
    return tensor if isinstance(tensor, Ghost) else tensor.detach().view(-1)


def copy(target: Tensor, source: Tensor) -> None:
    """Copy between two flat tensors unless they are the same memory."""
    if isinstance(target, Ghost):
        target.meter.copied(target.nbytes)
    elif target.data_ptr() != source.data_ptr():
        target.copy_(source)


class Even:
    """Where a tensor of `total` elements is cut into `count` shares of nearly equal length: its bounds.

    The same cut on every rank; nothing is listed, since there may be a hundred thousand ranks.
    """

    __slots__ = ("count", "total")

    def __init__(self, total: int, count: int) -> None:
        self.total, self.count = total, count

    def __getitem__(self, index: int) -> int:
        return self.total * index // self.count


class Bounds(Protocol):
    """Ascending offsets of shares: share i is from bounds[i] to bounds[i + 1]. An `Even` or a list of integers."""

    def __getitem__(self, index: int, /) -> int:
        """The offset at which share `index` begins."""


def chunks(tensor: Tensor, count: int) -> list[Tensor]:
    """Cut a flat tensor into `count` views of nearly equal length, the same cut on every rank."""
    cut = Even(tensor.numel(), count)
    return [tensor[cut[index] : cut[index + 1]] for index in range(count)]


def check_root(group: Group, root: int) -> None:
    """Raise `InvalidCall` unless `root` is a rank of the group."""
    if not 0 <= root < group.size:
        raise InvalidCall(f"root {root} is not a rank of this group of {group.size}; pass 0 to {group.size - 1}")


def check_list(group: Group, tensors: Sequence[Tensor] | None, name: str) -> Sequence[Tensor]:
    """Raise `InvalidCall` unless there is one tensor for each rank."""
    if tensors is None or len(tensors) != group.size:
        seen = "None" if tensors is None else f"{len(tensors)} tensors"
        raise InvalidCall(f"{name} is {seen}; pass a list of {group.size} tensors, one for each rank")
    return tensors


def check_same(target: Tensor, source: Tensor, what: str) -> None:
    """Raise `InvalidCall` unless the two have one count and dtype."""
    if (target.numel(), target.dtype) != (source.numel(), source.dtype):
        raise InvalidCall(
            f"{what}: {target.numel()} elements of {target.dtype} cannot take "
            f"{source.numel()} of {source.dtype}; make count and dtype equal"
        )
