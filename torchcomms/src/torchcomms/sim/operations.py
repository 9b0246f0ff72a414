"""The operations by name as schedules over ghosts, the algorithms' symmetries, and `simulate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms import dissemination, gathering, hierarchical, reducing, tree
from torchcomms.algorithms.choice import ALGORITHMS, Table, always
from torchcomms.backend import ReduceOp
from torchcomms.errors import InvalidCall
from torchcomms.sim import symmetry as moves
from torchcomms.sim.engine import Simulation
from torchcomms.sim.ghosts import GhostGroup
from torchcomms.sim.symmetry import Symmetry

if TYPE_CHECKING:
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.sim.report import Report
    from torchcomms.sim.topology import Topology

OPERATIONS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
DENSE = 4096  # ranks from which an operation with a tensor for each peer is too much for every rank to be simulated


@dataclass(frozen=True, slots=True)
class Workload:
    """An operation on `nbytes` of `dtype`: the tensor, or each block of all_gather, reduce_scatter and all_to_all.

    If `even`, the tensor can be cut in as many equal shares as there are ranks, for which elements are divided if need
    be; over 64 MiB it then is rounded up to whole pieces.
    """

    operation: str
    nbytes: int
    dtype: torch.dtype = torch.float32
    even: bool = False

    def __call__(self, group: GhostGroup) -> Schedule:
        """The schedule of one rank."""
        one, size = self._tensor(group), group.size
        if self.operation == "all_reduce":
            return reducing.all_reduce(group, one, ReduceOp.SUM)
        if self.operation == "reduce":
            return reducing.reduce(group, one, 0, ReduceOp.SUM)
        if self.operation == "reduce_scatter":
            return reducing.reduce_scatter(group, one, [one] * size, ReduceOp.SUM)
        if self.operation == "all_gather":
            return gathering.all_gather(group, [one] * size, one)
        if self.operation == "all_to_all":
            return gathering.all_to_all(group, [one] * size, [one] * size)
        return tree.broadcast(group, one, 0) if self.operation == "broadcast" else dissemination.barrier(group)

    def _tensor(self, group: GhostGroup) -> torch.Tensor:
        count = -(-self.nbytes // self.dtype.itemsize)
        if not self.even or self.operation not in ("all_reduce", "reduce", "broadcast"):
            return group.ghost(count, self.dtype)
        pieces = -(-self.nbytes // reducing.STAGED)
        if pieces > 1:
            count = pieces * reducing.STAGED // self.dtype.itemsize
        shares = max(1, pieces) * group.size
        return (
            group.ghost(count, self.dtype) if count % shares == 0 else group.ghost(shares, self.dtype, count / shares)
        )


def symmetry_of(operation: str, algorithm: str, topology: Topology, nbytes: int) -> Symmetry:
    """The moves that take an algorithm onto itself: none for trees, nor for doubling except by powers of two."""
    size, cell = topology.size, topology.cell
    if operation in ("broadcast", "reduce") or algorithm == "tree":
        return moves.none(size)
    if algorithm == "hierarchical":
        share = -(-min(nbytes, reducing.STAGED) // topology.local)
        in_ring = hierarchical.in_ring(topology.hosts, share)
        if topology.hosts & (topology.hosts - 1) and not in_ring:
            return moves.none(size)
        return moves.rotation(size, cell) if in_ring else moves.flips(size, cell)
    if algorithm in ("doubling", "halving"):
        return moves.none(size) if size & (size - 1) else moves.flips(size, cell)
    return moves.rotation(size, cell)


def simulate(
    schedule: str | Callable[[GhostGroup], Schedule],
    topology: Topology,
    nbytes: int = 0,
    *,
    algorithm: str | None = None,
    dtype: torch.dtype = torch.float32,
    choices: Table | None = None,
    symmetry: Symmetry | None = None,
) -> Report:
    """Run a schedule on a cluster, in virtual time.

    `schedule` is an operation ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
    "barrier") on `nbytes` of `dtype`, by `algorithm` or else by the one that `choices` (the default table) takes. Bytes
    are of the tensor, or of each rank's block for all_gather, reduce_scatter and all_to_all. Or it is a function that
    makes the schedule of one rank from its `GhostGroup`; then `symmetry` may say which moves of ranks keep it, so that
    few stand for all: it is believed, and `symmetry.holds` checks it.

    Only the representatives of the algorithm's own symmetry are simulated. Raises `InvalidCall` for an unknown
    operation, or one that would need a tensor for each pair of very many ranks.
    """
    if not isinstance(schedule, str):
        return Simulation(topology, symmetry or moves.none(topology.size), choices).run(schedule)
    if schedule not in OPERATIONS:
        raise InvalidCall(f"no operation {schedule!r} to simulate; choose among {', '.join(OPERATIONS)}")
    choices, algorithm = _choice(schedule, algorithm, choices, topology, nbytes)
    found = symmetry or symmetry_of(schedule, algorithm, topology, nbytes)
    if found.kind == "none" and topology.size >= DENSE and algorithm in ("exchange", "shares", "ring", "scatter"):
        raise InvalidCall(
            f"{schedule} by {algorithm} has no symmetry on {topology.hosts} hosts, and a message for each of "
            f"{topology.size}² pairs of ranks is too much: choose another algorithm or fewer ranks"
        )
    workload = Workload(schedule, nbytes, dtype, even=found.kind != "none")
    return Simulation(topology, found, choices).run(workload)


def _choice(
    operation: str, algorithm: str | None, choices: Table | None, topology: Topology, nbytes: int
) -> tuple[Table, str]:
    if operation not in ALGORITHMS:
        return choices or Table(), "exchange"
    if algorithm is None:
        table = choices or Table(local=topology.local)
        return table, table.choose(operation, topology.size, min(nbytes, reducing.STAGED))
    if algorithm not in ALGORITHMS[operation]:
        raise InvalidCall(
            f"{operation} has no algorithm {algorithm!r}; choose among {', '.join(ALGORITHMS[operation])}"
        )
    return always(operation, algorithm, topology.local), algorithm
