"""Data-parallel training by hand: every rank has its own data, gradients are averaged, replicas stay the same bits.

Run it with `torchcomms run -n 3 examples/data_parallel.py`.
"""

import torch

import torchcomms
from torchcomms import ReduceOp


def main() -> None:
    torch.set_num_threads(1)
    with torchcomms.new_comm("tcp", "cpu", name="train") as comm:
        torch.manual_seed(comm.get_rank())
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            comm.broadcast(parameter, 0)
        inputs = torch.randn(64, 8)
        targets = inputs.sum(1, keepdim=True)
        for step in range(20):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            # All gradients are in flight at once; they may be waited for in any order.
            works = [comm.all_reduce(one.grad, ReduceOp.AVG, async_op=True) for one in model.parameters()]
            for work in works:
                work.wait()
            optimizer.step()
            if comm.get_rank() == 0 and step % 5 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
        replicas = [torch.empty_like(model.weight) for _ in range(comm.get_size())]
        comm.all_gather(replicas, model.weight)
        assert all(torch.equal(replica, model.weight) for replica in replicas)
        print("done: all replicas hold the same weights")


if __name__ == "__main__":
    main()
