// The layers of Transformers, each inside a module scope of its own, so that parameters get the names other programs
// know and every op can be addressed by a precision override.
#include <stddef.h>

#include "base/base.h"
#include "nn/layers.h"

static const float LAYERNORM_EPS = 1e-5F;

static mezzo_value product(mezzo_graph *g, mezzo_value x, int64_t n_out, mezzo_init init, bool bias, mezzo_value *w) {
    const mezzo_init zero = {.kind = MEZZO_INIT_ZERO};
    *w = mezzo_param(g, "weight", init, 2, (int64_t[]){n_out, mezzo_value_dim(g, x, -1)}); // [N, K]
    mezzo_value b = bias ? mezzo_param(g, "bias", zero, 1, &n_out) : MEZZO_NONE;           // [N]
    return mezzo_linear(g, x, *w, b);                                                      // [… N]
}

mezzo_value mz_layer_linear(mezzo_graph *g, const char *name, mezzo_value x, int64_t n_out, mezzo_init init,
                            bool bias) {
    mezzo_value w;
    mezzo_module_begin(g, name);
    mezzo_value y = mezzo_adapted(g, x, product(g, x, n_out, init, bias, &w));
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_linear_parts(mezzo_graph *g, const char *name, mezzo_value x, int n, const mezzo_part *parts,
                                  mezzo_init init, bool bias) {
    mezzo_value w;
    int64_t n_out = 0;
    for (int i = 0; i < n; i++)
        n_out += parts[i].rows;
    mezzo_module_begin(g, name);
    mezzo_value y = product(g, x, n_out, init, bias, &w);
    mezzo_module_end(g);
    return mezzo_adapted_parts(g, x, y, w, n, parts);
}

mezzo_value mz_layer_layernorm(mezzo_graph *g, const char *name, mezzo_value x, bool bias) {
    const mezzo_init one = {.kind = MEZZO_INIT_CONSTANT, .a = 1}, zero = {.kind = MEZZO_INIT_ZERO};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", one, 1, &width);                    // [C]
    mezzo_value b = bias ? mezzo_param(g, "bias", zero, 1, &width) : MEZZO_NONE; // [C]
    mezzo_value y = mezzo_layernorm(g, x, w, b, LAYERNORM_EPS);                  // [… C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_rmsnorm(mezzo_graph *g, const char *name, mezzo_value x, float eps) {
    const mezzo_init one = {.kind = MEZZO_INIT_CONSTANT, .a = 1};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value y = mezzo_rmsnorm(g, x, mezzo_param(g, "weight", one, 1, &width), eps); // [… C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_swiglu(mezzo_graph *g, const char *name, const mz_swiglu_names *names, mezzo_value x, int64_t d_ff,
                            mezzo_init up, mezzo_init down) {
    const int64_t width = mezzo_value_dim(g, x, -1);
    const mezzo_part parts[] = {{names->parts[0], d_ff}, {names->parts[1], d_ff}};
    mezzo_module_begin(g, name);
    mezzo_value h = mz_layer_linear_parts(g, names->up, x, 2, parts, up, false); // [… 2F]
    mezzo_module_begin(g, "act");
    h = mezzo_swiglu(g, h); // [… F]
    mezzo_module_end(g);
    mezzo_value y = mz_layer_linear(g, names->down, h, width, down, false); // [… C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_embedding(mezzo_graph *g, const char *name, mezzo_value ids, int64_t rows, int64_t width,
                               float std, mezzo_value *table) {
    return mz_layer_embedding_from(g, name, ids, rows, width, (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = std}, table);
}

mezzo_value mz_layer_embedding_from(mezzo_graph *g, const char *name, mezzo_value ids, int64_t rows, int64_t width,
                                    mezzo_init init, mezzo_value *table) {
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", init, 2, (int64_t[]){rows, width}); // [V, C]
    mezzo_value y = mezzo_embedding(g, w, ids);                                  // [… C]
    mezzo_module_end(g);
    if (table != NULL)
        *table = w;
    return y;
}

mezzo_value mz_layer_attention(mezzo_graph *g, const char *name, mezzo_value x, int heads, float std,
                               float std_residual, float dropout, bool bias) {
    const mezzo_init in = {.kind = MEZZO_INIT_NORMAL, .a = std}, out = {.kind = MEZZO_INIT_NORMAL, .a = std_residual};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value qkv = mz_layer_linear(g, "c_attn", x, 3 * width, in, bias); // [B, T, 3C]
    mezzo_value y = mezzo_attention_qkv(g, qkv, heads, dropout);            // [B, T, C]
    y = mz_layer_linear(g, "c_proj", y, width, out, bias);                  // [B, T, C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_mlp(mezzo_graph *g, const char *name, mezzo_value x, int64_t d_ff, float std, float std_residual,
                         bool bias) {
    const mezzo_init in = {.kind = MEZZO_INIT_NORMAL, .a = std}, out = {.kind = MEZZO_INIT_NORMAL, .a = std_residual};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value h = mz_layer_linear(g, "c_fc", x, d_ff, in, bias); // [B, T, F]
    mezzo_module_begin(g, "act");
    h = mezzo_gelu(g, h, true); // [B, T, F]
    mezzo_module_end(g);
    mezzo_value y = mz_layer_linear(g, "c_proj", h, width, out, bias); // [B, T, C]
    mezzo_module_end(g);
    return y;
}

mezzo_status mz_layer_loss(mezzo_graph *g, mezzo_value logits, mezzo_value targets, bool keep_logits) {
    mezzo_module_begin(g, "loss");
    mezzo_value loss = mezzo_cross_entropy(g, logits, targets, -1); // [1]
    mezzo_module_end(g);
    if (keep_logits)
        MEZZO_TRY(mezzo_graph_output(g, "logits", logits));
    return mezzo_graph_loss(g, loss);
}
