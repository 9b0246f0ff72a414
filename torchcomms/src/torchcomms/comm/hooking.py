"""Hooks: what they are told, and the table of those that a communicator calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class OpName(Enum):
    """The operations, by name."""

    send = auto()
    recv = auto()
    broadcast = auto()
    all_reduce = auto()
    reduce = auto()
    all_gather = auto()
    all_gather_v = auto()
    all_gather_single = auto()
    reduce_scatter = auto()
    reduce_scatter_v = auto()
    reduce_scatter_single = auto()
    all_to_all_single = auto()
    all_to_all_v_single = auto()
    all_to_all = auto()
    barrier = auto()
    scatter = auto()
    gather = auto()
    gather_single = auto()
    split = auto()
    new_window = auto()
    finalize = auto()
    all_reduce_coalesced = auto()
    batch = auto()
    scan = auto()
    sendrecv = auto()
    window = auto()


@dataclass(frozen=True, slots=True)
class PreHookArgs:
    """What a pre-hook is told; `operation` says which of the fields mean something.

    `tensor` is the one tensor of send, recv and the operations in place; the others have `input` and `output`, a tensor
    or a list. `peer`: of send and recv. `ranks` and `name`: of split.
    """

    operation: OpName
    op_id: int
    async_op: bool = False
    timeout: float = 0.0  # seconds
    tensor: Tensor | None = None
    input: Tensor | Sequence[Tensor] | None = None
    output: Tensor | Sequence[Tensor] | None = None
    peer: int = -1
    root: int = -1
    ranks: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class PostHookArgs:
    """What a post-hook is told: the operation is through, or failed with `error`."""

    operation: OpName
    op_id: int
    error: Exception | None = None


PreHook = Callable[[OpName, int, PreHookArgs], None]
PostHook = Callable[[int, PostHookArgs], None]
AbortHook = Callable[[], None]


class RemovableHandle:
    """Takes a hook out again."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """The hook is not called from now on. May be called again."""
        self._remove()


class HookTable:
    """The hooks of one communicator, called in the order of their registration.

    Tables are replaced whole when they change, so that a thread that is calling hooks sees one state of them.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._keys = count()
        self._ids = count(1)
        self._pre: dict[int, PreHook] = {}
        self._post: dict[int, PostHook] = {}
        self._abort: dict[int, AbortHook] = {}

    @property
    def watching(self) -> bool:
        """Whether operations have to be told to somebody."""
        return bool(self._pre or self._post)

    def add_pre(self, hook: PreHook) -> RemovableHandle:
        """Call `hook(name, op_id, args)` before each operation; what it raises is raised there, and nothing is sent."""
        key = next(self._keys)
        self._pre = {**self._pre, key: hook}
        return self._handle(lambda: setattr(self, "_pre", _without(self._pre, key)))

    def add_post(self, hook: PostHook) -> RemovableHandle:
        """Call `hook(op_id, args)` when an operation has ended, on the thread that sees it first."""
        key = next(self._keys)
        self._post = {**self._post, key: hook}
        return self._handle(lambda: setattr(self, "_post", _without(self._post, key)))

    def add_abort(self, hook: AbortHook) -> RemovableHandle:
        """Call `hook()` when the communicator fails or is aborted, before the process may be ended."""
        key = next(self._keys)
        self._abort = {**self._abort, key: hook}
        return RemovableHandle(lambda: setattr(self, "_abort", _without(self._abort, key)))

    def _handle(self, remove: Callable[[], None]) -> RemovableHandle:
        def take_out() -> None:
            remove()
            self._changed()

        self._changed()
        return RemovableHandle(take_out)

    def before(self, make: Callable[[int], PreHookArgs]) -> int:
        """An operation begins; returns its id."""
        op_id = next(self._ids)
        if self._pre:
            args = make(op_id)
            for hook in self._pre.values():
                hook(args.operation, op_id, args)
        return op_id

    def after(self, operation: OpName, op_id: int, error: Exception | None) -> None:
        """An operation has ended."""
        if self._post:
            args = PostHookArgs(operation, op_id, error)
            for hook in self._post.values():
                hook(op_id, args)

    def abort(self) -> None:
        """The communicator has failed."""
        for hook in self._abort.values():
            hook()


def _without(table: dict[int, T], key: int) -> dict[int, T]:
    return {other: hook for other, hook in table.items() if other != key}
