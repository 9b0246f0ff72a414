"""The exported decode step: it equals the engine, and holds nothing but core operations."""

import operator

import pytest
import torch

from forge.export import decode_step
from forge.generation import Engine, Request, SamplingParams
from forge.models import Decoder, DecoderConfig
from forge.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = Tokenizer.characters("0123456789=ab")
SHAPES = {
    "grouped, tied": {"num_heads": 4, "num_kv_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"num_heads": 3, "qkv_bias": True},
    "qwen3": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 8, "qk_norm": True},
}


@pytest.fixture(params=SHAPES, name="decoder")
def _decoder(request: pytest.FixtureRequest) -> Decoder:
    config = DecoderConfig(
        vocab_size=len(TOKENIZER), hidden_size=24, intermediate_size=40, num_layers=2, **SHAPES[request.param]
    )
    generator = torch.Generator().manual_seed(0)
    decoder = Decoder(config).requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


def test_stepping_equals_the_engine(decoder: Decoder) -> None:
    prompt = TOKENIZER.encode("12=")
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    [completion] = Engine(decoder, TOKENIZER).generate([Request(prompt, params)])
    step, _ = decode_step(decoder, 16)
    tokens = list(prompt)
    for position in range(14):
        logits = step(torch.tensor([[tokens[position]]]), torch.tensor(position))
        assert logits.shape == (1, len(TOKENIZER))
        if position >= 2:
            tokens.append(int(logits.argmax()))
    assert tokens[3:] == completion.token_ids


def test_going_back_overwrites_what_came_after(decoder: Decoder) -> None:
    step, _ = decode_step(decoder, 8)
    first = [step(torch.tensor([[token]]), torch.tensor(position)) for position, token in enumerate((5, 6, 7))]
    step(torch.tensor([[9]]), torch.tensor(1))
    again = [step(torch.tensor([[token]]), torch.tensor(position)) for position, token in ((1, 6), (2, 7))]
    assert torch.equal(again[0], first[1])
    assert torch.equal(again[1], first[2])


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_the_exported_graph_is_core_aten_and_mutates_only_its_caches(decoder: Decoder) -> None:
    step, example = decode_step(decoder, 8)
    program = torch.export.export(step, example, strict=False).run_decompositions()
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"} - {operator.getitem}
    assert [str(target) for target in targets if torch.Tag.core not in target.tags] == []
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    assert mutated == {f"{kind}_cache_{layer}" for kind in "kv" for layer in range(2)}
    fresh, _ = decode_step(decoder, 8)
    run = program.module()
    for position, token in enumerate((5, 6, 7)):
        arguments = torch.tensor([[token]]), torch.tensor(position)
        torch.testing.assert_close(run(*arguments), fresh(*arguments), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_a_decoder_that_generates_exports_its_own_parameters_and_the_same_operations(decoder: Decoder) -> None:
    step, example = decode_step(decoder, 8)
    before = torch.export.export(step, example, strict=False)
    Engine(decoder, TOKENIZER)
    with torch.no_grad():
        after = torch.export.export(step, example, strict=False)
    assert [str(node.target) for node in after.graph.nodes] == [str(node.target) for node in before.graph.nodes]
    assert not after.graph_signature.lifted_tensor_constants


def test_parameters_are_shared_with_the_decoder(decoder: Decoder) -> None:
    step, example = decode_step(decoder, 8)
    before = step(*example)
    decoder.head.mul_(2.0)
    assert not torch.allclose(step(*example), before)


@pytest.mark.parametrize("length", [0, 4096])
def test_the_length_must_have_positions(length: int) -> None:
    decoder = Decoder(DecoderConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1))
    with pytest.raises(ValueError, match=f"max_seq_len is {length}"):
        decode_step(decoder, length)
