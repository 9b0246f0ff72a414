"""Windows: memory of every rank that the others may write into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from torchcomms import layout
from torchcomms.collective import Step
from torchcomms.comm.core import Core
from torchcomms.comm.hooking import OpName
from torchcomms.comm.options import Hints
from torchcomms.errors import InvalidCall, InvalidState
from torchcomms.work import Work

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from torchcomms.backend import Ticket, Window


class TorchCommWinAccessType(Enum):
    """Whether a window's memory can be read and written as a tensor (unified) or by `put` only."""

    WIN_ACCESS_TYPE_UNIFIED = auto()
    WIN_ACCESS_TYPE_SEPARATE = auto()


@dataclass(frozen=True, slots=True)
class TorchCommWindowAttr:
    """What is known of a rank's window."""

    access_type: TorchCommWinAccessType = TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED


class TorchCommWindow:
    """This rank's side of a window. Opening and closing it are collective; the rest is one-sided."""

    def __init__(self, comm: Core) -> None:
        self._comm = comm
        self._tensor: Tensor | None = None
        self._window: Window | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor behind it."""
        return self._memory().dtype

    @property
    def shape(self) -> list[int]:
        """The shape of the tensor behind it."""
        return list(self._memory().shape)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._memory().device

    def get_size(self) -> int:
        """Bytes of this rank's memory."""
        return self._memory().nbytes

    def get_tensor(self) -> Tensor | None:
        """This rank's memory, or None before `tensor_register`."""
        return self._tensor

    def tensor_register(self, tensor: Tensor, owning: bool = True) -> None:
        """Open `tensor` (dense; the same count and dtype on every rank) to the others. Collective.

        The window keeps it alive, whatever `owning` says.
        """
        if self._window is not None:
            raise InvalidState("the window holds a tensor already: call tensor_deregister() first")
        group = self._comm._ready()
        group.check()
        group.check_target(tensor)
        if not layout.is_dense(tensor):
            raise InvalidCall(f"a window needs a dense tensor, not strides {tensor.stride()}: pass a contiguous one")
        self._window = group.backend.window(tensor.detach())
        self._tensor = tensor

    def tensor_deregister(self) -> None:
        """Close the window; its tensor is the caller's again."""
        window = self._opened()
        self._window = self._tensor = None
        window.close()

    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Write `tensor` into the window of `dst_rank`, from element `target_offset_nelems` on."""
        window, memory = self._opened(), self._memory()
        end = target_offset_nelems + tensor.numel()
        if tensor.dtype != memory.dtype or not 0 <= target_offset_nelems <= end <= memory.numel():
            raise InvalidCall(
                f"{tensor.numel()} elements of {tensor.dtype} at {target_offset_nelems} do not fit "
                f"a window of {memory.numel()} of {memory.dtype}"
            )
        source = layout.dense(tensor)
        return self._do(lambda: window.put(source, dst_rank, target_offset_nelems), async_op, timeout)

    def signal(
        self, dst_rank: int, async_op: bool = False, hints: Hints | None = None, timeout: timedelta | None = None
    ) -> Work:
        """Tell `dst_rank` that this rank's puts to it so far are there."""
        window = self._opened()
        return self._do(lambda: window.signal(dst_rank), async_op, timeout)

    def wait_signal(
        self, peer_rank: int, async_op: bool = False, hints: Hints | None = None, timeout: timedelta | None = None
    ) -> Work:
        """Complete when a signal of `peer_rank` has come that no earlier wait took."""
        window = self._opened()
        return self._do(lambda: window.wait_signal(peer_rank), async_op, timeout)

    def map_remote_tensor(self, rank: int) -> Tensor:
        """The window of `rank` as a tensor over its memory."""
        return self._opened().remote(rank).view(self._memory().shape)

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """What is known of the window of `peer_rank`."""
        self._opened()
        return TorchCommWindowAttr()

    def _do(self, begin: Callable[[], Ticket], async_op: bool, timeout: timedelta | None) -> Work:
        group = self._comm._ready()

        def start(deadline: float) -> tuple[Ticket, Step | None]:
            group.check()
            return begin(), None

        return self._comm._do(OpName.window, group, start, async_op, timeout, {})

    def _opened(self) -> Window:
        if self._window is None:
            raise InvalidState("the window holds no tensor: call tensor_register(tensor) first")
        return self._window

    def _memory(self) -> Tensor:
        if self._tensor is None:
            raise InvalidState("the window holds no tensor: call tensor_register(tensor) first")
        return self._tensor
