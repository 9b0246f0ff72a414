"""Properties over random shapes, block sizes and kernels."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import helium
import helium.language as hl
from helium import exc, library, reference

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
sizes = st.integers(0, 70)
blocks = st.integers(1, 40)


@pytest.mark.unit
@SETTINGS
@given(m=sizes, n=st.integers(1, 200), seed=st.integers(0, 9))
def test_softmax_rows_sum_to_one(m, n, seed):
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) * 10
    got = library.softmax(x)
    torch.testing.assert_close(got, torch.softmax(x, -1), rtol=3e-6, atol=1e-7)
    torch.testing.assert_close(got.sum(-1), torch.ones(m), rtol=1e-5, atol=1e-5)


@pytest.mark.unit
@SETTINGS
@given(m=sizes, k=sizes, n=sizes)
def test_products_equal_torchs(m, k, n):
    x, y = torch.randn(m, k), torch.randn(k, n)
    torch.testing.assert_close(library.matmul(x, y), x @ y, rtol=1e-4, atol=1e-4)


@pytest.mark.unit
@SETTINGS
@given(m=st.integers(1, 20), v=st.integers(1, 30), tile_m=blocks, tile_v=blocks)
def test_block_sizes_never_change_what_is_computed(m, v, tile_m, tile_v):
    logits, ids = torch.randn(m, v), torch.randint(0, v, (m,))
    kernel = library.log_prob.lower(logits, ids)
    tensors = {"logits": logits, "ids": ids}
    (got,) = reference.run(kernel, tensors, {}, {"tile_m": tile_m, "tile_v": tile_v})
    torch.testing.assert_close(got, library.log_prob(logits, ids), rtol=1e-5, atol=1e-5)


PIECES = [
    "x[tile_m, tile_n]", "x[tile_m, :]", "x[tile_n, tile_m]", "torch.exp(x[tile_m, tile_n])", "x[tile_m]", "x",
    "tile_m", "x[tile_m, :].sum(-1)", "x[tile_m, tile_n].amax(1)[:, None]", "hl.zeros([tile_m, tile_n])", "n", "1.5",
    "None", "x[tile_m, tile_n] @ x[tile_n, tile_m]", "tile_n.index", "x[tile_n.index, tile_n]", "x.size()", "[x]",
    "(1, 2)",
]  # fmt: skip
pieces = st.sampled_from(PIECES)
symbols = st.sampled_from(["+", "-", "*", "/", "<", "&", "@", "%", "//", "**"])


@pytest.mark.unit
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(left=pieces, symbol=symbols, right=pieces)
def test_whatever_is_written_only_kernel_errors_leave_the_front_end(left, symbol, right):
    text = (
        "def made(x):\n    m, n = x.size()\n    out = torch.empty_like(x)\n    for tile_m, tile_n in hl.tile([m, n]):\n"
        f"        out[tile_m, tile_n] = ({left}) {symbol} ({right})\n    return out\n"
    )
    space = {"torch": torch, "hl": hl, "__name__": "fuzz"}
    exec(text, space)
    kernel = helium.Kernel(space["made"], "helium::fuzz", backward=None, config=None, source=text)
    try:
        told = str(kernel.lower(torch.empty(3, 3)))
    except exc.KernelError as error:
        told = str(error)
    assert told.startswith("kernel made") or ("\n  --> " in told and "\n  fix: " in told)
