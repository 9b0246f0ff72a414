"""Operations: what is compiled, and what is interpreted, is what torch computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import executor
from executor import ir

pytestmark = pytest.mark.system

Case = tuple[Callable[..., Any], tuple[Any, ...]]


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self._function(*tensors)


def _floats(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Element-wise, of floats, broadcast."""
    positive = x.abs() + 0.1
    return {
        "arithmetic": (x + y) * 2 - x / (y.abs() + 1),
        "alpha": torch.add(x, y, alpha=2.5) - torch.sub(y, x, alpha=0.5),
        "reverse": 1 - x,
        "exp": torch.exp(x),
        "exp_far": torch.exp(x * 40),
        "log": torch.log(positive) + torch.log1p(positive) + torch.log2(positive),
        "roots": positive.sqrt() + positive.rsqrt() + positive.reciprocal(),
        "circle": torch.sin(x) + torch.cos(x) + torch.tan(x) + torch.atan2(x, y),
        "tanh": torch.tanh(x * 3),
        "tanh_small": torch.tanh(x * 1e-3),
        "sigmoid": torch.sigmoid(x * 10),
        "erf": torch.erf(x),
        "expm1": torch.expm1(x),
        "rounding": x.floor() + x.ceil() * 3 + x.trunc() * 5 + (x * 10).round() * 7,
        "powers": x**2 + x**3 + positive**0.5 + positive**-0.5 + positive**1.7 + 2**x + positive**y,
        "relu": F.relu(x),
        "silu": F.silu(x),
        "gelu": F.gelu(x),
        "gelu_tanh": F.gelu(x, approximate="tanh"),
        "leaky": F.leaky_relu(x, 0.1) + F.elu(x, 0.7),
        "clamp": x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.2) + F.hardtanh(x),
        "extremes": torch.maximum(x, y) + torch.minimum(x, y) * 2,
        "remainder": torch.remainder(x, 0.7) + torch.fmod(x, 0.7),
        "divisions": torch.div(x, 0.3, rounding_mode="floor") + torch.div(x, 0.3, rounding_mode="trunc"),
        "where": torch.where(x > y, x, 0.0) + torch.where(x <= 0, -1.0, 1.0),
        "masked": x.masked_fill(x > 0, float("-inf")),
        "sign": x.sign() + x.neg() + x.abs(),
        "lerp": torch.addcmul(x, y, y, value=0.5),
    }


def _numbers(i: Tensor, j: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Element-wise, of integers and truth values."""
    return {
        "arithmetic": i * 3 + j - 7,
        "down": torch.div(i, 3, rounding_mode="floor") + i // 4,
        "to_zero": torch.div(i, 3, rounding_mode="trunc"),
        "true": i / 2,
        "negative": torch.stack([i // -3, i % -3, torch.arange(16) // -3, torch.arange(16) % -3 + i]),
        "wrapped": torch.stack([(torch.arange(16) + i * 0) * 2**61 % 7, torch.arange(16) * 2**61 // 7 + i]),
        "rest": i % 5 + torch.fmod(i, 5),
        "bits": (i & 6) | (j ^ 3),
        "shifts": (j << 2) + (i >> 1),
        "inverse": ~i,
        "narrow": i.to(torch.int32) * 2,
        "to_float": i.float() * 0.5,
        "to_bool": i.bool(),
        "compare": (i < j) | (i == j),
        "logic": torch.logical_and(b, i > 0) ^ torch.logical_not(b),
        "mixed": i + 0.5,
        "where": torch.where(b, i, j),
        "clamp": i.clamp(-2, 2),
        "count": b.sum() + (i > 0).sum(),
        "sign": i.sign() * i.abs() - i,
        "square": i**2,
    }


def _edges(x: Tensor, y: Tensor, i: Tensor, narrow: Tensor, small: Tensor) -> dict[str, Tensor]:
    """Element-wise at the ends of a dtype: NaN, infinities, halves, the least integer."""
    least = torch.iinfo(torch.int64).min
    return {
        "sign": x.sign(),
        "absolute": x.abs(),
        "negative": x.neg(),
        "maximum": torch.maximum(x, y),
        "minimum": torch.minimum(x, y),
        "swapped": torch.maximum(y, x) + torch.minimum(y, x),
        "clamp": x.clamp(-1.0, 1.0),
        "clamp_min": x.clamp(min=-0.5),
        "clamp_max": x.clamp(max=0.5),
        "clamp_crossed": x.clamp(1.0, -1.0),
        "clamp_nan": x.clamp(min=float("nan")),
        "clamp_tensors": torch.clamp(x, min=y, max=y + 1),
        "relu": F.relu(x),
        "relu6": F.relu6(x),
        "leaky": F.leaky_relu(x, 0.1),
        "elu": F.elu(x),
        "silu": F.silu(x) + F.gelu(x) + torch.tanh(x) + torch.sigmoid(x),
        "exp": torch.exp(x),
        "round": x.round(),
        "whole": x.floor() + x.ceil() + x.trunc(),
        "compare": torch.stack([x < y, x <= y, x == y, x != y, x >= y, x > y]),
        "isnan": x.isnan(),
        "bool": x.bool(),
        "reduced": torch.stack([x.amax(), x.amin(), x[3:].amax(), x[3:].amin()]),
        "places": torch.stack([x.argmax(), x.argmin()]),
        "integers": torch.stack([i.sign(), i.abs(), i.neg(), F.relu(i)]),
        "integer_extremes": torch.stack([torch.maximum(i, i.flip(0)), torch.minimum(i, i.flip(0)), i.clamp(-1, 3)]),
        "least": torch.stack([(i > least).long(), i.clamp(min=least), torch.where(i < 0, least, i)]),
        "narrow": torch.stack([narrow.sign(), narrow.abs(), narrow.neg(), narrow.clamp(-1, 3)]),
        "small": torch.stack([small.sign(), small.neg(), small.clamp(1, 3)]),
    }


def _views(x: Tensor) -> dict[str, Tensor]:
    """Everything that only moves elements."""
    first, second = x.chunk(2, dim=-1)
    return {
        "transpose": x.transpose(0, 1) * 1.5,
        "permute": x.permute(2, 0, 1).contiguous(),
        "reshape": x.permute(2, 0, 1).reshape(3, -1),
        "flatten": x.flatten(),
        "unsqueeze": x.unsqueeze(1).squeeze(1) + 1,
        "slice": x[:, 1:, ::2] + 1,
        "select": x[1] + x[:, -1].sum(),
        "expand": x[:1].expand(3, -1, -1) * 2,
        "rotate": torch.cat([-second, first], dim=-1),
        "stack": torch.stack([x, x * 2], dim=1),
        "split": torch.cat(x.split([1, 2], dim=1)[::-1], dim=1),
        "unbind": x.unbind(0)[1] + x.unbind(0)[0],
        "flip": x.flip(-1, 0),
        "repeat": x.repeat(2, 1, 1) + 1,
        "grouped": x.repeat_interleave(2, dim=1),
        "pad": F.pad(x, (1, 2, 0, 1), value=3.0),
        "roll": torch.cat([x[1:], x[:1]]),
        "triangle": torch.triu(x[0]) + torch.tril(x[1]),
        "range": x + torch.arange(4) + torch.arange(0.0, 2.0, 0.5),
        "full": torch.full((2, 2), 3.0) + torch.ones(2) + torch.zeros(2, 1) + torch.zeros_like(x[:2, :2, 0]),
    }


def _reductions(x: Tensor, i: Tensor) -> dict[str, Any]:
    """Sums and their like, over one axis and several."""
    return {
        "sum": x.sum() + x.sum(1) + x.sum((1, 2), keepdim=True)[0],
        "mean": x.mean(-1) + x.mean(),
        "mean_of_three": x.mean(1),
        "prod": x.prod(1),
        "amax": x.amax(-1) + x.amin(-1),
        "max": x.max(dim=1),
        "min": x.min(dim=0).values,
        "argmax": x.argmax(-1) + x.argmin(-1),
        "argmax_all": x.argmax(),
        "ints": i.sum() + i.amax() + i.argmax(),
        "truth": (x > 0).any(1) | (x > -1).all(1),
        "var": x.var(-1) + x.std(-1, correction=0),
        "norm": x.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt() * x,
        "softmax": x.softmax(-1) + x.softmax(1),
        "log_softmax": x.log_softmax(-1),
        "logsumexp": x.logsumexp(-1),
        "barred": (x + torch.where(x.mean() < 100, float("-inf"), 0.0)).softmax(-1),
        "layer_norm": F.layer_norm(x, (3, 4)) + F.layer_norm(x, (4,)),
        "rms_norm": F.rms_norm(x, (4,)),
        "nan": (x / 0.0 * 0.0).amax(-1) + torch.maximum(x[:, :, 0], x[:, :, 1] / 0.0 * 0.0),
    }


def _products(x: Tensor, y: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Products of matrices that lie in every way."""
    return {
        "matmul": x @ y,
        "transposed": x.transpose(1, 2) @ x,
        "left": y.transpose(-1, -2) @ x.transpose(-1, -2),
        "batched": torch.bmm(x, x.transpose(1, 2)) * 0.5,
        "vector": x @ v,
        "row": v @ y,
        "dot": torch.dot(v, v),
        "outer": torch.outer(v, v) @ y,
        "added": torch.addmm(v[:3], x[0], y[:, :3], beta=0.5, alpha=2.0),
        "badd": torch.baddbmm(x @ y, x, y.expand(2, -1, -1)),
        "gated": F.silu(x[0] @ y) * (x[1] @ y) + 1,
        "einsum": torch.einsum("bik,kj->bji", x, y),
        "attention": F.scaled_dot_product_attention(x, x, x),
        "causal": F.scaled_dot_product_attention(x, x, x, is_causal=True),
        "masked": F.scaled_dot_product_attention(x, x, x, attn_mask=x[0, :, :1] * x[0, :, :1].T > 0.2),
        "grouped": F.scaled_dot_product_attention(
            x.reshape(1, 2, -1, 7).repeat(1, 2, 1, 1), x[None], x[None], enable_gqa=True
        ),
    }


def _indexing(x: Tensor, i: Tensor) -> dict[str, Tensor]:
    """Reading and writing where data says."""
    written = x.clone()
    written[i] = 5.0
    sliced = x.clone()
    sliced[:, 1:3] = x[:, :2]
    sliced[2] = 7.0
    return {
        "embedding": F.embedding(i, x),
        "index": x[i] + x[i, i][:, None],
        "negative": x[-i],
        "column": x[:, i],
        "select": x.index_select(1, i) * 2,
        "gather": x.gather(1, i.expand(5, -1)),
        "put": written,
        "copy": x.index_copy(0, i, torch.ones(3, 5)),
        "slices": sliced,
        "mean": x[i].mean(0),
    }


def _long(x: Tensor) -> Tensor:
    for step in range(100):
        x = x * 1.01 + step * 0.001
    return x


# In an order that puts a NaN after and before greater and lesser numbers, and enough of them to fill vectors.
EDGES = torch.tensor(
    [0.5, -0.5, math.nan, 1.5, -1.5, 2.5, -2.5, 3.5, math.inf, -math.inf, 0.0, -0.0, 7.25, -7.75, 1e30, -1e30, math.nan,
     0.49999997, -0.49999997, 4194304.5, -8388607.5, 1e-30, math.nan, -6.5, 6.5]
)  # fmt: skip
LEAST = torch.tensor([-(2**63), 2**63 - 1, -(2**31), 2**31 - 1, -1, 0, 1, 5, -5])


CASES: dict[str, Case] = {
    "floats": (_floats, (torch.linspace(-3, 3, 60).reshape(4, 15), torch.linspace(-1, 2, 15))),
    "numbers": (_numbers, (torch.arange(-8, 8), torch.arange(16).flip(0), torch.arange(16) % 3 == 0)),
    "edges": (_edges, (EDGES, EDGES.roll(5), LEAST, LEAST.int(), torch.tensor([0, 1, 127, 128, 255]).byte())),
    "views": (_views, (torch.linspace(-2, 2, 24).reshape(2, 3, 4),)),
    "reductions": (_reductions, (torch.randn(5, 3, 4, generator=torch.manual_seed(1)), torch.tensor([3, 9, 2]))),
    "products": (_products, tuple(torch.randn(*s, generator=torch.manual_seed(2)) for s in ((2, 9, 7), (7, 19), (7,)))),
    "indexing": (_indexing, (torch.randn(5, 5, generator=torch.manual_seed(3)), torch.tensor([4, 0, 2]))),
    "long": (_long, (torch.linspace(-1, 1, 50),)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_eager(name: str, tmp_path: Path) -> None:
    function, args = CASES[name]
    model = _Function(function)
    program = executor.compile(model, args)
    program.save(tmp_path / "program.edge")
    expected = model(*args)
    inputs = [tensor.numpy() for tensor in args]
    for allow_code in (True, False):
        with executor.load(tmp_path / "program.edge", allow_code=allow_code) as runtime:
            _compare(runtime(*inputs), expected, f"{'compiled' if allow_code else 'interpreted'}")
    if name == "long":
        assert len(program.ir.methods[0].block.steps) == 1


def test_equal_subexpressions_are_computed_once() -> None:
    def twice(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y + 1) + torch.relu(x @ y + 1.0) + torch.relu(x @ y + 1)

    program = executor.compile(_Function(twice), (torch.ones(2, 3), torch.ones(3, 4)))
    nests = [function for function in program.ir.functions if isinstance(function, ir.Nest)]
    assert sum(isinstance(statement, ir.Dot) for nest in nests for statement in nest.body) == 1
    assert program.verify()


def _compare(came: Any, due: Any, where: str) -> None:
    if isinstance(due, dict):
        for key in due:
            _compare(came[key], due[key], f"{where}.{key}")
    elif isinstance(due, tuple):
        for place, part in enumerate(due):
            _compare(came[place], part, f"{where}[{place}]")
    else:
        expected = due.numpy()
        assert (came.shape, came.dtype) == (expected.shape, expected.dtype), where
        np.testing.assert_allclose(came, expected, rtol=2e-5, atol=2e-6, err_msg=where)
