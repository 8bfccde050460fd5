// Computes conv2d and its gradients as products of the driver, which reads the image as the matrix of its patches
// (im2col) without making that matrix.
#ifndef MZ_CPU_CONV_H
#define MZ_CPU_CONV_H

#include "backend/slots.h"
#include "backend/cpu/matmul.h"

static inline bool mz_is_conv(mz_op op) {
    return op == MZ_OP_conv2d || op == MZ_OP_conv2d_dx || op == MZ_OP_conv2d_dw;
}

// Says how an operand lies in an image, or in a weight.
struct mz_matmul_gather {
    enum {
        MZ_GATHER_PATCHES,    // i: a pixel of y; k: (r, s, channel) of the pixels of x that it reads
        MZ_GATHER_PATCHES_T,  // the same with i and k exchanged
        MZ_GATHER_TRANSPOSED, // i: a pixel of x; k: (r, s, channel) of the pixels of y that read it
        MZ_GATHER_WEIGHT      // i: a channel of x; k: (r, s, channel of y)
    } what;
    int64_t height, width, pitch;    // of the image that is read; pitch: elements from pixel to pixel
    int64_t over_height, over_width; // of the image whose pixels i (or k) counts
    int64_t r, s, depth;             // the weight's height and width; channels of one tap
    int64_t stride, pad;
    bool flipped; // for MZ_GATHER_WEIGHT: the last tap comes first
};

// Returns the product of one group of channels. `gathers`: memory for the descriptions that its operands point to.
mz_matmul_problem mz_conv_problem(const mz_call *call, int64_t group, mz_matmul_gather gathers[2]);

#endif
