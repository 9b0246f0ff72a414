"""`Options`: what `init_process_group` and `new_group` take as `pg_options`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from torchcomms import backend as contract

VARIABLE = "TORCHCOMMS_BACKEND"


@dataclass(frozen=True, slots=True)
class Options:
    """Which backend of this package moves the tensors.

    `backend`: its name; empty: the environment's TORCHCOMMS_BACKEND, else "auto". `options`: that backend's own.
    `timeout`: for groups that a DeviceMesh makes, which takes it from here.
    """

    backend: str = ""
    options: contract.Options | None = None
    timeout: timedelta = dist.default_pg_timeout

    @property
    def name(self) -> str:
        """The backend's name, decided."""
        return self.backend or os.environ.get(VARIABLE) or "auto"

    @property
    def _timeout(self) -> timedelta:
        # DeviceMesh reads it under this name.
        return self.timeout
