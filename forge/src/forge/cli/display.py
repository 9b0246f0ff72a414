"""Progress of a run: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

__all__ = ["Display"]

COLUMNS = ("step", "reward/mean", "solved", "entropy", "mismatch_kl", "grad_norm", "policy_age/mean", "time/step")
ROWS = 12
LINES = 20


class Display:
    """Shows metrics as they come; on a terminal the last steps, elsewhere about `LINES` lines a run."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._every = max(1, steps // LINES)
        self._recent: list[Mapping[str, float]] = []
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, metrics: Mapping[str, float]) -> None:
        """Show one step."""
        if self._live is not None:
            self._recent = [*self._recent[1 - ROWS :], metrics]
            self._live.update(self._table())
        elif (int(metrics["step"]) - 1) % self._every == 0:
            cells = (f"{name}={_format(metrics[name])}" for name in COLUMNS)
            self._console.print("  ".join(cells), highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(*COLUMNS)
        for metrics in self._recent:
            table.add_row(*(_format(metrics[name]) for name in COLUMNS))
        return table


def _format(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.4f}"
