"""The tickets of simulated groups: a schedule yields them, nobody waits for them."""

from __future__ import annotations

from torchcomms.errors import InvalidCall


class SimTicket:
    """A batch in flight: how many of its messages are not through, and when the latest of the others was."""

    __slots__ = ("pending", "ready", "waiter")

    def __init__(self, pending: int) -> None:
        self.pending, self.ready = pending, 0.0
        self.waiter: int | None = None  # the rank whose schedule waits for it

    def test(self) -> bool:
        return not self.pending

    def wait(self) -> None:
        raise InvalidCall("time stands still while a simulated rank runs: yield the ticket instead of waiting for it")

    def wait_host(self, deadline: float) -> None:
        self.wait()
