"""State: the buffers that live from call to call, and their snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock

import numpy as np

from executor.arrays import Array, aligned
from executor.errors import StateError
from executor.manifest import Manifest

Snapshot = dict[str, Array]


class StateBuffers:
    """A program's state, owned by its runtime; its methods and calls of the program exclude each other.

    Snapshots are plain dicts from name to an array of the caller's own, so they can be kept with `numpy.savez`.
    """

    def __init__(self, manifest: Manifest, weights: Mapping[str, Array], lock: RLock) -> None:
        self._lock = lock
        self._initial = {entry.name: weights[entry.initial] if entry.initial else None for entry in manifest.state}
        self.buffers = {entry.name: aligned(entry.dtype, entry.shape) for entry in manifest.state}
        self.reset()

    def names(self) -> list[str]:
        """The entries, in the program's order."""
        return list(self.buffers)

    def reset(self) -> None:
        """Every entry as it was before the first call."""
        with self._lock:
            for name, buffer in self.buffers.items():
                initial = self._initial[name]
                buffer[...] = 0 if initial is None else initial

    def snapshot(self) -> Snapshot:
        """A copy of every entry."""
        with self._lock:
            return {name: buffer.copy() for name, buffer in self.buffers.items()}

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Every entry as `snapshot` has it; StateError, with nothing changed, if it does not fit."""
        if snapshot.keys() != self.buffers.keys():
            raise StateError(f"a snapshot of {sorted(snapshot)}; this program's state is {sorted(self.buffers)}")
        values = {name: np.asarray(value) for name, value in snapshot.items()}
        for name, buffer in self.buffers.items():
            came, due = (values[name].dtype, values[name].shape), (buffer.dtype, buffer.shape)
            if came != due:
                raise StateError(f"state {name!r}: a snapshot of {came[0]}{list(came[1])}; due {due[0]}{list(due[1])}")
        with self._lock:
            for name, buffer in self.buffers.items():
                buffer[...] = values[name]
