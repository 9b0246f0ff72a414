"""The provider of the namespace "helium": found by its entry point, and finding kernels by name."""

from importlib.metadata import entry_points

import pytest
import torch

import helium
import helium.language as hl
from helium import library
from helium.contract import GROUP
from helium.provider import provider
from helium.testing import PROVIDER_CHECKS, check_provider

LIBRARY = ("add", "log_prob", "matmul", "rms_norm", "softmax")


@pytest.mark.contract
def test_provider_keeps_the_contract():
    report = check_provider(provider, [f"helium::{name}" for name in LIBRARY])
    assert report.failed == {}
    assert report.ran == tuple(id for id, _, _ in PROVIDER_CHECKS)


@pytest.mark.unit
def test_entry_point_is_the_provider():
    (found,) = entry_points(group=GROUP, name="helium")
    assert found.load() is provider


@pytest.mark.unit
@pytest.mark.parametrize("name", LIBRARY)
def test_library_is_found_by_name(name):
    assert provider.find(f"helium::{name}") is getattr(library, name)


@pytest.mark.unit
def test_kernel_of_a_user_is_found_by_module_and_name():
    @helium.kernel()
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * 2.0
        return out

    assert doubled.name.startswith("helium::")
    assert doubled.name.endswith("__doubled")
    assert provider.find(doubled.name) is doubled


@pytest.mark.unit
@pytest.mark.parametrize("name", ["helium::nothing", "other::softmax", "softmax", ""])
def test_what_is_not_there_is_none(name):
    assert provider.find(name) is None
