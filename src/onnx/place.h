// Declares how a built model's parameters are stored, and whether some follow the batches.
#ifndef MZ_ONNX_PLACE_H
#define MZ_ONNX_PLACE_H

#include "mezzo/onnx.h"

// Returns the name of the file's tensor that becomes a parameter; NULL: none does.
const char *mz_onnx_tensor_of(const mezzo_onnx *onnx, const char *parameter);
// Returns the place of the file's tensor's element i in the parameter; -1: there is no such parameter.
int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i);

// Returns the number of rows of the smallest table that this input's numbers index; 0: there is none.
int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input);

// Returns how many numbers a batch's statistics have, over all batch normalizations of the model that was built last.
size_t mz_onnx_statistics_count(const mezzo_onnx *onnx);
// Reads these numbers from the program's last run. out [count].
mezzo_status mz_onnx_statistics_read(const mezzo_onnx *onnx, mezzo_program *program, float *out);
// Updates the running statistics by those of n batches [n][count], one batch after another.
mezzo_status mz_onnx_statistics_move(const mezzo_onnx *onnx, const float *batches, int64_t n, mezzo_params *params);

#endif
