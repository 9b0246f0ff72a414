"""One opened backend and the operations that run over it; `reconfigure` replaces it whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms import collective, layout
from torchcomms.algorithms.messages import check_list
from torchcomms.algorithms.schedule import Sequencer
from torchcomms.collective import Plan, Step
from torchcomms.errors import CommsAborted, CommsClosed, CommsError, CommsTimeout, PeerFailed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import Backend, Ticket

SHORT = 32 << 10  # bytes of all tensors together up to which a collective fills private copies


class Group:
    """`inline`: the backend checks mismatches itself; it gets every operation at once and keeps its own order.

    `ordered`: it works in the order of a device's streams, so it gets every operation at once too, in the stream that
    is current then. Over other backends the collectives run one after another.
    """

    def __init__(self, backend: Backend, device: torch.device, name: str) -> None:
        self.backend, self.device, self.name = backend, device, name
        capabilities = type(backend).capabilities()
        self.inline = capabilities.mismatch == "inline"
        self.ordered = capabilities.stream_ordered
        self.failure: CommsError | None = None
        self._sequencer = Sequencer()
        self._order = threading.Lock()
        self._calls = 0
        self._announced = False
        self._owner = os.getpid()

    @property
    def direct(self) -> bool:
        """Whether operations run on the caller's own dense tensors."""
        return self.inline or self.ordered

    def check(self) -> None:
        """Raise a named error if the group is of no more use."""
        failure = self.failure
        if self._owner != os.getpid():
            raise CommsClosed(
                f"communicator {self.name!r} belongs to process {self._owner}, this is {os.getpid()}: "
                "open one after the fork"
            )
        if isinstance(failure, PeerFailed):
            raise PeerFailed(f"communicator {self.name!r} has lost ranks: {failure}", ranks=failure.ranks) from failure
        if isinstance(failure, CommsClosed):
            raise CommsClosed(str(failure))
        if failure is not None:
            reason = f"communicator {self.name!r} is of no more use after an error: {failure}"
            raise CommsAborted(f"{reason}; reconfigure it or make a new one", reason=str(failure)) from failure

    def fail(self, error: CommsError) -> None:
        """Let everything from now on fail with the first `error`.

        A death is seen by every rank, but one that left is missed only by those that needed it: they leave as well, so
        that nobody waits for them until a deadline.
        """
        first, self.failure = self.failure is None, self.failure or error
        if first and isinstance(error, PeerFailed) and self._owner == os.getpid() and not self.backend.lost():
            self.backend.close()

    def announce(self, error: CommsError) -> bool:
        """Whether `error` is news: every timeout is, and one failure."""
        if isinstance(error, CommsTimeout):
            return True
        with self._order:
            first, self._announced = not self._announced, True
        return first

    def start(self, plan: Plan, deadline: float) -> tuple[Ticket, Step | None]:
        """Start a collective; also returns the step that is to be finished when the ticket is complete."""
        with self._order:
            self.check()
            if self.inline:
                ticket = plan.step.begin(deadline)
                assert ticket is not None
                return ticket, plan.step
            self._calls += 1
            call = plan.call(self._calls)
            if self.ordered:
                return collective.Checked(self.backend, plan.step, call, deadline), plan.step
            schedule = self._fenced(collective.run(self.backend, plan, call, deadline))
            return self._sequencer.start(call, schedule, deadline), None

    def _fenced(self, schedule: Schedule) -> Schedule:
        try:
            self.check()
            yield from schedule
        except CommsError as error:
            self.fail(error)
            raise

    def check_target(self, tensor: Tensor) -> None:
        """Raise unless a result can be written to this tensor."""
        layout.check_tensor(tensor, self.device)
        layout.check_target(tensor)

    def check_targets(self, tensors: Sequence[Tensor] | None, name: str) -> Sequence[Tensor]:
        """Raise unless there is one tensor for each rank that a result can be written to."""
        found = check_list(self.backend, tensors, name)
        for tensor in found:
            self.check_target(tensor)
        return found

    def check_sources(self, tensors: Sequence[Tensor] | None, name: str) -> Sequence[Tensor]:
        """Raise unless there is one tensor for each rank that can be sent."""
        found = check_list(self.backend, tensors, name)
        for tensor in found:
            layout.check_tensor(tensor, self.device)
        return found

    def is_short(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a collective over these tensors fills private copies, so that a mismatch leaves them as they are.

        A backend that checks inline touches nothing before the ranks agree.
        """
        return not self.direct and sum(tensor.nbytes for tensor in tensors) <= SHORT
