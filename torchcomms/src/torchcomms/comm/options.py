"""The options of a communicator and of its operations, as one may set them before they are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from torchcomms.backend import Store

DEFAULT_TIMEOUT = timedelta(seconds=60)

Hints = Mapping[str, str]


@dataclass(slots=True)
class CommOptions:
    """What a communicator was opened with, and what `set_timeout` and `set_hints` made of it."""

    abort_process_on_timeout_or_error: bool = False
    timeout: timedelta = DEFAULT_TIMEOUT
    high_priority_stream: bool = False
    store: Store | None = None
    enable_reconfigure: bool = False
    hints: dict[str, str] = field(default_factory=dict)
    min_size: int = 1  # ranks under which `reconfigure` refuses to go on


@dataclass(slots=True)
class OperationOptions:
    """`timeout` of one operation (None: the communicator's) and hints to it."""

    timeout: timedelta | None = None
    hints: dict[str, str] = field(default_factory=dict)


# One class: no operation has an option of its own.
AllGatherOptions = AllGatherPExecOptions = AllGatherPInitOptions = AllGatherSingleOptions = OperationOptions
AllReduceOptions = AllToAllOptions = AllToAllSingleOptions = AllToAllvSingleOptions = OperationOptions
BarrierOptions = BatchP2POptions = BroadcastOptions = GatherOptions = RecvOptions = OperationOptions
ReduceOptions = ReduceScatterOptions = ReduceScatterSingleOptions = ScatterOptions = SendOptions = OperationOptions


@dataclass(slots=True)
class ReconfigureOptions:
    """The arguments of `reconfigure`."""

    uuid: int = 0
    init_handles: list[str] | set[str] = field(default_factory=list)
    timeout: timedelta | None = None
    hints: dict[str, str] = field(default_factory=dict)
