// Holds the table of ONNX ops by name.
#include <math.h>
#include <stdlib.h>

#include "onnx/convert.h"

static double modulo(double a, double b) { // the result has the divisor's sign
    const double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

#define UNARY(name, make, host)                                                                                        \
    static double host_##name(double a) {                                                                              \
        return host;                                                                                                   \
    }
#define BINARY(name, make, host)                                                                                       \
    static double host_##name(double a, double b) {                                                                    \
        return host;                                                                                                   \
    }
#define COMPARE BINARY
#define MADE(...)
#define OP(...)
#include "onnx/ops.def"

static const mz_onnx_op ops[] = {
#define UNARY(name, make, host)              {#name, mz_onnx_unary, 0, 1, make, NULL, host_##name, NULL},
#define MADE(name, make)                     {#name, mz_onnx_unary, 0, 1, make, NULL, NULL, NULL},
#define BINARY(name, make, host)             {#name, mz_onnx_binary, 0, 1, NULL, make, NULL, host_##name},
#define COMPARE(name, make, host)            {#name, mz_onnx_binary, 1, 2, NULL, make, NULL, host_##name},
#define OP(name, convert, which, least, ...) {#name, convert, which, least, NULL, NULL, NULL, NULL},
#include "onnx/ops.def"
};

const mz_onnx_op *mz_onnx_op_of(const char *name) {
    return MZ_FIND(ops, MZ_COUNT(ops), name, name);
}
