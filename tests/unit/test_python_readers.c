// What others read and write: Python's safetensors in both directions, and TensorBoard's own reader on our event files.
// Needs $MEZZO_PYTHON (scripts/setup-python.sh); skipped with 77 without it.
#include <stdio.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/metrics.h"
#include "io/safetensors.h"
#include "test.h"

static const char *python, *tests_folder;

// Runs tests/unit/SCRIPT with `arguments`; its output is the reason when it fails.
static void run_script(const char *script, const char *arguments) {
    char *command = mz_format("'%s' '%s/unit/%s' %s", python, tests_folder, script, arguments);
    int result = system(command);
    mz_free(command);
    assert_int_equal(result, 0);
}

// Element i of tensor t is 3 × i + t, exact in every dtype here; check_safetensors.py has the same table.
static const struct {
    const char *name;
    mezzo_dtype dtype;
    size_t rank;
    int64_t shape[3];
} tensors[] = {
    {"wte", MEZZO_F32, 2, {5, 3, 0}},   {"half", MEZZO_F16, 1, {7, 0, 0}}, {"brain", MEZZO_BF16, 3, {2, 2, 2}},
    {"double", MEZZO_F64, 0, {0}},      {"long", MEZZO_I64, 1, {3, 0, 0}}, {"int", MEZZO_I32, 1, {3, 0, 0}},
    {"short", MEZZO_U16, 1, {3, 0, 0}}, {"byte", MEZZO_U8, 1, {5, 0, 0}},  {"none", MEZZO_F32, 2, {0, 4, 0}}};

static size_t fill(size_t t, void *out) {
    size_t n = 1;
    float values[64];
    for (size_t d = 0; d < tensors[t].rank; d++)
        n *= (size_t)tensors[t].shape[d];
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(i * 3 + t);
    assert_int_equal(mezzo_convert(values, MEZZO_F32, out, tensors[t].dtype, n), MEZZO_OK);
    return n * mezzo_dtype_size(tensors[t].dtype);
}

static void python_reads_our_safetensors_and_we_read_its(void **state) {
    (void)state;
    static unsigned char data[MZ_COUNT(tensors)][256];
    mz_safetensors_item items[MZ_COUNT(tensors)];
    for (size_t t = 0; t < MZ_COUNT(tensors); t++) {
        fill(t, data[t]);
        items[t] = (mz_safetensors_item){
            tensors[t].name, tensors[t].dtype, tensors[t].rank, tensors[t].shape, data[t], NULL, NULL};
    }
    const mz_safetensors_meta meta[] = {{"format", "pt"}, {"note", "é \"quoted\""}};
    assert_int_equal(mz_safetensors_write("ours.safetensors", items, MZ_COUNT(items), meta, 2, NULL), MEZZO_OK);
    run_script("check_safetensors.py", "ours.safetensors theirs.safetensors");

    // The same tensors and metadata, written by the reference implementation.
    mz_safetensors *file;
    if (mz_safetensors_open("theirs.safetensors", &file) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    assert_int_equal(mz_safetensors_count(file), MZ_COUNT(tensors));
    for (size_t t = 0; t < MZ_COUNT(tensors); t++) {
        unsigned char got[256];
        if (mz_safetensors_read(file, tensors[t].name, tensors[t].dtype, tensors[t].rank, tensors[t].shape, got) !=
            MEZZO_OK)
            fail_msg("%s", mezzo_error_message());
        assert_memory_equal(got, data[t], mz_safetensors_find(file, tensors[t].name)->bytes);
    }
    assert_string_equal(mz_safetensors_meta_get(file, "note"), "é \"quoted\"");
    mz_safetensors_close(file);
}

static void tensorboard_reads_our_events(void **state) {
    (void)state;
    mz_dir_remove("events");
    assert_int_equal(mz_dir_create("events"), MEZZO_OK);
    mz_metrics *metrics;
    // Steps 0 … 9, then a resume after step 4 whose values differ: TensorBoard must show the later ones.
    for (int64_t run = 0; run < 2; run++) {
        assert_int_equal(mz_metrics_open("events", "metrics.jsonl", run ? 4 : -1, true, &metrics), MEZZO_OK);
        for (int64_t step = run ? 5 : 0; step < (run ? 8 : 10); step++) {
            const mz_metric row[] = {mz_metric_number("train/loss", (double)step / 8 + (double)run),
                                     mz_metric_int("amp/skipped_steps", step), mz_metric_bool("amp/enabled", step > 2),
                                     mz_metric_text("amp/precision", step < 3 ? "fp16" : "bf16")};
            assert_int_equal(mz_metrics_write(metrics, step, row, 4), MEZZO_OK);
        }
        const double edges[] = {-4, -3, -2, -1, 0, 1}, counts[] = {0, 5, 0, 2, 1, 0}, none[6] = {0};
        assert_int_equal(mz_metrics_add_counts(metrics, "log2/some", edges, counts, 6), MEZZO_OK);
        assert_int_equal(mz_metrics_add_counts(metrics, "log2/none", edges, none, 6), MEZZO_OK);
        assert_int_equal(mz_metrics_write_counts(metrics, 7), MEZZO_OK);
        mz_metrics_close(metrics);
    }
    run_script("check_tfevents.py", "events");
}

int main(void) {
    python = getenv("MEZZO_PYTHON");
    tests_folder = getenv("MEZZO_TESTS");
    if (!python || !*python || !tests_folder) {
        puts("skipped: no Python with safetensors and tensorboard; scripts/setup-python.sh makes one");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(python_reads_our_safetensors_and_we_read_its),
        cmocka_unit_test(tensorboard_reads_our_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
