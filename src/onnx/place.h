// Says how a built model's parameters are stored, and whether some follow the batches.
#ifndef MZ_ONNX_PLACE_H
#define MZ_ONNX_PLACE_H

#include "mezzo/onnx.h"

// Returns the name of the file's tensor that becomes a parameter; NULL: none does.
const char *mz_onnx_tensor_of(const mezzo_onnx *onnx, const char *parameter);
// Returns where element i of the file's tensor stands in the parameter; -1: no such parameter.
int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i);

// Returns how many rows the smallest table has of which this input's numbers name rows; 0: of none.
int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input);

// Returns how many numbers a batch's statistics have, those of all batch normalizations of the model that was built
// last.
size_t mz_onnx_statistics_count(const mezzo_onnx *onnx);
// Reads these numbers of the program's last run. out [count].
mezzo_status mz_onnx_statistics_read(const mezzo_onnx *onnx, mezzo_program *program, float *out);
// Moves the running statistics towards those of n batches [n][count], one batch after the other.
mezzo_status mz_onnx_statistics_move(const mezzo_onnx *onnx, const float *batches, int64_t n, mezzo_params *params);

#endif
