"""Functions of Triton text that emitted modules carry along when they use them, where Triton's own word means less."""

from __future__ import annotations

from typing import Final

HELPERS: Final = {
    "_larger": """\
@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_smaller": """\
@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_product": """\
@triton.jit
def _product(a, b):
    return a * b
""",
    "_floor_divide": """\
@triton.jit
def _floor_divide(a, b):
    # Triton's // truncates; Python's and torch's floors.
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
""",
    "_remainder": """\
@triton.jit
def _remainder(a, b):
    # Triton's % has the sign of a; Python's and torch's has that of b.
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "_floor_divide_float": """\
@triton.jit
def _floor_divide_float(a, b):
    rest = a % b
    rest = tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return tl.floor((a - rest) / b + 0.5)
""",
    "_power": """\
@triton.jit
def _power(a, b):
    size = tl.exp2(b * tl.log2(tl.abs(a)))
    whole = tl.floor(b) == b
    odd = whole & (tl.floor(b * 0.5) * 2 != b)
    signed = tl.where(odd, -size, tl.where(whole, size, float("nan")))
    return tl.where(b == 0, 1.0, tl.where(a < 0, signed, size))
""",
    "_round": """\
@triton.jit
def _round(x):
    # To the nearest, halves to even.
    below = tl.floor(x)
    rest = x - below
    odd = tl.floor(below * 0.5) * 2 != below
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1, below)
""",
    "_tanh": """\
@triton.jit
def _tanh(x):
    # Near 0 the quotient cancels; there the Taylor series is exact to float32.
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    s = x * x
    near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))
""",
}
"""Text by name; none needs another."""
