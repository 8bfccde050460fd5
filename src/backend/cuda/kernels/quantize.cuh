// Rounds to 8 bits with a tensor's scale (quantize.cu), or with a power of two for every 128 numbers
// (quantize_block.cu), which fp8_block.cu multiplies.
#ifndef MZ_QUANTIZE_CUH
#define MZ_QUANTIZE_CUH

#include "host.cuh"

// z [rows, cols] = x, map(x), or zip(x, preact), rounded to `via`; with SwiGLU x is [rows, 2·cols], its derivative's x
// [rows, cols/2].
enum { MZ_CU_QUANTIZE_BLOCKS = 2112 }; // 16 for each of 132 multiprocessors, about: few rows of partial sums
struct mz_cu_quantize {
    mz_cu_array x, preact;     // preact.data NULL: none; of x's dtype
    int64_t rows, cols, pitch; // pitch: mz_columnwise_pitch(rows)
    int act, via, dtype;       // MEZZO_F8E4M3 or MEZZO_F8E5M2
    void *y, *columnwise;      // [rows, cols], [cols, pitch] bytes, zeros after a column's rows; NULL: not written
    float *entry;              // the scale of a scale entry; NULL: nothing is written
    const uint32_t *measured;  // the bits of a magnitude that the scale is found from; NULL: the entry has it
    uint32_t *amax; // gets the largest magnitude where it is larger: a NaN's as infinity's; NULL: nothing does
    void *act_out;  // [cols, pitch] bytes, SwiGLU's [cols/2, pitch]: act(preact) in E4M3 with a scale of its own; NULL:
                    // not written
    const float *act_out_scale;
    bool moved; // columns are multiples of 16, and there is no act; row r is x's order[r] / top_k, times
                // weights[order[r]], or x's r without an order; x is FP32 or BF16, and z rounded to BF16
    const int32_t *order;
    const float *weights; // NULL: 1
    int top_k;
    float *sums; // [quantize_turns, cols]: parts of the columns' sums; NULL: none
};
// To E4M3; `sums` are [quantize_block_turns, cols]. The scales of y, of blocks of a row or of tiles, and of
// columnwise's blocks of rows, as mz_scale_index has them.
struct mz_cu_quantize_block : mz_cu_quantize {
    bool tiles;
    float *scales, *columnwise_scales;
};
mz_cu_quantize quantize_args_of(const mz_call *call);
cudaError_t quantize_run(cudaStream_t stream, const mz_cu_quantize &q);
int64_t quantize_block_turns(int64_t rows);
cudaError_t quantize_block_run(cudaStream_t stream, const mz_cu_quantize_block &q);

#endif
