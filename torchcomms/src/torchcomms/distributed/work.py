"""What the operations of a `CommsGroup` return: torch.distributed's Work over the works of this package."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

if TYPE_CHECKING:
    from torchcomms.work import Work

Result = list[Tensor]


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

    def __init__(self, works: Sequence[Work], result: Result, source: int = -1) -> None:
        super().__init__()
        self._works, self._result, self._source = works, result, source
        self._error: BaseException | None = None
        self._future: Future[Result] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        # torch.distributed says "no timeout of its own" by zero or less.
        seconds = timeout.total_seconds() if timeout else 0.0
        for work in self._works:
            work.wait(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has come to its end, well or not."""
        try:
            return self._error is not None or all(work.is_completed() for work in self._works)
        except Exception as error:
            self._error = error
            return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        self.is_completed()
        return self._error

    def result(self) -> Result:
        return self._result

    def source_rank(self) -> int:
        return self._source

    def get_future(self) -> Future[Result]:
        """A future that completes when the operations do, whether or not somebody waits for them."""
        if self._future is None:
            self._future = _future(self._works, self._result)
        return self._future


def _future(works: Sequence[Work], result: Result) -> Future[Result]:
    """The future of all `works`; it fails with the first error of one."""
    errors: list[Exception] = []

    def outcome(_: Future[None]) -> Result:
        if errors:
            raise errors[0]
        return result

    left = [len(works)]
    ended = threading.Lock()

    def over(error: Exception | None) -> None:
        with ended:
            errors.extend([error] if error is not None else [])
            left[0] -= 1
            last = not left[0]
        if last:
            all_ended.set_result(None)

    all_ended: Future[None] = Future()
    # A callback that raises is the one way to fail a future in the eyes of C++, where DDP waits for it.
    future = all_ended.then(outcome)
    for work in works:
        work.when_over(over)
    return future
