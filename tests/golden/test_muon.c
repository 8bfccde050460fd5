// Muon and NorMuon against references in FP64, and Muon against torch.optim.Muon, 20 steps (tests/golden/make/muon.py).
//
// Bounds, on ‖difference‖/‖way of the weights‖. A Newton-Schulz step rounds X, XXᵀ and the polynomial once each, to a
// unit u; the map is flat where singular values end up, so that roundings of the last three steps are left:
// 12·u. Besides, each step rounds a weight and its decay's factor in FP32: 2·20·2^-24 of the weights' size, which
// `distance` leaves out.
// Seen to fail with: the momentum without Nesterov, 4 steps, the other rule of scale.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "mezzo/optimizer.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

enum { MATRICES = 3, STEPS = 20 };
static const char *const names[MATRICES] = {"wide", "tall", "odd"};
static const int64_t shapes[MATRICES][2] = {{24, 40}, {40, 24}, {13, 7}};

static float *numbers(int64_t n, int step, int which) {
    float *x = mz_alloc((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)(step * 97 + which) * 2246822519u;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        x[i] = (float)(h & 0xFFFFu) / 32768 - 1;
    }
    return x;
}

typedef struct run {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_optimizer *optimizer;
} run;

static run start(const char *device, const mezzo_optimizer_options *o) {
    run r;
    mezzo_graph *g;
    const mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    must(mezzo_device_open(device, 1, &r.device));
    must(mezzo_graph_create(&g));
    for (int i = 0; i < MATRICES; i++)
        mezzo_param(g, names[i], normal, 2, shapes[i]);
    must(mezzo_params_create(r.device, g, 5, &r.params));
    mezzo_graph_free(g);
    for (int i = 0; i < MATRICES; i++) {
        float *x = numbers(shapes[i][0] * shapes[i][1], 0, i);
        must(mezzo_params_write(r.params, i, x));
        mz_free(x);
    }
    must(mezzo_optimizer_create(r.params, o, &r.optimizer));
    return r;
}

static void close_run(run *r) {
    mezzo_optimizer_free(r->optimizer);
    mezzo_params_free(r->params);
    mezzo_device_close(r->device);
}

static void steps(run *r) {
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < MATRICES; i++) {
            float *x = numbers(shapes[i][0] * shapes[i][1], step, i);
            must(mezzo_params_write_grad(r->params, i, x));
            mz_free(x);
        }
        must(mezzo_optimizer_step(r->optimizer));
        must(mezzo_optimizer_zero_grad(r->optimizer));
    }
}

// The largest of the matrices' ‖got - want‖/‖want - start‖.
static double distance(const run *r, const mz_safetensors *file, const char *kind, const char *rule) {
    double worst = 0;
    for (int i = 0; i < MATRICES; i++) {
        golden_values want = golden_get(file, "%s.%s.%s", kind, rule, names[i]);
        float *first = numbers((int64_t)want.count, 0, i), *got = mz_alloc(want.count, sizeof *got);
        double off = 0, way = 0, size = 0;
        must(mezzo_params_read(r->params, i, got));
        for (size_t k = 0; k < want.count; k++) {
            off += pow((double)got[k] - want.at[k], 2);
            way += pow(want.at[k] - (double)first[k], 2);
            size += pow(want.at[k], 2);
        }
        worst = fmax(worst, sqrt(off / way) - 2 * STEPS * UNIT_F32 * sqrt(size / way));
        mz_free(first);
        mz_free(got);
        golden_free(&want);
    }
    return worst;
}

static mezzo_optimizer_options options_of(const char *kind, const char *rule, mezzo_orthogonal_format format) {
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    mezzo_optimizer_set_kind(&o, strstr(kind, "normuon") != NULL ? MEZZO_NORMUON : MEZZO_MUON);
    o.nesterov = strncmp(kind, "plain", 5) != 0;
    o.schedule.lr = 0.02;
    o.weight_decay = 0.1;
    o.orthogonal.format = format;
    o.orthogonal.coefficients =
        strcmp(kind, "polar_express") == 0 ? MEZZO_ORTHOGONAL_POLAR_EXPRESS : MEZZO_ORTHOGONAL_QUINTIC;
    o.orthogonal.scale = strcmp(rule, "original") == 0 ? MEZZO_SCALE_ORIGINAL : MEZZO_SCALE_MATCH_RMS_ADAMW;
    return o;
}

static double distance_of(const char *device, const mz_safetensors *file, const char *kind, const char *rule,
                          const mezzo_optimizer_options *o) {
    run r = start(device, o);
    steps(&r);
    const double d = distance(&r, file, kind, rule);
    close_run(&r);
    return d;
}

static const char *const rules[] = {"original", "match_rms_adamw"};

static void the_reference(const char *device, mezzo_orthogonal_format format, const char *kind, double bound) {
    mz_safetensors *file = golden_tensors("muon.safetensors");
    for (size_t r = 0; r < MZ_COUNT(rules); r++) {
        mezzo_optimizer_options o = options_of(kind, rules[r], format);
        const double off = distance_of(device, file, kind, rules[r], &o);
        if (!(off <= bound))
            fail_msg("%s, %s, %s: off by %.3g of the way, allowed %.3g", device, kind, rules[r], off, bound);
        o.nesterov = !o.nesterov;
        assert_true(distance_of(device, file, kind, rules[r], &o) > bound);
        o = options_of(kind, rules[r], format);
        o.orthogonal.steps = 4;
        assert_true(distance_of(device, file, kind, rules[r], &o) > bound);
        o = options_of(kind, rules[1 - r], format);
        assert_true(distance_of(device, file, kind, rules[r], &o) > bound);
    }
    mz_safetensors_close(file);
}

static const double terms = 12;

TEST(on_ref_in_fp32) {
    the_reference("ref", MEZZO_ORTHOGONAL_FP32, "quintic", terms * 0x1p-24);
    the_reference("ref", MEZZO_ORTHOGONAL_FP32, "polar_express", terms * 0x1p-24);
    the_reference("ref", MEZZO_ORTHOGONAL_FP32, "normuon", terms * 0x1p-24);
    the_reference("ref", MEZZO_ORTHOGONAL_FP32, "plain_normuon", terms * 0x1p-24);
}
TEST(on_the_device_in_fp32) {
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP32, "quintic", terms * 0x1p-24);
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP32, "polar_express", terms * 0x1p-24);
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP32, "normuon", terms * 0x1p-24);
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP32, "plain_normuon", terms * 0x1p-24);
}
TEST(on_the_device_in_16_bits) {
    the_reference(test_device(), MEZZO_ORTHOGONAL_BF16, "quintic", terms * 0x1p-9);
    the_reference(test_device(), MEZZO_ORTHOGONAL_BF16, "normuon", terms * 0x1p-9);
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP16, "quintic", terms * 0x1p-12);
    the_reference(test_device(), MEZZO_ORTHOGONAL_FP16, "polar_express", terms * 0x1p-12);
}
// Both round X, XXᵀ and the polynomial to BF16, and PyTorch the result.
TEST(as_torch_in_bf16) {
    the_reference("ref", MEZZO_ORTHOGONAL_BF16, "torch", terms * 0x1p-9);
    the_reference(test_device(), MEZZO_ORTHOGONAL_BF16, "torch", terms * 0x1p-9);
}

// --- parts inside a parameter
// ------------------------------------------------------------------------------------------
enum { PARTS = 3, WIDTH = 33 };

// The weights after three steps of three matrices: of one parameter with their rows, or apart. multiple: of rows and
// columns as they are stored; 0: the device's own.
static float *weights_of(const int64_t *rows, bool are_fused, int multiple, const mezzo_optimizer_options *o) {
    static const char *const part_names[PARTS] = {"q", "k", "v"};
    const mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    const int64_t all = rows[0] + rows[1] + rows[2];
    float *out = mz_alloc((size_t)(all * WIDTH), sizeof *out);
    mezzo_part parts[PARTS];
    mezzo_graph *g;
    run r;
    must(mezzo_device_open(test_device(), 2, &r.device));
    for (int axis = 0; axis < MZ_AXIS_COUNT && multiple > 0; axis++)
        r.device->storage.multiple[axis] = multiple;
    must(mezzo_graph_create(&g));
    for (int i = 0; i < PARTS; i++)
        parts[i] = (mezzo_part){part_names[i], rows[i]};
    if (are_fused)
        mz_layer_linear_parts(g, "qkv", mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){4, WIDTH}), PARTS, parts, normal,
                              false);
    for (int i = 0; i < PARTS && !are_fused; i++)
        mezzo_param(g, part_names[i], normal, 2, (int64_t[]){rows[i], WIDTH});
    must(mezzo_params_create(r.device, g, 5, &r.params));
    mezzo_graph_free(g);
    must(mezzo_optimizer_create(r.params, o, &r.optimizer));
    for (int step = 0; step < 4; step++) {
        float *x = numbers(all * WIDTH, step, 0), *at = x;
        for (int i = 0; i < mezzo_params_count(r.params); i++) {
            must(step == 0 ? mezzo_params_write(r.params, i, at) : mezzo_params_write_grad(r.params, i, at));
            at += rows[i] * WIDTH;
        }
        mz_free(x);
        if (step == 0)
            continue;
        must(mezzo_optimizer_step(r.optimizer));
        must(mezzo_optimizer_zero_grad(r.optimizer));
    }
    for (int64_t i = 0, row = 0; i < mezzo_params_count(r.params); row += rows[i++])
        must(mezzo_params_read(r.params, (int)i, out + row * WIDTH));
    close_run(&r);
    return out;
}

// Layers whose rows begin where no moment can are still a matrix each, with the scale of each, and with padding after
// all rows or after each layer's. Seen to fail with the scale of the first one for all, and with each layer's share of
// the padding.
static void parts_are_matrices(const int64_t *rows, int multiple, const char *kind, const char *rule) {
    mezzo_optimizer_options o = options_of(kind, rule, MEZZO_ORTHOGONAL_FP32);
    float *fused = weights_of(rows, true, multiple, &o), *apart = weights_of(rows, false, multiple, &o);
    double off = 0, size = 0;
    for (int64_t i = 0; i < (rows[0] + rows[1] + rows[2]) * WIDTH; i++) {
        off = fmax(off, fabs((double)fused[i] - (double)apart[i]));
        size = fmax(size, fabs((double)apart[i]));
    }
    if (!(off <= 3 * terms * 0x1p-24 * size)) // three steps; products may add in another order
        fail_msg("%s, rows %lld, %lld, %lld, multiples of %d, %s: off by %g of %g", kind, (long long)rows[0],
                 (long long)rows[1], (long long)rows[2], multiple, rule, off, size);
    o.orthogonal.whole = true;
    float *whole = weights_of(rows, true, multiple, &o);
    assert_true(memcmp(whole, fused, (size_t)(rows[0] * WIDTH) * sizeof *whole) != 0);
    mz_free(fused);
    mz_free(apart);
    mz_free(whole);
}

TEST(parts_of_odd_widths) {
    static const int64_t shapes_of[][PARTS] = {{33, 33, 33}, {33, 11, 11}, {99, 33, 50}};
    static const int multiples[] = {0, 1, 8};
    static const char *const kinds[] = {"quintic", "normuon"};
    for (size_t s = 0; s < MZ_COUNT(shapes_of); s++)
        for (size_t rule = 0; rule < MZ_COUNT(rules); rule++)
            for (size_t m = 0; m < MZ_COUNT(multiples); m++)
                for (size_t k = 0; k < MZ_COUNT(kinds); k++)
                    parts_are_matrices(shapes_of[s], multiples[m], kinds[k], rules[rule]);
}
