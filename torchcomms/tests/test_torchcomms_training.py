"""Training over this package computes what it computes over gloo: DDP, FSDP2, DTensor, checkpoints, torch.compile."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.system
SCRIPT = Path(__file__).with_name("distributed_training.py")


def finish(group):
    """Every rank has said "ok"."""
    for rank in group:
        written, errors = rank.communicate()
        assert (rank.returncode, written) == (0, "ok\n"), errors


@pytest.mark.parametrize("name", ["ddp", "placed", "hooks", "fsdp", "checkpoint", "functions"])
def test_two_ranks(ranks, name):
    finish(ranks(2, SCRIPT, name))


@pytest.mark.parametrize("name", ["ddp", "hsdp", "dtensor", "orders", "mesh_of_comms"])
def test_four_ranks(ranks, name):
    finish(ranks(4, SCRIPT, name))


def test_over_sockets(ranks):
    finish(ranks(2, SCRIPT, "ddp", "torchcomms", "tcp"))


def test_a_rank_that_dies_in_backward_is_named(ranks):
    group = ranks(2, SCRIPT, "death_in_backward")
    group[1].wait()
    finish(group[:1])


def test_torch_compile(ranks):
    finish(ranks(2, SCRIPT, "compiled"))
