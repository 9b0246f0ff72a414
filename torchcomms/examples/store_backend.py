"""A backend of one's own, against the published contract alone: every message is a key in the store that ranks meet at.

Slow and right; it passes the whole kit. Run it with `torchcomms run -n 2 examples/store_backend.py`.
"""

import time

import torch

from torchcomms import Backend, Capabilities, CommsAborted, CommsClosed, CommsTimeout, PeerFailed, ReduceOp
from torchcomms.bootstrap import meeting_place
from torchcomms.comm import DEFAULT_TIMEOUT
from torchcomms.errors import InvalidCall, MessageMismatch
from torchcomms.testing import ThreadWorld, check_backend


class StoreBackend(Backend):
    name = "store"

    @classmethod
    def capabilities(cls):
        return Capabilities(death_bound_ms=None)  # it does not notice deaths, and says so

    @classmethod
    def open(cls, *, rank, size, store, device, epoch=0, timeout, options=None):
        self, until = cls(), time.monotonic() + timeout
        self.rank, self.size, self.store, self.device, self.timeout = rank, size, store, device, timeout
        self.failure, self.counts = None, {}
        self.prefix = f"{epoch}.{store.add(f'store/{epoch}/{rank}', 1)}"
        self.count(f"here/{rank}", 1)
        while missing := {peer for peer in range(size) if not self.count(f"here/{peer}")}:
            if time.monotonic() > until:
                raise CommsTimeout(f"ranks {sorted(missing)} of {size} did not come", missing=missing)
        return self

    def count(self, name, more=0):
        return self.store.add(f"{self.prefix}/{name}", more)

    def post(self, batch):
        if self.failure is not None:
            raise self.failure
        pending = []
        for message in batch:
            if not 0 <= message.peer < self.size:
                raise InvalidCall(f"peer {message.peer} is not one of {self.size} ranks")
            sending = message.kind == "send"
            pair = (self.rank, message.peer, message.tag) if sending else (message.peer, self.rank, message.tag)
            number = self.counts[sending, pair] = self.counts.get((sending, pair), 0) + 1
            key = "/".join(map(str, (*pair, number)))
            if sending:
                self.store.set(f"{self.prefix}/{key}/data", data_of(message.tensor).numpy().tobytes())
                self.count(key, 1)
            else:
                pending.append((message, key))
        return StoreTicket(self, pending)

    def lost(self):
        return frozenset()

    def abort(self, reason):
        self.failure = CommsAborted(f"aborted on this rank: {reason}", reason=reason)

    def close(self):
        if not isinstance(self.failure, CommsClosed):
            self.failure = CommsClosed("this store backend is closed")
            self.count(f"left/{self.rank}", 1)


class StoreTicket:
    def __init__(self, backend, pending):
        self.backend, self.pending, self.until = backend, pending, time.monotonic() + backend.timeout

    def test(self):
        if self.backend.failure is not None and self.pending:
            raise self.backend.failure
        self.pending = [(message, key) for message, key in self.pending if not self.arrived(message, key)]
        return not self.pending

    def arrived(self, message, key):
        left = self.backend.count(f"left/{message.peer}")  # looked at first: what it sent before it left is there
        if not self.backend.count(key):
            if left:
                raise PeerFailed(f"rank {message.peer} has closed", ranks={message.peer})
            return False
        data, target = self.backend.store.get(f"{self.backend.prefix}/{key}/data"), data_of(message.tensor)
        if len(data) != target.numel():
            raise MessageMismatch(f"{len(data)} bytes came where {target.numel()} were expected", peer=message.peer)
        if data:
            target.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return True

    def wait(self):
        self.wait_host(self.until)

    def wait_host(self, deadline):
        while not self.test():
            if time.monotonic() > deadline:
                missing = {message.peer for message, _ in self.pending}
                raise CommsTimeout(f"still waiting for ranks {sorted(missing)}", missing=missing)
            time.sleep(1e-4)


def data_of(tensor):
    """The bytes of a dense tensor, as a flat tensor over the same memory."""
    return tensor.detach().view(-1).view(torch.uint8)


def main():
    torch.set_num_threads(1)
    rank, size, store = meeting_place("example", None, None, None, DEFAULT_TIMEOUT)
    backend = StoreBackend.open(rank=rank, size=size, store=store, device="cpu", timeout=60.0)
    total = torch.ones(3)
    backend.all_reduce(total, ReduceOp.SUM).wait()
    backend.close()
    print(f"sum over {size} ranks: {total.tolist()}")
    if rank == 0:
        report = check_backend(lambda size: ThreadWorld(StoreBackend, size), only=["core", "derived"])
        print(str(report).partition("\n")[0])
        assert not report.failed, str(report)
    print("done")


if __name__ == "__main__":
    main()
