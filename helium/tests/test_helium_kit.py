"""The conformance kit passes what keeps the contract and fails each broken kernel at its one check."""

import runpy
import shutil
from pathlib import Path

import pytest
import torch

from helium.testing import CHECKS, PROVIDER_CHECKS, Case, check_kernel, check_provider
from helium.testing.elf import Elf

BROKEN = runpy.run_path(str(Path(__file__).parent / "broken" / "kernels.py"))
CASES = [Case((torch.linspace(-1, 1, 12).reshape(3, 4), 1.5)), Case((torch.ones(5), -2.0))]
ARTIFACT = {check.id for check in CHECKS if check.id.startswith("artifact-")}

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the test kernels are compiled with cc")
pytestmark = pytest.mark.contract


@needs_cc
def test_kernel_that_keeps_the_contract_fails_nothing():
    report = check_kernel(BROKEN["GOOD"][0], CASES)
    assert report.failed == {}
    assert report.unclaimed == {}
    assert report.ran == tuple(check.id for check in CHECKS)


@needs_cc
def test_c_source_is_linked_and_run():
    report = check_kernel(BROKEN["GOOD"][1], CASES)
    assert report.failed == {}
    assert set(report.unclaimed) == {"artifact-no-undefined-symbols"}


def test_unsupported_machine_is_unclaimed_with_the_reason():
    report = check_kernel(BROKEN["GOOD"][2], CASES)
    assert report.failed == {}
    assert set(report.unclaimed) == ARTIFACT
    assert "wasm32" in report.unclaimed["artifact-compiles"]


def test_missing_compiler_is_unclaimed_with_the_reason(monkeypatch):
    artifacts = check_kernel(BROKEN["GOOD"][0], CASES)
    monkeypatch.setattr("helium.testing.native.shutil.which", lambda name: None)
    report = check_kernel(_Precompiled(BROKEN["GOOD"][0]), CASES)
    assert artifacts.failed == report.failed == {}
    assert "no C compiler" in report.unclaimed["artifact-links"]


@needs_cc
@pytest.mark.parametrize("kernel", BROKEN["KERNELS"], ids=lambda kernel: kernel.fails)
def test_broken_kernel_fails_its_one_check(kernel):
    report = check_kernel(kernel, CASES[:1])
    assert set(report.failed) == {kernel.fails}, report.failed
    assert "contract: " in report.failed[kernel.fails]


@pytest.mark.parametrize("provider", BROKEN["PROVIDERS"], ids=lambda provider: provider.fails)
def test_broken_provider_fails_its_one_check(provider):
    assert set(check_provider(provider, [BROKEN["Scale"].name]).failed) == {provider.fails}


def test_good_provider_fails_nothing():
    report = check_provider(BROKEN["Provider"](), [BROKEN["Scale"].name])
    assert report.failed == {}
    assert len(report.ran) == len(PROVIDER_CHECKS)


def test_every_check_has_a_broken_kernel_or_provider():
    assert {kernel.fails for kernel in BROKEN["KERNELS"]} == {check.id for check in CHECKS}
    assert {provider.fails for provider in BROKEN["PROVIDERS"]} == {id for id, _, _ in PROVIDER_CHECKS}


def test_no_cases_is_an_error():
    with pytest.raises(ValueError, match="at least one Case"):
        check_kernel(BROKEN["GOOD"][0], [])


def test_case_tolerance_replaces_that_of_the_dtype():
    near = torch.ones(3) * 1.01
    assert Case((), rtol=0.1).difference(near, torch.ones(3)) == ""
    assert "3 of 3 elements differ" in Case(()).difference(near, torch.ones(3))


def test_case_symbols_are_one_for_each_size():
    case = Case((torch.ones(3, 4), torch.ones(4, 1), 2.0))
    first, second, number = case.symbolic_specs()
    assert (first.shape, first.strides) == (("n0", "n1"), ("n1", 1))
    assert (second.shape, number) == (("n1", 1), 2.0)
    assert case.sizes() == {"n0": 3, "n1": 4}


@pytest.mark.parametrize("code", [b"", b"MZ" * 40, b"\x7fELF" + b"\0" * 60], ids=["empty", "other", "damaged"])
def test_what_is_not_elf_is_refused(code):
    with pytest.raises(ValueError, match="ELF"):
        Elf(code)


class _Precompiled:
    """The same kernel with artifacts made beforehand, for a machine that lost its compiler."""

    def __init__(self, kernel):
        self._kernel, self._kept = kernel, {}
        for case in CASES:
            for specs in (case.specs(), case.symbolic_specs()):
                self._kept[specs] = kernel.artifact(*specs, target=BROKEN["HERE"])

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def __call__(self, *args):
        return self._kernel(*args)

    def artifact(self, *specs, target):
        if target != BROKEN["HERE"]:
            return self._kernel.artifact(*specs, target=target)
        return self._kept[specs]
