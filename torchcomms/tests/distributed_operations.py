"""What the ranks of test_torchcomms_distributed.py do: `distributed_operations.py NAME`; each says "ok" in the end."""

import os
import sys
import threading
import time
import warnings
from datetime import timedelta
from functools import reduce

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import torchcomms
from torchcomms.distributed import CommsGroup, Options
from torchcomms.errors import UnsupportedTensor

# Each name that torch has given an operation must work; some are deprecated.
warnings.simplefilter("ignore", FutureWarning)
BACKEND = "cpu:torchcomms"
KINDS = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}
BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def world():
    return dist.get_rank(), dist.get_world_size()


def mine(rank, shape=(2, 3), dtype=torch.float32):
    """A rank's tensor, which every other rank can make too."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 9, shape, generator=generator).to(dtype)


def same(got, wanted):
    assert torch.equal(got, wanted), (got, wanted)


def rings(group):
    """Send to the right and receive from the left, the receive first in the list."""
    rank, size = dist.get_rank(group), group.size()
    got = torch.zeros(2, 3)
    operations = [
        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % size),
        dist.P2POp(dist.isend, mine(rank), group=group, group_peer=(rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(got, mine((rank - 1) % size))


def reductions(group):
    rank, size = dist.get_rank(group), group.size()
    for dtype in (torch.float32, torch.int16, torch.int64):
        for kind, function in (KINDS if dtype.is_floating_point else KINDS | BITS).items():
            got = mine(rank, dtype=dtype)
            dist.all_reduce(got, getattr(dist.ReduceOp, kind), group=group)
            same(got, reduce(function, [mine(one, dtype=dtype) for one in range(size)]))
    got = mine(rank)
    dist.all_reduce(got, dist.ReduceOp.AVG, group=group)
    same(got, sum(mine(one) for one in range(size)) / size)
    got = mine(rank)
    dist.all_reduce(got, dist._make_nccl_premul_sum(0.5), group=group)
    same(got, sum(mine(one) * 0.5 for one in range(size)))
    for root in range(size):
        got = mine(rank)
        dist.reduce(got, group=group, group_dst=root)
        same(got, sum(mine(one) for one in range(size)) if rank == root else mine(rank))


def uneven(group):
    rank, size = dist.get_rank(group), group.size()
    outputs = [torch.zeros(one, 2) for one in range(size)]
    dist.all_gather(outputs, mine(rank, (rank, 2)), group=group)
    assert all(torch.equal(got, mine(one, (one, 2))) for one, got in enumerate(outputs))


def gatherings(group):
    rank, size = dist.get_rank(group), group.size()
    everybody = [mine(one) for one in range(size)]
    got = mine(rank)
    dist.broadcast(got, group=group, group_src=size - 1)
    same(got, mine(size - 1))
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(outputs, mine(rank), group=group)
    same(torch.stack(outputs), torch.stack(everybody))
    for shape in ((2 * size, 3), (size, 2, 3)):
        got = torch.zeros(shape)
        dist.all_gather_into_tensor(got, mine(rank), group=group)
        same(got.view(size, 2, 3), torch.stack(everybody))
    strided = torch.zeros(2 * size, 6)[:, ::2]
    dist.all_gather_into_tensor(strided, mine(rank), group=group)
    same(strided, torch.cat(everybody))
    outputs = [torch.zeros(2, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(rank), outputs, group=group, group_dst=0)
    assert rank or torch.equal(torch.stack(outputs), torch.stack(everybody))
    got = torch.zeros(2, 3)
    dist.scatter(got, everybody if rank == size - 1 else None, group=group, group_src=size - 1)
    same(got, mine(rank))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lists = [[torch.zeros(2, 3), torch.zeros(4)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [mine(rank), mine(rank, (4,))], group=group)
    assert all(torch.equal(pair[1], mine(one, (4,))) for one, pair in enumerate(lists))


def scatterings(group):
    rank, size = dist.get_rank(group), group.size()
    parts = [[mine(one * size + part) for part in range(size)] for one in range(size)]
    wanted = sum(parts[one][rank] for one in range(size))
    got = torch.zeros(2, 3)
    dist.reduce_scatter(got, parts[rank], group=group)
    same(got, wanted)
    got = torch.zeros(2, 3)
    dist.reduce_scatter_tensor(got, torch.cat(parts[rank]), dist.ReduceOp.AVG, group=group)
    same(got, wanted / size)
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_to_all(outputs, parts[rank], group=group)
    same(torch.stack(outputs), torch.stack([parts[one][rank] for one in range(size)]))
    got = torch.zeros(2 * size, 3)
    dist.all_to_all_single(got, torch.cat(parts[rank]), group=group)
    same(got, torch.cat(outputs))
    rows = [[one + part for part in range(size)] for one in range(size)]
    sent = [mine(rank * size + part, (rows[rank][part], 3)) for part in range(size)]
    got = torch.zeros(sum(rows[one][rank] for one in range(size)), 3)
    dist.all_to_all_single(got, torch.cat(sent), [rows[one][rank] for one in range(size)], rows[rank], group=group)
    same(got, torch.cat([mine(one * size + rank, (rows[one][rank], 3)) for one in range(size)]))


def coalescings(group):
    rank, size = dist.get_rank(group), group.size()
    for later in (False, True):
        some = [mine(rank), mine(rank, (4,))]
        with dist.distributed_c10d._coalescing_manager(group, async_ops=later) as manager:
            for tensor in some:
                dist.all_reduce(tensor, group=group)
        if later:
            manager.wait()
        same(some[1], sum(mine(one, (4,)) for one in range(size)))
    some = [mine(rank), mine(rank, (4,))]
    with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        for tensor in some:
            group.allreduce([tensor], c10d.AllreduceOptions())
    manager.wait()
    same(some[0], sum(mine(one) for one in range(size)))
    outputs, inputs = [torch.zeros(2 * size, 3)], [mine(rank)]
    group.all_gather_single_coalesced(outputs, inputs).wait()
    same(outputs[0], torch.cat([mine(one) for one in range(size)]))
    got = [torch.zeros(2, 3)]
    group.reduce_scatter_single_coalesced(got, outputs).wait()
    same(got[0], mine(rank) * size)


def objects(group):
    rank, size = dist.get_rank(group), group.size()
    got = [None] * size
    dist.all_gather_object(got, {"rank": rank, "of": "x" * rank}, group=group)
    assert got == [{"rank": one, "of": "x" * one} for one in range(size)]
    got = [("from", rank)]
    dist.broadcast_object_list(got, group=group, group_src=1)
    assert got == [("from", 1)]
    got = [None]
    dist.scatter_object_list(got, list("abcdefgh")[:size] if rank == 0 else None, group=group, group_src=0)
    assert got == ["abcdefgh"[rank]]
    got = [None] * size if rank == 1 else None
    dist.gather_object(rank, got, group=group, group_dst=1)
    assert rank != 1 or got == list(range(size))


CHECKS = (rings, reductions, gatherings, uneven, scatterings, coalescings, objects)


def operations():
    """Every operation, on the default group and on a smaller one."""
    rank, size = world()
    group = dist.group.WORLD
    assert isinstance(group, CommsGroup)
    assert (dist.get_backend(), group.name(), group.group_name) == (BACKEND, "torchcomms", "0")
    pair = dist.new_group([0, size - 1])
    for check in CHECKS:
        check(group)
        if rank in (0, size - 1):
            check(pair)
    dist.barrier()
    group.monitored_barrier(timedelta(seconds=20))


def forms():
    """The shorter forms in which a group itself takes its arguments."""
    rank, size = world()
    group = dist.group.WORLD
    tensor = mine(rank)
    assert group.allreduce(tensor).wait()
    assert group.allreduce([tensor], dist.ReduceOp.MAX).wait()
    same(tensor, sum(mine(one) for one in range(size)))
    group.broadcast(tensor, 1).wait()
    group.reduce(tensor, 0, dist.ReduceOp.MAX).wait()
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    group.allgather(outputs, mine(rank)).wait()
    same(outputs[1], mine(1))
    group.allgather([outputs], [mine(rank)]).wait()
    got = torch.zeros(2, 3)
    group.reduce_scatter(got, outputs).wait()
    same(got, mine(rank) * size)
    group.alltoall(outputs, [mine(rank)] * size).wait()
    group._allgather_base(torch.zeros(size * 2, 3), mine(rank)).wait()
    group._reduce_scatter_base(got, torch.cat(outputs)).wait()
    group.alltoall_base(torch.zeros(size * 2, 3), torch.cat(outputs), [], []).wait()
    group.barrier().wait()
    for call in (lambda: group.recv_anysource([got], 0), lambda: group.allreduce([got, got])):
        with pytest.raises(torchcomms.CommsError):
            call()


def futures():
    """Works go on by themselves, and their futures complete."""
    rank, size = world()
    tensor = mine(rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline
    same(tensor, sum(mine(one) for one in range(size)))
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    assert work.get_future().wait()[0] is tensor
    called = threading.Event()
    later = mine(rank)
    dist.all_reduce(later, async_op=True).get_future().then(lambda future: called.set())
    assert called.wait(20), "nobody waits for it, so it must go on by itself"
    same(later, tensor)
    got = [torch.zeros(1) for _ in range(2)]
    if rank == 0:  # the later message is waited for first
        works = [dist.irecv(got[tag], 1, tag=tag) for tag in (0, 1)]
        works[1].wait()
        works[0].get_future().wait()
        assert [one.item() for one in got] == [5, 6]
        assert works[0].source_rank() == 1
    elif rank == 1:
        dist.send(torch.tensor([5.0]), 0, tag=0)
        dist.send(torch.tensor([6.0]), 0, tag=1)


def mismatch():
    """Ranks that call different things are named on all ranks, by an error that is this package's own."""
    rank, _ = world()
    with pytest.raises(torchcomms.CollectiveMismatch):
        dist.all_reduce(torch.zeros(4 + rank))


def failed_future():
    """A future whose operation fails has failed, in Python as in C++."""
    rank, _ = world()
    future = dist.all_reduce(torch.zeros(4 + rank), async_op=True).get_future()
    with pytest.raises(Exception, match="CollectiveMismatch"):
        future.wait()


def death():
    """Rank 1 dies; the others name it."""
    rank, _ = world()
    dist.barrier()
    if rank == 1:
        os._exit(0)

    def go_on():
        while True:
            dist.all_reduce(torch.zeros(1000))

    with pytest.raises(torchcomms.PeerFailed) as caught:
        go_on()
    assert caught.value.ranks == {1}


def late():
    """Rank 1 comes late; the others say so, and both meet afterwards."""
    rank, _ = world()
    group = dist.group.WORLD
    if rank == 0:
        with pytest.raises(torchcomms.CommsTimeout):
            group.monitored_barrier(timedelta(seconds=0.2))
        dist.distributed_c10d._get_default_store().set("late", "yes")
    else:
        dist.distributed_c10d._get_default_store().get("late")
        group.monitored_barrier(timedelta(seconds=20))


def abort():
    """After an abort the waits of this rank end."""
    rank, _ = world()
    group = dist.group.WORLD
    if rank == 0:
        timer = threading.Timer(0.1, group.abort)
        timer.start()
        with pytest.raises(torchcomms.CommsAborted):
            dist.recv(torch.zeros(1), 1)
        timer.join()
    dist.distributed_c10d._get_default_store().set(f"aborted {rank}", "yes")
    dist.distributed_c10d._get_default_store().get("aborted 0")


def held():
    """Descriptors, and threads of Python, now."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def again():
    """Ten groups one after another, each with a smaller one, leave nothing behind."""
    rank, size = world()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    counts = []
    for turn in range(10):
        where = {"store": dist.PrefixStore(f"again{turn}", store), "rank": rank, "world_size": size}
        dist.destroy_process_group()
        counts.append(held())
        dist.init_process_group(BACKEND, **where)
        smaller = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(10), group=smaller, async_op=True)
        work.get_future().wait()
        if turn % 2:
            dist.destroy_process_group(smaller)
    assert counts[1] == counts[-1], counts


def options():
    """The backend is named by options, for one group alone."""
    rank, _ = world()
    group = dist.new_group([0, 1], pg_options=Options(backend="tcp"))
    assert group.get_comm().get_backend() == "tcp"
    tensor = mine(rank)
    dist.all_reduce(tensor, group=group)
    same(tensor, mine(0) + mine(1))
    split = group.split_group([0, 1], group_name="halves")
    assert split.group_name == "halves"
    split.barrier().wait()
    split.shutdown()
    with pytest.raises(UnsupportedTensor):
        dist.all_reduce(torch.zeros(2, device="meta"))


def beside():
    """Devices that torch moves keep their backend; here it is gloo for the CPU, and ours has another device."""
    group = dist.group.WORLD
    assert [device.type for device in group._device_types] == ["meta", "cpu"]
    assert group._get_backend(torch.device("cpu")).name() == "gloo"
    rank, size = world()
    rings(group)
    objects(group)
    parts = [mine(rank * size + part) for part in range(size)]
    total = sum(mine(one * size + rank) for one in range(size))
    everybody = torch.cat([mine(one) for one in range(size)])
    got = mine(rank)
    dist.all_reduce(got)
    same(got, sum(mine(one) for one in range(size)))
    dist.broadcast(got, 0)
    dist.reduce(got, 0)
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(outputs, mine(rank))
    same(torch.cat(outputs), everybody)
    got = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(got, mine(rank))
    same(got, everybody)
    outputs = [torch.zeros(2, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(rank), outputs, 0)
    got = torch.zeros(2, 3)
    dist.scatter(got, parts if rank == 0 else None, 0)
    same(got, mine(rank))
    for call in (
        lambda got: dist.reduce_scatter(got, parts),
        lambda got: dist.reduce_scatter_tensor(got, torch.cat(parts)),
        lambda got: group.reduce_scatter_single_coalesced([got], [torch.cat(parts)]).wait(),
    ):
        got = torch.zeros(2, 3)
        call(got)
        same(got, total)
    outputs = torch.zeros(2 * size, 3)
    dist.all_to_all_single(outputs, torch.cat(parts))
    same(outputs, torch.cat([mine(one * size + rank) for one in range(size)]))
    group.all_gather_single_coalesced([outputs], [mine(rank)]).wait()
    same(outputs, everybody)
    dist.barrier()


def main(name, backend=BACKEND):
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    globals()[name]()
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
