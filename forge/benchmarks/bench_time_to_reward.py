"""Seconds until 40 % of the sampled completions sort six digits rightly, from the same start, beside TRL if installed.

Usage: python benchmarks/bench_time_to_reward.py [SEEDS] [MOST_STEPS]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from report import record, spread

from forge.config import GrpoConfig, ModelConfig, OptimizerConfig, WarmUpConfig
from forge.recipes import grpo
from forge.tasks import SortTask

TARGET, WINDOW = 0.40, 10
LIMIT = 3.0  # times faster than TRL, by the design
GROUPS, GROUP_SIZE, RATE = 8, 8, 1e-4


def start(folder: Path, seed: int) -> str:
    """A small model fine-tuned until about 15 % of its samples are right, as a Hugging Face directory."""
    warm_up = WarmUpConfig(max_steps=300, until=0.15)
    config = GrpoConfig(steps=0, seed=seed, threads=1, out=str(folder), name=f"start-{seed}", warm_up=warm_up)
    return str(asyncio.run(grpo.run(config)).weights_dir)


def forge_steps(folder: Path, model: str, seed: int, steps: int) -> list[tuple[float, float]]:
    """Seconds and share solved of every step."""
    config = GrpoConfig(
        steps=steps,
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        seed=seed,
        threads=1,
        out=str(folder),
        name=f"forge-{seed}",
        model=ModelConfig(path=model),
        optimizer=OptimizerConfig(lr=RATE),
    )
    history = asyncio.run(grpo.run(config)).history
    return [(line["time/step"], line["solved"]) for line in history]


def trl_steps(folder: Path, model: str, seed: int, steps: int) -> list[tuple[float, float]]:
    """The same by TRL's GRPOTrainer: same prompts, reward, rate, batch and group size, one thread, no KL term."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    task, solved, seconds = SortTask(), [], []

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        solved.append(sum(map(str.__eq__, completions, answer)) / len(answer))
        return [task.reward("", ours, right) for ours, right in zip(completions, answer, strict=True)]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.begin)

    problems = list(islice(task.problems(seed), steps * GROUPS))
    data = Dataset.from_list([{"prompt": problem.prompt, "answer": problem.answer} for problem in problems])
    settings = GRPOConfig(
        output_dir=str(folder / f"trl-{seed}"),
        per_device_train_batch_size=GROUPS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=16,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=steps,
        beta=0.0,
        temperature=1.0,
        seed=seed,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    GRPOTrainer(model=model, reward_funcs=reward, args=settings, train_dataset=data, callbacks=[Clock()]).train()
    return list(zip(seconds, solved, strict=False))


def seconds_to_target(steps: list[tuple[float, float]]) -> float:
    """Until the mean share solved of the last `WINDOW` steps reaches `TARGET`; infinite if it never does."""
    for step in range(WINDOW, len(steps) + 1):
        if sum(solved for _, solved in steps[step - WINDOW : step]) / WINDOW >= TARGET:
            return sum(seconds for seconds, _ in steps[:step])
    return float("inf")


def main(seeds: int, steps: int) -> None:
    torch.set_num_threads(1)
    runs = {"forge": forge_steps, **({"TRL": trl_steps} if find_spec("trl") else {})}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    each: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(seeds):
            model = start(Path(name), seed)
            for system, run in runs.items():
                measured = run(Path(name), model, seed, steps)
                taken[system].append(seconds_to_target(measured))
                each[system] += [1e3 * seconds for seconds, _ in measured[5:]]
    rows = [{"system": s, "seconds to 40 %": spread(taken[s]), "ms a step": spread(each[s])} for s in runs]
    if "TRL" in runs:
        ratio = sorted(taken["TRL"])[seeds // 2] / sorted(taken["forge"])[seeds // 2]
        rows.append({"system": "TRL / forge", "seconds to 40 %": f"{ratio:.2f}, limit {LIMIT}", "ms a step": ""})
    else:
        rows.append({"system": "TRL", "seconds to 40 %": "not installed", "ms a step": ""})
    record("time_to_reward", "Time to reward: six digits sorted, one thread", rows, seconds=taken)


if __name__ == "__main__":
    main(*(int(argument) for argument in (sys.argv[1:] + ["3", "150"][len(sys.argv) - 1 :])))
