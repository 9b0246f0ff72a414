"""The entry point that torch runs at the end of its own import: makes `backend="torchcomms"` known, and no more.

Nothing heavy is imported before a group is made, so that `import torch` stays as fast as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Protocol

    from torch.distributed import ProcessGroup

    from torchcomms.backend import Store

    class Request(Protocol):
        """What torch.distributed tells a maker."""

        store: Store
        group_rank: int
        group_size: int
        timeout: timedelta
        group_id: str
        global_ranks_in_group: list[int]


NAME = "torchcomms"


def register() -> None:
    """Register with torch.distributed, if this build of torch has it. May be called again."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])


def _make(request: Request, options: object) -> ProcessGroup:
    from torchcomms.distributed.maker import make

    return make(request, options)
