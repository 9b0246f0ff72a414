"""One script drives a mesh of actor processes, moves tensors at memory speed and sees every failure in milliseconds."""

from monarch.actor import (
    Actor,
    ActorMesh,
    Future,
    HostMesh,
    Point,
    ProcMesh,
    ValueMesh,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
)
from monarch.distributions import warn_of_clashes
from monarch.launchers import find_launcher, launchers
from monarch.spec import ActorSpec

__all__ = [
    "Actor",
    "ActorMesh",
    "ActorSpec",
    "Future",
    "HostMesh",
    "Point",
    "ProcMesh",
    "ValueMesh",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "find_launcher",
    "launchers",
    "this_host",
]

__version__ = "0.1.0"

warn_of_clashes()
