/* The loops behind fold_find: one function for each reduction and dtype, cut into blocks that stay in the cache.
 *
 * Floats of 16 bits are accumulated in 32 and rounded once, to nearest even. Integers wrap, so their sums and products
 * are formed unsigned. Must be compiled without contraction: a fused multiply-add would round differently.
 */
#include "fold.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements of the accumulator */

#if defined(TORCHCOMMS_PORTABLE) && defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

/* `out` may be one of the parts, at the same index, which does not hinder vectors. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < many; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < many; i++)
#endif

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

static inline float bf16_load(uint16_t half) { return from_bits((uint32_t)half << 16); }

static inline uint16_t bf16_store(float value) {
    uint32_t bits = to_bits(value), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0 : rounded);
}

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

/* T: element; A: accumulator; LOAD, JOIN, STORE: expressions of x and `scale`, of x and y, of x and `by`. PAIR: whether
 * two ranks get a loop of their own, which costs half the time in the cache and as much again to compile. */
#define FOLD(NAME, T, A, PAIR, LOAD, JOIN, STORE)                                                          \
    static inline A NAME##_load(T x, A scale) { return (void)scale, LOAD; }                                \
    static inline A NAME##_join(A x, A y) { return JOIN; }                                                 \
    static inline T NAME##_store(A x, A by) { return (void)by, STORE; }                                    \
    CLONES static void NAME(void *out, const void *const *parts, uint32_t ranks, size_t count, double f) { \
        A total[BLOCK], scale = (A)f, by = (A)ranks;                                                       \
        for (size_t start = 0; start < count; start += BLOCK) {                                            \
            size_t many = count - start < BLOCK ? count - start : BLOCK;                                   \
            const T *p = (const T *)parts[0] + start, *q;                                                  \
            T *o = (T *)out + start;                                                                       \
            if (PAIR && ranks == 2) {                                                                      \
                q = (const T *)parts[1] + start;                                                           \
                EACH o[i] = NAME##_store(NAME##_join(NAME##_load(p[i], scale), NAME##_load(q[i], scale)), by); \
                continue;                                                                                  \
            }                                                                                              \
            EACH total[i] = NAME##_load(p[i], scale);                                                      \
            for (uint32_t rank = 1; rank < ranks; rank++) {                                                \
                q = (const T *)parts[rank] + start;                                                        \
                EACH total[i] = NAME##_join(total[i], NAME##_load(q[i], scale));                           \
            }                                                                                              \
            EACH o[i] = NAME##_store(total[i], by);                                                        \
        }                                                                                                  \
    }

/* min and max hand on what is not a number, as torch does. */
#define FLOATS(N, T, A, IN, OUT)                                             \
    FOLD(N##_sum, T, A, 1, IN(x), x + y, OUT(x))                                \
    FOLD(N##_avg, T, A, 1, IN(x), x + y, OUT(x / by))                           \
    FOLD(N##_product, T, A, 0, IN(x), x * y, OUT(x))                            \
    FOLD(N##_min, T, A, 0, IN(x), (x < y || x != x) ? x : y, OUT(x))            \
    FOLD(N##_max, T, A, 0, IN(x), (x > y || x != x) ? x : y, OUT(x))            \
    FOLD(N##_premul, T, A, 0, IN(x) * scale, x + y, OUT(x))

/* W: what the arithmetic is done in, unsigned and no shorter than int. */
#define INTEGERS(N, T, W)                                                    \
    FOLD(N##_sum, T, T, 1, x, (T)((W)x + (W)y), x)                              \
    FOLD(N##_product, T, T, 0, x, (T)((W)x * (W)y), x)                          \
    FOLD(N##_band, T, T, 0, x, (T)(x & y), x)                                   \
    FOLD(N##_bor, T, T, 0, x, (T)(x | y), x)                                    \
    FOLD(N##_bxor, T, T, 0, x, (T)(x ^ y), x)

/* L: 64 bits of the same sign, in which averages are formed and rounded toward zero. */
#define ORDERED(N, T, L)                                                     \
    FOLD(N##_avg, T, L, 0, (L)x, (L)((uint64_t)x + (uint64_t)y), (T)(x / by))   \
    FOLD(N##_min, T, T, 0, x, x < y ? x : y, x)                                 \
    FOLD(N##_max, T, T, 0, x, x > y ? x : y, x)

#define SAME(x) (x)
FLOATS(f32, float, float, SAME, SAME)
FLOATS(f64, double, double, SAME, SAME)
FLOATS(f16, uint16_t, float, f16_load, f16_store)
FLOATS(bf16, uint16_t, float, bf16_load, bf16_store)
INTEGERS(n8, uint8_t, uint32_t)
INTEGERS(n16, uint16_t, uint32_t)
INTEGERS(n32, uint32_t, uint32_t)
INTEGERS(n64, uint64_t, uint64_t)
ORDERED(i8, int8_t, int64_t)
ORDERED(i16, int16_t, int64_t)
ORDERED(i32, int32_t, int64_t)
ORDERED(i64, int64_t, int64_t)
ORDERED(u8, uint8_t, uint64_t)
ORDERED(u16, uint16_t, uint64_t)
ORDERED(u32, uint32_t, uint64_t)
ORDERED(u64, uint64_t, uint64_t)

#define FLOAT_ROW(N) {N##_sum, N##_avg, N##_product, N##_min, N##_max, NULL, NULL, NULL, N##_premul}
#define ROW(N, S) {N##_sum, S##_avg, N##_product, S##_min, S##_max, N##_band, N##_bor, N##_bxor, NULL}
static fold_function *const FOLDS[DTYPES][REDUCTIONS] = {
    [F32] = FLOAT_ROW(f32), [F64] = FLOAT_ROW(f64), [F16] = FLOAT_ROW(f16), [BF16] = FLOAT_ROW(bf16),
    [I8] = ROW(n8, i8),     [I16] = ROW(n16, i16),  [I32] = ROW(n32, i32),  [I64] = ROW(n64, i64),
    [U8] = ROW(n8, u8),     [U16] = ROW(n16, u16),  [U32] = ROW(n32, u32),  [U64] = ROW(n64, u64),
    /* Bytes of 0 and 1; sums and products are logical. */
    [BOOL] = {n8_bor, NULL, n8_band, n8_band, n8_bor, n8_band, n8_bor, n8_bxor, NULL},
};
static const uint8_t ITEMS[DTYPES] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};

fold_function *fold_find(uint32_t dtype, uint32_t reduction) {
    return dtype < DTYPES && reduction < REDUCTIONS ? FOLDS[dtype][reduction] : NULL;
}

size_t fold_item(uint32_t dtype) { return dtype < DTYPES ? ITEMS[dtype] : 1; }
