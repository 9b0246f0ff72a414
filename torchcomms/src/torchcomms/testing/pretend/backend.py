"""`PretendBackend`: what the vendors' backends do, on the pretend device with the pretend library."""

from __future__ import annotations

import uuid
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from torchcomms.backend import Capabilities, Options
from torchcomms.providers.c10d.base import NOTICED_MS
from torchcomms.providers.c10d.library import GROUPS, Library
from torchcomms.providers.c10d.reductions import Dialect
from torchcomms.providers.c10d.stream import StreamBackend
from torchcomms.providers.c10d.together import NATIVE
from torchcomms.providers.tcp import TcpBackend
from torchcomms.testing.pretend.device import NAME, register
from torchcomms.testing.pretend.group import Exchange, PretendGroup
from torchcomms.testing.pretend.stream import Mark, Stream, current, on

_KINDS = frozenset({"sum", "avg", "product", "min", "max", "premul_sum"})


@dataclass(frozen=True, slots=True)
class PretendOptions(Options):
    """`exact`: as of the vendors' options."""

    exact: bool = False


class PretendStreams:
    """The streams of the pretend device, as the backends see a real one's."""

    def __init__(self) -> None:
        self.device = register()
        self._side = Stream()

    def mark(self) -> Mark:
        return Mark(current().pending())

    def aside(self) -> AbstractContextManager[object]:
        return on(self._side)

    def hold(self, tensor: Tensor) -> None:
        """Memory here is freed by the host, which works in order."""

    def capturing(self) -> bool:
        return False


# What the ranks of a group share, by the name that they exchange; each lives as long as a rank holds it.
_EXCHANGES: weakref.WeakValueDictionary[str, Exchange] = weakref.WeakValueDictionary()


class PretendBackend(StreamBackend):
    """Tensors on the pretend device between threads of one process; a death is injected by `sever`."""

    name = NAME

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(devices=frozenset({NAME}), native=NATIVE, stream_ordered=True, death_bound_ms=NOTICED_MS)

    @classmethod
    def _build(
        cls, control: TcpBackend, place: Any, host: str, device: str, deadline: float, options: Options | None
    ) -> Self:
        streams = PretendStreams()
        exchange = Exchange()
        if control.rank == 0:
            name = str(uuid.uuid4())
            _EXCHANGES[name] = exchange
            place.set("exchange", name)
        else:
            exchange = _EXCHANGES[place.get("exchange").decode()]
        control.barrier(deadline=deadline).wait_host(deadline)
        groups = [PretendGroup(exchange, name, control.rank, control.size) for name in GROUPS]
        dialect = Dialect(_KINDS, getattr(options, "exact", False))
        return cls(Library(control.rank, *groups), control, streams, dialect, device)

    def sever(self) -> None:
        """Die as a killed process would: without a word. For tests of what the others notice."""
        self._control.sever()
        self._library.end(at_once=True)
