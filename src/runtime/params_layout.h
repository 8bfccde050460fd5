// Says where parameters lie in their flat buffers.
#ifndef MZ_PARAMS_LAYOUT_H
#define MZ_PARAMS_LAYOUT_H

#include "runtime/params.h"

#define MZ_SEGMENT          16 // elements: a segment starts at a 64-byte line of FP32
#define MZ_LOW_COPY_SEGMENT 32 // elements: likewise in 2-byte formats

// Lays out parameters whose shapes and masters are known; region: as in mz_cut.
mezzo_status mz_params_lay_out(mezzo_params *params, int64_t region);

#endif
