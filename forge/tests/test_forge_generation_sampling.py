"""Sampling: the inverse of the distribution, and what top-k, top-p and min-p cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.generation.sampling import cut, invert, sample

pytestmark = pytest.mark.unit

PROBS = torch.tensor([[0.5, 0.25, 0.15, 0.1]])


def kept(top_k: int = 4, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    return (
        cut(PROBS, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))[0].nonzero().flatten().tolist()
    )


def test_cuts() -> None:
    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.5) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(top_p=0.76) == [0, 1, 2]
    assert kept(min_p=0.3) == [0, 1, 2]
    assert kept(min_p=1.0) == [0]
    assert kept(top_k=2, top_p=0.6) == [0]  # of the two left, the first holds two thirds
    assert kept(top_p=1e-6, min_p=1.0, top_k=1) == [0]


@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=40).filter(lambda weights: sum(weights) > 1e-3),
    st.integers(0, 2**24 - 1),
)
def test_no_draw_hits_a_token_of_no_weight(weights: list[float], numerator: int) -> None:
    table = torch.tensor([weights])
    token = invert(table, torch.tensor([numerator / 2**24]))
    assert table[0, token].item() > 0.0


def test_draws_are_inverted_exactly() -> None:
    draws = torch.tensor([0.0, 0.4999, 0.5, 0.7499, 0.75, 0.8999, 0.9001, 1 - 2**-24])
    assert invert(PROBS.expand(8, 4), draws).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_row_is_cut_by_its_own_parameters_and_maps_back_to_the_vocabulary() -> None:
    probs = torch.tensor([[0.1, 0.2, 0.7]]).expand(3, 3)
    draws = torch.tensor([0.95, 0.95, 0.95])
    cuts = (torch.tensor([3, 1, 2]), torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0]))
    assert sample(probs, draws, cuts).tolist() == [0, 2, 1]
    assert sample(probs, draws, None).tolist() == [2, 2, 2]
