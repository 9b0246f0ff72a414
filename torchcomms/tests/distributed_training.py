"""What the ranks of the tests of DDP, FSDP2, DTensor and torch.compile do: `distributed_training.py NAME`.

Every training runs over this package and over gloo in the same processes. Each rank says "ok" in the end.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from itertools import combinations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torchcomms
from torchcomms.distributed import CommsGroup, Options, place

warnings.simplefilter("ignore", FutureWarning)
STEPS = 4


class Forked(nn.Module):
    """Half of its parameters have no part in the loss, another half in each step."""

    def __init__(self):
        super().__init__()
        self.sides = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.sides[self.calls % 2](x)


def stack():
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)
    )


def made(kind):
    torch.manual_seed(7)
    return kind()


def losses(model):
    """The losses of some steps on this rank's data."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(100 + dist.get_rank())
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return torch.tensor(seen)


def gloo():
    return dist.new_group(backend="gloo")


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


def ddp():
    """Losses in every mode of DDP are gloo's."""
    peer = gloo()
    modes = (
        (stack, {}),
        (stack, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}),
        (stack, {"static_graph": True}),
        (Forked, {"find_unused_parameters": True}),
    )
    for kind, options in modes:
        ours = losses(DistributedDataParallel(made(kind), **options))
        close(ours, losses(DistributedDataParallel(made(kind), process_group=peer, **options)))


def placed():
    """With its buckets in the communicator's memory DDP computes the same, and the gradients lie there."""
    plain = losses(DistributedDataParallel(made(stack)))
    model = place(DistributedDataParallel(made(stack), gradient_as_bucket_view=True))
    close(losses(model), plain)
    backend = dist.group.WORLD.get_comm().get_backend_impl()
    if backend.name == "shm":
        assert all(backend.heap.place(parameter.grad) is not None for parameter in model.parameters())
    for options in ({"find_unused_parameters": True}, {"process_group": gloo()}):
        model = DistributedDataParallel(made(Forked), **options)
        with pytest.raises(torchcomms.CommsError):
            place(model)


def hooks():
    """A communication hook of torch's own, gradients in float16, and ZeRO's optimizer."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    seen = []
    for group in (dist.group.WORLD, gloo()):
        model = DistributedDataParallel(made(stack), process_group=group)
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        seen.append(losses(model))
        model = DistributedDataParallel(made(stack), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()
        seen.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    torch.testing.assert_close(seen[0], seen[2], rtol=1e-2, atol=1e-3)
    close(seen[1], seen[3])


def death_in_backward():
    """A rank that dies in a backward pass is named by the others."""
    model = DistributedDataParallel(made(stack))
    if dist.get_rank() == 1:
        model.module[3].weight.register_hook(lambda gradient: os._exit(0))
    with pytest.raises((torchcomms.PeerFailed, RuntimeError), match="rank 1"):
        losses(model)


def sharded(kind, mesh, **options):
    model = made(kind)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def layers():
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16))


def fsdp():
    """FSDP2 over uneven shards: the losses are gloo's, also in mixed precision and with buffers of the communicator."""
    ours, peer = DeviceMesh.from_group(dist.group.WORLD, "cpu"), DeviceMesh.from_group(gloo(), "cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wanted = losses(sharded(layers, peer))
    close(losses(sharded(layers, ours)), wanted)
    model = sharded(layers, ours)
    model.set_allocate_memory_from_process_group_for_comm(True)
    close(losses(model), wanted)
    torch.testing.assert_close(
        losses(sharded(layers, ours, mp_policy=policy)),
        losses(sharded(layers, peer, mp_policy=policy)),
        rtol=1e-2,
        atol=1e-3,
    )


def hsdp():
    """FSDP2 over a mesh of two dimensions: shards in one, replicas in the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert isinstance(mesh.get_group("shard"), CommsGroup)
    got = losses(sharded(layers, mesh))
    close(got, losses(DistributedDataParallel(made(layers), process_group=gloo())))


def checkpoint():
    """A distributed checkpoint of a sharded model, written and read back over this package."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = sharded(layers, mesh)
    losses(model)
    saved = get_model_state_dict(model)
    dcp.save(saved, checkpoint_id=folder[0])
    other = sharded(layers, mesh)
    loaded = get_model_state_dict(other)
    dcp.load(loaded, checkpoint_id=folder[0])
    set_model_state_dict(other, loaded)
    for name, value in saved.items():
        assert torch.equal(value.to_local(), other.state_dict()[name].to_local())


def dtensor():
    """Sharded tensors on a mesh of two dimensions, distributed, multiplied and redistributed."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    torch.manual_seed(0)
    full, other = torch.randn(6, 5), torch.randn(5, 7)
    left = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(other, mesh, [Replicate(), Shard(0)])
    assert torch.equal(left.full_tensor(), full)
    close((left @ right).full_tensor(), full @ other)
    for placements in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Replicate(), Replicate()]):
        moved = left.redistribute(mesh, placements)
        assert torch.equal(moved.full_tensor(), full)
    local = DTensor.from_local(torch.ones(2, 2), mesh["rows"], [Shard(0)])
    assert local.sum().full_tensor().item() == 8
    flat = mesh._flatten("all")
    assert distribute_tensor(full, flat, [Shard(0)]).full_tensor().equal(full)


def orders():
    """A group for every pair, made while its other rank may be far behind, and used in another order by every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.get("all others have made their groups")
    pairs = {pair: dist.new_group(pair) for pair in combinations(range(size), 2)}
    if rank and store.add("made", 1) == size - 1:
        store.set("all others have made their groups", "yes")
    works = []
    for other in sorted({*range(size)} - {rank}, key=lambda other: (other - rank) % size):
        tensor = torch.tensor([float(rank)])
        group = pairs[min(rank, other), max(rank, other)]
        works.append((other, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for other, tensor, work in works:
        work.wait()
        assert tensor.item() == rank + other


def mesh_of_comms():
    """A DeviceMesh of communicators that were made before, without init_process_group."""
    from torchcomms.device_mesh import init_device_mesh as over

    dist.destroy_process_group()
    world = torchcomms.new_comm("auto", "cpu", "world")
    rank = world.get_rank()
    row, column = [0, 1] if rank < 2 else [2, 3], [rank % 2, rank % 2 + 2]
    rows, columns = world.split(column, f"rows{rank % 2}"), world.split(row, f"columns{rank // 2}")
    mesh = over((rows, columns), ("rows", "columns"), _global_comm=world)
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    full = torch.arange(16.0).view(4, 4)
    tensor = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    assert tensor.to_local().shape == (2, 2)
    assert torch.equal(tensor.full_tensor(), full)
    assert torch.equal((tensor @ tensor).full_tensor(), full @ full)
    with pytest.raises(torchcomms.CommsError, match="_global_comm"):
        over((rows, columns), ("rows", "columns"))


def functions():
    """Functional collectives, which C++ calls."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    mine = torch.full((2, 2), float(rank))
    total = torch.full((2, 2), float(sum(range(size))))
    assert torch.equal(functional.all_reduce(mine, "sum", group), total)
    assert torch.equal(functional.all_reduce_coalesced([mine, mine], "sum", group)[1], total)
    gathered = torch.cat([torch.full((2, 2), float(one)) for one in range(size)])
    assert torch.equal(functional.all_gather_tensor(mine, 0, group), gathered)
    assert torch.equal(functional.all_gather_into_tensor_coalesced([mine], group)[0], gathered)
    assert torch.equal(functional.reduce_scatter_tensor(gathered, "avg", 0, group), mine)
    assert torch.equal(functional.broadcast(mine, 1, group), torch.ones(2, 2))
    parts = functional.all_to_all_single(torch.full((size, 2), float(rank)), None, None, group)
    assert torch.equal(parts, torch.arange(float(size)).unsqueeze(1).expand(size, 2))
    wanted = torch.full((2, 2), float(rank), requires_grad=True)
    functional.all_gather_tensor_autograd(wanted, 0, group).sum().backward()
    assert torch.equal(wanted.grad, torch.full((2, 2), float(size)))


def compiled():
    """A step with collectives, compiled in one graph, computes what it computes uncompiled."""
    group = dist.group.WORLD

    def step(x, w):
        y = functional.all_reduce((x @ w).relu(), "sum", group)
        z = functional.all_gather_tensor(y, 0, group)
        return functional.reduce_scatter_tensor(z, "avg", 0, group) * 2

    def in_place(x):
        dist.all_reduce(x)
        return x + 1

    torch.manual_seed(dist.get_rank())
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    close(torch.compile(step, backend="aot_eager", fullgraph=True)(x, w), step(x, w))
    close(torch.compile(in_place, backend="aot_eager", fullgraph=True)(x.clone()), in_place(x.clone()))


def main(name, backend="cpu:torchcomms", *moving):
    torch.set_num_threads(1)
    options = Options(*moving) if moving else None
    dist.init_process_group(backend, timeout=timedelta(seconds=60), pg_options=options)
    globals()[name]()
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
