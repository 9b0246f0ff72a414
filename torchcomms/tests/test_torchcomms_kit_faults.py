"""The conformance kit's matrix, reductions and faults: each broken backend fails the check that is meant for it."""

import pytest
import torch

from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsClosed, CommsTimeout, PeerFailed
from torchcomms.providers.inproc import InprocBackend
from torchcomms.testing import ThreadWorld, check_backend
from torchcomms.testing.kit import CHECKS

pytestmark = pytest.mark.contract
GROUPS = ("matrix", "reduction", "fault")


class Then:
    """A ticket that does something when it has been waited for."""

    def __init__(self, ticket, action):
        self.ticket, self.action = ticket, action

    def test(self):
        return self.ticket.test()

    def wait(self):
        self.ticket.wait()
        self.action()

    def wait_host(self, deadline):
        self.ticket.wait_host(deadline)
        self.action()


def spoils(operation, which, dtype):
    """A backend whose `operation` spoils the first element of argument `which` on rank 2, if it is of `dtype`."""

    def spoiled(self, *arguments, deadline=None):
        ticket = getattr(super(Spoiled, self), operation)(*arguments, deadline=deadline)
        target = arguments[which]
        target = target[self.size - 1] if isinstance(target, list) else target
        if target is None or target.dtype is not dtype or not target.numel() or self.rank != 2:
            return ticket
        return Then(ticket, lambda: target.view(torch.uint8)[:1].bitwise_xor_(1))

    Spoiled = type("Spoiled", (InprocBackend,), {operation: spoiled})
    return Spoiled


class NotAlone(InprocBackend):
    def scan(self, tensor, op, *, deadline=None):
        return Then(super().scan(tensor, op, deadline=deadline), tensor.zero_ if self.size == 1 else lambda: None)


class AtMostFour(InprocBackend):
    def scan(self, tensor, op, *, deadline=None):
        return Then(super().scan(tensor, op, deadline=deadline), tensor.zero_ if self.rank == 4 else lambda: None)


class BroadcastOnce(InprocBackend):
    """Goes wrong when two operations follow each other."""

    before = ""

    def _start(self, operation, schedule, deadline):
        follows, self.before = self.before == "broadcast" != operation, operation
        if follows and self.size == 3:
            raise PeerFailed(f"{operation} after a broadcast")
        return super()._start(operation, schedule, deadline)


class RoundsAverageUp(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        wrong = op == ReduceOp.AVG and tensor.dtype is torch.int16
        return Then(super().all_reduce(tensor, op, deadline=deadline), lambda: wrong and tensor.add_(tensor < 0))


class Saturates(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        wrong = op == ReduceOp.SUM and tensor.dtype is torch.uint8 and tensor.tolist() == [200]
        return Then(super().all_reduce(tensor, op, deadline=deadline), lambda: wrong and tensor.fill_(255))


class RoundsTwice(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        wrong = tensor.dtype is torch.bfloat16 and tensor.numel() == 1
        return Then(super().all_reduce(tensor, op, deadline=deadline), lambda: wrong and tensor.fill_(256))


class ForgetsTheFactor(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        forgets = op.kind == "premul_sum" and tensor.is_floating_point()
        return super().all_reduce(tensor, ReduceOp.SUM if forgets else op, deadline=deadline)


class BytesOfTwo(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        wrong = tensor.dtype is torch.bool and op == ReduceOp.SUM
        spoil = (lambda: tensor.view(torch.uint8).mul_(2)) if wrong else lambda: None
        return Then(super().all_reduce(tensor, op, deadline=deadline), spoil)


class IgnoresNaN(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        wrong = op == ReduceOp.MIN and tensor.dtype is torch.float64
        return Then(super().all_reduce(tensor, op, deadline=deadline), lambda: wrong and tensor.nan_to_num_(0.0))


class ReducesAnything(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        bits = op.kind == "band" and tensor.dtype is torch.float32
        return super().all_reduce(tensor.view(torch.int32) if bits else tensor, op, deadline=deadline)


class DiesAnonymously(InprocBackend):
    def outcome(self, batch):
        try:
            return super().outcome(batch)
        except PeerFailed as error:
            raise PeerFailed("somebody died", ranks=() if self.hub.lost else error.ranks) from None


class AbortsAfterwards(InprocBackend):
    def abort(self, reason):
        self.hub.leave(self.rank, dead=False)
        super().abort(reason)
        self._failure = RuntimeError(reason)


class NamesItself(InprocBackend):
    """Names itself as missing in an all_reduce."""

    def all_reduce(self, tensor, op, *, deadline=None):
        return Accused(super().all_reduce(tensor, op, deadline=deadline), self.rank)


class BarrierNamesItself(InprocBackend):
    def barrier(self, *, deadline=None):
        return Accused(super().barrier(deadline=deadline), self.rank)


class Accused:
    def __init__(self, ticket, rank):
        self.ticket, self.rank, self.wait = ticket, rank, ticket.wait

    def wait_host(self, deadline):
        try:
            self.ticket.wait_host(deadline)
        except CommsTimeout:
            raise CommsTimeout("late", missing={self.rank}) from None


class LeavesInSilence(InprocBackend):
    def outcome(self, batch):
        try:
            return super().outcome(batch)
        except PeerFailed:
            if self.hub.lost:
                raise
            raise CommsClosed("somebody closed") from None


BROKEN = {
    "matrix.broadcast": spoils("broadcast", 0, torch.uint16),
    "matrix.all_reduce": spoils("all_reduce", 0, torch.complex64),
    "matrix.reduce": spoils("reduce", 0, torch.float8_e5m2),
    "matrix.scan": spoils("scan", 0, torch.int8),
    "matrix.all_gather": spoils("all_gather", 0, torch.uint64),
    "matrix.reduce_scatter": spoils("reduce_scatter", 0, torch.int32),
    "matrix.all_to_all": spoils("all_to_all", 0, torch.complex128),
    "matrix.gather": spoils("gather", 0, torch.int16),
    "matrix.scatter": spoils("scatter", 0, torch.bfloat16),
    "matrix.alone": NotAlone,
    "matrix.five": AtMostFour,
    "matrix.programs": BroadcastOnce,
    "reduction.integer_average": RoundsAverageUp,
    "reduction.wrap": Saturates,
    "reduction.halves": RoundsTwice,
    "reduction.premul_sum": ForgetsTheFactor,
    "reduction.bool": BytesOfTwo,
    "reduction.nan": IgnoresNaN,
    "reduction.refused": ReducesAnything,
    "fault.death": DiesAnonymously,
    "fault.abort": AbortsAfterwards,
    "fault.late": NamesItself,
    "fault.late_barrier": BarrierNamesItself,
    "fault.left": LeavesInSilence,
}


def test_every_check_has_a_backend_that_it_rejects():
    assert list(BROKEN) == [check.id for check in CHECKS if check.id.partition(".")[0] in GROUPS]


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_backend_fails_the_check_meant_for_it_and_none_beside(check):
    """Of the matrix only its own check is run: the whole takes seconds."""
    group = check.partition(".")[0]
    beside = [check, "reduction", "matrix.alone"] if group != "fault" else ["fault", "core.values"]
    report = check_backend(lambda size: ThreadWorld(BROKEN[check], size, timeout=5.0), only=beside)
    assert set(report.failed) == {check}, str(report)
