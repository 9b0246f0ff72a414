"""forge's decoder beside transformers: directories go both ways, and both compute the same logits."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from forge.generation import Engine, Request, SamplingParams
from forge.models import load, save
from forge.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = Tokenizer.characters("0123456789=+ ab")
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PEERS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama, tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}


@pytest.fixture(params=PEERS, name="peer")
def _peer(request: pytest.FixtureRequest) -> PreTrainedModel:
    config, model, more = PEERS[request.param]
    peer = model(config(**SIZES, **more)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in peer.parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
    return peer


def token_ids() -> torch.Tensor:
    return torch.randint(3, len(TOKENIZER), (3, 17), generator=torch.Generator().manual_seed(1))


def test_what_transformers_saves_forge_loads(peer: PreTrainedModel, tmp_path: Path) -> None:
    peer.save_pretrained(tmp_path)
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    decoder, tokenizer = load(tmp_path)
    ids = token_ids()
    with torch.no_grad():
        torch.testing.assert_close(decoder(ids), peer(ids).logits, atol=1e-5, rtol=1e-5)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 20_000])
def test_what_forge_saves_transformers_loads(peer: PreTrainedModel, tmp_path: Path, shard_bytes: int) -> None:
    (tmp_path / "theirs").mkdir()
    peer.save_pretrained(tmp_path / "theirs")
    TOKENIZER.backend.save(str(tmp_path / "theirs" / "tokenizer.json"))
    decoder, tokenizer = load(tmp_path / "theirs")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}={% endfor %}"
    save(decoder, tokenizer, tmp_path / "ours", shard_bytes=shard_bytes)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(peer)
    ids = token_ids()
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, peer(ids).logits, atol=1e-5, rtol=1e-5)
    # For qwen2 and qwen3, AutoTokenizer of transformers 5 puts Qwen's own pre-tokenizer over what the file says.
    loader = AutoTokenizer if peer.config.model_type == "llama" else PreTrainedTokenizerFast
    theirs = loader.from_pretrained(tmp_path / "ours")
    assert theirs("12=3 ab").input_ids == tokenizer.encode("12=3 ab")
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)
    messages = [{"role": "user", "content": "12"}]
    assert theirs.apply_chat_template(messages, tokenize=False) == "12="


def test_left_padding_means_the_same_to_both(peer: PreTrainedModel, tmp_path: Path) -> None:
    peer.save_pretrained(tmp_path)
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    decoder, _ = load(tmp_path)
    ids, mask = token_ids(), torch.arange(17) >= torch.tensor([[0], [5], [9]])
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        theirs = peer(ids, attention_mask=mask.long(), position_ids=positions).logits
        torch.testing.assert_close(decoder(ids, mask=mask)[mask], theirs[mask], atol=1e-5, rtol=1e-5)


def test_greedy_generation_is_the_same(peer: PreTrainedModel, tmp_path: Path) -> None:
    peer.save_pretrained(tmp_path)
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    decoder, tokenizer = load(tmp_path)
    ids = token_ids()
    theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)[:, 17:]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    completions = Engine(decoder, tokenizer).generate([Request(row, params) for row in ids.tolist()])
    for row, completion in zip(theirs.tolist(), completions, strict=True):
        assert row[: len(completion.token_ids)] == completion.token_ids
        assert set(row[len(completion.token_ids) :]) <= {tokenizer.pad_id}
