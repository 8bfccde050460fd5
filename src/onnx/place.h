// Declares how a built model's parameters are stored.
#ifndef MZ_ONNX_PLACE_H
#define MZ_ONNX_PLACE_H

#include "mezzo/onnx.h"

// Returns the name of the file's tensor that becomes a parameter; NULL: none does.
const char *mz_onnx_tensor_of(const mezzo_onnx *onnx, const char *parameter);
// Returns the place of the file's tensor's element i in the parameter; -1: there is no such parameter.
int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i);

// Returns the number of rows of the smallest table that this input's numbers index; 0: there is none.
int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input);

#endif
