"""The decoder: one plain-torch forward that trainer, generator and export share."""

from __future__ import annotations

from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.models.attention import causal, positions_of
from forge.models.config import DecoderConfig
from forge.models.layers import Attend, Block, Norm, RmsNorm, _Embedding, _Linear

__all__ = ["Decoder"]


class _Body(nn.Module):
    """What Hugging Face calls `model`: everything but the head."""

    def __init__(self, config: DecoderConfig, kernel: RmsNorm | None) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, kernel) for _ in range(config.num_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, kernel)


class Decoder(nn.Module):
    """A causal language model of the Llama, SmolLM2, Qwen2 or Qwen3 family.

    Parameters are named as Hugging Face names them; tied embeddings have no `lm_head`. Construction fills the
    parameters from seed 0 and leaves torch's global generator alone; under `torch.device("meta")` it fills nothing.
    `rms_norm` replaces the norms of the residual stream by a kernel `(x[m, n], weight[n], eps) -> [m, n]`.
    """

    def __init__(self, config: DecoderConfig, *, rms_norm: RmsNorm | None = None) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config, rms_norm)
        self.lm_head = (
            None if config.tie_word_embeddings else _Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init(0)

    def init(self, seed: int) -> Self:
        """Fill all parameters: norms with 1, biases with 0, the rest with N(0, 0.02²) drawn from `seed` alone."""
        generator: torch.Generator | None = None
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            generator = generator or torch.Generator(parameter.device).manual_seed(seed)
            with torch.no_grad():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(0.0, 0.02, generator=generator)
        return self

    def forward(
        self,
        token_ids: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Attend | None = None,
    ) -> Tensor:
        """Logits f32[B, T, V] of the token after each of `token_ids` int64[B, T].

        A batch padded on the right needs no mask: a token never sees what comes after it. Otherwise `mask` [B, T] is
        bool (real or padding) or integer (which packed sequence a token belongs to): a token sees the earlier tokens
        with its own value, and its position counts from the first of them unless `positions` int64[B, T] says else.
        `cache` takes over attention (and then `positions` is needed, and `mask` is its own business).
        """
        return self.logits(self.hidden(token_ids, positions=positions, mask=mask, cache=cache))

    def hidden(
        self,
        token_ids: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Attend | None = None,
    ) -> Tensor:
        """The last hidden state [B, T, hidden_size] after the final norm; arguments as for `forward`."""
        if positions is None:
            positions = positions_of(token_ids, mask)
        cos, sin = self.rope(positions)
        return self.decode(token_ids, cos, sin, cache if cache is not None else causal(token_ids, mask))

    def decode(self, token_ids: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """`hidden` for a caller that holds its own rotary tables ([B, T, 1, head_dim] each) and cache."""
        x = self.model.embed_tokens(token_ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, layer, attend)
        return self.model.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits f32[..., V] of hidden states [..., hidden_size]."""
        logits = F.linear(hidden, self.head)
        return logits if logits.dtype == torch.float32 else logits.float()

    @property
    def blocks(self) -> list[Block]:
        """The decoder's layers, first to last."""
        return cast("list[Block]", list(self.model.layers))

    @property
    def head(self) -> Tensor:
        """The output matrix [V, hidden_size]: the head's own, or the tied embedding."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables ([..., 1, head_dim] each) of `positions` int64[...], computed in f32; see `layers.rotate`."""
        config, dtype = self.config, self.head.dtype
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device) / config.head_dim
        angle = positions.unsqueeze(-1).unsqueeze(-1) * (1.0 / config.rope_theta**exponent)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
