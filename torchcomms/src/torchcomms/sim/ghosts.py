"""Ranks without memory: what the simulation and the recorder of courses share as groups of the algorithms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torchcomms.algorithms.ghost import Ghost
from torchcomms.sim.ticket import SimTicket

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from torchcomms.algorithms.choice import Table
    from torchcomms.backend import P2P


class GhostGroup(ABC):
    """One rank's view of a group that moves ghosts; subclasses pay for messages and work."""

    def __init__(self, rank: int, size: int, choices: Table | None) -> None:
        self.rank, self.size, self.choices = rank, size, choices

    def ghost(self, count: int, dtype: torch.dtype, scale: float = 1) -> Tensor:
        """A flat tensor of this rank, of `count` elements that stand for `scale` real ones each."""
        return cast("Tensor", Ghost(count, dtype, self, scale))

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Another ghost."""
        return cast("Tensor", cast(Ghost, like).like(math.prod(shape), like.dtype))

    @abstractmethod
    def post(self, batch: Sequence[P2P]) -> SimTicket:
        """Start messages."""

    @abstractmethod
    def copied(self, nbytes: float) -> None:
        """So many bytes were copied."""

    @abstractmethod
    def reduced(self, nbytes: float) -> None:
        """So many bytes were folded into a partial result."""
