"""The collectives of a communicator, on single tensors and on lists with one tensor for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from torchcomms.comm import plans
from torchcomms.comm.core import FATAL, Core
from torchcomms.comm.hooking import OpName
from torchcomms.comm.options import Hints
from torchcomms.errors import CommsError, CommsTimeout
from torchcomms.work import DONE, Work

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp


class Collectives(Core):
    """Collectives. All ranks call them in the same order.

    Every one takes `async_op` (return at once; the `Work` tells when it is through), `hints` and `timeout`.
    """

    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Replace `tensor` by the reduction over all ranks, on every rank.

        The hint `{"compress": "int8"}` or `"bf16"` sends less and rounds (see `torchcomms.compress`): SUM and AVG only.
        """
        express = self._express
        if express is not None and not async_op and hints is None and timeout is None:
            try:
                if express.all_reduce(tensor, op):
                    return DONE
            except CommsError as error:
                self._failed_fast(error)
                raise
        group = self._ready()
        plan = plans.all_reduce(group, tensor, op, self._hint("compress", hints))
        return self._run(OpName.all_reduce, group, plan, async_op, timeout, tensor=tensor)

    def broadcast(
        self,
        tensor: Tensor,
        root: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy `tensor` of rank `root` to every rank's."""
        express = self._express
        if express is not None and not async_op and hints is None and timeout is None:
            try:
                if express.broadcast(tensor, root):
                    return DONE
            except CommsError as error:
                self._failed_fast(error)
                raise
        group = self._ready()
        plan = plans.broadcast(group, tensor, root)
        return self._run(OpName.broadcast, group, plan, async_op, timeout, tensor=tensor, root=root)

    def barrier(self, async_op: bool = False, hints: Hints | None = None, timeout: timedelta | None = None) -> Work:
        """Complete on no rank before all have called it."""
        express = self._express
        if express is not None and not async_op and hints is None and timeout is None:
            try:
                if express.barrier():
                    return DONE
            except CommsError as error:
                self._failed_fast(error)
                raise
        group = self._ready()
        return self._run(OpName.barrier, group, plans.barrier(group), async_op, timeout)

    def _failed_fast(self, error: CommsError) -> None:
        """The fast lane has refused the call, or failed as any operation does."""
        if isinstance(error, (*FATAL, CommsTimeout)):
            self._failed(self._ready(), error)

    def reduce(
        self,
        tensor: Tensor,
        root: int,
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Replace `tensor` of rank `root` by the reduction over all ranks; the others' stay as they are."""
        group = self._ready()
        plan = plans.reduce(group, tensor, root, op)
        return self._run(OpName.reduce, group, plan, async_op, timeout, tensor=tensor, root=root)

    def scan(
        self,
        tensor: Tensor,
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Replace `tensor` of rank r by the reduction over ranks 0 to r. AVG has no scan."""
        group = self._ready()
        return self._run(OpName.scan, group, plans.scan(group, tensor, op), async_op, timeout, tensor=tensor)

    def all_gather(
        self,
        tensor_list: Sequence[Tensor],
        tensor: Tensor,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy rank r's `tensor` into `tensor_list[r]` on every rank; counts may differ by rank."""
        return self._all_gather(OpName.all_gather, tensor_list, tensor, async_op, timeout)

    def all_gather_v(
        self,
        tensor_list: Sequence[Tensor],
        tensor: Tensor,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """The same as `all_gather`, which takes uneven counts too."""
        return self._all_gather(OpName.all_gather_v, tensor_list, tensor, async_op, timeout)

    def _all_gather(
        self, name: OpName, tensors: Sequence[Tensor], tensor: Tensor, async_op: bool, timeout: timedelta | None
    ) -> Work:
        group = self._ready()
        plan = plans.all_gather(group, tensors, tensor)
        return self._run(name, group, plan, async_op, timeout, input=tensor, output=tensors)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduce `input_list[r]` of all ranks into `output` of rank r; counts may differ by r."""
        return self._reduce_scatter(OpName.reduce_scatter, output, input_list, op, async_op, timeout)

    def reduce_scatter_v(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """The same as `reduce_scatter`, which takes uneven counts too."""
        return self._reduce_scatter(OpName.reduce_scatter_v, output, input_list, op, async_op, timeout)

    def _reduce_scatter(
        self,
        name: OpName,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: ReduceOp,
        async_op: bool,
        timeout: timedelta | None,
    ) -> Work:
        group = self._ready()
        plan = plans.reduce_scatter(group, output, inputs, op)
        return self._run(name, group, plan, async_op, timeout, input=inputs, output=output)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy input r of rank s into output s of rank r; counts may differ for every pair."""
        group = self._ready()
        plan = plans.all_to_all(group, output_tensor_list, input_tensor_list)
        facts = {"input": input_tensor_list, "output": output_tensor_list}
        return self._run(OpName.all_to_all, group, plan, async_op, timeout, **facts)

    def gather(
        self,
        output_tensor_list: Sequence[Tensor] | None,
        input_tensor: Tensor,
        root: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy rank r's `input_tensor` into output r of rank `root`; only the root's list is looked at."""
        group = self._ready()
        plan = plans.gather(group, output_tensor_list, input_tensor, root)
        facts = {"input": input_tensor, "output": output_tensor_list, "root": root}
        return self._run(OpName.gather, group, plan, async_op, timeout, **facts)

    def scatter(
        self,
        output_tensor: Tensor,
        input_tensor_list: Sequence[Tensor] | None,
        root: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy input r of rank `root` into `output_tensor` of rank r; only the root's list is looked at."""
        group = self._ready()
        plan = plans.scatter(group, output_tensor, input_tensor_list, root)
        facts = {"input": input_tensor_list, "output": output_tensor, "root": root}
        return self._run(OpName.scatter, group, plan, async_op, timeout, **facts)
