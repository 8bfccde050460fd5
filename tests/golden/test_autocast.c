// The autocast pass against torch.autocast("cuda"): the same output dtype for every op, mixed inputs included, for
// every step of the toy model and of a GPT-2 block, and FP32 parameters and gradients. The table is PyTorch's
// (make/autocast_table.py).
#include <stdio.h>
#include <stdlib.h>

#include "golden.h"
#include "runtime/passes.h"
#include "mezzo/model.h"
#include "mezzo/program.h"

#define MAX_ROWS 256
#define FIELD    64

typedef struct row {
    char precision[FIELD], kind[FIELD], op[FIELD], name[FIELD], inputs[FIELD], output[FIELD], grads[FIELD];
} row;
static row rows[MAX_ROWS];
static int n_rows;

static int read_table(void **state) {
    (void)state;
    char path[4096], line[1024];
    FILE *f = fopen(golden_path("autocast.csv", path, sizeof path), "r");
    if (f == NULL)
        return -1;
    while (fgets(line, sizeof line, f) != NULL && n_rows < MAX_ROWS) {
        row *r = &rows[n_rows];
        if (line[0] == '#' || strncmp(line, "precision,", 10) == 0)
            continue;
        if (sscanf(line, "%63[^,],%63[^,],%63[^,],%63[^,],%63[^,],%63[^,],%63[^,\n]", r->precision, r->kind, r->op,
                   r->name, r->inputs, r->output, r->grads) != 7)
            return -1;
        ++n_rows;
    }
    fclose(f);
    return n_rows > 100 ? 0 : -1;
}

static mezzo_dtype dtype_of(const char *name) {
    for (int d = 0; d < MEZZO_DTYPE_COUNT; ++d)
        if (strcmp(mezzo_dtype_name((mezzo_dtype)d), name) == 0)
            return (mezzo_dtype)d;
    fail_msg("unknown dtype %s", name);
    return MEZZO_F32;
}
static mezzo_precision precision_of(const char *name) {
    mezzo_precision p = MEZZO_PRECISION_FP32;
    must(mezzo_precision_parse(name, &p));
    return p;
}

// --- ops alone -----------------------------------------------------------------------------------------------------
// An input of the dtype that the table names: a low one is an explicit cast of an FP32 input.
static mezzo_value typed(mezzo_graph *g, int slot, mezzo_dtype dtype, int rank, const int64_t *shape) {
    char name[16];
    snprintf(name, sizeof name, "in%d", slot);
    mezzo_value v = mezzo_input(g, name, MEZZO_F32, rank, shape);
    return dtype == MEZZO_F32 ? v : mezzo_cast(g, v, dtype);
}

static mezzo_value one_op(mezzo_graph *g, const row *r) {
    static const int64_t square[] = {8, 8}, cube[] = {2, 8, 8}, vector[] = {8}, tokens[] = {2, 16, 16}, flat[] = {64};
    mezzo_dtype d[3] = {MEZZO_F32, MEZZO_F32, MEZZO_F32};
    char inputs[FIELD];
    snprintf(inputs, sizeof inputs, "%s", r->inputs);
    int n = 0;
    for (char *part = strtok(inputs, "+"); part != NULL && n < 3; part = strtok(NULL, "+"))
        d[n++] = dtype_of(part);
    const char *op = r->op;
    bool three = strcmp(op, "attention") == 0, batched = strcmp(op, "matmul") == 0;
    mezzo_value x = typed(g, 0, d[0], three || batched ? 3 : 2, three ? tokens : batched ? cube : square);
    mezzo_value y = MEZZO_NONE, z = MEZZO_NONE;
    bool norm = strcmp(op, "layernorm") == 0;
    if (n > 1)
        y = typed(g, 1, d[1],
                  three || batched ? 3
                  : norm           ? 1
                                   : 2,
                  three     ? tokens
                  : batched ? cube
                  : norm    ? vector
                            : square);
    if (n > 2)
        z = typed(g, 2, d[2], three ? 3 : 1, three ? tokens : vector);
    mezzo_value ids = mezzo_arange(g, 8), parts[2];
    if (strcmp(op, "linear") == 0)
        return mezzo_linear(g, x, y, z);
    if (batched)
        return mezzo_matmul(g, x, y, false, false);
    if (strcmp(op, "add") == 0)
        return mezzo_add(g, x, y);
    if (strcmp(op, "mul") == 0)
        return mezzo_mul(g, x, y);
    if (strcmp(op, "concat") == 0)
        return mezzo_concat(g, (mezzo_value[]){x, y}, 2, 1);
    if (norm)
        return mezzo_layernorm(g, x, y, z, 1e-5f);
    if (strcmp(op, "scale") == 0)
        return mezzo_scale(g, x, 0.5f);
    if (strcmp(op, "relu") == 0)
        return mezzo_relu(g, x);
    if (strcmp(op, "silu") == 0)
        return mezzo_silu(g, x);
    if (strcmp(op, "gelu") == 0)
        return mezzo_gelu(g, x, strstr(r->name, "tanh") != NULL);
    if (strcmp(op, "softmax") == 0)
        return mezzo_softmax(g, x);
    if (strcmp(op, "sum") == 0)
        return mezzo_sum(g, x, -1);
    if (strcmp(op, "mean") == 0)
        return mezzo_mean(g, x, -1);
    if (strcmp(op, "dropout") == 0)
        return mezzo_dropout(g, x, 0.5f);
    if (strcmp(op, "reshape") == 0)
        return mezzo_reshape(g, x, 1, flat);
    if (strcmp(op, "embedding") == 0)
        return mezzo_embedding(g, x, ids);
    if (strcmp(op, "cross_entropy") == 0)
        return mezzo_cross_entropy(g, x, ids, -100);
    if (three)
        return mezzo_attention(g, x, y, z, 2, 2, 0);
    assert_string_equal(op, "split");
    must(mezzo_split(g, x, 1, 2, parts));
    return parts[0];
}

typedef struct seen {
    char op[FIELD], output[FIELD];
    mezzo_dtype storage;
} seen;
typedef struct sightings {
    seen at[256];
    int n;
} sightings;
// Forward ops in order, without the casts that the pass inserts and what has no arithmetic to decide about.
static void see(void *user, const mezzo_explain_row *r) {
    sightings *s = user;
    if (strcmp(r->phase, "forward") != 0 || strcmp(r->op, "cast") == 0 || strcmp(r->op, "arange") == 0)
        return;
    assert_true(s->n < (int)MZ_COUNT(s->at));
    seen *one = &s->at[s->n++];
    snprintf(one->op, sizeof one->op, "%s", r->op);
    snprintf(one->output, sizeof one->output, "%s", r->output);
    one->storage = r->storage;
}

TEST(every_op_leaves_the_dtype_that_torch_decides) {
    int checked = 0;
    for (const row *r = rows; r < rows + n_rows; ++r) {
        if (strcmp(r->kind, "op") != 0)
            continue;
        mezzo_graph *g = NULL;
        must(mezzo_graph_create(&g));
        must(mezzo_graph_output(g, "y", one_op(g, r)));
        must(mezzo_graph_status(g));
        static sightings s;
        s.n = 0;
        mezzo_program_options options = {.precision = precision_of(r->precision), .forward_only = true};
        must(mezzo_graph_explain(g, &options, "autocast", see, &s));
        assert_int_equal(s.n, 1);
        assert_string_equal(s.at[0].op, r->op);
        if (s.at[0].storage != dtype_of(r->output))
            fail_msg("%s %s (%s) under %s: %s here, %s in torch", r->op, r->name, r->inputs, r->precision,
                     mezzo_dtype_name(s.at[0].storage), r->output);
        mezzo_graph_free(g);
        ++checked;
    }
    assert_true(checked > 100);
}

// --- models --------------------------------------------------------------------------------------------------------
// reshape and split are left out: PyTorch splits q, k and v and moves the heads, which Mezzo's attention does itself.
static bool moves_only(const char *op) {
    return strcmp(op, "reshape") == 0 || strcmp(op, "split") == 0;
}

static void same_steps(const char *kind, const char *precision, const mezzo_graph *g) {
    static sightings s;
    s.n = 0;
    mezzo_program_options options = {.precision = precision_of(precision)};
    must(mezzo_graph_explain(g, &options, "autocast", see, &s));
    int at = 0;
    for (const row *r = rows; r < rows + n_rows; ++r) {
        if (strcmp(r->kind, kind) != 0 || strcmp(r->precision, precision) != 0 || moves_only(r->op) ||
            strcmp(r->op, "parameters") == 0)
            continue;
        while (at < s.n && moves_only(s.at[at].op))
            ++at;
        assert_true(at < s.n);
        if (strcmp(s.at[at].op, r->op) != 0 || s.at[at].storage != dtype_of(r->output))
            fail_msg("%s %s, %s: %s -> %s here, %s -> %s in torch", precision, kind, r->name, s.at[at].op,
                     mezzo_dtype_name(s.at[at].storage), r->op, r->output);
        ++at;
    }
    while (at < s.n && moves_only(s.at[at].op))
        ++at;
    assert_int_equal(at, s.n); // and Mezzo has no step more
}

// Masters and their gradients: FP32 in torch ("parameters" rows, where a device made the table) and here.
static void parameters_are_fp32(const char *kind, const char *precision, const mezzo_graph *g) {
    for (const row *r = rows; r < rows + n_rows; ++r)
        if (strcmp(r->kind, kind) == 0 && strcmp(r->op, "parameters") == 0) {
            assert_string_equal(r->output, "fp32");
            assert_true(strcmp(r->grads, "fp32") == 0 || strcmp(r->grads, "-") == 0);
        }
    mezzo_graph *passed = NULL;
    mezzo_program_options options = {.precision = precision_of(precision)};
    must(mz_passes(g, &(mz_target){.options = &options}, "autodiff", &passed));
    int gradients = 0;
    for (size_t i = 0; i < passed->n_values; ++i) {
        const mz_value *v = &passed->values[i];
        if (v->kind == MZ_VALUE_PARAM || v->kind == MZ_VALUE_GRAD)
            assert_int_equal(v->dtype, MEZZO_F32);
        gradients += v->kind == MZ_VALUE_GRAD;
    }
    assert_int_equal(gradients, passed->n_params);
    mezzo_graph_free(passed);
}

static void the_model(const char *kind, const mezzo_model_config *config, int64_t batch, int64_t seq_len) {
    static const char *const precisions[] = {"fp16", "bf16"};
    mezzo_graph *g = NULL;
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, config, batch, seq_len, true));
    for (size_t i = 0; i < MZ_COUNT(precisions); ++i) {
        same_steps(kind, precisions[i], g);
        parameters_are_fp32(kind, precisions[i], g);
    }
    mezzo_graph_free(g);
}

TEST(the_toy_model_step_by_step) {
    mezzo_model_config config;
    must(mezzo_model_defaults("toy", &config));
    the_model("toy", &config, 8, 1);
}

TEST(a_gpt2_block_step_by_step) {
    mezzo_model_config config;
    must(mezzo_model_defaults("gpt2", &config));
    config.layers = 1;
    config.heads = 2;
    config.d_model = 32;
    config.d_ff = 0;
    config.vocab = 61;
    config.seq_len = 16;
    config.dropout = 0.1;
    config.bias = true;
    the_model("gpt2_block", &config, 2, 16);
}

TEST_GROUP(read_table, NULL)
