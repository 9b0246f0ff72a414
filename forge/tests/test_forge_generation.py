"""The engine: log-probabilities, batches, seeds, ends, and weights that change while it runs."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.errors import RequestError
from forge.generation import Completion, Engine, Request, SamplingParams
from forge.kernels import token_logprobs
from forge.models import Decoder, DecoderConfig
from forge.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = Tokenizer.characters("0123456789=ab")


def lively(**changes: object) -> Decoder:
    shape = {"hidden_size": 24, "intermediate_size": 40, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, **changes}
    decoder = Decoder(DecoderConfig(vocab_size=len(TOKENIZER), max_position_embeddings=256, eos_ids=(2,), **shape))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(0.0, 0.25, generator=generator)
    return decoder


DECODER = lively()


def expected(decoder: Decoder, completion: Completion, temperature: float) -> tuple[list[float], list[int]]:
    """Log-probabilities and greedy tokens of a completion by one full forward."""
    tokens = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = decoder(tokens)[0, len(completion.prompt_ids) - 1 : -1]
    sampled = torch.tensor(completion.token_ids)
    return token_logprobs(logits, sampled, temperature or 1.0).tolist(), logits.argmax(-1).tolist()


requests = st.lists(
    st.builds(
        Request,
        st.lists(st.integers(3, 15), min_size=1, max_size=9).map(tuple),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
            top_k=st.sampled_from([0, 3]),
            max_tokens=st.integers(1, 40),
            seed=st.integers(0, 2**40),
        ),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(requests, st.integers(1, 13))
def test_whatever_the_batch_tokens_and_logprobs_are_those_of_a_full_forward(batch: list[Request], slots: int) -> None:
    completions = Engine(DECODER, TOKENIZER, slots=slots).generate(batch)
    for request, completion in zip(batch, completions, strict=True):
        assert completion.prompt_ids == request.prompt_ids
        logprobs, greedy = expected(DECODER, completion, request.params.temperature)
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)
        if request.params.temperature == 0.0:
            assert completion.token_ids == greedy
        ended = completion.token_ids[-1] == 2
        assert completion.finish_reason == ("stop" if ended else "length")
        assert ended or len(completion.token_ids) == request.params.max_tokens
        assert 2 not in completion.token_ids[:-1]
        assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)


def test_the_sampled_logprob_is_that_of_the_scaled_distribution() -> None:
    decoder = Decoder(DecoderConfig(vocab_size=2, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=1))
    with torch.no_grad():
        decoder.model.layers[0].self_attn.o_proj.weight.zero_()
        decoder.model.layers[0].mlp.down_proj.weight.zero_()
        decoder.model.embed_tokens.weight.copy_(torch.ones(2, 2))
        decoder.lm_head.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))  # logits [2, 0] after any token
    tokenizer = Tokenizer.characters("a")
    params = SamplingParams(temperature=0.5, max_tokens=20, seed=0, ignore_eos=True)
    [completion] = Engine(decoder, tokenizer).generate([Request([0], params)])
    assert [lp for token, lp in zip(completion.token_ids, completion.logprobs, strict=True) if token == 0] == (
        pytest.approx([-0.0181] * completion.token_ids.count(0), abs=1e-4)
    )
    assert completion.token_ids.count(0) >= 15


def test_a_seed_gives_the_same_completion_in_any_company() -> None:
    prompt = TOKENIZER.encode("12=")
    request = Request(prompt, SamplingParams(max_tokens=30, seed=7, ignore_eos=True))
    company = [Request(TOKENIZER.encode(text), SamplingParams(max_tokens=9)) for text in ("1", "abab=", "12=", "77")]
    [alone] = Engine(DECODER, TOKENIZER).generate([request])
    crowded = Engine(DECODER, TOKENIZER, slots=3).generate([*company, request])[-1]
    assert crowded.token_ids == alone.token_ids
    [other] = Engine(DECODER, TOKENIZER).generate([Request(prompt, SamplingParams(max_tokens=30, seed=8))])
    assert other.token_ids != alone.token_ids


def test_requests_without_a_seed_differ_but_an_engine_repeats_itself() -> None:
    batch = [Request(TOKENIZER.encode("1="), SamplingParams(max_tokens=12, ignore_eos=True))] * 6
    first, again = (Engine(DECODER, TOKENIZER, seed=5).generate(batch) for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({tuple(c.token_ids) for c in first}) == 6


def test_frequencies_follow_the_probabilities() -> None:
    prompt = TOKENIZER.encode("12=")
    with torch.no_grad():
        probs = DECODER(torch.tensor([prompt]))[0, -1].softmax(-1)
    batch = [Request(prompt, SamplingParams(max_tokens=1, seed=seed)) for seed in range(4000)]
    counts = torch.zeros(len(TOKENIZER))
    for completion in Engine(DECODER, TOKENIZER, slots=512).generate(batch):
        counts[completion.token_ids[0]] += 1
    chi_square = ((counts - 4000 * probs) ** 2 / (4000 * probs)).sum().item()
    assert chi_square < 45.0  # 15 degrees of freedom: beyond it once in ten thousand


def test_a_group_is_prefilled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(DECODER, TOKENIZER)
    seen = []
    decode = engine.model.decode
    monkeypatch.setattr(
        engine.model, "decode", lambda tokens, *rest: seen.append(tuple(tokens.shape)) or decode(tokens, *rest)
    )
    prompts = [TOKENIZER.encode(text) for text in ("1234=", "77=")]
    engine.generate([Request(prompt, SamplingParams(max_tokens=1)) for prompt in prompts for _ in range(8)])
    assert seen == [(2, 4), (16, 1)]


def test_finished_rows_leave_and_waiting_ones_take_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(DECODER, TOKENIZER, slots=4)
    sizes = []
    logits = engine.model.logits
    monkeypatch.setattr(engine.model, "logits", lambda hidden: sizes.append(len(hidden)) or logits(hidden))
    lengths = [2, 30, 2, 2, 5, 5]
    batch = [Request([5], SamplingParams(max_tokens=length, ignore_eos=True)) for length in lengths]
    assert [len(c.token_ids) for c in engine.generate(batch)] == lengths
    assert sizes == [4] * 2 + [3] * 5 + [1] * 23
    assert not engine.busy


def test_stop_ids_and_strings_end_a_completion_and_belong_to_it() -> None:
    prompt = TOKENIZER.encode("12=")
    free = SamplingParams(max_tokens=40, seed=1, ignore_eos=True)
    [reference] = Engine(DECODER, TOKENIZER).generate([Request(prompt, free)])
    text = TOKENIZER.decode(reference.token_ids)
    stop = text[3:6]
    by_id = SamplingParams(max_tokens=40, seed=1, ignore_eos=True, stop_ids=(reference.token_ids[4],))
    by_text = SamplingParams(max_tokens=40, seed=1, ignore_eos=True, stop=("never here", stop))
    first, second = Engine(DECODER, TOKENIZER).generate([Request(prompt, by_id), Request(prompt, by_text)])
    cut = reference.token_ids.index(reference.token_ids[4]) + 1
    assert (first.token_ids, first.finish_reason) == (reference.token_ids[:cut], "stop")
    assert TOKENIZER.decode(second.token_ids) == text[: text.index(stop) + len(stop)]
    assert second.finish_reason == "stop"


def test_new_weights_between_two_steps_show_in_tokens_and_versions() -> None:
    decoder = lively()
    engine = Engine(decoder, TOKENIZER)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    [old] = engine.generate([Request([5, 6], params)])
    engine.add(Request([5, 6], params))
    for _ in range(3):
        engine.step()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.flip(0))
    engine.update(1)
    done = []
    while engine.busy:
        done += engine.step()
    [(_, mixed)] = done
    assert mixed.versions == [0, 0, 0, 1, 1, 1, 1, 1]
    assert mixed.token_ids[:3] == old.token_ids[:3]
    [new] = engine.generate([Request([5, 6], params)])
    assert new.versions == [1] * 8
    assert new.token_ids != old.token_ids
    assert new.logprobs == pytest.approx(expected(decoder, new, 0.0)[0], abs=1e-4)


def test_an_update_repacks_weights_that_were_moved() -> None:
    decoder = lively()
    engine = Engine(decoder, TOKENIZER)
    for parameter in decoder.parameters():
        parameter.data = parameter.data * 0.5
    engine.update(1)
    [completion] = engine.generate([Request([5, 6], SamplingParams(temperature=0.0, max_tokens=8))])
    assert completion.logprobs == pytest.approx(expected(decoder, completion, 0.0)[0], abs=1e-4)


def test_rows_that_outrun_the_cache_keep_their_logprobs() -> None:
    params = SamplingParams(max_tokens=200, seed=3, ignore_eos=True)
    long, short = Engine(DECODER, TOKENIZER).generate([Request([5] * 40, params), Request([6], params)])
    for completion in (long, short):
        assert len(completion.token_ids) == 200
        assert completion.logprobs == pytest.approx(expected(DECODER, completion, 1.0)[0], abs=1e-4)


def test_completions_end_where_positions_do() -> None:
    [completion] = Engine(DECODER, TOKENIZER, max_seq_len=20).generate(
        [Request([5] * 12, SamplingParams(max_tokens=100, ignore_eos=True))]
    )
    assert (len(completion.token_ids), completion.finish_reason) == (8, "length")


def test_a_log_prob_kernel_is_used() -> None:
    calls = []

    def kernel(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        calls.append((tuple(logits.shape), tuple(ids.shape)))
        return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]

    engine = Engine(DECODER, TOKENIZER, log_prob=kernel)
    batch = [Request([5], SamplingParams(temperature=0.5, max_tokens=3, seed=1, ignore_eos=True))] * 2
    plain = Engine(DECODER, TOKENIZER).generate(batch)
    assert [c.logprobs for c in engine.generate(batch)] == [pytest.approx(c.logprobs) for c in plain]
    assert calls == [((2, 16), (2,))] * 3


def test_what_the_engine_makes_may_enter_a_loss() -> None:
    engine = Engine(DECODER, TOKENIZER)
    [completion] = engine.generate([Request([5, 6], SamplingParams(max_tokens=4, seed=0))])
    DECODER.zero_grad()
    DECODER(torch.tensor([[5, 6, *completion.token_ids]])).logsumexp(-1).mean().backward()
    assert DECODER.model.layers[0].self_attn.k_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "0 tokens"), ([5] * 256, "256 tokens"), ([5, 16], "from 5 to 16"), ([-1], "from -1 to -1")],
)
def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(prompt: list[int], message: str) -> None:
    engine = Engine(DECODER, TOKENIZER)
    with pytest.raises(RequestError, match=message):
        engine.generate([Request([5]), Request(prompt)])
    assert not engine.busy


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.5},
        {"max_tokens": 0},
        {"stop": ("",)},
        {"stop": "text"},
    ],
)
def test_sampling_parameters_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_generate_refuses_to_mix_with_requests_in_flight() -> None:
    engine = Engine(DECODER, TOKENIZER)
    numbers = [engine.add(Request([5])) for _ in range(3)]
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
    with pytest.raises(RequestError, match="in flight"):
        engine.generate([Request([5])])
    with pytest.raises(ValueError, match="slots is 0"):
        Engine(DECODER, TOKENIZER, slots=0)
