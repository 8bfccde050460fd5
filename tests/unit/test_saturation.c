// What is counted of 8-bit tensors whose numbers are beyond the format, and what a run says about it.
// Seen to fail with: saturation judged by the scale of after the step; a first step that counts; a window that never
// ends.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "train/report.h"

static void ok(mezzo_status status) {
    if (status != MEZZO_OK)
        fail_msg("%s\n%s", mezzo_error_message(), mezzo_error_trace());
}

static void advance(mz_scale_entry *e, float most) {
    mz_scale_advance(e, mz_magnitude(most));
}

static void counts_are_what_the_scale_cut_off(void **state) {
    (void)state;
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

static void a_run_names_the_tensor(void **state) {
    (void)state;
    mezzo_device *device;
    mz_saturation *s;
    mz_scales scales = {0};
    mz_scale_entry table[3];
    const char *name;
    double share;
    int index;
    ok(mezzo_device_open("cpu", 1, &device));
    ok(mz_saturation_create(&s));
    ok(mz_saturation_rows(s, device, &scales, 10, row, &rows, &share, &name));
    assert_true(rows == 0 && isnan(share)); // no such tensors
    ok(mz_scales_find(device, &scales, "h.0.attn.x", MEZZO_F8E4M3, &index));
    ok(mz_scales_find(device, &scales, "h.1.mlp.c_fc.dy", MEZZO_F8E5M2, &index));
    for (int step = 10; step <= 400; step += 10) {
        for (int i = 0; i < 2; i++)
            table[i] = (mz_scale_entry){.scale = 1, .n = step, .saturated = i * step / 10, .changes = 2 * step / 10};
        ok(mz_scales_replace(device, &scales, table));
        rows = 0;
        ok(mz_saturation_rows(s, device, &scales, step, row, &rows, &share, &name));
        assert_true(rows == (step == 10 ? 0 : step < 210 ? 2 : 4));
        assert_true(isnan(share) == (step < 210));
        if (step == 10)
            continue;
        assert_true(number("fp8/saturated_share") == 1 / 20.0); // one step in ten of one tensor of two
        assert_true(number("fp8/scale_changes") == 4);
        assert_true(step < 210 || (share == 0.1 && strcmp(name, "h.1.mlp.c_fc.dy") == 0));
    }
    // A table that grows, and a run that goes back.
    ok(mz_scales_find(device, &scales, "h.2.attn.x", MEZZO_F8E4M3, &index));
    table[2] = (mz_scale_entry){.scale = 1, .n = 7, .saturated = 5};
    ok(mz_scales_replace(device, &scales, table));
    rows = 0;
    ok(mz_saturation_rows(s, device, &scales, 420, row, &rows, &share, &name));
    assert_true(number("fp8/saturated_share") == 0 && number("fp8/scale_changes") == 0);
    rows = 0;
    ok(mz_saturation_rows(s, device, &scales, 300, row, &rows, &share, &name));
    assert_true(rows == 0);
    mz_saturation_free(s);
    mz_scales_free(device, &scales);
    mezzo_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_what_the_scale_cut_off),
        cmocka_unit_test(a_run_names_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
