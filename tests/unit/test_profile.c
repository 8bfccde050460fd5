// A profile of a run: the trace is what Perfetto and Chrome read, calls are counted as by hand, and training is the
// same to the bit.
#include <jansson.h>

#include "tiny_run.h"

enum { STEPS = 2, FIRST = 4, MOST = 4096 };

typedef struct bar {
    double start, end;
    int process, stream;
} bar;

static json_t *load(const char *path) {
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return root;
}

static double number(const json_t *event, const char *key) {
    const json_t *value = json_object_get(event, key);
    if (!json_is_number(value))
        fail_msg("an event without %s", key);
    return json_number_value(value);
}

static const char *word(const json_t *event, const char *key) {
    const json_t *value = json_object_get(event, key);
    if (!json_is_string(value))
        fail_msg("an event without %s", key);
    return json_string_value(value);
}

// Bars of one lane lie beside each other or inside each other. Times are written to a nanosecond.
static void check_nesting(const bar *bars, size_t n) {
    const double slack = 0.0015;
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++) {
            const bar *a = &bars[i], *b = &bars[k];
            bool apart = a->end <= b->start + slack || b->end <= a->start + slack;
            bool inside = (a->start <= b->start + slack && b->end <= a->end + slack) ||
                          (b->start <= a->start + slack && a->end <= b->end + slack);
            if (a->process == b->process && a->stream == b->stream && !apart && !inside)
                fail_msg("bars [%g, %g] and [%g, %g] of one lane cross", a->start, a->end, b->start, b->end);
            if (a->process == 1 && b->process == 1 && a->stream == b->stream && !apart)
                fail_msg("two calls run at once on one lane");
        }
}

// The MLP's first product: 3 × 8 rows of 16 numbers, 64 outputs, FP32, with a bias; and what GELU needs kept.
static void check_product(const json_t *args) {
    assert_true(number(args, "flops") == 2.0 * 3 * 8 * 16 * 64);
    double least = 4.0 * (3 * 8 * 16 + 64 * 16 + 64 + 3 * 8 * 64), kept = 4.0 * 3 * 8 * 64;
    assert_true(number(args, "bytes") == least || number(args, "bytes") == least + kept);
    assert_true(number(args, "floor_us") > 0 && number(args, "share_of_peak") > 0);
    assert_non_null(strstr(word(args, "tensors"), "x [3, 8, 16] fp32"));
}

static void check_event(const json_t *event, bar *bars, size_t *n, int *products, int *steps, int *named) {
    const char *phase = word(event, "ph");
    int process = (int)number(event, "pid");
    if (strcmp(phase, "M") == 0) {
        assert_true(json_is_string(json_object_get(json_object_get(event, "args"), "name")));
        *named |= process;
        return;
    }
    assert_string_equal(phase, "X"); // complete events: begin and end in one
    const json_t *args = json_object_get(event, "args");
    bar b = {number(event, "ts"), number(event, "ts") + number(event, "dur"), process, (int)number(event, "tid")};
    assert_true(b.start >= 0 && b.end >= b.start);
    assert_true(*n < MOST);
    bars[(*n)++] = b;
    *steps += strcmp(word(event, "name"), "step") == 0;
    assert_true(number(args, "step") >= FIRST && number(args, "step") < FIRST + STEPS);
    if (process == 2)
        return;
    if (strcmp(word(event, "name"), "linear") == 0 && strcmp(word(args, "module"), "h.1.mlp.c_fc") == 0 &&
        strcmp(word(event, "cat"), "forward") == 0) {
        check_product(args);
        ++*products;
    }
}

TEST(test_trace) {
    tiny_log log = {0}, plain = {0};
    mezzo_train_result result;
    tiny_clean("with");
    tiny_clean("without");
    must(tiny_run("with", (const char *const[]){"--steps=8", "--profile=2", "--checkpoint-every=4", NULL}, &log,
                  &result));
    must(tiny_run("without", (const char *const[]){"--steps=8", "--checkpoint-every=4", NULL}, &plain, &result));
    for (int s = 1; s <= 8; s++)
        assert_true(log.loss[s] == plain.loss[s]);
    tiny_same("with/checkpoints/step-00000008", "without/checkpoints/step-00000008");
    assert_false(mz_path_exists("without/profile"));
    json_t *root = load("with/profile/trace.json");
    const json_t *events = json_object_get(root, "traceEvents");
    static bar bars[MOST];
    size_t n = 0, i;
    int products = 0, steps = 0, named = 0;
    const json_t *event;
    json_array_foreach(events, i, event) check_event(event, bars, &n, &products, &steps, &named);
    assert_int_equal(products, STEPS);
    assert_int_equal(steps, STEPS);
    assert_int_equal(named, 3); // both processes have names
    check_nesting(bars, n);
    json_decref(root);
}

// Every call of a step is in the table: its times add up to those of the trace.
TEST(test_table) {
    json_t *root = load("with/profile/trace.json");
    double in_trace = 0, in_table = 0;
    size_t i;
    const json_t *event;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
        if (strcmp(word(event, "ph"), "X") == 0 && number(event, "pid") == 1)
            in_trace += number(event, "dur") * 1e-3;
    }
    json_decref(root);
    FILE *csv = fopen("with/profile/ops.csv", "r");
    char line[2048];
    assert_non_null(csv);
    assert_non_null(fgets(line, sizeof line, csv)); // the titles
    while (fgets(line, sizeof line, csv) != NULL) {
        double calls, ms;
        char *behind = strstr(line, "\","); // the tensors are in quotes
        assert_non_null(behind);
        assert_int_equal(sscanf(behind + 2, "%lf,%lf", &calls, &ms), 2);
        in_table += ms * STEPS;
    }
    fclose(csv);
    assert_true(fabs(in_trace - in_table) < 1e-3 * in_trace);
}

TEST(test_too_short) {
    tiny_log log = {0};
    mezzo_train_result result;
    tiny_clean("short");
    must_fail(tiny_run("short", (const char *const[]){"--steps=4", "--profile=2", NULL}, &log, &result),
              MEZZO_ERR_INVALID, "train.profile");
}

TEST_GROUP(tiny_setup, NULL)
