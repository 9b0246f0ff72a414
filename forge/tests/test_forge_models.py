"""The decoder: masks and positions, initial weights, packing, and Hugging Face directories."""

import json
from dataclasses import replace

import pytest
import torch

from forge.errors import ModelFormatError
from forge.models import Decoder, DecoderConfig, load, save
from forge.models.packing import pack
from forge.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

TINY = DecoderConfig(
    vocab_size=16,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    max_position_embeddings=64,
    pad_id=0,
    bos_id=1,
    eos_ids=(2,),
)
FAMILIES = {
    "llama": TINY,
    "smollm2": replace(TINY, tie_word_embeddings=True),
    "qwen2": replace(TINY, qkv_bias=True),
    "qwen3": replace(TINY, qk_norm=True, head_dim=8),
}


def lively(config: DecoderConfig, seed: int = 0) -> Decoder:
    """A decoder whose every parameter matters: norms and biases too are random."""
    decoder = Decoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


@pytest.fixture(params=FAMILIES, name="decoder")
def _decoder(request: pytest.FixtureRequest) -> Decoder:
    return lively(FAMILIES[request.param])


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 16, (rows, length), generator=torch.Generator().manual_seed(1))


def test_config_fills_in_heads_and_refuses_what_does_not_fit() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=24, intermediate_size=8, num_layers=1, num_heads=4)
    assert (config.num_kv_heads, config.head_dim) == (4, 6)
    for wrong in ({"num_heads": 5}, {"num_kv_heads": 3}, {"head_dim": 7}, {"num_layers": 0}):
        with pytest.raises(ValueError, match=r"num_heads|num_layers|head_dim"):
            replace(config, **{"head_dim": 0, **wrong})


def test_a_token_sees_nothing_that_comes_after_it(decoder: Decoder) -> None:
    tokens = ids(2, 9)
    changed = tokens.clone()
    changed[:, 6:] = 3
    with torch.no_grad():
        assert torch.equal(decoder(tokens)[:, :6], decoder(changed)[:, :6])
        assert not torch.allclose(decoder(tokens)[:, 8], decoder(changed)[:, 8])


def test_left_padding_changes_no_real_logit(decoder: Decoder) -> None:
    tokens = ids(1, 7)
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.int64), tokens), 1)
    mask = torch.arange(11)[None] >= 4
    with torch.no_grad():
        torch.testing.assert_close(decoder(padded, mask=mask)[:, 4:], decoder(tokens), atol=1e-5, rtol=1e-5)
        assert decoder(padded, mask=mask).isfinite().all()


def test_packed_sequences_do_not_see_each_other(decoder: Decoder) -> None:
    first, second = ids(1, 5), ids(1, 8)
    packed = torch.cat((first, second), 1)
    segments = torch.tensor([[1] * 5 + [2] * 8])
    with torch.no_grad():
        both = decoder(packed, mask=segments)
        torch.testing.assert_close(both[:, :5], decoder(first), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(both[:, 5:], decoder(second), atol=1e-5, rtol=1e-5)


def test_positions_matter_only_relatively(decoder: Decoder) -> None:
    tokens = ids(2, 6)
    steps = torch.arange(6).expand(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens, positions=steps + 17), decoder(tokens), atol=1e-4, rtol=1e-4)
        assert not torch.allclose(decoder(tokens, positions=steps * 2), decoder(tokens), atol=1e-3)


def test_initial_weights_come_from_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = Decoder(TINY), Decoder(TINY).init(0), Decoder(TINY).init(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head, other.head)
    assert one.model.norm.weight.eq(1).all()
    assert 0.015 < one.head.std().item() < 0.025


def test_every_parameter_gets_a_gradient(decoder: Decoder) -> None:
    decoder(ids(2, 5)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in decoder.parameters())


def test_a_given_norm_is_used(decoder: Decoder) -> None:
    shapes = []

    def kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    with_kernel = Decoder(decoder.config, rms_norm=kernel)
    with_kernel.load_state_dict(decoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(with_kernel(ids(2, 5)), decoder(ids(2, 5)))
    assert shapes == [(10, 24)] * 5


def test_packing_shares_memory_with_the_parameters(decoder: Decoder) -> None:
    tokens = ids(2, 5)
    with torch.no_grad():
        before = decoder(tokens)
        pack(decoder)
        torch.testing.assert_close(decoder(tokens), before, atol=1e-5, rtol=1e-5)
        decoder.model.layers[1].self_attn.v_proj.weight.mul_(2.0)
        decoder.model.layers[0].mlp.up_proj.weight.mul_(2.0)
        packed = decoder(tokens)
    torch.testing.assert_close(packed, decoder(tokens).detach(), atol=1e-5, rtol=1e-5)  # with gradients: unpacked
    assert not torch.allclose(packed, before, atol=1e-2)


def test_packing_again_follows_parameters_that_moved(decoder: Decoder) -> None:
    pack(decoder)
    kept = decoder.model.layers[0].mlp.packed[0]
    pack(decoder)
    assert decoder.model.layers[0].mlp.packed[0].data_ptr() == kept.data_ptr()
    up = decoder.model.layers[0].mlp.up_proj.weight
    up.data = up.data.clone().mul_(3.0)
    pack(decoder)
    torch.testing.assert_close(decoder.model.layers[0].mlp.packed[0][40:], kept[40:] * 3.0)


def test_parameters_in_a_flat_buffer_are_packed_where_they_are() -> None:
    decoder = lively(TINY)
    flat = torch.cat([parameter.detach().flatten() for parameter in decoder.parameters()])
    offset = 0
    for parameter in decoder.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    pack(decoder)
    storage = flat.untyped_storage().data_ptr()
    assert all(parameter.untyped_storage().data_ptr() == storage for parameter in decoder.parameters())
    assert decoder.model.layers[0].self_attn.packed[0].shape == (48, 24)


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 6_000])
def test_a_saved_directory_loads_as_it_was(decoder: Decoder, tmp_path, shard_bytes: int) -> None:
    tokenizer = Tokenizer.characters("0123456789=ab")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}={% endfor %}"
    save(decoder, tokenizer, tmp_path, shard_bytes=shard_bytes)
    again, same = load(tmp_path)
    assert again.config == decoder.config
    assert torch.equal(again(ids(2, 6)), decoder(ids(2, 6)))
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if shard_bytes > 10_000 else len(_shards(tmp_path)))
    assert same.encode("12=<eos>") == tokenizer.encode("12=<eos>")
    assert (same.pad_id, same.bos_id, same.eos_id) == (0, 1, 2)
    assert same.apply_chat_template([{"role": "user", "content": "7"}], add_generation_prompt=True) == "7="


def _shards(directory) -> set[str]:
    return set(json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"].values())


def test_loading_converts_to_the_dtype_asked_for(tmp_path) -> None:
    save(lively(TINY).to(torch.bfloat16), Tokenizer.characters("0123456789=ab"), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert load(tmp_path)[0].head.dtype == torch.float32
    assert load(tmp_path, dtype=torch.bfloat16)[0].head.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope type is 'llama3'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_hidden_layers": 3}, r"missing \['model.layers.2"),
        ({"num_hidden_layers": 1}, r"unknown \['model.layers.1"),
        ({"intermediate_size": 41}, r"of another shape \['model.layers.0.mlp"),
    ],
)
def test_a_directory_that_means_something_else_is_refused(tmp_path, change: dict[str, object], message: str) -> None:
    save(lively(TINY), Tokenizer.characters("0123456789=ab"), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(ModelFormatError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path, file: str) -> None:
    save(lively(TINY), Tokenizer.characters("0123456789=ab"), tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ModelFormatError, match=f"{file} does not exist"):
        load(tmp_path)
