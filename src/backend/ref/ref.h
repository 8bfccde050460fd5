// The reference backend has every op in plain C, FP64 inside, with any float dtype in every slot. Tests compare the
// other backends with it, so it is written to be read, and shares no code with them but the update's decisions
// (backend/control.c) and running statistics (backend/track.c).
#ifndef MZ_REF_H
#define MZ_REF_H

#include "backend/slots.h"

// Declares one function for each row of ops.def; an op without one does not link. Numerics, for every op:
// - an element is loaded exactly into FP64 and a result is rounded once, to nearest, into its slot's dtype;
// - products of matmul-class ops round their operands to numerics.compute first (TF32: 10 fraction bits);
// - sums are FP64 in index order for any numerics.accumulate and .reduce, and bounds of other backends' errors refer to
// that.
#define OP(name, ...)          void mz_ref_##name(const mz_call *call);
#define OP_BACKWARD(name, ...) void mz_ref_##name(const mz_call *call);
#define OP_STATE(name, ...)    void mz_ref_##name(const mz_call *call);
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE

// --- elements (element.c) ------------------------------------------------------------------------------------------
double mz_ref_get(const mz_tensor *t,
                  int64_t logical); // elements by their number in the shape, wherever they are stored
void mz_ref_put(const mz_tensor *t, int64_t logical, double x);
// Stores to an output marked '+': adds to its old value when the call accumulates, in one rounding.
void mz_ref_put_gradient(const mz_call *call, int slot, int64_t i, double x);
void mz_ref_clear_padding(const mz_tensor *t);
int32_t mz_ref_integer(const mz_tensor *t, int64_t i); // returns an element of an I32 tensor

// Holds doubles in call->workspace, which has one for every element of every tensor of the call.
typedef struct mz_ref_scratch {
    double *next;
} mz_ref_scratch;
mz_ref_scratch mz_ref_scratch_begin(const mz_call *call);
// Copies the tensor with every element rounded to `compute`. NULL when the tensor is absent.
double *mz_ref_operand(mz_ref_scratch *scratch, const mz_tensor *t, mezzo_dtype compute);
double *mz_ref_zeros(mz_ref_scratch *scratch, int64_t n);

// A shape viewed as [outer, axis, inner]. Axis -1: one axis of all elements.
typedef struct mz_ref_view {
    int64_t outer, axis, inner;
} mz_ref_view;
mz_ref_view mz_ref_view_along(const mz_shape *shape, int axis);

// --- shared formulas (elementwise.c) -------------------------------------------------------------------------------
double mz_ref_activation(mz_act act, double x);
double mz_ref_activation_dx(mz_act act, double dy, double x); // returns dy · act'(x)
// Returns dropout's factor of an element: 0, or 1/(1-p) as FP32. The element's random word is number (element mod 4) of
// Philox block element/4.
double mz_ref_dropout_factor(const mz_call *call, int64_t element);

#endif
