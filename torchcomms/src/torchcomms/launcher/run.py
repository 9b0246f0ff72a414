"""Start the ranks of a job on this machine, watch over them, and end them together."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from torchcomms.launcher.interrupts import Interrupt, Interrupts
from torchcomms.launcher.job import Job
from torchcomms.launcher.nodes import Nodes
from torchcomms.launcher.output import Show, Streams, printer
from torchcomms.launcher.process import Rank, start
from torchcomms.launcher.verdict import causes, summary

TICK = 0.02  # seconds between two looks at who has ended
INTERRUPTED = 128 + signal.SIGINT


def launch(job: Job, show: Show | None = None) -> int:
    """Run a job; the exit code is 0, that of the first rank to fail (128 + n for signal n), 1 for a failure on another
    machine, or 130.

    `show` gets every line that a rank writes, and by default prints it. When this returns, no process that it started
    is left. Call it from the main thread. A first SIGINT or SIGTERM gives the ranks `job.grace` seconds, a second none.
    Raises `CommsTimeout` when other machines do not come, and `InvalidCall` for a rendezvous that is none.
    """
    ranks: list[Rank] = []
    streams = Streams(show or printer(prefix=True))
    with Interrupts() as interrupts:
        try:
            nodes = Nodes(job, interrupts.check)
            nodes.meet()
            for local in range(job.ranks):
                ranks.append(start(job, nodes, local))
                streams.add(ranks[-1])
            failed, trouble = _watch(ranks, streams, nodes, interrupts)
            _end(ranks, streams, job.grace, interrupts)
            return _verdict(ranks, failed, trouble, nodes)
        except Interrupt as caught:
            _say(f"{caught}: ending {len(ranks)} ranks")
            _end(ranks, streams, job.grace, interrupts)
            if ranks:
                nodes.leave(f"interrupted by {caught}")
            return INTERRUPTED
        finally:
            _end(ranks, streams, 0.0, interrupts)
            streams.close()


def _watch(
    ranks: Sequence[Rank], streams: Streams, nodes: Nodes, interrupts: Interrupts
) -> tuple[list[Rank], str | None]:
    """Pass output on until all ranks have ended in order, or some have failed, here (those first) or elsewhere."""
    while True:
        streams.pump(TICK)
        interrupts.check()
        codes = [rank.code for rank in ranks]
        if any(codes):
            while streams.pump(0.0):
                continue
            return causes([rank for rank, code in zip(ranks, codes, strict=True) if code]), None
        trouble = nodes.trouble()
        if trouble or None not in codes:
            return [], trouble


def _end(ranks: Sequence[Rank], streams: Streams, grace: float, interrupts: Interrupts) -> None:
    """Ask the ranks to stop, kill those that do not within `grace` seconds, and pass on their last words."""
    for rank in ranks:
        rank.ask()
    until = time.monotonic() + grace
    while time.monotonic() < until and not interrupts.hurry and any(rank.code is None for rank in ranks):
        streams.pump(TICK)
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.collect()
    while streams.pump(0.0):
        continue


def _verdict(ranks: Sequence[Rank], failed: Sequence[Rank], trouble: str | None, nodes: Nodes) -> int:
    lines = summary(ranks, failed) if failed else []
    trouble = nodes.leave(lines[0].splitlines()[0] if lines else trouble) or trouble
    for line in [*([trouble] if trouble else []), *lines]:
        _say(line)
    if not failed:
        return 1 if trouble else 0
    code = failed[0].process.returncode
    return code if code > 0 else 128 - code


def _say(line: str) -> None:
    print(f"torchcomms: {line}", file=sys.stderr, flush=True)
