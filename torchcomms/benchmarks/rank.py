"""One rank of a benchmark, of any library: obeys orders that come as lines of JSON over a unix socket.

Also the script that `mpiexec` starts under a peer's own interpreter, which needs mpi4py and numpy, not torch:
`rank.py mpi SOCKET`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

WARM = 3  # calls before the first that counts
PATIENCE = 60.0  # seconds for a group to meet


class Ours:
    """A communicator of torchcomms; its store is at `address`."""

    address = "127.0.0.1"

    def __init__(self, backend, rank, size):
        import torch

        torch.set_num_threads(1)
        self.torch, self.backend, self.rank, self.size = torch, backend, rank, size
        self.store = self.alone = None

    def host(self):
        from torch.distributed import TCPStore

        self.store = TCPStore(self.address, 0, is_master=True, wait_for_workers=False)
        return self.store.port

    def prepare(self, port):
        """Connect to the store: what a launcher has done before, too."""
        from torch.distributed import TCPStore

        self.store = self.store or TCPStore(self.address, port, is_master=False, wait_for_workers=False)

    def open(self, name):
        import torchcomms

        self.sum, self.failures = torchcomms.ReduceOp.SUM, torchcomms.CommsError
        self.comm = torchcomms.new_comm(
            self.backend,
            "cpu",
            name=name,
            store=self.store,
            rank=self.rank,
            size=self.size,
            timeout=timedelta(seconds=PATIENCE),
        )

    def close(self):
        self.comm.finalize()
        if self.alone is not None:
            self.alone.close()

    def empty(self, count, dtype, own=False):
        dtype = getattr(self.torch, dtype)
        return (self.comm.empty(count, dtype=dtype) if own else self.torch.empty(count, dtype=dtype)).zero_()

    def call(self, operation, count, dtype, own):
        comm, tensor = self.comm, self.empty(count, dtype, own)
        output = self.empty(count, dtype)
        parts, outputs, rank = list(tensor.tensor_split(self.size)), list(output.tensor_split(self.size)), self.rank
        return {
            "all_reduce": lambda: comm.all_reduce(tensor, self.sum),
            "broadcast": lambda: comm.broadcast(tensor, 0),
            "all_gather": lambda: comm.all_gather(outputs, parts[rank]),
            "reduce_scatter": lambda: comm.reduce_scatter(outputs[rank], parts, self.sum),
            "all_to_all": lambda: comm.all_to_all(outputs, parts),
            "barrier": comm.barrier,
            "unchecked": lambda: self.bare().all_reduce(tensor, self.sum).wait(),
        }[operation]

    def bare(self):
        """A backend with no communicator above it, and so without the exchange of fingerprints."""
        if self.alone is None:
            import torchcomms

            where = {"rank": self.rank, "size": self.size, "store": self.store, "timeout": PATIENCE}
            self.alone = torchcomms.find(self.backend).open(device="cpu", **where)
        return self.alone


class Gloo(Ours):
    """torch.distributed over gloo."""

    def open(self, name):
        import torch.distributed as dist

        self.dist, self.failures = dist, RuntimeError
        store = dist.PrefixStore(name, self.store)
        where = {"store": store, "rank": self.rank, "world_size": self.size}
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE), **where)

    def close(self):
        self.dist.destroy_process_group()

    def call(self, operation, count, dtype, own):
        dist, tensor = self.dist, self.empty(count, dtype)
        output, rank = self.empty(count, dtype), self.rank
        part, mine = tensor.tensor_split(self.size)[rank], output.tensor_split(self.size)[rank]
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "all_gather": lambda: gather(output, part),
            "reduce_scatter": lambda: scatter(mine, tensor),
            "all_to_all": lambda: dist.all_to_all_single(output, tensor),
            "barrier": dist.barrier,
        }[operation]


class Mpi:
    """MPI through mpi4py, on arrays of numpy: the kind reading, without the step from a tensor to its array."""

    failures = Exception

    def __init__(self):
        import mpi4py

        mpi4py.rc.initialize = False
        import numpy
        from mpi4py import MPI

        self.numpy, self.mpi = numpy, MPI

    def host(self):
        return 0

    def prepare(self, port):
        pass

    def open(self, name):
        self.mpi.Init()
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def close(self):
        self.mpi.Finalize()

    def call(self, operation, count, dtype, own):
        if dtype != "float32":
            raise TypeError(f"MPI has no {dtype}")
        comm, array, output = self.comm, *(self.numpy.zeros(count, dtype) for _ in range(2))
        share = count // self.size
        return {
            "all_reduce": lambda: comm.Allreduce(self.mpi.IN_PLACE, array),
            "broadcast": lambda: comm.Bcast(array, 0),
            "all_gather": lambda: comm.Allgather(array[:share], output),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(array, output[:share]),
            "all_to_all": lambda: comm.Alltoall(array, output),
            "barrier": comm.Barrier,
        }[operation]


class Orders:
    """What a driver may ask of a rank; each returns what is answered."""

    def __init__(self, group):
        self.group, self.calls = group, {}

    def host(self, order):
        return {"port": self.group.host()}

    def prepare(self, order):
        self.group.prepare(order.port)
        return {}

    def open(self, order):
        """Seconds from the common start to an open group."""
        until(order.at)
        self.group.open(order.name)
        return {"seconds": time.monotonic() - order.at, "rank": self.group.rank}

    def pin(self, order):
        os.sched_setaffinity(0, {order.core})
        return {}

    def case(self, order):
        """Microseconds of a call, for each sample of `inner` calls."""
        key = order.operation, order.bytes, order.dtype, order.own
        if key not in self.calls:
            self.calls.clear()  # memory of one case at a time
            width = {"float32": 4, "bfloat16": 2}[order.dtype]
            self.calls[key] = self.group.call(order.operation, max(1, order.bytes // width), order.dtype, order.own)
            for _ in range(WARM):
                self.calls[key]()
        call, times = self.calls[key], []
        for _ in range(order.samples):
            started = time.perf_counter()
            for _ in range(order.inner):
                call()
            times.append((time.perf_counter() - started) / order.inner * 1e6)
        return {"times": times}

    def late(self, order):
        """Seconds of CPU, in all its threads, that a rank burns while rank 0 is late for a collective."""
        call = self.group.call("all_reduce", 2, "float32", False)
        call()
        until(order.at)
        spent, started = time.process_time(), time.monotonic()
        if self.group.rank == 0:
            time.sleep(order.seconds)
        call()
        return {"cpu": time.process_time() - spent, "waited": time.monotonic() - started}

    def loop(self, order):
        """Reduce until it fails; when that was, and what the error says."""
        call = self.group.call("all_reduce", order.bytes // 4, "float32", False)
        call()
        yield {"ready": True}
        try:
            while True:
                call()
        except self.group.failures as error:
            yield {"noticed": time.monotonic(), "error": f"{type(error).__name__}: {error}"}

    def close(self, order):
        self.calls.clear()
        self.group.close()
        return {}


def until(moment):
    """Sleep until a moment of the monotonic clock, which is the same for all processes of a machine."""
    time.sleep(max(0.0, moment - time.monotonic()))


def serve(group, address):
    """Obey until told to go, or until the driver is gone."""
    orders = Orders(group)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        lines = connection.makefile("rw")
        answer(lines, {"pid": os.getpid(), "rank": getattr(group, "rank", None)})
        for line in lines:
            order = SimpleNamespace(**json.loads(line))
            if order.do == "go":
                return
            try:
                found = getattr(orders, order.do)(order)
                for one in [found] if isinstance(found, dict) else found:
                    answer(lines, one)
            except Exception as error:
                answer(lines, {"error": f"{type(error).__name__}: {error}"})


def answer(lines, words):
    lines.write(json.dumps(words) + "\n")
    lines.flush()


if __name__ == "__main__":
    serve(Mpi(), sys.argv[2])
