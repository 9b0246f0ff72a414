"""Compile a small classifier, check it, and run it in a process that has no torch.

python examples/classifier.py
executor compile examples.classifier:make -o classifier.edge     # the same from the command line
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import executor

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None          # an import of torch would fail from here on
import executor, numpy

runtime = executor.load(sys.argv[1])
result = runtime(pixels=numpy.load(sys.argv[2]))
print("label", int(result["label"][0]), "of probability", round(float(result["probability"][0]), 4))
"""


class Classifier(nn.Module):
    """Ten classes of 28 by 28 pixels; gives the likeliest class of each picture and how likely it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """float32[n, 28, 28] to `label` int64[n] and `probability` float32[n]."""
        probabilities = self.layers(pixels).softmax(dim=1)
        return {"label": probabilities.argmax(dim=1), "probability": probabilities.amax(dim=1)}


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model and example arguments, as the command line takes them."""
    torch.manual_seed(0)
    return Classifier().eval(), (torch.rand(1, 28, 28),)


def main() -> None:
    """Compile, verify, save, and run elsewhere."""
    model, args = make()
    program = executor.compile(model, args)
    print(program.verify())
    with tempfile.TemporaryDirectory() as folder:
        path, pixels = Path(folder) / "classifier.edge", Path(folder) / "pixels.npy"
        program.save(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
        np.save(pixels, args[0].numpy())
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(path), str(pixels)], check=True)
    with torch.no_grad():
        due = model(*args)
    print("eager: label", int(due["label"][0]), "of probability", round(float(due["probability"][0]), 4))


if __name__ == "__main__":
    main()
