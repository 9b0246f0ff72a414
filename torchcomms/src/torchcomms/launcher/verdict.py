"""Who failed and why, from exit codes and the ends of what the ranks wrote to stderr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchcomms.errors import name_ranks
from torchcomms.launcher.process import Rank

TRACEBACK = "Traceback (most recent call last):"
OURS = re.compile(r"torchcomms\.errors\.\w+: ")
NAMED = re.compile(r"\branks? (\d+(?:(?:, | and )\d+)*)")
HEAD = re.compile(r"^\[rank\d+\]: ")  # that torch.distributed puts before every line of a traceback
SHOWN = 5  # lines of a rank that left no traceback


def reason(said: Iterable[str]) -> str:
    """The last line of the last traceback, or nothing."""
    lines = [HEAD.sub("", line) for line in said]
    starts = [index for index, line in enumerate(lines) if line.strip() == TRACEBACK]
    below = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in below if line and not line[0].isspace()), "")


def named(error: str) -> frozenset[int]:
    """The ranks that an error of torchcomms names."""
    if not OURS.match(error):
        return frozenset()
    return frozenset(int(number) for group in NAMED.findall(error) for number in re.findall(r"\d+", group))


def causes(failed: Sequence[Rank]) -> list[Rank]:
    """Of ranks that failed at the same time: those that the errors of the others do not explain.

    A rank that a signal ended is the cause, and those that raised the effect; so is one that raised anything but an
    error of torchcomms that names other ranks.
    """
    killed = [rank for rank in failed if (rank.code or 0) < 0]
    own = [rank for rank in failed if not named(reason(rank.said)) - {rank.number}]
    return killed or own or list(failed)


def summary(ranks: Sequence[Rank], failed: Sequence[Rank]) -> list[str]:
    """The lines that say who failed, how and why, and what became of the others."""
    lines = []
    for rank in failed:
        why = reason(rank.said)
        lines.append(f"rank {rank.number} {rank.fate()}{': ' + why if why else _last_words(rank)}")
    for rank in ranks:
        if rank not in failed:
            why = reason(rank.said)
            lines.append(f"rank {rank.number} {rank.fate()} when the rest was ended{': ' + why if why else ''}")
    return lines + _accused(ranks)


def _last_words(rank: Rank) -> str:
    said = [line for line in rank.said if line.strip()][-SHOWN:]
    return "; its last errors:" + "".join(f"\n    {line}" for line in said) if said else "; it wrote no error"


def _accused(ranks: Sequence[Rank]) -> list[str]:
    by: dict[int, list[int]] = {}
    for rank in ranks:
        for other in named(reason(rank.said)) - {rank.number}:
            by.setdefault(other, []).append(rank.number)
    return [f"rank {rank} is named by the error of {name_ranks(accusers)}" for rank, accusers in sorted(by.items())]
