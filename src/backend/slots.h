// Backends name a call's tensors as ops.def names their slots: mz_in(call, linear, bias).
#ifndef MZ_SLOTS_H
#define MZ_SLOTS_H

#include "backend/backend.h"

#define mz_in(call, op, slot)  (&(call)->in[MZ_IN(op, slot)])
#define mz_out(call, op, slot) (&(call)->out[MZ_OUT(op, slot)])

#endif
