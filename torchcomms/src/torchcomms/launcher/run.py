"""Start the ranks of a job on this machine, watch over them, and end them together."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from types import FrameType

from torchcomms.launcher.job import Job
from torchcomms.launcher.nodes import Nodes
from torchcomms.launcher.output import Show, Streams, printer
from torchcomms.launcher.process import Rank, start
from torchcomms.launcher.verdict import causes, summary

TICK = 0.02  # seconds between two looks at who has ended
INTERRUPTED = 128 + signal.SIGINT


class Interrupt(Exception):
    """SIGINT or SIGTERM reached the launcher."""


def launch(job: Job, show: Show | None = None) -> int:
    """Run a job; the exit code is 0, that of the first rank to fail (128 + n for signal n), 1 for a failure on another
    machine, or 130.

    `show` gets every line that a rank writes, and by default prints it. When this returns, no process that it started
    is left. Call it from the main thread. A first SIGINT or SIGTERM gives the ranks `job.grace` seconds, a second none.
    Raises `CommsTimeout` when other machines do not come, and `InvalidCall` for a rendezvous that is none.
    """
    ranks: list[Rank] = []
    streams = Streams(show or printer(prefix=True))
    with _interruptible() as hurry:
        try:
            nodes = Nodes(job)
            nodes.meet()
            for local in range(job.ranks):
                ranks.append(start(job, nodes, local))
                streams.add(ranks[-1])
            failed, trouble = _watch(ranks, streams, nodes)
            _end(ranks, streams, job.grace, hurry)
            return _verdict(ranks, failed, trouble, nodes)
        except Interrupt as caught:
            _say(f"{caught}: ending {len(ranks)} ranks")
            _end(ranks, streams, job.grace, hurry)
            if ranks:
                nodes.leave(f"interrupted by {caught}")
            return INTERRUPTED
        finally:
            _end(ranks, streams, 0.0, hurry)
            streams.close()


@contextmanager
def _interruptible() -> Iterator[Event]:
    """Turn SIGINT and SIGTERM into `Interrupt`, the first time; after that they set the event that is yielded."""
    hurry, caught = Event(), Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if caught.is_set():
            hurry.set()
            return
        caught.set()
        raise Interrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(ranks: Sequence[Rank], streams: Streams, nodes: Nodes) -> tuple[list[Rank], str | None]:
    """Pass output on until all ranks have ended in order, or some have failed, here (those first) or elsewhere."""
    while True:
        streams.pump(TICK)
        codes = [rank.code for rank in ranks]
        if any(codes):
            while streams.pump(0.0):
                continue
            return causes([rank for rank, code in zip(ranks, codes, strict=True) if code]), None
        trouble = nodes.trouble()
        if trouble or None not in codes:
            return [], trouble


def _end(ranks: Sequence[Rank], streams: Streams, grace: float, hurry: Event) -> None:
    """Ask the ranks to stop, kill those that do not within `grace` seconds, and pass on their last words."""
    for rank in ranks:
        rank.ask()
    until = time.monotonic() + grace
    while time.monotonic() < until and not hurry.is_set() and any(rank.code is None for rank in ranks):
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
