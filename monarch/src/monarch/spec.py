"""The actor spec: what to run on how many ranks, and the launcher that carries it out.

This is the published interface, version 1.0 (entry-point group `monarch.launchers.v1`). It imports neither torch nor
any engine. A consumer needs no import of it at run time: everything is read by attribute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, Protocol

from monarch.errors import SpecError

interface = (1, 0)

CAPABILITIES = frozenset({"env", "processes"})
"""What a launcher may claim in `capabilities`: each rank a process of its own; its environment set before user code."""

RESTARTS = ("never", "one_for_one", "one_for_all", "rest_for_one")
RESOURCES = ("cpus", "gpus", "memory")

_ACTOR = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_RESTART = re.compile(r"(never|(one_for_one|one_for_all|rest_for_one)(:max=[1-9]\d*/[1-9]\d*s)?)")


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """One actor class on a mesh of ranks.

    actor       "package.module:Class", or a class object (carried by value where the other side cannot import it)
    args        constructor arguments, the same on every rank; so are `kwargs`
    name        names the mesh in errors and output; empty: the class's name
    extent      named dimensions in row-major order, one rank a point
    resources   per rank: cpus (also its number of threads), gpus, memory (bytes)
    env         environment of every rank, beside RANK, WORLD_SIZE and LOCAL_RANK
    restart     "never", or "one_for_one", "one_for_all", "rest_for_one", each with ":max=3/60s"
    endpoints   None: the methods marked @endpoint; a tuple: these methods of a plain class
    idempotent  endpoints that may be called again after a restart
    """

    actor: str | type[Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    extent: Mapping[str, int] = field(default_factory=lambda: {"procs": 1})
    resources: Mapping[str, float] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    restart: str = "never"
    endpoints: tuple[str, ...] | None = None
    idempotent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_actor(self.actor)
        check_extent(self.extent)
        _check_resources(self.resources)
        _check_strings("env", self.env)
        if not _RESTART.fullmatch(self.restart):
            raise SpecError(
                f'restart is {self.restart!r}; use one of {", ".join(RESTARTS)}, the last three also with ":max=3/60s"',
                field="restart",
            )
        _check_endpoints(self.endpoints, self.idempotent)
        # A caller that changes its own mapping later must not change a spec that was validated.
        for name in ("kwargs", "extent", "resources", "env"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "idempotent", frozenset(self.idempotent))

    @property
    def size(self) -> int:
        """How many ranks: the product of the extent."""
        return prod(self.extent.values())

    def to_json(self) -> str:
        """JSON text of this spec; SpecError where an argument or the class cannot be written in JSON."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        if not isinstance(self.actor, str):
            record["actor"] = _path_of(self.actor)
        record["args"], record["idempotent"] = list(self.args), sorted(self.idempotent)
        try:
            text = json.dumps(record)
        except (TypeError, ValueError) as error:
            raise SpecError(f"the arguments of {record['actor']!r} have no JSON form: {error}", field="args") from error
        back = ActorSpec.from_json(text)
        if (back.args, back.kwargs) != (self.args, self.kwargs):
            raise SpecError(
                f"the arguments of {record['actor']!r} come back from JSON changed; use lists, not tuples",
                field="args",
            )
        return text

    @classmethod
    def from_json(cls, text: str) -> ActorSpec:
        """The spec that `to_json` wrote; SpecError names a key that is unknown."""
        record = json.loads(text)
        unknown = sorted(set(record) - {f.name for f in fields(cls)})
        if unknown:
            raise SpecError(f"unknown keys {', '.join(unknown)} in a spec", field=unknown[0])
        record["args"], record["idempotent"] = tuple(record.get("args", ())), frozenset(record.get("idempotent", ()))
        if record.get("endpoints") is not None:
            record["endpoints"] = tuple(record["endpoints"])
        return cls(**record)


class Values(Protocol):
    """What `call` brings back: one value a rank."""

    def values(self) -> list[Any]:
        """The values in rank order."""

    def items(self) -> Iterable[tuple[Mapping[str, int], Any]]:
        """Coordinates and value, in rank order."""


class Verbs(Protocol):
    """One endpoint of a mesh; each verb's result is awaitable."""

    def call(self, *args: Any, **kwargs: Any) -> Awaitable[Values]:
        """Run on all ranks and gather."""

    def call_one(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run on the one rank that there is; an error where there are several."""

    def choose(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run on one rank, of the launcher's choice."""

    def broadcast(self, *args: Any, **kwargs: Any) -> Awaitable[None]:
        """Hand over to all ranks, without an answer. In order with the other calls of the same caller."""


class Mesh(Protocol):
    """Running actors: one a rank."""

    @property
    def extent(self) -> Mapping[str, int]:
        """The named dimensions, as in the spec."""

    def __getattr__(self, endpoint: str, /) -> Verbs:
        """The `Verbs` of an endpoint; AttributeError naming the endpoints that there are for any other name."""

    def stop(self) -> Awaitable[None]:
        """End the actors; later calls fail. Idempotent."""


class Launcher(Protocol):
    """Carries specs out."""

    @property
    def interface(self) -> tuple[int, int]:
        """Major and minor of this contract: (1, 0)."""

    @property
    def name(self) -> str:
        """The entry point's name."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of `CAPABILITIES` it has."""

    async def launch(self, *specs: ActorSpec) -> tuple[Mesh, ...]:
        """One mesh a spec, in order, when every constructor has returned; all placed or none."""

    async def close(self) -> None:
        """Stop everything it launched and release everything. Idempotent."""


def _check_actor(actor: object) -> None:
    if not isinstance(actor, type) and not (isinstance(actor, str) and _ACTOR.fullmatch(actor)):
        raise SpecError(f'actor is {actor!r}; use "package.module:Class" or a class', field="actor")


def check_extent(extent: Mapping[str, int]) -> None:
    """SpecError unless there is a dimension, every name is an identifier and every size at least 1."""
    if not extent:
        raise SpecError('extent is empty; name at least one dimension, as in {"procs": 1}', field="extent")
    for name, size in extent.items():
        if not (isinstance(name, str) and name.isidentifier()) or type(size) is not int or size < 1:
            raise SpecError(f"extent has {name!r}: {size!r}; use identifiers and sizes of at least 1", field="extent")


def _check_resources(resources: Mapping[str, float]) -> None:
    for name, amount in resources.items():
        if name not in RESOURCES:
            raise SpecError(f"resources has {name!r}; known are {', '.join(RESOURCES)}", field="resources")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf"):
            raise SpecError(f"resources has {name!r}: {amount!r}; use a number of at least 0", field="resources")


def _check_strings(name: str, mapping: Mapping[str, str]) -> None:
    for key, value in mapping.items():
        if not isinstance(key, str) or not isinstance(value, str) or "=" in key or "\0" in key + value or not key:
            raise SpecError(f"{name} has {key!r}: {value!r}; use strings, names without '='", field=name)


def _check_endpoints(endpoints: tuple[str, ...] | None, idempotent: Iterable[str]) -> None:
    if endpoints is None:
        return
    if isinstance(endpoints, str) or not all(isinstance(e, str) and e.isidentifier() for e in endpoints):
        raise SpecError(f"endpoints is {endpoints!r}; use a tuple of method names", field="endpoints")
    stray = sorted(set(idempotent) - set(endpoints))
    if stray:
        raise SpecError(f"idempotent names {', '.join(stray)}, not among the endpoints", field="idempotent")


def _path_of(cls: type[Any]) -> str:
    path = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or not _ACTOR.fullmatch(path):
        raise SpecError(f"{path!r} cannot be imported elsewhere; move the class to a module's top", field="actor")
    return path
