"""Stages as text, work counted, and time set against the machine's measured limits."""

import pytest
import torch

from helium import library
from helium.roofline import Roofline, measure, roofline, work
from helium.runtime import threads
from helium.schedule import choose
from helium.targets import host_target, machine


@pytest.mark.unit
def test_every_stage_prints():
    stages = library.softmax.stages(torch.randn(3, 5))
    assert list(stages) == ["source", "ir", "llvm", "optimised", "assembly"]
    assert "torch.softmax" in stages["source"]
    assert "reduce_max" in stages["ir"]
    assert "define" in stages["llvm"]
    assert "define" in stages["optimised"]
    assert "softmax" in stages["assembly"]
    assert library.softmax.debug("ir", torch.randn(3, 5)) == stages["ir"]


@pytest.mark.unit
def test_work_is_counted_from_the_ir():
    x, y = torch.empty(8, 16), torch.empty(16, 4)
    counted = work(library.matmul.lower(x, y), library.matmul.bind(x, y))
    assert counted.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert counted.flops == 2 * 8 * 16 * 4
    assert work(library.add.lower(x, x), library.add.bind(x, x)).flops == 8 * 16


@pytest.mark.unit
def test_an_explanation_reports_what_it_found():
    told = library.softmax.explain(torch.randn(64, 256))
    assert told.name == "helium::softmax"
    assert told.target == host_target()
    assert told.milliseconds > 0
    assert told.roofline_share > 0
    assert told.bytes == 2 * 4 * 64 * 256
    assert told.threads == torch.get_num_threads()
    assert "of the roofline" in str(told)
    assert "Config(tile_m=1)" in str(told)


@pytest.mark.unit
def test_the_roofline_bounds_by_the_scarcer_of_two():
    limits = Roofline(1, bandwidth=lambda moved: 1e10 if moved < 1 << 24 else 1e9, flops=1e9)
    assert limits.seconds(10**9, 1) == pytest.approx(1.0)
    assert limits.seconds(1000, 10**9) == pytest.approx(1.0)
    assert roofline() is roofline()
    assert measure(lambda: None, least=0.0, repeats=1) >= 0


@pytest.mark.unit
def test_the_default_schedule_goes_by_role_and_size():
    x = torch.empty(4, 4)
    kernel = library.matmul.lower(x, x)
    small, large = (choose(kernel, library.matmul.config, results) for results in (10_000, 10_000_000))
    assert small["tile_m"] < large["tile_m"]
    assert choose(library.softmax.lower(x), library.softmax.config, 16) == {"tile_m": 1}


@pytest.mark.unit
def test_machines_are_known_by_target():
    assert machine("x86_64-linux").vector_bytes == 16
    assert machine("x86_64-linux+avx2").vector_bytes == 32
    wide = machine("x86_64-linux+avx512")
    assert (wide.vector_bytes, wide.registers) == (64, 32)
    assert "-prefer-256-bit" in wide.features
    assert machine("aarch64-linux").triple.startswith("aarch64")
    assert machine(host_target()).vector_bytes >= 16


@pytest.mark.unit
def test_kernels_join_torchs_own_pool():
    pool = threads.pool()
    assert pool is None or (pool.fork and pool.number)
