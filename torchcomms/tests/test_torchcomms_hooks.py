"""Hooks before, after and on failure; the NaN check; the flight recorder and its dumps."""

import json
import pickle
import threading
from datetime import timedelta

import pytest
import torch

import torchcomms
from torchcomms import CommsAborted, CommsTimeout, OpName, ReduceOp
from torchcomms.errors import NanDetected
from torchcomms.hooks import FlightRecorderHook, NanCheckHook

pytestmark = pytest.mark.unit


def test_hooks_see_each_operation_before_and_after(world, backend):
    def run(comm):
        seen = []
        comm.register_pre_hook(lambda name, op_id, args: seen.append((name, op_id, args.async_op)))
        comm.register_post_hook(lambda op_id, args: seen.append((args.operation, op_id, args.error)))
        comm.all_reduce(torch.ones(3), ReduceOp.SUM, False)
        comm.barrier(True).wait()
        return list(seen)

    for seen in world(backend, 2, run):
        first, second = seen[0][1], seen[2][1]
        assert first < second
        assert seen == [
            (OpName.all_reduce, first, False),
            (OpName.all_reduce, first, None),
            (OpName.barrier, second, True),
            (OpName.barrier, second, None),
        ]


def test_hooks_are_told_the_tensors_under_upstreams_names(world):
    def run(comm):
        told = {}
        comm.register_pre_hook(lambda name, op_id, args: told.setdefault(name.name, args))
        tensor, output = torch.ones(2), torch.ones(4)
        comm.broadcast(tensor, 0)
        comm.all_gather_single(output, tensor)
        comm.gather([tensor.clone(), tensor.clone()], tensor, 1)
        peer = 1 - comm.get_rank()
        pending = comm.send(tensor, peer, True)
        comm.recv(output[:2], peer)
        pending.wait()
        with comm.split([0, 1], "both"):
            pass
        assert told["broadcast"].tensor is tensor
        assert (told["broadcast"].root, told["gather"].root, told["send"].peer) == (0, 1, peer)
        assert (told["all_gather_single"].input is tensor, told["all_gather_single"].output is output) == (True, True)
        assert (told["split"].ranks, told["split"].name) == ((0, 1), "both")

    world("inproc", 2, run)


def test_a_removed_hook_is_not_called_and_the_fast_lane_is_back(world, backend):
    def run(comm):
        fast, calls = comm._express, []
        handles = [
            comm.register_pre_hook(lambda name, op_id, args: calls.append(op_id)),
            comm.register_post_hook(lambda op_id, args: calls.append(op_id)),
            comm.register_abort_hook(lambda: calls.append(-1)),
        ]
        comm.barrier()
        assert comm._express is None
        for handle in [*handles, *handles]:
            handle.remove()
        assert comm._express is fast
        comm.barrier()
        comm.abort()
        return len(calls)

    assert world(backend, 2, run) == [2, 2]


def test_what_a_pre_hook_raises_stops_the_operation_and_nothing_is_sent(world):
    def refuse(name, op_id, args):
        raise ValueError("not today")

    def run(comm):
        handle = comm.register_pre_hook(refuse)
        with pytest.raises(ValueError, match="not today"):
            comm.all_reduce(torch.ones(2), ReduceOp.SUM)
        handle.remove()
        comm.barrier()

    world("inproc", 2, run)


def test_a_post_hook_is_told_the_error_and_an_abort_hook_is_called_once(world, backend):
    done = threading.Barrier(2)

    def run(comm):
        errors, aborts = [], []
        comm.register_post_hook(lambda op_id, args: errors.append(args.error))
        comm.register_abort_hook(lambda: aborts.append(comm.get_rank()))
        pending = comm.recv(torch.ones(1), 1 - comm.get_rank(), True)
        done.wait(20)
        comm.abort("enough")
        with pytest.raises(CommsAborted, match="enough"):
            pending.wait()
        done.wait(20)
        assert [type(error) for error in errors] == [CommsAborted]
        return len(aborts)

    assert world(backend, 2, run) == [1, 1]


def test_a_nan_is_found_before_it_is_sent(world):
    def run(comm):
        check = NanCheckHook()
        assert not check.is_enabled()
        check.register_with_comm(comm)
        assert check.is_enabled()
        with pytest.raises(NanDetected, match=r"1 of 3 .* input of all_reduce .* 'test'") as caught:
            comm.all_reduce(torch.tensor([1.0, float("nan"), 2.0]), ReduceOp.SUM)
        assert (caught.value.operation, caught.value.count) == ("all_reduce", 1)
        with pytest.raises(NanDetected, match="input of reduce_scatter "):
            comm.reduce_scatter(torch.ones(1), [torch.ones(1), torch.full((1,), torch.nan)], ReduceOp.SUM)
        comm.all_gather([torch.full((1,), torch.nan) for _ in range(2)], torch.ones(1))
        comm.all_reduce(torch.ones(2, dtype=torch.int64), ReduceOp.SUM)
        check.unregister()
        comm.all_reduce(torch.full((1,), torch.nan), ReduceOp.SUM)

    world("inproc", 2, run)


FIELDS = {
    "record_id": int,
    "pg_id": int,
    "process_group": list,
    "collective_seq_id": int,
    "p2p_seq_id": int,
    "op_id": int,
    "profiling_name": str,
    "input_sizes": list,
    "input_dtypes": list,
    "output_sizes": list,
    "output_dtypes": list,
    "time_created_ns": int,
    "state": str,
    "is_p2p": bool,
    "retired": bool,
    "timeout_ms": int,
}


def test_the_recorder_keeps_the_last_operations_in_torchs_format(world, backend):
    def run(comm):
        recorder = FlightRecorderHook(max_entries=3)
        recorder.register_with_comm(comm)
        for _ in range(2):
            comm.barrier()
        comm.all_reduce(torch.ones(3, 4), ReduceOp.SUM)
        peer = 1 - comm.get_rank()
        comm.sendrecv(torch.ones(1), peer, torch.ones(1), peer)
        pending = comm.recv(torch.ones(5, dtype=torch.int64), peer, True)
        text = json.loads(recorder.dump_json())
        both.wait(20)
        comm.send(torch.ones(5, dtype=torch.int64), peer)
        pending.wait()
        recorder.unregister()
        assert not recorder.is_enabled()
        comm.barrier()
        assert (recorder.size(), len(json.loads(recorder.dump_json(False))["entries"])) == (3, 0)
        recorder.reset()
        assert recorder.size() == 0
        return text

    both = threading.Barrier(2)
    for rank, text in enumerate(world(backend, 2, run)):
        assert (text["version"], text["rank"]) == ("2.10", rank)
        assert text["pg_config"]["test"]["ranks"] == "[0,1]"
        reduced, _, received = text["entries"]
        for entry in text["entries"]:
            assert all(type(entry[name]) is kind for name, kind in FIELDS.items())
        assert (reduced["profiling_name"], reduced["state"], reduced["collective_seq_id"]) == (
            f"{backend}:all_reduce",
            "completed",
            3,
        )
        assert (reduced["input_sizes"], reduced["input_dtypes"]) == ([[3, 4]], ["Float"])
        assert reduced["frames"][0]["filename"] == "test_torchcomms_hooks.py"
        assert (received["profiling_name"], received["state"]) == (f"{backend}:recv {rank}<-{1 - rank}", "started")
        assert received["is_p2p"]


def test_the_recorder_writes_the_file_that_torchs_tools_read(world, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))

    def run(comm):
        recorder = FlightRecorderHook()
        recorder.register_with_comm(comm)
        comm.barrier()
        return recorder.dump_file(comm.get_rank())

    for rank, path in enumerate(world("inproc", 2, run)):
        assert path == str(tmp_path / f"trace_{rank}")
        with open(path, "rb") as file:
            assert pickle.load(file)["entries"][0]["profiling_name"] == "inproc:barrier"


@pytest.mark.parametrize("how", ["hint", "variable"])
def test_records_are_written_by_themselves_when_an_operation_fails(outcomes, backend, tmp_path, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("TORCHCOMMS_TRACE_DIR", str(tmp_path))
    hints = {"trace_dir": str(tmp_path)} if how == "hint" else {}
    done = threading.Barrier(2)

    def run(comm):
        comm.barrier()
        try:
            if comm.get_rank() == 0:
                comm.all_reduce(torch.ones(3), ReduceOp.SUM, timeout=timedelta(seconds=0.1))
        finally:
            done.wait(20)

    assert isinstance(outcomes(backend, 2, run, hints=hints)[0], CommsTimeout)
    (path,) = tmp_path.iterdir()
    assert path.name == "test.0.json"
    entries = json.loads(path.read_text())["entries"]
    assert [(entry["profiling_name"], entry["state"]) for entry in entries] == [
        (f"{backend}:barrier", "completed"),
        (f"{backend}:all_reduce", "started"),
    ]


def test_the_names_of_upstream_are_there():
    for name in ("AllReduceOptions", "BatchP2POptions", "CommOptions", "SendOptions", "AllToAllvSingleOptions"):
        assert getattr(torchcomms, name)().hints == {}
    assert torchcomms.TorchWork is torchcomms.Work
    assert torchcomms.ReduceOp.PREMUL_SUM(torch.tensor(0.5)).type is torchcomms.RedOpType.PREMUL_SUM
    assert torchcomms.ReduceOp.SUM.type is torchcomms.RedOpType.SUM
