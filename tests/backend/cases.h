// One function of test cases for each row of ops.def: a row without one does not link.
#ifndef MZ_CASES_H
#define MZ_CASES_H

#include "shapes.h"
#include "trial.h"

#define OP(name, ...)          void cases_##name(void);
#define OP_BACKWARD(name, ...) void cases_##name(void);
#define OP_STATE(name, ...)    void cases_##name(void);
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE

void cases_recomputed(void); // linear_dx that also writes an activation's result

static const mezzo_dtype floats[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16};
enum { FLOATS = 3 };

#endif
