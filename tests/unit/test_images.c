// The images' task: a batch is a pure function of its number, pictures are scaled to [-1, 1], a pass in order has every
// picture once and nothing of what fills it up.
// Seen to fail with: attention by products without its scale; rows drawn without the batch's number; a weight of 1 in a
// batch that is filled up.
#include <math.h>

#include <string.h>

#include "test.h"
#include "tools/radio/radio.h"
#include "io/file.h"
#include "nn/images.h"
#include "nn/layers.h"
#include "task/task.h"

static mz_task *opened(const char *model) {
    const mz_radio_options o = {
        .maps = 9, .transmitters = 2, .size = 16, .extent = 64, .seed = 1, .threads = 1, .out = "cities"};
    const mz_task_options options = {.path = "cities", .split = 0.7};
    mz_radio_written w;
    mz_task *task = NULL;
    mezzo_model_config config;
    mz_dir_remove("cities");
    if (mz_radio_write(&o, NULL, &w) == MEZZO_ERR_UNSUPPORTED)
        skip(); // no libpng
    assert_int_equal(mezzo_model_defaults(model, &config), MEZZO_OK);
    mz_model object;
    if (mz_model_of(&config, &object) != MEZZO_OK || mz_task_open(&object.config, &options, &task) != MEZZO_OK ||
        mz_task_set_model(task, &object) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return task;
}

// Encoder and decoder alone are the whole model's: where the variance is next to nothing, decoding the mean is what the
// whole model predicts.
TEST(test_parts) {
    static float image[2 * 16 * 16], latent[2][2 * 8 * 8 * 3], prediction[2][2 * 16 * 16], none[64];
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP32, .forward_only = true};
    const int32_t noise[4] = {1, 2, 3, 4};
    const float weight[2] = {1, 1};
    mezzo_model_config config;
    mezzo_device *device;
    mezzo_params *params;
    mezzo_graph *g[3];
    mezzo_program *whole, *encoder, *decoder;
    for (int i = 0; i < 512; i++)
        image[i] = sinf((float)i * 0.37F);
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_model_defaults("kl_vae-tiny", &config), MEZZO_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(mezzo_graph_create(&g[i]), MEZZO_OK);
    assert_int_equal(mezzo_model_build(g[0], &config, 2, 1, true), MEZZO_OK);
    assert_int_equal(mezzo_model_build_part(g[1], &config, 2, MEZZO_PART_ENCODE), MEZZO_OK);
    assert_int_equal(mezzo_model_build_part(g[2], &config, 2, MEZZO_PART_DECODE), MEZZO_OK);
    assert_int_equal(mezzo_params_create(device, g[0], 5, &params), MEZZO_OK);
    const int weights = mezzo_params_find(params, "quant_conv.weight"),
              bias = mezzo_params_find(params, "quant_conv.bias");
    assert_int_equal(mezzo_params_read(params, weights, none), MEZZO_OK);
    memset(none + 18, 0, 18 * sizeof *none); // [6, 1, 1, 6]: the last three rows are logarithms of variances
    assert_int_equal(mezzo_params_write(params, weights, none), MEZZO_OK);
    assert_int_equal(mezzo_params_write(params, bias, (float[]){0.1F, 0.2F, 0.3F, -30, -30, -30}), MEZZO_OK);
    assert_int_equal(mezzo_program_create(g[0], params, &options, &whole), MEZZO_OK);
    assert_int_equal(mezzo_program_create(g[1], params, &options, &encoder), MEZZO_OK);
    assert_int_equal(mezzo_program_create(g[2], params, &options, &decoder), MEZZO_OK);

    assert_int_equal(mezzo_program_write(whole, "image", image, sizeof image), MEZZO_OK);
    assert_int_equal(mezzo_program_write(whole, "noise", noise, sizeof noise), MEZZO_OK);
    assert_int_equal(mezzo_program_write(whole, "weight", weight, sizeof weight), MEZZO_OK);
    assert_int_equal(mezzo_program_run(whole, NULL, 0, 0), MEZZO_OK);
    assert_int_equal(mezzo_program_read(whole, "latent", latent[0], sizeof latent[0]), MEZZO_OK);
    assert_int_equal(mezzo_program_read(whole, "prediction", prediction[0], sizeof prediction[0]), MEZZO_OK);
    assert_int_equal(mezzo_program_write(encoder, "image", image, sizeof image), MEZZO_OK);
    assert_int_equal(mezzo_program_run(encoder, NULL, 0, 0), MEZZO_OK);
    assert_int_equal(mezzo_program_read(encoder, "latent", latent[1], sizeof latent[1]), MEZZO_OK);
    assert_memory_equal(latent[0], latent[1], sizeof latent[0]);
    assert_int_equal(mezzo_program_write(decoder, "latent", latent[1], sizeof latent[1]), MEZZO_OK);
    assert_int_equal(mezzo_program_run(decoder, NULL, 0, 0), MEZZO_OK);
    assert_int_equal(mezzo_program_read(decoder, "prediction", prediction[1], sizeof prediction[1]), MEZZO_OK);
    float spread = 0;
    for (int i = 0; i < 512; i++) {
        assert_true(fabsf(prediction[0][i] - prediction[1][i]) < 1e-4F);
        spread = fmaxf(spread, fabsf(prediction[0][i] - prediction[0][0]));
    }
    assert_true(spread > 0.01F);
    mezzo_program_free(decoder);
    mezzo_program_free(encoder);
    mezzo_program_free(whole);
    mezzo_params_free(params);
    for (int i = 0; i < 3; i++)
        mezzo_graph_free(g[i]);
    mezzo_device_close(device);
}

enum { WIDE = 2 * 260, PICTURES = 2, SEEN = 6, PIXELS = 12 };

// mz_layer_image_attention, with the one op whatever the heads are.
static mezzo_value attention_in_one(mezzo_graph *g, mezzo_value x, mezzo_value context, int heads) {
    const mezzo_init from = {.kind = MEZZO_INIT_UNIFORM, .a = 1 / sqrtf(WIDE)};
    mezzo_module_begin(g, "attention");
    mezzo_value h = mz_layer_group_norm(g, "group_norm", x, MEZZO_NONE, (mz_image_norm){4, 1e-5F}, false);
    h = mezzo_reshape(g, h, 3, (int64_t[]){PICTURES, PIXELS, WIDE});
    mezzo_value seen = mezzo_reshape(g, context, 3, (int64_t[]){PICTURES, SEEN, WIDE});
    mezzo_value q = mz_layer_linear(g, "to_q", h, WIDE, from, true),
                k = mz_layer_linear(g, "to_k", seen, WIDE, from, true);
    mezzo_value v = mz_layer_linear(g, "to_v", seen, WIDE, from, true);
    h = mz_layer_linear(g, "to_out.0", mezzo_attention_full(g, q, k, v, heads, heads, 0), WIDE, from, true);
    mezzo_module_end(g);
    return mezzo_add(g, x, mezzo_reshape(g, h, 4, (int64_t[]){PICTURES, 3, 4, WIDE}));
}

// Heads that no device's attention kernel takes: values and every gradient are those of the one op on the reference.
TEST(test_wide_heads) {
    static float image[PICTURES * PIXELS * WIDE], context[PICTURES * SEEN * WIDE], grads[2][WIDE * WIDE];
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_FP32};
    for (int i = 0; i < PICTURES * PIXELS * WIDE; i++)
        image[i] = 2 * sinf((float)i * 0.37F);
    for (int i = 0; i < PICTURES * SEEN * WIDE; i++)
        context[i] = 2 * sinf((float)(i % 977) * 0.71F);
    for (int heads = 1; heads <= 2; heads++) {
        mezzo_device *devices[2];
        mezzo_params *params[2];
        mezzo_program *programs[2];
        float loss[2];
        for (int i = 0; i < 2; i++) {
            mezzo_graph *g;
            assert_int_equal(mezzo_device_open(i == 0 ? "cpu" : "ref", 1, &devices[i]), MEZZO_OK);
            assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
            mezzo_value x = mezzo_input(g, "image", MEZZO_F32, 4, (int64_t[]){PICTURES, 3, 4, WIDE});
            mezzo_value seen = mezzo_input(g, "context", MEZZO_F32, 4, (int64_t[]){PICTURES, 2, 3, WIDE});
            mezzo_value y = i == 0 ? mz_layer_image_attention(g, "attention", x, seen, heads, (mz_image_norm){4, 1e-5F})
                                   : attention_in_one(g, x, seen, heads);
            y = mezzo_mean(g, mezzo_mul(g, mezzo_mul(g, y, y), y), -1);
            assert_int_equal(mezzo_graph_loss(g, y), MEZZO_OK);
            assert_int_equal(mezzo_params_create(devices[i], g, 5, &params[i]), MEZZO_OK);
            assert_int_equal(mezzo_program_create(g, params[i], &options, &programs[i]), MEZZO_OK);
            assert_int_equal(mezzo_program_write(programs[i], "image", image, sizeof image), MEZZO_OK);
            assert_int_equal(mezzo_program_write(programs[i], "context", context, sizeof context), MEZZO_OK);
            if (mezzo_program_run(programs[i], NULL, 0, 0) != MEZZO_OK)
                fail_msg("%s", mezzo_error_message());
            assert_int_equal(mezzo_program_read(programs[i], "loss", &loss[i], sizeof loss[i]), MEZZO_OK);
            mezzo_graph_free(g);
        }
        assert_true(fabsf(loss[0] - loss[1]) < 1e-5F * fabsf(loss[1]));
        for (int p = 0; p < mezzo_params_count(params[0]); p++) {
            const char *name = mezzo_params_name(params[0], p);
            const int64_t *shape = mezzo_params_shape(params[0], p);
            const int64_t count = shape[0] * (mezzo_params_rank(params[0], p) > 1 ? shape[1] : 1);
            for (int i = 0; i < 2; i++)
                assert_int_equal(mezzo_params_read_grad(params[i], mezzo_params_find(params[i], name), grads[i]),
                                 MEZZO_OK);
            float most = 0, off = 0;
            for (int64_t k = 0; k < count; k++) {
                most = fmaxf(most, fabsf(grads[1][k]));
                off = fmaxf(off, fabsf(grads[0][k] - grads[1][k]));
            }
            const bool none = strcmp(name, "attention.to_k.bias") == 0; // moves all scores of a query alike
            if (!none && !(off <= 2e-5F * most))
                fail_msg("%d heads: the gradient of %s is off by %g of %g", heads, name, (double)off, (double)most);
        }
        for (int i = 0; i < 2; i++) {
            mezzo_program_free(programs[i]);
            mezzo_params_free(params[i]);
            mezzo_device_close(devices[i]);
        }
    }
}

TEST(test_batches) {
    mz_task *task = opened("radio_unet-tiny");
    mz_source *four, *eight;
    char fault[256];
    assert_int_equal(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, 4, 7, false, &four), MEZZO_OK);
    assert_int_equal(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, 8, 7, false, &eight), MEZZO_OK);
    assert_int_equal(mz_source_draw(eight, 3, fault, sizeof fault), MEZZO_OK);
    assert_string_equal(fault, "");
    for (uint64_t half = 0; half < 2; half++) { // a batch of 8 is two of 4
        assert_int_equal(mz_source_draw(four, 6 + half, fault, sizeof fault), MEZZO_OK);
        for (int k = 0; k < four->examples.n; k++) {
            const mz_input *a = &four->examples.input[k], *b = &eight->examples.input[k];
            assert_memory_equal(a->data, (const char *)b->data + half * a->bytes, a->bytes);
        }
    }
    assert_int_equal(task->kind->weight(&eight->examples), 8);
    const float *image = eight->examples.input[0].data, *time = eight->examples.input[2].data;
    float least = 2, most = -2;
    for (int i = 0; i < 8 * 256; i++) {
        least = fminf(least, image[i]);
        most = fmaxf(most, image[i]);
    }
    assert_true(least == -1 && most > 0.5F && most <= 1);
    for (int i = 0; i < 8; i++)
        assert_true(time[i] > 0 && time[i] <= 1 && (i == 0 || time[i] != time[i - 1]));
    ((float *)eight->examples.input[1].data)[5] = (float)NAN;
    assert_false(task->kind->check(task, &eight->examples, fault, sizeof fault));
    assert_non_null(strstr(fault, "condition"));
    mz_source_close(four);
    mz_source_close(eight);
    mz_task_close(task);
}

TEST(test_a_pass) {
    static const char *const models[] = {"radio_unet-tiny", "kl_vae-tiny"};
    for (size_t m = 0; m < MZ_COUNT(models); m++) {
        mz_task *task = opened(models[m]);
        mz_source *all;
        uint64_t counted = 0;
        assert_int_equal(mz_source_open(task, MZ_SET_VALIDATION, MZ_ORDER_SEQUENTIAL, 4, 7, false, &all), MEZZO_OK);
        assert_int_equal(all->batches, 2); // 6 pictures of 3 cities
        for (uint64_t k = 0; k < 2; k++) {
            assert_int_equal(mz_source_draw(all, k, NULL, 0), MEZZO_OK);
            counted += task->kind->weight(&all->examples);
        }
        assert_int_equal(counted, 6);
        if (m == 1) { // the last two rows count twice, what fills up not at all: the mean is that of two
            const float *w = all->examples.input[2].data;
            assert_true(w[0] == 2 && w[1] == 2 && w[2] == 0 && w[3] == 0);
        }
        task->kind->blank(&all->examples);
        assert_int_equal(task->kind->weight(&all->examples), 0);
        mz_source_close(all);
        mz_task_close(task);
    }
}

TEST(test_made_up) {
    mezzo_model_config config;
    mz_examples x;
    char fault[256];
    assert_int_equal(mezzo_model_defaults("radio_unet-tiny", &config), MEZZO_OK);
    mz_task task = {.kind = &mz_task_images};
    assert_int_equal(mz_model_of(&config, &task.model), MEZZO_OK);
    assert_int_equal(mz_examples_make(&task.model, &(mz_form){.batch = 3, .length = 1}, 5, &x), MEZZO_OK);
    assert_true(mz_task_images.check(&task, &x, fault, sizeof fault));
    assert_int_equal(mz_task_images.weight(&x), 3);
    mz_examples_free(&x);
}

TEST(test_refused) {
    mz_task *task = opened("radio_unet-tiny");
    mz_model other = task->model;
    other.config.image_size = 32;
    must_fail(mz_task_set_model(task, &other), MEZZO_ERR_INVALID, "16 x 16 x 1");
    mz_task_close(task);
    const mz_task_options text = {.train = "a.txt"}, none = {.split = 0.9};
    assert_int_equal(mz_task_open(&(mezzo_model_config){.name = "kl_vae"}, &text, &task), MEZZO_ERR_INVALID);
    must_fail(mz_task_open(&(mezzo_model_config){.name = "kl_vae"}, &none, &task), MEZZO_ERR_INVALID,
              "mezzo data radio");
}
