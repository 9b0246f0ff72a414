"""Compressed all_reduce for slow links: numbers travel as int8 in blocks or as bfloat16, and are added in float32.

By request only. Two rounds: every rank sends each peer its share of the tensor in the short form, the owner of a share
adds all parts in the order of ranks in float32, and sends the sum in the short form to all, itself included. So every
rank ends with the same bits, and an element is rounded twice however many ranks there are.

Error bounds, for every element of a SUM (an AVG: divided by the number of ranks), before the result is rounded to the
tensor's own dtype:

- "int8": at most the sum over ranks of the largest magnitude in that rank's block of 256, divided by 126. A block that
  holds an infinity or a NaN comes out as NaN.
- "bf16": at most the sum over ranks of the element's magnitudes, divided by 127. What exceeds bfloat16's largest number
  comes out infinite.

An int8 message is 0.254 times the bytes of float32. On a core of 2026 it pays on links slower than about 1 GB/s; never
inside one host.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from torchcomms.algorithms.gathering import peers
from torchcomms.algorithms.messages import flat, recv, send
from torchcomms.backend import ReduceOp
from torchcomms.errors import InvalidCall, UnsupportedReduction

if TYPE_CHECKING:
    from torchcomms.algorithms.messages import Group
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import Backend, Ticket

__all__ = ["BLOCK", "KINDS", "Kind", "all_reduce", "check", "schedule"]

Kind = Literal["int8", "bf16"]
BLOCK = 256  # elements that share one scale
SLICE = 1 << 18  # elements encoded at a time: few calls, and still in the second-level cache
LARGEST = 127.0
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


class Code(ABC):
    """A short form of float32 numbers, cut in whole blocks."""

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """Bytes that `count` numbers take."""

    @abstractmethod
    def encode(self, numbers: Tensor, message: Tensor) -> None:
        """Write flat float32 `numbers` to `message`, `nbytes` flat bytes."""

    @abstractmethod
    def decode(self, message: Tensor, numbers: Tensor) -> None:
        """Write what `message` holds to flat float32 `numbers`."""


class Int8(Code):
    """For each block of 256 one float32 scale, its largest magnitude over 127, and integers from -127 to 127."""

    def nbytes(self, count: int) -> int:
        return 4 * -(-count // BLOCK) + count

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        scales, codes = self._views(message, numbers.numel())
        # One piece of memory for all slices: fresh memory costs more than the arithmetic.
        room = numbers.new_empty(-(-min(numbers.numel(), SLICE) // BLOCK), BLOCK)
        slices = [(low, _blocks(numbers[low : low + SLICE])) for low in range(0, numbers.numel(), SLICE)]
        for low, blocks in slices:
            magnitudes = torch.abs(blocks, out=room[: len(blocks)])
            torch.amax(magnitudes, 1, out=scales[low // BLOCK : low // BLOCK + len(blocks)])
        scales /= LARGEST
        divisors = torch.where(scales == 0, 1.0, scales).unsqueeze(1)
        finite = bool(scales.isfinite().all())
        for low, blocks in slices:
            quotients = torch.div(blocks, divisors[low // BLOCK :][: len(blocks)], out=room[: len(blocks)]).round_()
            if not finite:
                quotients.nan_to_num_(0.0, 0.0, 0.0)  # the scale alone makes the whole block NaN
            codes[low : low + SLICE] = quotients.view(-1)[: numbers.numel() - low]
        if not finite:
            scales[~scales.isfinite()] = torch.nan

    def decode(self, message: Tensor, numbers: Tensor) -> None:
        scales, codes = self._views(message, numbers.numel())
        whole = numbers.numel() // BLOCK * BLOCK
        torch.mul(
            codes[:whole].view(-1, BLOCK), scales[: whole // BLOCK].unsqueeze(1), out=numbers[:whole].view(-1, BLOCK)
        )
        torch.mul(codes[whole:], scales[-1:], out=numbers[whole:])

    def _views(self, message: Tensor, count: int) -> tuple[Tensor, Tensor]:
        head = self.nbytes(count) - count
        return message[:head].view(torch.float32), message[head:].view(torch.int8)


class Bf16(Code):
    """The upper halves of float32 numbers, rounded to nearest."""

    def nbytes(self, count: int) -> int:
        return 2 * count

    def encode(self, numbers: Tensor, message: Tensor) -> None:
        message.view(torch.bfloat16).copy_(numbers)

    def decode(self, message: Tensor, numbers: Tensor) -> None:
        numbers.copy_(message.view(torch.bfloat16))


KINDS: dict[str, Code] = {"int8": Int8(), "bf16": Bf16()}


def all_reduce(
    backend: Backend,
    tensor: Tensor,
    op: ReduceOp,
    kind: Kind,
    *,
    residual: Tensor | None = None,
    deadline: float | None = None,
) -> Ticket:
    """Replace `tensor` on every rank by the sum or average over all ranks, within the bounds of the module's docstring.

    `tensor` is dense, float32, bfloat16 or float16, of one count on all ranks; it is written when everything has come,
    so that after an error it is as it was. `deadline` is in monotonic seconds; None: the group's timeout from now.

    `residual`, float32, of the tensor's count and zero at first, keeps what rounding has lost (error feedback): it is
    added to the tensor and holds the new loss afterwards. The caller keeps one for each tensor that is reduced again
    and again; the sums of all results and of all ranks' residuals are then those of the exact results.

    Raises `InvalidCall` for an unknown kind or a residual that does not fit, `UnsupportedReduction` for another
    reduction or dtype.
    """
    # One queue with the backend's own collectives keeps their order the same on every rank.
    return backend._start(
        f"all_reduce({kind})",
        schedule(backend, tensor, op, kind, residual=residual),
        time.monotonic() + backend.timeout if deadline is None else deadline,
    )


def check(tensor: Tensor, op: ReduceOp, kind: str, residual: Tensor | None = None) -> None:
    """Raise what `all_reduce` would raise for these arguments."""
    if kind not in KINDS:
        raise InvalidCall(f"compression {kind!r} is unknown: pass one of {', '.join(map(repr, sorted(KINDS)))}")
    dtype = str(tensor.dtype)
    if op.kind not in ("sum", "avg"):
        raise UnsupportedReduction(f"{op.kind} cannot be compressed: use sum or avg", op=op.kind, dtype=dtype)
    if tensor.dtype not in DTYPES:
        able = ", ".join(sorted(map(str, DTYPES)))
        raise UnsupportedReduction(f"{dtype} cannot be compressed: use one of {able}", op=op.kind, dtype=dtype)
    if residual is not None and (residual.dtype, residual.numel()) != (torch.float32, tensor.numel()):
        raise InvalidCall(
            f"the residual has {residual.numel()} elements of {residual.dtype}; "
            f"it must have {tensor.numel()} of torch.float32"
        )


def schedule(group: Group, tensor: Tensor, op: ReduceOp, kind: str, *, residual: Tensor | None = None) -> Schedule:
    """The messages and sums of a compressed all_reduce, for whatever drives schedules."""
    check(tensor, op, kind, residual)
    data = flat(tensor)
    if group.size == 1 or not data.numel():
        return _nothing()
    return _reduce_shares(group, data, op, KINDS[kind], None if residual is None else flat(residual))


def _nothing() -> Schedule:
    yield from ()


def _reduce_shares(group: Group, data: Tensor, op: ReduceOp, code: Code, residual: Tensor | None) -> Schedule:
    given = data.float() if residual is None else data.float() + residual
    bounds = _bounds(data.numel(), group.size)
    shares, mine = [given[low:high] for low, high in bounds], group.rank
    sizes = [code.nbytes(share.numel()) for share in shares]
    parts = {peer: _bytes(sizes[mine], data) for peer in peers(group)}
    results = [_bytes(size, data) for size in sizes]
    arrivals = group.post([recv(parts[peer], peer) for peer in peers(group)])
    outcomes = group.post([recv(results[peer], peer) for peer in peers(group)])
    sent = [_bytes(size, data) for size in sizes]
    departures = []
    for peer in peers(group):
        code.encode(shares[peer], sent[peer])
        departures.append(group.post([send(sent[peer], peer)]))
    yield arrivals
    total = _total(code, parts, shares[mine], group)
    code.encode(total / group.size if op.kind == "avg" else total, results[mine])
    last = group.post([send(results[mine], peer) for peer in peers(group)])
    yield outcomes
    yield from [*departures, last]
    if residual is not None:
        _keep_loss(code, residual, given, bounds, sent, mine)
    reduced = torch.empty_like(given)
    for (low, high), result in zip(bounds, results, strict=True):
        code.decode(result, reduced[low:high])
    if residual is not None:
        low, high = bounds[mine]
        weight = group.size if op.kind == "avg" else 1
        torch.sub(total, reduced[low:high], alpha=weight, out=residual[low:high])
    data.copy_(reduced)


def _total(code: Code, parts: dict[int, Tensor], own: Tensor, group: Group) -> Tensor:
    """The sum of all ranks' parts in the order of ranks; this rank's own was never rounded."""
    total, part = torch.zeros_like(own), torch.empty_like(own)
    for rank in range(group.size):
        if rank == group.rank:
            total += own
        else:
            code.decode(parts[rank], part)
            total += part
    return total


def _keep_loss(
    code: Code,
    residual: Tensor,
    given: Tensor,
    bounds: Sequence[tuple[int, int]],
    sent: Sequence[Tensor],
    mine: int,
) -> None:
    """What the peers did not receive of this rank's numbers."""
    for rank, (low, high) in enumerate(bounds):
        if rank != mine:
            code.decode(sent[rank], residual[low:high])
            torch.sub(given[low:high], residual[low:high], out=residual[low:high])


def _bounds(count: int, size: int) -> list[tuple[int, int]]:
    """Where each rank's share begins and ends: whole blocks, so that the cut does not depend on the kind."""
    blocks = -(-count // BLOCK)
    return list(pairwise(min(count, blocks * rank // size * BLOCK) for rank in range(size + 1)))


def _blocks(part: Tensor) -> Tensor:
    """The numbers in rows of a block, the last one filled up with zeros."""
    short = -part.numel() % BLOCK
    return (torch.nn.functional.pad(part, (0, short)) if short else part).view(-1, BLOCK)


def _bytes(count: int, like: Tensor) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=like.device)
