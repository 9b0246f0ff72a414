"""What is to be started: the command of every rank, how many, and with which other machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchcomms.errors import InvalidCall


@dataclass(frozen=True, slots=True)
class Job:
    """`command` on `ranks` ranks of this machine, which is number `node` of `nodes`.

    With several machines `rendezvous` is HOST:PORT of node 0, as the others reach it; machines may start different
    numbers of ranks. `environment` is set for the ranks on top of the launcher's own.
    """

    command: tuple[str, ...]
    ranks: int = 1
    nodes: int = 1
    node: int = 0
    rendezvous: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 5.0  # seconds between asking ranks to stop and killing them
    patience: float = 300.0  # seconds for all machines to come

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise InvalidCall(f"node {self.node} is not one of {self.nodes} nodes; pass 0 to {self.nodes - 1}")
        if self.nodes > 1 and not self.rendezvous:
            raise InvalidCall(f"{self.nodes} nodes need a rendezvous: pass HOST:PORT of node 0")
        if self.rendezvous:
            self.address()

    def address(self) -> tuple[str, int]:
        """Host and port of the rendezvous; on one machine any free port of the loopback interface."""
        if not self.rendezvous:
            return "127.0.0.1", 0
        host, _, port = self.rendezvous.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidCall(f"rendezvous {self.rendezvous!r} is not HOST:PORT; pass for example node0:29400")
        return host.strip("[]"), int(port)
