"""The collectives whose tensors for all ranks lie in one: `_single` forms, coalesced lists, persistent gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torchcomms.comm import joined
from torchcomms.comm.core import Core
from torchcomms.comm.hooking import OpName
from torchcomms.comm.options import Hints
from torchcomms.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp


@dataclass(frozen=True, slots=True)
class AllGatherPHandle:
    """What `all_gather_p_init` prepares."""

    output: Tensor


class Singles(Core):
    """Collectives over one tensor that holds a part for each rank, in the order of ranks."""

    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy rank r's `input` into part r of `output`, which has `size` times its elements."""
        group = self._ready()
        plan = joined.all_gather(group, output, input)
        return self._run(OpName.all_gather_single, group, plan, async_op, timeout, input=input, output=output)

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduce part r of all ranks' `input` into `output` of rank r; `input` stays as it is."""
        group = self._ready()
        plan = joined.reduce_scatter(group, output, input, op)
        return self._run(OpName.reduce_scatter_single, group, plan, async_op, timeout, input=input, output=output)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy part r of rank s's `input` into part s of rank r's `output`; all parts are of one length."""
        group = self._ready()
        plan = joined.all_to_all(group, output, input, None, None)
        return self._run(OpName.all_to_all_single, group, plan, async_op, timeout, input=input, output=output)

    def all_to_all_v_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """As `all_to_all_single`, with the rows (of the first dimension) that each part has; an empty list: equal."""
        group = self._ready()
        plan = joined.all_to_all(group, output, input, output_split_sizes, input_split_sizes)
        return self._run(OpName.all_to_all_v_single, group, plan, async_op, timeout, input=input, output=output)

    def gather_single(
        self,
        output: Tensor | None,
        input: Tensor,
        root: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy rank r's `input` into part r of `output` of rank `root`; only the root's is looked at."""
        group = self._ready()
        plan = joined.gather(group, output, input, root)
        facts = {"input": input, "output": output, "root": root}
        return self._run(OpName.gather_single, group, plan, async_op, timeout, **facts)

    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: ReduceOp,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Replace each of `tensors` by its reduction over all ranks, in one operation; their dtype is one."""
        group = self._ready()
        plan = joined.all_reduce(group, tensors, op)
        facts = {"input": tensors, "output": tensors}
        return self._run(OpName.all_reduce_coalesced, group, plan, async_op, timeout, **facts)

    def all_gather_p_init(
        self, output: Tensor, hints: Hints | None = None, timeout: timedelta | None = None
    ) -> AllGatherPHandle:
        """Prepare gathers into `output`, which are then begun by `all_gather_p_exec`."""
        self._ready().check_target(output)
        return AllGatherPHandle(output)

    def all_gather_p_exec(
        self,
        handle: AllGatherPHandle,
        input: Tensor,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """`all_gather_single` into the output of `handle`."""
        return self.all_gather_single(handle.output, input, async_op, hints, timeout)

    def all_gather_p_free(self, handle: AllGatherPHandle) -> None:
        """Release the handle, which holds nothing but its output."""
