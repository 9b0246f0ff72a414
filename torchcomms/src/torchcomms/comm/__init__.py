"""The communicator: `new_comm` opens one, `TorchComm` is one."""

from torchcomms.comm.hooking import OpName, PostHookArgs, PreHookArgs, RemovableHandle
from torchcomms.comm.messages import BatchSendRecv, P2POp, P2POpType
from torchcomms.comm.opening import new_comm
from torchcomms.comm.options import DEFAULT_TIMEOUT, CommOptions, OperationOptions, ReconfigureOptions
from torchcomms.comm.torchcomm import TorchComm
from torchcomms.comm.window import TorchCommWinAccessType, TorchCommWindow, TorchCommWindowAttr

__all__ = [
    "BatchSendRecv",
    "CommOptions",
    "DEFAULT_TIMEOUT",
    "OpName",
    "OperationOptions",
    "P2POp",
    "P2POpType",
    "PostHookArgs",
    "PreHookArgs",
    "ReconfigureOptions",
    "RemovableHandle",
    "TorchComm",
    "TorchCommWinAccessType",
    "TorchCommWindow",
    "TorchCommWindowAttr",
    "new_comm",
]
