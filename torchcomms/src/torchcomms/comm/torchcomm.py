"""`TorchComm`: the communicator, which makes every backend agree on layouts, dtypes, checks, timeouts and errors."""

from __future__ import annotations

from torchcomms.comm.collectives import Collectives
from torchcomms.comm.membership import Membership
from torchcomms.comm.memory import Memory
from torchcomms.comm.messages import Messages
from torchcomms.comm.singles import Singles
from torchcomms.comm.state import State


class TorchComm(Collectives, Singles, Messages, Memory, State, Membership):
    """A group of ranks and the operations among them.

    Tensors may have any strides and, for moving, any dtype; only their own elements are written. Operations block
    unless `async_op`; each returns a `Work`. Collectives are called in the same order on every rank: a call that
    differs raises `CollectiveMismatch` on all. After an error other than a timeout the communicator raises named errors
    until it is reconfigured. Threads may share it. A context manager: leaving it calls `finalize`.
    """
