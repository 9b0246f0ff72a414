"""all_reduce and broadcast over loopback: the tcp backend beside gloo, and copying the bytes in memory as the limit.

Run `python benchmarks/bench_tcp.py`: writes bench_tcp.json and its section of RESULTS.md beside it. Rounds of both
libraries alternate, so that a busy machine is busy for both; a run takes less than a minute.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import results
import torch
import torch.distributed as dist

import torchcomms

SIZES = {8: 60, 4 << 10: 60, 256 << 10: 25, 4 << 20: 8}  # bytes: iterations in a round
NAMES = {8: "8 B", 4 << 10: "4 KiB", 256 << 10: "256 KiB", 4 << 20: "4 MiB"}
ROUNDS = 8
RANKS = 2


def timed(function: Callable[[], object], count: int, meet: Callable[[], object]) -> list[float]:
    """Microseconds of each call, all ranks starting together; the first is not counted."""
    times = []
    for _ in range(count + 1):
        meet()
        started = time.perf_counter()
        function()
        times.append((time.perf_counter() - started) * 1e6)
    return times[1:]


def measure(comm: torchcomms.TorchComm) -> list[dict[str, object]]:
    rows = []
    for size, count in SIZES.items():
        tensor = torch.zeros(size // 4)
        target = torch.empty_like(tensor)
        subjects: dict[str, dict[str, Callable[[], object]]] = {
            "all_reduce": {
                "ours": lambda tensor=tensor: comm.all_reduce(tensor, torchcomms.ReduceOp.SUM),
                "peer": lambda tensor=tensor: dist.all_reduce(tensor),
            },
            "broadcast": {
                "ours": lambda tensor=tensor: comm.broadcast(tensor, 0),
                "peer": lambda tensor=tensor: dist.broadcast(tensor, 0),
            },
        }
        for operation, pair in subjects.items():
            times: dict[str, list[float]] = {"ours": [], "peer": [], "limit": []}
            for _ in range(ROUNDS):
                for name, function in pair.items():
                    times[name] += timed(function, count, comm.barrier)
                copy = lambda target=target, tensor=tensor: target.copy_(tensor)  # noqa: E731
                times["limit"] += timed(copy, count, comm.barrier)
            rows.append({"operation": operation, "bytes": size, "n": count * ROUNDS, **summary(times)})
    return rows


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    """Quartiles and the best of each subject, in microseconds."""
    words = ("lower", "median", "upper")
    return {
        name: {**dict(zip(words, statistics.quantiles(values, n=4), strict=True)), "best": min(values)}
        for name, values in times.items()
    }


def rank_main(output: Path) -> None:
    """One rank: measure, and rank 1 (the receiver of a broadcast) writes what it saw."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with torchcomms.new_comm("tcp", "cpu", name="bench") as comm:
        rows = measure(comm)
        if comm.get_rank() == RANKS - 1:
            output.write_text(json.dumps(rows))
        comm.barrier()
    dist.destroy_process_group()


def section(rows: list[dict[str, object]]) -> list[str]:
    lines = [
        "## Collectives beside gloo",
        f"Medians in microseconds, best of the run in brackets; {RANKS} ranks, float32, loopback, one thread each;",
        "time on the receiving rank. Ratio is gloo over ours: above 1 is faster than gloo. Limit is copying the bytes",
        "once in memory.",
        "",
        "| operation | size | torchcomms tcp | gloo | ratio of medians | ratio of bests | limit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ours, peer, limit = row["ours"], row["peer"], row["limit"]
        both = [f"{one['median']:.0f} ({one['best']:.0f})" for one in (ours, peer)]
        ratios = [f"{peer[key] / ours[key]:.2f}" for key in ("median", "best")]
        cells = [row["operation"], NAMES[row["bytes"]], *both, *ratios, f"{limit['median']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    where = results.machine()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        launch = "from torchcomms.cli import main; main()"
        command = [sys.executable, "-c", launch, "run", "-n", str(RANKS), __file__, str(output)]
        subprocess.run(command, check=True, timeout=300)
        rows = json.loads(output.read_text())
    print(results.record(Path(__file__).stem, rows, section(rows), where))


if __name__ == "__main__":
    rank_main(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
