"""forge's in-process launcher against monarch's conformance kit, and forge's actors on monarch's processes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from forge.config import GrpoConfig, KernelConfig, ModelConfig, TaskConfig, WarmUpConfig
from forge.launch import load
from forge.launchers.inline import make
from forge.recipes import grpo
from forge.run_directory import read_metrics
from monarch.testing import check_launcher


@pytest.mark.unit
def test_inline_conforms():
    report = check_launcher(make)
    assert report.failed == {}
    assert "call.values" in report.ran
    assert "processes.apart" in report.unclaimed


@pytest.mark.unit
def test_launchers_are_found_by_name():
    assert load("inline").name == "inline"
    assert load("local").name == "local"


def config(tmp_path, **changes) -> GrpoConfig:
    small = GrpoConfig(
        steps=3,
        groups_per_step=2,
        group_size=4,
        threads=1,
        out=str(tmp_path),
        model=ModelConfig(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2),
        task=TaskConfig(options={"digits": 2, "held_out_size": 8}),
        warm_up=WarmUpConfig(max_steps=2, batch_size=8, until=1.0),
    )
    return replace(small, **changes)


def run(configuration):
    return asyncio.run(asyncio.wait_for(grpo.run(configuration), 120))


@pytest.mark.system
@pytest.mark.parametrize("sync", ["message", "tcp"])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_run_on_processes(tmp_path, sync, max_staleness):
    result = run(config(tmp_path, launcher="local", sync=sync, max_staleness=max_staleness, generators=2))
    assert len(result.processes - {os.getpid()}) == 3
    assert result.sync == sync
    assert result.parity < 1e-4
    assert [line["step"] for line in read_metrics(result.run_dir)] == [0, 1, 2, 3, 3]
    assert not [pid for pid in result.processes - {os.getpid()} if os.path.exists(f"/proc/{pid}")]


@pytest.mark.system
def test_processes_or_not_is_the_same_run(tmp_path):
    """On policy, by either launcher and either sync, the numbers are equal."""
    runs = [
        run(config(tmp_path, launcher=launcher, sync=sync))
        for launcher, sync in (("inline", "message"), ("local", "message"), ("local", "tcp"))
    ]
    curves = [[line["reward/mean"] for line in result.history] for result in runs]
    assert curves[0] == curves[1] == curves[2]
    assert len({result.history[-1]["loss"] for result in runs}) == 1


@pytest.mark.unit
def test_collectives_sync_inline_and_a_kernel_computes_the_norms(tmp_path):
    kernels = KernelConfig(rms_norm="helium::rms_norm", log_prob="helium::log_prob")
    result = run(config(tmp_path, sync="tcp", kernels=kernels))
    plain = run(config(tmp_path))
    assert result.parity < 1e-4
    assert result.history[0]["loss"] == pytest.approx(plain.history[0]["loss"], abs=1e-4)
