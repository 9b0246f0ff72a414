"""Groups between rollouts and training, in order, with a bound on how old they can be when they are trained."""

from __future__ import annotations

import asyncio

from forge.errors import StalenessError
from forge.samples import Sample

__all__ = ["Buffer", "Group"]

Group = list[Sample]


class Buffer:
    """Groups by their admission numbers, behind `(max_staleness + 1) · groups_per_step` admission slots.

    A rollout takes slots before it generates; however long it then takes, groups are trained in the order of their
    slots. A step's slots are free again only when the generators hold the weights that the step made. So a group
    admitted under version v is at most the (v + max_staleness + 1) · groups_per_step-th, and is trained by the step
    that starts from version v + max_staleness at the latest. With a bound of 0 the same two loops take turns.
    `version` is where a resumed run goes on: counting starts from it.
    """

    def __init__(self, groups_per_step: int, max_staleness: int, version: int = 0) -> None:
        if groups_per_step < 1 or max_staleness < 0:
            raise ValueError(f"groups_per_step {groups_per_step} must be positive, max_staleness {max_staleness} ≥ 0")
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self.version = version
        self._admitted = version * groups_per_step
        self._taken = self._admitted
        self._groups: dict[int, Group] = {}
        self._changed = asyncio.Condition()

    @property
    def free_slots(self) -> int:
        """How many groups could be admitted now."""
        return (self.version + self.max_staleness + 1) * self.groups_per_step - self._admitted

    async def admit(self, groups: int) -> int:
        """Take `groups` slots, waiting until there are as many; returns the number of the first."""
        if groups > (self.max_staleness + 1) * self.groups_per_step:
            raise StalenessError(f"{groups} groups at once never fit the bound", bound=self.max_staleness)
        async with self._changed:
            await self._changed.wait_for(lambda: self.free_slots >= groups)
            self._admitted += groups
            return self._admitted - groups

    async def put(self, first: int, groups: list[Group]) -> None:
        """Hand over the groups of the slots from `first` on."""
        async with self._changed:
            self._groups.update(enumerate(groups, first))
            self._changed.notify_all()

    async def take(self) -> list[Group]:
        """The next `groups_per_step` groups in the order of their slots, waiting until all are there."""
        async with self._changed:
            wanted = range(self._taken, self._taken + self.groups_per_step)
            await self._changed.wait_for(lambda: all(number in self._groups for number in wanted))
            self._taken = wanted.stop
            return [self._groups.pop(number) for number in wanted]

    async def synced(self, version: int) -> None:
        """The generators hold `version` now; frees the slots of the step that made it."""
        async with self._changed:
            if version != self.version + 1:
                raise StalenessError(
                    f"version {version} follows {self.version}; sync every step exactly once", bound=self.max_staleness
                )
            self.version = version
            self._changed.notify_all()

    def check(self, groups: list[Group]) -> None:
        """Refuse to train on groups that are older than the bound."""
        oldest = min((sample.version for group in groups for sample in group), default=self.version)
        if self.version - oldest > self.max_staleness:
            raise StalenessError(
                f"a sample of version {oldest} would train version {self.version}; the bound is {self.max_staleness}",
                bound=self.max_staleness,
            )
