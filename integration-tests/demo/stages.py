"""Stages of the main job: each is timed and shown while it runs, as a bar on a terminal, as lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass
class Stages:
    """Runs named stages one after another and keeps what each took, in seconds."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Time a stage; yields `advance(text, completed=None)`, which shows where the stage is."""
        start = time.perf_counter()
        with self._display() as progress:
            task = progress.add_task(name, total=total, detail="")

            def advance(text: str, completed: int | None = None) -> None:
                progress.update(task, detail=text, completed=completed)
                if not self.console.is_terminal and self._due(completed, total):
                    self.console.print(f"  {name}: {text}")

            yield advance
        self.seconds[name] = time.perf_counter() - start
        self.console.print(f"[green]✓[/green] {name} [dim]{self.seconds[name]:.1f} s[/dim]")

    @staticmethod
    def _due(completed: int | None, total: int | None) -> bool:
        """Where there is no terminal, a bar becomes about ten lines."""
        return completed is None or total is None or completed % max(1, total // 10) == 0

    def _display(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("[dim]{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
