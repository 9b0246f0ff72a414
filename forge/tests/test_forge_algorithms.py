"""The algorithms against the numbers of their papers' formulas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.algorithms import NAMES, dr_grpo, find, grpo, rloo
from forge.errors import ConfigError

pytestmark = pytest.mark.unit

ONE_GROUP = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (grpo, [1.4997, -0.4999, -0.4999, -0.4999]),
        (dr_grpo, [0.75, -0.25, -0.25, -0.25]),
        (rloo, [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_right_of_four(algorithm, expected):
    advantages = algorithm.advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), ONE_GROUP)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_one_has_no_advantage(name):
    assert find(name).advantages(torch.tensor([0.7]), torch.tensor([3])).tolist() == [0.0]


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_give_exactly_zero(name):
    advantages = find(name).advantages(torch.full((8,), 0.35), torch.zeros(8, dtype=torch.int64))
    assert advantages.tolist() == [0.0] * 8


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_that_cannot_be_scored_leaves_its_group(name):
    rewards = torch.tensor([1.0, float("nan"), 0.0, 0.0, 0.0])
    advantages = find(name).advantages(rewards, torch.zeros(5, dtype=torch.int64))
    without = find(name).advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), ONE_GROUP)
    assert advantages[1] == 0
    assert torch.equal(advantages[[0, 2, 3, 4]], without)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_scorable_gives_zero(name):
    rewards = torch.full((3,), float("nan"))
    assert find(name).advantages(rewards, torch.zeros(3, dtype=torch.int64)).tolist() == [0.0] * 3


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5, width=32)), min_size=1, max_size=24), st.sampled_from(NAMES)
)
def test_groups_do_not_see_each_other_and_sum_to_zero(pairs, name):
    groups, rewards = torch.tensor([g for g, _ in pairs]), torch.tensor([r for _, r in pairs])
    advantages = find(name).advantages(rewards, groups)
    for group in groups.unique():
        member = groups == group
        alone = find(name).advantages(rewards[member], groups[member])
        assert torch.allclose(advantages[member], alone, atol=1e-4)
        assert abs(float(alone.sum())) < 1e-3 * (1 + float(alone.abs().sum()))


def test_unknown_names_and_wrong_shapes_are_refused():
    with pytest.raises(ConfigError, match="dr_grpo, grpo, rloo"):
        find("ppo")
    with pytest.raises(ValueError, match="equally long"):
        grpo.advantages(torch.zeros(3), torch.zeros(4, dtype=torch.int64))
