// Bounds that are not in bounds.c, for its table.
#ifndef MZ_BOUNDS_H
#define MZ_BOUNDS_H

#include "trial.h"

// bounds_attention.c
#define MZ_ATTENTION_BOUNDS                                                                                            \
    [MZ_OP_attention] = bound_attention, [MZ_OP_attention_bwd] = bound_attention_bwd,                                  \
    [MZ_OP_attention_cached] = bound_attention_cached, [MZ_OP_attention_masked] = bound_attention_masked,              \
    [MZ_OP_attention_masked_bwd] = bound_attention_masked_bwd,
void bound_attention(trial *t);
void bound_attention_bwd(trial *t);
void bound_attention_cached(trial *t);
void bound_attention_masked(trial *t);
void bound_attention_masked_bwd(trial *t);

// bounds_image.c
#define MZ_IMAGE_BOUNDS                                                                                                \
    [MZ_OP_conv2d] = bound_conv2d, [MZ_OP_conv2d_dx] = bound_conv2d_dx, [MZ_OP_conv2d_dw] = bound_conv2d_dw,           \
    [MZ_OP_group_norm] = bound_group_norm, [MZ_OP_group_norm_bwd] = bound_group_norm_bwd, [MZ_OP_pool] = bound_pool,   \
    [MZ_OP_max_pool_dx] = bound_max_pool_dx, [MZ_OP_time_embedding] = bound_time_embedding,                            \
    [MZ_OP_normal] = bound_normal, [MZ_OP_mse] = bound_mse, [MZ_OP_mse_dx] = bound_mse_dx,
void bound_mse(trial *t);
void bound_mse_dx(trial *t);
void bound_conv2d(trial *t);
void bound_conv2d_dx(trial *t);
void bound_conv2d_dw(trial *t);
void bound_group_norm(trial *t);
void bound_group_norm_bwd(trial *t);
void bound_pool(trial *t);
void bound_max_pool_dx(trial *t);
void bound_time_embedding(trial *t);
void bound_normal(trial *t);

#endif
