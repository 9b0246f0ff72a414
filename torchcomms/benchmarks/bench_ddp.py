"""A training step of DistributedDataParallel and of FSDP2: this package beside gloo, and without communication.

Run `python benchmarks/bench_ddp.py`: writes bench_ddp.json and its section of RESULTS.md beside it. Rounds of all
subjects alternate, so that a busy machine is busy for all; a run takes about a minute.
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
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchcomms.distributed import place

RANKS = 2
WIDTH, DEPTH, BATCH = 1024, 4, 8
STEPS, ROUNDS, WARM = 5, 12, 3

Step = Callable[[], None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])


def step_of(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def replicated(group: dist.ProcessGroup) -> nn.Module:
    return DistributedDataParallel(network(), process_group=group, gradient_as_bucket_view=True)


def sharded(group: dist.ProcessGroup) -> nn.Module:
    model, mesh = network(), DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def subjects() -> dict[str, Step]:
    """A step of each way of training."""
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    placed = sharded(ours)
    placed.set_allocate_memory_from_process_group_for_comm(True)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]
    models = {
        "none": network(),
        "ddp alone": replicated(alone),
        "ddp torchcomms": replicated(ours),
        "ddp torchcomms, placed": place(replicated(ours)),
        "ddp gloo": replicated(gloo),
        "fsdp2 torchcomms": sharded(ours),
        "fsdp2 torchcomms, placed": placed,
        "fsdp2 gloo": sharded(gloo),
    }
    return {name: step_of(model) for name, model in models.items()}


def measure() -> list[dict[str, object]]:
    steps = subjects()
    times: dict[str, list[float]] = {name: [] for name in steps}
    busy: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            dist.barrier()
            for _ in range(STEPS if turn else WARM):
                began, used = time.perf_counter(), time.process_time()
                step()
                if turn:
                    times[name].append((time.perf_counter() - began) * 1e3)
                    busy[name].append((time.process_time() - used) * 1e3)
    return [{"subject": name, "wall": summary(times[name]), "cpu": summary(busy[name])} for name in steps]


def summary(values: list[float]) -> dict[str, float]:
    """Quartiles and the best, in milliseconds."""
    lower, median, upper = statistics.quantiles(values, n=4)
    return {"n": len(values), "best": min(values), "lower": lower, "median": median, "upper": upper}


def rank_main(output: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:torchcomms")
    rows = measure()
    if dist.get_rank() == 0:
        chosen = dist.group.WORLD.get_comm().get_backend()
        output.write_text(json.dumps([{**row, "backend": chosen} for row in rows]))
    dist.destroy_process_group()


def section(rows: list[dict[str, object]]) -> list[str]:
    lines = [
        "## Training steps beside gloo",
        f"{DEPTH} linear layers of {WIDTH} × {WIDTH}, batch {BATCH}, float32, SGD; {RANKS} ranks of one thread on",
        f"one machine; backend {rows[0]['backend']}. Milliseconds of a step, and of processor time in it. Placed:",
        "buckets or buffers in the communicator's memory. Alone: DDP in a group of one rank. None: the model without",
        "DDP. Ratios of medians: over gloo's, and over no communication (alone for DDP, none for FSDP2).",
        "",
        "| step | median | quartiles | best | processor | over gloo | over none |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    medians = {row["subject"]: row["wall"]["median"] for row in rows}
    for row in rows:
        wall, name = row["wall"], row["subject"]
        peer = medians.get(f"{name.split()[0]} gloo")
        silent = medians["ddp alone" if name.startswith("ddp") else "none"]
        over = [f"{wall['median'] / peer:.2f}" if peer else "", f"{wall['median'] / silent:.2f}"]
        spread = f"{wall['lower']:.2f} to {wall['upper']:.2f}"
        cells = [name, f"{wall['median']:.2f}", spread, f"{wall['best']:.2f}", f"{row['cpu']['median']:.2f}", *over]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    where = results.machine()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        launch = "from torchcomms.cli import main; main()"
        command = [sys.executable, "-W", "ignore", "-c", launch, "run", "-n", str(RANKS), __file__, str(output)]
        subprocess.run(command, check=True, timeout=600)
        rows = json.loads(output.read_text())
    print(results.record(Path(__file__).stem, rows, section(rows), where))


if __name__ == "__main__":
    rank_main(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
