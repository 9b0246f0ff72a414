"""The command `torchcomms`: `run` starts ranks on this machine, `doctor` says which backends work here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[
        Path, typer.Argument(help="The Python script that every rank runs.", exists=True, dir_okay=False)
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks to start.")] = 1,
    grace: Annotated[float, typer.Option(help="Seconds between asking ranks to stop and killing them.")] = 5.0,
) -> None:
    """Start SCRIPT on N ranks of this machine; if one fails, end the rest and say who failed and why."""
    from torchcomms.launcher import launch

    raise typer.Exit(launch([sys.executable, "-u", str(script), *(arguments or [])], ranks, grace=grace))


@app.command()
def doctor() -> None:
    """List the installed backends: usable here, or why not."""
    from torchcomms.discovery import backends
    from torchcomms.doctor import examine

    for name in backends():
        typer.echo(examine(name))


def main() -> None:
    """The entry point of the console script."""
    app()
