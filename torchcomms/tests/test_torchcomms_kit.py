"""The conformance kit: our backends pass, and each broken one fails exactly the check that is meant for it."""

import dataclasses
import os
from typing import ClassVar

import pytest
import torch

from torchcomms.algorithms.schedule import Sequencer
from torchcomms.backend import P2P, Capabilities, ReduceOp
from torchcomms.errors import CommsAborted, CommsTimeout, InvalidCall, PeerFailed
from torchcomms.providers.inbox import Batch
from torchcomms.providers.inproc import InprocBackend
from torchcomms.testing import ThreadWorld, check_backend
from torchcomms.testing.kit import CHECKS

pytestmark = pytest.mark.contract


class Done:
    """A ticket that is complete."""

    def test(self):
        return True

    def wait(self):
        return None

    def wait_host(self, deadline):
        return None


class Then:
    """A ticket that does something to the tensors when it has been waited for."""

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


class Tampering(InprocBackend):
    """Hands every message through `alter`."""

    tag = None

    def post(self, batch):
        return super().post([self.alter(message) if message.tag == self.tag else message for message in batch])

    def alter(self, message):
        return message


def changed(message, **fields):
    return dataclasses.replace(message, **fields)


class NoDevice(InprocBackend):
    @classmethod
    def open(cls, **arguments):
        opened = super().open(**arguments)
        opened.device = torch.device(opened.device)
        return opened


class WrongValues(Tampering):
    tag = 0

    def alter(self, message):
        return changed(message, tensor=message.tensor + 1) if message.kind == "send" else message


class LosesBfloat16(Tampering):
    tag = 11

    def alter(self, message):
        lost = message.kind == "send" and message.tensor.dtype == torch.bfloat16
        return changed(message, tensor=torch.zeros_like(message.tensor)) if lost else message


class RefusesEmpty(Tampering):
    tag = 12

    def alter(self, message):
        raise InvalidCall("empty")


class InOrderOnly(InprocBackend):
    def post(self, batch):
        if {message.tag for message in batch} == {1}:
            for message in sorted(batch, key=lambda message: message.kind):
                super().post([message]).wait_host(0.0)
            return Done()
        return super().post(batch)


class NotToOneself(Tampering):
    tag = 2

    def alter(self, message):
        raise InvalidCall("to oneself")


class LastInFirstOut(InprocBackend):
    def post(self, batch):
        backwards = batch[0].tag == 3 and batch[0].kind == "send"
        return super().post(batch[::-1] if backwards else batch)


class OneTagForAll(Tampering):
    tag = 5

    def alter(self, message):
        return changed(message, tag=4)


class SendsLater(InprocBackend):
    held = None

    def post(self, batch):
        if batch[0].tag == 6 and batch[0].kind == "send" and self.held is None:
            self.held = batch
            return Done()
        if self.held:
            super().post(self.held)
            self.held = ()
        return super().post(batch)


class NeverTests(InprocBackend):
    def post(self, batch):
        ticket = super().post(batch)
        return Then(Never(ticket), lambda: None) if batch[0].tag == 8 else ticket


class Never:
    def __init__(self, ticket):
        self.wait_host = ticket.wait_host

    def test(self):
        return False


class Truncates(Tampering):
    tag = 9

    def alter(self, message):
        return changed(message, tensor=message.tensor[:2])


class Nameless:
    def __init__(self, ticket):
        self.ticket = ticket

    def wait_host(self, deadline):
        try:
            self.ticket.wait_host(deadline)
        except CommsTimeout:
            raise CommsTimeout("late") from None


class NamesNobody(InprocBackend):
    def post(self, batch):
        ticket = super().post(batch)
        return Nameless(ticket) if batch[0].tag == 10 else ticket


class OneChance:
    def __init__(self, ticket):
        self.ticket, self.late = ticket, None

    def wait_host(self, deadline):
        try:
            if self.late is None:
                return self.ticket.wait_host(deadline)
        except CommsTimeout as late:
            self.late = late
        raise self.late


class GivesUp(InprocBackend):
    def post(self, batch):
        ticket = super().post(batch)
        return OneChance(ticket) if batch[0].tag == 13 else ticket


class MixesThreads(InprocBackend):
    """Answers a receive of one thread with what another thread sends."""

    def post(self, batch):
        if batch[0].tag == 31:
            batch = [changed(message, tag=30) for message in batch]
        return super().post(batch)


class AbortsWithoutReason(InprocBackend):
    def abort(self, reason):
        super().abort("")


class SeesNoDeath(InprocBackend):
    def lost(self):
        return frozenset()


class DeathWithoutName(InprocBackend):
    def outcome(self, batch):
        try:
            return super().outcome(batch)
        except PeerFailed:
            if self.hub.lost:
                raise PeerFailed("somebody died") from None
            raise


class LeavesLikeDead(InprocBackend):
    def close(self):
        self.sever()


class ClosesOnce(InprocBackend):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


class ClosesByAbort(InprocBackend):
    def close(self):
        self.abort("closed")
        self.hub.leave(self.rank, dead=False)

    def abort(self, reason):
        self._end(CommsAborted(reason, reason=reason))


class OpensOnce(InprocBackend):
    @classmethod
    def open(cls, **arguments):
        if arguments["store"].add(f"opened/{arguments['rank']}", 1) > 8:
            raise InvalidCall("opened eight times already")
        return super().open(**arguments)


class OneEpoch(InprocBackend):
    @classmethod
    def open(cls, *, store, rank, epoch, **arguments):
        opened = super().open(store=store, rank=rank, epoch=epoch, **arguments)
        if epoch:
            opened.hub.inboxes[0, 1].deliver(Batch([P2P("send", torch.ones(2), 0, 25)], 1).messages[0])
            opened.barrier().wait()
        return opened


class MissesEverybody(InprocBackend):
    @classmethod
    def open(cls, **arguments):
        try:
            return super().open(**arguments)
        except CommsTimeout as late:
            raise CommsTimeout(str(late), missing=late.missing | {0}) from None


class KeepsADescriptor(InprocBackend):
    kept: ClassVar = []

    def close(self):
        self.kept.append(os.dup(0))
        super().close()


class RootIsZero(InprocBackend):
    def broadcast(self, tensor, root, *, deadline=None):
        return super().broadcast(tensor, 0, deadline=deadline)


class AverageIsSum(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        return super().all_reduce(tensor, ReduceOp.SUM if op == ReduceOp.AVG else op, deadline=deadline)


class RankNoise(InprocBackend):
    def all_reduce(self, tensor, op, *, deadline=None):
        ticket = super().all_reduce(tensor, op, deadline=deadline)
        noise = 1e-3 * self.rank if tensor.numel() == 1000 else 0.0
        return Then(ticket, lambda: tensor.add_(noise)) if noise else ticket


class ReducesToZero(InprocBackend):
    def reduce(self, tensor, root, op, *, deadline=None):
        return super().reduce(tensor, 0, op, deadline=deadline)


class ReducesToAll(InprocBackend):
    def reduce(self, tensor, root, op, *, deadline=None):
        return self.all_reduce(tensor, op, deadline=deadline)


class ForgetsTheLast(InprocBackend):
    def all_gather(self, outputs, tensor, *, deadline=None):
        return Then(super().all_gather(outputs, tensor, deadline=deadline), outputs[2].zero_)


class ScattersMaximum(InprocBackend):
    def reduce_scatter(self, output, inputs, op, *, deadline=None):
        return super().reduce_scatter(output, inputs, ReduceOp.MAX, deadline=deadline)


class SpoilsInputs(InprocBackend):
    def reduce_scatter(self, output, inputs, op, *, deadline=None):
        return Then(super().reduce_scatter(output, inputs, op, deadline=deadline), inputs[2].zero_)


class ForgetsOne(InprocBackend):
    def all_to_all(self, outputs, inputs, *, deadline=None):
        return Then(super().all_to_all(outputs, inputs, deadline=deadline), outputs[1].zero_)


class GathersLess(InprocBackend):
    def gather(self, outputs, tensor, root, *, deadline=None):
        spoil = outputs[2].zero_ if outputs else lambda: None
        return Then(super().gather(outputs, tensor, root, deadline=deadline), spoil)


class ScattersZeros(InprocBackend):
    def scatter(self, output, inputs, root, *, deadline=None):
        return Then(super().scatter(output, inputs, root, deadline=deadline), output.zero_)


class ScansAll(InprocBackend):
    def scan(self, tensor, op, *, deadline=None):
        return self.all_reduce(tensor, op, deadline=deadline)


class OpenBarrier(InprocBackend):
    def barrier(self, *, deadline=None):
        return Done()


class NoOrder(InprocBackend):
    def _start(self, operation, schedule, deadline):
        self.__dict__["_sequencer"] = Sequencer()
        return super()._start(operation, schedule, deadline)


BROKEN = {
    "core.group": NoDevice,
    "core.values": WrongValues,
    "core.dtypes": LosesBfloat16,
    "core.empty": RefusesEmpty,
    "core.batch_order": InOrderOnly,
    "core.self_send": NotToOneself,
    "core.fifo": LastInFirstOut,
    "core.tags": OneTagForAll,
    "core.reuse": SendsLater,
    "core.test": NeverTests,
    "core.length": Truncates,
    "core.deadline": NamesNobody,
    "core.wait_again": GivesUp,
    "core.threads": MixesThreads,
    "core.abort": AbortsWithoutReason,
    "core.lost": SeesNoDeath,
    "core.death_wakes": DeathWithoutName,
    "core.leave": LeavesLikeDead,
    "core.close": ClosesOnce,
    "core.closed": ClosesByAbort,
    "core.reopen": OpensOnce,
    "core.epoch": OneEpoch,
    "core.missing": MissesEverybody,
    "core.leaks": KeepsADescriptor,
    "derived.broadcast": RootIsZero,
    "derived.all_reduce": AverageIsSum,
    "derived.same_bits": RankNoise,
    "derived.reduce": ReducesToZero,
    "derived.reduce_inputs": ReducesToAll,
    "derived.all_gather": ForgetsTheLast,
    "derived.reduce_scatter": ScattersMaximum,
    "derived.reduce_scatter_inputs": SpoilsInputs,
    "derived.all_to_all": ForgetsOne,
    "derived.gather": GathersLess,
    "derived.scatter": ScattersZeros,
    "derived.scan": ScansAll,
    "derived.barrier": OpenBarrier,
    "derived.in_flight": NoOrder,
}


GROUPS = ("core", "derived")


@pytest.fixture(autouse=True)
def no_descriptor_stays():
    yield
    while KeepsADescriptor.kept:
        os.close(KeepsADescriptor.kept.pop())


@pytest.mark.parametrize("name", ["inproc", "tcp"])
def test_our_backends_keep_the_contract(name):
    report = check_backend(lambda size: ThreadWorld(name, size))
    assert not report.failed, str(report)
    assert {one.partition(".")[0] for one in report.unclaimed} <= {"mismatch", "express", "window"}
    assert {*report.ran, *report.unclaimed} == {check.id for check in CHECKS}


def test_every_check_has_a_backend_that_it_rejects():
    """Here, or in the files beside this one."""
    beside = {"matrix", "reduction", "fault", "mismatch", "memory", "express", "window"}
    assert {check.id.partition(".")[0] for check in CHECKS} == {*GROUPS, *beside}
    assert list(BROKEN) == [check.id for check in CHECKS if check.id.partition(".")[0] in GROUPS]


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_backend_fails_the_check_meant_for_it_and_no_other_of_its_group(check):
    group = check.partition(".")[0]
    report = check_backend(lambda size: ThreadWorld(BROKEN[check], size, timeout=5.0), only=[group])
    assert set(report.failed) == {check}, str(report)
    clause = next(one.clause for one in CHECKS if one.id == check)
    assert report.failed[check].startswith(clause)


def test_what_is_not_claimed_is_reported_and_no_failure():
    modest = Capabilities(abort=False, death_bound_ms=None)
    wanted = ["core.abort", "core.lost", "core.death_wakes", "core.close"]
    report = check_backend(lambda size: ThreadWorld(SeesNoDeath, size), capabilities=modest, only=wanted)
    assert report.ran == ("core.close",)
    assert list(report.unclaimed) == wanted[:3]
    assert "not claimed" in str(report)
    assert not report.failed
