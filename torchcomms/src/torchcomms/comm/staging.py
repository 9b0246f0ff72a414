"""Buffers between the caller's tensors and the backend, so that a collective that fails leaves nothing half done.

Reductions in place are staged for backends that do not do so themselves: they run on copies, in pieces of at most
`PIECE` bytes, and each piece is written back whole when it is through. So after a mismatch, a death, an abort or a
timeout a piece of the caller's tensor is either as it was or completely reduced. On accelerators nothing is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from torchcomms import layout
from torchcomms.collective import Step

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Ticket
    from torchcomms.comm.group import Group

PIECE = 64 << 20  # bytes of a reduction in place that are staged, and then written back, at a time


def fill(group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Dense buffers for tensors that are only written: private ones where they are short."""
    if not group.is_short(tensors):
        return [layout.blank(tensor) for tensor in tensors]
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def staged(
    group: Group, tensor: Tensor, begin: Callable[[Tensor, float], Ticket], *, written: bool = True
) -> Iterable[Step]:
    """The steps of a reduction in place; `written` tells whether this rank's tensor takes the result."""
    if group.direct:
        buffer = layout.dense(tensor)
        return [
            Step(lambda deadline: begin(buffer, deadline), [tensor] if written else [], [buffer] if written else [])
        ]
    return _pieces(group, tensor, begin, written)


def _pieces(group: Group, tensor: Tensor, begin: Callable[[Tensor, float], Ticket], written: bool) -> Iterator[Step]:
    whole = layout.dense(tensor)
    borrowed = whole.data_ptr() == tensor.data_ptr()
    # The cut depends on the length alone, so it is the same on ranks whose tensors are laid out differently.
    for piece in torch.split(whole.view(-1), max(1, PIECE // tensor.element_size())):
        yield _piece(group, piece, begin, borrowed, written)
    if written and not borrowed:
        layout.unpack([tensor], [whole])


def _piece(
    group: Group, piece: Tensor, begin: Callable[[Tensor, float], Ticket], borrowed: bool, written: bool
) -> Step:
    buffer = group.stage(piece) if borrowed and written else piece
    return Step(lambda deadline: begin(buffer, deadline), [piece] if written else [], [buffer] if written else [])
