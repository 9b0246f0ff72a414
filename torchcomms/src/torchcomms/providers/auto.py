"""The auto backend: opens the one that fits the device and the hosts, and says which."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self, cast

from torchcomms.backend import P2P, Backend, Capabilities, Options, Store
from torchcomms.discovery import find
from torchcomms.errors import CommsClosed
from torchcomms.locality import Topology, find_hosts
from torchcomms.providers.choice import choose, survey, why_not
from torchcomms.providers.hier.backend import HierOptions

log = logging.getLogger("torchcomms")

# Preferred first. An accelerator's own library spans hosts by itself.
ACCELERATORS: Mapping[str, tuple[str, ...]] = {"cuda": ("nccl", "rccl"), "xpu": ("xccl",)}
ONE_HOST = ("shm", "tcp")
SHARED_HOSTS = ("hier", "tcp")
HOSTS = ("tcp",)


@dataclass(frozen=True, slots=True)
class AutoOptions(Options):
    """`options`: for each backend that may be chosen, what its `open` takes. `host`: as in `HierOptions`, for tests."""

    options: Mapping[str, Options] = field(default_factory=dict)
    host: str | None = None


def preferences(device: str, topology: Topology) -> tuple[str, ...]:
    """The backends that fit, best first."""
    if device != "cpu":
        return ACCELERATORS.get(device, HOSTS)
    if len(topology.hosts) == 1:
        return ONE_HOST
    return SHARED_HOSTS if any(len(ranks) > 1 for ranks in topology.hosts) else HOSTS


class AutoBackend(Backend):
    """Not a backend by itself: `open` returns one of another class, whose `name` says which was chosen.

    The same on all ranks: a backend is chosen only if every rank can use it. The choice and the reasons go to the
    logger "torchcomms" at level INFO, once, from rank 0.
    """

    name = "auto"

    @classmethod
    def capabilities(cls) -> Capabilities:
        found = {device: first for device, names in ACCELERATORS.items() if (first := _first(names, device))}
        choices = {"one host": _first(ONE_HOST, "cpu"), "several hosts": _first(SHARED_HOSTS, "cpu"), **found}
        words = ", ".join(f"{name} for {where}" for where, name in choices.items())
        return Capabilities(devices=frozenset({"cpu", *found}), death_bound_ms=250.0, reason=f"would choose {words}")

    @classmethod
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
        deadline = time.monotonic() + timeout
        asked = options if isinstance(options, AutoOptions) else AutoOptions()
        prefix = f"torchcomms/auto/{epoch}.{store.add(f'torchcomms/auto/{epoch}/{rank}', 1)}"
        topology = find_hosts(store, f"{prefix}/hosts", rank, size, deadline, pretended=asked.host)
        names = preferences(device, topology)
        told = survey(store, f"{prefix}/usable", rank, size, names, device, deadline)
        choice = choose(names, dict(enumerate(told)))
        if rank == 0:
            log.info("auto chose %s for %d ranks on %s, %s", choice, size, device, topology)
        opened = find(choice.name).open(
            rank=rank,
            size=size,
            store=store,
            device=device,
            epoch=epoch,
            timeout=timeout,
            options=_options(asked, choice.name),
        )
        return cast(Self, opened)

    def post(self, batch: Sequence[P2P]) -> NoReturn:
        raise _never()

    def lost(self) -> NoReturn:
        raise _never()

    def abort(self, reason: str) -> NoReturn:
        raise _never()

    def close(self) -> NoReturn:
        raise _never()


def _first(names: Sequence[str], device: str) -> str:
    return next((name for name in names if not why_not(name, device)), "")


def _options(asked: AutoOptions, name: str) -> Options | None:
    given = asked.options.get(name)
    return HierOptions(host=asked.host) if given is None and name == "hier" else given


def _never() -> CommsClosed:
    return CommsClosed("auto is no backend by itself: use what AutoBackend.open returns")
