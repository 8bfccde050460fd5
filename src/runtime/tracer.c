#include "runtime/tracer.h"

static double stored_bytes(const mz_tensor *t) {
    if (!mz_present(t))
        return 0;
    double scales = t->scale != NULL ? (double)mz_scale_count(t) * (double)sizeof(float) : 0;
    return (double)mz_tensor_bytes_stored(t) + scales;
}

double mz_traced_bytes(const mz_call *call) {
    double in = 0, out = 0;
    for (int i = 0; i < call->n_out; i++)
        out += stored_bytes(&call->out[i]);
    for (int i = 0; i < call->n_in; i++) {
        double bytes = stored_bytes(&call->in[i]);
        bool table = call->op == MZ_OP_embedding && i == 0;
        in += table && bytes > out ? out : bytes;
    }
    return in + (call->attrs.accumulate ? 2 : 1) * out;
}
