"""Who a communicator is and how it is set: names, ranks, options, hooks."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from torchcomms.comm.group import Group
from torchcomms.comm.hooking import AbortHook, HookTable, PostHook, PreHook, RemovableHandle
from torchcomms.comm.options import CommOptions, Hints
from torchcomms.comm.progress import Progress
from torchcomms.discovery import GROUP
from torchcomms.errors import CommsClosed, CommsTimeout, InvalidState

if TYPE_CHECKING:
    import torch

    from torchcomms.backend import Backend, Express


class Identity:
    """The part of a communicator that sends nothing."""

    def __init__(self, device: torch.device, name: str, options: CommOptions) -> None:
        self._device, self._name = device, name
        self._options = options
        self._rank, self._size = -1, 0
        self._group: Group | None = None
        self._opening: Future[Backend] | None = None  # of a communicator that `split` made
        self._joining = threading.Lock()
        self._closed: CommsClosed | None = None
        # The fast lane, while no hook has to be called and no operation has failed.
        self._express: Express | None = None
        refresh = weakref.WeakMethod(self._refresh)  # a cycle would keep a dropped communicator open
        self._hooks = HookTable(lambda: (method := refresh()) and method())
        self._progress = Progress()

    def get_rank(self) -> int:
        """This rank, from 0; -1 without a group."""
        return self._rank

    def get_size(self) -> int:
        """How many ranks there are; 0 without a group."""
        return self._size

    def get_name(self) -> str:
        """The name given to `new_comm` or `split`."""
        return self._name

    def get_device(self) -> torch.device:
        """Where the tensors live."""
        return self._device

    def get_options(self) -> CommOptions:
        """The options now in force."""
        return self._options

    def get_backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    def get_backend_version(self) -> str:
        """The version of the distribution that provides the backend."""
        for entry in entry_points(group=GROUP, name=self._backend.name):
            if entry.dist is not None:
                return entry.dist.version
        return "unknown"

    def get_backend_impl(self) -> Backend:
        """The opened backend. What is done to it past the communicator is not checked against the other ranks."""
        return self._backend

    def unsafe_get_backend(self) -> Backend:
        """The same as `get_backend_impl`."""
        return self._backend

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of operations begun from now on, unless they are given their own."""
        self._options.timeout = timeout
        if self._group is not None:
            self._group.backend.timeout = timeout.total_seconds()

    def set_hints(self, hints: Hints) -> None:
        """Hints to all operations begun from now on, under those that they are given."""
        self._options.hints = dict(hints)
        self._refresh()

    def register_pre_hook(self, callback: PreHook) -> RemovableHandle:
        """Call `callback(name, op_id, args)` before each operation; what it raises is raised there, nothing is sent."""
        return self._hooks.add_pre(callback)

    def register_post_hook(self, callback: PostHook) -> RemovableHandle:
        """Call `callback(op_id, args)` when an operation has ended, on the thread that sees it first."""
        return self._hooks.add_post(callback)

    def register_abort_hook(self, callback: AbortHook) -> RemovableHandle:
        """Call `callback()` when an operation fails or times out or the communicator is aborted.

        Before the process is ended, where that is asked for.
        """
        return self._hooks.add_abort(callback)

    @property
    def _backend(self) -> Backend:
        return self._ready().backend

    def _adopt(self, backend: Backend) -> Group:
        """Make an opened backend the group of this communicator."""
        backend.timeout = self._options.timeout.total_seconds()
        self._rank, self._size = backend.rank, backend.size
        self._group = group = Group(backend, self._device, self._name)
        self._refresh()
        return group

    def _refresh(self) -> None:
        group = self._group
        plain = not self._hooks.watching and "compress" not in self._options.hints
        self._express = group.backend.express if plain and group is not None and group.failure is None else None

    def _ready(self) -> Group:
        """The group, when it is open."""
        if self._group is not None:
            return self._group
        if self._closed is not None:
            raise CommsClosed(str(self._closed))
        if self._opening is None:
            raise InvalidState(f"communicator {self._name!r} has no group: call reconfigure(uuid, init_handles) first")
        with self._joining:
            return self._group or self._adopt(self._opened(self._opening))

    def _opened(self, opening: Future[Backend]) -> Backend:
        # The thread behind it ends by itself at the communicator's timeout, with an error that names who did not come.
        patience = 2 * self._options.timeout.total_seconds()
        try:
            return opening.result(patience)
        except TimeoutError as late:
            if opening.done():
                raise
            raise CommsTimeout(f"communicator {self._name!r} was not open after {patience:g} s") from late
