"""Simulated groups: the algorithms' own generators over a model of a cluster, or over tensors with random delays.

`simulate("all_reduce", example(hosts=16384, local=8), nbytes=1 << 20)` says how long it takes, what it moves and which
links are busiest. `Rehearsal` runs schedules on real tensors for tests. `calibrate` measures the model's parameters.
"""

from torchcomms.sim.calibration import Calibration, calibrate
from torchcomms.sim.operations import simulate
from torchcomms.sim.rehearsal import Rehearsal
from torchcomms.sim.report import Hot, Report
from torchcomms.sim.symmetry import Symmetry, flips, holds, none, rotation
from torchcomms.sim.topology import Link, Topology, example

__all__ = [
    "Calibration",
    "Hot",
    "Link",
    "Rehearsal",
    "Report",
    "Symmetry",
    "Topology",
    "calibrate",
    "example",
    "flips",
    "holds",
    "none",
    "rotation",
    "simulate",
]
