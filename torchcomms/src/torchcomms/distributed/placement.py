"""`place`: the gradient buckets of DistributedDataParallel in the memory that the communicator moves fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from torchcomms.comm import TorchComm
from torchcomms.distributed.group import Identity
from torchcomms.errors import InvalidCall


def place(model: DistributedDataParallel) -> DistributedDataParallel:
    """Let the buckets of `model` lie in its communicator's memory, so that they are reduced where they are.

    They move once, before the second forward, when DDP lays them out anew in the order in which gradients came; then
    this hook takes itself out. With `gradient_as_bucket_view=True` the gradients themselves lie there, and no step
    copies them any more. After an operation that failed their content is undefined. Returns `model`.
    """
    group = model.process_group
    if not isinstance(group, Identity):
        raise InvalidCall(f"the model's process group is a {type(group).__name__}: make it with backend torchcomms")
    if model.find_unused_parameters and not model.static_graph:
        raise InvalidCall("with find_unused_parameters=True DDP keeps the buckets of its beginning: leave it out")
    comm = group.get_comm(next(model.parameters()).device)

    def rebuild(module: DistributedDataParallel, inputs: object) -> None:
        # Called here, DDP's own call of this function right afterwards finds nothing left to do.
        with _Placing(comm):
            rebuilt = torch.is_grad_enabled() and module.reducer._rebuild_buckets()
        if rebuilt:
            hook.remove()

    hook = model.register_forward_pre_hook(rebuild)
    return model


class _Placing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's base has no types
    """Flat tensors that C++ makes inside lie in the communicator's memory."""

    def __init__(self, comm: TorchComm) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comm = comm

    def __torch_dispatch__(
        self, function: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        here = given.get("device") is None or torch.device(given["device"]).type == self._comm.get_device().type
        if function is torch.ops.aten.empty.memory_format and len(args[0]) == 1 and here:
            return self._comm.empty(args[0], given.get("dtype") or torch.get_default_dtype())
        return function(*args, **given)
