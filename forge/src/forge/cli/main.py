"""`forge train`, `eval`, `generate` and `view`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forge.errors import ForgeError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Reinforcement learning for language models where only the algorithm is yours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the time to help
)

Run = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Train by GRPO; any key of CONFIG is overridden by --section.key VALUE."""
    from forge.cli.commands import train as command

    command(config, context.args, dry_run=dry_run)


@app.command("eval")
def evaluate(run: Run) -> None:
    """Judge the trained policy of RUN on its task's held-out problems."""
    from forge.cli.commands import evaluate as command

    command(run)


@app.command()
def generate(
    run: Annotated[
        Path, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)
    ],
    prompt: Annotated[str, typer.Argument(help="What to complete.", show_default=False)],
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="At most this many tokens.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Complete PROMPT with the trained policy of RUN."""
    from forge.cli.commands import generate as command

    command(run, prompt, temperature=temperature, max_tokens=max_tokens, seed=seed)


@app.command()
def view(
    run: Run,
    step: Annotated[int | None, typer.Option(help="The step; the last one by default.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="At most this many rollouts.")] = 16,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token with its log-probability.")] = False,
) -> None:
    """Show what the policy of RUN really wrote, and what it earned."""
    from forge.cli.commands import view as command

    command(run, step, limit=limit, tokens=tokens)


def main() -> None:
    """What the `forge` script runs; an error of forge's is one line, not a traceback."""
    try:
        app()
    except ForgeError as error:
        print(f"forge: {error}", file=sys.stderr)
        raise SystemExit(2) from error
