"""exp, log, tanh, erf, sin, cos and pow as polynomials on scalars or vectors, without a mathematics library.

Coefficients: Cephes (Moshier) for float32 exp, log and tanh; fdlibm (Sun) for the float64 logarithm; a minimax fit for
erf; Taylor's for the rest. Errors are 2 ulp at most where not said otherwise. No step may be reassociated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from helium.emit.cpu.code import F32, F64, I32, I64, Code, T, V


def _horner(c: Code, x: V, coefficients: Sequence[float]) -> V:
    """The polynomial with these coefficients, highest power first."""
    result = c.const(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        result = c.fma(result, x, c.const(x.type, coefficient))
    return result


def _is_single(c: Code, x: V) -> bool:
    return bool(c.element(x.type) == F32)


def _integer(c: Code, x: V) -> T:
    return c.like(x.type, I32 if _is_single(c, x) else I64)


def _clamp(c: Code, x: V, low: float, high: float) -> V:
    """x within low … high; NaN stays NaN."""
    lo, hi = c.const(x.type, low), c.const(x.type, high)
    x = c.b.select(c.b.fcmp_ordered("<", x, lo), lo, x)
    return c.b.select(c.b.fcmp_ordered(">", x, hi), hi, x)


def _power_of_two(c: Code, n: V, like: V) -> V:
    """2ⁿ of an integer n in the normal range, by its exponent bits."""
    bias, shift = (127, 23) if _is_single(c, like) else (1023, 52)
    return c.b.bitcast(c.b.shl(c.b.add(n, c.const(n.type, bias)), c.const(n.type, shift)), like.type)


def exp(c: Code, x: V) -> V:
    """eˣ: x = n·ln 2 + r, a polynomial in r, scaled in two steps so that subnormals and overflow come out right."""
    single = _is_single(c, x)
    low, high = (-104.0, 89.0) if single else (-746.0, 710.0)
    magic = 1.5 * 2.0 ** (23 if single else 52)
    x = _clamp(c, x, low, high)
    shifted = c.fma(x, c.const(x.type, math.log2(math.e)), c.const(x.type, magic))
    whole = c.b.fsub(shifted, c.const(x.type, magic))
    n = c.b.sub(c.b.bitcast(shifted, _integer(c, x)), c.b.bitcast(c.const(x.type, magic), _integer(c, x)))
    ln2_high, ln2_low = (
        (0.693359375, -2.12194440e-4) if single else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
    )
    r = c.fma(whole, c.const(x.type, -ln2_high), x)
    r = c.fma(whole, c.const(x.type, -ln2_low), r)
    half = c.b.ashr(n, c.const(n.type, 1))
    p = c.b.fmul(_exp_near_zero(c, r), _power_of_two(c, half, x))
    return c.b.fmul(p, _power_of_two(c, c.b.sub(n, half), x))


def _exp_near_zero(c: Code, r: V) -> V:
    if not _is_single(c, r):
        return _horner(c, r, [1 / math.factorial(k) for k in range(13, -1, -1)])
    p = _horner(
        c, r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1]
    )
    return c.b.fadd(c.fma(p, c.b.fmul(r, r), r), c.const(r.type, 1.0))


def log(c: Code, x: V) -> V:
    """ln x: x = m·2ᵉ with m near 1; zero gives -inf, negative numbers NaN."""
    single = _is_single(c, x)
    tiny, scale = (2.0**-126, 24) if single else (2.0**-1022, 53)
    small = c.b.fcmp_ordered("<", x, c.const(x.type, tiny))
    normal = c.b.select(small, c.b.fmul(x, c.const(x.type, 2.0**scale)), x)
    m, e = _split(c, normal)
    e = c.b.fsub(e, c.b.select(small, c.const(x.type, float(scale)), c.const(x.type, 0.0)))
    result = _log_near_one(c, c.b.fsub(m, c.const(x.type, 1.0)), e)
    infinity = c.const(x.type, math.inf)
    result = c.b.select(c.b.fcmp_ordered("==", x, infinity), infinity, result)
    result = c.b.select(c.b.fcmp_unordered("<", x, c.const(x.type, 0.0)), c.const(x.type, math.nan), result)
    return c.b.select(c.b.fcmp_ordered("==", x, c.const(x.type, 0.0)), c.const(x.type, -math.inf), result)


def _split(c: Code, x: V) -> tuple[V, V]:
    """m in √½ … √2 and e with x = m·2ᵉ, of positive normal x."""
    single = _is_single(c, x)
    shift, bias = (23, 127) if single else (52, 1023)
    kind = _integer(c, x)
    bits = c.b.bitcast(x, kind)
    mask = (1 << shift) - 1
    exponent = c.b.sub(c.b.lshr(bits, c.const(kind, shift)), c.const(kind, bias))
    m = c.b.bitcast(c.b.or_(c.b.and_(bits, c.const(kind, mask)), c.const(kind, bias << shift)), x.type)
    large = c.b.fcmp_ordered(">", m, c.const(x.type, math.sqrt(2)))
    m = c.b.select(large, c.b.fmul(m, c.const(x.type, 0.5)), m)
    exponent = c.b.add(exponent, c.b.zext(large, kind))
    return m, c.b.sitofp(exponent, x.type)


def _log_near_one(c: Code, f: V, e: V) -> V:
    square = c.b.fmul(f, f)
    if _is_single(c, f):
        p = _horner(
            c, f,
            [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
             2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1],
        )  # fmt: skip
        y = c.fma(c.b.fmul(f, square), p, c.b.fmul(e, c.const(f.type, -2.12194440e-4)))
        y = c.fma(square, c.const(f.type, -0.5), y)
        return c.fma(e, c.const(f.type, 0.693359375), c.b.fadd(f, y))
    s = c.b.fdiv(f, c.b.fadd(f, c.const(f.type, 2.0)))
    z = c.b.fmul(s, s)
    lg = [1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
          2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01]  # fmt: skip
    remainder = c.b.fmul(z, _horner(c, z, lg))
    half = c.b.fmul(square, c.const(f.type, 0.5))
    low = c.fma(e, c.const(f.type, 1.90821492927058770002e-10), c.b.fmul(s, c.b.fadd(half, remainder)))
    return c.fma(e, c.const(f.type, 6.93147180369123816490e-01), c.b.fsub(f, c.b.fsub(half, low)))


def tanh(c: Code, x: V) -> V:
    """A polynomial near zero, 1 - 2/(e²ˣ + 1) elsewhere. float64 is within 1e-15 absolutely."""
    size = c.map("fabs", x)
    one, two = c.const(x.type, 1.0), c.const(x.type, 2.0)
    far = c.b.fsub(one, c.b.fdiv(two, c.b.fadd(exp(c, c.b.fmul(size, two)), one)))
    far = c.intrinsic("copysign", [far, x], x.type, [x.type])
    if not _is_single(c, x):
        odd = [2 / 15, -1 / 3]
        near = c.fma(c.b.fmul(x, c.b.fmul(x, x)), _horner(c, c.b.fmul(x, x), odd), x)
        return c.b.select(c.b.fcmp_ordered("<", size, c.const(x.type, 0.002)), near, far)
    z = c.b.fmul(x, x)
    p = _horner(c, z, [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1])
    near = c.fma(c.b.fmul(p, z), x, x)
    return c.b.select(c.b.fcmp_ordered("<", size, c.const(x.type, 0.625)), near, far)


def erf(c: Code, x: V) -> V:
    """float32 only: an odd polynomial below 0.93, 1 - exp(polynomial) above."""
    t, s = c.map("fabs", x), c.b.fmul(x, x)
    r = c.fma(c.const(x.type, -1.72853470e-5), t, c.const(x.type, 3.83197126e-4))
    u = c.fma(c.const(x.type, -3.88396438e-3), t, c.const(x.type, 2.42546219e-2))
    r = c.fma(r, s, u)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = c.fma(r, t, c.const(x.type, coefficient))
    r = c.fma(r, t, c.b.fneg(t))
    far = c.b.fsub(c.const(x.type, 1.0), exp(c, r))
    far = c.intrinsic("copysign", [far, x], x.type, [x.type])
    p = _horner(c, s, [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1])
    return c.b.select(c.b.fcmp_ordered(">", t, c.const(x.type, 0.927734375)), far, c.fma(p, x, x))


def sine(c: Code, x: V, quarter: int) -> V:
    """sin(x + quarter·π/2), reduced in float64: right for |x| below 10⁹ in float32, 10⁵ in float64."""
    wide = c.like(x.type, F64)
    y = c.b.fpext(x, wide) if _is_single(c, x) else x
    magic = c.const(wide, 1.5 * 2.0**52)
    shifted = c.b.fadd(c.b.fmul(y, c.const(wide, 2 / math.pi)), magic)
    whole = c.b.fsub(shifted, magic)
    integer = c.like(x.type, I64)
    n = c.b.add(c.b.bitcast(shifted, integer), c.const(integer, quarter))
    r = y
    for part in (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21):
        r = c.fma(whole, c.const(wide, -part), r)
    z = c.b.fmul(r, r)
    sin_terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9, 0, -1)]
    cos_terms = [(-1) ** k / math.factorial(2 * k) for k in range(9, -1, -1)]
    sin_r = c.fma(c.b.fmul(r, z), _horner(c, z, sin_terms), r)
    odd = c.b.icmp_signed("!=", c.b.and_(n, c.const(integer, 1)), c.const(integer, 0))
    value = c.b.select(odd, _horner(c, z, cos_terms), sin_r)
    negative = c.b.icmp_signed("!=", c.b.and_(n, c.const(integer, 2)), c.const(integer, 0))
    value = c.b.select(negative, c.b.fneg(value), value)
    return c.b.fptrunc(value, x.type) if _is_single(c, x) else value


def power(c: Code, x: V, y: V) -> V:
    """xʸ through float64; negative bases need integer exponents, else NaN. float64 is within 1e-13 relatively."""
    wide, single = c.like(x.type, F64), _is_single(c, x)
    a, b = (c.b.fpext(v, wide) for v in (x, y)) if single else (x, y)
    size = exp(c, c.b.fmul(b, log(c, c.map("fabs", a))))
    half = c.b.fmul(b, c.const(wide, 0.5))
    is_odd = c.b.fcmp_ordered("!=", c.map("floor", half), half)
    is_whole = c.b.fcmp_ordered("==", c.map("floor", b), b)
    signed = c.b.select(is_whole, c.b.select(is_odd, c.b.fneg(size), size), c.const(wide, math.nan))
    result = c.b.select(c.b.fcmp_ordered("<", a, c.const(wide, 0.0)), signed, size)
    one = c.const(wide, 1.0)
    trivial = c.b.or_(c.b.fcmp_ordered("==", b, c.const(wide, 0.0)), c.b.fcmp_ordered("==", a, one))
    result = c.b.select(trivial, one, result)
    return c.b.fptrunc(result, x.type) if single else result
