"""The auto backend: what it prefers, what it passes over and why, and that all ranks come to one choice."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

import torchcomms
from torchcomms import ReduceOp, find
from torchcomms.errors import BackendNotFound, CommsClosed, NoRendezvous
from torchcomms.locality import Topology
from torchcomms.providers.auto import AutoBackend, AutoOptions, preferences
from torchcomms.providers.choice import Choice, choose, why_not
from torchcomms.providers.hier import HierOptions
from torchcomms.providers.tcp import TcpOptions

pytestmark = pytest.mark.unit
ONE, PAIRS, APART = Topology(((0, 1),)), Topology(((0, 1), (2,))), Topology(((0,), (1,)))


@pytest.mark.parametrize(
    ("device", "topology", "names"),
    [
        ("cuda", PAIRS, ("nccl", "rccl")),
        ("xpu", ONE, ("xccl",)),
        ("cpu", ONE, ("shm", "tcp")),
        ("cpu", PAIRS, ("hier", "tcp")),
        ("cpu", APART, ("tcp",)),
    ],
)
def test_preferences_follow_device_and_hosts(device, topology, names):
    assert preferences(device, topology) == names


def test_the_first_that_every_rank_can_use_is_chosen_and_the_others_are_explained():
    assert choose(("a", "b"), {0: {}, 1: {}}) == Choice("a", {})
    choice = choose(("a", "b"), {0: {}, 1: {"a": "no compiler"}})
    assert str(choice) == "b; not a: no compiler (on rank 1)"
    with pytest.raises(BackendNotFound, match=r"a: no card \(on ranks 0, 1\)"):
        choose(("a",), {0: {"a": "no card"}, 1: {"a": "no card"}})


def test_reasons_are_those_of_the_backend():
    assert why_not("tcp", "cpu") == ""
    assert why_not("tcp", "cuda") == "it moves tensors on cpu, not on cuda"
    assert "no backend 'nowhere' is installed" in why_not("nowhere", "cpu")


def opened(hosts, **options):
    """The backend's name and what an all_reduce gives on each rank."""
    store = HashStore()

    def rank(number):
        asked = AutoOptions(host=hosts[number], **options)
        where = {"store": store, "rank": number, "size": len(hosts), "timeout": timedelta(seconds=20)}
        with torchcomms.new_comm("auto", "cpu", name="auto", options=asked, **where) as comm:
            tensor = torch.ones(3)
            comm.all_reduce(tensor, ReduceOp.SUM)
            return comm.get_backend(), tensor.tolist()

    with ThreadPoolExecutor(len(hosts)) as threads:
        return list(threads.map(rank, range(len(hosts))))


@pytest.mark.parametrize(("hosts", "name"), [("aa", None), ("aab", "hier"), ("ab", "tcp")])
def test_it_opens_what_fits_and_says_so_once(caplog, hosts, name):
    with caplog.at_level(logging.INFO, "torchcomms"):
        seen = opened(hosts)
    name = name or ("shm" if find("shm").capabilities().usable else "tcp")
    assert seen == [(name, [float(len(hosts))] * 3)] * len(hosts)
    said = [record.getMessage() for record in caplog.records if record.name == "torchcomms"]
    assert [f"auto chose {name}" in line and f"for {len(hosts)} ranks on cpu" in line for line in said] == [True]


def test_options_reach_the_backend_that_is_chosen():
    with pytest.raises(NoRendezvous, match=r"nowhere\.invalid"):
        opened("ab", options={"tcp": TcpOptions(host="nowhere.invalid")})
    inside = {"hier": HierOptions(local="tcp", wire="inproc")}
    assert opened("aa", options=inside)[0][1] == [2.0] * 3


def test_it_is_no_backend_by_itself():
    capabilities = AutoBackend.capabilities()
    assert "cpu" in capabilities.devices
    assert "hier for several hosts" in capabilities.reason
    with pytest.raises(CommsClosed, match="use what AutoBackend"):
        AutoBackend().close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_without_the_library_of_a_device_the_reasons_are_told():
    with pytest.raises(BackendNotFound, match=r"nccl: .*rccl: "):
        AutoBackend.open(rank=0, size=1, store=HashStore(), device="cuda", timeout=5.0)
