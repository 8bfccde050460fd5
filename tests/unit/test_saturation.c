// What is counted of 8-bit tensors whose numbers are beyond the format, and what a run says about it.
// What became zero is counted too.
// Seen to fail with: a first step that counts; a number that is lost up to twice as large; numbers counted before their
// activation.
#include <math.h>

#include "fixture.h"
#include "train/magnitudes.h"
#include "train/report.h"

static void advance(mz_scale_entry *e, float amax) {
    memcpy(&e->amax, &amax, sizeof amax);
    mz_entries_update(e, sizeof *e, NULL, 0, false);
}

TEST(counts_are_what_the_scale_cut_off) {
    for (int wide = 0; wide < 2; wide++) {
        const float largest = wide ? 57344 : 448;
        mz_scale_entry e = {.scale = 1, .dtype = wide ? MEZZO_F8E5M2 : MEZZO_F8E4M3};
        advance(&e, 1e4F * largest); // nothing was known: it was measured
        assert_true(e.saturated == 0 && e.changes == 0 && e.n == 1);
        const float scale = e.scale;
        advance(&e, largest * scale); // the largest number itself is held
        assert_true(e.saturated == 0 && e.changes == 0 && e.scale == scale);
        advance(&e, nextafterf(largest * scale, INFINITY));
        assert_true(e.saturated == 1 && e.in_a_row == 1 && e.changes == 1 && e.scale == 2 * scale);
        advance(&e, 3 * largest * scale);
        assert_true(e.saturated == 2 && e.in_a_row == 2 && e.changes == 2 && e.scale == 4 * scale);
        advance(&e, INFINITY); // a step that is not finite, and one without the tensor, are none
        advance(&e, 0);
        assert_true(e.saturated == 2 && e.in_a_row == 2 && e.n == 4);
        for (int k = 0; k < MZ_SCALE_HISTORY; k++)
            advance(&e, scale);
        assert_true(e.saturated == 2 && e.in_a_row == 0 && e.changes == 3 && e.scale < scale);
    }
}

static mz_metric row[MZ_SATURATION_ROWS];
static size_t rows;

static double number(const char *name) {
    for (size_t i = 0; i < rows; i++)
        if (strcmp(row[i].name, name) == 0)
            return row[i].kind == MZ_METRIC_INT ? (double)row[i].integer : row[i].number;
    return (double)NAN;
}

TEST(a_run_names_the_tensor) {
    mezzo_device *device;
    mz_saturation *s;
    mz_scales scales = {0};
    const char *name;
    double share;
    int index;
    must(mezzo_device_open("cpu", 1, &device));
    must(mz_saturation_create(&s));
    must(mz_saturation_rows(s, device, &scales, 10, row, &rows, &share, &name));
    assert_true(rows == 0 && isnan(share)); // no such tensors
    must(mz_scales_find(device, &scales, "h.0.attn.x", MEZZO_F8E4M3, &index));
    must(mz_scales_find(device, &scales, "h.1.mlp.c_fc.dy", MEZZO_F8E5M2, &index));
    for (int step = 10; step <= 400; step += 10) {
        for (int i = 0; i < 2; i++)
            scales.host[i] =
                (mz_scale_entry){.scale = 1, .n = step, .saturated = i * step / 10, .changes = 2 * step / 10};
        must(mz_scales_write(device, &scales));
        rows = 0;
        must(mz_saturation_rows(s, device, &scales, step, row, &rows, &share, &name));
        assert_true(rows == (step == 10 ? 0 : step < 210 ? 2 : 4));
        assert_true(isnan(share) == (step < 210));
        if (step == 10)
            continue;
        assert_true(number("fp8/saturated_share") == 1 / 20.0); // one step in ten of one tensor of two
        assert_true(number("fp8/scale_changes") == 4);
        assert_true(step < 210 || (share == 0.1 && strcmp(name, "h.1.mlp.c_fc.dy") == 0));
    }
    // A table that grows, and a run that goes back.
    must(mz_scales_find(device, &scales, "h.2.attn.x", MEZZO_F8E4M3, &index));
    must(mz_scales_read(device, &scales));
    scales.host[2] = (mz_scale_entry){.scale = 1, .n = 7, .saturated = 5};
    must(mz_scales_write(device, &scales));
    rows = 0;
    must(mz_saturation_rows(s, device, &scales, 420, row, &rows, &share, &name));
    assert_true(number("fp8/saturated_share") == 0 && number("fp8/scale_changes") == 0);
    rows = 0;
    must(mz_saturation_rows(s, device, &scales, 300, row, &rows, &share, &name));
    assert_true(rows == 0);
    mz_saturation_free(s);
    mz_scales_free(device, &scales);
    mezzo_device_close(device);
}

// --- underflow -----------------------------------------------------------------------------------------------------
enum { BATCH = 2, LENGTH = 16, VOCAB = 48, CALLS = 4096 };
static int64_t zero_quantized[CALLS];

static mezzo_status count_quantized(void *user, mezzo_program *p, size_t index) {
    const mz_call *call = &p->c.calls[index];
    (void)user;
    if (call->op != MZ_OP_quantize)
        return MEZZO_OK;
    const mz_tensor *codes = mz_present(&call->out[0]) ? &call->out[0] : &call->out[MZ_OUT(quantize, columnwise)];
    const size_t n = (size_t)mz_shape_count(&codes->shape);
    unsigned char *bytes = malloc(n);
    assert_true(bytes != NULL && index < CALLS);
    must(p->device->backend->read(p->device, bytes, codes->data, n));
    zero_quantized[index] = 0;
    for (size_t i = 0; i < n; i++)
        zero_quantized[index] += (bytes[i] & 0x7F) == 0;
    free(bytes);
    return MEZZO_OK;
}

// Of every tensor that is rounded to 8 bits, after an activation too: as many codes of zero as numbers that were zero
// or are said to be lost. Scales 256 times too large lose some of each format.
TEST(what_is_lost_are_the_codes_of_zero) {
    mz_magnitudes *m;
    fixture f = {0};
    fixture_options options = {.model = fixture_model("gpt2", 32, 64, VOCAB, LENGTH),
                               .batch = BATCH,
                               .program = {.precision = MEZZO_PRECISION_FP8},
                               .step = &(mezzo_step_options){.micro_batches = 1}};
    fixture_open(&f, &options);
    mezzo_device *const device = f.device;
    mezzo_params *const params = f.params;
    mezzo_program *const program = f.program;
    must(mezzo_step_run(f.step, 3, 0, fixture_fill, &options));
    must(mz_scales_read(device, &params->scales));
    for (int i = 0; i < params->scales.n; i++)
        params->scales.host[i].scale *= 256;
    must(mz_scales_write(device, &params->scales));
    must(mz_magnitudes_create(program, params, &m));
    assert_true(m->n_narrowed >= 8);
    program->hook = count_quantized;
    must(mz_magnitudes_begin(m, program));
    must(fixture_fill(&options, program, 1));
    must(mezzo_step_micro(f.step, 3, 1));
    mz_magnitudes_end(m, program);
    program->hook = NULL;
    must(mz_magnitudes_read(m));
    int64_t lost[2] = {0}, acts = 0;
    for (size_t i = 0; i < m->n_narrowed; i++) {
        const mz_narrowed *of = &m->narrowed[i];
        const mz_call *call = &program->c.calls[of->call];
        const int64_t zeros = mz_shape_count(&call->in[0].shape) - of->nonzero;
        if (!of->known || zero_quantized[of->call] != of->lost + zeros)
            fail_msg("%s: %lld codes of zero, %lld lost and %lld zeros", of->name, (long long)zero_quantized[of->call],
                     (long long)of->lost, (long long)zeros);
        lost[of->found.dtype == (int32_t)MEZZO_F8E5M2] += of->lost;
        acts += call->attrs.act != MZ_ACT_NONE;
    }
    assert_true(lost[0] > 0 && acts > 0);
    mz_magnitudes_free(m);
    fixture_close(&f);
}
