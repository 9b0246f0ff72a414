"""Emitted Triton gives what the reference executor gives: run by Triton's interpreter, in a process of its own.

The interpreter has to be chosen before a kernel is decorated, so this file is also the script of that process.
"""

import json
import math
import os
import subprocess
import sys
import traceback
from types import ModuleType

import numpy
import pytest
import torch

import helium
import helium.language as hl
from helium import library
from helium.testing import Case

pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore:.*overflow encountered:RuntimeWarning"),
]


@helium.kernel()
def functions(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        a = x[tile_m, tile_n]
        b = torch.sin(a) + torch.cos(a) + torch.floor(a) + torch.ceil(a) + torch.round(a) + torch.tanh(a)
        c = torch.sqrt(torch.abs(a)) + torch.rsqrt(torch.abs(a) + 1) + torch.erf(a) + torch.log(torch.abs(a) + 2)
        out[tile_m, tile_n] = b - c * torch.exp(-a)
    return out


@helium.kernel()
def divisions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        out[tile] = a // b * 1000 + a % b
    return out


@helium.kernel()
def powers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.pow(x[tile], y[tile])
    return out


@helium.kernel()
def choices(x: torch.Tensor, low: float) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        a = x[tile]
        inside = (a > low) & (a < 1.0) | (a == 3.0)
        out[tile] = torch.where(inside, 1, 0) + torch.where(a != a, 10, 20)
    return out


@helium.kernel()
def row_extremes(x: torch.Tensor) -> torch.Tensor:
    m = x.size(0)
    out = torch.empty([m, 3], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        row = x[tile_m, :]
        out[tile_m, 0] = torch.amax(row, dim=1)
        out[tile_m, 1] = torch.amin(row, dim=1)
        out[tile_m, 2] = torch.sum(row, dim=1).to(x.dtype)
    return out


@helium.kernel()
def gather_scatter(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(ids.size(0)):
        places = ids[tile]
        hl.store(out, [places], x[places] * 2.0, extra_mask=places > 1)
    return out


@helium.kernel(config=helium.Config(tile=64))
def facts(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(1, x.size(0)):
        out[tile] = x[tile] + tile.index * 1000 + tile.begin + tile.end + tile.id
    return out


@helium.kernel(config=helium.Config(tile_n=16))
def nested_facts(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = x[tile_m, tile_n] * tile_n.begin + tile_n.end - tile_n.id * tile_n.block_size
    return out


@helium.kernel()
def restarted(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        start = torch.sum(x[tile_m, :], dim=1)
        for tile_a in hl.tile(n):
            acc = start
            for tile_b in hl.tile(n):
                acc = acc + torch.sum(x[tile_m, tile_b], dim=1)
            out[tile_m, tile_a] = x[tile_m, tile_a] + acc[:, None]
    return out


@helium.kernel()
def two_loops(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    total = torch.empty([m], dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        total[tile_m] = torch.sum(x[tile_m, :], dim=1)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = x[tile_m, tile_n] - total[tile_m][:, None]
    return out, total


@helium.kernel()
def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n, _ = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            a = torch.exp(x[tile_m, tile_k].to(torch.float32))
            acc = hl.dot(a, torch.transpose(y[tile_n, tile_k].to(torch.float32), 0, 1), acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helium.kernel()
def welford(x: torch.Tensor, eps: float) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m])
        square = hl.zeros([tile_m])
        for tile_n in hl.tile(n):
            part = x[tile_m, tile_n]
            mean = mean + torch.sum(part, dim=1)
            square = square + torch.sum(part * part, dim=1)
        mean = mean / n
        scale = torch.rsqrt(square / n - mean * mean + eps)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = (x[tile_m, tile_n] - mean[:, None]) * scale[:, None]
    return out


@helium.kernel()
def reread(x: torch.Tensor, times: int, twice: bool) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = x[tile_m, tile_n] * times
        row = out[tile_m, :]
        out[tile_m, :] = torch.where(twice, row + row, row) - torch.sum(row, dim=1)[:, None]
    return out


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def _signs(count: int) -> torch.Tensor:
    return torch.where(torch.arange(count) % 2 == 0, 4, -4).to(torch.int32)


NAN = torch.tensor([[1.0, math.nan, 2.0], [-1.0, -math.inf, math.inf], [-5.0, -7.0, -6.0]])
CASES = {
    "add": (library.add, (_random(5, 37), _random(5, 37))),
    "add of bfloat16": (library.add, (_random(5, 37, dtype=torch.bfloat16), _random(5, 37, dtype=torch.bfloat16))),
    "add of column-major": (library.add, (_random(37, 5).t(), _random(5, 37))),
    "add of nothing": (library.add, (_random(0, 37), _random(0, 37))),
    "softmax": (library.softmax, (_random(5, 37),)),
    "softmax of one column": (library.softmax, (_random(3, 1),)),
    "softmax of nan and inf": (library.softmax, (NAN,)),
    "rms_norm": (library.rms_norm, (_random(5, 37), _random(37), 1e-6)),
    "rms_norm of float16": (library.rms_norm, (_random(5, 64).half(), _random(64).half(), 1e-5)),
    "log_prob": (library.log_prob, (_random(5, 300), torch.tensor([0, 299, 7, 7, 150]))),
    "matmul": (library.matmul, (_random(33, 70), _random(70, 20))),
    "attention": (library.attention, (_random(4, 9, 16), _random(2, 70, 16), _random(2, 70, 16), 0.25, True)),
    "layer_norm": (library.layer_norm, (_random(5, 37) + 100.0, _random(37), _random(37), 1e-5)),
    "cross_entropy": (library.cross_entropy, (_random(5, 300), torch.tensor([0, 299, 7, 7, 150]))),
    "swiglu": (library.swiglu, (_random(5, 37), _random(5, 37) * 3)),
    "geglu": (library.geglu, (_random(5, 37), _random(5, 37) * 3)),
    "embedding": (library.embedding, (torch.tensor([0, 9, 3, 3]), _random(10, 37))),
    "kl": (library.kl, (_random(5, 37), _random(5, 37) * 2)),
    "rope": (library.rope, (_random(5, 16), _random(5, 8).cos(), _random(5, 8).sin())),
    "matmul of float16": (library.matmul, (_random(33, 70).half(), _random(70, 20).half())),
    "matmul of float64": (library.matmul, (_random(17, 5).double(), _random(5, 20).double())),
    "functions": (functions, (3 * _random(5, 37),)),
    "functions at halves": (functions, (torch.linspace(-4, 4, 33)[None],)),
    "divisions of int32": (divisions, (torch.arange(-9, 10, dtype=torch.int32), _signs(19))),
    "divisions of float32": (divisions, (torch.arange(-9.0, 10.0) * 0.75, _signs(19).float())),
    "powers": (
        powers,
        (torch.tensor([2.0, -2.0, -2.0, -2.0, 0.0, 9.0, 5.0]), torch.tensor([3.0, 3, 2, 0.5, 2, 0.5, 0])),
    ),
    "choices": (choices, (torch.tensor([0.0, 0.5, 1.0, 3.0, math.nan, -1.0]), 0.25)),
    "row_extremes": (row_extremes, (_random(5, 37),)),
    "row_extremes of nan and inf": (row_extremes, (NAN,)),
    "row_extremes of int32": (row_extremes, (torch.arange(-50, 61, dtype=torch.int32).reshape(3, 37) * 1000,)),
    "row_extremes of int8": (row_extremes, ((torch.arange(111) % 5 - 2).to(torch.int8).reshape(3, 37),)),
    "gather_scatter": (gather_scatter, (_random(9), torch.tensor([0, 3, 1, 8, 5]))),
    "facts": (facts, (_random(1500),)),
    "nested_facts": (nested_facts, (_random(5, 37),)),
    "restarted": (restarted, (_random(5, 37),)),
    "restarted over several blocks": (restarted, (_random(3, 2100),)),
    "two_loops": (two_loops, (_random(5, 37),)),
    "transposed": (transposed, (_random(33, 50), _random(20, 50))),
    "reread": (reread, (_random(5, 37), 3, True)),
    "welford": (welford, (_random(5, 1100), 1e-5)),
}


def problems() -> dict[str, str]:
    """For each case, why the interpreter's result is not the reference executor's; empty where it is."""
    from helium.emit.triton_launch import Launcher

    found = {}
    for name, (kernel, args) in CASES.items():
        try:
            actual, expected = Launcher(kernel)(*args), kernel.interpret(*args)
            pairs = zip(_tuple(actual), _tuple(expected), strict=True)
            found[name] = "; ".join(filter(None, (Case(()).difference(*pair) for pair in pairs)))
        except Exception:
            found[name] = traceback.format_exc()
    return found


def version_of(module: ModuleType) -> tuple[int, ...]:
    return tuple(map(int, module.__version__.split(".")[:2]))


def _tuple(result: object) -> tuple:
    return result if isinstance(result, tuple) else (result,)


@pytest.fixture(scope="module")
def interpreted():
    triton = pytest.importorskip("triton")
    if version_of(triton) < (3, 7) and version_of(numpy) >= (2, 4):
        pytest.skip("the interpreter of triton 3.6 takes loop bounds in a way that numpy 2.4 refuses")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_interpreter_agrees_with_the_reference_executor(interpreted, name):
    assert interpreted[name] == ""


if __name__ == "__main__":
    json.dump(problems(), sys.stdout)
