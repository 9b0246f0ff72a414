"""The simulation: how far its times are from real runs on this host, and what it says about all_reduce at scale.

First the model's parameters are measured over tcp on this host (and between two network namespaces, for root), and
the same schedules are run and simulated. Then five algorithms of all_reduce are simulated on clusters of 8 to 131,072
ranks; that part is arithmetic and does not depend on this machine. Takes about ten minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import results
import torch

from torchcomms.algorithms.choice import ALGORITHMS, always
from torchcomms.algorithms.reducing import ALL_REDUCE
from torchcomms.backend import ReduceOp
from torchcomms.errors import MeasurementFailed
from torchcomms.measuring import on_ranks
from torchcomms.sim import Calibration, Topology, calibrate, example, simulate
from torchcomms.sim.ghosts import GhostGroup
from torchcomms.sim.operations import symmetry_of
from torchcomms.testing.namespaces import joined
from torchcomms.tuner import Plan

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CHECKED = (8, 64 * KIB, 1 * MIB)
RANKS = (2, 4, 8)
LOCAL = 8
SCALES = (8, 64, 512, 4096, 32_768, 131_072)
SIZES = (8, 1 * KIB, 32 * KIB, 1 * MIB, 32 * MIB, 1 * GIB)
FEW = (8, 1 * MIB, 1 * GIB)  # sizes of those that take a minute each at the largest scales
STUDIED = ("ring", "tree", "doubling", "halving", "hierarchical")
SLOW = {"ring": 4096, "tree": 32_768}  # ranks above which only FEW sizes are simulated
NAMES = {8: "8 B", KIB: "1 KiB", 32 * KIB: "32 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 32 * MIB: "32 MiB", GIB: "1 GiB"}

CONCLUSION = (
    "What the default table takes from it: beyond 16 ranks doubling up to 64 KiB, then halving; the crossover lies",
    "between 32 KiB and 1 MiB here and lower on slower wires. Where a table states how many ranks share a host, the",
    "hierarchical algorithm is the better choice from about 1 MiB; the default states none. The default's ring, for",
    "4 MiB and more on up to 128 ranks, is for numbers of ranks that are no power of two, which are not in this study.",
)


def check() -> tuple[list[dict[str, object]], Calibration]:
    """Measured and simulated seconds of every algorithm on this host."""
    rows: list[dict[str, object]] = []
    calibration = calibrate("tcp", ranks=4, repeats=20)
    for ranks in RANKS:
        plan = Plan("tcp", ranks, ("all_reduce",), CHECKED, repeats=15)
        for _, nbytes, algorithm, seconds in on_ranks("torchcomms.tuner", ranks, asdict(plan)):
            model = simulate("all_reduce", calibration.topology(ranks), nbytes, algorithm=algorithm).seconds
            rows.append(
                {"ranks": ranks, "bytes": nbytes, "algorithm": algorithm, "measured": seconds, "simulated": model}
            )
    return rows, calibration


def apart() -> Calibration | None:
    """A calibration of two ranks in network namespaces joined by a virtual cable; None where that is not allowed."""
    if os.geteuid():
        return None
    with joined() as hosts:
        command = [sys.executable, "-m", "torchcomms.sim.probe", json.dumps({"backend": "tcp", "repeats": 20})]
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29411", "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", hosts.names[rank], *command],
                env={**os.environ, **where, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said, _ = ranks[0].communicate(timeout=300)
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    facts = json.loads(said.splitlines()[-1])["result"]
    return Calibration("tcp", facts, facts)


def study() -> list[dict[str, object]]:
    """Simulated seconds of five algorithms by size and scale; each tensor is reduced as a whole, not in pieces."""
    rows: list[dict[str, object]] = []
    for ranks in SCALES:
        topology = example(ranks // LOCAL, LOCAL)
        for nbytes in SIZES:
            for algorithm in STUDIED:
                if ranks <= SLOW.get(algorithm, ranks) or nbytes in FEW:
                    seconds = whole(algorithm, topology, nbytes)
                    rows.append({"ranks": ranks, "bytes": nbytes, "algorithm": algorithm, "seconds": seconds})
    return rows


def whole(algorithm: str, topology: Topology, nbytes: int) -> float:
    """Simulated seconds of an all_reduce in one piece; shares are cut evenly, in fractions of elements if need be."""
    count, size = nbytes // 4, topology.size
    even = (count, 1.0) if count % size == 0 else (size, count / size)

    def schedule(group: GhostGroup) -> object:
        return ALL_REDUCE[algorithm](group, group.ghost(even[0], torch.float32, even[1]), ReduceOp.SUM)

    moves = symmetry_of("all_reduce", algorithm, topology, nbytes)
    table = always("all_reduce", algorithm, topology.local)
    return simulate(schedule, topology, choices=table, symmetry=moves).seconds


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}"


def link_line(name: str, calibration: Calibration) -> str:
    link, topology = calibration.link, calibration.topology(2)
    cells = [
        f"{link.latency * 1e6:.1f}",
        f"{topology.post * 1e6:.1f}",
        f"{1e-9 / link.byte:.2f}",
        f"{1e-9 / link.shared:.2f}",
        f"{link.gap * 1e6:.1f}",
        f"{1e-9 / topology.copy:.1f}",
        f"{1e-9 / topology.reduce:.1f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def check_lines(rows: list[dict[str, object]], calibration: Calibration, cable: Calibration | None) -> list[str]:
    lines = [
        "Parameters measured on this host, then all_reduce (float32) run over tcp and simulated with them. Latency,",
        "cost of a message and gap in µs; a message alone, all ranks together, copying and reducing in GB/s.",
        "",
        "| link | latency | message | alone | together | gap | copy | reduce |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        link_line("loopback", calibration),
    ]
    lines += [link_line("between two network namespaces", cable)] if cable else []
    lines += ["", "Simulated over measured: median and range over the algorithms.", "", "| ranks | bytes | ratio |"]
    lines += ["| --- | --- | --- |"]
    for ranks in RANKS:
        for nbytes in CHECKED:
            ratios = [
                row["simulated"] / row["measured"] for row in rows if (row["ranks"], row["bytes"]) == (ranks, nbytes)
            ]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| {ranks} | {NAMES[nbytes]} | {spread} |")
    return [*lines, "", *ranking(rows)]


def ranking(rows: list[dict[str, object]]) -> list[str]:
    """How good the simulation's choice would have been."""
    losses = []
    for ranks in RANKS:
        for nbytes in CHECKED:
            group = [row for row in rows if (row["ranks"], row["bytes"]) == (ranks, nbytes)]
            advised = min(group, key=lambda row: row["simulated"])
            losses.append(advised["measured"] / min(row["measured"] for row in group))
    same = sum(loss == 1.0 for loss in losses)
    return [
        f"The algorithm that the simulation advises was the fastest of {len(ALGORITHMS['all_reduce']) - 1} in {same} "
        f"of {len(losses)} cases, and took at most {max(losses):.2f} times as long as the fastest.",
    ]


def study_lines(rows: list[dict[str, object]]) -> list[str]:
    topology = example(2, LOCAL)
    lines = [
        "### All_reduce by size and scale",
        "",
        f"Simulated µs, float32, hosts of {LOCAL}; the fastest in bold. Not measured: the cluster is an example with",
        "round figures of present hardware, `torchcomms.sim.example`. A message takes "
        f"{topology.inside.latency * 1e6:g} µs inside a host and",
        f"{topology.between.latency * 1e6:g} µs between, a rank sends {1e-9 / topology.inside.byte:g} and "
        f"{1e-9 / topology.between.byte:g} GB/s, each message costs a rank {topology.post * 1e6:g} µs, and",
        f"{1e-9 / topology.reduce:g} GB/s are copied and reduced. halving is Rabenseifner's; a dash: not simulated.",
        "",
        f"| ranks | size | {' | '.join(STUDIED)} |",
        f"| --- | --- |{' --- |' * len(STUDIED)}",
    ]
    times = {(row["ranks"], row["bytes"], row["algorithm"]): row["seconds"] for row in rows}
    for ranks in SCALES:
        for nbytes in SIZES:
            found = {name: times[key] for name in STUDIED if (key := (ranks, nbytes, name)) in times}
            best = min(found, key=found.__getitem__)
            cells = [micro(found[name]) if name in found else "-" for name in STUDIED]
            bold = [f"**{cell}**" if name == best else cell for name, cell in zip(STUDIED, cells, strict=True)]
            lines.append(f"| {ranks} | {NAMES[nbytes]} | {' | '.join(bold)} |")
    return [*lines, "", *CONCLUSION]


def main() -> None:
    where = results.machine()
    rows, calibration = check()
    try:
        cable = apart()
    except (MeasurementFailed, OSError, subprocess.SubprocessError) as error:
        print(f"no measurement between namespaces: {error}", file=sys.stderr)
        cable = None
    studied = study()
    lines = ["## The simulation", *check_lines(rows, calibration, cable), "", *study_lines(studied)]
    print(results.record(Path(__file__).stem, [*rows, *studied], lines, where))


if __name__ == "__main__":
    main()
