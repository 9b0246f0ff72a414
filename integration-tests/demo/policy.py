"""The small policy: warmed up and trained by GRPO on actors in processes of their own, exported, run without torch."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from stages import Stages
from torchfree import run_without_torch

import executor
import helium
from forge import export, kernels, models
from forge.config import GrpoConfig, KernelConfig, OptimizerConfig, WarmUpConfig
from forge.environments import find
from forge.recipes import grpo

KERNEL = "helium::rms_norm"
LAUNCHER = "local"
COMM_BACKEND = "tcp"
MAX_TOKENS = 16


@dataclass(frozen=True)
class Kernel:
    """The hot operation of the model, as helium compiled it for this CPU."""

    name: str
    target: str
    milliseconds: float
    roofline_share: float


@dataclass(frozen=True)
class Exported:
    """The trained policy as a program file: how far its logits are from the policy's, and whether its answers are."""

    max_abs_diff: float
    answers_equal: bool
    program_bytes: int
    torch_importable: bool


def measure_kernel(stages: Stages) -> Kernel:
    """Compile the kernel, hold it to torch, and time it at a size that memory bounds."""
    with stages.stage("helium: compile and measure the kernel"):
        rows, weight = torch.randn(4096, 1024), torch.rand(1024) + 0.5
        facts = helium.library.rms_norm.explain(rows, weight, 1e-5)
        expected = torch.nn.functional.rms_norm(rows, (1024,), weight, 1e-5)
        torch.testing.assert_close(helium.library.rms_norm(rows, weight, 1e-5), expected)
    return Kernel(KERNEL, facts.target, facts.milliseconds, facts.roofline_share)


def configuration(folder: Path, *, seed: int, quick: bool) -> GrpoConfig:
    """One trainer and one generator, which works one version ahead, so that both cores are busy."""
    return GrpoConfig(
        steps=20 if quick else 600,
        groups_per_step=8,
        group_size=8,
        max_staleness=1,
        seed=seed,
        launcher=LAUNCHER,
        sync=COMM_BACKEND,
        threads=1,
        out=str(folder),
        name="run",
        optimizer=OptimizerConfig(lr=2e-4),
        # Early enough that there is much to learn, late enough that some of the answers earn a reward.
        warm_up=WarmUpConfig(max_steps=600, until=0.05, check_every=5),
        kernels=KernelConfig(rms_norm=KERNEL),
    )


def train(stages: Stages, config: GrpoConfig) -> grpo.Result:
    """Warm up and train; the bar shows the reward as it rises."""
    with stages.stage("forge: warm up and train by GRPO", total=config.steps) as advance:

        def on_step(metrics) -> None:
            step = int(metrics["step"])
            advance(f"step {step}/{config.steps} reward {metrics['reward/mean']:.2f}", completed=step)

        return asyncio.run(grpo.run(config, on_step=on_step))


def export_and_run(stages: Stages, folder: Path, trained: grpo.Result) -> Exported:
    """Export the trained policy, answer every held-out prompt without torch, and compare with the policy itself."""
    decoder, tokenizer = models.load(trained.weights_dir, rms_norm=kernels.find_kernel(KERNEL))
    prompts = [tokenizer.encode(problem.prompt) for problem in find("sort", {}).held_out()]
    with stages.stage("executor: export and compile the policy"):
        step, example = export.decode_step(decoder, max_seq_len=len(prompts[0]) + MAX_TOKENS)
        program = executor.compile(step, example)
        path = folder / "policy.edge"
        program.save(path)
    with stages.stage("executor: run the policy without torch"):
        logits_path = folder / "policy.logits.npy"
        result = run_without_torch(path, prompts, [tokenizer.eos_id], MAX_TOKENS, logits_path)
        ours = torch.from_numpy(numpy.load(logits_path))
        due = eager_logits(decoder, prompts, result["tokens"])
    texts = [tokenizer.decode(tokens) for tokens in result["tokens"]]
    return Exported(
        max_abs_diff=float((ours - due).abs().max()),
        answers_equal=texts == [sample.text for sample in trained.after.rollouts],
        program_bytes=path.stat().st_size,
        torch_importable=result["torch_importable"],
    )


def eager_logits(decoder: models.Decoder, prompts: list[list[int]], answers: list[list[int]]) -> torch.Tensor:
    """The policy's own logits f32[tokens, V] at the positions that the tokens of `answers` were chosen from."""
    rows = [torch.tensor(prompt + tokens[:-1]) for prompt, tokens in zip(prompts, answers, strict=True)]
    with torch.no_grad():  # causal: what is padded on the right changes nothing before it
        logits = decoder(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    return torch.cat([row[len(p) - 1 :][: len(t)] for row, p, t in zip(logits, prompts, answers, strict=True)])


def processes(trained: grpo.Result) -> int:
    """Controller, trainer and generators."""
    return len(trained.processes | {os.getpid()})
