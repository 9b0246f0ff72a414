"""Text to token ids and back, with the chat template that belongs to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forge.errors import TokenizerError

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["Tokenizer"]


class Tokenizer:
    """A `tokenizers` backend with the ids of its padding, beginning and end tokens and a chat template.

    `pad_id` may equal `eos_id` (as in SmolLM2 and Qwen): nothing in forge derives a mask from token values.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_id: int,
        pad_id: int | None = None,
        bos_id: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.eos_id = eos_id
        self.pad_id = eos_id if pad_id is None else pad_id
        self.bos_id = bos_id
        self.chat_template = chat_template

    @classmethod
    def characters(cls, alphabet: str) -> Self:
        """One token a character, after `<pad>` 0, `<bos>` 1 and `<eos>` 2: enough for arithmetic and sorting tasks."""
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise TokenizerError(f"alphabet {alphabet!r} is empty or repeats a character; give each character once")
        specials = ["<pad>", "<bos>", "<eos>"]
        vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocab))
        backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(specials)
        return cls(backend, pad_id=0, bos_id=1, eos_id=2)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens spelt in the text are recognised, others only added when asked for."""
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except Exception as error:  # the backend raises nothing more specific
            raise TokenizerError(
                f"cannot encode {text[:80]!r}: {error}; use only what the vocabulary of {len(self)} tokens holds"
            ) from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 come out as replacement characters."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int | None) -> str | None:
        """How the vocabulary spells a token; None for None and for ids it does not have."""
        return None if token_id is None else self.backend.id_to_token(token_id)

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool) -> str:
        """The prompt that the model was trained to see for `messages` (each with `role` and `content`).

        Encode the result without adding special tokens: the template spells its own. Raises `TokenizerError` if there
        is no template, or it refuses the messages.
        """
        from jinja2.exceptions import TemplateError

        if self.chat_template is None:
            raise TokenizerError(
                "this tokenizer has no chat template; set `chat_template` or write the prompt yourself"
            )
        try:
            return _compile(self.chat_template).render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.token(self.bos_id) or "",
                eos_token=self.token(self.eos_id) or "",
                pad_token=self.token(self.pad_id) or "",
            )
        except TemplateError as error:
            roles = [message.get("role") for message in messages]
            raise TokenizerError(
                f"the chat template does not render messages of the roles {roles}: {error}; change one of them"
            ) from error


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    """Compile a chat template in jinja's sandbox, with the whitespace rules and helpers templates expect."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)
