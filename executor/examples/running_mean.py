"""State: a buffer that a model changes lives from call to call, and can be kept, brought back and begun anew.

python examples/running_mean.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import executor


class RunningMean(nn.Module):
    """The mean of all vectors seen so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(width))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32[width] to float32[width]."""
        self.total += x
        self.count += 1
        return self.total / self.count


def main() -> None:
    """Feed three vectors, go back to after the first, and feed another."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mean.edge"
        executor.compile(RunningMean(3), (torch.zeros(3),)).save(path)
        with executor.load(path) as runtime:
            print("state:", runtime.state.names())
            print("mean of 1:", runtime(np.full(3, 1, np.float32)))
            after_one = runtime.state.snapshot()
            runtime(np.full(3, 2, np.float32))
            print("mean of 1, 2, 6:", runtime(np.full(3, 6, np.float32)))
            runtime.state.restore(after_one)
            print("mean of 1, 3:", runtime(np.full(3, 3, np.float32)))
            runtime.state.reset()
            print("mean of 9:", runtime(np.full(3, 9, np.float32)))


if __name__ == "__main__":
    main()
