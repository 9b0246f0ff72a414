"""Every kernel of the library, and one of a user's, keeps the kernel-callable contract."""

import shutil

import pytest
import torch

import helium
import helium.language as hl
from helium import library
from helium.testing import CHECKS, Case, check_kernel

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(shutil.which("cc") is None, reason="artifacts are linked with cc"),
]


@helium.kernel()
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


CASES = {
    "add": [Case((_random(5, 37), _random(5, 37)))],
    "softmax": [Case((_random(5, 37),)), Case((_random(3, 1),))],
    "rms_norm": [Case((_random(5, 37), _random(37), 1e-6)), Case((_random(7, 64).half(), _random(64).half(), 0.1))],
    "log_prob": [Case((_random(5, 300), torch.tensor([0, 299, 7, 7, 150])))],
    "matmul": [Case((_random(33, 70), _random(70, 20)))],
    "attention": [
        Case((_random(4, 9, 16), _random(2, 70, 16), _random(2, 70, 16) * 2, 0.25, True), symbolic=False),
        Case((_random(2, 3, 8).half(), _random(2, 5, 8).half(), _random(2, 5, 8).half(), 0.3, False), symbolic=False),
    ],
    "layer_norm": [
        Case((_random(5, 37) + 100.0, _random(37), _random(37), 1e-5), rtol=1e-3, atol=1e-4),
        Case((_random(7, 64).half(), _random(64).half(), _random(64).half(), 0.1)),
    ],
    "cross_entropy": [Case((_random(5, 300), torch.tensor([0, 299, 7, 7, 150])))],
    "swiglu": [
        Case((_random(5, 37), _random(5, 37) * 3)),
        Case((_random(3, 37).bfloat16(), _random(3, 37).bfloat16())),
    ],
    "geglu": [Case((_random(5, 37), _random(5, 37) * 3))],
    "embedding": [Case((torch.tensor([0, 9, 3, 3]), _random(10, 37)))],
    "kl": [Case((_random(5, 37), _random(5, 37) * 2))],
    "rope": [Case((_random(5, 16), _random(5, 8).cos(), _random(5, 8).sin()))],
}


@pytest.mark.parametrize("name", CASES)
def test_library_kernel_keeps_the_contract(name):
    report = check_kernel(getattr(library, name), CASES[name], target=helium.host_target())
    assert report.failed == {}
    symbolic = any(case.symbolic for case in CASES[name])
    assert set(report.unclaimed) == (set() if symbolic else {"abstract-symbolic", "artifact-symbolic"})
    assert {*report.ran, *report.unclaimed} == {check.id for check in CHECKS}


@pytest.mark.parametrize("name", ["log_prob", "matmul"])
def test_library_kernel_keeps_the_contract_on_the_least_machine(name):
    report = check_kernel(getattr(library, name), CASES[name][:1])
    assert report.failed == {}
    assert report.unclaimed == {}


def test_kernel_of_a_user_keeps_the_contract():
    report = check_kernel(scaled, [Case((_random(37), 0.5)), Case((_random(1), -1.0))])
    assert report.failed == {}
    assert report.unclaimed == {}
