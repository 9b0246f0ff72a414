"""Actors, endpoints and meshes: what a script imports.

from monarch.actor import Actor, endpoint, this_host
"""

from monarch.context import Context, context, current_actor_name, current_rank, current_size
from monarch.endpoint import Endpoint, concurrent_endpoint, endpoint
from monarch.errors import (
    ActorDied,
    ActorError,
    ActorGone,
    ActorStopped,
    BadArguments,
    CallCancelled,
    CallFailed,
    CallTimeout,
    ConstructorError,
    DirectCall,
    EndpointError,
    MonarchError,
    NotPicklable,
    UnknownEndpoint,
)
from monarch.future import Future
from monarch.mesh import ActorMesh, HostMesh, ProcMesh, this_host
from monarch.shape import Point
from monarch.values import ValueMesh


class Actor:
    """Base of actor classes whose endpoints are marked with `@endpoint`. It adds nothing: plain classes work too."""


__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "ActorGone",
    "ActorMesh",
    "ActorStopped",
    "BadArguments",
    "CallCancelled",
    "CallFailed",
    "CallTimeout",
    "ConstructorError",
    "Context",
    "DirectCall",
    "Endpoint",
    "EndpointError",
    "Future",
    "HostMesh",
    "MonarchError",
    "NotPicklable",
    "Point",
    "ProcMesh",
    "UnknownEndpoint",
    "ValueMesh",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "this_host",
]
