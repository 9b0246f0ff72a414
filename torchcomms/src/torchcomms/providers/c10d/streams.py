"""Marks on an accelerator's streams: the host can ask, and other streams can wait, whether the work before is done."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor


class Flight(Protocol):
    """Something that a device does: a mark, or a `Work` of torch's."""

    def is_completed(self) -> bool:
        """Whether the device has done it, without blocking."""

    def wait(self) -> object:
        """Order the current stream after it; the host goes on."""


class Streams(Protocol):
    """The streams of one device."""

    device: torch.device

    def mark(self) -> Flight:
        """A mark behind all work that is in the current stream now."""

    def aside(self) -> AbstractContextManager[object]:
        """A block whose current stream is one of our own."""

    def hold(self, tensor: Tensor) -> None:
        """Keep the tensor's memory from being used again before the current stream has done its work."""

    def capturing(self) -> bool:
        """Whether the current stream records a graph instead of working."""


class EventMark:
    """A mark made of an event."""

    __slots__ = ("_event",)

    def __init__(self, event: torch.Event) -> None:
        self._event = event

    def is_completed(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> object:
        self._event.wait()
        return None


class AcceleratorStreams:
    """The streams of an accelerator that torch knows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.Stream(device)

    def mark(self) -> EventMark:
        event = torch.Event(self.device)
        event.record()
        return EventMark(event)

    def aside(self) -> AbstractContextManager[object]:
        return self._side

    def hold(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.accelerator.current_stream(self.device))

    def capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
