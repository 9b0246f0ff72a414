"""Hugging Face directories: config.json, safetensors, tokenizer.json and the chat template, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch

from forge.errors import ModelFormatError
from forge.models import hf_config, weights
from forge.models.config import DecoderConfig
from forge.models.decoder import Decoder
from forge.models.layers import RmsNorm
from forge.tokenizer import Tokenizer

__all__ = ["load", "save"]


def load(
    directory: str | Path, *, dtype: torch.dtype = torch.float32, rms_norm: RmsNorm | None = None
) -> tuple[Decoder, Tokenizer]:
    """Read a decoder (parameters converted to `dtype`) and its tokenizer; raises `ModelFormatError`."""
    directory = Path(directory)
    config = hf_config.from_settings(_read_json(directory / "config.json"), str(directory))
    tokenizer = _load_tokenizer(directory, config)
    return weights.assemble(config, weights.read(directory, dtype), str(directory), rms_norm), tokenizer


def save(decoder: Decoder, tokenizer: Tokenizer, directory: str | Path, *, shard_bytes: int = 5_000_000_000) -> None:
    """Write a directory that `load` and `transformers` read; the weights keep the decoder's dtype."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights.write(decoder, directory, shard_bytes)
    _write_json(directory / "config.json", hf_config.to_settings(decoder.config, str(decoder.head.dtype)[6:]))
    tokenizer.backend.save(str(directory / "tokenizer.json"))
    named = {"pad_token": tokenizer.pad_id, "bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": decoder.config.max_position_embeddings,
        "chat_template": tokenizer.chat_template,
        **{name: tokenizer.token(token_id) for name, token_id in named.items()},
    }
    _write_json(
        directory / "tokenizer_config.json", {key: value for key, value in settings.items() if value is not None}
    )


def _load_tokenizer(directory: Path, config: DecoderConfig) -> Tokenizer:
    file = directory / "tokenizer.json"
    if not file.exists():
        raise ModelFormatError(f"{file} does not exist; forge reads only tokenizers stored as tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(str(file))
    described = directory / "tokenizer_config.json"
    settings = _read_json(described) if described.exists() else {}
    eos = _token_id(backend, settings.get("eos_token"), config.eos_ids[0] if config.eos_ids else None)
    if eos is None:
        raise ModelFormatError(f"{directory}: neither tokenizer_config.json nor config.json names an end token")
    template = directory / "chat_template.jinja"
    return Tokenizer(
        backend,
        eos_id=eos,
        pad_id=_token_id(backend, settings.get("pad_token"), config.pad_id),
        bos_id=_token_id(backend, settings.get("bos_token"), config.bos_id),
        chat_template=template.read_text() if template.exists() else settings.get("chat_template"),
    )


def _token_id(backend: tokenizers.Tokenizer, token: Any, otherwise: int | None) -> int | None:
    """The id of a token as tokenizer_config.json gives it: spelt, or described by a dictionary, or not at all."""
    spelt = token["content"] if isinstance(token, dict) else token
    found = None if spelt is None else backend.token_to_id(spelt)
    return otherwise if found is None else found


def _read_json(file: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ModelFormatError(f"{file} does not exist; is {file.parent} a Hugging Face model directory?") from error
    except ValueError as error:
        raise ModelFormatError(f"{file} is not JSON: {error}; was it downloaded whole?") from error
    return settings


def _write_json(file: Path, settings: dict[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
