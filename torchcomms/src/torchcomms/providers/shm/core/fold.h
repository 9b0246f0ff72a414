/* Reductions of several ranks' parts into one, in the order of ranks. What they mean is written in ReduceOp. */
#ifndef TORCHCOMMS_FOLD_H
#define TORCHCOMMS_FOLD_H

#include <stddef.h>
#include <stdint.h>

/* Numbers that Python passes; see call.py. */
enum dtype { F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, DTYPES };
enum reduction { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM, REDUCTIONS };

/* out[i] = reduction of parts[0][i], parts[1][i], ...; `out` may be one of the parts. */
typedef void fold_function(void *out, const void *const *parts, uint32_t ranks, size_t count, double factor);

/* NULL where the reduction has no meaning for the dtype. */
fold_function *fold_find(uint32_t dtype, uint32_t reduction);
size_t fold_item(uint32_t dtype);

#endif
