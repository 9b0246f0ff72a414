"""Checks of `post` and its tickets: what arrives, in what order, and when a ticket is complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from torchcomms.backend import Backend
from torchcomms.errors import CommsTimeout, MessageMismatch
from torchcomms.testing.messages import claimed_dtypes, move, recv, run, send
from torchcomms.testing.report import Check, expect
from torchcomms.testing.samples import all_dtypes, moved, same_bytes
from torchcomms.testing.world import World, results, soon

LONG = 1 << 20  # elements of one message that no socket buffer holds
MESSAGES = 50  # from each of two threads


def shape_of_group(world: World[Backend]) -> None:
    for rank, seen in enumerate(results(world, _shape)):
        expect(seen[:2] == (rank, world.size), f"rank {rank} of {world.size} has (rank, size) = {seen[:2]}")
        expect(seen[2] > 0 and isinstance(seen[3], str), "no timeout, or no device by name, on the opened backend")


def _shape(backend: Backend) -> tuple[int, int, float, object]:
    return backend.rank, backend.size, backend.timeout, backend.device


def values(world: World[Backend]) -> None:
    sent = torch.arange(1000, dtype=torch.float32)
    expect(torch.equal(results(world, partial(move, sent))[1], sent), "the receiver's values differ from the sender's")


def every_dtype(world: World[Backend]) -> tuple[str, ...]:
    names = results(world, claimed_dtypes)[0]
    for name in names:
        expect(results(world, partial(_arrives, name))[1], f"{name} arrives changed")
    return names


def _arrives(name: str, backend: Backend) -> bool:
    sent = moved(0, 48, all_dtypes()[name])
    return same_bytes(move(sent, backend, tag=11), sent)


def empty(world: World[Backend]) -> None:
    results(world, partial(move, torch.empty(0, 3), tag=12))


def order_inside_a_batch(world: World[Backend]) -> None:
    for rank, mean in enumerate(results(world, _exchange)):
        expect(mean == 1 - rank, f"rank {rank} received other values than were sent")


def _exchange(backend: Backend) -> float:
    mine = torch.full((LONG,), float(backend.rank), device=backend.device)
    theirs = torch.empty(LONG, device=backend.device)
    batch = [recv(theirs, 1 - backend.rank, 1), send(mine, 1 - backend.rank, 1)]
    run(backend, *reversed(batch))
    return float(theirs.mean())


def to_oneself(world: World[Backend]) -> None:
    expect(all(results(world, _loop)), "a message to oneself arrives changed")


def _loop(backend: Backend) -> bool:
    sent, received = torch.arange(5.0, device=backend.device), torch.zeros(5, device=backend.device)
    run(backend, recv(received, backend.rank, 2), send(sent, backend.rank, 2))
    return torch.equal(received.cpu(), sent.cpu())


def first_in_first_out(world: World[Backend]) -> None:
    order = results(world, _stream)[1]
    expect(order == list(range(8)), f"messages 0 to 7 of one peer and tag arrive as {order}")


def _stream(backend: Backend) -> list[float]:
    tensors = [torch.full((3,), float(index), device=backend.device) for index in range(8)]
    if backend.rank == 0:
        run(backend, *(send(tensor, 1, 3) for tensor in tensors))
    received = [torch.empty(3, device=backend.device) for _ in tensors]
    if backend.rank == 1:
        run(backend, *(recv(tensor, 0, 3) for tensor in received))
    return [float(tensor[0]) for tensor in received]


def tags_apart(world: World[Backend]) -> None:
    expect(results(world, _cross)[1] == [4.0, 5.0], "a receive takes a message of another tag")


def _cross(backend: Backend) -> list[float]:
    first, second = (torch.full((2,), value, device=backend.device) for value in (4.0, 5.0))
    if backend.rank == 0:
        run(backend, send(first, 1, 4))
        run(backend, send(second, 1, 5))
    else:
        run(backend, recv(second.zero_(), 0, 5))
        run(backend, recv(first.zero_(), 0, 4))
    return [float(first[0]), float(second[0])]


def reuse_after_send(world: World[Backend]) -> None:
    expect(results(world, _overwrite)[1] == 1.0, "the receiver sees what was written after the send was complete")


def _overwrite(backend: Backend) -> float:
    tensor, note = torch.ones(LONG // 4, device=backend.device), torch.ones(1, device=backend.device)
    run(backend, send(tensor, 1, 6) if backend.rank == 0 else recv(tensor.zero_(), 0, 6))
    mean = float(tensor.mean())
    if backend.rank == 0:
        tensor.fill_(7.0)
    run(backend, send(note, 1, 6) if backend.rank == 0 else recv(note, 0, 6))
    return mean


def progress_by_test(world: World[Backend]) -> None:
    expect(all(results(world, _poll)), "test() never becomes true without a wait")


def _poll(backend: Backend) -> bool:
    tensor, until = torch.ones(4, device=backend.device), soon(3.0)
    ticket = backend.post([send(tensor, 1, 8) if backend.rank == 0 else recv(tensor, 0, 8)])
    while time.monotonic() < until:
        if ticket.test():
            return True
    return False


def length_mismatch(world: World[Backend]) -> None:
    outcome = world.run(_differ)[1]
    expect(isinstance(outcome, MessageMismatch), f"12 bytes into 8 gave {outcome!r}")


def _differ(backend: Backend) -> None:
    tensor = torch.ones(3 - backend.rank, device=backend.device)
    run(backend, send(tensor, 1, 9) if backend.rank == 0 else recv(tensor, 0, 9))


def deadline(world: World[Backend]) -> None:
    started = time.monotonic()
    outcome = world.run(_alone)[0]
    expect(isinstance(outcome, CommsTimeout), f"a wait past its deadline gave {outcome!r}")
    expect(getattr(outcome, "missing", None) == {1}, "the timeout does not name rank 1 as missing")
    expect(time.monotonic() - started < 5, "the wait outlasts its deadline by seconds")


def _alone(backend: Backend) -> None:
    if backend.rank == 0:
        backend.post([recv(torch.ones(2, device=backend.device), 1, 10)]).wait_host(time.monotonic() + 0.05)


def wait_again(world: World[Backend]) -> None:
    expect(results(world, _late)[0] == 3.0, "a ticket that timed out does not complete later")


def _late(backend: Backend) -> float:
    tensor, note = torch.zeros(2, device=backend.device), torch.ones(1, device=backend.device)
    if backend.rank == 0:
        ticket = backend.post([recv(tensor, 1, 13)])
        try:
            ticket.wait_host(time.monotonic() + 0.02)
        except CommsTimeout:
            run(backend, send(note, 1, 14))
            ticket.wait_host(soon())
    else:
        run(backend, recv(note, 0, 14))
        run(backend, send(tensor + 3, 0, 13))
    return float(tensor[0])


def two_threads(world: World[Backend]) -> None:
    for rank, wrong in enumerate(results(world, _from_two_threads)):
        expect(not wrong, f"two threads of rank {rank} at once: {wrong}")


def _from_two_threads(backend: Backend) -> str:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(partial(_talk, backend), (30, 31)))
    return next(filter(None, found), "")


def _talk(backend: Backend, tag: int) -> str:
    for number in range(MESSAGES):
        sent = torch.full((5,), float(tag * number), device=backend.device)
        received = torch.empty(5, device=backend.device)
        run(backend, recv(received, 1 - backend.rank, tag), send(sent, 1 - backend.rank, tag))
        if not torch.equal(received.cpu(), sent.cpu()):
            return f"message {number} of tag {tag} holds {float(received[0])}"
    return ""


def _check(name: str, clause: str, function: Callable[[World[Backend]], object]) -> Check:
    return Check(f"core.{name}", clause, function)


CHECKS = (
    _check("group", "open leaves rank, size, device and timeout on the backend.", shape_of_group),
    _check("values", "A message arrives as it was sent.", values),
    _check("dtypes", "Every claimed dtype moves unchanged.", every_dtype),
    _check("empty", "Empty messages are messages.", empty),
    _check("batch_order", "No order inside a batch can deadlock.", order_inside_a_batch),
    _check("self_send", "Messages to oneself work.", to_oneself),
    _check("fifo", "Matching is first in, first out per (peer, tag).", first_in_first_out),
    _check("tags", "A receive matches its own tag only.", tags_apart),
    _check("reuse", "A send is complete when its tensor may be reused.", reuse_after_send),
    _check("test", "test() moves a ticket on and says when it is complete.", progress_by_test),
    _check("length", "A message of another length is a MessageMismatch at the receiver.", length_mismatch),
    _check("deadline", "wait_host raises CommsTimeout at its deadline and names the missing.", deadline),
    _check("wait_again", "After CommsTimeout the ticket may be waited again.", wait_again),
    _check("threads", "Several threads of a rank may use one backend at once.", two_threads),
)
