"""Which ranks share a host: claims through a store, probes of the kernel, and no variable of the environment."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from torch.distributed import HashStore

from torchcomms import locality
from torchcomms.errors import CommsTimeout
from torchcomms.locality import Claim, Topology, exchange, find_hosts, group, reaches

pytestmark = pytest.mark.unit


def everywhere(size, function):
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(function, range(size)))


def found(size, names=None):
    store = HashStore()

    def find(rank):
        pretended = None if names is None else names[rank]
        return find_hosts(store, "where", rank, size, monotonic() + 20, pretended=pretended)

    topologies = everywhere(size, find)
    assert len(set(topologies)) == 1
    return topologies[0].hosts


def test_ranks_of_one_machine_are_on_one_host_whatever_the_environment_says(monkeypatch):
    for variable in ("LOCAL_WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.setenv(variable, "1")
    assert found(3) == ((0, 1, 2),)


def test_pretended_names_part_ranks():
    assert found(5, "abbac") == ((0, 3), (1, 2), (4,))


def test_a_claim_without_the_proof_joins_nobody(monkeypatch):
    # As on two machines restored from one image: the same boot id and numbers, another kernel.
    monkeypatch.setattr(locality, "reaches", lambda claim: False)
    assert found(3) == ((0,), (1,), (2,))


def test_a_kernel_that_does_not_say_who_it_is_shares_with_nobody(monkeypatch):
    monkeypatch.setattr(os, "stat", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert locality.kernel() != locality.kernel()


def test_a_probe_is_reached_while_it_is_open():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        claim = Claim("here", locality._listen(probe))
        assert reaches(claim)
    assert not reaches(claim)
    assert not reaches(Claim("here", ""))


def test_who_reached_whom_makes_hosts_through_others_too():
    assert group([0, 0, 2, 1, 2]) == Topology(((0, 1, 3), (2, 4)))
    assert group([0, 1, 2]) == Topology(((0,), (1,), (2,)))


def test_a_place_is_a_host_and_a_position():
    topology = Topology(((0, 3), (1, 2)))
    assert [topology.place(rank) for rank in range(4)] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert str(topology) == "2 hosts (ranks 0, 3; ranks 1, 2)"
    with pytest.raises(IndexError, match="rank 4 is on none of 2 hosts"):
        topology.place(4)


def test_an_exchange_tells_every_value_and_names_all_who_did_not_come():
    store = HashStore()
    assert (
        everywhere(3, lambda rank: exchange(store, "a", rank, 3, f"<{rank}>", monotonic() + 20))
        == [["<0>", "<1>", "<2>"]] * 3
    )
    store.set("b/2", "here")
    with pytest.raises(CommsTimeout, match="ranks 1, 3 of 4") as late:
        exchange(store, "b", 0, 4, "here", monotonic() + 0.02)
    assert late.value.missing == {1, 3}
