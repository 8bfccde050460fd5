// Every op alone, forward and gradients, against PyTorch at float64: on ref in FP64, on ref and cpu in FP32.
//
// A case's inputs are parameters, so that their gradients can be read; the loss is Σ y·g with the stored output
// gradient g. The tolerance of each tensor is derived from the op: u is the unit roundoff of the arithmetic, K the
// number of terms of a sum, and a sum of K products of magnitudes ≤ A and B is off by at most K·u·(K·A·B), in any order
// of summation. Magnitudes are the largest of the case's own tensors: X is that of x, G that of the gradient fed in.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "mezzo/program.h"

#define MAX_SLOTS 8

typedef struct op_case {
    const mz_safetensors *file;
    const json_t *row, *attrs;
    const char *op, *name;
} op_case;

static double attr(const op_case *c, const char *key) {
    return golden_number(c->attrs, key);
}
static double largest(const op_case *c, const char *tensor) { // 0 when the case has no such tensor
    char name[256];
    snprintf(name, sizeof name, "%s.%s", c->name, tensor);
    if (mz_safetensors_find(c->file, name) == NULL)
        return 0;
    golden_values v = golden_get(c->file, "%s", name);
    double m = golden_max(&v);
    golden_free(&v);
    return m;
}
static double dim(const op_case *c, const char *tensor, int axis) { // axis < 0: from the end
    golden_values v = golden_get(c->file, "%s.%s", c->name, tensor);
    int64_t d = v.dim[axis < 0 ? v.rank + axis : axis];
    golden_free(&v);
    return (double)d;
}
static double elements(const op_case *c, const char *tensor) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, tensor);
    size_t n = v.count;
    golden_free(&v);
    return (double)n;
}

// --- bounds --------------------------------------------------------------------------------------------------------
static double bound_linear(const op_case *c, const char *what, double u) {
    double X = largest(c, "x"), W = largest(c, "w"), B = largest(c, "b"), G = largest(c, "g_y");
    double N = dim(c, "w", 0), K = dim(c, "w", 1), rows = elements(c, "x") / K;
    if (strcmp(what, "y") == 0)
        return (K + 1) * u * (K * X * W + B);
    if (strcmp(what, "d_x") == 0)
        return N * u * N * G * W;
    if (strcmp(what, "d_w") == 0)
        return rows * u * rows * G * X;
    return rows * u * rows * G; // d_b
}

static double bound_matmul(const op_case *c, const char *what, double u) {
    double A = largest(c, "a"), B = largest(c, "b"), G = largest(c, "g_y");
    double M = dim(c, "y", -2), N = dim(c, "y", -1), K = dim(c, "a", attr(c, "transpose_a") != 0 ? -2 : -1);
    if (strcmp(what, "y") == 0)
        return K * u * K * A * B;
    return strcmp(what, "d_a") == 0 ? N * u * N * G * B : M * u * M * G * A;
}

// b may be repeated over leading dimensions: its gradient is then a sum of that many terms.
static double bound_add_mul(const op_case *c, const char *what, double u, bool product) {
    double A = largest(c, "a"), B = largest(c, "b"), G = largest(c, "g_y");
    double repeats = elements(c, "a") / elements(c, "b");
    if (strcmp(what, "y") == 0)
        return product ? u * A * B : u * (A + B);
    if (strcmp(what, "d_a") == 0)
        return product ? u * G * B : 0;
    return product ? (repeats + 1) * u * repeats * G * A : (repeats > 1 ? repeats * u * repeats * G : 0);
}

// y = x·f(x) with 0 ≤ f ≤ 1 good to a few roundings, so y is good to 8·u·X. In the derivative of the tanh form,
// x/2·(1 - t²)·k(1 + 3·0.044715·x²), the factor before 1 - t² is at most 14 where 1 - t² has not vanished (|x| < 6),
// and 1 - t² is off by 4u there; the other terms are smaller.
static double bound_activation(const op_case *c, const char *what, double u) {
    return strcmp(what, "y") == 0 ? 8 * u * largest(c, "x") : 64 * u * largest(c, "g_y");
}

// x̂ = (x - mean)·rstd. The mean is off by C·u·X, which x̂ sees times rstd; the variance, taken about the mean, is off
// by (C+4)·u of itself plus the square of the mean's error; so x̂ is off by e = (C+8)·u·(rstd·X + |x̂|).
// dx = rstd·(h - mean(h) - x̂·mean(h·x̂)) with h = g·w, |h| ≤ H.
static double bound_layernorm(const op_case *c, const char *what, double u) {
    golden_values x = golden_get(c->file, "%s.x", c->name);
    double C = (double)x.dim[x.rank - 1], rows = (double)x.count / C, rstd = 0, hat = 0, X = golden_max(&x);
    for (double *row = x.at; row < x.at + x.count; row += (size_t)C) {
        double mean = 0, var = 0;
        for (size_t i = 0; i < (size_t)C; ++i)
            mean += row[i] / C;
        for (size_t i = 0; i < (size_t)C; ++i)
            var += (row[i] - mean) * (row[i] - mean) / C;
        double r = 1 / sqrt(var + attr(c, "eps"));
        rstd = fmax(rstd, r);
        for (size_t i = 0; i < (size_t)C; ++i)
            hat = fmax(hat, fabs(row[i] - mean) * r);
    }
    golden_free(&x);
    double W = largest(c, "w"), B = largest(c, "b"), G = largest(c, "g_y");
    if (W == 0)
        W = 1; // no weight
    double e = (C + 8) * u * (rstd * X + hat), H = G * W;
    if (strcmp(what, "y") == 0)
        return W * e + 2 * u * (W * hat + B);
    if (strcmp(what, "d_x") == 0)
        return rstd * H * ((C + 8) * u * (2 + hat * hat) + 2 * (hat + e) * e + (C + 8) * u * (1 + hat));
    if (strcmp(what, "d_w") == 0)
        return rows * (rows * u * G * hat + G * e);
    return rows * u * rows * G; // d_b
}

// p = exp(x - m)/Σ: the difference is off by u·R (R: range of a row ≤ 2X), which exp turns into a relative error; the
// sum adds C·u, exp and the division a few more. dx = p·(g - Σ g·p), where Σ p = 1.
static double bound_softmax(const op_case *c, const char *what, double u) {
    double X = largest(c, "x"), C = dim(c, "x", -1), G = largest(c, "g_y"), e = (C + 2 * X + 8) * u;
    return strcmp(what, "y") == 0 ? e : 2 * G * (2 * e + (C + 2) * u);
}

// loss = mean(m + log Σ exp(x - m) - x[t]); dx = (p - 1[t])/n, times the gradient fed in.
static double bound_cross_entropy(const op_case *c, const char *what, double u) {
    double X = largest(c, "x"), V = dim(c, "x", -1), rows = dim(c, "x", 0), e = (V + 2 * X + 8) * u;
    return strcmp(what, "y") == 0 ? e + (rows + 2) * u * 2 * (X + log(V)) : largest(c, "g_y") * (e + 4 * u);
}

// The largest 2-norm of a row of D elements: |q·k| ≤ ‖q‖‖k‖.
static double row_norm(const op_case *c, const char *tensor, double D) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, tensor);
    double worst = 0, sum = 0;
    for (size_t i = 0; i < v.count; ++i) {
        sum = (i % (size_t)D == 0 ? 0 : sum) + v.at[i] * v.at[i];
        worst = fmax(worst, sum);
    }
    golden_free(&v);
    return sqrt(worst);
}

// Scores s = q·k/√D are off by e_s, so a row's weights p by a relative e_p; y = Σ p·v, Σ p = 1.
// ds = p·(dp - Σ p·dp) with dp = g·vᵀ, |dp| ≤ P: a row's Σ|ds| is at most 2·P and off by E.
// A key's gradients sum over queries and sharing heads; the weights in that sum add up to at most A.
static double bound_attention(const op_case *c, const char *what, double u, bool packed) {
    double T = dim(c, "y", 1), heads = attr(c, "heads"), group = heads / attr(c, "kv_heads");
    double D = packed ? dim(c, "y", -1) / heads : dim(c, "y", -1), root = sqrt(D), A = attr(c, "busiest_key");
    const char *q = packed ? "x" : "q", *k = packed ? "x" : "k", *v = packed ? "x" : "v";
    double Q = largest(c, q), K = largest(c, k), V = largest(c, v), G = largest(c, "g_y");
    double S = row_norm(c, q, D) * row_norm(c, k, D) / root, P = row_norm(c, "g_y", D) * row_norm(c, v, D);
    double e_s = (D + 2) * u * S, e_p = 2 * e_s + (T + 2 * S + 8) * u, E = 2 * P * (2 * e_p + (2 * D + T + 8) * u);
    double y = (e_p + T * u) * V, dq = (E + 2 * P * (T + 2) * u) * K / root;
    double dk = A * (E + 2 * P * (T * group + 2) * u) * Q / root, dv = A * (e_p + T * group * u) * G;
    if (strcmp(what, "y") == 0)
        return y;
    if (packed)
        return fmax(dq, fmax(dk, dv));
    return strcmp(what, "d_q") == 0 ? dq : strcmp(what, "d_k") == 0 ? dk : dv;
}

// A sum over an axis has x's elements / y's elements terms.
static double bound_sum_mean(const op_case *c, const char *what, double u, bool mean) {
    double N = elements(c, "x") / elements(c, "y"), X = largest(c, "x"), G = largest(c, "g_y");
    if (strcmp(what, "y") == 0)
        return mean ? (N + 2) * u * X : N * u * N * X;
    return mean ? (2 * u + UNIT_F32) * G / N : 0; // 1/N is an FP32 attribute of the op
}

static double bound(const op_case *c, const char *what, double u) {
    const char *op = c->op;
    if (strcmp(op, "linear") == 0)
        return bound_linear(c, what, u);
    if (strcmp(op, "matmul") == 0)
        return bound_matmul(c, what, u);
    if (strcmp(op, "add") == 0 || strcmp(op, "mul") == 0)
        return bound_add_mul(c, what, u, op[0] == 'm');
    if (strcmp(op, "scale") == 0)
        return u * attr(c, "factor") * largest(c, what[0] == 'd' ? "g_y" : "x");
    if (strcmp(op, "gelu") == 0 || strcmp(op, "silu") == 0)
        return bound_activation(c, what, u);
    if (strcmp(op, "layernorm") == 0)
        return bound_layernorm(c, what, u);
    if (strcmp(op, "softmax") == 0)
        return bound_softmax(c, what, u);
    if (strcmp(op, "cross_entropy") == 0)
        return bound_cross_entropy(c, what, u);
    if (strncmp(op, "attention", 9) == 0)
        return bound_attention(c, what, u, op[9] != '\0');
    if (strcmp(op, "sum") == 0 || strcmp(op, "mean") == 0)
        return bound_sum_mean(c, what, u, op[0] == 'm');
    if (strcmp(op, "embedding") == 0 && what[0] == 'd') { // a row is used at most as often as there are ids
        double n = elements(c, "ids");
        return n * u * n * largest(c, "g_y");
    }
    return 0; // relu, reshape, split, concat, a looked-up row: exact
}

// --- graphs --------------------------------------------------------------------------------------------------------
// Mezzo's attention takes heads and their width as one dimension.
static int shape_of(const op_case *c, const golden_values *v, int64_t shape[MEZZO_MAX_RANK]) {
    int rank = v->rank == 0 ? 1 : v->rank;
    if (strcmp(c->op, "attention") == 0 && rank == 4) {
        memcpy(shape, v->dim, 2 * sizeof *shape);
        shape[2] = v->dim[2] * v->dim[3];
        return 3;
    }
    assert_in_range(rank, 1, MEZZO_MAX_RANK);
    for (int i = 0; i < rank; ++i)
        shape[i] = v->rank == 0 ? 1 : v->dim[i];
    return rank;
}

typedef enum source_kind { PARAM, FLOATS, IDS } source_kind;
static mezzo_value source(mezzo_graph *g, const op_case *c, const char *slot, source_kind kind) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, slot);
    int64_t shape[MEZZO_MAX_RANK];
    int rank = shape_of(c, &v, shape);
    golden_free(&v);
    if (kind == PARAM)
        return mezzo_param(g, slot, (mezzo_init){.kind = MEZZO_INIT_ZERO}, rank, shape);
    return mezzo_input(g, slot, kind == IDS ? MEZZO_I32 : MEZZO_F32, rank, shape);
}

static int apply(mezzo_graph *g, const op_case *c, const mezzo_value *in, int n, mezzo_value *out) {
    const char *op = c->op;
    mezzo_value second = n > 1 ? in[1] : MEZZO_NONE, third = n > 2 ? in[2] : MEZZO_NONE;
    if (strcmp(op, "linear") == 0) {
        out[0] = mezzo_linear(g, in[0], second, third);
    } else if (strcmp(op, "matmul") == 0) {
        out[0] = mezzo_matmul(g, in[0], second, attr(c, "transpose_a") != 0, attr(c, "transpose_b") != 0);
    } else if (strcmp(op, "add") == 0) {
        out[0] = mezzo_add(g, in[0], second);
    } else if (strcmp(op, "mul") == 0) {
        out[0] = mezzo_mul(g, in[0], second);
    } else if (strcmp(op, "scale") == 0) {
        out[0] = mezzo_scale(g, in[0], (float)attr(c, "factor"));
    } else if (strcmp(op, "relu") == 0) {
        out[0] = mezzo_relu(g, in[0]);
    } else if (strcmp(op, "gelu") == 0) {
        const char *form = json_string_value(json_object_get(c->attrs, "approximate"));
        out[0] = mezzo_gelu(g, in[0], strcmp(form, "tanh") == 0);
    } else if (strcmp(op, "silu") == 0) {
        out[0] = mezzo_silu(g, in[0]);
    } else if (strcmp(op, "layernorm") == 0) {
        out[0] = mezzo_layernorm(g, in[0], second, third, (float)attr(c, "eps"));
    } else if (strcmp(op, "softmax") == 0) {
        out[0] = mezzo_softmax(g, in[0]);
    } else if (strcmp(op, "cross_entropy") == 0) {
        out[0] = mezzo_cross_entropy(g, in[0], second, (int32_t)attr(c, "ignore_index"));
    } else if (strcmp(op, "attention") == 0) {
        out[0] = mezzo_attention(g, in[0], second, third, (int)attr(c, "heads"), (int)attr(c, "kv_heads"), 0);
    } else if (strcmp(op, "attention_qkv") == 0) {
        out[0] = mezzo_attention_qkv(g, in[0], (int)attr(c, "heads"), 0);
    } else if (strcmp(op, "embedding") == 0) {
        out[0] = mezzo_embedding(g, in[0], second);
    } else if (strcmp(op, "sum") == 0) {
        out[0] = mezzo_sum(g, in[0], (int)attr(c, "axis"));
    } else if (strcmp(op, "mean") == 0) {
        out[0] = mezzo_mean(g, in[0], (int)attr(c, "axis"));
    } else if (strcmp(op, "reshape") == 0) {
        int64_t shape[MEZZO_MAX_RANK];
        const json_t *list = json_object_get(c->attrs, "shape");
        for (size_t i = 0; i < json_array_size(list); ++i)
            shape[i] = (int64_t)json_integer_value(json_array_get(list, i));
        out[0] = mezzo_reshape(g, in[0], (int)json_array_size(list), shape);
    } else if (strcmp(op, "split") == 0) {
        must(mezzo_split(g, in[0], (int)attr(c, "dim"), (int)attr(c, "parts"), out));
        return (int)attr(c, "parts");
    } else if (strcmp(op, "concat") == 0) {
        out[0] = mezzo_concat(g, in, n, (int)attr(c, "dim"));
    } else {
        fail_msg("no such op in this test: %s", op);
    }
    return 1;
}

static const char *slot_name(const op_case *c, const char *list, size_t i) {
    return json_string_value(json_array_get(json_object_get(c->row, list), i));
}
static size_t slot_count(const op_case *c, const char *list) {
    return json_array_size(json_object_get(c->row, list));
}

// Outputs are kept under their own names; the output gradients are inputs named "g_" and the output's name.
static mezzo_graph *build(const op_case *c) {
    mezzo_graph *g = NULL;
    must(mezzo_graph_create(&g));
    mezzo_value in[MAX_SLOTS], out[MAX_SLOTS], loss = MEZZO_NONE;
    int n = 0;
    for (size_t i = 0; i < slot_count(c, "inputs"); ++i)
        in[n++] = source(g, c, slot_name(c, "inputs", i), PARAM);
    for (size_t i = 0; i < slot_count(c, "fixed"); ++i)
        in[n++] = source(g, c, slot_name(c, "fixed", i), IDS);
    int outputs = apply(g, c, in, n, out);
    for (int i = 0; i < outputs; ++i) {
        const char *name = slot_name(c, "outputs", (size_t)i);
        char gradient[32];
        snprintf(gradient, sizeof gradient, "g_%s", name);
        must(mezzo_graph_output(g, name, out[i]));
        mezzo_value part = mezzo_sum(g, mezzo_mul(g, out[i], source(g, c, gradient, FLOATS)), -1);
        loss = i == 0 ? part : mezzo_add(g, loss, part);
    }
    must(mezzo_graph_loss(g, loss));
    must(mezzo_graph_status(g));
    return g;
}

static void write_floats(mezzo_program *p, mezzo_params *params, const op_case *c, const char *slot) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, slot);
    float *values = golden_floats(&v);
    if (mezzo_params_find(params, slot) >= 0)
        must(mezzo_params_write(params, mezzo_params_find(params, slot), values));
    else
        must(mezzo_program_write(p, slot, values, v.count * sizeof *values));
    free(values);
    golden_free(&v);
}

static void check(const op_case *c, const char *where, const char *slot, const char *prefix, const float *got,
                  double u) {
    char what[64], label[160];
    snprintf(what, sizeof what, "%s%s", prefix, slot);
    snprintf(label, sizeof label, "%s, %s.%s", where, c->name, what);
    golden_values want = golden_get(c->file, "%s.%s", c->name, what);
    // FP64 results are read as FP32: one more rounding of the value itself.
    double absolute = bound(c, prefix[0] == 'd' ? what : "y", u), relative = u == UNIT_F64 ? UNIT_F32 : 0;
    golden_close(label, got, &want, absolute, relative);
    golden_would_notice(label, &want, 0.01, absolute + relative * golden_max(&want));
    golden_free(&want);
}

static void run_case(const op_case *c, mezzo_device *device, const char *where, mezzo_precision precision) {
    mezzo_graph *g = build(c);
    mezzo_params *params = NULL;
    mezzo_program *p = NULL;
    must(mezzo_params_create(device, g, 1, &params));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.precision = precision}, &p));
    for (size_t i = 0; i < slot_count(c, "inputs"); ++i)
        write_floats(p, params, c, slot_name(c, "inputs", i));
    for (size_t i = 0; i < slot_count(c, "fixed"); ++i) {
        golden_values v = golden_get(c->file, "%s.%s", c->name, slot_name(c, "fixed", i));
        int32_t *ids = golden_ints(&v);
        must(mezzo_program_write(p, slot_name(c, "fixed", i), ids, v.count * sizeof *ids));
        free(ids);
        golden_free(&v);
    }
    for (size_t i = 0; i < slot_count(c, "outputs"); ++i) {
        char gradient[32];
        snprintf(gradient, sizeof gradient, "g_%s", slot_name(c, "outputs", i));
        write_floats(p, params, c, gradient);
    }
    must(mezzo_program_run(p, NULL, 1, 0));
    float got[4096];
    double u = precision == MEZZO_PRECISION_FP64 ? UNIT_F64 : UNIT_F32;
    for (size_t i = 0; i < slot_count(c, "outputs"); ++i) {
        const char *slot = slot_name(c, "outputs", i);
        size_t bytes = (size_t)elements(c, slot) * sizeof *got;
        assert_true(bytes <= sizeof got);
        must(mezzo_program_read(p, slot, got, bytes));
        check(c, where, slot, "", got, u);
    }
    for (size_t i = 0; i < slot_count(c, "inputs"); ++i) {
        const char *slot = slot_name(c, "inputs", i);
        assert_true((size_t)elements(c, slot) * sizeof *got <= sizeof got);
        must(mezzo_params_read_grad(params, mezzo_params_find(params, slot), got));
        check(c, where, slot, "d_", got, u);
    }
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_graph_free(g);
}

static void run_all(const char *device_name, const char *where, mezzo_precision precision) {
    mezzo_device *device = NULL;
    must(mezzo_device_open(device_name, 2, &device));
    json_t *root = golden_json("ops.json"), *row;
    mz_safetensors *file = golden_tensors("ops.safetensors");
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, row) {
        op_case c = {.file = file,
                     .row = row,
                     .attrs = json_object_get(row, "attrs"),
                     .op = json_string_value(json_object_get(row, "op")),
                     .name = json_string_value(json_object_get(row, "case"))};
        run_case(&c, device, where, precision);
    }
    assert_true(i > 40);
    mz_safetensors_close(file);
    json_decref(root);
    mezzo_device_close(device);
}

TEST(ref_in_fp64) {
    run_all("ref", "ref fp64", MEZZO_PRECISION_FP64);
}
TEST(ref_in_fp32) {
    run_all("ref", "ref fp32", MEZZO_PRECISION_FP32);
}
TEST(the_device_in_fp32) {
    run_all(test_device(), "the device in fp32", MEZZO_PRECISION_FP32);
}
// The lower paths, for machines with neither AVX-512 nor AVX2; this machine may lack the upper ones.
TEST(cpu_on_its_lower_paths) {
    static const char *const levels[] = {"avx2", "ref"};
    for (size_t i = 0; i < MZ_COUNT(levels); ++i) {
        mezzo_device *device = NULL;
        setenv("MEZZO_ISA", levels[i], 1);
        mezzo_status status = mezzo_device_open("cpu", 1, &device);
        mezzo_device_close(device);
        assert_true(status == MEZZO_OK || strcmp(levels[i], "ref") != 0);
        if (status == MEZZO_OK)
            run_all("cpu", levels[i], MEZZO_PRECISION_FP32);
        unsetenv("MEZZO_ISA");
    }
}
