"""Hugging Face's config.json ↔ `DecoderConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge.errors import ModelFormatError
from forge.models.config import DecoderConfig

__all__ = ["from_settings", "to_settings"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def from_settings(settings: Mapping[str, Any], source: str) -> DecoderConfig:
    """The shape that a parsed config.json describes; `ModelFormatError` if forge would compute something else."""
    kind = settings.get("model_type")
    if kind not in _ARCHITECTURES:
        raise ModelFormatError(
            f"{source}: model_type {kind!r} is not one that forge decodes; it reads {sorted(_ARCHITECTURES)}"
        )
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    _refuse_variants(settings, rope, source)
    eos = settings.get("eos_token_id")
    return DecoderConfig(
        vocab_size=settings["vocab_size"],
        hidden_size=settings["hidden_size"],
        intermediate_size=settings["intermediate_size"],
        num_layers=settings["num_hidden_layers"],
        num_heads=settings["num_attention_heads"],
        num_kv_heads=settings.get("num_key_value_heads") or 0,
        head_dim=settings.get("head_dim") or (128 if kind == "qwen3" else 0),
        rope_theta=float(rope.get("rope_theta") or settings.get("rope_theta") or 10000.0),
        rms_norm_eps=settings.get("rms_norm_eps", 1e-6),
        max_position_embeddings=settings.get("max_position_embeddings", 2048),
        tie_word_embeddings=settings.get("tie_word_embeddings", False),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        pad_id=settings.get("pad_token_id"),
        bos_id=settings.get("bos_token_id"),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def _refuse_variants(settings: Mapping[str, Any], rope: Mapping[str, Any], source: str) -> None:
    for key, value, wanted in (
        ("hidden_act", settings.get("hidden_act", "silu"), "silu"),
        ("rope type", rope.get("rope_type", rope.get("type", "default")), "default"),
        ("attention_bias", bool(settings.get("attention_bias")), False),
        ("mlp_bias", bool(settings.get("mlp_bias")), False),
        ("use_sliding_window", bool(settings.get("use_sliding_window")), False),
    ):
        if value != wanted:
            raise ModelFormatError(f"{source}: {key} is {value!r}; forge's decoder computes only {wanted!r}")


def to_settings(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """What config.json says of a decoder whose weights are stored as `dtype` ("float32", …)."""
    if config.qkv_bias and config.qk_norm:
        raise ModelFormatError(
            "a decoder with both qkv_bias and qk_norm has no Hugging Face architecture to be saved as"
        )
    kind = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None,
    }
