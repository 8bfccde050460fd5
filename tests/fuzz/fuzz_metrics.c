// metrics.jsonl as a crash or an editor left it. A resume cuts only from its end, and a second one finds nothing more
// to cut; a reader that comes twice has read what one that comes at the end reads. The input: a digit, the step to
// resume from; how far the file is at a reader's first visit; the file.
#include "folder.h"
#include "io/metrics.h"
#include "study/page/run_log.h"

static void expect_prefix(const uint8_t *data, size_t size, size_t *left) {
    char *now;
    if (mz_file_read(fuzz_path("metrics.jsonl"), size + 1, &now, left) != MEZZO_OK || *left > size ||
        memcmp(now, data, *left) != 0 || (*left > 0 && now[*left - 1] != '\n'))
        abort();
    mz_free(now);
}

static void resume(const uint8_t *data, size_t size, int64_t step) {
    const mz_metric one = mz_metric_int("n", 1);
    size_t left, again;
    mz_metrics *metrics;
    for (int i = 0; i < 2; i++) { // the second cuts away the record that the first has written after
        if (mz_metrics_open(fuzz_folder(), "metrics.jsonl", step, false, &metrics) != MEZZO_OK)
            abort();
        expect_prefix(data, size, i == 0 ? &left : &again);
        if (mz_metrics_write(metrics, step + 1, &one, 1) != MEZZO_OK)
            abort();
        mz_metrics_close(metrics);
    }
    if (left != again)
        abort();
}

static bool same_number(double a, double b) {
    return a == b || (a != a && b != b);
}

static void compare(const mz_run_log *a, const mz_run_log *b) {
    if (a->n_series != b->n_series || a->n_texts != b->n_texts || a->offset != b->offset || a->records != b->records ||
        a->lines != b->lines || a->last_step != b->last_step || a->bad != b->bad ||
        strcmp(a->first_bad, b->first_bad) != 0)
        abort();
    for (size_t i = 0; i < a->n_series; i++) {
        const mz_series *x = &a->series[i], *y = &b->series[i];
        double middle[2];
        if (strcmp(x->name, y->name) != 0 || x->n != y->n || x->count != y->count || mz_run_log_find(a, x->name) != x ||
            !same_number(mz_series_last(x), mz_series_last(y)) ||
            !same_number(mz_series_end(x, INT64_MAX), mz_series_end(y, INT64_MAX)) ||
            mz_series_middle(x, &middle[0]) != MEZZO_OK || mz_series_middle(y, &middle[1]) != MEZZO_OK ||
            !same_number(middle[0], middle[1]))
            abort();
        for (size_t k = 0; k < x->n; k++)
            if (x->stretches[k].step != y->stretches[k].step ||
                !same_number(x->stretches[k].first, y->stretches[k].first))
                abort();
        mz_point points[8];
        if (mz_series_thin(x, 3, points) > 8)
            abort();
    }
    for (size_t i = 0; i < a->n_texts; i++) {
        if (strcmp(a->texts[i].name, b->texts[i].name) != 0 || a->texts[i].n != b->texts[i].n)
            abort();
        for (size_t k = 0; k < a->texts[i].n; k++)
            if (strcmp(a->texts[i].items[k].text, b->texts[i].items[k].text) != 0 ||
                a->texts[i].items[k].step != b->texts[i].items[k].step)
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_run_log visits, once;
    if (size < 2)
        return 0;
    const int64_t step = data[0] - '0';
    const uint8_t *file = data + 2;
    size_t n = size - 2, first = n * data[1] / 256;
    fuzz_put("metrics.jsonl", file, first);
    if (mz_run_log_open(fuzz_folder(), NULL, &visits) != MEZZO_OK)
        abort();
    fuzz_append("metrics.jsonl", file + first, n - first);
    if (mz_run_log_read(&visits, NULL) != MEZZO_OK || mz_run_log_open(fuzz_folder(), NULL, &once) != MEZZO_OK)
        abort();
    compare(&visits, &once);
    mz_run_log_free(&visits);
    mz_run_log_free(&once);
    resume(file, n, step < 0 ? 0 : step);
    return 0;
}
