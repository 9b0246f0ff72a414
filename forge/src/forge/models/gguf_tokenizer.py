"""The byte-level BPE tokenizer that a GGUF file's metadata describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from forge.errors import ModelFormatError
from forge.tokenizer import Tokenizer

__all__ = ["read_tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types that are matched in the text before any merging


def read_tokenizer(fields: Mapping[str, Any], source: str) -> Tokenizer:
    """A tokenizer from the metadata `fields` of a GGUF file; `ModelFormatError` if it is of another kind."""
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise ModelFormatError(
            f"{source}: tokenizer {kind!r} with pre-tokenizer {split!r}; forge reads 'gpt2' with {sorted(_SPLITS)}"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    backend = tokenizers.Tokenizer(_bpe(tokens, fields["tokenizer.ggml.merges"]))
    backend.pre_tokenizer = _SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    _add(backend, tokens, fields["tokenizer.ggml.token_type"])
    bos = fields.get("tokenizer.ggml.bos_token_id")
    if fields.get("tokenizer.ggml.add_bos_token") and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return Tokenizer(
        backend,
        eos_id=fields["tokenizer.ggml.eos_token_id"],
        pad_id=fields.get("tokenizer.ggml.padding_token_id"),
        bos_id=bos,
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _bpe(tokens: list[str], merges: list[str]) -> models.BPE:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    return models.BPE({token: index for index, token in enumerate(tokens)}, pairs, fuse_unk=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    """Every digit a word of its own, then GPT-2's split."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


_SPLITS = {"smollm": _smollm, "gpt-2": _gpt2}


def _add(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Declare the tokens that are matched whole: control tokens are special, user-defined ones are text."""
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])
