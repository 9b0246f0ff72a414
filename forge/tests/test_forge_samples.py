"""Samples and batches: provenance from the start, masks from sources and lengths alone."""

import math

import pytest
import torch

from forge.batcher import pad
from forge.errors import EpisodeError
from forge.generation import Completion
from forge.samples import Episode, Source, sample_from

pytestmark = pytest.mark.unit

EOS = 2


def turn(prompt, tokens, reason="stop", version=3):
    return Completion(tuple(prompt), tokens, [-0.5] * len(tokens), [version] * len(tokens), reason)


def single(tokens, reason="stop"):
    return sample_from(Episode([turn([7, 8], tokens, reason)], {"r": 1.0}), group=0)


def test_a_pad_id_that_is_the_end_id_changes_no_mask():
    batch = pad([single([5, 6, EOS]), single([5, 6, 5, 6, 5])], torch.ones(2), pad_id=EOS)
    assert batch.mask[:, 1:].tolist() == [[True, True, True, False, False], [True] * 5]
    assert batch.token_ids[0].tolist() == [7, 8, 5, 6, EOS, EOS, EOS]


def test_padding_after_a_cut_completion_is_masked_out():
    cut, longer = single([5, 6, 5], "length"), single([5, 6, 5, 6, EOS])
    batch = pad([cut, longer], torch.ones(2), pad_id=5)
    assert cut.truncated
    assert batch.mask[0].tolist() == [False, True, True, True, False, False]
    assert batch.old_logprobs[0].tolist() == [0.0, -0.5, -0.5, -0.5, 0.0, 0.0]
    assert batch.versions[0].tolist() == [-1, 3, 3, 3, -1, -1]


def test_a_batch_is_no_wider_than_its_longest_sample():
    assert pad([single([5]), single([5, 6])], torch.zeros(2)).token_ids.shape == (2, 4)


def test_what_an_environment_says_between_turns_is_not_trained():
    first = turn([7, 8], [5, 6], version=1)
    second = turn([7, 8, 5, 6, 9, 9], [4, EOS], version=2)
    sample = sample_from(Episode([first, second], {"a": 0.25, "b": 0.5}), group=4, prompt="p")
    prompt, policy, environment = Source.PROMPT, Source.POLICY, Source.ENVIRONMENT
    assert sample.sources == (prompt, prompt, policy, policy, environment, environment, policy, policy)
    assert sample.logprobs == (0, 0, -0.5, -0.5, 0, 0, -0.5, -0.5)
    assert (sample.version, sample.completion_tokens, sample.reward) == (1, 4, 0.75)
    assert pad([sample], torch.ones(1)).mask[0].tolist() == [False, True, True, False, False, True, True]


def test_a_template_that_edits_history_is_refused():
    with pytest.raises(EpisodeError, match="turn 2 does not begin with the 4 tokens") as caught:
        sample_from(Episode([turn([7, 8], [5, 6]), turn([7, 8, 5, 9], [4])], {}), group=0)
    assert caught.value.turn == 2
    with pytest.raises(EpisodeError, match="no turns"):
        sample_from(Episode([], {}), group=0)


def test_a_part_that_cannot_be_scored_makes_the_reward_nan():
    sample = sample_from(Episode([turn([7], [5])], {"format": 1.0, "right": None}), group=0)
    assert math.isnan(sample.reward)


def test_splitting_a_batch_loses_nothing():
    batch = pad([single([5]), single([5, 6]), single([5, 6, 5])], torch.tensor([1.0, 2.0, 3.0]))
    pieces = batch.split(2)
    assert [len(piece.token_ids) for piece in pieces] == [2, 1]
    assert torch.equal(torch.cat([piece.mask for piece in pieces]), batch.mask)
    assert torch.cat([piece.advantages for piece in pieces]).tolist() == [1.0, 2.0, 3.0]
