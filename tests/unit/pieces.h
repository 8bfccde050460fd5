// Calls that run in one piece, on the CPU: for test_codes.c.
#ifndef MZ_TESTS_PIECES_H
#define MZ_TESTS_PIECES_H

#include "call_cases.h"
#include "runtime/program.h"

enum { PATTERN = 0x5A };

static bool is_forward(mz_op op) {
    return op == MZ_OP_layernorm || op == MZ_OP_rmsnorm;
}

// A device that runs a norm and the quantize after it in one piece, which writes codes before it has read anything.
extern const mz_backend mz_backend_cpu;
static int pieces;

static void run_again(mezzo_device *device, const mz_call *call) {
    mz_prepared prepared;
    mz_call own = *call;
    must(mz_prepare(device, call, &prepared));
    own.state = prepared.state;
    must(prepared.kernel->run(device, &own));
    mz_prepared_free(&prepared);
}

static mezzo_status run_piece(mezzo_device *device, const mz_call *first, const mz_call *second) {
    pieces++;
    for (int k = 0; k <= MZ_OUT(quantize, columnwise); k++)
        if (mz_present(&second->out[k]))
            memset(second->out[k].data, PATTERN, bytes_of(&second->out[k]));
    run_again(device, first);
    run_again(device, second);
    return MEZZO_OK;
}

static bool may_fuse(const mz_call *first, const mz_call *second) {
    return second->op == MZ_OP_quantize &&
           (is_forward(first->op) || first->op == MZ_OP_layernorm_bwd || first->op == MZ_OP_cross_entropy_dx);
}

static const mz_fused_kernel piece = {"piece", run_piece, NULL};
static int alone_in_pieces;

static const mz_fused_kernel *fuse_calls(mezzo_device *device, const mz_call *first, const mz_call *second,
                                         bool is_private) {
    (void)device;
    if (!may_fuse(first, second) || first->op == MZ_OP_cross_entropy_dx)
        return NULL;
    alone_in_pieces += is_private;
    return &piece;
}

static int threes;
static mezzo_status run_three(mezzo_device *device, const mz_call *first, const mz_call *second, const mz_call *third) {
    threes++;
    memset(third->out[0].data, PATTERN, bytes_of(&third->out[0]));
    run_again(device, first);
    run_again(device, second);
    run_again(device, third);
    memset(second->out[0].data, PATTERN, bytes_of(&second->out[0])); // nothing else reads it, nor runs the third again
    return MEZZO_OK;
}

static const mz_fused_kernel loss_piece = {"loss_piece", NULL, run_three};

static const mz_fused_kernel *fuse_three(mezzo_device *device, const mz_call *first, const mz_call *second,
                                         const mz_call *third) {
    (void)device;
    return first->op == MZ_OP_cross_entropy && second->op == MZ_OP_cross_entropy_dx && may_fuse(second, third)
               ? &loss_piece
               : NULL;
}

#endif
