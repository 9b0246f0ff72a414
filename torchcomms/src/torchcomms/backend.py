"""The comms backend contract: six abstract methods, and every collective derived from them.

Imports no torch at run time. Arguments are read by attribute, so a caller may pass its own objects of the same fields.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from torchcomms.algorithms.schedule import Schedule, Sequencer
from torchcomms.errors import UnsupportedTensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from torchcomms.algorithms.choice import Table

__all__ = ["P2P", "Backend", "Capabilities", "Express", "Options", "ReduceOp", "Store", "Ticket", "Window"]


@dataclass(frozen=True, slots=True)
class P2P:
    """One message.

    `tensor` is dense and contiguous (a communicator packs and unpacks others), of any shape and dtype, and belongs to
    the backend until the ticket is complete. Both sides know the length: another length at the receiver is a
    `MessageMismatch`. Tags from 0 up are the caller's; negative tags belong to derived operations and communicators.
    """

    kind: Literal["send", "recv"]
    tensor: Tensor
    peer: int
    tag: int = 0


class Ticket(Protocol):
    """Something in flight. Only the caller's test and wait move it on; no thread works behind."""

    def test(self) -> bool:
        """Whether it is complete, without blocking. Raises what `wait` would raise."""

    def wait(self) -> None:
        """Order the device's current stream after it; on CPU the same as `wait_host` with the operation's deadline."""

    def wait_host(self, deadline: float) -> None:
        """Block until complete, at most until `deadline` (monotonic seconds).

        Raises a `CommsError`. After `CommsTimeout` the ticket is still pending and may be waited again.
        """


class Express(Protocol):
    """Whole collectives in one blocking call, for a backend whose `mismatch` is "inline": the communicator's fast lane.

    Each returns True when the collective is done on this rank, or False having done nothing, and then the communicator
    takes the general way: for a tensor that is not dense or of an unusual dtype, or while other operations are pending.
    Raises what the operation's ticket would raise.
    """

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """As `Backend.all_reduce`."""

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """As `Backend.broadcast`."""

    def barrier(self) -> bool:
        """As `Backend.barrier`."""


class Window(Protocol):
    """Memory of every rank that every other rank may write into: one-sided messages. Since interface 1.1."""

    def put(self, source: Tensor, peer: int, offset: int) -> Ticket:
        """Write `source` (dense, of the window's dtype) into the window of `peer`, from element `offset` on."""

    def signal(self, peer: int) -> Ticket:
        """Count one up at `peer`; whoever sees it also sees the puts that this rank made there before."""

    def wait_signal(self, peer: int) -> Ticket:
        """Complete when a signal of `peer` that no earlier wait took has come."""

    def remote(self, rank: int) -> Tensor:
        """The window of `rank` as a tensor that reads and writes its memory."""

    def close(self) -> None:
        """Release this rank's hold on it. May be called again."""


class Store(Protocol):
    """Where ranks meet: the words of torch.distributed's stores, which satisfy it as they are."""

    def set(self, key: str, value: bytes | str, /) -> None:
        """Write a key."""

    def get(self, key: str, /) -> bytes:
        """Read a key; blocks until it is set, up to the store's own timeout."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0 and return its new value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Block until all keys are set; raises after `timeout`."""


class RedOpType(Enum):
    """The kinds of reduction."""

    SUM = auto()
    PRODUCT = auto()
    MIN = auto()
    MAX = auto()
    BAND = auto()
    BOR = auto()
    BXOR = auto()
    PREMUL_SUM = auto()
    AVG = auto()


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """How elements of several ranks become one, in an order that the backend documents.

    It is the same on every rank and every time; on one host it is that of the ranks. Half types (16 and 8 bits)
    accumulate in float32 and are rounded once. Integers wrap as in torch. bool: SUM and MAX are logical or, PRODUCT and
    MIN logical and. AVG divides the sum by the number of ranks: for integers the sum is formed in 64 bits and the
    quotient rounded toward zero; bool has no AVG. PREMUL_SUM multiplies by `factor` first, and takes floating and
    complex dtypes only. MIN and MAX hand on NaN.
    """

    kind: str
    factor: float | None = None

    SUM: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]

    @classmethod
    def PREMUL_SUM(cls, factor: float | Tensor) -> ReduceOp:
        """The sum of `factor` (a number or a tensor of one) times each rank's element; floating and complex dtypes."""
        return cls("premul_sum", float(factor))

    @property
    def type(self) -> RedOpType:
        """The kind of reduction."""
        return RedOpType[self.kind.upper()]


ReduceOp.SUM = ReduceOp("sum")
ReduceOp.AVG = ReduceOp("avg")
ReduceOp.PRODUCT = ReduceOp("product")
ReduceOp.MIN = ReduceOp("min")
ReduceOp.MAX = ReduceOp("max")
ReduceOp.BAND = ReduceOp("band")
ReduceOp.BOR = ReduceOp("bor")
ReduceOp.BXOR = ReduceOp("bxor")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend class can do here, as data."""

    devices: frozenset[str] = frozenset({"cpu"})
    dtypes: frozenset[str] | None = None  # names as in "float32"; None: every dtype
    native: frozenset[str] = frozenset()  # derived operations that it overrides
    abort: bool = True
    windows: bool = False
    stream_ordered: bool = False
    graph_capturable: bool = False
    mismatch: Literal["inline", "side channel", "none"] = "none"
    death_bound_ms: float | None = None  # None: the death of a peer is not noticed
    usable: bool = True
    reason: str = ""  # why not usable here, and what to do


@dataclass(frozen=True, slots=True)
class Options:
    """What `open` takes beyond the common arguments; a backend subclasses it."""


class Backend(ABC):
    """Moves and reduces dense buffers between the ranks of one group.

    `open` leaves `rank`, `size`, `device` and `timeout` (seconds, the default deadline of an operation) on the object.
    Every derived operation is collective: all ranks call it in the same order. Deadlines are monotonic seconds; None
    means `timeout` from now. After a rank is lost, every wait that is not yet complete raises `PeerFailed`.
    """

    interface: ClassVar[tuple[int, int]] = (1, 1)
    name: ClassVar[str]
    rank: int
    size: int
    device: str
    timeout: float
    express: Express | None = None  # since interface 1.1
    choices: Table | None = None  # which algorithms derived operations take, alike on all ranks; since interface 1.1

    @classmethod
    @abstractmethod
    def capabilities(cls) -> Capabilities:
        """What this backend can do on this machine, and if it is not usable here, why. Opens nothing."""

    @classmethod
    @abstractmethod
    def open(
        cls,
        *,
        rank: int,
        size: int,
        store: Store,
        device: str,
        epoch: int = 0,
        timeout: float,
        options: Options | None = None,
    ) -> Self:
        """Meet the other ranks through `store`; returns when all of them are there.

        Repeated opens over one store are told apart by their order, which is the same on every rank. `CommsTimeout`
        after `timeout` seconds names the ranks that did not come.
        """

    @abstractmethod
    def post(self, batch: Sequence[P2P]) -> Ticket:
        """Start all messages at once: no order inside a batch can deadlock, and messages to oneself work.

        A send is complete when its tensor may be reused. Matching is first in, first out per (peer, tag).
        """

    @abstractmethod
    def lost(self) -> frozenset[int]:
        """Ranks known to be dead, without blocking. A rank that closed its backend in order is not dead."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Make every wait of this group return at once with `CommsAborted`, on this rank, in every thread."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; pending tickets end with `CommsClosed`. May be called again."""

    def broadcast(self, tensor: Tensor, root: int, *, deadline: float | None = None) -> Ticket:
        """Copy `tensor` of rank `root` into `tensor` of every rank (same count and dtype)."""
        from torchcomms.algorithms import tree

        return self._start("broadcast", tree.broadcast(self, tensor, root), deadline)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        """Replace `tensor` on every rank by the reduction over all ranks; the same bits everywhere.

        Until the result (of long tensors a piece of 64 MiB of it) is certain, `tensor` stays as it was.
        """
        from torchcomms.algorithms import reducing

        return self._start("all_reduce", reducing.all_reduce(self, tensor, op), deadline)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        """Replace `tensor` on rank `root` by the reduction; the other ranks' tensors stay as they are."""
        from torchcomms.algorithms import reducing

        return self._start("reduce", reducing.reduce(self, tensor, root, op), deadline)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, *, deadline: float | None = None) -> Ticket:
        """Copy rank r's `tensor` into `outputs[r]` on every rank; counts may differ by rank."""
        from torchcomms.algorithms import gathering

        return self._start("all_gather", gathering.all_gather(self, outputs, tensor), deadline)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, *, deadline: float | None = None
    ) -> Ticket:
        """Reduce `inputs[r]` of all ranks into `output` of rank r; counts may differ by r; inputs stay as they are."""
        from torchcomms.algorithms import reducing

        return self._start("reduce_scatter", reducing.reduce_scatter(self, output, inputs, op), deadline)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, deadline: float | None = None
    ) -> Ticket:
        """Copy `inputs[r]` of rank s into `outputs[s]` of rank r; counts may differ for every pair."""
        from torchcomms.algorithms import gathering

        return self._start("all_to_all", gathering.all_to_all(self, outputs, inputs), deadline)

    def gather(
        self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int, *, deadline: float | None = None
    ) -> Ticket:
        """Copy rank r's `tensor` into `outputs[r]` of rank `root`; the other ranks pass None."""
        from torchcomms.algorithms import gathering

        return self._start("gather", gathering.gather(self, outputs, tensor, root), deadline)

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, *, deadline: float | None = None
    ) -> Ticket:
        """Copy `inputs[r]` of rank `root` into `output` of rank r; the other ranks pass None."""
        from torchcomms.algorithms import gathering

        return self._start("scatter", gathering.scatter(self, output, inputs, root), deadline)

    def scan(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        """Replace `tensor` of rank r by the reduction over ranks 0..r (r included); AVG has no scan."""
        from torchcomms.algorithms import reducing

        return self._start("scan", reducing.scan(self, tensor, op), deadline)

    def barrier(self, *, deadline: float | None = None) -> Ticket:
        """Complete on no rank before every rank has called it."""
        from torchcomms.algorithms import dissemination

        return self._start("barrier", dissemination.barrier(self), deadline)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialized dense tensor in the memory that this backend moves fastest. Not collective. Since 1.1.

        It lives as long as it is referenced, also after `close`.
        """
        import torch

        return torch.empty(shape, dtype=dtype, device=self.device)

    def window(self, tensor: Tensor) -> Window:
        """Open `tensor` (dense; the same count and dtype on every rank) to the other ranks. Collective. Since 1.1.

        A backend that claims `windows` overrides it.
        """
        raise UnsupportedTensor(
            f"the {self.name} backend has no windows: use send and recv, or a backend that claims them"
        )

    def coalesce(self) -> AbstractContextManager[None]:
        """A block in which posts may be held back, to go out together when it ends. A backend may override it."""
        return nullcontext()

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of the dtype and device of `like` for a derived operation, its own until the operation is complete.

        One piece is kept and used again, since schedules of a backend run one after another: memory fresh from the
        system costs more than the messages that go into it.
        """
        from torchcomms.algorithms import scratch

        kept: Tensor | None = self.__dict__.get("_kept")
        memory, self.__dict__["_kept"] = scratch.take(kept, shape, like)
        return memory

    def _start(self, operation: str, schedule: Schedule, deadline: float | None) -> Ticket:
        # setdefault is atomic: two threads that derive their first operation at once share one sequencer.
        sequencer: Sequencer = self.__dict__.setdefault("_sequencer", Sequencer())
        return sequencer.start(operation, schedule, time.monotonic() + self.timeout if deadline is None else deadline)
