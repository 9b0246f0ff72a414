"""torch.distributed over this package: registration, every operation, futures, errors, and what is left behind."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchcomms import ReduceOp, _register
from torchcomms.distributed.reduction import translate
from torchcomms.errors import InvalidCall

SCRIPT = Path(__file__).with_name("distributed_operations.py")


def python(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def finish(group):
    """Every rank has said "ok"."""
    for rank in group:
        written, errors = rank.communicate()
        assert (rank.returncode, written) == (0, "ok\n"), errors


@pytest.mark.unit
def test_torch_knows_the_backend():
    assert [entry.value for entry in entry_points(group="torch.backends", name="torchcomms")] == [
        "torchcomms._register:register"
    ]
    assert dist.is_backend_available("torchcomms")
    assert dist.Backend("TORCHCOMMS") == "torchcomms"


@pytest.mark.unit
def test_registering_without_torch_distributed_does_nothing(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "Backend")
    _register.register()


@pytest.mark.unit
def test_each_reduction_has_its_own():
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        kind = getattr(dist.ReduceOp, name)
        assert translate(kind) == translate(dist.ReduceOp(kind)) == getattr(ReduceOp, name)
    for factor in (0.25, torch.tensor([0.25])):
        assert translate(dist._make_nccl_premul_sum(factor)) == ReduceOp.PREMUL_SUM(0.25)
    with pytest.raises(InvalidCall, match="'sum'"):
        translate("sum")


@pytest.mark.system
def test_the_backend_is_known_when_torchcomms_is_imported_first():
    assert python("import torchcomms, torch; print(torch.distributed.Backend.TORCHCOMMS)") == "torchcomms\n"


COST = """
import sys, time, torch
from importlib.metadata import entry_points

assert torch.distributed.Backend.TORCHCOMMS == "torchcomms"
ours = sorted(name for name in sys.modules if name.startswith("torchcomms"))
(entry,) = set(entry_points(group="torch.backends", name="torchcomms"))
times = []
for _ in range(10):
    for name in ours:
        del sys.modules[name]
    began = time.process_time()
    entry.load()()
    times.append(1e3 * (time.process_time() - began))
print(min(times), *ours)
"""


@pytest.mark.system
def test_importing_torch_takes_less_than_five_milliseconds_more():
    taken, *imported = python(COST).split()
    assert imported == ["torchcomms", "torchcomms._register"]
    assert float(taken) < 5


@pytest.mark.system
@pytest.mark.parametrize("size", [2, 4])
def test_every_operation_on_the_default_group_and_a_smaller_one(ranks, size):
    finish(ranks(size, SCRIPT, "operations"))


@pytest.mark.system
@pytest.mark.parametrize("name", ["forms", "futures", "mismatch", "failed_future", "late", "abort", "options"])
def test_two_ranks(ranks, name):
    finish(ranks(2, SCRIPT, name))


@pytest.mark.system
def test_a_dead_rank_is_named_by_all_others(ranks):
    group = ranks(3, SCRIPT, "death")
    group[1].wait()
    finish([group[0], group[2]])


@pytest.mark.system
def test_ten_times_opened_and_destroyed_leaves_no_descriptor_or_thread(ranks):
    finish(ranks(2, SCRIPT, "again"))


@pytest.mark.system
def test_other_devices_keep_the_backend_that_torch_has_for_them(ranks):
    finish(ranks(2, SCRIPT, "beside", "meta:torchcomms,cpu:gloo", TORCHCOMMS_BACKEND="tcp"))


@pytest.mark.system
def test_torchrun_starts_it(start):
    flags = ["--standalone", "--nnodes=1", "--nproc-per-node=2"]
    launcher = start(Path(torch.__file__).parent / "distributed" / "run.py", *flags, SCRIPT, "forms")
    written, errors = launcher.communicate()
    assert launcher.returncode == 0, errors
    assert sorted(written.replace("\n", "")) == sorted("okok")


@pytest.mark.system
def test_torchcomms_run_starts_it(start, tmp_path):
    script = tmp_path / "command.py"
    script.write_text("from torchcomms.cli import main; main()")
    launcher = start(script, "run", "-n", "2", SCRIPT, "forms")
    written, errors = launcher.communicate()
    assert launcher.returncode == 0, errors
    assert sorted(written.splitlines()) == ["[0] ok", "[1] ok"]
