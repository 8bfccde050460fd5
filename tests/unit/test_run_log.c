// What watch keeps of a run is what the run's metrics.jsonl holds, also after a rollback cut it back and other records
// were written. Seen to fail with: a cut that is not looked for, one that is known by the file's size alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/file.h"
#include "io/metrics.h"
#include "study/page/run_log.h"

static mz_metrics *goes_on_after(int64_t step) {
    mz_metrics *metrics;
    assert_int_equal(mz_metrics_open("run", step, false, &metrics), MEZZO_OK);
    return metrics;
}

static void writes(mz_metrics *metrics, int64_t from, int64_t to, double slope) {
    for (int64_t step = from; step <= to; step++) {
        const mz_metric row[] = {mz_metric_number("train/loss", slope * (double)step)};
        assert_int_equal(mz_metrics_write(metrics, step, row, 1), MEZZO_OK);
    }
}

// Steps 1 to `last`, each once, the loss step or, from `other` on, -step.
static void holds(mz_run_log *log, int64_t last, int64_t other) {
    assert_int_equal(mz_run_log_read(log), MEZZO_OK);
    const mz_series *loss = mz_run_log_find(log, "train/loss");
    assert_int_equal(log->last_step, last);
    assert_int_equal(log->records, last);
    assert_int_equal(log->bad_lines, 0);
    assert_int_equal(loss->n, (size_t)last);
    for (int64_t i = 0; i < last; i++) {
        assert_int_equal(loss->steps[i], i + 1);
        assert_true(loss->values[i] == (double)(i + 1 < other ? i + 1 : -i - 1));
    }
}

static void a_file_that_was_cut_back_is_read_anew(void **state) {
    (void)state;
    mz_run_log log;
    mz_dir_remove("run");
    assert_int_equal(mz_dir_create("run"), MEZZO_OK);
    mz_metrics *metrics = goes_on_after(-1);
    assert_int_equal(mz_run_log_open("run", &log), MEZZO_OK);
    assert_int_equal(log.last_step, -1);
    writes(metrics, 1, 20, 1);
    holds(&log, 20, 21);
    writes(metrics, 21, 40, 1);
    holds(&log, 40, 41); // only added to
    mz_metrics_close(metrics);
    metrics = goes_on_after(30); // shorter
    holds(&log, 30, 31);
    writes(metrics, 31, 35, 1);
    holds(&log, 35, 36);
    mz_metrics_close(metrics);
    metrics = goes_on_after(10);
    writes(metrics, 11, 80, -1); // longer
    holds(&log, 80, 11);
    mz_metrics_close(metrics);
    assert_int_equal(mz_file_remove("run/metrics.jsonl"), MEZZO_OK);
    assert_int_equal(mz_run_log_read(&log), MEZZO_OK);
    assert_int_equal(log.last_step, -1);
    metrics = goes_on_after(-1);
    writes(metrics, 1, 3, 1);
    holds(&log, 3, 4);
    mz_metrics_close(metrics);
    mz_run_log_free(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_that_was_cut_back_is_read_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
