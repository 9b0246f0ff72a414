"""Which algorithm runs when: a table by operation, size of group and bytes. Imports no torch.

All ranks of a group must hold the same table, or they would wait for each other in different algorithms: a group uses
its attribute `choices`, which `torchcomms.tuning.agree` sets alike on every rank, or else the built-in default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("exchange", "shares", "doubling", "halving", "ring", "tree", "hierarchical"),
    "reduce": ("exchange", "shares", "tree"),
    "reduce_scatter": ("exchange", "halving", "ring"),
    "all_gather": ("exchange", "bruck", "ring"),
    "broadcast": ("tree", "wide tree", "scatter"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """`algorithm` for groups of up to `ranks` ranks and up to `nbytes` bytes; None is no limit."""

    algorithm: str
    ranks: int | None = None
    nbytes: int | None = None

    def fits(self, size: int, nbytes: int) -> bool:
        """Whether the rule covers a call."""
        return (self.ranks is None or size <= self.ranks) and (self.nbytes is None or nbytes <= self.nbytes)


@dataclass(frozen=True, slots=True)
class Table:
    """For each operation its rules, of which the first that fits counts; operations without rules use the default's.

    Bytes are those of the tensor; of the longest block for all_gather and reduce_scatter. `local` is the number of
    consecutive ranks that share a host, for the hierarchical algorithm.
    """

    rules: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    local: int = 1

    def __post_init__(self) -> None:
        for operation, rules in self.rules.items():
            known = ALGORITHMS.get(operation)
            if known is None:
                raise ValueError(f"{operation!r} has no choice of algorithms; choose among {', '.join(ALGORITHMS)}")
            for rule in rules:
                if rule.algorithm not in known:
                    raise ValueError(f"{operation} has no algorithm {rule.algorithm!r}; it has {', '.join(known)}")
            if not rules or not rules[-1].fits(1 << 62, 1 << 62):
                raise ValueError(
                    f"the rules of {operation} leave calls without an algorithm: end with one without limits"
                )
        if self.local < 1:
            raise ValueError(f"local is {self.local}: a host has at least one rank")

    def choose(self, operation: str, size: int, nbytes: int) -> str:
        """The algorithm for a call."""
        rules = self.rules.get(operation) or DEFAULT.rules[operation]
        return next(rule.algorithm for rule in rules if rule.fits(size, nbytes))

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers."""
        rules = {
            operation: [[rule.algorithm, rule.ranks, rule.nbytes] for rule in rules]
            for operation, rules in self.rules.items()
        }
        return {"local": self.local, "rules": rules}

    @classmethod
    def from_json(cls, written: Any) -> Table:
        """The table that `to_json` wrote; `ValueError` for anything else."""
        try:
            rules = {
                str(operation): tuple(
                    Rule(str(algorithm), _limit(ranks), _limit(nbytes)) for algorithm, ranks, nbytes in listed
                )
                for operation, listed in written["rules"].items()
            }
            local = int(written["local"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a table of choices: {type(error).__name__}: {error}") from error
        return cls(rules, local)


def _limit(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise ValueError(f"a limit is a number from 0 up or null, not {value!r}")
    return value


def always(operation: str, algorithm: str, local: int = 1) -> Table:
    """A table with one choice, for measuring it."""
    return Table({operation: (Rule(algorithm),)}, local)


def table_of(group: object) -> Table:
    """The table that a group uses."""
    table: Table | None = getattr(group, "choices", None)
    return DEFAULT if table is None else table


def chosen(group: Any, operation: str, nbytes: int) -> str:
    """The algorithm for a call in `group`."""
    return table_of(group).choose(operation, group.size, nbytes)


KIB, MIB = 1 << 10, 1 << 20
FEW = 16  # ranks up to which a message to each of the others at once is the fastest
# Beyond FEW those of all_reduce and broadcast come from simulation (benchmarks/bench_sim.py), between its fast cluster
# and slower wires; the others are estimates that nothing here has measured.
# Two ranks gain nothing from shares: whole tensors are no more bytes, and one round less.
DEFAULT = Table(
    {
        "all_reduce": (
            Rule("exchange", ranks=2),
            Rule("exchange", ranks=FEW, nbytes=32 * KIB - 1),
            Rule("shares", ranks=FEW),
            Rule("doubling", nbytes=64 * KIB),
            Rule("halving", nbytes=4 * MIB),
            # A ring moves as little and folds no extra ranks in; its rounds are many.
            Rule("ring", ranks=128),
            Rule("halving"),
        ),
        "reduce": (
            Rule("exchange", ranks=2),
            Rule("exchange", ranks=FEW, nbytes=32 * KIB - 1),
            Rule("shares", ranks=FEW),
            Rule("tree", nbytes=256 * KIB),
            Rule("shares", ranks=256),
            Rule("tree"),
        ),
        "reduce_scatter": (
            Rule("exchange", ranks=FEW),
            Rule("halving", nbytes=64 * KIB),
            Rule("ring", ranks=1024),
            Rule("halving"),
        ),
        "all_gather": (
            Rule("exchange", ranks=2),
            Rule("exchange", ranks=FEW, nbytes=64 * KIB - 1),
            Rule("bruck", nbytes=64 * KIB - 1),
            Rule("ring"),
        ),
        "broadcast": (
            Rule("tree", ranks=2),
            Rule("tree", ranks=FEW, nbytes=256 * KIB - 1),
            Rule("scatter", ranks=FEW),
            Rule("wide tree", nbytes=64 * KIB),
            Rule("tree", nbytes=2 * MIB),
            Rule("scatter", ranks=512),
            Rule("tree"),
        ),
    }
)
