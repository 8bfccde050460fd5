// Names a call's tensors by the slots of ops.def: mz_in(call, linear, bias).
#ifndef MZ_SLOTS_H
#define MZ_SLOTS_H

#include "backend/backend.h"

// Returns the tensor of a slot. Slots from n_in and n_out on are absent, whatever the call holds there.
static inline const mz_tensor *mz_slot_of(const mz_tensor *slots, int at, int n) {
    return at < n ? &slots[at] : &mz_absent_slot;
}

// Returns the tensor of an output; NULL: absent.
static inline const mz_tensor *mz_output(const mz_call *call, int slot) {
    return slot < call->n_out && mz_present(&call->out[slot]) ? &call->out[slot] : NULL;
}

// Returns NULL, or why kernels that go by a layout cannot read the tensor.
static inline const char *mz_layout_refusal(const mz_tensor *t) {
    mz_layout layout;
    return mz_layout_of(&t->shape, &t->storage, &layout) ? NULL : "more than two axes with padding";
}

#define mz_in(call, op, slot)  mz_slot_of((call)->in, MZ_IN(op, slot), (call)->n_in)
#define mz_out(call, op, slot) mz_slot_of((call)->out, MZ_OUT(op, slot), (call)->n_out)

#endif
