// Declares how the reader recognizes idioms (idioms.def).
#ifndef MZ_ONNX_IDIOMS_H
#define MZ_ONNX_IDIOMS_H

#include <stddef.h>

size_t mz_onnx_idiom_count(void); // number of rows

#endif
