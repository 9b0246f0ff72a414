"""The soak: thousands of communicators over every CPU backend between processes, with kills, mismatches and aborts.

Run `python benchmarks/soak.py --minutes 10 --seed 0`: writes soak.json and its section of RESULTS.md, and exits with 1
if anything was wrong: a hang, an error other than the right one on any survivor, a wrong result, something left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import results as records
import soak_rank as rank
import torch

import torchcomms
from torchcomms.testing import CommProcesses
from torchcomms.testing.generate import program
from torchcomms.testing.samples import all_dtypes
from torchcomms.testing.world import World, run_and_kill
from torchcomms.testing.world import results as on_all

PATIENCE = 60.0  # seconds that an event may take before it counts as a hang
TIMEOUT = 20.0  # seconds of the communicators
FLAT = 64 << 10  # kilobytes that a warm process may grow in half a round, arenas of the allocator included
KINDS = ("length", "operation", "reduction", "root")


@dataclass
class Tally:
    """What has happened so far to one backend."""

    events: Counter[str] = field(default_factory=Counter)
    deaths: list[float] = field(default_factory=list)  # milliseconds until the last survivor had its error
    growth: list[float] = field(default_factory=list)  # kilobytes for each communicator
    wrong: list[str] = field(default_factory=list)


class Round:
    """One world of processes: many communicators, and in the end a death."""

    def __init__(self, name: str, seed: int, tally: Tally) -> None:
        self.name, self.seed, self.tally = name, seed, tally
        self.choose = random.Random(seed)
        self.size = self.choose.choice((2, 3, 4))
        self.event = "open"

    def run(self, until: float) -> None:
        """Everything; what goes wrong is noted."""
        world = None
        try:
            world = CommProcesses(self.name, self.size, timeout=TIMEOUT)
            with self.watched(world):
                on_all(world, rank.prepare)
            self.groups(world, until)
            self.death(world)
        except Exception as error:
            self.note(f"{type(error).__name__}: {error}")
        finally:
            if world is not None:
                pids = world.pids
                world.close()
                self.expect(not any(map(alive, pids)), f"of the processes {pids} some outlive their world")

    def groups(self, world: CommProcesses, until: float) -> None:
        """Communicators one after another, each with an event of its own; nothing may be left of them."""
        self.one(world, self.ordinary)
        before, half = self.held(world), self.choose.randint(15, 45)
        self.several(world, half, until)
        middle = self.held(world)
        done = self.several(world, half, until)
        after = self.held(world)
        for number, (old, warm, new) in enumerate(zip(before, middle, after, strict=True)):
            left = f"communicators left descriptors, threads: {old[:2]} before, {new[:2]} after"
            self.expect(new[0] <= old[0] and new[1] <= old[1], f"rank {number}: {left}")
            if done == half:
                growth = (new[2] - warm[2]) / half
                self.tally.growth.append(growth)
                self.expect(growth * half < FLAT, f"rank {number} grew {growth:.0f} KB for each communicator")

    def several(self, world: CommProcesses, count: int, until: float) -> int:
        """Communicators one after another, while there is time; how many."""
        for done in range(count):
            if time.monotonic() > until:
                return done
            self.one(world, self.choose.choice(self.events()))
        return count

    def held(self, world: CommProcesses) -> list[tuple[int, int, int]]:
        with self.watched(world):
            return on_all(world, rank.holds)

    def events(self) -> tuple[Callable[[World[Any]], None], ...]:
        return (self.ordinary, self.ordinary, self.at_once, self.part, self.mismatch, self.late, self.abort)

    def one(self, world: CommProcesses, event: Callable[[World[Any]], None]) -> None:
        """Open, let the event happen, close."""
        self.event = event.__name__
        with self.watched(world):
            group = world.open()
            try:
                event(group)
            finally:
                group.close()
        self.tally.events["communicators"] += 1
        self.tally.events[self.event] += 1

    def cases(self, size: int) -> list[Any]:
        return program(self.choose.choice, sorted(all_dtypes()), size)

    def ordinary(self, group: World[Any]) -> None:
        cases = self.cases(self.size)
        self.all_right(group, partial(rank.work, cases))
        self.tally.events["operations"] += len(cases)

    def at_once(self, group: World[Any]) -> None:
        self.all_right(group, partial(rank.work_at_once, self.choose.randrange(1 << 30)))

    def part(self, group: World[Any]) -> None:
        self.all_right(group, partial(rank.work_in_a_part, self.choose.randrange(1 << 30)))

    def all_right(self, group: World[Any], function: Callable[[Any], str]) -> None:
        for number, wrong in enumerate(group.run(function)):
            self.expect(wrong == "", f"rank {number}: {wrong!r}")

    def mismatch(self, group: World[Any]) -> None:
        kind = self.choose.choice(KINDS)
        seen = group.run(partial(rank.disagree, kind, self.choose.randrange(self.size)))
        wanted = [("CollectiveMismatch", tuple(range(self.size)))] * self.size
        self.expect(seen == wanted, f"ranks that differ in {kind} got {seen}")

    def late(self, group: World[Any]) -> None:
        absent = self.choose.randrange(self.size)
        seen = group.run(partial(rank.stay_away, absent))
        wanted = [("CommsTimeout", (absent,)) if number != absent else ("", ()) for number in range(self.size)]
        self.expect(seen == wanted, f"ranks that miss rank {absent} got {seen}")

    def abort(self, group: World[Any]) -> None:
        victim = self.choose.randrange(self.size)
        for number, seen in enumerate(group.run(partial(rank.aborted, victim))):
            # Who was missed by a rank that left for the victim's sake is a cause too.
            ended = seen[0] if isinstance(seen, tuple) else seen
            wanted = "CommsAborted" if number == victim else "PeerFailed"
            self.expect(ended == wanted, f"rank {victim} aborted and left; rank {number} got {seen}")

    def death(self, world: CommProcesses) -> None:
        """Kill a rank in a collective; the others are told, form the group anew and go on."""
        self.event = "death"
        with self.watched(world):
            victim, handles = self.choose.randrange(self.size), on_all(world, rank.handle)
            count = self.choose.choice((1, 1000, 1 << 20))
            function = partial(rank.until_it_fails, count)
            seen, killed = run_and_kill(world, function, victim, self.choose.uniform(0.01, 0.05))
            survivors = [number for number in range(self.size) if number != victim]
            for number in survivors:
                ended, moment = seen[number] if isinstance(seen[number], tuple) else (seen[number], killed)
                self.expect(ended == ("PeerFailed", (victim,)), f"rank {victim} was killed; rank {number} got {ended}")
                self.tally.deaths.append(1e3 * (moment - killed))
            self.anew(world, [handles[number] for number in self.choose.sample(survivors, len(survivors))], survivors)
        self.tally.events["death"] += 1

    def anew(self, world: CommProcesses, handles: list[str], survivors: list[int]) -> None:
        function = partial(rank.form_anew, handles, self.seed + 1, self.cases(len(survivors)))
        for number, wrong in enumerate(world.run(function)):
            self.expect(number not in survivors or wrong == "", f"after reconfigure, rank {number}: {wrong!r}")

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.note(what)

    def note(self, what: str) -> None:
        words = f"{self.name}, seed {self.seed}, {self.size} ranks, {self.event}: {what}"
        self.tally.wrong.append(words)
        print(f"\nWRONG {words}", file=sys.stderr, flush=True)

    @contextmanager
    def watched(self, world: CommProcesses) -> Iterator[None]:
        """Past its time, let the ranks say where they are, and kill them: then nothing waits any more."""
        done = threading.Event()

        def watch() -> None:
            if not done.wait(PATIENCE):
                self.note(f"hangs for {PATIENCE:g} s")
                for number in (signal.SIGUSR1, signal.SIGKILL):
                    for pid in filter(alive, world.pids):
                        os.kill(pid, number)
                    done.wait(1.0)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return not any(line.startswith("State:\tZ") for line in status)
    except FileNotFoundError:
        return False


def usable() -> list[str]:
    """The backends that move CPU tensors between processes here."""
    names = [name for name in torchcomms.backends() if name not in ("auto", "inproc", "sim")]
    able = {name: torchcomms.find(name).capabilities() for name in names}
    return [name for name, one in able.items() if one.usable and "cpu" in one.devices]


def soak(minutes: float, seed: int, names: list[str]) -> dict[str, Tally]:
    """Rounds in turn over the backends, until the time is up."""
    tallies = {name: Tally() for name in names}
    began, number = time.monotonic(), 0
    until = began + 60 * minutes
    while time.monotonic() < until:
        name = names[number % len(names)]
        Round(name, seed * 1_000_003 + number, tallies[name]).run(until)
        number += 1
        every = sum((tally.events for tally in tallies.values()), Counter[str]())
        wrong = sum(len(tally.wrong) for tally in tallies.values())
        words = f"{every['communicators']} communicators, {every['operations']} operations, {every['death']} kills"
        line = f"{(time.monotonic() - began) / 60:5.1f} min, round {number}: {words}, {wrong} wrong"
        print(
            f"\r\033[K{line}" if sys.stderr.isatty() else line,
            end="\n" if not sys.stderr.isatty() else "",
            file=sys.stderr,
            flush=True,
        )
    return tallies


COLUMNS = ("communicators", "operations", "at_once", "part", "mismatch", "late", "abort", "death")


def row(name: str, tally: Tally) -> dict[str, object]:
    """One backend's record."""
    deaths, growth = sorted(tally.deaths), sorted(tally.growth)
    return {
        "backend": name,
        **{column: tally.events[column] for column in COLUMNS},
        "median_death_ms": round(deaths[len(deaths) // 2], 2) if deaths else None,
        "worst_death_ms": round(deaths[-1], 2) if deaths else None,
        "median_growth_kb": round(growth[len(growth) // 2], 1) if growth else None,
        "wrong": tally.wrong,
    }


def section(rows: list[dict[str, object]], minutes: float, seed: int) -> list[str]:
    """The section of RESULTS.md."""
    heads = ["backend", *COLUMNS, "death to error, ms (median, worst)", "growth, KB", "wrong"]
    lines = [
        "## Soak",
        f"{minutes:g} minutes, seed {seed}: communicators one after another between 2 to 4 processes, each with one",
        "event; a rank killed at the end of each round, after which the others form the group anew. Wrong would be a",
        "hang, a result, an error on any survivor, a descriptor, thread or process left. Growth is that of a warm",
        "process for each communicator, the median.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
    ]
    for one in rows:
        death = f"{one['median_death_ms']}, {one['worst_death_ms']}"
        cells = [one["backend"], *(one[column] for column in COLUMNS), death, one["median_growth_kb"]]
        lines.append(f"| {' | '.join(map(str, cells))} | {len(one['wrong'])} |")  # type: ignore[arg-type]
    return lines


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--backends", default="", help="names with commas between; default: all that are usable")
    options.add_argument("--dry", action="store_true", help="write no record")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    where, names = records.machine(), chosen.backends.split(",") if chosen.backends else usable()
    tallies = soak(chosen.minutes, chosen.seed, names)
    rows = [row(name, tally) for name, tally in tallies.items()]
    lines = section(rows, chosen.minutes, chosen.seed)
    print("\n".join(lines) if chosen.dry else records.record("soak", rows, lines, where))
    return int(any(tally.wrong for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
