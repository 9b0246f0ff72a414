"""torch.distributed over this package: `init_process_group(backend="cpu:torchcomms")` makes a `CommsGroup`."""

from torchcomms.distributed.operations import CommsGroup
from torchcomms.distributed.options import Options
from torchcomms.distributed.placement import place

__all__ = ["CommsGroup", "Options", "place"]
