"""Making a `CommsGroup` for torch.distributed: which device goes to which backend, and opening the communicators."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch.distributed import distributed_c10d as c10d

from torchcomms._register import NAME
from torchcomms.comm import TorchComm, new_comm
from torchcomms.distributed import beside
from torchcomms.distributed.group import part
from torchcomms.distributed.operations import CommsGroup
from torchcomms.distributed.options import Options

if TYPE_CHECKING:
    from torchcomms._register import Request

# The function of torch that makes groups; what it is about to make is among its local names.
_CALLER, _CONFIG = "_new_process_group_helper", "backend_config"


def make(request: Request, options: object) -> CommsGroup:
    """Open the group that torch asks for.

    The first group returns when all of its ranks have come. A smaller one returns at once and opens behind, so that no
    order in which ranks make their groups can deadlock; its first operation waits until it is open.
    """
    backends = _backends_by_device()
    ours = [device for device, name in backends.items() if name == NAME]
    world = c10d.GroupMember.WORLD
    if options is None and isinstance(world, CommsGroup) and world.moves(ours):
        where = request.global_ranks_in_group, request.group_id, request.timeout
        comms = {device: part(world.get_comm(device), *where) for device in ours}
    else:
        comms = {device: _open(device, request, options) for device in ours}
    group = CommsGroup(comms, request.store)
    beside.register(group, {one: name for one, name in backends.items() if name != NAME}, request, options)
    return group


def _open(device: str, request: Request, options: object) -> TorchComm:
    chosen = options if isinstance(options, Options) else Options()
    return new_comm(
        chosen.name,
        device,
        request.group_id,
        timeout=request.timeout,
        store=request.store,
        rank=request.group_rank,
        size=request.group_size,
        options=chosen.options,
    )


def _backends_by_device() -> dict[str, str]:
    """The backend of each device in the string that the group is made from.

    Torch tells a maker of one device nothing about the others, and drops what it made for them when the maker returns
    a ProcessGroup, which stands for all devices; so the string is read where torch holds it.
    """
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != _CALLER:
        frame = frame.f_back
    config = frame.f_locals.get(_CONFIG)
    return {"cpu": NAME} if config is None else dict(config.get_device_backend_map())
