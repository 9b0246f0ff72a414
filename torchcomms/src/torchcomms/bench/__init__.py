"""`torchcomms bench`: time a collective over sizes, on ranks of its own, beside torch.distributed if asked."""

from torchcomms.bench.plan import OPERATIONS, Plan, Row
from torchcomms.bench.show import main

__all__ = ["OPERATIONS", "Plan", "Row", "main"]
