// metrics.jsonl: one whole JSON object a line, and after a resume the file of a run that never stopped.
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/metrics.h"
#include "test.h"

static void assert_file_is(const char *path, const char *text) {
    char *data;
    size_t size;
    assert_int_equal(mz_file_read(path, 1 << 20, &data, &size), MEZZO_OK);
    assert_string_equal(data, text);
    mz_free(data);
}

static mz_metrics *open_in(const char *folder, int64_t resume_step) {
    mz_metrics *metrics;
    assert_int_equal(mz_dir_create(folder), MEZZO_OK);
    if (mz_metrics_open(folder, "metrics.jsonl", resume_step, true, &metrics) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return metrics;
}

static void write_steps(mz_metrics *metrics, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; step++) {
        const mz_metric values[] = {mz_metric_number("train/loss", 1.0 / (double)(step + 1)),
                                    mz_metric_int("amp/skipped_steps", step / 3),
                                    mz_metric_text("amp/precision", "bf16")};
        assert_int_equal(mz_metrics_write(metrics, step, values, 3), MEZZO_OK);
        if (step % 2 == 0)
            assert_int_equal(mz_metrics_write(metrics, step, (mz_metric[]){mz_metric_number("val/loss", 0.1)}, 1),
                             MEZZO_OK);
    }
}

TEST(every_kind_of_value_is_valid_json) {
    mz_dir_remove("kinds");
    mz_metrics *metrics = open_in("kinds", -1);
    const mz_metric values[] = {
        mz_metric_number("a", 0.1),          mz_metric_number("b", NAN),           mz_metric_number("c", HUGE_VAL),
        mz_metric_number("d", -HUGE_VAL),    mz_metric_int("e", INT64_MAX),        mz_metric_bool("f", true),
        mz_metric_text("g", "q\"\\\n\x01é"), mz_metric_text("h", "bad \xFF byte"), mz_metric_number("i", 1e-300)};
    assert_int_equal(mz_metrics_write(metrics, 7, values, MZ_COUNT(values)), MEZZO_OK);
    mz_metrics_close(metrics);
    assert_file_is("kinds/metrics.jsonl",
                   "{\"step\": 7, \"a\": 0.1, \"b\": \"NaN\", \"c\": \"Infinity\", \"d\": \"-Infinity\", \"e\": "
                   "9223372036854775807, \"f\": true, \"g\": \"q\\\"\\\\\\u000a\\u0001é\", \"h\": \"bad \uFFFD byte\", "
                   "\"i\": 1.0e-300}\n");
    json_t *object;
    double tiny;
    assert_int_equal(mz_json_load("kinds/metrics.jsonl", 1 << 20, &object), MEZZO_OK);
    assert_int_equal(mz_json_get_double("kinds", object, "i", &tiny), MEZZO_OK);
    assert_true(tiny == 1e-300);
    json_decref(object);
}

// Ten steps against: ten steps of which a checkpoint keeps five, a torn line, and a resume.
TEST(a_resumed_file_is_the_uninterrupted_one) {
    mz_dir_remove("whole");
    mz_dir_remove("broken");
    mz_metrics *metrics = open_in("whole", -1);
    write_steps(metrics, 0, 9);
    mz_metrics_close(metrics);

    metrics = open_in("broken", -1);
    write_steps(metrics, 0, 8);
    mz_metrics_close(metrics);
    mz_file *file;
    assert_int_equal(mz_file_append("broken/metrics.jsonl", &file), MEZZO_OK);
    assert_int_equal(mz_file_write(file, "{\"step\": 9, \"tr", 14), MEZZO_OK);
    assert_int_equal(mz_file_commit(file), MEZZO_OK);
    metrics = open_in("broken", 4);
    write_steps(metrics, 5, 9);
    assert_int_equal(mz_metrics_sync(metrics), MEZZO_OK);
    mz_metrics_close(metrics);
    char *whole;
    size_t size;
    assert_int_equal(mz_file_read("whole/metrics.jsonl", 1 << 20, &whole, &size), MEZZO_OK);
    assert_file_is("broken/metrics.jsonl", whole);
    mz_free(whole);

    // Resuming before the first record empties the file; a file that is not there is made.
    metrics = open_in("broken", 0);
    mz_metrics_close(metrics);
    assert_file_is("broken/metrics.jsonl", "{\"step\": 0, \"train/loss\": 1.0, \"amp/skipped_steps\": 0, "
                                           "\"amp/precision\": \"bf16\"}\n{\"step\": 0, \"val/loss\": 0.1}\n");
    mz_dir_remove("fresh");
    metrics = open_in("fresh", 3);
    mz_metrics_close(metrics);
    assert_file_is("fresh/metrics.jsonl", "");
}

TEST(what_would_lose_records_is_refused) {
    mz_dir_remove("kept");
    mz_metrics *metrics = open_in("kept", -1);
    write_steps(metrics, 0, 1);
    mz_metrics_close(metrics);
    must_fail(mz_metrics_open("kept", "metrics.jsonl", -1, true, &metrics), MEZZO_ERR_INVALID,
              "'kept/metrics.jsonl' holds another run's records; resume that run");
    // A failure before the lines are taken out leaves them.
    assert_int_equal(mz_file_write_atomic("kept/metrics.jsonl", "{\"step\": 1}\n{\"step\": 2}\n", 24), MEZZO_OK);
    for (int64_t n = 0; n < 2; n++) {
        mz_io_fail_after(MZ_IO_OPEN, n);
        must_fail(mz_metrics_open("kept", "metrics.jsonl", 1, true, &metrics), MEZZO_ERR_IO, "'kept/metrics.jsonl'");
        assert_file_is("kept/metrics.jsonl", "{\"step\": 1}\n{\"step\": 2}\n");
    }
    must_fail(mz_metrics_open("no_such_folder", "metrics.jsonl", -1, true, &metrics), MEZZO_ERR_IO,
              "'no_such_folder/metrics.jsonl'");
}

static int notices;
static void count_notices(void *user, const char *topic, const char *line) {
    (void)user;
    notices += strcmp(topic, "notice") == 0 && strstr(line, "a crash damaged its end") != NULL;
}

// What a crash or an editor does to the file: a torn or zeroed end is cut off with a notice, a bad line before a good
// one is kept.
TEST(a_spoilt_file_goes_on) {
    static const struct {
        const char *text;
        size_t n;
        int64_t resume;
        const char *left;
        int notices;
    } rows[] = {
#define ROW(text) text, sizeof text - 1
        {ROW("{\"step\": 1}\nhello\n{\"step\": 2}\n"), 2, "{\"step\": 1}\nhello\n{\"step\": 2}\n", 0},
        {ROW("{\"step\": 1}\n{\"step\": 2}\nhello\n"), 2, "{\"step\": 1}\n{\"step\": 2}\n", 1},
        {ROW("{\"step\": 1}\n{\"step\": 2}\n\0\0\0\0\0\0"), 2, "{\"step\": 1}\n{\"step\": 2}\n", 1},
        {ROW("{\"step\": 1}\n{\"st\0\0\0\n\0\0"), 5, "{\"step\": 1}\n", 1},
        {ROW("{\"step\": 1}\nhello\n{\"step\": 2}\n{\"st"), 1, "{\"step\": 1}\n", 1},
        {ROW("{\"step\": 1}\nhello\n{\"step\": 2}\n"), 1, "{\"step\": 1}\n", 0},
        {ROW("[1]\n"), 3, "", 1},
        {ROW("{\"loss\": 1}\n{\"step\": -1}\n"), 3, "", 1},
#undef ROW
    };
    mezzo_log_set(count_notices, NULL);
    assert_int_equal(mz_dir_create("spoilt"), MEZZO_OK);
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mz_metrics *metrics;
        notices = 0;
        assert_int_equal(mz_file_write_atomic("spoilt/metrics.jsonl", rows[i].text, rows[i].n), MEZZO_OK);
        assert_int_equal(mz_metrics_open("spoilt", "metrics.jsonl", rows[i].resume, false, &metrics), MEZZO_OK);
        mz_metrics_close(metrics);
        assert_file_is("spoilt/metrics.jsonl", rows[i].left);
        assert_int_equal(notices, rows[i].notices);
    }
    mezzo_log_set(NULL, NULL);
}

static int warnings;
static void count_warnings(void *user, const char *topic, const char *line) {
    (void)user;
    warnings +=
        strcmp(topic, "warn") == 0 && strstr(line, "'known/metrics.jsonl'") != NULL && strstr(line, "step 7") != NULL;
}

// What the file was at a checkpoint is known by its length and checksum, also of one that a run went on with: whatever
// bit of it changes is told, and what is written after it is not.
TEST(a_changed_record_is_told_of) {
    mz_metrics *metrics;
    mz_written was;
    char *text;
    size_t n;
    mz_dir_remove("known");
    for (int64_t run = 0; run < 2; run++) {
        metrics = open_in("known", run == 0 ? -1 : 1);
        write_steps(metrics, 2 * run, 2 * run + 1);
        was = mz_metrics_written(metrics);
        mz_metrics_close(metrics);
    }
    assert_int_equal(mz_file_read("known/metrics.jsonl", 1 << 20, &text, &n), MEZZO_OK);
    assert_int_equal(was.bytes, n);
    assert_int_equal(was.crc, mz_crc32c(0, text, n));
    mezzo_log_set(count_warnings, NULL);
    for (size_t bit = 0; bit < 8 * n; bit += 5) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        assert_int_equal(mz_file_write_atomic("known/metrics.jsonl", text, n), MEZZO_OK);
        warnings = 0;
        assert_int_equal(mz_metrics_check("known", was, 7), MEZZO_OK);
        assert_int_equal(warnings, 1);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    warnings = 0;
    assert_int_equal(mz_file_write_atomic("known/metrics.jsonl", text, n - 1), MEZZO_OK);
    assert_int_equal(mz_metrics_check("known", was, 7), MEZZO_OK);
    assert_int_equal(mz_file_remove("known/metrics.jsonl"), MEZZO_OK);
    assert_int_equal(mz_metrics_check("known", was, 7), MEZZO_OK);
    assert_int_equal(warnings, 2);
    assert_int_equal(mz_file_write_atomic("known/metrics.jsonl", text, n), MEZZO_OK);
    metrics = open_in("known", 3);
    write_steps(metrics, 4, 5);
    mz_metrics_close(metrics);
    assert_int_equal(mz_metrics_check("known", was, 7), MEZZO_OK);
    assert_int_equal(mz_metrics_check("known", (mz_written){0}, 7), MEZZO_OK);
    assert_int_equal(warnings, 2);
    mezzo_log_set(NULL, NULL);
    mz_free(text);
}

// The records' file of a run folder is a file of its own: a link out of the folder is not followed, a pipe not waited
// for.
TEST(only_a_file_of_the_folder_is_written) {
    mz_metrics *metrics;
    mz_dir_remove("linked");
    assert_int_equal(mz_dir_create("linked"), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("outside", "", 0), MEZZO_OK);
    assert_int_equal(symlink("../outside", "linked/metrics.jsonl"), 0);
    assert_int_equal(mz_metrics_open("linked", "metrics.jsonl", 0, false, &metrics), MEZZO_ERR_IO);
    assert_int_equal(unlink("linked/metrics.jsonl"), 0);
    assert_int_equal(mkfifo("linked/metrics.jsonl", 0600), 0);
    assert_int_equal(mz_metrics_open("linked", "metrics.jsonl", 0, false, &metrics), MEZZO_ERR_INVALID);
}

// A write that stops in the middle: the file may grow by 20 bytes more. What was there stays, and so does the next
// record.
TEST(a_torn_record_is_cut_off) {
    mz_dir_remove("torn");
    mz_metrics *metrics;
    assert_int_equal(mz_dir_create("torn"), MEZZO_OK);
    assert_int_equal(mz_metrics_open("torn", "metrics.jsonl", -1, false, &metrics), MEZZO_OK);
    write_steps(metrics, 1, 1);
    char *before;
    size_t size;
    assert_int_equal(mz_file_read("torn/metrics.jsonl", 1 << 20, &before, &size), MEZZO_OK);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){size + 20, old.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mezzo_status status = mz_metrics_write(metrics, 2, (mz_metric[]){mz_metric_number("long/name", 1.0 / 3)}, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    must_fail(status, MEZZO_ERR_IO, "'torn/metrics.jsonl': File too large");
    assert_file_is("torn/metrics.jsonl", before);
    assert_int_equal(mz_metrics_write(metrics, 2, (mz_metric[]){mz_metric_int("x", 1)}, 1), MEZZO_OK);
    mz_metrics_close(metrics);
    char *after = mz_format("%s{\"step\": 2, \"x\": 1}\n", before);
    assert_file_is("torn/metrics.jsonl", after);
    mz_free(after);
    mz_free(before);
}

TEST(a_full_disk_is_told) {
    mz_dir_remove("full");
    mz_metrics *metrics = open_in("full", -1);
    for (int64_t n = 0; n < 2; n++) { // the line, then the event
        mz_io_fail_after(MZ_IO_WRITE, n);
        must_fail(mz_metrics_write(metrics, 1, (mz_metric[]){mz_metric_number("x", 1)}, 1), MEZZO_ERR_IO,
                  "No space left on device; free some space");
    }
    mz_metrics_close(metrics);
}
