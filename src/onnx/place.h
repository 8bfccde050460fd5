// Says how a built model's parameters are stored.
#ifndef MZ_ONNX_PLACE_H
#define MZ_ONNX_PLACE_H

#include "mezzo/onnx.h"

// Returns where element i of the file's tensor stands in the parameter; -1: no such parameter.
int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i);

#endif
