"""Collectives of objects, safe by default, and a joiner that receives module and optimizer state in one call."""

import collections
import pickle

import pytest
import torch

from torchcomms import objcol
from torchcomms.errors import InvalidCall

pytestmark = pytest.mark.unit


class Mine:
    """Something that no weights-only reader admits."""


OBJECTS = ["a", {"b": [1, 2.5, None], "t": torch.arange(3)}, (True, "c" * 5000)]


def plain(value):
    """Tensors as lists, so that objects compare."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def test_every_object_collective(world, backend):
    def run(comm):
        rank, size = comm.get_rank(), comm.get_size()
        everywhere = [None] * size
        objcol.all_gather_object(comm, everywhere, OBJECTS[rank])
        gathered = [None] * size if rank == 1 else None
        objcol.gather_object(comm, OBJECTS[rank], 1, gathered)
        sent = OBJECTS[::-1] if rank == 2 else [None] * 3
        objcol.broadcast_object_list(comm, sent, 2)
        mine = [None]
        objcol.scatter_object_list(comm, 0, mine, OBJECTS if rank == 0 else None)
        received = [None] * 3
        if rank == 0:
            objcol.send_object_list(comm, OBJECTS, 1)
        elif rank == 1:
            objcol.recv_object_list(comm, received, 0)
        return [[plain(one) for one in many] for many in (everywhere, gathered or [], sent, mine, received)]

    objects = [plain(one) for one in OBJECTS]
    for rank, found in enumerate(world(backend, 3, run)):
        everywhere, gathered, sent, mine, received = found
        assert everywhere == objects
        assert gathered == (objects if rank == 1 else [])
        assert sent == objects[::-1]
        assert mine == [objects[rank]]
        assert received == (objects if rank == 1 else [None] * 3)


def test_objects_of_any_class_come_in_only_where_that_is_asked_for(world):
    def run(comm):
        found = [None] * 2
        with pytest.raises(pickle.UnpicklingError, match="weights_only"):
            objcol.all_gather_object(comm, found, Mine())
        objcol.all_gather_object(comm, found, collections.Counter("ab"), weights_only=False)
        return found

    assert world("inproc", 2, run) == [[collections.Counter("ab")] * 2] * 2


def test_lists_of_the_wrong_length_and_empty_ones(world):
    def run(comm):
        with pytest.raises(InvalidCall, match="object_list is 1 objects; pass a list of 2"):
            objcol.all_gather_object(comm, [None], 1)
        with pytest.raises(InvalidCall, match="is empty"):
            objcol.scatter_object_list(comm, 0, [])
        nothing = []
        objcol.broadcast_object_list(comm, nothing, 0)
        peer = 1 - comm.get_rank()
        objcol.send_object_list(comm, [], peer)
        objcol.recv_object_list(comm, nothing, peer)

    world("inproc", 2, run)


def test_a_joiner_gets_nested_state_into_its_own_tensors_and_new_ones(world, backend):
    def run(comm):
        rank = comm.get_rank()
        weight, bias = torch.full((3, 2), rank + 1.0)[:, 0], torch.full((2,), rank + 1.0, dtype=torch.bfloat16)
        steps = {0: {"step": torch.tensor(7.0), "avg": torch.ones(3)}} if rank == 1 else {}
        mine = {
            "model": collections.OrderedDict(weight=weight, bias=bias if rank else torch.zeros(5)),
            "optimizer": {"state": steps, "param_groups": [{"lr": 0.5 * rank, "params": [0]}]},
            "seen": (rank, [rank]),
        }
        state = comm.sync_state(mine, 1)
        assert state["model"]["weight"] is weight
        assert (state["model"]["bias"] is bias) == (rank != 0)
        return plain(state)

    wanted = {
        "model": {"weight": [2.0] * 3, "bias": [2.0] * 2},
        "optimizer": {
            "state": {0: {"step": 7.0, "avg": [1.0] * 3}},
            "param_groups": [{"lr": 0.5, "params": [0]}],
        },
        "seen": (1, [1]),
    }
    assert world(backend, 3, run) == [wanted] * 3
