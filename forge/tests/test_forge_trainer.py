"""The trainer: on-policy parity with the engine, gradients, micro-batches, clipping, and saving."""

import pytest
import torch

from forge.batcher import pad
from forge.config import LossConfig, OptimizerConfig
from forge.environments import Problem
from forge.generation import Engine, Request, SamplingParams
from forge.models import Decoder, DecoderConfig
from forge.optimizer import Optimizer
from forge.packing import pack
from forge.samples import Episode, sample_from
from forge.sft import FineTuner, demonstrations
from forge.tokenizer import Tokenizer
from forge.trainer import Trainer, forward

pytestmark = pytest.mark.unit

TOKENIZER = Tokenizer.characters("0123456789=")


def decoder(seed=0):
    shape = DecoderConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4, num_kv_heads=2
    )
    return Decoder(shape).init(seed)


def sampled(model, temperature=1.0, count=8):
    params = SamplingParams(temperature=temperature, max_tokens=9)
    prompts = [TOKENIZER.encode("12="[: 1 + index % 3]) for index in range(count)]
    done = Engine(model, TOKENIZER, seed=1).generate([Request(prompt, params) for prompt in prompts])
    return [sample_from(Episode([one], {}), group=0) for one in done]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_on_policy_ratios_are_one(temperature):
    model = decoder()
    batch = pad(sampled(model, temperature), torch.randn(8), TOKENIZER.pad_id)
    trainer = Trainer(model, temperature=temperature)
    assert trainer.parity(batch) < 1e-4
    metrics = trainer.train(batch)
    assert metrics["mismatch_max"] < 1e-4
    assert metrics["clip_share"] == 0
    assert metrics["tokens/trained"] == int(batch.mask.sum())


def test_temperature_is_part_of_the_log_probability():
    """Logits [2, 0] at temperature 0.5 give the likelier token −0.0181."""
    model = decoder()
    logits = torch.full((len(TOKENIZER),), -1e4)
    logits[4], logits[5] = 2.0, 0.0
    with torch.no_grad():
        model.model.norm.weight.zero_()
    model.logits = lambda hidden: logits.expand(*hidden.shape[:-1], -1)
    (sample,) = sampled(model, 0.5, count=1)
    batch = pad([sample], torch.ones(1))
    expected = {4: -0.0181, 5: -4.0181}
    ours = forward(model, batch, 0.5)[0][batch.mask].tolist()
    for token, theirs, mine in zip(sample.token_ids[1:], sample.logprobs[1:], ours, strict=True):
        assert theirs == pytest.approx(expected[token], abs=1e-4)
        assert mine == pytest.approx(expected[token], abs=1e-4)


@pytest.mark.parametrize("aggregate", ["token", "sequence", 9])
def test_micro_batches_take_the_same_step(aggregate):
    samples, advantages = sampled(decoder(), count=7), torch.linspace(-1, 1, 7)
    weights = []
    for size in (0, 1, 3):
        model = decoder()
        trainer = Trainer(model, OptimizerConfig(lr=1e-3), LossConfig(micro_batch=size, aggregate=aggregate))
        metrics = trainer.train(pad(samples, advantages))
        weights.append((torch.cat([p.detach().flatten() for p in model.parameters()]), metrics["grad_norm"]))
    for flat, norm in weights[1:]:
        assert norm == pytest.approx(weights[0][1], rel=1e-4)
        assert torch.allclose(flat, weights[0][0], atol=2e-5)


def test_the_reported_norm_is_the_one_before_clipping_and_gradients_are_cleared():
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = Optimizer(model, OptimizerConfig(max_norm=1.0))
    for _ in range(2):
        model.weight.grad = torch.full((1, 4), 10.0)
        gradient = model.weight.grad
        assert optimizer.step(denominator=2.0) == pytest.approx(10.0)
        assert float(gradient.norm()) == pytest.approx(1.0)
        assert model.weight.grad is None


def test_no_clipping_without_a_maximum():
    model = torch.nn.Linear(4, 1, bias=False)
    model.weight.grad = gradient = torch.full((1, 4), 10.0)
    Optimizer(model, OptimizerConfig(max_norm=0.0)).step()
    assert gradient.tolist() == [[10.0] * 4]


def test_the_learning_rate_warms_up():
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = Optimizer(model, OptimizerConfig(lr=0.1, warm_up_steps=4))
    moves = []
    for _ in range(6):
        before = float(model.weight.detach())
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        moves.append(before - float(model.weight.detach()))
    assert moves == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], rel=1e-3)


def test_packing_changes_no_log_probability_and_leaves_out_what_is_not_needed():
    model = decoder()
    lengths = [1, 9, 2, 5, 60, 3]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    requests = [Request(TOKENIZER.encode("1=2"[: 1 + index % 3]), param) for index, param in enumerate(params)]
    done = Engine(model, TOKENIZER, max_seq_len=100).generate(requests)
    batch = pad([sample_from(Episode([one], {}), group=0) for one in done], torch.ones(6))
    packed = pack(batch)
    assert packed.token_ids.shape == (2, 61)
    assert int((packed.segments > 0).sum()) == sum(len(one.prompt_ids) + len(one.token_ids) - 1 for one in done)
    with torch.no_grad():
        plain = model(batch.token_ids[:, :-1]).log_softmax(-1).gather(2, batch.token_ids[:, 1:, None]).squeeze(2)
    assert torch.allclose(Trainer(model).logprobs(batch), plain.masked_fill(~batch.mask, 0.0), atol=1e-5)


def test_an_all_zero_batch_trains_nothing():
    model = decoder()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    metrics = Trainer(model).train(pad(sampled(model), torch.zeros(8)))
    assert metrics["grad_norm"] == 0
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_an_advantage_moves_its_tokens():
    model = decoder()
    samples = sampled(model)
    batch = pad(samples, torch.tensor([1.0] * 4 + [-1.0] * 4))
    trainer = Trainer(model, OptimizerConfig(lr=1e-3))
    before = trainer.logprobs(batch).sum(1)
    for _ in range(3):
        trainer.train(batch)
    gain = trainer.logprobs(batch).sum(1) - before
    assert gain[:4].mean() > 0 > gain[4:].mean()


def test_a_checkpoint_goes_on_exactly(tmp_path):
    samples, advantages = sampled(decoder()), torch.linspace(-1, 1, 8)
    batch = pad(samples, advantages)
    first = Trainer(decoder())
    first.train(batch)
    first.save(tmp_path / "state.pt")
    second = Trainer(decoder(seed=5))
    second.load(tmp_path / "state.pt")
    first.train(batch)
    second.train(batch)
    assert second.version == 2
    pairs = zip(first.decoder.parameters(), second.decoder.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_fine_tuning_learns_answers_and_only_answers():
    problems = [Problem("21=", "12"), Problem("3=", "3")]
    batch = demonstrations(problems, TOKENIZER)
    assert batch.mask.tolist() == [[False, False, True, True, True], [False, True, True, False, False]]
    assert batch.token_ids[0, -1] == TOKENIZER.eos_id
    tuner = FineTuner(decoder(), TOKENIZER, OptimizerConfig(lr=3e-3))
    losses = [tuner.step(problems) for _ in range(30)]
    assert losses[-1] < 0.5 < losses[0]
