/* The loops behind fold_find: one function for each reduction and dtype, cut into blocks that stay in the cache.
 *
 * Floats of 16 bits are accumulated in 32 and rounded once, to nearest even. Integers wrap, so their sums and products
 * are formed unsigned. Must be compiled without contraction: a fused multiply-add would round differently.
 */
#include "fold.h"

#include "halves.h"

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

/* The same for halves, block by block through floats. */
#define HALVES(NAME, LOAD, JOIN, STORE)                                                                    \
    static inline float NAME##_load(float x, float scale) { return (void)scale, LOAD; }                    \
    static inline float NAME##_join(float x, float y) { return JOIN; }                                     \
    static inline float NAME##_store(float x, float by) { return (void)by, STORE; }                        \
    CLONES static void NAME(void *out, const void *const *parts, uint32_t ranks, size_t count, double f) { \
        float total[BLOCK], other[BLOCK], scale = (float)f, by = (float)ranks;                             \
        for (size_t start = 0; start < count; start += BLOCK) {                                            \
            size_t many = count - start < BLOCK ? count - start : BLOCK;                                   \
            widen(total, (const uint16_t *)parts[0] + start, many);                                        \
            EACH total[i] = NAME##_load(total[i], scale);                                                  \
            for (uint32_t rank = 1; rank < ranks; rank++) {                                                \
                widen(other, (const uint16_t *)parts[rank] + start, many);                                 \
                EACH total[i] = NAME##_join(total[i], NAME##_load(other[i], scale));                       \
            }                                                                                              \
            EACH total[i] = NAME##_store(total[i], by);                                                    \
            narrow((uint16_t *)out + start, total, many);                                                  \
        }                                                                                                  \
    }

/* The same for brain floats, two by two; an odd last one is widened by a zero. */
#define PAIRS(NAME, LOAD, JOIN, STORE)                                                                            \
    static inline float NAME##_load(float x, float scale) { return (void)scale, LOAD; }                           \
    static inline float NAME##_join(float x, float y) { return JOIN; }                                            \
    static inline float NAME##_store(float x, float by) { return (void)by, STORE; }                               \
    CLONES static void NAME##_words(pair *out, const void *const *parts, uint32_t ranks, size_t start, size_t many, \
                                    float scale) {                                                                \
        float high[BLOCK], low[BLOCK], by = (float)ranks;                                                         \
        const pair *p = (const pair *)parts[0] + start, *q = (const pair *)parts[ranks - 1] + start;              \
        pair *o = out + start;                                                                                    \
        if (ranks == 2) {                                                                                         \
            EACH o[i] = joined(                                                                                   \
                NAME##_store(NAME##_join(NAME##_load(upper(p[i]), scale), NAME##_load(upper(q[i]), scale)), by),  \
                NAME##_store(NAME##_join(NAME##_load(lower(p[i]), scale), NAME##_load(lower(q[i]), scale)), by)); \
            return;                                                                                               \
        }                                                                                                         \
        EACH high[i] = NAME##_load(upper(p[i]), scale), low[i] = NAME##_load(lower(p[i]), scale);                 \
        for (uint32_t rank = 1; rank < ranks; rank++) {                                                           \
            q = (const pair *)parts[rank] + start;                                                                \
            EACH high[i] = NAME##_join(high[i], NAME##_load(upper(q[i]), scale)),                                 \
                 low[i] = NAME##_join(low[i], NAME##_load(lower(q[i]), scale));                                   \
        }                                                                                                         \
        EACH o[i] = joined(NAME##_store(high[i], by), NAME##_store(low[i], by));                                  \
    }                                                                                                             \
    static void NAME(void *out, const void *const *parts, uint32_t ranks, size_t count, double factor) {          \
        size_t words = count / 2;                                                                                 \
        for (size_t start = 0; start < words; start += BLOCK)                                                     \
            NAME##_words(out, parts, ranks, start, words - start < BLOCK ? words - start : BLOCK, (float)factor); \
        if (count % 2 == 0) return;                                                                               \
        float total = 0;                                                                                          \
        for (uint32_t rank = 0; rank < ranks; rank++) {                                                           \
            float x = NAME##_load(lower(((const uint16_t *)parts[rank])[count - 1]), (float)factor);              \
            total = rank ? NAME##_join(total, x) : x;                                                             \
        }                                                                                                         \
        ((uint16_t *)out)[count - 1] = (uint16_t)(rounded(NAME##_store(total, (float)ranks)) >> 16);              \
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
HALVES(f16_sum, x, x + y, x)
HALVES(f16_avg, x, x + y, x / by)
HALVES(f16_product, x, x * y, x)
HALVES(f16_min, x, (x < y || x != x) ? x : y, x)
HALVES(f16_max, x, (x > y || x != x) ? x : y, x)
HALVES(f16_premul, x * scale, x + y, x)
PAIRS(bf16_sum, x, x + y, x)
PAIRS(bf16_avg, x, x + y, x / by)
PAIRS(bf16_product, x, x * y, x)
PAIRS(bf16_min, x, (x < y || x != x) ? x : y, x)
PAIRS(bf16_max, x, (x > y || x != x) ? x : y, x)
PAIRS(bf16_premul, x * scale, x + y, x)
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
