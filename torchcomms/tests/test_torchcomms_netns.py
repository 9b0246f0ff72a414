"""Two hosts made of network namespaces: values, a host that vanishes without a word, a busy one, a slow link."""

import os
from time import monotonic

import pytest

from torchcomms.testing.namespaces import Hosts, NoNamespaces, enter

pytestmark = pytest.mark.system
PORT = "29511"
SLACK = 2.5  # seconds that a busy machine may add to a bound

ENTER = """
import sys, time
import torch, torchcomms
from torchcomms.providers.auto import AutoOptions
from torchcomms.providers.hier import HierOptions
from torchcomms.providers.tcp import TcpOptions
from torchcomms.testing.namespaces import enter
enter(sys.argv[1])
torch.set_num_threads(1)
tcp = TcpOptions(heartbeat=1)
options = {"tcp": tcp, "hier": HierOptions(wire_options=tcp), "auto": AutoOptions()}[sys.argv[2]]
comm = torchcomms.new_comm(sys.argv[2], "cpu", name="netns", options=options)
rank, size = comm.get_rank(), comm.get_size()
"""

VALUES = (
    ENTER
    + """
for dtype, count in ((torch.float32, 5), (torch.float32, 200_003), (torch.bfloat16, 50_000), (torch.int64, 1000)):
    tensor = (torch.arange(count) % 7 + rank).to(dtype)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    wanted = (size * (torch.arange(count) % 7) + sum(range(size))).to(dtype)
    assert torch.equal(tensor, wanted), (dtype, count)
whole = [torch.empty(70_000) for _ in range(size)]
comm.all_gather(whole, torch.full((70_000,), float(rank)))
assert [one.unique().tolist() for one in whole] == [[float(r)] for r in range(size)]
print("right", comm.get_backend())
comm.finalize()
"""
)

VICTIM = (
    ENTER
    + """
tensor = torch.ones(int(sys.argv[3]))
comm.barrier()
print("ready", flush=True)
try:
    while True:
        comm.all_reduce(tensor, torchcomms.ReduceOp.AVG)
except torchcomms.PeerFailed as error:
    print("failed", *sorted(error.ranks), time.monotonic(), flush=True)
sys.stdin.read()
"""
)

BUSY = (
    ENTER
    + """
comm.barrier()
if rank == 1:
    until = time.monotonic() + 4.5
    while time.monotonic() < until:  # computes, and reads nothing that comes
        torch.ones(1000).sum()
    first = torch.zeros(8 << 20)
    comm.recv(first, 0)
    assert first.sum() == 8 << 20
else:
    comm.send(torch.ones(8 << 20), 1)
comm.barrier()
print("alive")
comm.finalize()
"""
)


@pytest.fixture
def hosts():
    made = Hosts()
    try:
        made.up()
        yield made
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        made.down()


@pytest.fixture
def spread(start, hosts, tmp_path):
    """`spread(text, "aab", *arguments)`: a script on a rank for each letter, on the host of that letter."""

    def spread(text, places, *arguments):
        script = tmp_path / "rank.py"
        script.write_text(text)
        meeting = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": PORT, "WORLD_SIZE": str(len(places))}
        return [
            start(script, hosts.names["ab".index(place)], *arguments, RANK=str(rank), **meeting)
            for rank, place in enumerate(places)
        ]

    return spread


def finished(group):
    said = []
    for rank in group:
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        said.append(written)
    return said


@pytest.mark.parametrize(
    ("asked", "places", "chosen"), [("tcp", "ab", "tcp"), ("hier", "aab", "hier"), ("auto", "abab", "hier")]
)
def test_collectives_across_hosts_are_right(spread, asked, places, chosen):
    assert finished(spread(VALUES, places, asked)) == [f"right {chosen}\n"] * len(places)


@pytest.mark.parametrize("count", [1000, 1 << 20])
def test_a_host_that_vanishes_is_named_on_both_sides_within_three_heartbeats(spread, hosts, count):
    group = spread(VICTIM, "aabb", "hier", str(count))
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 4
    cut = hosts.cut()
    for rank, survivor in enumerate(group):
        *words, moment = survivor.stdout.readline().split()
        assert words == (["failed", "2", "3"] if rank < 2 else ["failed", "0", "1"])
        assert 1.5 < float(moment) - cut < 3 + SLACK


def test_a_rank_killed_on_one_host_is_named_on_all(spread):
    group = spread(VICTIM, "aabb", "hier", "300000")
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 4
    group[3].kill()
    killed = monotonic()
    for survivor in group[:3]:
        word, dead, moment = survivor.stdout.readline().split()
        assert (word, dead) == ("failed", "3")
        assert float(moment) - killed < SLACK


def test_a_rank_that_computes_without_reading_is_not_taken_for_dead(spread):
    assert finished(spread(BUSY, "ab", "tcp")) == ["alive\n"] * 2


def test_a_slow_link_is_only_slow(spread, hosts):
    try:
        hosts.throttle("20mbit")
    except NoNamespaces as error:
        pytest.skip(f"no slow link here: {error}")
    assert finished(spread(VALUES, "aabb", "hier")) == ["right hier\n"] * 4


def test_nothing_of_the_hosts_is_left_behind(hosts):
    assert set(hosts.names) <= set(os.listdir("/run/netns"))
    hosts.down()
    assert not set(hosts.names) & set(os.listdir("/run/netns"))
    with pytest.raises(OSError, match=hosts.names[0]):
        enter(hosts.names[0])
