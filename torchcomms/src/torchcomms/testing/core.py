"""Checks of `post` and its tickets: what arrives, in what order, and when a ticket is complete."""

from __future__ import annotations

import re
import time
import warnings

import torch
from torch import Tensor

from torchcomms.backend import P2P, Backend, Capabilities
from torchcomms.errors import CommsTimeout, MessageMismatch
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, results, soon

LONG = 1 << 20  # elements of one message that no socket buffer holds


def send(tensor: Tensor, peer: int, tag: int = 0) -> P2P:
    """A message to `peer`."""
    return P2P("send", tensor, peer, tag)


def recv(tensor: Tensor, peer: int, tag: int = 0) -> P2P:
    """A message from `peer`."""
    return P2P("recv", tensor, peer, tag)


def run(backend: Backend, *batch: P2P) -> None:
    """Post and wait."""
    backend.post(batch).wait_host(soon())


def move(backend: Backend, tensor: Tensor, tag: int = 0) -> Tensor:
    """Rank 0's tensor, as it arrives at rank 1."""
    received = torch.empty_like(tensor)
    run(backend, send(tensor, 1, tag) if backend.rank == 0 else recv(received, 0, tag))
    return received


def shape_of_group(world: World) -> None:
    for rank, backend in enumerate(world.backends):
        seen = (backend.rank, backend.size)
        expect(seen == (rank, world.size), f"rank {rank} of {world.size} has (rank, size) = {seen}")
        expect(backend.timeout > 0 and backend.device, "no timeout or device on the opened backend")


def values(world: World) -> None:
    sent = torch.arange(1000, dtype=torch.float32)
    received = results(world, lambda backend: move(backend, sent))[1]
    expect(torch.equal(received, sent), "the receiver's values differ from the sender's")


def every_dtype(world: World) -> None:
    claimed = world.backends[0].capabilities().dtypes
    for name, dtype in sorted(all_dtypes().items()):
        if claimed is None or name in claimed:
            sent = _sample(name, dtype)
            received = results(world, lambda backend, sent=sent: move(backend, sent, 11))[1]  # type: ignore[misc]
            expect(torch.equal(received.view(torch.uint8), sent.view(torch.uint8)), f"{name} arrives changed")


def _sample(name: str, dtype: torch.dtype) -> Tensor:
    sample = (torch.arange(48) % (2 if name == "bool" else 48)).to(torch.uint8).view(dtype)
    with warnings.catch_warnings():
        # torch says once in a process that half complex numbers are experimental: here, where nobody minds.
        warnings.simplefilter("ignore")
        torch.empty_like(sample)
    return sample


def all_dtypes() -> dict[str, torch.dtype]:
    """The dtypes of this torch whose elements can be viewed as whole bytes, by name."""
    members = {name: member for name, member in vars(torch).items() if isinstance(member, torch.dtype)}
    part_of_a_byte = re.compile(r"u?int[1-7]|bits.*|q.*")
    named = {str(dtype).removeprefix("torch."): dtype for dtype in members.values()}
    return {name: dtype for name, dtype in named.items() if not part_of_a_byte.fullmatch(name)}


def empty(world: World) -> None:
    results(world, lambda backend: move(backend, torch.empty(0, 3), 12))


def order_inside_a_batch(world: World) -> None:
    def exchange(backend: Backend) -> Tensor:
        mine, theirs = torch.full((LONG,), float(backend.rank)), torch.empty(LONG)
        batch = [recv(theirs, 1 - backend.rank, 1), send(mine, 1 - backend.rank, 1)]
        run(backend, *batch)
        run(backend, *reversed(batch))
        return theirs

    for rank, theirs in enumerate(results(world, exchange)):
        expect(bool((theirs == 1 - rank).all()), f"rank {rank} received other values than were sent")


def to_oneself(world: World) -> None:
    def loop(backend: Backend) -> bool:
        sent, received = torch.arange(5.0), torch.zeros(5)
        run(backend, recv(received, backend.rank, 2), send(sent, backend.rank, 2))
        return torch.equal(received, sent)

    expect(all(results(world, loop)), "a message to oneself arrives changed")


def first_in_first_out(world: World) -> None:
    def stream(backend: Backend) -> list[float]:
        tensors = [torch.full((3,), float(index)) for index in range(8)]
        if backend.rank == 0:
            run(backend, *(send(tensor, 1, 3) for tensor in tensors))
        received = [torch.empty(3) for _ in tensors]
        if backend.rank == 1:
            run(backend, *(recv(tensor, 0, 3) for tensor in received))
        return [float(tensor[0]) for tensor in received]

    order = results(world, stream)[1]
    expect(order == list(range(8)), f"messages 0 to 7 of one peer and tag arrive as {order}")


def tags_apart(world: World) -> None:
    def cross(backend: Backend) -> list[float]:
        first, second = torch.full((2,), 4.0), torch.full((2,), 5.0)
        if backend.rank == 0:
            run(backend, send(first, 1, 4))
            run(backend, send(second, 1, 5))
        else:
            run(backend, recv(second.zero_(), 0, 5))
            run(backend, recv(first.zero_(), 0, 4))
        return [float(first[0]), float(second[0])]

    expect(results(world, cross)[1] == [4.0, 5.0], "a receive takes a message of another tag")


def reuse_after_send(world: World) -> None:
    def overwrite(backend: Backend) -> float:
        tensor = torch.ones(LONG // 4)
        run(backend, send(tensor, 1, 6) if backend.rank == 0 else recv(tensor.zero_(), 0, 6))
        mean = float(tensor.mean())
        if backend.rank == 0:
            tensor.fill_(7.0)
            run(backend, send(torch.ones(1), 1, 6))
        else:
            run(backend, recv(torch.empty(1), 0, 6))
        return mean

    expect(results(world, overwrite)[1] == 1.0, "the receiver sees what was written after the send was complete")


def progress_by_test(world: World) -> None:
    def poll(backend: Backend) -> bool:
        tensor, until = torch.ones(4), soon(3.0)
        ticket = backend.post([send(tensor, 1, 8) if backend.rank == 0 else recv(tensor, 0, 8)])
        while time.monotonic() < until:
            if ticket.test():
                return True
        return False

    expect(all(results(world, poll)), "test() never becomes true without a wait")


def length_mismatch(world: World) -> None:
    def differ(backend: Backend) -> None:
        run(backend, send(torch.ones(3), 1, 9) if backend.rank == 0 else recv(torch.ones(2), 0, 9))

    outcome = world.run(differ)[1]
    expect(isinstance(outcome, MessageMismatch), f"12 bytes into 8 gave {outcome!r}")


def deadline(world: World) -> None:
    started = time.monotonic()

    def alone(backend: Backend) -> None:
        if backend.rank == 0:
            backend.post([recv(torch.ones(2), 1, 10)]).wait_host(time.monotonic() + 0.05)

    outcome = world.run(alone)[0]
    expect(isinstance(outcome, CommsTimeout), f"a wait past its deadline gave {outcome!r}")
    expect(getattr(outcome, "missing", None) == {1}, "the timeout does not name rank 1 as missing")
    expect(time.monotonic() - started < 5, "the wait outlasts its deadline by seconds")


def wait_again(world: World) -> None:
    def late(backend: Backend) -> float:
        tensor = torch.zeros(2)
        if backend.rank == 0:
            ticket = backend.post([recv(tensor, 1, 13)])
            try:
                ticket.wait_host(time.monotonic() + 0.02)
            except CommsTimeout:
                run(backend, send(torch.ones(1), 1, 14))
                ticket.wait_host(soon())
        else:
            run(backend, recv(torch.ones(1), 0, 14))
            run(backend, send(tensor + 3, 0, 13))
        return float(tensor[0])

    expect(results(world, late)[0] == 3.0, "a ticket that timed out does not complete later")


def claims_cpu(capabilities: Capabilities) -> str:
    return "" if "cpu" in capabilities.devices else "the kit's tensors are on the CPU, which is not claimed"


def _check(name: str, clause: str, function: object) -> Check:
    return Check(f"core.{name}", clause, function, claim=claims_cpu)  # type: ignore[arg-type]


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
)
