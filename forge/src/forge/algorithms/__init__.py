"""Rewards to advantages, one short module an algorithm: `advantages(rewards f32[N], groups i64[N]) -> f32[N]`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from forge.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAMES", "Algorithm", "find"]

NAMES = ("dr_grpo", "grpo", "rloo")


class Algorithm(Protocol):
    """What a module of this package, or any object of the user's, offers."""

    def advantages(self, rewards: Tensor, groups: Tensor) -> Tensor:
        """Advantage of each sample, f32[N]; samples with equal `groups` answer the same prompt."""
        ...


def find(name: str) -> Algorithm:
    """The algorithm of a name; a "package.module" of the user's own works as well."""
    if name in NAMES:
        return import_module(f"forge.algorithms.{name}")
    if "." not in name:
        raise ConfigError(f"algorithm {name!r} is not one of {', '.join(NAMES)}, nor a module path", key="algorithm")
    return import_module(name)
