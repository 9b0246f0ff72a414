"""The conformance kit on a backend that has it all: mismatches found inline, an express lane, windows; and on broken
ones, each of which fails the check that is meant for it."""

import pytest
import torch

from torchcomms.backend import P2P, Capabilities, ReduceOp
from torchcomms.errors import CollectiveMismatch
from torchcomms.providers.inproc import InprocBackend
from torchcomms.testing import ThreadWorld, check_backend
from torchcomms.testing.kit import CHECKS

pytestmark = pytest.mark.contract
GROUPS = ("mismatch", "memory", "express", "window")
TAG = -3
WORDS = 96  # bytes


class Done:
    def test(self):
        return True

    def wait(self):
        return None

    def wait_host(self, deadline):
        return None


class Full(InprocBackend):
    """Every operation begins with an exchange of words that say what it is."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.express = Lane(self)
        self.windows = 0

    @classmethod
    def capabilities(cls):
        return Capabilities(death_bound_ms=0.0, mismatch="inline", windows=True)

    def all_reduce(self, tensor, op, *, deadline=None):
        self.words = f"all_reduce of {tensor.numel()} {tensor.dtype} by {op.kind}"
        return super().all_reduce(tensor, op, deadline=deadline)

    def broadcast(self, tensor, root, *, deadline=None):
        self.words = f"broadcast of {tensor.numel()} {tensor.dtype} from {root}"
        return super().broadcast(tensor, root, deadline=deadline)

    def _start(self, operation, schedule, deadline):
        words = self.__dict__.pop("words", operation)
        return super()._start(operation, self.checked(self.say(words), schedule), deadline)

    def say(self, words):
        return words

    def checked(self, words, schedule):
        rows = [torch.zeros(WORDS, dtype=torch.uint8) for _ in range(self.size)]
        rows[self.rank] = torch.frombuffer(bytearray(words.encode().ljust(WORDS)), dtype=torch.uint8)
        yield self.post(
            [message for rank in range(self.size) if rank != self.rank for message in self.with_(rank, rows)]
        )
        calls = {rank: bytes(row.tolist()).decode().strip() for rank, row in enumerate(rows)}
        if len(set(calls.values())) > 1:
            self.disagree(calls)
        yield from schedule

    def with_(self, peer, rows):
        return P2P("recv", rows[peer], peer, TAG), P2P("send", rows[self.rank], peer, TAG)

    def disagree(self, calls):
        raise CollectiveMismatch(f"ranks called different collectives: {calls}", calls=calls)

    def window(self, tensor):
        shared = self.hub.__dict__.setdefault("windows", {})
        self.windows += 1
        with self.hub.changed:
            memory, signals = shared.setdefault(self.windows, ({}, {}))
            memory[self.rank] = tensor
        self.barrier().wait()
        return Pane(self, memory, signals)


class Lane:
    def __init__(self, backend):
        self.backend = backend

    def all_reduce(self, tensor, op):
        if not tensor.is_contiguous():
            return False
        self.backend.all_reduce(tensor, op).wait()
        return True

    def broadcast(self, tensor, root):
        self.backend.broadcast(tensor, root).wait()
        return True

    def barrier(self):
        self.backend.barrier().wait()
        return True


class Pane:
    """A window."""

    def __init__(self, backend, memory, signals):
        self.backend, self.memory, self.signals = backend, memory, signals

    def put(self, source, peer, offset):
        self.memory[peer][offset : offset + source.numel()].copy_(source)
        return Done()

    def signal(self, peer):
        with self.backend.hub.changed:
            self.signals[self.backend.rank, peer] = self.signals.get((self.backend.rank, peer), 0) + 1
            self.backend.hub.changed.notify_all()
        return Done()

    def wait_signal(self, peer):
        return Signal(self, (peer, self.backend.rank))

    def remote(self, rank):
        return self.memory[rank]

    def close(self):
        return None


class Signal:
    def __init__(self, pane, key):
        self.pane, self.key, self.taken = pane, key, False

    def test(self):
        with self.pane.backend.hub.changed:
            if not self.taken and self.pane.signals.get(self.key, 0):
                self.pane.signals[self.key] -= 1
                self.taken = True
        return self.taken

    def wait(self):
        self.wait_host(None)

    def wait_host(self, deadline):
        while not self.test():
            continue


class IgnoresLength(Full):
    def say(self, words):
        return words.replace(" of 4 ", " of 8 ")


class IgnoresDtype(Full):
    def say(self, words):
        return words.replace("torch.int32", "torch.float32")


class IgnoresOperation(Full):
    def say(self, words):
        return words.replace(" from 0", "").replace(" by sum", "").replace("broadcast", "all_reduce")


class IgnoresReduction(Full):
    def say(self, words):
        return words.replace("product", "sum")


class IgnoresRoot(Full):
    def say(self, words):
        return words.replace("from 2", "from 0")


class TellsOnlyOne(Full):
    """Says what differs in words that do not name the other ranks' calls, for one kind of difference."""

    def disagree(self, calls):
        told = calls if "barrier" not in calls.values() else {self.rank: calls[self.rank]}
        raise CollectiveMismatch("ranks differ", calls=told)


class StridedMemory(Full):
    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype).t() if len(shape) == 2 else super().empty(shape, dtype)


class MemoryGoes(Full):
    def empty(self, shape, dtype):
        self.memory = super().empty(shape, dtype)
        return self.memory

    def close(self):
        if getattr(self, "memory", None) is not None and self.memory.dtype is torch.int32:
            self.memory.zero_()
        super().close()


def with_lane(**methods):
    """A backend whose lane is broken in `methods`."""
    lane = type("BrokenLane", (Lane,), methods)

    def begin(self, *arguments):
        Full.__init__(self, *arguments)
        self.express = lane(self)

    return type("WithLane", (Full,), {"__init__": begin})


def reduces_by_maximum(lane, tensor, op):
    return tensor.is_contiguous() and Lane.all_reduce(lane, tensor, ReduceOp.MAX if tensor.numel() == 8 else op)


def broadcasts_from_zero(lane, tensor, root):
    return Lane.broadcast(lane, tensor, 0)


def touches(lane, tensor, op):
    if not tensor.is_contiguous():
        tensor.add_(1)
        return False
    return Lane.all_reduce(lane, tensor, op)


def does_nothing_beside(lane, tensor, op):
    pending = lane.backend.__dict__.get("_sequencer")
    return bool(pending is not None and pending._queue) or Lane.all_reduce(lane, tensor, op)


def ignores_length(lane, tensor, op):
    try:
        return tensor.is_contiguous() and Lane.all_reduce(lane, tensor, op)
    except CollectiveMismatch as error:
        raise RuntimeError("something is wrong") from error


def with_window(**methods):
    """A backend whose windows are broken in `methods`."""
    pane = type("BrokenPane", (Pane,), methods)

    def window(self, tensor):
        opened = Full.window(self, tensor)
        return pane(self, opened.memory, opened.signals)

    return type("WithWindow", (Full,), {"window": window})


def puts_at_zero(pane, source, peer, offset):
    return Pane.put(pane, source, peer, offset if source.dtype is torch.int64 else 0)


def puts_the_last_later(pane, source, peer, offset):
    later = source.dtype is torch.int64 and offset == 2
    return Done() if later else Pane.put(pane, source, peer, offset)


def own_memory(pane, rank):
    return pane.memory[pane.backend.rank]


def waits_for_nothing(pane, peer):
    return Done() if pane.memory[0].numel() == 1 else Pane.wait_signal(pane, peer)


BROKEN = {
    "mismatch.length": IgnoresLength,
    "mismatch.dtype": IgnoresDtype,
    "mismatch.operation": IgnoresOperation,
    "mismatch.reduction": IgnoresReduction,
    "mismatch.root": IgnoresRoot,
    "mismatch.order": TellsOnlyOne,
    "memory.empty": StridedMemory,
    "memory.outlives": MemoryGoes,
    "express.all_reduce": with_lane(all_reduce=reduces_by_maximum),
    "express.broadcast": with_lane(broadcast=broadcasts_from_zero),
    "express.declines": with_lane(all_reduce=touches),
    "express.beside": with_lane(all_reduce=does_nothing_beside),
    "express.mismatch": with_lane(all_reduce=ignores_length),
    "window.put": with_window(put=puts_at_zero),
    "window.signals": with_window(put=puts_the_last_later),
    "window.remote": with_window(remote=own_memory),
    "window.waits": with_window(wait_signal=waits_for_nothing),
}


def test_a_backend_that_has_it_all_passes_and_claims_everything():
    groups = {check.id.partition(".")[0] for check in CHECKS} - {"matrix"}
    report = check_backend(lambda size: ThreadWorld(Full, size), only=sorted(groups))
    assert not report.failed, str(report)
    assert not report.unclaimed
    assert report.ran == tuple(check.id for check in CHECKS if not check.id.startswith("matrix."))


def test_every_check_has_a_backend_that_it_rejects():
    assert list(BROKEN) == [check.id for check in CHECKS if check.id.partition(".")[0] in GROUPS]


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_backend_fails_the_check_meant_for_it_and_no_other_of_these(check):
    report = check_backend(lambda size: ThreadWorld(BROKEN[check], size, timeout=2.0), only=GROUPS)
    assert set(report.failed) == {check}, str(report)
