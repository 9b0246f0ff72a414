"""Safetensors files ↔ the parameters of a decoder: one file or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from forge.errors import ModelFormatError
from forge.models.config import DecoderConfig
from forge.models.decoder import Decoder
from forge.models.layers import RmsNorm

__all__ = ["assemble", "read", "write"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def assemble(
    config: DecoderConfig, tensors: Mapping[str, Tensor], source: str, rms_norm: RmsNorm | None = None
) -> Decoder:
    """A decoder that takes over `tensors` (named as in Hugging Face) as its parameters, without a copy."""
    with torch.device("meta"):
        decoder = Decoder(config, rms_norm=rms_norm)
    found = {name: tensor for name, tensor in tensors.items() if not _derived(name, config)}
    _check_fit(found, {name: parameter.shape for name, parameter in decoder.named_parameters()}, source)
    decoder.load_state_dict(found, assign=True)
    return decoder.requires_grad_(True)


def _derived(name: str, config: DecoderConfig) -> bool:
    """Whether a stored tensor only repeats what the decoder computes: old rotary tables, a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def _check_fit(found: Mapping[str, Tensor], expected: Mapping[str, torch.Size], source: str) -> None:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    wrong = sorted(name for name in expected.keys() & found.keys() if found[name].shape != expected[name])
    if missing or extra or wrong:
        raise ModelFormatError(
            f"{source}: the tensors do not fit the configuration: missing {missing[:4]}, unknown {extra[:4]}, "
            f"of another shape {wrong[:4]}; is the configuration the one these weights were saved with?"
        )


def read(directory: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a directory, converted to `dtype`."""
    tensors = {}
    for file in _files(directory):
        if not file.exists():
            raise ModelFormatError(f"{file} does not exist; forge reads only weights stored as safetensors")
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (not a mapping)
                tensors[name] = stored.get_tensor(name).to(dtype)
    return tensors


def _files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if not index.exists():
        return [directory / _SINGLE]
    return [directory / file for file in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def write(decoder: Decoder, directory: Path, shard_bytes: int) -> None:
    """Store the parameters in their own dtype; more than `shard_bytes` go into several files with an index."""
    shards = _shards(decoder, shard_bytes)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [_SINGLE]
        (directory / _INDEX).unlink(missing_ok=True)
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, directory / name, metadata={"format": "pt"})
    if len(shards) > 1:
        where = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        size = sum(parameter.nbytes for parameter in decoder.parameters())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (directory / _INDEX).write_text(json.dumps(index, indent=2))


def _shards(decoder: Decoder, shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, parameter in decoder.named_parameters():
        if used and used + parameter.nbytes > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][name] = parameter.detach().cpu().clone(memory_format=torch.contiguous_format)
        used += parameter.nbytes
    return shards
