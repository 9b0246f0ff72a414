"""Who is in the group: split it, abort it, form it anew from survivors and joiners, end it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torchcomms import tuning
from torchcomms.bootstrap import Named, cloned
from torchcomms.comm import meeting
from torchcomms.comm.core import Core
from torchcomms.comm.hooking import OpName, PreHookArgs
from torchcomms.comm.options import CommOptions, Hints
from torchcomms.errors import CommsAborted, CommsClosed, InvalidCall, InvalidState
from torchcomms.work import DONE, Work

if TYPE_CHECKING:
    import torch

    from torchcomms.backend import Backend, Options, Store


class Membership(Core):
    """The part of a communicator that changes who belongs to it."""

    def __init__(
        self,
        backend: Backend | None,
        device: torch.device,
        name: str,
        options: CommOptions | None = None,
        *,
        kind: type[Backend] | None = None,
        store: Store | None = None,
        backend_options: Options | None = None,
    ) -> None:
        """A communicator over an opened backend, which it owns from now on; None: it gets one later.

        Without `kind` and `store`, the class and the meeting place, it cannot split or be reconfigured.
        """
        if options is None:
            options = CommOptions() if backend is None else CommOptions(timeout=timedelta(seconds=backend.timeout))
        super().__init__(device, name, options)
        self._kind, self._store, self._backend_options = kind, store, backend_options
        self._host: meeting.Host | None = None
        self._epoch = 0
        if backend is not None:
            self._adopt(backend)

    def split(
        self, ranks: Sequence[int], name: str, hints: Hints | None = None, timeout: timedelta | None = None
    ) -> Self | None:
        """A new communicator of `ranks` of this one, in that order; None for an empty list.

        Only the ranks in the list need call it. It returns at once and opens behind, so that no order in which ranks
        split can deadlock; the first operation waits until it is open. It outlives its parent.
        """
        self._ready().check()
        if not ranks:
            return None
        if self._rank not in ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self._size)):
            raise InvalidCall(
                f"rank {self._rank} of {self._size} cannot split into {list(ranks)}: pass different ranks of this "
                "communicator, this one among them, or an empty list on ranks that do not take part"
            )
        if self._kind is None or self._store is None:
            raise InvalidState(f"communicator {self._name!r} was made without a store, so it cannot be split")
        op_id = self._hooks.before(lambda op_id: PreHookArgs(OpName.split, op_id, ranks=tuple(ranks), name=name))
        rank, label = list(ranks).index(self._rank), f"split/{name}/{'.'.join(map(str, ranks))}"
        # Counted here and not behind: repeated splits are told apart by their order, which is the same on every rank.
        turn = self._store.add(f"{label}/{rank}", 1)
        options = CommOptions(
            self._options.abort_process_on_timeout_or_error,
            timeout or self._options.timeout,
            hints=dict(self._options.hints if hints is None else hints),
        )
        store = Named(f"{label}/{turn}", cloned(self._store))
        child = type(self)(
            None, self._device, name, options, kind=self._kind, store=store, backend_options=self._backend_options
        )
        child._rank, child._size = rank, len(ranks)
        child._opening = child._open_behind(self._kind, store)
        self._hooks.after(OpName.split, op_id, None)
        return child

    def _open_behind(self, kind: type[Backend], store: Store) -> Future[Backend]:
        opening: Future[Backend] = Future()
        where = {"rank": self._rank, "size": self._size, "device": self._device.type}
        seconds, options = self._options.timeout.total_seconds(), self._backend_options

        def work() -> None:
            try:
                opened = kind.open(store=store, timeout=seconds, options=options, **where)  # type: ignore[arg-type]
                tuning.agree(opened, store)
                opening.set_result(opened)
            except BaseException as error:
                opening.set_exception(error)

        threading.Thread(target=work, name=f"torchcomms open {self._name}", daemon=True).start()
        return opening

    def abort(self, reason: str = "abort() was called") -> None:
        """End every wait of this communicator on this rank, in all threads, with `CommsAborted`.

        It never ends the process. A communicator that is still being opened is finalized.
        """
        group = self._group
        if group is None:
            self.finalize()
            return
        self._announced(group, CommsAborted(f"aborted on this rank: {reason}", reason=reason))
        group.backend.abort(reason)

    def is_abort_supported(self) -> bool:
        """Whether `abort` ends waits that are under way."""
        kind = self._kind if self._group is None else type(self._group.backend)
        return kind is not None and kind.capabilities().abort

    def is_aborted(self) -> bool:
        """Whether it was aborted or has failed, and not been reconfigured since."""
        return self._group is not None and self._group.failure is not None

    def get_init_handle(self) -> str:
        """Where this rank can be met by those that form a group with it: a string for `reconfigure` of any rank.

        The first call starts a small store in this process, which lives as long as the communicator.
        """
        if self._host is None:
            self._host = meeting.Host(self._store)
        return self._host.handle

    def reconfigure(
        self,
        uuid: int,
        init_handles: Sequence[str] | AbstractSet[str],
        timeout: timedelta | None = None,
        hints: Hints | None = None,
    ) -> Work:
        """Form the group anew from the ranks behind `init_handles`, this one among them.

        A list gives each its position as rank; a set is sorted. All members call it with the same `uuid`, which no
        earlier attempt had, and the same handles. Whatever the old group still has under way fails. Blocks until all
        are there; a `CommsTimeout` names the positions of those that are not, and the communicator has no group then.
        """
        handles = list(init_handles) if isinstance(init_handles, Sequence) else sorted(init_handles)
        self._check_members(handles)
        self._leave_group("the group is being formed anew")
        if hints is not None:
            self._options.hints = dict(hints)
        seconds = self._seconds(timeout)
        assert self._kind is not None
        assert self._host is not None
        rank = handles.index(self._host.handle)
        self._store, self._epoch = meeting.meet(self._host, handles, uuid, self._epoch, seconds)
        opened = self._kind.open(
            rank=rank,
            size=len(handles),
            store=self._store,
            device=self._device.type,
            epoch=self._epoch,
            timeout=seconds,
            options=self._backend_options,
        )
        tuning.agree(opened, self._store, epoch=self._epoch)
        self._adopt(opened)
        return DONE

    def _check_members(self, handles: list[str]) -> None:
        if self._closed is not None:
            raise CommsClosed(str(self._closed))
        if self._kind is None:
            raise InvalidState(f"communicator {self._name!r} was made of an opened backend: it cannot be reconfigured")
        mine = self.get_init_handle()
        if mine not in handles or len(set(handles)) < len(handles):
            raise InvalidCall(f"the init handles must be different and have this rank's among them, {mine}; {handles}")
        if len(handles) < self._options.min_size:
            raise InvalidCall(
                f"{len(handles)} members are fewer than the minimum of {self._options.min_size}: wait for more, or stop"
            )

    def _leave_group(self, reason: str) -> None:
        opening, group = self._opening, self._group
        self._opening = self._group = self._express = None
        self._rank, self._size = -1, 0
        if group is not None:
            group.fail(CommsAborted(reason, reason=reason))
            group.backend.abort(reason)
            group.backend.close()
        elif opening is not None:
            opening.add_done_callback(_close_opened)

    def finalize(self) -> None:
        """Close the communicator and release all it holds. May be called again."""
        if self._closed is not None:
            return
        op_id = self._hooks.before(lambda op_id: PreHookArgs(OpName.finalize, op_id))
        group, self._express = self._group, None
        self._closed = CommsClosed(f"communicator {self._name!r} is finalized; make a new one")
        if group is not None:
            group.failure = self._closed
            group.backend.close()
        elif self._opening is not None:
            self._opening.add_done_callback(_close_opened)
        self._progress.close()
        self._hooks.after(OpName.finalize, op_id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finalize()


def _close_opened(opening: Future[Backend]) -> None:
    if opening.exception() is None:
        opening.result().close()
