// The out-of-memory ladder, and a memory that fails where the plan said it would not.
// Seen to fail with: half_batch that halves the micro batch twice; a real failure that ends the sweep.
#include <math.h>

#include "fixture.h"
#include "io/file.h"
#include "study/measure/sweep.h"

static void rung_is(const mz_rung *r, const char *name, bool recompute, int64_t micro, int64_t accum, int64_t seq) {
    assert_string_equal(r->name, name);
    assert_true(r->recompute == recompute && r->micro_batch == micro && r->grad_accum == accum && r->seq_len == seq);
}

TEST(test_ladder) {
    mz_rung r[MZ_RUNGS_MAX];
    assert_int_equal(mz_ladder(8, 128, r), 5);
    rung_is(&r[0], "base", false, 8, 1, 128);
    rung_is(&r[1], "recompute", true, 8, 1, 128);
    rung_is(&r[2], "ga2", true, 4, 2, 128); // the same step in two micro batches
    rung_is(&r[3], "half_batch", true, 2, 2, 128);
    rung_is(&r[4], "half_seq", true, 2, 2, 64);
    assert_int_equal(mz_ladder(2, 16, r), 4); // half of one sequence is none
    rung_is(&r[2], "ga2", true, 1, 2, 16);
    rung_is(&r[3], "half_seq", true, 1, 2, 8);
    assert_int_equal(mz_ladder(3, 16, r), 4); // three are not two halves
    rung_is(&r[2], "half_batch", true, 1, 1, 16);
    assert_int_equal(mz_ladder(1, 1, r), 2);
}

static mz_sweep_options tiny(const char *path) {
    return (mz_sweep_options){.family = "gpt2",
                              .layers = {{2}, 1},
                              .d_model = {{16}, 1},
                              .batch = {{4}, 1},
                              .seq_len = {{8}, 1},
                              .precisions = {MEZZO_PRECISION_FP32},
                              .n_precisions = 1,
                              .vocab = 60,
                              .repeats = {.warmup = 0, .iters = 1},
                              .seed = 1,
                              .path = path};
}

static void keep_rung(void *user, const mz_sweep_progress *p) {
    if (p->row != NULL)
        memcpy(user, p->row->rung, sizeof p->row->rung);
}

// Every allocation of a sweep of one shape fails once. What fails while a rung is tried leads to the next one, with the
// same words as a prediction; a row is written or none is; nothing else happens.
TEST(test_real_failure) {
    mezzo_device *device;
    char rung[MZ_STUDY_NAME] = "";
    int by_recompute = 0, refused = 0;
    must(mezzo_device_open("cpu", 1, &device));
    const mz_sweep_options o = tiny("failing.csv");
    for (int64_t n = 0;; n++) {
        char *text;
        size_t size;
        must(mz_file_remove(o.path));
        rung[0] = '\0';
        mz_alloc_fail_after(n);
        mezzo_status status = mz_sweep(device, &o, keep_rung, rung);
        mz_alloc_fail_after(-1);
        assert_true(status == MEZZO_OK || status == MEZZO_ERR_MEMORY);
        if (status == MEZZO_OK && strcmp(rung, "base") == 0)
            break; // it asked for less than n
        by_recompute += status == MEZZO_OK && strcmp(rung, "recompute") == 0;
        refused += status == MEZZO_ERR_MEMORY;
        if (!mz_path_exists(o.path))
            continue;
        must(mz_file_read(o.path, 1 << 20, &text, &size));
        assert_true(size == 0 || text[size - 1] == '\n'); // whole lines only
        mz_free(text);
    }
    assert_true(by_recompute > 50);
    assert_true(refused > 0); // outside of a rung: the sweep ends
    mezzo_device_close(device);
}
