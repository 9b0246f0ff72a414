"""What a rank asks of the core: the numbers that core/*.h names, and one operation with all that tells it apart."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

import torch

from torchcomms import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp
    from torchcomms.errors import CommsError


class Kind(IntEnum):
    """`enum kind` of core/group.h."""

    BARRIER = 0
    BROADCAST = 1
    ALL_REDUCE = 2
    REDUCE = 3
    SCAN = 4
    ALL_GATHER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    REDUCE_SCATTER = 9
    TELL = 10


class Status(IntEnum):
    """`enum status` of core/group.h."""

    DONE = 0
    PENDING = 1
    MISMATCH = 2
    LENGTHS = 3
    BUSY = 4
    CLOSED = 5


# `enum dtype` and `enum reduction` of core/fold.h.
DTYPES: dict[torch.dtype, int] = {
    dtype: number
    for number, dtype in enumerate(
        (
            *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
            *(torch.int8, torch.int16, torch.int32, torch.int64),
            *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
        )
    )
}
REDUCTIONS = {
    kind: number
    for number, kind in enumerate(("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"))
}
MOVES = len(REDUCTIONS)  # in place of a reduction: none
FOLDED = 1 << 8  # added to a kind, in place of a reduction: torch reduces what the core has moved


@cache
def dtype_number(dtype: torch.dtype) -> int:
    """The core's number; for a dtype that it can only move, one that is the same on every rank."""
    return DTYPES.get(dtype, 1 << 16 | zlib.crc32(str(dtype).encode()) >> 16)


class Request:
    """One operation of a queue: the arguments of the core's `begin`, and the facts for errors."""

    __slots__ = (
        *("arguments", "begun", "count", "dtype", "error", "finish", "keep", "name"),
        *("op", "root", "sequence", "settled", "site", "sizes", "telling", "told"),
    )

    def __init__(
        self,
        name: str,
        kind: Kind,
        *,
        tensor: Tensor | None = None,
        ins: Sequence[Tensor] | None = None,
        outs: Sequence[Tensor] | None = None,
        root: int = 0,
        op: ReduceOp | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        some = tensor if tensor is not None else (*(ins or ()), *(outs or ()), None)[0]
        self.name, self.dtype = name, None if some is None else some.dtype
        number = len(DTYPES) if self.dtype is None else dtype_number(self.dtype)  # as the fast lane
        reduction = MOVES if op is None else REDUCTIONS[op.kind]
        factor = 0.0 if op is None or op.factor is None else op.factor
        where = (0, 0) if tensor is None else (tensor.data_ptr(), tensor.nbytes)
        self.arguments = (int(kind), number, reduction, root, factor, *where, blocks(ins), blocks(outs))
        self.keep = (tensor, ins, outs)
        self.op = "" if op is None else op.kind if op.factor is None else f"{op.kind} {op.factor!r}"[:24]
        self.root = root if kind in _ROOTED else -1
        self.count = -1 if tensor is None or kind in _UNCOUNTED else tensor.numel()
        self.sizes = {Kind.ALL_GATHER: outs, Kind.REDUCE_SCATTER: ins}.get(kind)
        self.finish = finish
        self.begun = self.settled = self.telling = self.told = False
        self.error: CommsError | Exception | None = None
        self.sequence, self.site = 0, ""

    def call(self) -> fingerprint.Call:
        """This operation in the words of errors."""
        lengths = 0 if not self.sizes else fingerprint.checksum(tuple(one.numel() for one in self.sizes))
        dtype = "" if self.dtype is None else str(self.dtype)
        facts = (self.name, self.sequence, dtype, self.count, lengths, self.root, self.op)
        return fingerprint.Call(*facts, self.site or fingerprint.call_site())

    def fold(self, kind: Kind, finish: Callable[[], None] | None) -> None:
        """The core only moves: torch reduces in `finish`, as in a `kind`, which the ranks must agree on too."""
        head, reduction, tail = self.arguments[:2], self.arguments[2], self.arguments[3:]
        self.arguments = (*head, reduction + FOLDED * (1 + kind), *tail)
        self.finish = finish

    def expects(self, peer: int) -> int:
        """Bytes that this rank wants of `peer`."""
        tensor, _, outs = self.keep
        taken = tensor if outs is None else outs[peer]
        return 0 if taken is None else taken.nbytes


_ROOTED = frozenset({Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER})
_UNCOUNTED = frozenset({Kind.GATHER, Kind.SCATTER, Kind.ALL_GATHER, Kind.REDUCE_SCATTER})


def blocks(tensors: Sequence[Tensor] | None) -> tuple[int, ...] | None:
    """Address and bytes of each tensor, flat."""
    if tensors is None:
        return None
    return tuple(number for tensor in tensors for number in (tensor.data_ptr(), tensor.nbytes))
