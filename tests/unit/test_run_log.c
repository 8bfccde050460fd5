// What watch keeps of a run is what the run's metrics.jsonl holds, also after a rollback cut it back and other records
// were written. Seen to fail with: a cut that is not looked for, one that is known by the file's size alone.
#include <math.h>

#include "io/file.h"
#include "io/metrics.h"
#include "study/page/run_log.h"
#include "test.h"

static mz_metrics *goes_on_after(int64_t step) {
    mz_metrics *metrics;
    assert_int_equal(mz_metrics_open("run", "metrics.jsonl", step, false, &metrics), MEZZO_OK);
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
    assert_int_equal(mz_run_log_read(log, NULL), MEZZO_OK);
    const mz_series *loss = mz_run_log_find(log, "train/loss");
    assert_int_equal(log->last_step, last);
    assert_int_equal(log->records, last);
    assert_int_equal(log->bad, 0);
    assert_int_equal(loss->n, (size_t)last);
    for (int64_t i = 0; i < last; i++) {
        assert_int_equal(loss->stretches[i].step, i + 1);
        assert_true(loss->stretches[i].first == (double)(i + 1 < other ? i + 1 : -i - 1));
    }
}

TEST(a_file_that_was_cut_back_is_read_anew) {
    mz_run_log log;
    mz_dir_remove("run");
    assert_int_equal(mz_dir_create("run"), MEZZO_OK);
    mz_metrics *metrics = goes_on_after(-1);
    assert_int_equal(mz_run_log_open("run", NULL, &log), MEZZO_OK);
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
    assert_int_equal(mz_run_log_read(&log, NULL), MEZZO_OK);
    assert_int_equal(log.last_step, -1);
    metrics = goes_on_after(-1);
    writes(metrics, 1, 3, 1);
    holds(&log, 3, 4);
    mz_metrics_close(metrics);
    mz_run_log_free(&log);
}

// A file of any length is kept in the same room; what is asked of it stays what a walk over all values gives.
TEST(a_long_series_is_kept_in_stretches) {
    enum { N = 100000, BUCKETS = 100 };
    mz_series s = {0};
    mz_point points[2 * BUCKETS + 2];
    for (int64_t step = 1; step <= N; step++) {
        const double value = step == 70001 ? (double)NAN : step == 40002 ? 9 : step == 60003 ? -9 : (double)(step % 7);
        assert_int_equal(mz_series_add(&s, step, value), MEZZO_OK);
    }
    assert_true(s.n <= MZ_STRETCHES_MAX && s.cap <= 2 * MZ_STRETCHES_MAX);
    assert_int_equal(s.count, N);
    assert_true(mz_series_least(&s) == -9);
    assert_true(mz_series_last(&s) == N % 7);
    assert_true(fabs(mz_series_end(&s, INT64_MAX) - 3) < 0.01); // the mean of 0 to 6
    double middle;
    assert_int_equal(mz_series_middle(&s, &middle), MEZZO_OK);
    assert_true(middle == 3);
    const size_t n = mz_series_thin(&s, BUCKETS, points);
    bool low = false, high = false, broken = false;
    assert_true(n > BUCKETS && n <= 2 * BUCKETS + 2);
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 || points[i].step > points[i - 1].step);
        low |= points[i].step == 60003 && points[i].value == -9;
        high |= points[i].step == 40002 && points[i].value == 9;
        broken |= points[i].step == 70001 && isnan(points[i].value);
    }
    assert_true(low && high && broken && points[0].step == 1 && points[n - 1].step == N);
    mz_series_free(&s);
}

// A run of 600 steps and one of 300 are compared at 300, and subtracted where both have a value.
TEST(two_series_meet_at_common_steps) {
    mz_series a = {0}, b = {0}, difference = {0};
    for (int64_t step = 10; step <= 600; step += 10)
        assert_int_equal(mz_series_add(&a, step, (double)step), MEZZO_OK);
    assert_int_equal(mz_series_last_common(&a, &b), -1);
    for (int64_t step = 15; step <= 315; step += 15)
        assert_int_equal(mz_series_add(&b, step, (double)step / 2), MEZZO_OK);
    assert_int_equal(mz_series_last_common(&a, &b), 300);
    assert_int_equal(mz_series_last_common(&b, &a), 300);
    assert_int_equal(mz_series_subtract(&a, &b, &difference), MEZZO_OK);
    assert_int_equal(difference.n, 10); // 30, 60, … 300
    assert_int_equal(difference.stretches[9].step, 300);
    assert_true(difference.stretches[9].first == 150);
    assert_true(mz_series_end(&a, 300) == 290); // of 30 values the last three: 280, 290, 300
    mz_series_free(&a);
    mz_series_free(&b);
    mz_series_free(&difference);
}

// Of texts without end some are kept, the first and the last among them.
TEST(texts_are_thinned) {
    mz_run_log log;
    char text[32];
    mz_dir_remove("run");
    assert_int_equal(mz_dir_create("run"), MEZZO_OK);
    mz_metrics *metrics = goes_on_after(-1);
    for (int64_t step = 1; step <= 1000; step++) {
        snprintf(text, sizeof text, "text %lld", (long long)step);
        const mz_metric row[] = {mz_metric_text("sample/text", text)};
        assert_int_equal(mz_metrics_write(metrics, step, row, 1), MEZZO_OK);
    }
    mz_metrics_close(metrics);
    assert_int_equal(mz_run_log_open("run", NULL, &log), MEZZO_OK);
    const mz_run_texts *t = mz_run_log_texts(&log, "sample/text");
    assert_int_equal(t->count, 1000);
    assert_true(t->n > MZ_TEXTS_MAX / 2 && t->n <= MZ_TEXTS_MAX);
    for (size_t i = 0; i + 1 < t->n; i++)
        assert_int_equal(t->items[i].step, 1 + (int64_t)i * t->each);
    assert_int_equal(t->items[t->n - 1].step, 1000);
    assert_string_equal(mz_run_log_text(&log, "sample/text"), "text 1000");
    mz_run_log_free(&log);
}

static void wrong(const char *lines, int64_t bad, const char *says) {
    mz_run_log log;
    FILE *f = fopen("run/metrics.jsonl", "w");
    assert_non_null(f);
    fprintf(f, "{\"step\": 1, \"train/loss\": 2.5, \"amp/precision\": \"fp16\"}\n%s", lines);
    fputs("{\"step\": 9, \"train/loss\": 1.5}\n", f);
    fclose(f);
    assert_int_equal(mz_run_log_open("run", NULL, &log), MEZZO_OK);
    assert_int_equal(log.bad, bad);
    if (strncmp(log.first_bad, says, strlen(says)) != 0)
        fail_msg("%s", log.first_bad);
    assert_string_equal(mz_run_log_text(&log, "amp/precision"), "fp16");
    assert_true(mz_series_last(mz_run_log_find(&log, "train/loss")) == 1.5);
    mz_run_log_free(&log);
}

// The first line or value that cannot be is named with its key, and all others count.
TEST(one_bad_value_is_named_and_left_out) {
    wrong("", 0, "");
    wrong("{\"step\": 2, \"amp/precision\": \"constructor\"}\n", 1, "metrics.jsonl:2: key 'amp/precision': ");
    wrong("{\"step\": 2, \"amp/precision\": 16}\n", 1, "metrics.jsonl:2: key 'amp/precision': expected a text");
    wrong("{\"step\": 2, \"train/loss\": \"low\"}\nx\n", 2, "metrics.jsonl:2: key 'train/loss': expected a number");
    wrong("{\"step\": 2, \"train/loss\": null}\n", 1, "metrics.jsonl:2: key 'train/loss': expected a number, ");
    wrong("\nx\n", 2, "metrics.jsonl:2: not a record");
}
