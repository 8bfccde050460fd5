// Says how a built model's parameters are stored, and whether some follow the batches.
#ifndef MZ_ONNX_PLACE_H
#define MZ_ONNX_PLACE_H

#include "mezzo/onnx.h"

// Returns where element i of the file's tensor stands in the parameter; -1: no such parameter.
int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i);

// Returns how many rows the smallest table has of which this input's numbers name rows; 0: of none.
int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input);

// Whether the model that was built last has running statistics, which mezzo_onnx_track moves.
bool mz_onnx_is_tracked(const mezzo_onnx *onnx);

#endif
