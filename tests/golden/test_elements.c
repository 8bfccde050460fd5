// Ops of element.def, reductions and movements against PyTorch in FP32, BF16 and FP16: values and gradients.
// u is the unit roundoff of the format. PyTorch rounds each op of a composite formula to the format, three at most
// (softcap: x/c, tanh, ·c; a quotient's gradient: a/b, /b, ·dy), and FP32's own error is below u/2^12 there. Results
// are compared with the largest of their tensor, by 4·u. In FP32 the libraries' functions are good to 4 units each:
// 8·u. Sums in 16 bits are FP32 inside on both sides; a gradient that repeats is summed in the order of each: n·u·n·G
// in FP32.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "graph/op.h"
#include "mezzo/program.h"

enum { MAX_SLOTS = 4 };
static const struct {
    const char *name;
    mezzo_dtype dtype;
    double u;
} formats[] = {{"fp32", MEZZO_F32, 0x1p-24}, {"bf16", MEZZO_BF16, 0x1p-8}, {"fp16", MEZZO_F16, 0x1p-11}};

typedef struct op_case {
    const mz_safetensors *file;
    const json_t *row;
    const char *op, *name;
    int format;
} op_case;

static const json_t *attr(const op_case *c, const char *key) {
    return json_object_get(json_object_get(c->row, "attrs"), key);
}
static double number(const op_case *c, const char *key) { // 0 where the case has none
    return json_number_value(attr(c, key));
}
static int numbers(const op_case *c, const char *key, int64_t *out) {
    for (size_t i = 0; i < json_array_size(attr(c, key)); i++)
        out[i] = (int64_t)json_integer_value(json_array_get(attr(c, key), i));
    return (int)json_array_size(attr(c, key));
}
static const char *slot_name(const op_case *c, const char *list, size_t i) { // NULL past the end
    return json_string_value(json_array_get(json_object_get(c->row, list), i));
}

// --- graphs ----------------------------------------------------------------------------------------------------------
static mezzo_value moved(mezzo_graph *g, const op_case *c, mezzo_value x, mezzo_value second, mezzo_value third) {
    const char *op = c->op;
    const int axis = (int)number(c, "axis");
    int64_t list[2][MEZZO_MAX_RANK];
    mezzo_value parts[2] = {x, second};
    if (strcmp(op, "cumsum") == 0)
        return mezzo_cumsum(g, x, axis, number(c, "exclusive") != 0, number(c, "reverse") != 0);
    if (strcmp(op, "expand") == 0)
        return mezzo_expand(g, x, numbers(c, "shape", list[0]), list[0]);
    if (strcmp(op, "pad") == 0) {
        numbers(c, "before", list[0]);
        numbers(c, "after", list[1]);
        return mezzo_pad(g, x, list[0], list[1], (float)number(c, "alpha"));
    }
    if (strcmp(op, "slice") == 0)
        return mezzo_slice(g, x, axis, (int64_t)number(c, "begin"), (int64_t)number(c, "end"));
    if (strcmp(op, "flip") == 0)
        return mezzo_flip(g, x, axis);
    if (strcmp(op, "permute") == 0) {
        int axes[MEZZO_MAX_RANK];
        for (int i = numbers(c, "axes", list[0]); i-- > 0;)
            axes[i] = (int)list[0][i];
        return mezzo_permute(g, x, axes);
    }
    if (strcmp(op, "concat") == 0)
        return mezzo_concat(g, parts, 2, axis);
    if (strcmp(op, "split") == 0)
        return mezzo_split(g, x, axis, 2, parts) == MEZZO_OK ? parts[1] : MEZZO_NONE;
    if (strcmp(op, "gather") == 0)
        return mezzo_gather(g, x, axis, second, number(c, "elementwise") != 0);
    if (strcmp(op, "scatter_add") == 0)
        return mezzo_scatter_add(g, x, axis, third, second, number(c, "elementwise") != 0);
    fail_msg("no such op in this test: %s", op);
    return MEZZO_NONE;
}

#define PLAIN(name)  mezzo_##name(g, x)
#define FACTOR(name) mezzo_##name(g, x, (float)number(c, "alpha"))
#define RANGE(name)  mezzo_##name(g, x, (float)number(c, "low"), (float)number(c, "high"))
static mezzo_value apply(mezzo_graph *g, const op_case *c, mezzo_value x, mezzo_value second, mezzo_value third) {
#define UNARY(name, told, ...)                                                                                         \
    if (strcmp(c->op, #name) == 0)                                                                                     \
        return told(name);
#define UNARY_OWN  UNARY
#define UNARY_FLAT UNARY
#define BINARY(name, ...)                                                                                              \
    if (strcmp(c->op, #name) == 0)                                                                                     \
        return mezzo_##name(g, x, second);
#define BINARY_OWN BINARY
#define COMPARE    BINARY
#define TERNARY(name, ...)                                                                                             \
    if (strcmp(c->op, #name) == 0)                                                                                     \
        return mezzo_##name(g, third, x, second);
#include "graph/element.def"
#define REDUCTION(name)                                                                                                \
    if (strcmp(c->op, #name) == 0)                                                                                     \
        return mezzo_##name(g, x, (int)number(c, "axis"));
    REDUCTION(sum)
    REDUCTION(mean)
    REDUCTION(max)
    REDUCTION(min)
    REDUCTION(prod)
    return moved(g, c, x, second, third);
}

static mezzo_value source(mezzo_graph *g, const op_case *c, const char *slot, bool param, bool whole) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, slot);
    int64_t shape[MEZZO_MAX_RANK] = {1};
    for (int i = 0; i < v.rank; i++)
        shape[i] = v.dim[i];
    const int rank = v.rank > 0 ? v.rank : 1;
    golden_free(&v);
    return param ? mezzo_param(g, slot, (mezzo_init){.kind = MEZZO_INIT_ZERO}, rank, shape)
                 : mezzo_input(g, slot, whole ? MEZZO_I32 : MEZZO_F32, rank, shape);
}

static bool is_condition(const op_case *c) { // its result is I32
    for (int op = 0; op < MZ_OP_COUNT; op++)
        if (strcmp(mz_op_table[op].name, c->op) == 0)
            return mz_op_slot((mz_op)op, true, 0).is & MZ_SLOT_INTEGER;
    return false;
}

static mezzo_graph *build(const op_case *c) {
    mezzo_graph *g = NULL;
    mezzo_value in[MAX_SLOTS] = {MEZZO_NONE, MEZZO_NONE, MEZZO_NONE, MEZZO_NONE}, leaf = MEZZO_NONE;
    int n = 0;
    must(mezzo_graph_create(&g));
    for (size_t i = 0; slot_name(c, "inputs", i) != NULL; i++) {
        const mezzo_value x = source(g, c, slot_name(c, "inputs", i), true, false);
        leaf = i == 0 ? x : leaf;
        in[n++] = formats[c->format].dtype == MEZZO_F32 ? x : mezzo_cast(g, x, formats[c->format].dtype);
    }
    for (size_t i = 0; slot_name(c, "fixed", i) != NULL; i++)
        in[n++] = source(g, c, slot_name(c, "fixed", i), false, true);
    const mezzo_value y = mezzo_cast(g, apply(g, c, in[0], in[1], in[2]), MEZZO_F32),
                      weighted = is_condition(c) ? leaf : mezzo_mul(g, y, source(g, c, "g", false, false));
    must(mezzo_graph_output(g, "y", y));
    must(mezzo_graph_loss(g, mezzo_sum(g, weighted, -1)));
    must(mezzo_graph_status(g));
    return g;
}

// --- comparison ------------------------------------------------------------------------------------------------------
static void check(const op_case *c, const char *where, const char *what, const float *got) {
    char label[160];
    golden_values want = golden_get(c->file, "%s.%s.%s", c->name, formats[c->format].name, what);
    const double u = formats[c->format].u, most = golden_max(&want);
    const double sum = 0x1p-24 * 24 * most; // of FP32 sums of up to 24 terms, whatever their order
    snprintf(label, sizeof label, "%s, %s.%s.%s", where, c->name, formats[c->format].name, what);
    golden_close(label, got, &want, (formats[c->format].dtype == MEZZO_F32 ? 8 : 4) * u * most + sum, 0);
    if (most > 0)
        golden_would_notice(label, &want, 0.05, 4 * u * most + sum);
    golden_free(&want);
}

static void write_slot(mezzo_program *p, mezzo_params *params, const op_case *c, const char *slot, bool whole) {
    golden_values v = golden_get(c->file, "%s.%s", c->name, slot);
    void *values = whole ? (void *)golden_ints(&v) : (void *)golden_floats(&v);
    if (mezzo_params_find(params, slot) >= 0)
        must(mezzo_params_write(params, mezzo_params_find(params, slot), values));
    else
        must(mezzo_program_write(p, slot, values, v.count * 4));
    free(values);
    golden_free(&v);
}

static void run_case(const op_case *c, mezzo_device *device, const char *where) {
    mezzo_graph *g = build(c);
    mezzo_params *params = NULL;
    mezzo_program *p = NULL;
    float got[256];
    golden_values y = golden_get(c->file, "%s.%s.y", c->name, formats[c->format].name);
    must(mezzo_params_create(device, g, 1, &params));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32}, &p));
    for (size_t i = 0; slot_name(c, "inputs", i) != NULL; i++)
        write_slot(p, params, c, slot_name(c, "inputs", i), false);
    for (size_t i = 0; slot_name(c, "fixed", i) != NULL; i++)
        write_slot(p, params, c, slot_name(c, "fixed", i), true);
    if (!is_condition(c))
        write_slot(p, params, c, "g", false);
    must(mezzo_params_zero_grad(params));
    must(mezzo_program_run(p, NULL, 1, 1));
    must(mezzo_program_read(p, "y", got, y.count * sizeof *got));
    check(c, where, "y", got);
    for (size_t i = 0; slot_name(c, "inputs", i) != NULL && !is_condition(c); i++) {
        char what[32];
        snprintf(what, sizeof what, "d_%s", slot_name(c, "inputs", i));
        must(mezzo_params_read_grad(params, mezzo_params_find(params, slot_name(c, "inputs", i)), got));
        check(c, where, what, got);
    }
    golden_free(&y);
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_graph_free(g);
}

static void run_all(const char *name) {
    json_t *list = golden_json("elements.json"), *row;
    mz_safetensors *file = golden_tensors("elements.safetensors");
    mezzo_device *device;
    size_t i;
    must(mezzo_device_open(name, 1, &device));
    json_array_foreach(json_object_get(list, "cases"), i, row) {
        op_case c = {.file = file,
                     .row = row,
                     .op = json_string_value(json_object_get(row, "op")),
                     .name = json_string_value(json_object_get(row, "case"))};
        for (c.format = 0; c.format < (int)MZ_COUNT(formats); c.format++)
            run_case(&c, device, name);
    }
    mezzo_device_close(device);
    mz_safetensors_close(file);
    json_decref(list);
}

TEST(test_ref) {
    run_all("ref");
}

TEST(test_device_under_test) {
    run_all(test_device());
}

// Each row of element.def has a case, and the format in which PyTorch computed it is the row's class.
TEST(test_every_row_has_a_case) {
    static const mz_op ops[] = {
#define UNARY(name, ...)      MZ_OP_##name,
#define UNARY_OWN(name, ...)  MZ_OP_##name,
#define UNARY_FLAT(name, ...) MZ_OP_##name,
#define BINARY(name, ...)     MZ_OP_##name,
#define BINARY_OWN(name, ...) MZ_OP_##name,
#define COMPARE(name, ...)    MZ_OP_##name,
#define TERNARY(name, ...)    MZ_OP_##name,
#include "graph/element.def"
        MZ_OP_sum, MZ_OP_mean,  MZ_OP_max,     MZ_OP_min,    MZ_OP_prod,  MZ_OP_cumsum, MZ_OP_expand,
        MZ_OP_pad, MZ_OP_slice, MZ_OP_permute, MZ_OP_concat, MZ_OP_split, MZ_OP_gather, MZ_OP_scatter_add};
    json_t *list = golden_json("elements.json"), *row;
    size_t i;
    for (size_t k = 0; k < MZ_COUNT(ops); k++) {
        const mz_op_info *info = &mz_op_table[ops[k]];
        int cases = 0;
        json_array_foreach(json_object_get(list, "cases"), i, row) {
            if (strcmp(json_string_value(json_object_get(row, "op")), info->name) != 0)
                continue;
            cases++;
            if (json_is_true(json_object_get(row, "fp32")) != (info->cast_class == MZ_CAST_FP32))
                fail_msg("%s: its class is another one than the golden file's", info->name);
        }
        if (cases == 0)
            fail_msg("%s has no golden case", info->name);
    }
    json_decref(list);
}
