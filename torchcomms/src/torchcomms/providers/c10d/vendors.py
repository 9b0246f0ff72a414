"""`NcclBackend`, `RcclBackend`, `XcclBackend`: libraries of NVIDIA, AMD and Intel over torch.distributed's groups."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

import torch

from torchcomms.backend import Capabilities, Options
from torchcomms.providers.c10d.base import NOTICED_MS
from torchcomms.providers.c10d.library import GROUPS, Library
from torchcomms.providers.c10d.probe import why_no_nccl, why_no_rccl, why_no_xccl
from torchcomms.providers.c10d.reductions import Dialect
from torchcomms.providers.c10d.stream import StreamBackend
from torchcomms.providers.c10d.streams import AcceleratorStreams
from torchcomms.providers.c10d.together import NATIVE
from torchcomms.providers.tcp import TcpBackend

FOREVER = timedelta(days=365)  # deadlines are ours: torch's own timeout would end the process
_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@dataclass(frozen=True, slots=True)
class VendorOptions(Options):
    """`host`: the address of this rank that the others reach; None: the one from which the store is reached.

    `exact`: floats are reduced as every other backend does, in the order of ranks, with halves accumulated in float32
    and NaN kept, and not as the library does; slower. `high_priority`: the library's streams have high priority.
    """

    host: str | None = None
    exact: bool = False
    high_priority: bool = False


class VendorBackend(StreamBackend):
    """What the three share: how their group is built on the device that is current when they are opened."""

    group: ClassVar[str]  # the name of torch.distributed's class
    kind: ClassVar[str]  # torch's device type
    floats: ClassVar[frozenset[str]] = frozenset({"sum", "avg", "product", "min", "max", "premul_sum"})

    @classmethod
    def _build(
        cls, control: TcpBackend, place: Any, host: str, device: str, deadline: float, options: Options | None
    ) -> Self:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined, unused-ignore]  # not in its stubs

        make = getattr(torch.distributed, cls.group)
        settings = cls._settings(getattr(options, "high_priority", False))
        with _survivable():
            groups = [make(PrefixStore(name, place), control.rank, control.size, settings) for name in GROUPS]
        current = torch.device(cls.kind, getattr(torch, cls.kind).current_device())
        cls._connect(groups[0], current)
        dialect = Dialect(cls.floats, getattr(options, "exact", False))
        return cls(Library(control.rank, *groups), control, AcceleratorStreams(current), dialect, device)

    @classmethod
    def _settings(cls, high_priority: bool) -> Any:
        settings = getattr(torch.distributed, cls.group).Options()
        settings._timeout = FOREVER
        settings.is_high_priority_stream = high_priority
        return settings

    @classmethod
    def _connect(cls, group: Any, device: torch.device) -> None:
        """Connect all ranks now, while each is known to be there."""
        group.eager_connect_single_device(device)

    @classmethod
    def _claims(cls, reason: str, *, graph_capturable: bool) -> Capabilities:
        return Capabilities(
            devices=frozenset({cls.kind}),
            native=NATIVE,
            stream_ordered=True,
            graph_capturable=graph_capturable,
            death_bound_ms=NOTICED_MS,
            usable=not reason,
            reason=reason,
        )


class NcclBackend(VendorBackend):
    """CUDA tensors over NVIDIA's NCCL."""

    name = "nccl"
    group = "ProcessGroupNCCL"
    kind = "cuda"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return cls._claims(why_no_nccl(), graph_capturable=True)


class RcclBackend(VendorBackend):
    """Tensors on AMD's devices over RCCL; torch for ROCm calls the library NCCL and the devices cuda."""

    name = "rccl"
    group = "ProcessGroupNCCL"
    kind = "cuda"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return cls._claims(why_no_rccl(), graph_capturable=True)


class XcclBackend(VendorBackend):
    """Tensors on Intel's devices over oneCCL."""

    name = "xccl"
    group = "ProcessGroupXCCL"
    kind = "xpu"
    floats = frozenset({"sum", "product", "min", "max"})

    @classmethod
    def capabilities(cls) -> Capabilities:
        return cls._claims(why_no_xccl(), graph_capturable=False)

    @classmethod
    def _connect(cls, group: Any, device: torch.device) -> None:
        # Torch's group for oneCCL has no call for it: the first sum of all ranks connects them.
        group.allreduce([torch.zeros(1, device=device)]).wait()


_ENVIRONMENT = threading.Lock()


@contextmanager
def _survivable() -> Iterator[None]:
    """Have a group that is built in this block clean up after a failure of the library.

    torch's default ends the whole process instead, and only the environment can say otherwise. What the user has said
    there stands.
    """
    with _ENVIRONMENT:
        said = _HANDLING in os.environ or "NCCL_ASYNC_ERROR_HANDLING" in os.environ
        if not said:
            os.environ[_HANDLING] = "2"
        try:
            yield
        finally:
            if not said:
                del os.environ[_HANDLING]
