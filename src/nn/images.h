// Layers on images [B, height, width, channels]. Parameters have the names of Hugging Face's diffusers; a convolution's
// weight is [channels out, height, width, channels in], which diffusers stores as [out, in, height, width].
#ifndef MZ_NN_IMAGES_H
#define MZ_NN_IMAGES_H

#include "mezzo/graph.h"

// Builds a convolution: NAME.weight [n, size, size, C] uniform within 1/√(size²·C), NAME.bias [n] zero; `size` odd or
// even, padded to give ⌈H/stride⌉ × ⌈W/stride⌉ where `size` is odd. x [B, H, W, C] → [B, H', W', n]. A size of 1 is a
// linear layer.
mezzo_value mz_layer_conv(mezzo_graph *g, const char *name, mezzo_value x, int64_t n, int size, int stride);

// Builds a convolution of size 3 and stride 2, padded only below and on the right, with which latent diffusion's
// autoencoder halves images.
mezzo_value mz_layer_conv_pad_end(mezzo_graph *g, const char *name, mezzo_value x, int64_t n);

// Describes a group norm: NAME.weight [C] one, NAME.bias [C] zero; film [B, 2·C]|NONE scales and shifts its result, and
// SiLU follows where `silu`.
typedef struct mz_image_norm {
    int groups;
    float eps;
} mz_image_norm;
mezzo_value mz_layer_group_norm(mezzo_graph *g, const char *name, mezzo_value x, mezzo_value film, mz_image_norm norm,
                                bool silu);

// Builds a residual block: norm1, SiLU, conv1, norm2 with scale and shift from `time` ([B, E]|NONE, after its SiLU),
// SiLU, conv2; x is added to the result, through conv_shortcut where the channels differ. x [B, H, W, C] → [B, H, W,
// n].
mezzo_value mz_layer_image_block(mezzo_graph *g, const char *name, mezzo_value x, int64_t n, mezzo_value time,
                                 mz_image_norm norm);

// Builds attention of every pixel to every pixel of `context` ([B, H', W', C']; NONE: of x), and adds x: group_norm,
// to_q, to_k, to_v, to_out.0. x [B, H, W, C] → [B, H, W, C].
mezzo_value mz_layer_image_attention(mezzo_graph *g, const char *name, mezzo_value x, mezzo_value context, int heads,
                                     mz_image_norm norm);

#endif
