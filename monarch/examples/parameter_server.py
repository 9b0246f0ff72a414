"""A parameter server: workers compute gradients on shards of the data, the controller averages and sends them back."""

from __future__ import annotations

import torch

from monarch.actor import Actor, current_rank, endpoint, this_host


class Worker(Actor):
    """Holds a shard of the data of a linear regression."""

    def __init__(self, points: int) -> None:
        generator = torch.Generator().manual_seed(current_rank().rank)
        self.x = torch.randn(points, 3, generator=generator)
        self.y = self.x @ torch.tensor([1.0, -2.0, 0.5])

    @endpoint
    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """Of the mean squared error: float32[3]."""
        return 2 * self.x.t() @ (self.x @ weights - self.y) / len(self.x)


def main() -> None:
    weights = torch.zeros(3)
    with this_host().spawn_procs(per_host={"procs": 2}) as procs:
        workers = procs.spawn("workers", Worker, 256)
        for _ in range(60):
            gradients = workers.gradient.call(weights).get().values()
            weights -= 0.1 * torch.stack(gradients).mean(0)
    print("weights", [round(weight, 2) for weight in weights.tolist()])


if __name__ == "__main__":
    main()
