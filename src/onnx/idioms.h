// The reader recognizes these idioms (idioms.def).
#ifndef MZ_ONNX_IDIOMS_H
#define MZ_ONNX_IDIOMS_H

#include <stddef.h>

size_t mz_onnx_idiom_count(void); // rows

#endif
