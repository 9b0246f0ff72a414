"""The kit for communicators: each broken communicator fails the check that is meant for it."""

import os
from typing import ClassVar

import pytest
import torch

from torchcomms import CollectiveMismatch, CommsTimeout, PeerFailed, ReduceOp, TorchComm
from torchcomms.comm import BatchSendRecv
from torchcomms.errors import InvalidCall
from torchcomms.testing import check_communicator
from torchcomms.testing.communicators import CHECKS
from torchcomms.testing.threads import Threads
from torchcomms.testing.world import OpenBackend
from torchcomms.work import DONE

pytestmark = pytest.mark.contract

# What takes long is run only on the communicator that it is meant for.
LONG = {"strided", "column", "transposed", "sliced", "own_elements", "dtypes", "death", "threads", "reopen", "split"}
QUICK = [check.id for check in CHECKS if check.id.removeprefix("comm.") not in LONG]


def world_of(kind, size):
    def open_one(rank, size, store, epoch, timeout):
        backend = OpenBackend("inproc", timeout=2.0)(rank, size, store, epoch, timeout)
        return kind(backend, torch.device("cpu"), "broken", kind=type(backend), store=store)

    return Threads(open_one, size)


def spoils(which, spoil, operation="all_reduce"):
    """A communicator whose `operation` does `spoil` to its first argument afterwards, if `which` is true of that."""

    def spoiled(self, *arguments, **options):
        work = getattr(super(Spoiled, self), operation)(*arguments, **options)
        if which(arguments[0]):
            spoil(arguments[0])
        return work

    Spoiled = type("Spoiled", (TorchComm,), {operation: spoiled})
    return Spoiled


def takes(change, operation="all_reduce"):
    """A communicator whose `operation` is done with other arguments."""

    def changed(self, *arguments, **options):
        return getattr(super(Changed, self), operation)(*change(*arguments), **options)

    Changed = type("Changed", (TorchComm,), {operation: changed})
    return Changed


def turns(error, into, operation="all_reduce", which=lambda tensor: True):
    """A communicator whose `operation` raises something else, or returns, where it should raise `error`."""

    def turned(self, *arguments, **options):
        try:
            return getattr(super(Turned, self), operation)(*arguments, **options)
        except error as seen:
            if arguments and not which(arguments[0]):
                raise
            if into is None:
                return DONE
            raise into from seen

    Turned = type("Turned", (TorchComm,), {operation: turned})
    return Turned


def first_to_zero(tensor):
    tensor.select(0, 0).zero_()


def beside(tensor):
    torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + 1).fill_(1)


def flip(tensor):
    tensor.view(torch.uint8)[0].bitwise_xor_(1)


def short(tensor, *rest):
    return tensor[:4] if tensor.numel() == 8 else tensor, *rest


def no_longer(tensor, *rest):
    return tensor[:50_000], *rest


def as_float(tensor, *rest):
    return tensor.view(torch.float32) if tensor.dtype is torch.int32 and tensor.numel() == 8 else tensor, *rest


def by_sum(tensor, op, *rest):
    return tensor, ReduceOp.SUM if tensor.numel() == 8 else op, *rest


def to_zero(tensor, root, *rest):
    return tensor, 0, *rest


class ReducesInstead(TorchComm):
    def broadcast(self, tensor, root, **options):
        if tensor.numel() == 8:
            return self.all_reduce(tensor, ReduceOp.SUM)
        return super().broadcast(tensor, root, **options)


class OneAfterAnother(TorchComm):
    def batch_op_create(self):
        return Queue(self)


class Queue(BatchSendRecv):
    def issue(self, async_op=False, options=None):
        ops, self.ops = self.ops, []
        for op in ops:
            self.ops = [op]
            super().issue(False)
        return DONE


class AddsOne(TorchComm):
    def all_reduce(self, tensor, op, async_op=False, **options):
        super().all_reduce(tensor, op, **options)
        if async_op:
            tensor.add_(1)
        return DONE


class AbortsNothing(TorchComm):
    def abort(self, reason=""):
        return None


class TurnsTheList(TorchComm):
    def reconfigure(self, uuid, init_handles, timeout=None, hints=None):
        return super().reconfigure(uuid, list(init_handles)[::-1], timeout, hints)


class Keeps(TorchComm):
    """Keeps a descriptor when one of its kind is finalized."""

    kept: ClassVar = []
    part = False

    def finalize(self):
        if self._closed is None and self.get_name().startswith("sub") == self.part:
            self.kept.append(os.dup(0))
        super().finalize()


class KeepsOfParts(Keeps):
    part = True


BROKEN = {
    "comm.strided": spoils(lambda one: one.stride() == (2,) and one.numel() and not one.is_neg(), first_to_zero),
    "comm.column": spoils(lambda one: one.stride() == (3,) and one.numel(), first_to_zero),
    "comm.transposed": spoils(lambda one: one.dim() == 2 and one.numel(), first_to_zero),
    "comm.sliced": spoils(lambda one: one.storage_offset() == 5 and one.numel(), first_to_zero),
    "comm.own_elements": spoils(lambda one: one.stride() == (3,) and one.numel(), beside),
    "comm.lazy_views": spoils(torch.is_conj, torch.Tensor.zero_),
    "comm.expanded": turns(InvalidCall, None),
    "comm.dtypes": spoils(lambda one: one.dtype is torch.uint16, flip, "broadcast"),
    "comm.lengths": spoils(lambda one: one.numel() == 6, flip, "scatter"),
    "comm.mismatch_length": takes(short),
    "comm.mismatch_long_length": takes(no_longer),
    "comm.mismatch_dtype": takes(as_float),
    "comm.mismatch_operation": ReducesInstead,
    "comm.mismatch_order": turns(CollectiveMismatch, RuntimeError("something is wrong"), "barrier"),
    "comm.mismatch_reduction": takes(by_sum),
    "comm.mismatch_root": takes(to_zero, "reduce"),
    "comm.mismatch_uneven": turns(CollectiveMismatch, CollectiveMismatch("ranks differ"), "reduce_scatter"),
    "comm.late": turns(CommsTimeout, CommsTimeout("late")),
    "comm.refused": turns(InvalidCall, None, "broadcast"),
    "comm.pair": spoils(lambda one: True, lambda one: one.add_(1), "recv"),
    "comm.batch": OneAfterAnother,
    "comm.threads": spoils(lambda one: one.numel() == 501, torch.Tensor.zero_),
    "comm.async": AddsOne,
    "comm.death": turns(PeerFailed, PeerFailed("somebody died"), which=lambda one: one.numel() > 1000),
    "comm.abort": AbortsNothing,
    "comm.reconfigure": TurnsTheList,
    "comm.reopen": Keeps,
    "comm.split": KeepsOfParts,
}


@pytest.fixture(autouse=True)
def no_descriptor_stays():
    yield
    while Keeps.kept:
        os.close(Keeps.kept.pop())


def test_communicators_keep_their_promises():
    report = check_communicator(lambda size: world_of(TorchComm, size))
    assert not report.failed, str(report)
    assert not report.unclaimed
    assert report.ran == tuple(check.id for check in CHECKS)


def test_every_check_has_a_communicator_that_it_rejects():
    assert list(BROKEN) == [check.id for check in CHECKS]


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_communicator_fails_the_check_meant_for_it_and_no_other_that_is_quick(check):
    report = check_communicator(lambda size: world_of(BROKEN[check], size), only=[check, *QUICK])
    assert set(report.failed) == {check}, str(report)
