"""Ranks as processes of this machine: started together, their output prefixed, ended together.

The launcher hosts the store, so that no rank's death takes the meeting place away. Every rank leads a process group of
its own, so that ending it ends what it started as well. If the launcher itself is killed, the kernel kills the ranks
(`leash`), though not what they started.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.bootstrap import HOSTED

HOST = "127.0.0.1"
# Isolated and without site: it needs only the standard library, and starts in a fiftieth of a second.
LEASH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")))
TICK = 0.02  # seconds between two looks at who has ended
REMEMBERED = 5  # lines of a rank's errors that the summary repeats
INTERRUPTED = 128 + signal.SIGINT


@dataclass(eq=False)
class Rank:
    """One process, and the end of what it wrote to stderr."""

    number: int
    process: subprocess.Popen[bytes]
    said: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def signal(self, number: int) -> None:
        """Signal the rank and everything that it started."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return  # all of it is gone already

    def fate(self) -> str:
        """How it ended, in words."""
        code = self.process.poll()
        if code is None:
            return "is running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class Interrupt(Exception):
    """SIGINT or SIGTERM reached the launcher."""


def launch(command: Sequence[str], size: int, *, grace: float = 5.0) -> int:
    """Run `command` on `size` ranks; the exit code is 0, that of the first rank to fail (128 + n for signal n), or 130.

    When it returns, no process that it started is left. Call it from the main thread.
    """
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    ranks: list[Rank] = []
    with _interruptible(), selectors.DefaultSelector() as streams:
        try:
            for number in range(size):
                ranks.append(_start(command, number, size, store.port))
                _listen(streams, ranks[-1])
            failed = _watch(ranks, streams)
        except Interrupt as caught:
            _say(f"torchcomms: {caught}: ending {size} ranks")
            return _end(ranks, streams, grace) or INTERRUPTED
        finally:
            _end(ranks, streams, grace)
    return _summary(ranks, failed) if failed else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupt`, the first time; while ranks are being ended they are ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: Sequence[str], number: int, size: int, port: int) -> Rank:
    environment = {
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        HOSTED: str(True),
    }
    pipe = subprocess.PIPE
    leashed = [*LEASH, str(os.getpid()), *command]
    return Rank(number, subprocess.Popen(leashed, env=environment, stdout=pipe, stderr=pipe, start_new_session=True))


def _listen(streams: selectors.BaseSelector, rank: Rank) -> None:
    assert rank.process.stdout is not None
    assert rank.process.stderr is not None
    for source, sink in ((rank.process.stdout, sys.stdout), (rank.process.stderr, sys.stderr)):
        os.set_blocking(source.fileno(), False)
        streams.register(source, selectors.EVENT_READ, (rank, sink, bytearray()))


def _watch(ranks: Sequence[Rank], streams: selectors.BaseSelector) -> list[Rank]:
    """Pass output on until all ranks have ended in order or some have failed; those that failed first."""
    while True:
        _pass_on(streams, TICK)
        codes = [rank.process.poll() for rank in ranks]
        if any(codes):
            # Of several within one look, a rank that a signal ended is the cause, and those that raised the effect.
            killed = [rank for rank, code in zip(ranks, codes, strict=True) if code is not None and code < 0]
            return killed or [rank for rank, code in zip(ranks, codes, strict=True) if code]
        if None not in codes:
            return []


def _pass_on(streams: selectors.BaseSelector, patience: float) -> bool:
    """Prefix and print what the ranks have written; whether there was anything."""
    if not streams.get_map():
        time.sleep(patience)
        return False
    events = streams.select(patience)
    for key, _ in events:
        source: BinaryIO = key.fileobj  # type: ignore[assignment]
        rank, sink, partial = key.data
        text = source.read(1 << 16)
        if not text:
            streams.unregister(source)
            source.close()
        partial += text or (b"\n" if partial else b"")
        *lines, rest = partial.split(b"\n")
        partial[:] = rest
        for line in lines:
            _print(rank, sink is sys.stderr, line.decode(errors="replace"))
    return bool(events)


def _print(rank: Rank, is_error: bool, line: str) -> None:
    if is_error:
        rank.said.append(line)
    print(f"[{rank.number}] {line}", file=sys.stderr if is_error else sys.stdout, flush=True)


def _end(ranks: Sequence[Rank], streams: selectors.BaseSelector, grace: float) -> int:
    """Ask the ranks to stop, kill those that do not within `grace` seconds, and pass on their last words."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    until = time.monotonic() + grace
    while time.monotonic() < until and any(rank.process.poll() is None for rank in ranks):
        _pass_on(streams, TICK)
    for rank in ranks:
        rank.signal(signal.SIGKILL)
        rank.process.wait()
    while _pass_on(streams, TICK):
        continue
    for key in list(streams.get_map().values()):
        streams.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]
    return 0


def _summary(ranks: Sequence[Rank], failed: Sequence[Rank]) -> int:
    for rank in failed:
        _say(f"torchcomms: rank {rank.number} {rank.fate()}; its last errors:")
        for line in rank.said or ["(none)"]:
            _say(f"    {line}")
    for rank in ranks:
        if rank not in failed:
            _say(f"torchcomms: rank {rank.number} {rank.fate()} when the rest was ended")
    code = failed[0].process.returncode
    return code if code > 0 else 128 - code


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
