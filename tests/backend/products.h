// What cases of matrix products share: formats, and the numbers of operands.
#ifndef MZ_PRODUCTS_H
#define MZ_PRODUCTS_H

#include "cases.h"

typedef enum fill { FILL_NORMAL, FILL_INTEGERS, FILL_NAN, FILL_PARTS, FILL_LARGEST } fill;

// How operands are rounded: in FP32 storage as TF32 too, which a device without that arithmetic may refuse.
typedef struct arithmetic {
    mezzo_dtype storage, compute;
} arithmetic;
static const arithmetic arithmetics[] = {{MEZZO_F32, MEZZO_F32}, {MEZZO_F32, MEZZO_TF32}, {MEZZO_BF16, MEZZO_BF16},
                                         {MEZZO_F16, MEZZO_F16}, {MEZZO_BF16, MEZZO_F32}, {MEZZO_F16, MEZZO_F32}};

enum { OWN_ARITHMETICS = 4 }; // the first ones: what a storage format is multiplied in by itself, and TF32

trial *product(mz_op op, arithmetic a);
void fill_operands(trial *t, int64_t inner, fill how); // inner: the length of the sums
void cases_symmetric(void);

#endif
