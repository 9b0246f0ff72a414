"""Buffers between the caller's tensors and the backend, so that a collective that fails leaves nothing half done.

A backend leaves a tensor that it reduces in place as it was until the result is certain, but it does not know whether
the ranks agree. So it gets a private copy of a tensor that is not long, at once, and a long one after they have agreed,
where a round trip costs less than copying. Tensors that are only written are filled by way of private ones where they
are short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchcomms import layout
from torchcomms.collective import Step

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Ticket
    from torchcomms.comm.group import Group

LONG = 1 << 20  # bytes above which a reduction in place waits for the ranks to agree


def fill(group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Dense buffers for tensors that are only written: private ones where they are short."""
    if not group.is_short(tensors):
        return [layout.blank(tensor) for tensor in tensors]
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def in_place(group: Group, tensor: Tensor, begin: Callable[[Tensor, float], Ticket], *, written: bool = True) -> Step:
    """A reduction in place; `written` tells whether this rank's tensor takes the result."""
    long = not group.direct and tensor.nbytes > LONG
    buffer = layout.dense(tensor) if group.direct or long else layout.private(tensor)
    targets, results = ([tensor], [buffer]) if written else ([], [])
    return Step(lambda deadline: begin(buffer, deadline), targets, results, agreed=long)
