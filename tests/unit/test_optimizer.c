// Optimizers against the textbook in FP64, and what a user relies on around them: groups, owners, skipped steps,
// clipping, low copies. Values against PyTorch are in tests/golden.
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optimizer.h"
#include "runtime/params.h"
#include "base/base.h"
#include "mezzo/optimizer.h"
#include "test.h"

#define N 37 // elements of w: not a multiple of anything

typedef struct fixture {
    mezzo_device *device;
    mezzo_params *params; // w [37, 1], b [3]
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    mezzo_graph *g;
    mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    must(mezzo_device_open("cpu", 1, &f->device));
    must(mezzo_graph_create(&g));
    mezzo_param(g, "h.0.w", normal, 2, (int64_t[]){N, 1});
    mezzo_param(g, "h.0.b", normal, 1, (int64_t[]){3});
    must(mezzo_params_create(f->device, g, 5, &f->params));
    mezzo_graph_free(g);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    mezzo_params_free(f->params);
    mezzo_device_close(f->device);
    free(f);
    return 0;
}

static float gradient(int step, int i) {
    return (float)sin(step * 1.7 + i * 0.3) * (i % 5 == 0 ? 3.0F : 0.1F);
}

static void set_grads(fixture *f, int step) {
    float g[N];
    for (int i = 0; i < N; i++)
        g[i] = gradient(step, i);
    must(mezzo_params_write_grad(f->params, 0, g));
    must(mezzo_params_write_grad(f->params, 1, g));
}

// The error of 20 steps: each step rounds p once by its own size and a few more times by the update's, which is far
// smaller.
static void close_to(const float *got, const double *want, int steps) {
    for (int i = 0; i < N; i++) {
        double bound = steps * (2 * fabs(want[i]) + 8 * 0.05) * (double)FLT_EPSILON;
        if (!(fabs((double)got[i] - want[i]) <= bound))
            fail_msg("element %d: %.9g, expected %.9g ± %.2g", i, (double)got[i], want[i], bound);
    }
}

// 20 steps of an optimizer, and beside them a textbook's in FP64: `update` does one of element i, whose numbers are x.
typedef struct element {
    double p, m, v;
} element;

static void beside_textbook(fixture *f, const mezzo_optimizer_options *o,
                            void (*update)(element *x, double g, int step), float got[N], double want[N]) {
    element x[N] = {{0}};
    mezzo_optimizer *opt;
    must(mezzo_optimizer_create(f->params, o, &opt));
    must(mezzo_params_read(f->params, 0, got));
    for (int i = 0; i < N; i++)
        x[i].p = (double)got[i];
    for (int step = 1; step <= 20; step++) {
        set_grads(f, step);
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
        for (int i = 0; i < N; i++)
            update(&x[i], (double)gradient(step, i), step);
    }
    must(mezzo_params_read(f->params, 0, got));
    for (int i = 0; i < N; i++)
        want[i] = x[i].p;
    mezzo_optimizer_free(opt);
}

#define LR 0.05

static void adamw(element *x, double g, int step) { // Loshchilov and Hutter, algorithm 2
    x->m = 0.8 * x->m + 0.2 * g;
    x->v = 0.9 * x->v + 0.1 * g * g;
    x->p -= LR * (x->m / (1 - pow(0.8, step)) / (sqrt(x->v / (1 - pow(0.9, step))) + 1e-6) + 0.1 * x->p);
}

TEST_WITH(test_adamw_is_the_textbook, setup, teardown) {
    float got[N];
    double p[N];
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.schedule.lr = LR, o.beta1 = 0.8, o.beta2 = 0.9, o.eps = 1e-6, o.weight_decay = 0.1;
    beside_textbook(*state, &o, adamw, got, p);
    close_to(got, p, 20);
    p[3] += 0.05 * 0.05; // a step a twentieth wrong is seen
    assert_true(fabs((double)got[3] - p[3]) > 20 * (2 * fabs(p[3]) + 8 * 0.05) * (double)FLT_EPSILON);
}

static void lion(element *x, double g, int step) { // Chen et al., algorithm 2
    const double c = 0.8 * x->m + 0.2 * g;
    (void)step;
    assert_true(fabs(c) > 1e-5); // so that its sign is the same in FP32
    x->p -= LR * ((c > 0 ? 1 : -1) + 0.1 * x->p);
    x->m = 0.95 * x->m + 0.05 * g;
}

TEST_WITH(test_lion_is_the_textbook, setup, teardown) {
    float got[N];
    double p[N];
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    mezzo_optimizer_set_kind(&o, MEZZO_LION);
    assert_true(o.beta1 == 0.9 && o.beta2 == 0.99);
    o.schedule.lr = LR, o.beta1 = 0.8, o.beta2 = 0.95, o.weight_decay = 0.1;
    beside_textbook(*state, &o, lion, got, p);
    close_to(got, p, 20);
}

static void sgd(element *x, double g, int step) {
    (void)step;
    g += 0.1 * x->p;
    x->m = 0.9 * x->m + g;
    x->p -= LR * (g + 0.9 * x->m);
}

TEST_WITH(test_sgd_is_the_textbook, setup, teardown) {
    float got[N];
    double p[N];
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = MEZZO_SGD, o.schedule.lr = LR, o.momentum = 0.9, o.weight_decay = 0.1, o.nesterov = true;
    beside_textbook(*state, &o, sgd, got, p);
    // The buffer holds up to ten steps' gradients: ten times the update's share of the bound.
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)got[i] - p[i]) <= 20 * (2 * fabs(p[i]) + 80 * 0.15) * (double)FLT_EPSILON);
}

// diffusers' EMAModel without its options: nothing is kept of what was before the first step, then the warm-up, then
// the decay. The parameters move as without it, to the bit; a skipped step averages nothing.
static void average_case(fixture *f, mezzo_optimizer_kind kind, double decay) {
    mezzo_optimizer *opt, *plain;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    float start[N], p[N], alone[N], got[N], nan[N];
    double want[N];
    o.kind = kind, o.schedule.lr = 0.05, o.momentum = kind == MEZZO_SGD ? 0.9 : 0;
    must(mezzo_params_read(f->params, 0, start));
    must(mezzo_optimizer_create(f->params, &o, &plain));
    assert_int_equal(mezzo_optimizer_average(plain, 0, got), MEZZO_ERR_INVALID);
    for (int step = 1; step <= 20; step++) {
        set_grads(f, step);
        must(mezzo_optimizer_step(plain));
        must(mezzo_optimizer_zero_grad(plain));
    }
    must(mezzo_params_read(f->params, 0, alone));
    must(mezzo_params_write(f->params, 0, start));
    o.ema = decay;
    must(mezzo_optimizer_create(f->params, &o, &opt));
    must(mezzo_optimizer_average(opt, 0, got));
    assert_memory_equal(got, start, sizeof got);
    for (int step = 1; step <= 20; step++) {
        set_grads(f, step);
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
        must(mezzo_params_read(f->params, 0, p));
        for (int i = 0; i < N; i++) {
            double d = step == 1 ? 0 : fmin(decay, (1 + (step - 1)) / (10.0 + (step - 1)));
            want[i] = step == 1 ? (double)p[i] : d * want[i] + (1 - d) * (double)p[i];
        }
        must(mezzo_optimizer_average(opt, 0, got));
        for (int i = 0; i < N; i++) // a difference, a product and a sum of numbers below |p| + 1
            assert_true(fabs((double)got[i] - want[i]) <= step * 4 * (fabs(want[i]) + 1) * (double)FLT_EPSILON);
    }
    assert_memory_equal(p, alone, sizeof p);
    for (int i = 0; i < N; i++)
        nan[i] = NAN;
    must(mezzo_params_write_grad(f->params, 0, nan));
    must(mezzo_optimizer_step(opt));
    must(mezzo_optimizer_average(opt, 0, p));
    assert_memory_equal(p, got, sizeof p);
    assert_int_equal(mezzo_optimizer_average(opt, 7, got), MEZZO_ERR_INVALID);
    mezzo_optimizer_free(opt);
    mezzo_optimizer_free(plain);
}

TEST_WITH(test_the_average_is_the_usual_one, setup, teardown) {
    average_case(*state, MEZZO_ADAMW, 0.999); // all of it warm-up
}

TEST_WITH(test_the_average_of_sgd, setup, teardown) {
    average_case(*state, MEZZO_SGD, 0.4); // from the sixth step on the decay
}

TEST_WITH(test_vectors_are_not_decayed, setup, teardown) {
    fixture *f = *state;
    float zero[N] = {0}, w[N], b[3], w_after[N], b_after[3];
    mezzo_optimizer *opt;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.schedule.lr = 0.5, o.weight_decay = 0.5, o.decay_min_rank = 2;
    must(mezzo_optimizer_create(f->params, &o, &opt));
    must(mezzo_params_read(f->params, 0, w));
    must(mezzo_params_read(f->params, 1, b));
    must(mezzo_params_write_grad(f->params, 0, zero));
    must(mezzo_params_write_grad(f->params, 1, zero));
    must(mezzo_optimizer_step(opt));
    must(mezzo_params_read(f->params, 0, w_after));
    must(mezzo_params_read(f->params, 1, b_after));
    assert_memory_equal(b, b_after, sizeof b);
    for (int i = 0; i < N; i++)
        assert_true(w_after[i] == w[i] * 0.75F);
    mezzo_optimizer_free(opt);
}

TEST_WITH(test_an_optimizer_touches_only_its_own, setup, teardown) {
    fixture *f = *state;
    float b[3], b_after[3], g[N], w[N], w_after[N];
    mezzo_optimizer *opt;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.patterns = (const char *const[]){"*.w"};
    o.n_patterns = 1;
    must(mezzo_optimizer_create(f->params, &o, &opt));
    must(mezzo_params_read(f->params, 0, w));
    must(mezzo_params_read(f->params, 1, b));
    set_grads(f, 1);
    must(mezzo_optimizer_step(opt));
    must(mezzo_optimizer_zero_grad(opt));
    must(mezzo_params_read(f->params, 0, w_after));
    must(mezzo_params_read(f->params, 1, b_after));
    assert_memory_equal(b, b_after, sizeof b);
    assert_memory_not_equal(w, w_after, sizeof w);
    must(mezzo_params_read_grad(f->params, 1, g));
    assert_true(g[0] == gradient(1, 0)); // not zeroed: it is not this optimizer's
    must(mezzo_params_read_grad(f->params, 0, g));
    assert_true(g[0] == 0 && g[N - 1] == 0);
    mezzo_optimizer_free(opt);
    o.patterns = (const char *const[]){"*.x"};
    must_fail(mezzo_optimizer_create(f->params, &o, &opt), MEZZO_ERR_INVALID, "\"*.x\"");
}

// b[0] after SGD with a rate of 1 and gradients of 2 in b alone, whose norm is √12.
static float moved_by(fixture *f, mezzo_optimizer *opt) {
    float b[3];
    must(mezzo_optimizer_step(opt));
    must(mezzo_params_read(f->params, 1, b));
    must(mezzo_params_write(f->params, 1, (float[3]){0}));
    return -b[0];
}

static void set_twos(fixture *f) {
    must(mezzo_params_write_grad(f->params, 0, (float[N]){0}));
    must(mezzo_params_write_grad(f->params, 1, (float[3]){2, 2, 2}));
}

// torch.nn.utils.clip_grad_norm_ multiplies gradients where they lie: what happens to them later is not clipped.
// torch.optim.SGD(lr=1) moves b by the numbers below in the same sequences.
TEST_WITH(test_clipping_multiplies_the_gradients, setup, teardown) {
    fixture *f = *state;
    mezzo_optimizer *opt;
    mezzo_step_info info;
    float g[3];
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = MEZZO_SGD;
    o.weight_decay = 0;
    o.schedule.lr = 1;
    must(mezzo_optimizer_create(f->params, &o, &opt));
    must(mezzo_params_write(f->params, 1, (float[3]){0}));
    const double bound = 4 * 2 * (double)FLT_EPSILON, clip = sqrt(12.0) / 2; // two roundings each; halves them
    set_twos(f);
    must(mezzo_optimizer_clip(opt, clip));
    must(mezzo_params_read_grad(f->params, 1, g));
    assert_true(fabs((double)g[0] - 1) <= bound + 1e-6); // 1e-6 in the factor's denominator
    assert_true(fabs((double)moved_by(f, opt) - 1) <= bound + 1e-6);
    must(mezzo_optimizer_info(opt, &info));
    assert_true(fabs(info.clip - 0.5) < 1e-6 && fabs(info.grad_norm - sqrt(12.0)) < 1e-6);
    assert_true(fabs((double)moved_by(f, opt) - 1) <= bound + 1e-6); // the same gradients once more
    must(mezzo_params_zero_grad(f->params));
    set_twos(f); // new ones are whole
    assert_true(fabs((double)moved_by(f, opt) - 2) <= bound);
    must(mezzo_optimizer_info(opt, &info));
    assert_true(info.clip == 1);
    must(mezzo_optimizer_clip(opt, clip));
    must(mezzo_params_zero_grad(f->params)); // clipped, and gone
    set_twos(f);
    assert_true(fabs((double)moved_by(f, opt) - 2) <= bound);
    set_twos(f);
    must(mezzo_optimizer_clip(opt, clip));
    must(mezzo_params_read_grad(f->params, 1, g));
    must(mezzo_params_write_grad(f->params, 1, (float[3]){g[0] + 2, g[1] + 2, g[2] + 2})); // as a second backward
    assert_true(fabs((double)moved_by(f, opt) - 3) <= 2 * bound + 1e-6);
    must(mezzo_params_write_grad(f->params, 1, (float[3]){INFINITY, 0, 0}));
    must(mezzo_optimizer_clip(opt, clip)); // what was found there is gone with it
    must(mezzo_params_zero_grad(f->params));
    set_twos(f);
    assert_true(fabs((double)moved_by(f, opt) - 2) <= bound);
    mezzo_optimizer_free(opt);
}

// A skipped step moves no parameter, no moment, no step counter and no schedule: what follows is as if it had not been.
TEST_WITH(test_a_skipped_step_moves_nothing, setup, teardown) {
    fixture *f = *state;
    float start[N], start_b[3], with[N], without[N], bad[N] = {0};
    must(mezzo_params_read(f->params, 0, start));
    must(mezzo_params_read(f->params, 1, start_b));
    for (int skip = 0; skip < 2; skip++) {
        mezzo_optimizer *opt;
        mezzo_step_info info;
        mezzo_optimizer_options o = mezzo_optimizer_defaults();
        o.schedule = (mezzo_schedule){.kind = MEZZO_LR_LINEAR, .lr = 0.1, .min_lr = 0.01, .steps = 5};
        must(mezzo_params_write(f->params, 0, start));
        must(mezzo_params_write(f->params, 1, start_b));
        must(mezzo_optimizer_create(f->params, &o, &opt));
        for (int step = 1; step <= 3; step++) {
            if (skip && step == 2) {
                bad[N - 1] = -INFINITY; // one of many
                must(mezzo_params_write_grad(f->params, 0, bad));
                must(mezzo_optimizer_clip(opt, 1.0));
                must(mezzo_optimizer_step(opt));
                must(mezzo_optimizer_zero_grad(opt));
            }
            set_grads(f, step);
            must(mezzo_optimizer_clip(opt, 1.0));
            must(mezzo_optimizer_step(opt));
            must(mezzo_optimizer_zero_grad(opt));
        }
        must(mezzo_optimizer_info(opt, &info));
        assert_int_equal(info.step, 3);
        assert_int_equal(info.skipped, skip);
        must(mezzo_params_read(f->params, 0, skip ? with : without));
        mezzo_optimizer_free(opt);
    }
    assert_memory_equal(with, without, sizeof with);
}

// Shadow weights that a program asks for after the optimizer was made follow the masters too, both formats of them.
TEST_WITH(test_low_copies_follow_the_masters, setup, teardown) {
    fixture *f = *state;
    mezzo_optimizer *opt;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){2, 8});
    mezzo_value w = mezzo_param(g, "w", normal, 2, (int64_t[]){5, 8});
    must(mezzo_graph_loss(g, mezzo_mean(g, mezzo_linear(g, x, w, MEZZO_NONE), -1)));
    must(mezzo_params_create(f->device, g, 1, &params));
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    must(mezzo_optimizer_create(params, &o, &opt));
    const mz_low_copy *bf16, *fp16;
    must(mz_params_low_copy(params, MEZZO_BF16, &bf16));
    must(mz_params_low_copy(params, MEZZO_F16, &fp16));
    float grad[40], master[40];
    for (int i = 0; i < 40; i++)
        grad[i] = gradient(1, i);
    must(mezzo_params_write_grad(params, 0, grad));
    must(mezzo_optimizer_step(opt));
    must(mezzo_params_read(params, 0, master));
    for (int i = 0; i < 40; i++) {
        assert_int_equal(((const uint16_t *)bf16->data)[params->list[0].low_copy_slot + i],
                         mezzo_f32_to_bf16(master[i]));
        assert_int_equal(((const uint16_t *)fp16->data)[params->list[0].low_copy_slot + i],
                         mezzo_f32_to_f16(master[i]));
    }
    mezzo_optimizer_free(opt);
    mezzo_params_free(params);
    mezzo_graph_free(g);
}

// --- masters -------------------------------------------------------------------------------------------------------
// w [5, 8] is read by a product alone, v [5, 8] by an addition too.
static mezzo_params *params_kept(mezzo_device *device, mezzo_master master) {
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){5, 8});
    mezzo_value w = mezzo_param(g, "w", normal, 2, (int64_t[]){5, 8});
    mezzo_value v = mezzo_param(g, "v", normal, 2, (int64_t[]){5, 8});
    mezzo_value y = mezzo_linear(g, mezzo_add(g, x, v), w, MEZZO_NONE);
    must(mezzo_graph_loss(
        g, mezzo_mean(g, mezzo_linear(g, y, mezzo_reshape(g, v, 2, (int64_t[]){8, 5}), MEZZO_NONE), -1)));
    const mezzo_program_options bf16 = {.precision = MEZZO_PRECISION_BF16};
    must(mezzo_params_create_as(device, g, &bf16, 1, master, &params));
    mezzo_graph_free(g);
    return params;
}

static void step_both(mezzo_params *params, mezzo_optimizer *opt, int step) {
    float grad[40];
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < 40; i++)
            grad[i] = gradient(step, i + 40 * p);
        must(mezzo_params_write_grad(params, p, grad));
    }
    must(mezzo_optimizer_step(opt));
    must(mezzo_optimizer_zero_grad(opt));
}

TEST_WITH(test_split_masters_are_fp32_masters, setup, teardown) {
    fixture *f = *state;
    for (int kind = 0; kind < 2; kind++) {
        mezzo_params *params[2];
        mezzo_optimizer *opt[2];
        mezzo_optimizer_options o = mezzo_optimizer_defaults();
        o.kind = kind == 0 ? MEZZO_ADAMW : MEZZO_SGD;
        o.momentum = 0.9;
        for (int m = 0; m < 2; m++) {
            params[m] = params_kept(f->device, m == 0 ? MEZZO_MASTER_FP32 : MEZZO_MASTER_SPLIT);
            must(mezzo_optimizer_create(params[m], &o, &opt[m]));
        }
        assert_int_equal(params[0]->master_bytes - params[1]->master_bytes, 48 * 2); // 40 and padding, 2 bytes each
        for (int step = 1; step <= 200; step++) {
            float fp32[40], split[40];
            for (int m = 0; m < 2; m++)
                step_both(params[m], opt[m], step);
            for (int p = 0; p < 2; p++) {
                must(mezzo_params_read(params[0], p, fp32));
                must(mezzo_params_read(params[1], p, split));
                assert_memory_equal(fp32, split, sizeof fp32);
            }
        }
        for (int m = 0; m < 2; m++) {
            mezzo_optimizer_free(opt[m]);
            mezzo_params_free(params[m]);
        }
    }
}

TEST_WITH(test_split_holds_any_number, setup, teardown) {
    fixture *f = *state;
    mezzo_params *params = params_kept(f->device, MEZZO_MASTER_SPLIT);
    static const uint32_t bits[] = {0,          0x80000000, 0x3F808000, 0xBF808000, 0x3F818000,
                                    0x00000001, 0x80007FFF, 0x7F7FFFFF, 0x7F7F8000, 0xFF7FFFFF,
                                    0x7F800000, 0xFF800000, 0x00008000, 0x3F807FFF, 0x3F808001};
    float in[40] = {0}, out[40];
    memcpy(in, bits, sizeof bits);
    in[20] = NAN;
    must(mezzo_params_write(params, 0, in));
    must(mezzo_params_read(params, 0, out));
    assert_memory_equal(in, out, 20 * sizeof *in);
    assert_true(isnan(out[20]));
    mezzo_params_free(params);
}

// Steps of 1/64 of a unit of BF16 (2^-8 below 1): nearest rounding would stay at 1 for ever. A rounding goes the whole
// unit with probability 1/64, so its deviation is 2^-8·√(1/64·63/64) < 2^-11; n of them in a row, in the mean of 40
// weights: 2^-11·√(n/40). Five of those.
TEST_WITH(test_stochastic_masters_are_right_on_average, setup, teardown) {
    fixture *f = *state;
    enum { STEPS = 640 };
    float w[2][40], grad[40];
    for (int twice = 0; twice < 2; twice++) {
        mezzo_params *params = params_kept(f->device, MEZZO_MASTER_STOCHASTIC);
        mezzo_optimizer *opt;
        mezzo_optimizer_options o = mezzo_optimizer_defaults();
        o.kind = MEZZO_SGD;
        o.weight_decay = 0;
        o.schedule.lr = 0x1p-14;
        must(mezzo_optimizer_create(params, &o, &opt));
        for (int i = 0; i < 40; i++)
            grad[i] = 1;
        must(mezzo_params_write(params, 0, grad));
        for (int step = 0; step < STEPS; step++) {
            must(mezzo_params_write_grad(params, 0, grad));
            must(mezzo_params_write_grad(params, 1, grad));
            must(mezzo_optimizer_step(opt));
            must(mezzo_optimizer_zero_grad(opt));
        }
        must(mezzo_params_read(params, 0, w[twice]));
        mezzo_optimizer_free(opt);
        mezzo_params_free(params);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    double mean = 0;
    for (int i = 0; i < 40; i++) {
        mean += (double)w[0][i] / 40;
        assert_true(w[0][i] == mezzo_bf16_to_f32(mezzo_f32_to_bf16(w[0][i])));
    }
    assert_true(fabs(mean - (1 - STEPS * 0x1p-14)) < 5 * 0x1p-11 * sqrt(STEPS / 40.0));
}

// A gradient that stays 1: the second moment goes to 1 by steps that become smaller than half of BF16's last place.
// Rounded to nearest it would stop at 1/2. Bits: the same again, and with the average beside them.
TEST_WITH(test_bf16_moments_are_right_on_average, setup, teardown) {
    fixture *f = *state;
    enum { STEPS = 4000 };
    float v[2][N], m[2][N], ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int twice = 0; twice < 2; twice++) {
        mezzo_optimizer *opt;
        mezzo_optimizer_options o = mezzo_optimizer_defaults();
        o.moments = MEZZO_MOMENTS_BF16;
        o.schedule.lr = 1e-6;
        o.ema = twice ? 0.9 : 0;
        must(mezzo_optimizer_create(f->params, &o, &opt));
        for (int step = 0; step < STEPS; step++) {
            must(mezzo_params_write_grad(f->params, 0, ones));
            must(mezzo_params_write_grad(f->params, 1, ones));
            must(mezzo_optimizer_step(opt));
            must(mezzo_optimizer_zero_grad(opt));
        }
        must(mz_optimizer_read_moment(opt, 0, 0, 0, N, m[twice]));
        must(mz_optimizer_read_moment(opt, 1, 0, 0, N, v[twice]));
        must(mz_optimizer_write_moment(opt, 1, 0, v[twice])); // and back: the same numbers
        float again[N];
        must(mz_optimizer_read_moment(opt, 1, 0, 3, N - 3, again));
        assert_memory_equal(again, v[twice] + 3, (N - 3) * sizeof *again);
        mezzo_optimizer_free(opt);
    }
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    assert_memory_equal(m[0], m[1], sizeof m[0]);
    double mean = 0;
    for (int i = 0; i < N; i++) {
        mean += (double)v[0][i] / N;
        assert_true(v[0][i] == mezzo_bf16_to_f32(mezzo_f32_to_bf16(v[0][i])));
        assert_true(fabs((double)m[0][i] - 1) < 0.05);
    }
    // A rounding's variance is at most a quarter of (2^-8)², and √(1/(2·0.001)) of them are remembered.
    assert_true(fabs(mean - (1 - pow(0.999, STEPS))) < 5 * 0x1p-9 * sqrt(500.0 / N));
}

// Weights of 1 after 8 steps of 1/64 of a unit of BF16, rounded by chance: parameter `read` of a graph with the
// parameters `names`.
static void rounded_by_chance(mezzo_device *device, const char *const *names, int n, const char *read, float out[64]) {
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_optimizer *opt;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    mezzo_init one = {.kind = MEZZO_INIT_CONSTANT, .a = 1};
    float ones[64];
    o.kind = MEZZO_SGD;
    o.weight_decay = 0;
    o.schedule.lr = 0x1p-14;
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    must(mezzo_graph_create(&g));
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){8, 8});
    for (int p = 0; p < n; p++)
        x = mezzo_linear(g, x, mezzo_param(g, names[p], one, 2, (int64_t[]){8, 8}), MEZZO_NONE);
    must(mezzo_graph_loss(g, mezzo_mean(g, x, -1)));
    const mezzo_program_options bf16 = {.precision = MEZZO_PRECISION_BF16};
    must(mezzo_params_create_as(device, g, &bf16, 1, MEZZO_MASTER_STOCHASTIC, &params));
    must(mezzo_optimizer_create(params, &o, &opt));
    for (int step = 0; step < 8; step++) {
        for (int p = 0; p < n; p++)
            must(mezzo_params_write_grad(params, p, ones));
        must(mezzo_optimizer_step(opt));
        must(mezzo_optimizer_zero_grad(opt));
    }
    must(mezzo_params_read(params, mezzo_params_find(params, read), out));
    mezzo_optimizer_free(opt);
    mezzo_params_free(params);
    mezzo_graph_free(g);
}

// FNV-1a gives "liquid" and "costarring" the same 32 bits.
TEST_WITH(test_chance_goes_by_names, setup, teardown) {
    fixture *f = *state;
    float alone[64], behind[64], twin[64];
    rounded_by_chance(f->device, (const char *[]){"liquid"}, 1, "liquid", alone);
    rounded_by_chance(f->device, (const char *[]){"first", "liquid"}, 2, "liquid", behind);
    rounded_by_chance(f->device, (const char *[]){"liquid", "costarring"}, 2, "costarring", twin);
    assert_memory_equal(alone, behind, sizeof alone);
    assert_memory_not_equal(alone, twin, sizeof alone);
}

TEST_WITH(test_bf16_weights_are_for_bf16, setup, teardown) {
    fixture *f = *state;
    const mz_low_copy *low_copy;
    mezzo_params *params = params_kept(f->device, MEZZO_MASTER_SPLIT);
    must_fail(mz_params_low_copy(params, MEZZO_F16, &low_copy), MEZZO_ERR_UNSUPPORTED, "use bf16");
    mezzo_params_free(params);
}

TEST_WITH(test_bad_options_are_refused, setup, teardown) {
    fixture *f = *state;
    const struct {
        size_t offset;
        double value;
        const char *says;
    } bad[] = {{offsetof(mezzo_optimizer_options, schedule) + offsetof(mezzo_schedule, lr), NAN, "lr"},
               {offsetof(mezzo_optimizer_options, schedule) + offsetof(mezzo_schedule, lr), -1, "lr"},
               {offsetof(mezzo_optimizer_options, beta1), 1, "beta1"},
               {offsetof(mezzo_optimizer_options, beta2), -0.1, "beta2"},
               {offsetof(mezzo_optimizer_options, eps), NAN, "eps"},
               {offsetof(mezzo_optimizer_options, eps), 0, "0 in fp32"},
               {offsetof(mezzo_optimizer_options, eps), 1e-50, "0 in fp32"}, // 0 / 0 where a moment is 0
               {offsetof(mezzo_optimizer_options, weight_decay), INFINITY, "weight_decay"}};
    for (size_t i = 0; i < MZ_COUNT(bad); i++) {
        mezzo_optimizer *opt;
        mezzo_optimizer_options o = mezzo_optimizer_defaults();
        memcpy((char *)&o + bad[i].offset, &bad[i].value, sizeof(double));
        assert_int_equal(mezzo_optimizer_create(f->params, &o, &opt), MEZZO_ERR_INVALID);
        assert_null(opt);
        assert_non_null(strstr(mezzo_error_message(), bad[i].says));
    }
    mezzo_optimizer *opt;
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    must(mezzo_optimizer_create(f->params, &o, &opt));
    set_grads(f, 1);
    assert_int_equal(mezzo_optimizer_clip(opt, 0), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_optimizer_clip(opt, NAN), MEZZO_ERR_INVALID);
    mezzo_optimizer_free(opt);
}

// The documented formulas at their corners: the end of warm-up, the end of the schedule, and past it.
TEST(test_schedule_corners) {
    mezzo_schedule s = {.kind = MEZZO_LR_COSINE, .lr = 1, .min_lr = 0.1, .warmup = 4, .steps = 14, .power = 2};
    assert_true(mezzo_schedule_lr(&s, 0) == 0.2);
    assert_true(mezzo_schedule_lr(&s, 3) == 0.8);
    assert_true(mezzo_schedule_lr(&s, 4) == 1);
    assert_true(fabs(mezzo_schedule_lr(&s, 9) - 0.55) < 1e-15); // half way
    assert_true(mezzo_schedule_lr(&s, 14) == 0.1);
    assert_true(mezzo_schedule_lr(&s, 1000000) == 0.1);
    s.kind = MEZZO_LR_LINEAR;
    assert_true(fabs(mezzo_schedule_lr(&s, 9) - 0.55) < 1e-15);
    s.kind = MEZZO_LR_POLYNOMIAL;
    assert_true(fabs(mezzo_schedule_lr(&s, 9) - (0.9 * 0.25 + 0.1)) < 1e-15);
    s.kind = MEZZO_LR_CONSTANT;
    assert_true(mezzo_schedule_lr(&s, 1000000) == 1);
}
