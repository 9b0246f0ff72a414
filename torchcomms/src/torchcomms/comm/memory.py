"""Memory of the communicator: tensors that it moves fastest, and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchcomms.comm.core import Core
from torchcomms.comm.hooking import OpName, PreHookArgs
from torchcomms.comm.window import TorchCommWindow

if TYPE_CHECKING:
    from torch import Tensor


class Memory(Core):
    """The part of a communicator that hands out memory."""

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialized dense tensor in the memory that this communicator moves fastest. Not collective.

        A backend may reduce such a tensor in place, without a copy; after an operation that failed its content is
        undefined then. It lives as long as it is referenced.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._ready().backend.empty(sizes, dtype)

    def new_window(self, tensor: Tensor | None = None) -> TorchCommWindow:
        """A window, open over `tensor` if one is given (collective then)."""
        op_id = self._hooks.before(lambda op_id: PreHookArgs(OpName.new_window, op_id, tensor=tensor))
        window = TorchCommWindow(self)
        if tensor is not None:
            window.tensor_register(tensor)
        self._hooks.after(OpName.new_window, op_id, None)
        return window

    def tensor_register(self, tensor: Tensor) -> None:
        """Accepted and without effect: no backend here needs to know a tensor beforehand."""

    def tensor_deregister(self, tensor: Tensor) -> None:
        """Accepted and without effect, as `tensor_register`."""
