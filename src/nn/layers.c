// Builds the layers of Transformers, each inside a module scope of its own, so that parameters get the names that other
// programs use and a precision override can address every op.
#include <stddef.h>

#include "base/base.h"
#include "nn/layers.h"

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
    if (parts[0].name == NULL) // all parts share one adapter
        y = mezzo_adapted(g, x, y);
    mezzo_module_end(g);
    return mezzo_adapted_parts(g, x, y, w, n, parts);
}

mezzo_value mz_layer_layernorm(mezzo_graph *g, const char *name, mezzo_value x, float eps, bool bias) {
    const mezzo_init one = {.kind = MEZZO_INIT_CONSTANT, .a = 1}, zero = {.kind = MEZZO_INIT_ZERO};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", one, 1, &width);                    // [C]
    mezzo_value b = bias ? mezzo_param(g, "bias", zero, 1, &width) : MEZZO_NONE; // [C]
    mezzo_value y = mezzo_layernorm(g, x, w, b, eps);                            // [… C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_rmsnorm(mezzo_graph *g, const char *name, mezzo_value x, float offset, float eps) {
    const mezzo_init one = {.kind = MEZZO_INIT_CONSTANT, .a = 1 - offset};
    const int64_t width = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", one, 1, &width);   // [C]
    mezzo_value y = mezzo_rmsnorm_offset(g, x, w, offset, eps); // [… C]
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_embedding(mezzo_graph *g, const char *name, mezzo_value ids, int64_t rows, int64_t width,
                               mezzo_init init, mezzo_value *table) {
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", init, 2, (int64_t[]){rows, width}); // [V, C]
    mezzo_value y = mezzo_embedding(g, w, ids);                                  // [… C]
    mezzo_module_end(g);
    if (table != NULL)
        *table = w;
    return y;
}

mezzo_status mz_layer_loss(mezzo_graph *g, mezzo_value logits, mezzo_value targets, float cap, bool keep_logits) {
    mezzo_module_begin(g, "loss");
    mezzo_value loss = mezzo_cross_entropy_capped(g, logits, targets, -1, cap); // [1]
    mezzo_module_end(g);
    if (keep_logits)
        MEZZO_TRY(mezzo_graph_output(g, "logits", cap > 0 ? mezzo_softcap(g, logits, cap) : logits));
    return mezzo_graph_loss(g, loss);
}
