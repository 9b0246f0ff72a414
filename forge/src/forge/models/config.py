"""The shape of a decoder: one frozen dataclass for the Llama, SmolLM2, Qwen2 and Qwen3 families."""

from dataclasses import dataclass

__all__ = ["DecoderConfig"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and constants of a decoder-only transformer with rotary positions, RMS norms and a gated MLP.

    `num_kv_heads=0` means as many as `num_heads`; `head_dim=0` means `hidden_size // num_heads`; both are filled in
    on construction. `qkv_bias` is Qwen2's bias on the three projections, `qk_norm` is Qwen3's norm of each head's
    queries and keys. `eos_ids` are all the tokens that end a completion; the first is the one a tokenizer appends.
    Raises `ValueError` for sizes that do not fit each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    pad_id: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_kv_heads", self.num_kv_heads or self.num_heads)
        if not self.head_dim and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; give head_dim"
            )
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_heads)
        self._check()

    def _check(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}; "
                "each key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")
