"""What the commands do, once their arguments are read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forge.cli.display import Display
from forge.config import GrpoConfig, ModelConfig
from forge.config_files import dump, load
from forge.errors import ConfigError
from forge.run_directory import read_rollouts

__all__ = ["evaluate", "generate", "train", "view"]

console = Console()


def train(config: Path, overrides: Sequence[str], *, dry_run: bool) -> None:
    """Run the recipe with a live table, and say what it came to."""
    resolved = load(GrpoConfig, config, overrides)
    if dry_run:
        console.print(dump(resolved), markup=False, highlight=False, end="")
        return
    from forge.recipes import grpo

    with Display(console, resolved.steps) as display:
        result = asyncio.run(grpo.run(resolved, on_step=display.step))
    table = Table("", "before", "after")
    for name in ("greedy", "sampled"):
        table.add_row(f"solved, {name}", f"{getattr(result.before, name):.1%}", f"{getattr(result.after, name):.1%}")
    console.print(table)
    console.print(f"weights: {result.weights_dir}\nreport:  {result.run_dir / 'report.html'}", highlight=False)


def evaluate(run: Path) -> None:
    """Judge the weights of a run, greedily and by sampling."""
    from forge import environments
    from forge.evaluation import evaluate as judge
    from forge.workers import Workers

    config = load(GrpoConfig, run / "config.toml")
    config = replace(config, launcher="inline", sync="message", model=ModelConfig(path=str(_weights(run))))
    held_out = environments.find(config.task.name, config.task.options).held_out()

    async def judged() -> Any:
        async with Workers.open(config) as workers:
            return await judge(workers, held_out)

    evaluation = asyncio.run(judged())
    console.print(
        f"{len(held_out)} held-out problems: greedy {evaluation.greedy:.1%}, sampled {evaluation.sampled:.1%}"
    )


def generate(run: Path, prompt: str, *, temperature: float, max_tokens: int, seed: int) -> None:
    """Print one completion."""
    from forge.generation import Engine, Request, SamplingParams
    from forge.models import load as load_model

    model, tokenizer = load_model(_weights(run))
    params = SamplingParams(temperature, max_tokens=max_tokens, seed=seed)
    (completion,) = Engine(model, tokenizer).generate([Request(tokenizer.encode(prompt), params)])
    console.print(tokenizer.decode(completion.token_ids), markup=False, highlight=False)


def view(run: Path, step: int | None, *, limit: int, tokens: bool) -> None:
    """Print rollouts, best first, with their reward parts."""
    chosen, rollouts = read_rollouts(run, step)
    parts = sorted({name for rollout in rollouts for name in rollout["parts"]})
    table = Table("prompt", "completion", "reward", *parts, "tokens", "version", title=f"{run.name}, step {chosen}")
    ranked = sorted(rollouts, key=lambda rollout: (rollout["group"], -(rollout["reward"] or 0.0)))
    for rollout in ranked[:limit]:
        text = Text(rollout["text"], style="green" if rollout["solved"] else "")
        earned = ["–" if rollout["parts"].get(name) is None else f"{rollout['parts'][name]:.3f}" for name in parts]
        reward = "–" if rollout["reward"] is None else f"{rollout['reward']:.3f}"
        written = [version for version in rollout["versions"] if version >= 0]
        table.add_row(
            Text(rollout["prompt"]), text, reward, *earned, str(len(written)), "–".join(map(str, sorted({*written})))
        )
    console.print(table)
    if tokens:
        for rollout in ranked[:limit]:
            console.print(_token_line(rollout))


def _token_line(rollout: dict[str, Any]) -> Text:
    """Every token id of a rollout; those of the policy with their log-probability."""
    line = Text()
    for token, logprob, source in zip(rollout["token_ids"], rollout["logprobs"], rollout["sources"], strict=True):
        line.append(f"{token} " if source != 1 else f"{token}({logprob:.2f}) ", style="cyan" if source == 1 else "dim")
    return line


def _weights(run: Path) -> Path:
    """The latest weights of a run directory; a model directory is its own."""
    if (run / "config.json").exists():
        return run
    found = sorted((run / "weights").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if not found:
        raise ConfigError(f"{run} holds no weights and is no model directory; give a finished run", key="run")
    return found[-1]
