"""The policy loss and the KL estimates, on cases whose numbers are known."""

import math

import pytest
import torch

from forge.losses import kl_estimate, policy_loss

pytestmark = pytest.mark.unit


def batch(lengths, width=None):
    width = width or max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return torch.zeros(len(lengths), width), mask


@pytest.mark.parametrize(("aggregate", "expected"), [("sequence", 0.0), ("token", 0.6), (10, 0.3)])
def test_two_and_eight_tokens(aggregate, expected):
    logprobs, mask = batch([2, 8])
    result = policy_loss(logprobs, logprobs, torch.tensor([1.0, -1.0]), mask, aggregate=aggregate)
    assert float(result.loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("aggregate", ["token", "sequence", 7])
@pytest.mark.parametrize("split", [[1, 3], [2, 2], [1, 1, 2], [3, 1]])
def test_any_split_into_micro_batches_has_the_same_gradient(aggregate, split):
    torch.manual_seed(0)
    old, mask = torch.randn(4, 6) - 2, batch([6, 2, 4, 1])[1]
    new, advantages = (old + torch.randn(4, 6) * 0.3), torch.randn(4)
    whole = new.clone().requires_grad_()
    policy_loss(whole, old, advantages, mask, aggregate=aggregate).loss.backward()
    parts = new.clone().requires_grad_()
    denominator = 0.0
    pieces = (parts.split(split), old.split(split), advantages.split(split), mask.split(split))
    for piece in zip(*pieces, strict=True):
        result = policy_loss(*piece, aggregate=aggregate)
        result.numerator.backward()
        denominator += float(result.denominator)
    assert torch.allclose(parts.grad / denominator, whole.grad, atol=1e-7)


def test_clip_is_two_sided_and_reports_what_it_binds():
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    result = policy_loss(ratio.log(), torch.zeros(1, 4), advantages, mask)
    assert float(result.numerator) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8))
    assert float(result.clip_share) == 0.5
    assert float(policy_loss(ratio.log(), torch.zeros(1, 4), advantages, mask, clip=None).loss) == pytest.approx(0.0)


def test_truncated_weights_are_constants():
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old = torch.tensor([[-3.0, -2.0]])
    result = policy_loss(logprobs, old, torch.tensor([1.0]), torch.ones(1, 2), clip=None, importance="truncate")
    result.loss.backward()
    assert logprobs.grad.tolist() == [[-1.0, -0.5]]


def test_masked_importance_leaves_numerator_and_denominator():
    ratio = torch.tensor([[1.0, 4.0, 1.0, 0.1]])
    result = policy_loss(ratio.log(), torch.zeros(1, 4), torch.tensor([2.0]), torch.ones(1, 4), importance="mask")
    assert result.kept.tolist() == [[True, False, True, False]]
    assert float(result.loss) == pytest.approx(-2.0)
    assert float(result.denominator) == 2


def test_sequence_ratio_is_the_geometric_mean():
    ratio = torch.tensor([[0.5, 2.0, 99.0]])
    mask = torch.tensor([[True, True, False]])
    result = policy_loss(ratio.log(), torch.zeros(1, 3), torch.tensor([1.0]), mask, ratio="sequence")
    assert result.ratio[0, :2].tolist() == pytest.approx([1.0, 1.0])
    assert float(result.loss) == pytest.approx(-1.0)


def test_a_nan_under_the_mask_does_not_reach_the_loss():
    logprobs, mask = batch([2, 1])
    logprobs.requires_grad_()
    old = torch.where(mask, 0.0, float("nan"))
    result = policy_loss(logprobs, old, torch.tensor([1.0, -2.0]), mask)
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0
    assert torch.isfinite(logprobs.grad).all()
    assert kl_estimate(logprobs.detach(), old, mask).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("aggregate", ["token", "sequence", 8])
def test_nothing_kept_is_zero(aggregate):
    logprobs = torch.randn(2, 3, requires_grad=True)
    result = policy_loss(logprobs, logprobs.detach(), torch.ones(2), torch.zeros(2, 3), aggregate=aggregate)
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0
    assert logprobs.grad.tolist() == [[0.0] * 3] * 2


def test_dropped_sequences_leave_the_token_mean():
    logprobs, mask = batch([3, 5])
    advantages = torch.tensor([1.0, -1.0])
    dropped = mask & torch.tensor([[True], [False]])
    assert float(policy_loss(logprobs, logprobs, advantages, dropped).loss) == pytest.approx(-1.0)
    assert float(policy_loss(logprobs, logprobs, advantages, dropped).denominator) == 3


def test_kl_estimates():
    policy, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    assert float(kl_estimate(policy, reference, kind="k1")) == pytest.approx(0.5)
    assert float(kl_estimate(policy, reference, kind="k2")) == pytest.approx(0.125)
    assert float(kl_estimate(policy, reference)) == pytest.approx(math.exp(-0.5) - 1 + 0.5)


def test_unknown_choices_are_refused():
    logprobs, mask = batch([2])
    with pytest.raises(ValueError, match="positive length"):
        policy_loss(logprobs, logprobs, torch.ones(1), mask, aggregate=0)
    with pytest.raises(ValueError, match="k1"):
        kl_estimate(logprobs, logprobs, kind="k9")
