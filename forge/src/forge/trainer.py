"""The trainer: per-token weights in, one optimizer step out; it knows no algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge.batcher import Batch
from forge.config import LossConfig, OptimizerConfig
from forge.kernels import LogProb, token_logprobs
from forge.losses import PolicyLoss, kl_estimate, policy_loss
from forge.models import Decoder
from forge.optimizer import Optimizer
from forge.packing import pack

__all__ = ["Trainer", "forward"]


class Trainer:
    """Trains `decoder` in place; `version` counts its steps and is the version of its weights."""

    def __init__(
        self,
        decoder: Decoder,
        optimizer: OptimizerConfig | None = None,
        loss: LossConfig | None = None,
        *,
        temperature: float = 1.0,
        log_prob: LogProb | None = None,
    ) -> None:
        self.decoder = decoder
        self.optimizer = Optimizer(decoder, optimizer or OptimizerConfig())
        self.loss = loss or LossConfig()
        self.temperature = temperature
        self.version = 0
        self._log_prob = log_prob

    def train(self, batch: Batch) -> dict[str, float]:
        """One step on `batch`, in micro-batches that give the gradient of the whole; returns its metrics."""
        totals: dict[str, float] = {}
        for piece in batch.split(self.loss.micro_batch or len(batch.token_ids)):
            logprobs, entropy = self._forward(piece)
            result = self._loss(logprobs, piece)
            result.numerator.backward()  # type: ignore[no-untyped-call]
            _add(totals, _sums(result, logprobs.detach(), entropy, piece))
        grad_norm = self.optimizer.step(max(totals["denominator"], 1.0))
        self.version += 1
        return {**_means(totals), "grad_norm": grad_norm}

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities f32[N, T − 1] of a batch's sampled tokens under the present weights, 0 elsewhere."""
        return self._forward(batch)[0]

    def parity(self, batch: Batch) -> float:
        """Largest difference between the generator's log-probabilities and this trainer's of the same tokens."""
        return float(((self.logprobs(batch) - batch.old_logprobs).abs() * batch.mask).max())

    def save(self, path: Path) -> None:
        """Write weights, optimizer, version and torch's random state to one file."""
        state = {"model": self.decoder.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "version": self.version, "random": torch.get_rng_state()}, path)

    def load(self, path: Path) -> None:
        """Go on exactly where `save` left off."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.decoder.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
        torch.set_rng_state(state["random"])

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return forward(self.decoder, batch, self.temperature, self._log_prob)

    def _loss(self, logprobs: Tensor, batch: Batch) -> PolicyLoss:
        config = self.loss
        return policy_loss(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.mask,
            clip=(config.clip[0], config.clip[1]) if config.clip else None,
            aggregate=config.aggregate,
            ratio=config.ratio,
            importance=None if config.importance == "none" else config.importance,
            bounds=config.bounds,
        )


def forward(
    decoder: Decoder, batch: Batch, temperature: float = 1.0, log_prob: LogProb | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities f32[N, T − 1] of the sampled tokens, 0 elsewhere, and the K sampled places' entropies f32[K].

    Only the K places meet the head and the softmax, which cost most where the vocabulary is large.
    """
    packed = pack(batch)
    hidden = decoder.hidden(packed.token_ids, mask=packed.segments).flatten(0, 1)
    logits = decoder.logits(hidden[packed.places[batch.mask]])
    chosen = token_logprobs(logits, batch.token_ids[:, 1:][batch.mask], temperature, kernel=log_prob)
    spread = chosen.new_zeros(batch.mask.shape).masked_scatter(batch.mask, chosen)
    return spread, _entropy(logits.detach() / temperature)


def _entropy(logits: Tensor) -> Tensor:
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def _sums(result: PolicyLoss, logprobs: Tensor, entropy: Tensor, batch: Batch) -> dict[str, float]:
    """What is added up over micro-batches."""
    difference = (logprobs - batch.old_logprobs).masked_fill(~batch.mask, 0.0)
    kept = float(result.kept.sum())
    return {
        "numerator": float(result.numerator.detach()),
        "denominator": float(result.denominator),
        "tokens": float(batch.mask.sum()),
        "kept": kept,
        "clipped": float(result.clip_share) * kept,
        "entropy": float(entropy.sum()),
        "mismatch_kl": float(kl_estimate(batch.old_logprobs, logprobs, batch.mask).sum()),
        "difference": float(difference.abs().max()),
    }


def _add(totals: dict[str, float], sums: Mapping[str, float]) -> None:
    for name, value in sums.items():
        before = totals.get(name, 0.0)
        totals[name] = max(before, value) if name == "difference" else before + value


def _means(totals: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step; `mismatch_kl` estimates KL(generator ‖ trainer) from the generator's tokens."""
    tokens = max(totals["tokens"], 1.0)
    return {
        "loss": totals["numerator"] / max(totals["denominator"], 1.0),
        "entropy": totals["entropy"] / tokens,
        "mismatch_kl": totals["mismatch_kl"] / tokens,
        "mismatch_max": totals["difference"],
        "clip_share": totals["clipped"] / max(totals["kept"], 1.0),
        "kept_share": totals["kept"] / tokens,
        "tokens/trained": totals["tokens"],
    }
