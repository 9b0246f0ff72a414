"""What the operations of a `CommsGroup` return: torch.distributed's Work over the works of this package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from torchcomms.errors import CommsTimeout

if TYPE_CHECKING:
    from torchcomms.distributed.finisher import Finisher

Result = list[Tensor]


class Handle(Protocol):
    """An operation in flight: `torchcomms.Work`."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until complete, for `timeout` seconds or the operation's own; raises what went wrong."""

    def is_completed(self) -> bool:
        """Whether it is complete; raises what went wrong."""


class Done(dist.Work):
    """An operation that was complete when it returned; `result` holds the tensors that it wrote."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Result:
        return self._result

    def get_future(self) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(self._result)
        return future


class Pending(dist.Work):
    """Operations in flight, as one. The errors of this package leave `wait` as they are."""

    def __init__(
        self, handles: Sequence[Handle], result: Result, finisher: Finisher, deadline: float, source: int = -1
    ) -> None:
        super().__init__()
        self._handles, self._result, self._finisher = handles, result, finisher
        self._deadline, self._source = deadline, source
        self._error: BaseException | None = None
        self._future: Future[Result] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        # torch.distributed says "no timeout of its own" by zero or less.
        seconds = timeout.total_seconds() if timeout else 0.0
        self._block(seconds if seconds > 0 else None)
        return True

    def _block(self, seconds: float | None) -> None:
        for handle in self._handles:
            handle.wait(seconds)

    def synchronize(self) -> None:
        self._block(None)

    def settles(self, seconds: float) -> bool:
        """Whether it comes to its end, well or not, within so many seconds; raises nothing."""
        try:
            self._block(seconds)
        except CommsTimeout as late:
            if time.monotonic() < self._deadline:
                return False
            self._error = late
        except Exception as error:
            self._error = error
        return True

    def is_completed(self) -> bool:
        """Whether it has come to its end, well or not."""
        try:
            return self._error is not None or all(handle.is_completed() for handle in self._handles)
        except Exception as error:
            self._error = error
            return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Result:
        return self._result

    def source_rank(self) -> int:
        return self._source

    def get_future(self) -> Future[Result]:
        """A future that completes when the operations do, whether or not somebody waits for them."""
        if self._future is None:
            self._future = self._finisher.follow(self)
        return self._future
