"""Collectives in stream order: the library's own where they mean what the contract says, else steps of it.

Nothing here waits on the host. A collective of several steps is straight-line code: each step's `wait` orders the
current stream, so that the next one finds its data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcomms.algorithms.messages import chunks, copy, flat
from torchcomms.algorithms.reduction import fold
from torchcomms.backend import P2P, ReduceOp
from torchcomms.providers.c10d.library import Library, as_bytes
from torchcomms.providers.c10d.reductions import Dialect, in_words_of_torch, readable
from torchcomms.providers.c10d.streams import Flight, Streams

NATIVE = frozenset({"all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"})
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})


class Together:
    """What all ranks do together. Arguments are checked already; each call returns what the device does."""

    def __init__(self, library: Library, streams: Streams, dialect: Dialect, rank: int, size: int) -> None:
        self._library, self._streams, self._dialect = library, streams, dialect
        self._rank, self._size = rank, size
        self._others = [(rank + step) % size for step in range(1, size)]

    def broadcast(self, tensor: Tensor, root: int) -> list[Flight]:
        return [self._library.broadcast(as_bytes(tensor), root)] if tensor.numel() else []

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> list[Flight]:
        if not tensor.numel():
            return []
        if self._dialect.says(op, tensor.dtype):
            return [self._library.all_reduce(readable(tensor), in_words_of_torch(op, tensor.dtype))]
        shares = chunks(flat(tensor), self._size)
        self._fold_share(shares[self._rank], shares, op)
        return self.swap(shares, [shares[self._rank]] * self._size)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp) -> list[Flight]:
        # The library may write to any rank's tensor; the contract lets only the root's change.
        result = tensor if self._rank == root else tensor.clone()
        if tensor.numel() and self._dialect.says(op, tensor.dtype):
            return [self._library.reduce(readable(result), root, in_words_of_torch(op, tensor.dtype))]
        return self.all_reduce(result, op)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> list[Flight]:
        if tensor.numel() and len({output.numel() for output in outputs}) == 1:
            return [self._library.all_gather([as_bytes(output) for output in outputs], as_bytes(tensor))]
        return self.swap(outputs, [tensor] * self._size)

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> list[Flight]:
        even = output.numel() and len({one.numel() for one in inputs}) == 1
        if even and self._dialect.says(op, output.dtype):
            parts = [readable(one) for one in inputs]
            return [self._library.reduce_scatter(readable(output), parts, in_words_of_torch(op, output.dtype))]
        self._fold_share(flat(output), inputs, op)
        return [self._streams.mark()]

    def scan(self, tensor: Tensor, op: ReduceOp) -> list[Flight]:
        mine = flat(tensor)
        parts = [torch.empty_like(mine) for _ in range(self._rank)]
        batch = [P2P("recv", part, peer) for peer, part in enumerate(parts)]
        batch += [P2P("send", mine, peer) for peer in range(self._rank + 1, self._size)]
        sent = self._exchange(batch)
        for flight in sent:
            flight.wait()
        _fold(op, [*parts, mine], mine)
        return [self._streams.mark()]

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> list[Flight]:
        if self._rank != root:
            return self._exchange([P2P("send", tensor, root)])
        copy(flat(outputs[root]), flat(tensor))
        copied = self._streams.mark()
        return [*self._exchange([P2P("recv", outputs[peer], peer) for peer in self._others]), copied]

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> list[Flight]:
        if self._rank != root:
            return self._exchange([P2P("recv", output, root)])
        copy(flat(output), flat(inputs[root]))
        copied = self._streams.mark()
        return [*self._exchange([P2P("send", inputs[peer], peer) for peer in self._others]), copied]

    def swap(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Flight]:
        """Copy `inputs[r]` of rank s into `outputs[s]` of rank r, whatever the lengths."""
        copy(flat(outputs[self._rank]), flat(inputs[self._rank]))
        copied = self._streams.mark()
        batch = [P2P("recv", outputs[peer], peer) for peer in self._others]
        batch += [P2P("send", inputs[peer], peer) for peer in self._others]
        return [*self._exchange(batch), copied]

    def _exchange(self, batch: Sequence[P2P]) -> list[Flight]:
        return self._library.exchange([message for message in batch if message.tensor.numel()])

    def _fold_share(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> None:
        """Reduce `inputs[r]` of all ranks into `output` of rank r, by the contract's own rules."""
        parts = [torch.empty_like(output) for _ in range(self._size)]
        for flight in self.swap(parts, inputs):
            flight.wait()
        _fold(op, parts, output)


def _fold(op: ReduceOp, parts: Sequence[Tensor], output: Tensor) -> None:
    if output.dtype in _UNSIGNED:  # torch has no arithmetic for them on a device
        on_host = [part.cpu() for part in parts]
        result = torch.empty_like(on_host[0])
        fold(op, on_host, result)
        output.copy_(result)
    else:
        fold(op, parts, output)
