"""The C that every program begins with: vectors, and the elementary functions in a form that compilers vectorise."""

from __future__ import annotations

PRELUDE = """\
#include <math.h>
#include <stdint.h>

#define EDGE_KERNEL static __attribute__((noinline))
#define EDGE_INLINE static inline __attribute__((always_inline, unused))
#define EDGE_SHARED static __attribute__((noinline, unused))
#define LANES {lanes}

typedef float edge_vector __attribute__((vector_size(LANES * 4)));
typedef edge_vector edge_loose __attribute__((aligned(4), may_alias));

EDGE_INLINE edge_vector edge_load(const float *p) {{ return *(const edge_loose *)p; }}
EDGE_INLINE void edge_store(float *p, edge_vector x) {{ *(edge_loose *)p = x; }}
EDGE_INLINE edge_vector edge_all(float x) {{ return x - (edge_vector){{0}}; }}

EDGE_INLINE float edge_sum(edge_vector x)
{{
    float part[LANES];
    edge_store(part, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}}

EDGE_INLINE int32_t edge_bits(float x) {{ int32_t n; __builtin_memcpy(&n, &x, 4); return n; }}
EDGE_INLINE float edge_float(int32_t n) {{ float x; __builtin_memcpy(&x, &n, 4); return x; }}

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2; a polynomial for exp(r), within 1 unit in the last place; 2^n in two steps, so
   that results below the normal range come out too. */
EDGE_INLINE float edge_exp(float x)
{{
    const float low = -104.0f, high = 89.0f, shift = 12582912.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const float t = x * 1.44269504088896341f + shift;
    const int32_t n = edge_bits(t) - 0x4b400000;
    const float k = t - shift;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    const int32_t half = n >> 1;
    return p * edge_float((half + 127) << 23) * edge_float((n - half + 127) << 23);
}}

EDGE_INLINE float edge_sigmoid(float x) {{ return 1.0f / (1.0f + edge_exp(-x)); }}

/* tanh: an odd polynomial near zero, (1 - e) / (1 + e) with e = exp(-2|x|) beyond. */
EDGE_INLINE float edge_tanh(float x)
{{
    const float a = fabsf(x), s = x * x;
    float p = -5.70498872745e-3f;
    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    p = p * s * x + x;
    const float e = edge_exp(-2.0f * a);
    const float far = copysignf((1.0f - e) / (1.0f + e), x);
    return a < 0.625f ? p : far;
}}

EDGE_INLINE float edge_erf(float x) {{ return erff(x); }}

EDGE_INLINE int64_t edge_idiv(int64_t a, int64_t b)
{{
    if (b == 0) return 0;
    if (b == -1) return -a;
    const int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}}
EDGE_INLINE int64_t edge_imod(int64_t a, int64_t b) {{ return b == 0 ? 0 : a - edge_idiv(a, b) * b; }}
EDGE_INLINE int64_t edge_trunc_div(int64_t a, int64_t b) {{ return b == 0 ? 0 : b == -1 ? -a : a / b; }}
EDGE_INLINE int64_t edge_fmod(int64_t a, int64_t b) {{ return b == 0 || b == -1 ? 0 : a % b; }}
"""


def prelude(vector: int) -> str:
    """The text for registers of `vector` bytes."""
    return PRELUDE.format(lanes=vector // 4)
