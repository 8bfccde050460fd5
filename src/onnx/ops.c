// Holds the table of ONNX ops by name.
#include <math.h>
#include <stdlib.h>

#include "onnx/convert.h"

static const mz_onnx_op ops[] = {
#define UNARY(name, make, host)              {#name, mz_onnx_unary, 0, 1, make, NULL, host, NULL},
#define BINARY(name, make, host)             {#name, mz_onnx_binary, 0, 1, NULL, make, NULL, host},
#define COMPARE(name, make, host)            {#name, mz_onnx_binary, 1, 2, NULL, make, NULL, host},
#define OP(name, convert, which, least, ...) {#name, convert, which, least, NULL, NULL, NULL, NULL},
#include "onnx/ops.def"
};

const mz_onnx_op *mz_onnx_op_of(const char *name) {
    return MZ_FIND(ops, MZ_COUNT(ops), name, name);
}
