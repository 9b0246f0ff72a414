"""A hook that stops an operation whose tensors hold a NaN, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcomms.errors import NanDetected

if TYPE_CHECKING:
    from torchcomms.comm import OpName, PreHookArgs, RemovableHandle, TorchComm

_IN_PLACE = frozenset({"send", "broadcast", "all_reduce", "reduce", "scan"})


class NanCheckHook:
    """Looks at the tensors that an operation is to send (`check_inputs`) and at those that it is to fill.

    Raises `NanDetected` on this rank only: the others wait until their deadline, and name this rank then.
    """

    def __init__(self, check_inputs: bool = True, check_outputs: bool = False) -> None:
        self._inputs, self._outputs = check_inputs, check_outputs
        self._handles: list[RemovableHandle] = []

    def register_with_comm(self, comm: TorchComm) -> None:
        """Watch a communicator; one hook may watch several."""
        name = comm.get_name()

        def before(operation: OpName, op_id: int, args: PreHookArgs) -> None:
            for kind, tensor in self._watched(args):
                if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                    _check(tensor, kind, operation.name, name)

        self._handles.append(comm.register_pre_hook(before))

    def unregister(self) -> None:
        """Watch nothing any more."""
        while self._handles:
            self._handles.pop().remove()

    def is_enabled(self) -> bool:
        """Whether it watches a communicator."""
        return bool(self._handles)

    def _watched(self, args: PreHookArgs) -> Iterator[tuple[str, Tensor]]:
        in_place = args.operation.name in _IN_PLACE
        if self._inputs:
            yield from (("input", one) for one in tensors(args.input))
        if self._outputs:
            yield from (("output", one) for one in tensors(args.output))
        if args.tensor is not None and (self._inputs if in_place else self._outputs):
            yield ("input" if in_place else "output"), args.tensor


def tensors(given: Tensor | Sequence[Tensor] | None) -> Sequence[Tensor]:
    """The tensors of a field of a hook's arguments."""
    if given is None:
        return ()
    return [given] if isinstance(given, Tensor) else given


def _check(tensor: Tensor, kind: str, operation: str, name: str) -> None:
    count = int(tensor.detach().isnan().sum())
    if count:
        raise NanDetected(
            f"{count} of {tensor.numel()} elements of the {kind} of {operation} on communicator {name!r} are NaN",
            operation=operation,
            count=count,
        )
