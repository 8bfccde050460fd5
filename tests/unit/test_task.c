// Tasks: what a .npy may hold and how others are refused, batches as a function of their number, and a classifier from
// mezzo_run_train to mezzo_run_eval, resumed to the bit.
//
// To see it fail: a flag of bad rows that each thread keeps for itself, a look at the row before, a shuffle by the
// run's seed, the fill of the last batch with weight, labels of the first rows for all, a float's column as its row.
#include "tiny_run.h"

#include <omp.h>

#include "data/npy.h"
#include "task/task.h"

// --- .npy ----------------------------------------------------------------------------------------
static void write_npy(const char *path, int version, const char *header, const void *data, size_t bytes) {
    mz_text t = {0};
    size_t n = strlen(header) + 1; // a line break ends it
    unsigned char lead[12] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version, 0, (unsigned char)n, (unsigned char)(n >> 8)};
    mz_text_add(&t, (const char *)lead, version == 2 ? 12 : 10);
    mz_text_addf(&t, "%s\n", header);
    mz_text_add(&t, data, bytes);
    must(t.status);
    must(mz_file_write_atomic(path, t.data, t.len));
    mz_text_free(&t);
}

static void write_array(const char *path, const char *descr, const char *shape, const void *data, size_t bytes) {
    char header[200];
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    write_npy(path, 1, header, data, bytes);
}

TEST(every_type_is_read) {
    static const float f4[] = {1.5F, -2, 3};
    static const double f8[] = {1.5, -2, 3};
    static const uint8_t u1[] = {0, 128, 255};
    static const int32_t i4[] = {-1, 0, 7};
    static const int64_t i8[] = {-1, 0, INT64_C(1) << 40};
    mz_npy npy;
    write_array("a.npy", "<f4", "(3,)", f4, sizeof f4);
    must(mz_npy_open("a.npy", &npy));
    assert_int_equal(npy.rank, 1);
    assert_int_equal(npy.dim[0], 3);
    assert_true(mz_npy_number(&npy, 1) == -2 && !mz_npy_is_integer(npy.type));
    (void)mz_npy_end(&npy, MEZZO_OK);
    write_array("a.npy", "<f8", "(3, 1)", f8, sizeof f8);
    must(mz_npy_open("a.npy", &npy));
    assert_true(npy.rank == 2 && mz_npy_number(&npy, 0) == 1.5);
    (void)mz_npy_end(&npy, MEZZO_OK);
    write_array("a.npy", "|u1", "(1, 3)", u1, sizeof u1);
    must(mz_npy_open("a.npy", &npy));
    assert_int_equal(mz_npy_integer(&npy, 2), 255);
    (void)mz_npy_end(&npy, MEZZO_OK);
    write_array("a.npy", "<i4", "(3,)", i4, sizeof i4);
    must(mz_npy_open("a.npy", &npy));
    assert_int_equal(mz_npy_integer(&npy, 0), -1);
    (void)mz_npy_end(&npy, MEZZO_OK);
    write_npy("a.npy", 2, "{\"shape\": (3,), \"fortran_order\": False, \"descr\": \"<i8\"}", i8, sizeof i8);
    must(mz_npy_open("a.npy", &npy));
    assert_int_equal(mz_npy_integer(&npy, 2), INT64_C(1) << 40);
    (void)mz_npy_end(&npy, MEZZO_OK);
}

static void refused(const char *says) {
    mz_npy npy;
    mezzo_status status = mz_npy_open("bad.npy", &npy);
    if (status != MEZZO_ERR_FORMAT || strstr(mezzo_error_message(), says) == NULL ||
        strstr(mezzo_error_message(), "bad.npy") == NULL)
        fail_msg("%s \"%s\", expected \"%s\"", mezzo_status_name(status), mezzo_error_message(), says);
}

TEST(others_are_refused) {
    static const float f4[] = {1, 2, 3};
    must(mz_file_write_atomic("bad.npy", "PK\3\4 not an array", 18));
    refused("not a NumPy .npy");
    write_npy("bad.npy", 3, "{}", f4, 0);
    refused("only 1.0 and 2.0");
    write_npy("bad.npy", 1, "{'descr': '<f4', 'fortran_order': True, 'shape': (3,)}", f4, sizeof f4);
    refused("Fortran");
    write_array("bad.npy", ">f4", "(3,)", f4, sizeof f4);
    refused("'>f4'");
    write_array("bad.npy", "<c8", "(3,)", f4, 6);
    refused("'<c8'");
    write_array("bad.npy", "<f4", "(4,)", f4, sizeof f4);
    refused("take 16");
    write_array("bad.npy", "<f4", "(2,)", f4, sizeof f4);
    refused("12 bytes of data");
    write_array("bad.npy", "<f4", "(1152921504606846975, 1152921504606846975)", f4, sizeof f4);
    refused("more elements");
    write_array("bad.npy", "<f4", "(3", f4, sizeof f4);
    refused("header");
    write_npy("bad.npy", 1, "{'descr': '<f4', 'shape': (3,)}", f4, sizeof f4);
    refused("no key 'fortran_order'");
    write_npy("bad.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}x", f4, sizeof f4);
    refused("the header has x");
    write_npy("bad.npy", 1, "{'descr': '<f4', 'descr': '<f4', 'shape': (3,)}", f4, sizeof f4);
    refused("'descr'");
}

// --- the classifier ------------------------------------------------------------------------------
enum { N = 103, FEATURES = 4, CLASSES = 3 };

// Rows that say which they are: feature 0 is the row, and the class is the row modulo 3.
static void write_set(void) {
    float x[N][FEATURES];
    int64_t y[N];
    for (int i = 0; i < N; i++) {
        y[i] = i % CLASSES;
        for (int k = 0; k < FEATURES; k++)
            x[i][k] = k == 0 ? (float)i : k == 1 + (int)y[i] ? 2.0F : 0.01F * (float)((i * 7 + k * 3) % 11);
    }
    write_array("x.npy", "<f4", "(103, 4)", x, sizeof x);
    write_array("y.npy", "<i8", "(103,)", y, sizeof y);
}

static mz_task *open_set(mezzo_model_config *model, double split) {
    const mz_task_options options = {.path = "x.npy", .labels = "y.npy", .split = split};
    mz_task *task;
    mz_model object;
    must(mezzo_model_defaults("mlp", model));
    must(mz_task_open(model, &options, &task));
    model->features = task->sizes.features;
    model->classes = task->sizes.classes;
    assert_int_equal(model->features, FEATURES);
    assert_int_equal(model->classes, CLASSES);
    must(mz_model_of(model, &object));
    must(mz_task_set_model(task, &object));
    return task;
}

// Every example is in one of the two sets, once a pass; labels stay with their rows; what fills the last batch up
// counts nothing.
TEST(a_pass_sees_every_example_once) {
    mezzo_model_config model;
    int seen[N] = {0};
    write_set();
    mz_task *task = open_set(&model, 0.8);
    for (int set = 0; set < 2; set++) {
        mz_source *s;
        uint64_t weight = 0;
        must(mz_source_open(task, (mz_set)set, MZ_ORDER_SEQUENTIAL, 8, 1, false, &s));
        for (uint64_t k = 0; k < s->batches; k++) {
            must(mz_source_draw(s, k, NULL, 0));
            const float *x = s->examples.input[0].data;
            const int32_t *y = s->examples.input[1].data;
            for (int i = 0; i < 8; i++) {
                if (y[i] < 0)
                    continue;
                int row = (int)x[i * FEATURES];
                assert_int_equal(y[i], row % CLASSES);
                seen[row]++;
            }
            weight += task->kind->weight(&s->examples);
        }
        assert_int_equal(weight, set == 0 ? 82 : 21); // int(0.8 · 103)
        mz_source_close(s);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    mz_task_close(task);
}

TEST(a_batch_is_known_by_its_number) {
    mezzo_model_config model;
    float first[8 * FEATURES];
    mz_source *a, *b;
    write_set();
    mz_task *task = open_set(&model, 0.8);
    must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, 8, 5, false, &a));
    must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, 4, 5, false, &b));
    must(mz_source_draw(a, 3, NULL, 0));
    memcpy(first, a->examples.input[0].data, sizeof first);
    must(mz_source_draw(a, 4, NULL, 0));
    assert_true(memcmp(first, a->examples.input[0].data, sizeof first) != 0);
    for (uint64_t half = 0; half < 2; half++) { // two batches of 4 are one of 8
        must(mz_source_draw(b, 6 + half, NULL, 0));
        assert_memory_equal(b->examples.input[0].data, first + half * 4 * FEATURES, sizeof first / 2);
    }
    mz_source_close(a);
    mz_source_close(b);
    mz_task_close(task);
}

static void spoil(void *user, mz_examples *examples) {
    float *x = examples->input[0].data;
    x[2 * FEATURES + 1] = *(const float *)user;
}

TEST(a_bad_batch_is_blank) {
    mezzo_model_config model;
    char fault[200];
    float bad = NAN;
    mz_source *s;
    write_set();
    mz_task *task = open_set(&model, 0.8);
    must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, 8, 5, false, &s));
    must(mz_source_draw(s, 0, fault, sizeof fault));
    assert_string_equal(fault, "");
    assert_int_equal(task->kind->weight(&s->examples), 8);
    s->spoil = spoil;
    s->spoil_user = &bad;
    must(mz_source_draw(s, 0, fault, sizeof fault));
    assert_non_null(strstr(fault, "row 2, column 1"));
    assert_int_equal(task->kind->weight(&s->examples), 0);
    mz_source_close(s);
    mz_task_close(task);
}

// --- large batches, which threads draw -----------------------------------------------------------
enum { WIDE = 3 * 4096 + 5, WIDE_N = 61, WIDE_BATCH = 32 }; // 1.5 MiB a batch

static void write_wide(void) {
    float *x = mz_alloc((size_t)WIDE_N * WIDE, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < WIDE_N * WIDE; i++)
        x[i] = (float)(i % 8191) - 4000.0F;
    write_array("wide.npy", "<f4", "(61, 12293)", x, (size_t)WIDE_N * WIDE * sizeof *x);
    mz_free(x);
}

// Only the example `other` is of the third class.
static mz_task *open_wide(int other) {
    const mz_task_options options = {.path = "wide.npy", .labels = "wide_y.npy", .split = 0.9};
    mezzo_model_config model;
    mz_task *task;
    mz_model object;
    int64_t y[WIDE_N];
    for (int i = 0; i < WIDE_N; i++)
        y[i] = i == other ? 2 : i % 2;
    write_array("wide_y.npy", "<i8", "(61,)", y, sizeof y);
    must(mezzo_model_defaults("mlp", &model));
    must(mz_task_open(&model, &options, &task));
    model.features = task->sizes.features;
    model.classes = task->sizes.classes;
    must(mz_model_of(&model, &object));
    must(mz_task_set_model(task, &object));
    return task;
}

static struct {
    int64_t at; // the element that is spoilt
    float by;
} spoilt;
static void spoil_one(void *user, mz_examples *examples) {
    (void)user;
    ((float *)examples->input[0].data)[spoilt.at] = spoilt.by;
}

TEST(threads_draw_what_one_thread_draws) {
    const int threads = omp_get_max_threads();
    char fault[200];
    mz_source *s;
    write_wide();
    mz_task *task = open_wide(-1);
    must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, WIDE_BATCH, 5, false, &s));
    unsigned char *alone = mz_alloc(s->examples.input[0].bytes, 1);
    assert_non_null(alone);
    assert_true(s->examples.input[0].bytes > 1 << 20);
    for (uint64_t k = 0; k < 20; k++)
        for (int n = 0; n < 2; n++) {
            omp_set_num_threads(n == 0 ? 1 : 7);
            memset(s->examples.input[0].data, 0xFF, s->examples.input[0].bytes);
            must(mz_source_draw(s, k, fault, sizeof fault));
            assert_string_equal(fault, "");
            assert_int_equal(task->kind->weight(&s->examples), WIDE_BATCH);
            if (n == 0)
                memcpy(alone, s->examples.input[0].data, s->examples.input[0].bytes);
            else
                assert_memory_equal(alone, s->examples.input[0].data, s->examples.input[0].bytes);
        }
    omp_set_num_threads(threads);
    mz_free(alone);
    mz_source_close(s);
    mz_task_close(task);
}

// A number that is not finite is found wherever it lies, and named.
TEST(a_bad_number_of_a_large_batch_is_named) {
    static const int64_t at[] = {0, 4095, 4096, WIDE - 1, WIDE, 2 * WIDE - 1, 17 * WIDE + 8191, WIDE_BATCH * WIDE - 1};
    static const float by[] = {NAN, INFINITY, -INFINITY};
    char fault[200], says[200];
    mz_source *s;
    write_wide();
    mz_task *task = open_wide(-1);
    must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_RANDOM, WIDE_BATCH, 5, false, &s));
    s->spoil = spoil_one;
    for (size_t i = 0; i < MZ_COUNT(at) * MZ_COUNT(by); i++) {
        spoilt.at = at[i / MZ_COUNT(by)];
        spoilt.by = by[i % MZ_COUNT(by)];
        must(mz_source_draw(s, i, fault, sizeof fault));
        snprintf(says, sizeof says, "%g in row %d, column %d:", (double)spoilt.by, (int)(spoilt.at / WIDE),
                 (int)(spoilt.at % WIDE));
        assert_non_null(strstr(fault, says));
        assert_int_equal(task->kind->weight(&s->examples), 0);
    }
    mz_source_close(s);
    mz_task_close(task);
}

// The threads that write a batch look at it: the one target that the model has not is found in whichever row it is.
TEST(a_bad_target_of_a_large_batch_is_named) {
    char fault[200], says[200];
    int all = 0;
    write_wide();
    for (int row = 0; row < WIDE_N; row++) {
        mz_source *s;
        mz_task *task = open_wide(row);
        task->wants.classes = 2; // all labels are checked when the model is set
        must(mz_source_open(task, MZ_SET_TRAIN, MZ_ORDER_SEQUENTIAL, WIDE_BATCH, 5, false, &s));
        for (uint64_t k = 0; k < s->batches; k++) {
            int other = -1;
            must(mz_source_draw(s, k, NULL, 0));
            for (int i = 0; i < WIDE_BATCH; i++)
                if (((const int32_t *)s->examples.input[1].data)[i] == 2)
                    other = i;
            must(mz_source_draw(s, k, fault, sizeof fault));
            snprintf(says, sizeof says, "target 2 in row %d:", other);
            assert_true(other < 0 ? fault[0] == '\0' : strncmp(fault, says, strlen(says)) == 0);
            all += other >= 0;
        }
        mz_source_close(s);
        mz_task_close(task);
    }
    assert_int_equal(all, 54); // int(0.9 * 61): the others validate
}

static void set_is_refused(const char *says) {
    const mz_task_options options = {.path = "x.npy", .labels = "y.npy", .split = 0.9};
    mz_task *task;
    mezzo_status status = mz_task_open(&(mezzo_model_config){.name = "mlp"}, &options, &task);
    if (status != MEZZO_ERR_INVALID || strstr(mezzo_error_message(), says) == NULL)
        fail_msg("%s \"%s\", expected \"%s\"", mezzo_status_name(status), mezzo_error_message(), says);
}

TEST(sets_that_make_no_sense_are_refused) {
    static const float x[] = {1, 2, 3, INFINITY};
    static const int32_t y[] = {0, -3};
    static const float real[] = {0, 1};
    write_array("x.npy", "<f4", "(3,)", x, 12);
    write_array("y.npy", "<i4", "(2,)", y, sizeof y);
    set_is_refused("[examples, features]");
    write_array("x.npy", "<f4", "(2, 2)", x, sizeof x);
    set_is_refused("row 1, column 1 is inf");
    write_array("x.npy", "<f4", "(1, 3)", x, 12);
    set_is_refused("1 rows");
    write_array("x.npy", "<f4", "(2, 1)", x, 8);
    set_is_refused("label -3 in row 1");
    write_array("y.npy", "<f4", "(2,)", real, sizeof real);
    set_is_refused("classes are integers");
}

// --- runs ----------------------------------------------------------------------------------------
static const char *const toy[] = {"--model=toy", "--data=",       "--steps=60",   "--batch-size=16",
                                  "--lr=1e-2",   "--log-every=1", "--eval-final", "--layers=0",
                                  "--heads=0",   "--d-model=0",   "--seq-len=0",  NULL};

TEST(the_toy_model_learns) {
    mezzo_train_result r;
    mezzo_eval_result e;
    tiny_log log = {0};
    tiny_clean("toy");
    must(tiny_run("toy", toy, &log, &r));
    assert_true(log.loss[1] > 0.9 && r.val_loss < 0.8 && r.val_accuracy > 0.6); // a guess is right once in three
    assert_string_equal(r.unit, "examples");
    must(mezzo_run_eval(&(mezzo_eval_options){.path = "toy"}, NULL, &e));
    assert_true(e.loss == r.val_loss && e.accuracy == r.val_accuracy && isnan(e.perplexity));
    assert_int_equal(e.tokens, 410); // 4,096 less int(0.9 · 4,096)
    mezzo_status status = mezzo_run_sample(&(mezzo_sample_options){.path = "toy"}, NULL, NULL, NULL);
    must_fail(status, MEZZO_ERR_INVALID, "no samples");
}

TEST(a_classifier_resumes_to_the_bit) {
    mezzo_train_result r;
    tiny_log log = {0};
    const char *whole[] = {"--model=mlp", "--data=x.npy", "--labels=y.npy", "--steps=20",    "--layers=1",
                           "--heads=0",   "--d-model=16", "--seq-len=0",    "--dropout=0.2", "--batch-size=7",
                           NULL};
    const char *half[MZ_COUNT(whole) + 1], *rest[MZ_COUNT(whole) + 1];
    memcpy(half, whole, sizeof whole);
    memcpy(rest, whole, sizeof whole);
    half[3] = "--steps=9";
    rest[MZ_COUNT(whole) - 1] = "--resume=auto";
    half[MZ_COUNT(whole)] = rest[MZ_COUNT(whole)] = NULL;
    write_set();
    tiny_clean("whole");
    tiny_clean("parts");
    must(tiny_run("whole", whole, &log, &r));
    must(tiny_run("parts", half, &log, &r));
    must(tiny_run("parts", rest, &log, &r));
    tiny_same("whole/checkpoints/step-00000020", "parts/checkpoints/step-00000020");
    mezzo_eval_result e;
    must(mezzo_run_eval(&(mezzo_eval_options){.path = "whole", .data = "x.npy", .labels = "y.npy"}, NULL, &e));
    assert_int_equal(e.tokens, N);
    write_array("y.npy", "<i8", "(1,)", (const int64_t[]){0}, 8);
    assert_int_equal(
        mezzo_run_eval(&(mezzo_eval_options){.path = "whole", .data = "x.npy", .labels = "y.npy"}, NULL, &e),
        MEZZO_ERR_INVALID);
}

TEST(data_that_does_not_fit_the_model_is_refused) {
    mezzo_train_result r;
    tiny_log log = {0};
    const char *wide[] = {"--model=toy", "--data=x.npy", "--labels=y.npy", "--layers=0",
                          "--heads=0",   "--d-model=0",  "--seq-len=0",    NULL};
    const char *few[] = {"--model=mlp", "--data=x.npy", "--labels=y.npy", "--classes=2", "--heads=0", "--seq-len=0",
                         NULL};
    const char *text[] = {"--labels=y.npy", NULL};
    write_set();
    tiny_clean("none");
    must_fail(tiny_run("none", wide, &log, &r), MEZZO_ERR_INVALID, "4 features, but toy takes 5");
    must_fail(tiny_run("none", few, &log, &r), MEZZO_ERR_INVALID, "label 2 in row 2");
    must_fail(tiny_run("none", text, &log, &r), MEZZO_ERR_INVALID, "data.labels");
}
