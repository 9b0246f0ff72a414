"""Kernels found by entry point, and the log-probability that generator and trainer share."""

import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest
import torch

from forge.errors import ProviderError
from forge.kernels import find_kernel, token_logprobs
from forge.models import Decoder, DecoderConfig

pytestmark = pytest.mark.unit


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


rms_norm.interface = (1, 3)


class Provider:
    interface = (1, 0)
    namespace = "fake"

    def find(self, name: str) -> object:
        return {"fake::rms_norm": rms_norm, "fake::old": SimpleNamespace(interface=(0, 9))}.get(name)


@pytest.fixture(name="provide")
def _provide(monkeypatch: pytest.MonkeyPatch):
    """Install a provider object under an entry point, for the length of a test."""

    def provide(provider: object) -> None:
        module = ModuleType("forge_test_provider")
        module.provider = provider
        monkeypatch.setitem(sys.modules, module.__name__, module)
        point = metadata.EntryPoint("fake", f"{module.__name__}:provider", "helium.kernels.v1")
        monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints([point]))

    return provide


def test_a_kernel_is_found_by_name_and_used_by_the_decoder(provide) -> None:
    provide(Provider())
    kernel = find_kernel("fake::rms_norm")
    assert kernel is rms_norm
    config = DecoderConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(Decoder(config, rms_norm=kernel)(tokens), Decoder(config)(tokens))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rms_norm", "namespace::kernel"),
        ("absent::rms_norm", r"no provider 'absent'.*there is: fake.*pentad-forge\[stack\]"),
        ("fake::absent", "no kernel 'fake::absent'"),
        ("fake::old", r"interface \(0, 9\)"),
    ],
)
def test_what_cannot_be_found_says_why(provide, name: str, message: str) -> None:
    provide(Provider())
    with pytest.raises(ProviderError, match=message):
        find_kernel(name)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (SimpleNamespace(interface=(2, 0), find=Provider.find), r"interface \(2, 0\)"),
        (SimpleNamespace(interface=(1, 0)), r"no find\(name\)"),
        (SimpleNamespace(interface=(1, 0), find=lambda: None), r"no find\(name\)"),
    ],
)
def test_a_provider_that_breaks_the_contract_is_refused_when_loaded(provide, provider: object, message: str) -> None:
    provide(provider)
    with pytest.raises(ProviderError, match=message):
        find_kernel("fake::rms_norm")


def test_logprobs_are_of_the_scaled_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    ids = torch.tensor([0, 1])
    assert token_logprobs(logits, ids, 0.5).tolist() == pytest.approx([-0.0181, -4.0181], abs=1e-4)
    mixed = token_logprobs(logits, ids, torch.tensor([0.5, 1.0]))
    assert mixed.tolist() == pytest.approx([-0.0181, -2.1269], abs=1e-4)
    assert token_logprobs(logits.view(1, 2, 2), ids.view(1, 2)).shape == (1, 2)


def test_a_kernel_gets_scaled_rows_and_gradients_flow_without_one() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    ids = torch.randint(0, 5, (2, 3))
    rows = []

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows.append((x.shape, y.shape))
        return x.log_softmax(-1).gather(-1, y[:, None])[:, 0]

    plain = token_logprobs(logits, ids, 0.7)
    torch.testing.assert_close(token_logprobs(logits, ids, 0.7, kernel=kernel), plain)
    assert rows == [((6, 5), (6,))]
    plain.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.sum(-1), torch.zeros(2, 3), atol=1e-6, rtol=0.0)
