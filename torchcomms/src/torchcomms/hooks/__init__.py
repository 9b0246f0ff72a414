"""Hooks that come with the package: a flight recorder and a check for NaN."""

from torchcomms.hooks.nan_check import NanCheckHook
from torchcomms.hooks.recorder import FlightRecorderHook

__all__ = ["FlightRecorderHook", "NanCheckHook"]
