"""A `DeviceMesh` of torch.distributed over communicators that the caller has made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import HashStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from torchcomms._register import NAME
from torchcomms.comm import TorchComm
from torchcomms.distributed import CommsGroup
from torchcomms.errors import InvalidCall

__all__ = ["init_device_mesh"]


def init_device_mesh(
    mesh_dim_comms: Sequence[TorchComm],
    mesh_dim_names: Sequence[str],
    _global_comm: TorchComm | None = None,
) -> DeviceMesh:
    """The mesh whose dimension i is the ranks of `mesh_dim_comms[i]`, counted in row-major order.

    Several dimensions need a communicator of all ranks as `_global_comm`, whose ranks are that order. It becomes
    torch.distributed's default group unless there is one. The mesh's groups own the communicators from here on:
    `destroy_process_group()` finalizes them.
    """
    comms, names = tuple(mesh_dim_comms), tuple(mesh_dim_names)
    mesh = torch.arange(math.prod(comm.get_size() for comm in comms), dtype=torch.int)
    mesh = mesh.view([comm.get_size() for comm in comms])
    where = [comm.get_rank() for comm in comms]
    world = _world_comm(comms, names, _global_comm, mesh.numel(), int(mesh[tuple(where)].item()))
    if not dist.is_initialized():
        c10d._update_default_pg(_group(world, list(range(world.get_size()))))
    groups = [_group(comm, _line(mesh, where, dim)) for dim, comm in enumerate(comms)]
    return DeviceMesh.from_group(groups, comms[0].get_device().type, mesh, mesh_dim_names=names)


def _line(mesh: Tensor, where: list[int], dim: int) -> list[int]:
    """The ranks of the mesh along dimension `dim` through the place `where`."""
    for axis in reversed(range(mesh.dim())):
        mesh = mesh if axis == dim else mesh.select(axis, where[axis])
    return [int(rank) for rank in mesh]


def _world_comm(
    comms: tuple[TorchComm, ...], names: tuple[str, ...], world: TorchComm | None, size: int, rank: int
) -> TorchComm:
    """The communicator of all ranks; raises `InvalidCall` if the arguments do not make a mesh."""
    if not comms or len(comms) != len(names):
        raise InvalidCall(f"{len(comms)} communicators and {len(names)} names: pass one name for each communicator")
    if world is None and len(comms) > 1:
        raise InvalidCall(f"a mesh of {len(comms)} dimensions needs _global_comm=, a communicator of all its ranks")
    world = comms[0] if world is None else world
    if (world.get_size(), world.get_rank()) != (size, rank):
        raise InvalidCall(
            f"the mesh makes this rank {rank} of {size}, _global_comm rank {world.get_rank()} of {world.get_size()}: "
            "its ranks must be those of the mesh in row-major order"
        )
    return world


def _group(comm: TorchComm, ranks: list[int]) -> dist.ProcessGroup:
    """The process group of a communicator, made known to torch.distributed, once for each communicator."""
    world = c10d._world
    for known in world.pg_map:
        if isinstance(known, CommsGroup) and comm in known.comms():
            return known
    group = CommsGroup({comm.get_device().type: comm}, HashStore())
    name, tag = c10d.GroupName(comm.get_name()), f"ptd:{comm.get_name()}"
    group._set_group_name(name)
    # Torch has no public way to adopt a group; these are the places where it looks groups up.
    world.pg_map[group] = (NAME, group.get_group_store())
    world.pg_names[group] = name
    world.pg_backend_config[group] = f"{comm.get_device().type}:{NAME}"
    world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
    world.pg_to_tag[group] = tag
    world.tags_to_pg.setdefault(tag, []).append(group)
    _register_process_group(name, group)
    return group
