"""One rank of `torchcomms bench`: `python -m torchcomms.bench.rank PLAN`, started by any launcher.

Rank 0 prints one line for each size: the marker, then a row as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchcomms import TorchComm, new_comm
from torchcomms.backend import ReduceOp
from torchcomms.bench.plan import Plan

MARKER = "torchcomms-bench "
SAMPLE = 50e-6  # seconds that one sample takes at least: several calls of a fast operation
ROUNDS = 5  # in which subjects take turns, so that a busy machine is busy for all
MOST = 400  # samples of a subject
PATTERN = 3  # elements are whole numbers below it: exact in every dtype, summed over many ranks
SHARED = frozenset({"all_gather", "all_to_all", "reduce_scatter"})  # of which every rank has an equal share

Call = Callable[..., Any]


class Ours:
    """The operations of a communicator."""

    def __init__(self, comm: TorchComm) -> None:
        self.comm = comm

    def call(self, operation: str, tensor: Tensor, output: Tensor) -> Call:
        """The operation on these tensors, as a function without arguments."""
        comm, size = self.comm, self.comm.get_size()
        parts, outputs = list(tensor.tensor_split(size)), list(output.tensor_split(size))
        mine = outputs[comm.get_rank()]
        calls: dict[str, Call] = {
            "all_gather": lambda: comm.all_gather(outputs, parts[comm.get_rank()]),
            "all_reduce": lambda: comm.all_reduce(tensor, ReduceOp.SUM),
            "all_to_all": lambda: comm.all_to_all(outputs, parts),
            "barrier": comm.barrier,
            "broadcast": lambda: comm.broadcast(tensor, 0),
            "reduce": lambda: comm.reduce(tensor, 0, ReduceOp.SUM),
            "reduce_scatter": lambda: comm.reduce_scatter(mine, parts, ReduceOp.SUM),
        }
        return calls[operation]

    def close(self) -> None:
        self.comm.finalize()


class Peer:
    """The same operations of torch.distributed's default group."""

    def __init__(self, backend: str) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group(backend)

    def call(self, operation: str, tensor: Tensor, output: Tensor) -> Call:
        """The operation on these tensors, as a function without arguments."""
        dist, size, rank = self.dist, self.dist.get_world_size(), self.dist.get_rank()
        part, mine = tensor.tensor_split(size)[rank], output.tensor_split(size)[rank]
        gather = self.either("all_gather_single", "all_gather_into_tensor")
        scatter = self.either("reduce_scatter_single", "reduce_scatter_tensor")
        calls: dict[str, Call] = {
            "all_gather": lambda: gather(output, part),
            "all_reduce": lambda: dist.all_reduce(tensor),
            "all_to_all": lambda: dist.all_to_all_single(output, tensor),
            "barrier": dist.barrier,
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "reduce": lambda: dist.reduce(tensor, 0),
            "reduce_scatter": lambda: scatter(mine, tensor),
        }
        return calls[operation]

    def either(self, new: str, old: str) -> Call:
        """The operation under the name that this torch has for it."""
        found: Call = getattr(self.dist, new, None) or getattr(self.dist, old)
        return found

    def close(self) -> None:
        self.dist.destroy_process_group()


class Bench:
    """The measurements of one rank."""

    def __init__(self, plan: Plan, comm: TorchComm) -> None:
        self.plan, self.comm, self.device = plan, comm, comm.get_device()
        self.subjects: dict[str, Ours | Peer] = {comm.get_backend(): Ours(comm)}
        if plan.peer:
            name = plan.peer if plan.peer not in self.subjects else f"{plan.peer} of torch"
            self.subjects[name] = Peer(plan.peer)

    def row(self, nbytes: int) -> dict[str, object]:
        """All subjects at one size, taking turns."""
        dtype: torch.dtype = getattr(torch, self.plan.dtype)
        count = max(1, nbytes // dtype.itemsize)
        if self.plan.operation in SHARED:
            count = -(-count // self.comm.get_size()) * self.comm.get_size()
        wrong, calls, times, shots = [], {}, {}, {}
        for name, subject in self.subjects.items():
            tensor = torch.empty(count, dtype=dtype, device=self.device)
            output = torch.zeros_like(tensor)
            calls[name] = subject.call(self.plan.operation, tensor, output)
            if not self.agree(self.is_right(calls[name], tensor, output)):
                wrong.append(name)
            tensor.zero_()
            shots[name] = self.shots(calls[name])
            times[name] = list[float]()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name] += self.timed(call, *shots[name])
        made = {name: inner * samples * ROUNDS for name, (inner, samples) in shots.items()}
        spread = {name: spread_of(values) for name, values in times.items()}
        size = 0 if self.plan.operation == "barrier" else count * dtype.itemsize
        facts = {"ranks": self.comm.get_size(), "bytes": size}
        return {**facts, "calls": made[self.comm.get_backend()], "times": spread, "wrong": wrong}

    def is_right(self, call: Call, tensor: Tensor, output: Tensor) -> bool:
        """Whether one call gives what it must on this rank."""
        place = torch.arange(tensor.numel(), device=self.device)
        given = [((place + rank) % PATTERN).to(tensor.dtype) for rank in range(self.comm.get_size())]
        tensor.copy_(given[self.comm.get_rank()])
        call()
        self.settle()
        found, wanted = self.outcome(tensor, output, given)
        return torch.equal(found, wanted.to(found.dtype))

    def outcome(self, tensor: Tensor, output: Tensor, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """What the operation left, and what it should have: `given` are the inputs by rank."""
        rank, size, operation = self.comm.get_rank(), self.comm.get_size(), self.plan.operation
        total = torch.stack([one.float() for one in given]).sum(0)
        if operation == "all_reduce" or (operation == "reduce" and rank == 0):
            return tensor, total
        if operation == "broadcast":
            return tensor, given[0]
        if operation == "all_gather":
            return output, torch.cat([one.tensor_split(size)[other] for other, one in enumerate(given)])
        if operation == "all_to_all":
            return output, torch.cat([one.tensor_split(size)[rank] for one in given])
        if operation == "reduce_scatter":
            return output.tensor_split(size)[rank], total.tensor_split(size)[rank]
        return tensor, given[rank]

    def shots(self, call: Call) -> tuple[int, int]:
        """Calls in a sample and samples in a round, the same on every rank."""
        self.timed(call, 2, 1)
        once = self.timed(call, 3, 1)[0] / 1e6
        inner = max(1, round(SAMPLE / once))
        samples = min(MOST, int(self.plan.seconds / (inner * once)))
        agreed = torch.tensor([inner, max(1, samples // ROUNDS)], device=self.device)
        self.comm.broadcast(agreed, 0)
        return int(agreed[0]), int(agreed[1])

    def timed(self, call: Call, inner: int, samples: int) -> list[float]:
        """Microseconds of a call, of the slowest rank, for each sample."""
        times = []
        for _ in range(samples):
            started = time.perf_counter()
            for _ in range(inner):
                call()
            self.settle()
            times.append((time.perf_counter() - started) / inner * 1e6)
        mine = torch.tensor(times, dtype=torch.float64).to(self.device)
        self.comm.all_reduce(mine, ReduceOp.MAX)
        values: list[float] = mine.tolist()
        return values

    def agree(self, right: bool) -> bool:
        """Whether it is so on every rank."""
        answer = torch.tensor([int(right)], device=self.device)
        self.comm.all_reduce(answer, ReduceOp.MIN)
        return bool(answer.item())

    def settle(self) -> None:
        """Wait for an accelerator."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def close(self) -> None:
        for subject in reversed(self.subjects.values()):
            subject.close()


def spread_of(values: list[float]) -> Mapping[str, float]:
    """Median and the tenths at both ends."""
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1], "best": min(values)}


def main(plan: Plan) -> None:
    """Measure all sizes."""
    torch.set_num_threads(1)
    device = torch.device(plan.device)
    if device.type != "cpu":
        import os

        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device.index)
    with new_comm(plan.backend, device, name="bench") as comm:
        bench = Bench(plan, comm)
        for size in plan.sizes[: plan.rows()]:
            row = bench.row(size)
            if comm.get_rank() == 0:
                print(MARKER + json.dumps(row), flush=True)
        bench.close()


if __name__ == "__main__":
    main(Plan.load(sys.argv[1]))
