// kl_vae and radio_unet beside the same models in PyTorch (make/images.py): prediction, loss and every gradient; in
// BF16 and FP16 as far from float64 as torch's mixed precision (make/images_amp.py); and the samplers, whose formulas
// are written here a second time.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "mezzo/model.h"
#include "mezzo/program.h"
#include "mezzo/optimizer.h"
#include "nn/diffusion.h"

typedef struct fixture {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mz_safetensors *file;
} fixture;

// `own`: where the last layer's weights are stored.
static void open_model(fixture *f, const char *device, mezzo_precision precision, const mezzo_model_config *config,
                       const char *own) {
    f->file = golden_tensors("images.safetensors");
    must(mezzo_device_open(device, 1, &f->device));
    must(mezzo_graph_create(&f->graph));
    must(mezzo_model_build(f->graph, config, 2, 1, true));
    must(mezzo_params_create(f->device, f->graph, 1, &f->params));
    must(mezzo_program_create(f->graph, f->params, &(mezzo_program_options){.precision = precision}, &f->program));
    for (int i = 0; i < mezzo_params_count(f->params); i++) {
        const char *name = mezzo_params_name(f->params, i);
        golden_values v =
            golden_get(f->file, "%s.init.%s", strncmp(name, "conv_out.", 9) == 0 ? own : config->name, name);
        float *values = golden_floats(&v);
        must(mezzo_params_write(f->params, i, values));
        free(values);
        golden_free(&v);
    }
    must(mezzo_params_zero_grad(f->params));
}

static void close_model(fixture *f) {
    mz_safetensors_close(f->file);
    mezzo_program_free(f->program);
    mezzo_params_free(f->params);
    mezzo_graph_free(f->graph);
    mezzo_device_close(f->device);
}

static void write_input(const fixture *f, const char *name, float more) {
    golden_values v = golden_get(f->file, "%s", name);
    float *values = golden_floats(&v);
    for (size_t i = 0; i < v.count; i++)
        values[i] += more;
    must(mezzo_program_write(f->program, name, values, v.count * sizeof *values));
    free(values);
    golden_free(&v);
}

static const int32_t keys[] = {1, 5, 8, 18};

static void run_model(const fixture *f, const mezzo_scaler *scaler, float brighter, const char *const *inputs) {
    for (; *inputs != NULL; inputs++)
        write_input(f, *inputs, strcmp(*inputs, "image") == 0 ? brighter : 0);
    must(mezzo_program_write(f->program, "noise", keys, sizeof keys));
    must(mezzo_program_run(f->program, scaler, 1, 1));
}

static void check_output(const fixture *f, const char *name, const char *stored, double part) {
    golden_values want = golden_get(f->file, "%s.%s", stored, name);
    float *got = calloc(want.count, sizeof *got);
    assert_non_null(got);
    must(mezzo_program_read(f->program, name, got, want.count * sizeof *got));
    golden_close(name, got, &want, part * golden_max(&want), 0);
    free(got);
    golden_free(&want);
}

// Of parameters whose name begins with `prefix`.
static void check_gradients(const fixture *f, const char *stored, const char *prefix, double part) {
    double largest = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < mezzo_params_count(f->params); i++) {
            const char *name = mezzo_params_name(f->params, i);
            if (strncmp(name, prefix, strlen(prefix)) != 0)
                continue;
            golden_values want = golden_get(f->file, "%s.grad.%s", stored, name);
            largest = pass == 0 ? fmax(largest, golden_max(&want)) : largest;
            float *got = calloc(want.count, sizeof *got);
            assert_non_null(got);
            must(mezzo_params_read_grad(f->params, i, got));
            // A bias before a norm has a gradient that nearly cancels: its size says nothing.
            if (pass == 1)
                golden_close(name, got, &want, part * (golden_max(&want) + 0.05 * largest), 0);
            free(got);
            golden_free(&want);
        }
}

static mezzo_model_config small(const char *family) {
    mezzo_model_config c;
    must(mezzo_model_defaults(strcmp(family, "kl_vae") == 0 ? "kl_vae-tiny" : "radio_unet-tiny", &c));
    c.image_size = 8;
    c.d_model = 4;
    c.groups = 2;
    c.condition_size = 16;
    c.kl_weight = 0.5;
    return c;
}

// What the tests hold results to: FP64 sees the stored FP32, FP32 some hundred roundings one after the other.
static const struct {
    const char *device; // NULL: the one under test
    mezzo_precision precision;
    double part;
} runs[] = {{"ref", MEZZO_PRECISION_FP64, 2e-7}, {NULL, MEZZO_PRECISION_FP32, 3e-5}};

TEST(autoencoder) {
    for (size_t i = 0; i < MZ_COUNT(runs); i++) {
        const mezzo_model_config config = small("kl_vae");
        fixture f;
        open_model(&f, runs[i].device != NULL ? runs[i].device : test_device(), runs[i].precision, &config, "kl_vae");
        run_model(&f, NULL, 0, (const char *const[]){"image", "weight", NULL});
        check_output(&f, "prediction", "kl_vae", runs[i].part);
        check_output(&f, "loss", "kl_vae", runs[i].part);
        check_gradients(&f, "kl_vae", "", runs[i].part);
        close_model(&f);
    }
}

TEST(diffusion) {
    static const char *const names[] = {"noise", "velocity", "decoupled", "image"};
    for (size_t i = 0; i < MZ_COUNT(runs); i++)
        for (int objective = MZ_OBJECTIVE_NOISE; objective <= MZ_OBJECTIVE_REGRESSION; objective++) {
            mezzo_model_config config = small("radio_unet");
            const bool whole = objective == MZ_OBJECTIVE_DECOUPLED;
            config.objective = objective;
            char stored[64];
            snprintf(stored, sizeof stored, "radio_unet.%s", names[objective - 1]);
            fixture f;
            open_model(&f, runs[i].device != NULL ? runs[i].device : test_device(), runs[i].precision, &config,
                       whole ? "radio_unet" : stored);
            run_model(&f, NULL, 0, (const char *const[]){"image", "condition", "time", "schedule", NULL});
            if (whole)
                check_output(&f, "prediction", stored, runs[i].part);
            check_output(&f, "loss", stored, runs[i].part);
            check_gradients(&f, stored, whole ? "" : "conv_out.", runs[i].part);
            close_model(&f);
        }
}

// --- BF16 and FP16 -------------------------------------------------------------------------------------------------
typedef struct totals { // of squared errors, each relative to its tensor's size
    double mezzo, torch;
} totals;

// Both round the same places to the same format. Most tensors here have 4 or 8 elements, which share their upstream
// error: one may be 8 times PyTorch's; all together 1.25 times (test_amp.c).
static void compare(const char *where, const json_t *tensors, const char *name, const float *got, const float *want,
                    size_t count, double scale, totals *sum) {
    const json_t *entry = json_object_get(tensors, name);
    assert_non_null(entry);
    const double torch = golden_number(entry, "error"), size = golden_number(entry, "size");
    double error = 0;
    if (torch > size) // to_k's biases, whose gradients are 0: rounding alone
        return;
    for (size_t i = 0; i < count; i++)
        error += ((double)got[i] / scale - (double)want[i]) * ((double)got[i] / scale - (double)want[i]);
    error = sqrt(error / (double)count);
    if (!(error <= 8 * torch))
        fail_msg("%s, %s: off by %.3g rms, torch by %.3g (the tensor's size is %.3g)", where, name, error, torch, size);
    sum->mezzo += error * error / (size * size);
    sum->torch += torch * torch / (size * size);
}

// free() it
static float *result_of(const fixture *f, int param, size_t count) {
    float *values = calloc(count, sizeof *values);
    assert_non_null(values);
    must(param >= 0 ? mezzo_params_read_grad(f->params, param, values)
                    : mezzo_program_read(f->program, "prediction", values, count * sizeof *values));
    return values;
}

static void compare_all(const fixture *f, const fixture *exact, const char *where, const json_t *tensors, double scale,
                        totals *sum) {
    for (int i = -1; i < mezzo_params_count(f->params); i++) {
        char name[160] = "prediction";
        size_t count = 2 * 8 * 8; // a kl_vae's
        if (i >= 0)
            snprintf(name, sizeof name, "grad.%s", mezzo_params_name(f->params, i));
        else if (json_object_get(tensors, "grad.time_embedding.linear_1.bias") != NULL)
            count *= 2; // two heads
        for (int d = i >= 0 ? mezzo_params_rank(f->params, i) - 1 : -1; d >= 0; d--)
            count =
                (d == mezzo_params_rank(f->params, i) - 1 ? 1 : count) * (size_t)mezzo_params_shape(f->params, i)[d];
        float *got = result_of(f, i, count), *want = result_of(exact, i, count);
        compare(where, tensors, name, got, want, count, i >= 0 ? scale : 1, sum);
        free(got);
        free(want);
    }
}

// The same weights and batch as images_amp.py's; a kl_vae's pictures far from the kink of |x - y|.
static void run_once(fixture *f, const char *family, const char *device, mezzo_precision precision, double scale) {
    const mezzo_model_config config = small(family);
    mezzo_scaler_options options = mezzo_scaler_defaults();
    mezzo_scaler *scaler = NULL;
    options.init_scale = scale;
    open_model(f, device, precision, &config, family);
    must(mezzo_scaler_create(f->device, &options, &scaler));
    if (strcmp(family, "kl_vae") == 0)
        run_model(f, scaler, 4, (const char *const[]){"image", "weight", NULL});
    else
        run_model(f, scaler, 0, (const char *const[]){"image", "condition", "time", "schedule", NULL});
    mezzo_scaler_free(scaler);
}

static void as_good_as_torch(const char *family, mezzo_precision precision) {
    char key[64], where[96];
    snprintf(key, sizeof key, "%s.%s", family, mezzo_precision_name(precision));
    snprintf(where, sizeof where, "%s on %s", key, test_device());
    json_t *root = golden_json("images_amp.json");
    const json_t *entry = json_object_get(root, key);
    const double scale = golden_number(entry, "scale");
    totals sum = {0};
    fixture f, exact;
    run_once(&exact, family, "ref", MEZZO_PRECISION_FP64, 1);
    run_once(&f, family, test_device(), precision, scale);
    compare_all(&f, &exact, where, json_object_get(entry, "tensors"), scale, &sum);
    const double ratio = sqrt(sum.mezzo / sum.torch);
    print_message("%s: %.3f of torch's error\n", where, ratio);
    if (!(ratio <= 1.25 && ratio >= 0.25)) // less: the format was not used where it should be
        fail_msg("%s: all tensors together are off by %.3f times what torch is", where, ratio);
    close_model(&f);
    close_model(&exact);
    json_decref(root);
}

TEST(mixed_precision) {
    static const mezzo_precision low[] = {MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16};
    for (size_t i = 0; i < MZ_COUNT(low); i++) {
        as_good_as_torch("kl_vae", low[i]);
        as_good_as_torch("radio_unet", low[i]);
    }
}

// --- samplers ------------------------------------------------------------------------------------------------------
enum { N = 24 };

// Where the network is right, every sampler ends at x_0, whatever noise it drew.
TEST(samplers_end_at_the_image) {
    static const struct {
        mz_sampler_kind kind;
        int objective;
        double eta;
    } all[] = {{MZ_SAMPLER_DDIM, MZ_OBJECTIVE_NOISE, 0},    {MZ_SAMPLER_DDIM, MZ_OBJECTIVE_VELOCITY, 0.5},
               {MZ_SAMPLER_DDPM, MZ_OBJECTIVE_NOISE, 0},    {MZ_SAMPLER_DDPM, MZ_OBJECTIVE_VELOCITY, 0},
               {MZ_SAMPLER_OWN, MZ_OBJECTIVE_DECOUPLED, 0}, {MZ_SAMPLER_OWN, MZ_OBJECTIVE_REGRESSION, 0}};
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        for (int steps = 1; steps <= 5; steps++) {
            mz_diffusion_sampler s;
            float x[N], x0[N], fresh[N], prediction[2 * N], row[4];
            mz_diffusion_noise((const int32_t[]){3, 4}, N, x);
            for (int k = 0; k < N; k++)
                x0[k] = 0.9F * sinf((float)k);
            must(mz_sampler_begin(&s, all[i].kind, all[i].objective, steps, all[i].eta, true));
            for (int step = 0; step < s.steps; step++) {
                const double t = mz_sampler_time(&s, step);
                mz_diffusion_row(all[i].objective, t, 1, row);
                mz_diffusion_noise((const int32_t[]){step, 9}, N, fresh);
                for (int k = 0; k < N; k++) { // the noise that is in x
                    const float noise = row[1] > 0 ? (x[k] - row[0] * x0[k]) / row[1] : 0;
                    if (all[i].objective == MZ_OBJECTIVE_DECOUPLED) {
                        prediction[2 * k] = -x0[k];
                        prediction[2 * k + 1] = noise;
                    } else {
                        prediction[k] = all[i].objective == MZ_OBJECTIVE_NOISE      ? noise
                                        : all[i].objective == MZ_OBJECTIVE_VELOCITY ? row[0] * noise - row[1] * x0[k]
                                                                                    : x0[k];
                    }
                }
                mz_sampler_step(&s, step, x, prediction, fresh, N, 1);
            }
            for (int k = 0; k < N; k++)
                if (!(fabsf(x[k] - x0[k]) < 2e-4F))
                    fail_msg("sampler %zu, %d steps: element %d is %g, not %g", i, steps, k, (double)x[k],
                             (double)x0[k]);
        }
}

// One step of each against its paper's formula, in FP64.
TEST(steps_are_the_papers) {
    mz_diffusion_sampler s;
    float x = 0.7F, row[4], next[4];
    const float noise = 0.3F, fresh = -0.8F;
    must(mz_sampler_begin(&s, MZ_SAMPLER_DDPM, MZ_OBJECTIVE_NOISE, 4, 0, false));
    mz_diffusion_row(MZ_OBJECTIVE_NOISE, mz_sampler_time(&s, 1), 1, row);
    mz_diffusion_row(MZ_OBJECTIVE_NOISE, mz_sampler_time(&s, 2), 1, next);
    // Ho et al., equations 7 and 11, for a jump from one time to the next: α = ᾱ_t/ᾱ_s, β = 1 - α.
    const double bar_t = (double)row[0] * (double)row[0], bar_s = (double)next[0] * (double)next[0];
    const double alpha = bar_t / bar_s, beta = 1 - alpha;
    const double mean = (0.7 - beta / sqrt(1 - bar_t) * 0.3) / sqrt(alpha);
    const double deviation = sqrt((1 - bar_s) / (1 - bar_t) * beta);
    mz_sampler_step(&s, 1, &x, &noise, &fresh, 1, 1);
    assert_true(fabs((double)x - (mean - 0.8 * deviation)) < 1e-5);
    // Decoupled: x - C·s - s/√t·ε + √(s·(t - s)/t)·noise with C = -x_0 from both heads.
    const float heads[] = {-0.4F, 0.3F};
    x = 0.7F;
    must(mz_sampler_begin(&s, MZ_SAMPLER_OWN, MZ_OBJECTIVE_DECOUPLED, 4, 0, false));
    const double t = 0.75, step = 0.25, c = -(0.7 + 0.4 * t - sqrt(t) * 0.3);
    mz_sampler_step(&s, 1, &x, heads, &fresh, 1, 1);
    assert_true(fabs((double)x - (0.7 - c * step - step / sqrt(t) * 0.3 - 0.8 * sqrt(step * (t - step) / t))) < 1e-6);
    assert_int_equal(mz_sampler_begin(&s, MZ_SAMPLER_DDIM, MZ_OBJECTIVE_DECOUPLED, 4, 0, false), MEZZO_ERR_INVALID);
    assert_int_equal(mz_sampler_begin(&s, MZ_SAMPLER_DDIM, MZ_OBJECTIVE_NOISE, 0, 0, false), MEZZO_ERR_INVALID);
    assert_int_equal(mz_sampler_begin(&s, MZ_SAMPLER_DDIM, MZ_OBJECTIVE_NOISE, 4, 2, false), MEZZO_ERR_INVALID);
}
