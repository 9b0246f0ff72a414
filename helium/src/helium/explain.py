"""Says what a kernel becomes and how good it is: its stages as text, and its time as a share of the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from helium.config import Config
from helium.roofline import measure, roofline, work
from helium.runtime import jit
from helium.targets import host_machine, host_target

if TYPE_CHECKING:
    from helium.decorator import Kernel

Stage: TypeAlias = Literal["source", "ir", "llvm", "optimised", "assembly"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a kernel on given arguments. `str` of it is a report for people.

    Attributes:
        name: The kernel's.
        target: The machine.
        config: The schedule used.
        milliseconds: The fastest of several calls.
        roofline_share: The least time that the machine's measured limits allow, over the time taken; 1 is the limit.
        bytes: Moved at the least: every tensor once.
        flops: Floating point operations at the least.
        threads: torch's number of threads.
    """

    name: str
    target: str
    config: Config
    milliseconds: float
    roofline_share: float
    bytes: int
    flops: int
    threads: int

    def __str__(self) -> str:
        rate = self.bytes / self.milliseconds / 1e6, self.flops / self.milliseconds / 1e6
        return "\n".join(
            [
                f"{self.name} on {self.target}, {self.threads} thread{'s' * (self.threads != 1)}",
                f"  {self.config}",
                f"  {self.milliseconds:.4f} ms, {self.roofline_share:.0%} of the roofline",
                f"  {self.bytes} bytes ({rate[0]:.1f} GB/s), {self.flops} operations ({rate[1]:.1f} GFLOP/s)",
            ]
        )


def explain(kernel: Kernel, args: tuple[Any, ...]) -> Explanation:
    """Run `kernel` on CPU tensors and compare its time with the roofline."""
    bound = kernel.bind(*args)
    compiled = kernel.compiled(*args)
    need = work(compiled.kernel, bound)
    seconds = measure(lambda: kernel.run(*args))
    limits = roofline()
    share = limits.seconds(need.bytes, need.flops) / seconds
    return Explanation(
        kernel.name, host_target(), Config(**compiled.plan.blocks), seconds * 1e3, share, need.bytes, need.flops,
        limits.threads,
    )  # fmt: skip


def stage(kernel: Kernel, name: Stage, args: tuple[Any, ...]) -> str:
    """One stage of compilation as text."""
    if name == "source":
        return "\n".join(kernel.source.lines)
    if name == "ir":
        return str(kernel.lower(*args))
    compiled = kernel.compiled(*args)
    if name == "llvm":
        return compiled.emitted.text
    if name == "optimised":
        return compiled.native.optimised
    return jit.assembly(compiled.emitted.text, host_machine())
