// Computes where the elements of a tensor with padding lie (graph/storage.h's mz_layout).
#ifndef MZ_LAYOUT_CUH
#define MZ_LAYOUT_CUH

#include "launch.h"

// Returns row and column of element i. Divisions of 64 bits take some three times those of 32, which nearly every
// tensor fits.
__device__ __forceinline__ int64_t layout_row(const mz_layout &l, int64_t i, int64_t &column) {
    if ((i | l.width) >> 32 == 0) {
        uint32_t row = static_cast<uint32_t>(i) / static_cast<uint32_t>(l.width);
        column = static_cast<uint32_t>(i) - row * static_cast<uint32_t>(l.width);
        return row;
    }
    int64_t row = i / l.width;
    column = i - row * l.width;
    return row;
}

__device__ __forceinline__ int64_t layout_row_start(const mz_layout &l, int64_t row) {
    if (l.group > 1 && (row | l.group) >> 32 == 0) {
        const uint32_t group = static_cast<uint32_t>(row) / static_cast<uint32_t>(l.group);
        row += group * (l.group_pitch - l.group);
    } else if (l.group > 1) {
        row = row / l.group * l.group_pitch + row % l.group;
    }
    return row * l.pitch;
}

__device__ __forceinline__ int64_t layout_index(const mz_layout &l, int64_t i) {
    if (l.width == 0)
        return i;
    int64_t column, row = layout_row(l, i, column);
    return layout_row_start(l, row) + column;
}

#endif
