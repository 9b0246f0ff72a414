"""Supervised fine-tuning on prompts and answers: the loss is on the answer and its end token alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forge.batcher import Batch, pad
from forge.config import OptimizerConfig
from forge.environments import Problem
from forge.models import Decoder
from forge.optimizer import Optimizer
from forge.samples import Sample, Source
from forge.tokenizer import Tokenizer
from forge.trainer import forward

__all__ = ["FineTuner", "demonstrations"]


class FineTuner:
    """Maximises the log-likelihood of answers, in place, with an optimizer of its own."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, optimizer: OptimizerConfig) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._optimizer = Optimizer(decoder, optimizer)

    def step(self, problems: Sequence[Problem]) -> float:
        """One step on `problems`; returns the mean negative log-likelihood of an answer's token before it."""
        batch = demonstrations(problems, self._tokenizer)
        loss = -forward(self._decoder, batch)[0].sum() / batch.mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())


def demonstrations(problems: Sequence[Problem], tokenizer: Tokenizer) -> Batch:
    """The answers as if the policy had written them, with the end token after each."""
    samples = [_demonstration(problem, tokenizer) for problem in problems]
    return pad(samples, torch.ones(len(samples)), tokenizer.pad_id)


def _demonstration(problem: Problem, tokenizer: Tokenizer) -> Sample:
    prompt, answer = tokenizer.encode(problem.prompt), [*tokenizer.encode(problem.answer), tokenizer.eos_id]
    length = len(prompt) + len(answer)
    sources = (int(Source.PROMPT),) * len(prompt) + (int(Source.POLICY),) * len(answer)
    return Sample((*prompt, *answer), (0.0,) * length, (0,) * length, sources, reward=float("nan"), group=0)
