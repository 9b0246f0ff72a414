"""Some ranks of a group as a group of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group
from torchcomms.backend import P2P

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Ticket


class Subgroup:
    """The ranks `ranks` of `group`, numbered by their place in that list (a `range` does); this rank is among them."""

    def __init__(self, group: Group, ranks: Sequence[int]) -> None:
        self._group, self._ranks = group, ranks
        self.rank, self.size = ranks.index(group.rank), len(ranks)

    def post(self, batch: Sequence[P2P]) -> Ticket:
        """Start messages whose peers are places."""
        return self._group.post([P2P(one.kind, one.tensor, self._ranks[one.peer], one.tag) for one in batch])

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The whole group's scratch: one schedule runs in both."""
        return self._group.scratch(shape, like)
