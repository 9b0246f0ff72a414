"""Checks of what a backend may have beside the core: its own memory, the express lane, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchcomms.backend import Backend, Capabilities, Express, ReduceOp
from torchcomms.errors import CollectiveMismatch
from torchcomms.testing.messages import recv, run, send
from torchcomms.testing.operations import finish
from torchcomms.testing.report import Check, Unclaimed, expect
from torchcomms.testing.world import World, results, soon

RANKS = 3
ROUNDS = 50
COUNT = 1000  # elements


def memory(world: World[Backend]) -> None:
    for rank, wrong in enumerate(results(world, _use_memory)):
        expect(not wrong, f"on rank {rank}: {wrong}")


def _use_memory(backend: Backend) -> str:
    tensor = backend.empty((3, 5), torch.float64)
    seen = (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous(), tensor.device.type)
    if seen != ((3, 5), torch.float64, True, torch.device(backend.device).type):
        return f"(shape, dtype, contiguous, device) is {seen}"
    if backend.empty((0, 2), torch.bool).shape != (0, 2):
        return "an empty tensor has another shape"
    tensor.fill_(backend.rank)
    finish(backend.all_reduce(tensor, ReduceOp.SUM))
    return "" if bool((tensor.cpu() == sum(range(backend.size))).all()) else "it holds other values after an all_reduce"


def memory_stays(world: World[Backend]) -> None:
    expect(all(results(world, _keep_memory)), "the memory does not outlive close")


def _keep_memory(backend: Backend) -> bool:
    tensor = backend.empty((COUNT,), torch.int32).fill_(backend.rank + 7)
    finish(backend.barrier())
    backend.close()
    tensor.add_(1)
    return bool((tensor.cpu() == backend.rank + 8).all())


def lane(backend: Backend) -> Express:
    """The express lane of the backend; a backend without one does not claim the checks of it."""
    if backend.express is None:
        raise Unclaimed("backend.express is None")
    return backend.express


def express_values(world: World[Backend]) -> None:
    for rank, wrong in enumerate(results(world, _express_values)):
        expect(not wrong, f"on rank {rank}: {wrong}")


def _express_values(backend: Backend) -> str:
    express, total = lane(backend), float(sum(range(1, backend.size + 1)))
    for number in range(ROUNDS):
        tensor = torch.full((1 + 7 * number,), backend.rank + 1.0, device=backend.device)
        if express.all_reduce(tensor, ReduceOp.SUM) and not bool((tensor.cpu() == total).all()):
            return f"all_reduce {number} holds {float(tensor[0])}, not {total}"
    return ""


def express_broadcast(world: World[Backend]) -> None:
    for rank, wrong in enumerate(results(world, _express_broadcast)):
        expect(not wrong, f"on rank {rank}: {wrong}")


def _express_broadcast(backend: Backend) -> str:
    express = lane(backend)
    for root in range(backend.size):
        tensor = torch.full((COUNT,), float(backend.rank), device=backend.device)
        if express.broadcast(tensor, root) and not bool((tensor.cpu() == root).all()):
            return f"broadcast from {root} holds {float(tensor[0])}"
        express.barrier()
    return ""


def express_declines(world: World[Backend]) -> None:
    for rank, (took, kept) in enumerate(results(world, _express_declines)):
        expect(took or kept, f"the lane declined a strided tensor on rank {rank}, but has written to it")
        expect(not took or not kept, f"the lane says that it reduced a strided tensor on rank {rank}, but has not")


def _express_declines(backend: Backend) -> tuple[bool, bool]:
    whole = torch.ones(2 * COUNT, device=backend.device)
    took = lane(backend).all_reduce(whole[::2], ReduceOp.SUM)
    return took, bool((whole.cpu() == 1.0).all())


def express_beside(world: World[Backend]) -> None:
    for rank, seen in enumerate(results(world, _express_beside)):
        wanted = [float(world.size)] * 2
        expect(seen == wanted, f"an operation in flight and one of the lane give {seen} on rank {rank}, not {wanted}")


def _express_beside(backend: Backend) -> list[float]:
    express = lane(backend)
    first, second = (torch.ones(COUNT, device=backend.device) for _ in range(2))
    pending = backend.all_reduce(first, ReduceOp.SUM)
    if not express.all_reduce(second, ReduceOp.SUM):
        finish(backend.all_reduce(second, ReduceOp.SUM))
    finish(pending)
    return [float(first.mean()), float(second.mean())]


def express_mismatch(world: World[Backend]) -> None:
    for rank, outcome in enumerate(world.run(_express_mismatch)):
        if isinstance(outcome, Unclaimed):
            raise outcome
        expect(isinstance(outcome, CollectiveMismatch), f"rank {rank}, whose length differs, got {outcome!r}")


def _express_mismatch(backend: Backend) -> bool:
    tensor = torch.ones(9 if backend.rank else 5, device=backend.device)
    took = lane(backend).all_reduce(tensor, ReduceOp.SUM)
    if not took:
        finish(backend.all_reduce(tensor, ReduceOp.SUM))
    return took


def window_put(world: World[Backend]) -> None:
    for rank, seen in enumerate(results(world, _put)):
        wanted = [(rank - 1) % world.size + 1.0] * 4
        expect(seen == wanted, f"the window of rank {rank} holds {seen}, not {wanted}, after a put and its signal")


def _put(backend: Backend) -> list[float]:
    memory = backend.empty((8,), torch.float32).zero_()
    window, right, left = backend.window(memory), _neighbour(backend, 1), _neighbour(backend, -1)
    mine = torch.full((4,), backend.rank + 1.0, device=backend.device)
    finish(window.put(mine, right, 4))
    finish(window.signal(right))
    finish(window.wait_signal(left))
    seen = memory.cpu().tolist()
    finish(backend.barrier())
    window.close()
    window.close()
    return seen[4:] if not any(seen[:4]) else seen


def _neighbour(backend: Backend, step: int) -> int:
    return (backend.rank + step) % backend.size


def window_signals(world: World[Backend]) -> None:
    counted = results(world, _count_signals)[1]
    expect(counted == [1, 2, 3], f"after signals 1, 2 and 3 the values put before each are {counted}")


def _count_signals(backend: Backend) -> list[int]:
    memory = backend.empty((3,), torch.int64).zero_()
    window, seen = backend.window(memory), []
    for number in range(3):
        if backend.rank == 0:
            finish(window.put(torch.tensor([number + 1], device=backend.device), 1, number))
            finish(window.signal(1))
        elif backend.rank == 1:
            finish(window.wait_signal(0))
            seen.append(int(memory.cpu()[number]))
    finish(backend.barrier())
    window.close()
    return seen


def window_remote(world: World[Backend]) -> None:
    for rank, seen in enumerate(results(world, _look_remote)):
        expect(seen == [float(one) for one in range(world.size)], f"rank {rank} reads {seen} in the windows of all")


def _look_remote(backend: Backend) -> list[float]:
    memory = backend.empty((2,), torch.float32).fill_(backend.rank)
    window = backend.window(memory)
    finish(backend.barrier())
    seen = [float(window.remote(rank)[1]) for rank in range(backend.size)]
    finish(backend.barrier())
    window.close()
    return seen


def window_waits(world: World[Backend]) -> None:
    expect(results(world, _wait_for_signal)[1], "a wait for a signal is complete before there was one")


def _wait_for_signal(backend: Backend) -> bool:
    window, note, late = backend.window(backend.empty((1,), torch.float32)), torch.ones(1, device=backend.device), True
    if backend.rank == 1:
        waiting = window.wait_signal(0)
        late = not waiting.test()
        run(backend, send(note, 0, 40))
        waiting.wait_host(soon())
    elif backend.rank == 0:
        run(backend, recv(note, 1, 40))
        finish(window.signal(1))
    finish(backend.barrier())
    window.close()
    return late


def _windows(capabilities: Capabilities) -> str:
    return "" if capabilities.windows else "capabilities().windows is false"


def _check(name: str, clause: str, function: Callable[[World[Backend]], None]) -> Check:
    return Check(name, clause, function, RANKS, _windows if name.startswith("window.") else _anyone)


def _anyone(capabilities: Capabilities) -> str:
    return ""


CHECKS: Sequence[Check] = (
    _check("memory.empty", "empty gives dense memory of that shape and dtype, good for collectives.", memory),
    _check(
        "memory.outlives", "Memory of the backend lives as long as it is referenced, also after close.", memory_stays
    ),
    _check("express.all_reduce", "The lane's all_reduce is the backend's, or declines.", express_values),
    _check("express.broadcast", "The lane's broadcast and barrier are the backend's, or decline.", express_broadcast),
    _check("express.declines", "What the lane declines it has not touched.", express_declines),
    _check("express.beside", "The lane is right while other operations are in flight.", express_beside),
    _check("express.mismatch", "The lane raises CollectiveMismatch on every rank.", express_mismatch),
    _check("window.put", "A put is seen by whoever has seen the signal after it.", window_put),
    _check("window.signals", "Each signal is taken by one wait, in order.", window_signals),
    _check("window.remote", "remote(rank) is that rank's memory.", window_remote),
    _check("window.waits", "A wait for a signal is not complete before there is one.", window_waits),
)
