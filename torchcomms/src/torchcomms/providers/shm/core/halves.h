/* Floats of 16 bits: to 32 bits and back, rounded to nearest even. */
#ifndef TORCHCOMMS_HALVES_H
#define TORCHCOMMS_HALVES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Two brain floats in one word, so that no vector has to be widened or narrowed: the one in the upper bits is a float
 * if the lower bits are cleared. What is not a number stays so: its lower bits are zero, and rounding changes nothing. */
typedef uint32_t __attribute__((aligned(2), may_alias)) pair;

static inline float upper(uint32_t word) { return from_bits(word & 0xffff0000); }
static inline float lower(uint32_t word) { return from_bits(word << 16); }
static inline uint32_t rounded(float value) { return to_bits(value) + 0x7fff + (to_bits(value) >> 16 & 1); }
static inline uint32_t joined(float high, float low) { return (rounded(high) & 0xffff0000) | rounded(low) >> 16; }

/* The exponent is moved by a multiplication, which also makes normal numbers of subnormal ones. */
static inline float f16_load(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t scaled = to_bits(from_bits(magnitude) * 0x1p112f);
    return from_bits((magnitude >= 0x0f800000 ? scaled | 0x7f800000 : scaled) | sign);
}

/* Adding 0.5 leaves the bits of a subnormal result, rounded, at the end of the mantissa. */
static inline uint16_t f16_store(float value) {
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = magnitude < 0x38800000 ? subnormal : magnitude >= 0x47800000 ? special : normal;
    return (uint16_t)(half | sign);
}

static inline void widen_plainly(float *to, const uint16_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = f16_load(from[i]);
}

static inline void narrow_plainly(uint16_t *to, const float *from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = f16_store(from[i]);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define F16C __attribute__((target("avx,f16c")))

F16C static void widen_by_eight(float *to, const uint16_t *from, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    widen_plainly(to + i, from + i, count - i);
}

F16C static void narrow_by_eight(uint16_t *to, const float *from, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    narrow_plainly(to + i, from + i, count - i);
}

static void widen(float *to, const uint16_t *from, size_t count) {
    (__builtin_cpu_supports("f16c") ? widen_by_eight : widen_plainly)(to, from, count);
}

static void narrow(uint16_t *to, const float *from, size_t count) {
    (__builtin_cpu_supports("f16c") ? narrow_by_eight : narrow_plainly)(to, from, count);
}
#else
#define widen widen_plainly
#define narrow narrow_plainly
#endif

#endif
