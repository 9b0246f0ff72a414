"""How an operation of a communicator runs, ends and fails."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcomms.comm.hooking import OpName, PreHookArgs
from torchcomms.comm.identity import Identity
from torchcomms.comm.options import Hints
from torchcomms.errors import (
    CollectiveMismatch,
    CommsAborted,
    CommsClosed,
    CommsError,
    CommsTimeout,
    InvalidCall,
    PeerFailed,
)
from torchcomms.work import StreamWork, Work

if TYPE_CHECKING:
    from torchcomms.backend import P2P, Ticket
    from torchcomms.collective import Plan, Step
    from torchcomms.comm.group import Group

# Errors after which the ranks no longer agree on what comes next.
FATAL = (CollectiveMismatch, CommsAborted, CommsClosed, PeerFailed)

Begin = Callable[[float], "tuple[Ticket, Step | None]"]


class Core(Identity):
    """The part of a communicator that every operation goes through."""

    def _run(
        self, operation: OpName, group: Group, plan: Plan, async_op: bool, timeout: timedelta | None, **facts: Any
    ) -> Work:
        """Run a collective; `facts` are what hooks are told."""
        return self._do(operation, group, lambda deadline: group.start(plan, deadline), async_op, timeout, facts)

    def _exchange(
        self,
        operation: OpName,
        group: Group,
        batch: Sequence[P2P],
        step: Step,
        async_op: bool,
        timeout: timedelta | None,
        **facts: Any,
    ) -> Work:
        """Run messages; `step` is what is left to do when they are through."""

        def begin(deadline: float) -> tuple[Ticket, Step | None]:
            group.check()
            return group.backend.post(batch), step

        return self._do(operation, group, begin, async_op, timeout, facts)

    def _do(
        self,
        operation: OpName,
        group: Group,
        begin: Begin,
        async_op: bool,
        timeout: timedelta | None,
        facts: dict[str, Any],
    ) -> Work:
        seconds = self._seconds(timeout)
        op_id = self._hooks.before(lambda op_id: PreHookArgs(operation, op_id, async_op, seconds, **facts))
        deadline = time.monotonic() + seconds
        try:
            ticket, step = begin(deadline)
        except Exception as error:
            self._ended(operation, op_id, group, None, error)
            raise
        work = self._work(group, operation, op_id, ticket, step, deadline)
        # On a device the host watches what goes on; elsewhere what is through at once needs no thread.
        if group.ordered or (async_op and not work.poll()):
            self._progress.watch(work)
        if not async_op:
            work.wait()
        return work

    def _work(
        self, group: Group, operation: OpName, op_id: int, ticket: Ticket, step: Step | None, deadline: float
    ) -> Work:
        late = partial(self._failed, group)
        if group.ordered and step is not None:
            return StreamWork(ticket, deadline, partial(self._ended, operation, op_id, group, None), late, step.finish)
        return Work(ticket, deadline, partial(self._ended, operation, op_id, group, step), late)

    def _ended(self, operation: OpName, op_id: int, group: Group, step: Step | None, error: Exception | None) -> None:
        if error is None and step is not None:
            step.finish()
        if isinstance(error, FATAL):
            self._failed(group, error)
        self._hooks.after(operation, op_id, error)

    def _failed(self, group: Group, error: CommsError) -> None:
        """An operation has failed, or has timed out, which does not end the group."""
        if self._announced(group, error) and self._options.abort_process_on_timeout_or_error:
            print(f"torchcomms: communicator {self._name!r} ends this process: {error}", file=sys.stderr, flush=True)
            os.abort()

    def _announced(self, group: Group, error: CommsError) -> bool:
        """Let the group fail and call the abort hooks, unless that has been done; whether it was."""
        if not isinstance(error, CommsTimeout):
            group.fail(error)
            self._refresh()
        if group is not self._group or isinstance(group.failure, CommsClosed) or not group.announce(error):
            return False
        self._hooks.abort()
        return True

    def _seconds(self, timeout: timedelta | None) -> float:
        seconds = (self._options.timeout if timeout is None else timeout).total_seconds()
        if seconds <= 0:
            raise InvalidCall(f"a timeout of {seconds:g} s leaves no time: pass a positive timedelta")
        return seconds

    def _hint(self, name: str, hints: Hints | None) -> str | None:
        """A hint to one operation, or else to the communicator."""
        given = None if hints is None else hints.get(name)
        return self._options.hints.get(name) if given is None else given
