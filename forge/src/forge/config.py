"""The configuration of a run: frozen dataclasses, one a part, validated as they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from forge.errors import ConfigError

__all__ = [
    "GrpoConfig",
    "KernelConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "SamplingConfig",
    "TaskConfig",
    "WarmUpConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Hugging Face directory at `path`, or else a small decoder of these sizes over the task's characters."""

    path: str = ""
    hidden_size: int = 128
    intermediate_size: int = 352
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 0
    max_position_embeddings: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """A task of forge's by name, or "package.module:Class" for your own; `options` go to its constructor."""

    name: str = "sort"
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How completions are sampled for training; the trainer's log-probabilities use the same temperature."""

    temperature: float = 1.0
    max_tokens: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(
                f"temperature is {self.temperature}; training needs it positive", key="sampling.temperature"
            )
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; sample at least one", key="sampling.max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW; the rate rises to `lr` over `warm_up_steps`; `max_norm` 0 leaves gradients unclipped."""

    lr: float = 1e-4
    warm_up_steps: int = 10
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpConfig:
    """Supervised fine-tuning on right answers before any reinforcement; 0 `max_steps` leaves it out.

    It ends when `until` of a few training problems, sampled at temperature 1, are solved: a start from which groups
    have both right and wrong answers.
    """

    max_steps: int = 0
    batch_size: int = 64
    until: float = 0.15
    check_every: int = 5
    lr: float = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The arguments of `forge.losses.policy_loss`; an empty `clip` is none, and `aggregate` may be a length."""

    clip: tuple[float, ...] = (0.2, 0.2)
    aggregate: Literal["token", "sequence"] | int = "token"
    ratio: Literal["token", "sequence"] = "token"
    importance: Literal["none", "truncate", "mask"] = "none"
    bounds: tuple[float, float] = (0.5, 2.0)
    micro_batch: int = 0  # samples at once; 0 is all of them

    def __post_init__(self) -> None:
        if len(self.clip) not in (0, 2):
            raise ConfigError(f"clip is {self.clip}; give low and high, or nothing", key="loss.clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Kernels by name ("helium::rms_norm") for hot operations; "" is plain torch."""

    rms_norm: str = ""
    log_prob: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoConfig:
    """A run of `forge.recipes.grpo`.

    A step trains `groups_per_step` prompts with `group_size` completions each. `max_staleness` is how many versions
    older than the weights it trains a completion may be: 0 alternates, 1 generates while it trains. `sync` is
    "message" or the name of a collectives backend. `threads` are torch's in each process, 0 leaves them alone.
    """

    steps: int = 200
    groups_per_step: int = 8
    group_size: int = 8
    algorithm: str = "grpo"
    max_staleness: int = 0
    seed: int = 0
    generators: int = 1
    launcher: str = "inline"
    sync: str = "message"
    sync_host: str = "127.0.0.1"
    sync_timeout: float = 60.0
    threads: int = 0
    eval_every: int = 0
    parity_tolerance: float = 1e-3
    out: str = "runs"
    name: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    kernels: KernelConfig = field(default_factory=KernelConfig)

    def __post_init__(self) -> None:
        for key in ("groups_per_step", "group_size", "generators"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; it must be at least 1", key=key)
        for key in ("steps", "max_staleness", "threads", "eval_every"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key} is {getattr(self, key)}; it cannot be negative", key=key)
