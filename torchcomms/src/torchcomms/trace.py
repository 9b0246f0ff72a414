"""`torchcomms trace`: several ranks' flight records as one timeline, and which rank is behind in which operation.

Reads the JSON that `FlightRecorderHook` writes and writes the trace event format of Chrome and Perfetto: one process
for each rank, one thread for each communicator. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcomms.errors import InvalidCall, name_ranks


@dataclass(frozen=True, slots=True)
class Dump:
    """The records of one rank. Its entries are as torch's flight recorder words them."""

    rank: int
    groups: Mapping[str, frozenset[int]]  # the ranks of each communicator
    entries: Sequence[Mapping[str, Any]]


def read(path: Path) -> Dump:
    """Read one rank's file."""
    try:
        found = json.loads(path.read_text())
        groups = {name: frozenset(json.loads(group["ranks"])) for name, group in found["pg_config"].items()}
        return Dump(int(found["rank"]), groups, found["entries"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidCall(f"{path} is no dump of a flight recorder: {type(error).__name__}: {error}") from error


def merge(paths: Iterable[Path], output: Path) -> list[str]:
    """Write the timeline of the dumps in `paths` (files, or folders of JSON) to `output`; returns what to say."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    dumps = [read(file) for file in files if file.resolve() != output.resolve()]
    if not dumps:
        raise InvalidCall("there are no dumps: set TORCHCOMMS_TRACE_DIR where the ranks run, and pass that folder")
    output.write_text(json.dumps(timeline(dumps)))
    return [*verdicts(dumps), f"{len(dumps)} dumps in {output}"]


def timeline(dumps: Iterable[Dump]) -> dict[str, Any]:
    """The trace events of all ranks."""
    events: list[dict[str, Any]] = []
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        names = sorted({entry["process_group"][0] for entry in dump.entries} | set(dump.groups))
        events.append(_label("process_name", dump.rank, 0, f"rank {dump.rank}"))
        events += [_label("thread_name", dump.rank, number, name) for number, name in enumerate(names)]
        end = max((entry["time_created_ns"] for entry in dump.entries), default=0)
        for entry in dump.entries:
            events.append(_event(dump.rank, names.index(entry["process_group"][0]), entry, end))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _label(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(rank: int, thread: int, entry: Mapping[str, Any], end: int) -> dict[str, Any]:
    """A slice of the timeline; an operation that never ended lasts until the rank's last sign of life."""
    begun = entry["time_created_ns"]
    done = entry.get("time_discovered_completed_ns") or max(end, begun)
    keys = ("collective_seq_id", "p2p_seq_id", "state", "input_sizes", "input_dtypes", "output_sizes", "error")
    details = {key: entry.get(key) for key in keys}
    return {
        "ph": "X",
        "name": operation(entry),
        "pid": rank,
        "tid": thread,
        "ts": begun / 1e3,
        "dur": (done - begun) / 1e3,
        "args": {**details, "site": site(entry)},
    }


def operation(entry: Mapping[str, Any]) -> str:
    """The operation's name without the backend's."""
    return str(entry["profiling_name"]).partition(":")[2]


def site(entry: Mapping[str, Any]) -> str:
    """The file and line that called it."""
    frames = entry.get("frames") or [{}]
    return f"{frames[0]['filename']}:{frames[0]['line']}" if frames[0] else "an unknown place"


def verdicts(dumps: Sequence[Dump]) -> list[str]:
    """For each communicator, one line: who is behind in which operation, or who called another, or that all agree."""
    names = sorted({name for dump in dumps for name in dump.groups})
    return [_verdict(name, [dump for dump in dumps if name in dump.groups]) for name in names]


def _verdict(name: str, dumps: Sequence[Dump]) -> str:
    latest = {dump.rank: _last(name, dump) for dump in dumps}
    expected = frozenset().union(*(dump.groups[name] for dump in dumps))
    unseen = sorted(expected - latest.keys())
    words = [f"no records of {name_ranks(unseen)}"] if unseen else []
    words += _differences(latest)
    words += [
        f"rank {rank} failed in {operation(last)} #{last['collective_seq_id']}: {last['error']}"
        for rank, last in sorted(latest.items())
        if last is not None and last.get("error")
    ]
    return f"{name}: {'; '.join(words) or _agreed(latest)}"


def _last(name: str, dump: Dump) -> Mapping[str, Any] | None:
    mine = [entry for entry in dump.entries if entry["process_group"][0] == name and not entry["is_p2p"]]
    return max(mine, key=lambda entry: entry["collective_seq_id"], default=None)


def _differences(latest: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    reached = {rank: 0 if last is None else int(last["collective_seq_id"]) for rank, last in latest.items()}
    newest = max(reached.values(), default=0)
    ahead = [rank for rank in reached if reached[rank] == newest]
    behind = sorted(rank for rank in reached if reached[rank] < newest)
    leaders: dict[str, list[int]] = {}
    for rank in ahead:
        last = latest[rank]
        if last is not None:
            leaders.setdefault(f"{operation(last)} #{newest} at {site(last)}", []).append(rank)
    if behind:
        waiting = " and ".join(f"{call} ({name_ranks(ranks)})" for call, ranks in leaders.items())
        return [f"{name_ranks([rank])} is behind: {_position(latest[rank])}, others in {waiting}" for rank in behind]
    kinds = {call.partition(" #")[0] for call in leaders}
    if len(kinds) > 1:
        return ["ranks differ: " + ", ".join(f"{name_ranks(ranks)} in {call}" for call, ranks in leaders.items())]
    return []


def _position(last: Mapping[str, Any] | None) -> str:
    if last is None:
        return "it has called nothing"
    verb = "it ended" if last["state"] == "completed" else "it is in"
    return f"{verb} {operation(last)} #{last['collective_seq_id']} at {site(last)}"


def _agreed(latest: Mapping[int, Mapping[str, Any] | None]) -> str:
    last = next(iter(latest.values()), None)
    return "all ranks agree" + ("" if last is None else f", last in {operation(last)} #{last['collective_seq_id']}")
