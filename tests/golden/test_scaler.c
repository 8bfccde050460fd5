// The grad scaler against torch.amp.GradScaler, call by call: scale, growth tracker, gradients, parameters, whether the
// optimizer really stepped, and which calls are refused. Where Mezzo departs on purpose the trace says so
// (docs/dev/GOLDEN.md).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden_model.h"

enum { MAX_OPTIMIZERS = 2, PARAMS_EACH = 2, MAX_ELEMENTS = 8 };

typedef struct replay {
    const json_t *row;
    const char *name;
    int n_optimizers;
    bool grows_past;  // Mezzo's rule for growth: events have values of their own
    double tolerance; // relative; 0 where all numbers are small multiples of powers of two
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_optimizer *optimizers[MAX_OPTIMIZERS];
    mezzo_scaler *scaler;
    int64_t steps[MAX_OPTIMIZERS]; // taken so far
} replay;

static const char *text(const json_t *object, const char *key) {
    const char *s = json_string_value(json_object_get(object, key));
    assert_non_null(s);
    return s;
}
static int param(const replay *r, int optimizer, int index) {
    char name[32];
    snprintf(name, sizeof name, "o%d.p%d", optimizer, index);
    int found = mezzo_params_find(r->params, name);
    assert_true(found >= 0);
    return found;
}
static int read_list(const json_t *list, float *out) {
    int n = (int)json_array_size(list);
    assert_in_range(n, 0, MAX_ELEMENTS);
    for (int i = 0; i < n; ++i)
        out[i] = (float)golden_real(json_array_get(list, (size_t)i));
    return n;
}
static bool power_of_two(double x) {
    int exponent;
    return frexp(x, &exponent) == 0.5;
}

static mezzo_scaler_options scaler_options(const json_t *settings) {
    mezzo_scaler_options o = mezzo_scaler_defaults();
    o.enabled = !json_is_false(json_object_get(settings, "enabled"));
    o.init_scale = golden_number(settings, "init_scale");
    o.growth_factor = golden_number(settings, "growth_factor");
    o.backoff_factor = golden_number(settings, "backoff_factor");
    o.growth_interval = (int64_t)golden_number(settings, "growth_interval");
    return o;
}

static void replay_open(replay *r, const json_t *row, mezzo_device *device) {
    *r = (replay){.row = row, .name = text(row, "name")};
    const json_t *settings = json_object_get(row, "settings"), *start = json_object_get(row, "params");
    const char *mezzo = json_string_value(json_object_get(row, "mezzo"));
    r->grows_past = mezzo != NULL && strncmp(mezzo, "grows", 5) == 0;
    // Unscaling multiplies by a rounded 1/scale and clipping by a rounded factor: a few roundings for every step so
    // far.
    bool exact = power_of_two(golden_number(settings, "init_scale")) &&
                 power_of_two(golden_number(settings, "growth_factor")) &&
                 power_of_two(golden_number(settings, "backoff_factor")) && strstr(r->name, "clip") == NULL;
    r->tolerance = exact ? 0 : 4 * UNIT_F32 * (double)json_array_size(json_object_get(row, "events"));
    r->n_optimizers = (int)json_array_size(start);
    assert_in_range(r->n_optimizers, 1, MAX_OPTIMIZERS);
    must(mezzo_graph_create(&r->graph));
    for (int o = 0; o < r->n_optimizers; ++o)
        for (int p = 0; p < PARAMS_EACH; ++p) {
            char name[32];
            float values[MAX_ELEMENTS];
            snprintf(name, sizeof name, "o%d.p%d", o, p);
            int64_t n = read_list(json_array_get(json_array_get(start, (size_t)o), (size_t)p), values);
            mezzo_param(r->graph, name, (mezzo_init){.kind = MEZZO_INIT_ZERO}, 1, &n);
        }
    must(mezzo_graph_status(r->graph));
    must(mezzo_params_create(device, r->graph, 1, &r->params));
    mezzo_scaler_options options = scaler_options(settings);
    must(mezzo_scaler_create(device, &options, &r->scaler));
    for (int o = 0; o < r->n_optimizers; ++o) {
        char pattern[32];
        snprintf(pattern, sizeof pattern, "o%d.*", o);
        const char *patterns[] = {pattern};
        mezzo_optimizer_options sgd = mezzo_optimizer_defaults();
        sgd.kind = MEZZO_SGD;
        sgd.schedule = (mezzo_schedule){.kind = MEZZO_LR_CONSTANT, .lr = 1};
        sgd.momentum = sgd.weight_decay = 0;
        sgd.patterns = patterns;
        sgd.n_patterns = 1;
        must(mezzo_optimizer_create(r->params, &sgd, &r->optimizers[o]));
        for (int p = 0; p < PARAMS_EACH; ++p) {
            float values[MAX_ELEMENTS];
            read_list(json_array_get(json_array_get(start, (size_t)o), (size_t)p), values);
            must(mezzo_params_write(r->params, param(r, o, p), values));
        }
    }
}

static void replay_close(replay *r) {
    for (int o = 0; o < r->n_optimizers; ++o)
        mezzo_optimizer_free(r->optimizers[o]);
    mezzo_scaler_free(r->scaler);
    mezzo_params_free(r->params);
    mezzo_graph_free(r->graph);
}

// --- one call ------------------------------------------------------------------------------------------------------
// The trace's gradients are scaled by PyTorch's scale; where Mezzo's differs by then, by Mezzo's.
static void set_grads(replay *r, const json_t *event, int optimizer) {
    mezzo_scaler_state state;
    must(mezzo_scaler_get_state(r->scaler, &state));
    float factor = r->grows_past ? (float)(state.scale / golden_number(event, "scale")) : 1;
    must(mezzo_optimizer_zero_grad(r->optimizers[optimizer]));
    const json_t *grads = json_object_get(event, "grads");
    for (int p = 0; p < PARAMS_EACH; ++p) {
        float values[MAX_ELEMENTS];
        const json_t *list = json_array_get(grads, (size_t)p);
        if (json_is_null(list))
            continue;
        int n = read_list(list, values);
        for (int i = 0; i < n; ++i)
            values[i] *= factor;
        must(mezzo_params_write_grad(r->params, param(r, optimizer, p), values));
    }
}

static mezzo_status load_state(replay *r, const json_t *s) {
    mezzo_scaler_state state;
    must(mezzo_scaler_get_state(r->scaler, &state));
    state.scale = golden_number(s, "scale");
    state.growth_factor = golden_number(s, "growth_factor");
    state.backoff_factor = golden_number(s, "backoff_factor");
    state.growth_interval = (int64_t)golden_number(s, "growth_interval");
    state.growth_tracker = (int64_t)golden_number(s, "_growth_tracker");
    return mezzo_scaler_set_state(r->scaler, &state);
}

static mezzo_status call(replay *r, const json_t *event, int optimizer) {
    const char *op = text(event, "op");
    if (strcmp(op, "set_grads") == 0 || strcmp(op, "add_grads") == 0)
        set_grads(r, event, optimizer); // add_grads: the event holds the sum
    else if (strcmp(op, "unscale") == 0)
        return mezzo_scaler_unscale(r->scaler, r->optimizers[optimizer]);
    else if (strcmp(op, "clip") == 0)
        return mezzo_optimizer_clip(r->optimizers[optimizer], golden_number(event, "max_norm"));
    else if (strcmp(op, "step") == 0)
        return mezzo_scaler_step(r->scaler, r->optimizers[optimizer]);
    else if (strcmp(op, "update") == 0)
        return json_object_get(event, "new_scale") != NULL
                   ? mezzo_scaler_set_scale(r->scaler, golden_number(event, "new_scale"))
                   : mezzo_scaler_update(r->scaler);
    else if (strcmp(op, "load_state_dict") == 0)
        return load_state(r, json_object_get(event, "state"));
    else
        assert_true(strcmp(op, "scale") == 0 || strcmp(op, "state_dict") == 0);
    return MEZZO_OK;
}

// --- what must hold after it ---------------------------------------------------------------------------------------
static void wrong(const replay *r, size_t event, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void wrong(const replay *r, size_t event, const char *fmt, ...) {
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    fail_msg("%s, event %zu: %s", r->name, event, what);
}

static void same_numbers(const replay *r, size_t i, const char *what, const float *got, const json_t *list) {
    float want[MAX_ELEMENTS];
    int n = read_list(list, want);
    for (int k = 0; k < n; ++k) {
        bool same = isfinite(want[k])
                        ? fabs((double)got[k] - (double)want[k]) <= r->tolerance * fmax(1, fabs((double)want[k]))
                        : !isfinite(got[k]);
        if (!same)
            wrong(r, i, "%s[%d] is %.9g, %.9g in torch", what, k, (double)got[k], (double)want[k]);
    }
}

static void check_scale(const replay *r, size_t i, const json_t *event, double torch_lag) {
    mezzo_scaler_state s;
    must(mezzo_scaler_get_state(r->scaler, &s));
    const char *scale_key = "scale", *tracker_key = "tracker";
    if (r->grows_past && json_object_get(event, "mezzo_scale") != NULL) {
        scale_key = "mezzo_scale";
        tracker_key = "mezzo_tracker";
    } else if (r->grows_past && torch_lag != 0) {
        return; // between updates Mezzo's scale is that of its last update
    }
    double scale = golden_number(event, scale_key), tracker = golden_number(event, tracker_key);
    if (fabs(s.scale - scale) > r->tolerance * scale)
        wrong(r, i, "scale %.9g, want %.9g", s.scale, scale);
    if ((double)s.growth_tracker != tracker)
        wrong(r, i, "growth tracker %lld, want %g", (long long)s.growth_tracker, tracker);
}

static void check_step(replay *r, size_t i, const json_t *event, int optimizer) {
    mezzo_step_info info;
    must(mezzo_optimizer_info(r->optimizers[optimizer], &info));
    bool stepped = info.step > r->steps[optimizer];
    r->steps[optimizer] = info.step;
    if (stepped != json_is_true(json_object_get(event, "stepped")))
        wrong(r, i, "%s", stepped ? "stepped; torch did not" : "did not step; torch did");
    for (int p = 0; p < PARAMS_EACH; ++p) {
        float got[MAX_ELEMENTS];
        must(mezzo_params_read(r->params, param(r, optimizer, p), got));
        same_numbers(r, i, "parameter", got, json_array_get(json_object_get(event, "params"), (size_t)p));
    }
}

static void check_grads(const replay *r, size_t i, const json_t *event, int optimizer) {
    for (int p = 0; p < PARAMS_EACH; ++p) {
        float got[MAX_ELEMENTS];
        const json_t *list = json_array_get(json_object_get(event, "grads"), (size_t)p);
        if (json_is_null(list))
            continue;
        must(mezzo_params_read_grad(r->params, param(r, optimizer, p), got));
        same_numbers(r, i, "gradient", got, list);
    }
}

// The same refusal, and for those about the order of calls the same words.
static void check_error(const replay *r, size_t i, const json_t *event, mezzo_status status) {
    const json_t *error = json_object_get(event, "error");
    if ((error != NULL) != (status != MEZZO_OK))
        wrong(r, i, "%s: %s", text(event, "op"), error != NULL ? "torch raises" : mezzo_error_message());
    if (error == NULL)
        return;
    assert_int_equal(status, MEZZO_ERR_INVALID);
    if (strncmp(json_string_value(error), "No inf checks", 13) == 0)
        return; // worded for a C caller
    char start[24];
    snprintf(start, sizeof start, "%s", json_string_value(error));
    if (strstr(mezzo_error_message(), start) == NULL)
        wrong(r, i, "the message is \"%s\"; torch's begins \"%s\"", mezzo_error_message(), start);
}

static void play(const json_t *row, mezzo_device *device) {
    replay r;
    replay_open(&r, row, device);
    const json_t *event;
    size_t i;
    double lag = 0;
    json_array_foreach(json_object_get(row, "events"), i, event) {
        const char *op = text(event, "op");
        const json_t *index = json_object_get(event, "optimizer");
        int optimizer = index != NULL ? (int)json_integer_value(index) : 0;
        mezzo_status status = call(&r, event, optimizer);
        check_error(&r, i, event, status);
        if (json_object_get(event, "mezzo_scale") != NULL)
            lag = 1;
        check_scale(&r, i, event, lag);
        if (strcmp(op, "step") == 0)
            check_step(&r, i, event, optimizer);
        if (strcmp(op, "unscale") == 0)
            check_grads(&r, i, event, optimizer);
    }
    assert_true(i > 0);
    replay_close(&r);
}

// --- random sequences: events as above, with scale, tracker and parameters only where they changed ----------------
static void fill_in(json_t *event, const char *key, json_t **last) {
    json_t *here = json_object_get(event, key);
    if (here != NULL)
        *last = here;
    else if (*last != NULL)
        json_object_set(event, key, *last);
}

static void complete(json_t *row) {
    json_t *settings = json_object_get(row, "settings"), *event, *params[MAX_OPTIMIZERS] = {NULL};
    bool enabled = json_is_true(json_object_get(settings, "enabled"));
    json_t *one = json_real(1), *zero = json_integer(0);
    json_t *scale = enabled ? json_object_get(settings, "init_scale") : one, *tracker = zero;
    for (size_t o = 0; o < json_array_size(json_object_get(row, "params")); ++o)
        params[o] = json_array_get(json_object_get(row, "params"), o);
    size_t i;
    json_array_foreach(json_object_get(row, "events"), i, event) {
        fill_in(event, "scale", &scale);
        fill_in(event, "tracker", &tracker);
        if (strcmp(text(event, "op"), "step") == 0)
            fill_in(event, "params", &params[json_integer_value(json_object_get(event, "optimizer"))]);
    }
    json_decref(one);
    json_decref(zero);
}

// The call at which Mezzo departs does what docs/dev/GOLDEN.md says, and the sequence ends.
static void check_departure(replay *r, size_t i, const json_t *event, int optimizer, mezzo_status status) {
    const char *mezzo = text(event, "mezzo");
    mezzo_scaler_state s;
    mezzo_step_info info;
    must(mezzo_scaler_get_state(r->scaler, &s));
    must(mezzo_optimizer_info(r->optimizers[optimizer], &info));
    double scale = golden_number(event, "scale");
    bool as_said = (strcmp(mezzo, "skips") == 0 && status == MEZZO_OK && info.step == r->steps[optimizer]) ||
                   (strcmp(mezzo, "refused") == 0 && status == MEZZO_ERR_INVALID) ||
                   (strcmp(mezzo, "accepted") == 0 && status == MEZZO_OK) ||
                   (strcmp(mezzo, "backs off") == 0 && status == MEZZO_OK && s.scale < scale) ||
                   (strcmp(mezzo, "grows") == 0 && status == MEZZO_OK && s.scale >= scale && s.growth_tracker == 0);
    if (!as_said)
        wrong(r, i, "%s is not \"%s\": %s, scale %g after %g", text(event, "op"), mezzo, mezzo_status_name(status),
              s.scale, scale);
}

static void play_random(json_t *row, mezzo_device *device) {
    replay r;
    complete(row);
    replay_open(&r, row, device);
    const json_t *event;
    size_t i;
    json_array_foreach(json_object_get(row, "events"), i, event) {
        int optimizer = (int)json_integer_value(json_object_get(event, "optimizer"));
        mezzo_status status = call(&r, event, optimizer);
        if (json_object_get(event, "mezzo") != NULL) {
            check_departure(&r, i, event, optimizer, status);
            break;
        }
        check_error(&r, i, event, status);
        check_scale(&r, i, event, 0);
        if (strcmp(text(event, "op"), "step") == 0)
            check_step(&r, i, event, optimizer);
        if (strcmp(text(event, "op"), "unscale") == 0)
            check_grads(&r, i, event, optimizer);
    }
    replay_close(&r);
}

TEST(random_sequences) {
    mezzo_device *device = NULL;
    must(mezzo_device_open(test_device(), 2, &device));
    json_t *root = golden_json("scaler_random.json"), *row;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, row) play_random(row, device);
    assert_true(i >= 200);
    print_message("%zu random sequences\n", i);
    json_decref(root);
    mezzo_device_close(device);
}

TEST(every_trace_call_by_call) {
    mezzo_device *device = NULL;
    must(mezzo_device_open(test_device(), 2, &device));
    json_t *root = golden_json("scaler.json"), *row;
    size_t i;
    int played = 0;
    json_array_foreach(json_object_get(root, "cases"), i, row) {
        const char *mezzo = text(row, "mezzo");
        if (strcmp(mezzo, "same") != 0 && strncmp(mezzo, "grows", 5) != 0)
            continue; // the tests below
        play(row, device);
        ++played;
    }
    assert_true(played >= 30);
    json_decref(root);
    mezzo_device_close(device);
}

static const json_t *case_named(const json_t *root, const char *name) {
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, row) {
        if (strcmp(text(row, "name"), name) == 0)
            return row;
    }
    fail_msg("no case %s", name);
    return NULL;
}

// PyTorch's scale falls to zero (the trace ends there), after which no step can ever be taken. With a floor it stays,
// and after `floor_patience` skips at the floor update says that training cannot go on.
TEST(a_floor_holds_and_then_reports) {
    json_t *root = golden_json("scaler.json");
    const json_t *events = json_object_get(case_named(root, "no_floor"), "events");
    assert_true(golden_number(json_array_get(events, json_array_size(events) - 1), "scale") == 0);
    json_decref(root);

    mezzo_device *device = NULL;
    mezzo_graph *graph = NULL;
    mezzo_params *params = NULL;
    mezzo_optimizer *optimizer = NULL;
    mezzo_scaler *scaler = NULL;
    must(mezzo_device_open(test_device(), 1, &device));
    must(mezzo_graph_create(&graph));
    mezzo_param(graph, "p", (mezzo_init){.kind = MEZZO_INIT_ZERO}, 1, (int64_t[]){2});
    must(mezzo_params_create(device, graph, 1, &params));
    mezzo_optimizer_options sgd = mezzo_optimizer_defaults();
    must(mezzo_optimizer_create(params, &sgd, &optimizer));
    mezzo_scaler_options o = mezzo_scaler_defaults();
    o.init_scale = 4;
    o.min_scale = 1;
    o.floor_patience = 3;
    must(mezzo_scaler_create(device, &o, &scaler));
    mezzo_status status = MEZZO_OK;
    int updates = 0;
    while (status == MEZZO_OK && updates < 20) {
        must(mezzo_params_write_grad(params, 0, (float[]){INFINITY, 1}));
        must(mezzo_scaler_step(scaler, optimizer));
        status = mezzo_scaler_update(scaler);
        mezzo_scaler_state s;
        must(mezzo_scaler_get_state(scaler, &s));
        assert_true(s.scale >= 1);
        ++updates;
    }
    assert_int_equal(status, MEZZO_ERR_NUMERIC);
    assert_in_range(updates, 4, 8); // two backoffs, three skips at the floor, seen at most one update late
    mezzo_scaler_free(scaler);
    mezzo_optimizer_free(optimizer);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    mezzo_device_close(device);
}

// A scaler that is off scales nothing, and PyTorch then steps into the infinity; Mezzo's check of gradients stays.
TEST(a_disabled_scaler_still_skips_an_infinity) {
    json_t *root = golden_json("scaler.json");
    mezzo_device *device = NULL;
    must(mezzo_device_open(test_device(), 1, &device));
    replay r;
    replay_open(&r, case_named(root, "disabled_infinity"), device);
    const json_t *events = json_object_get(r.row, "events"), *event;
    size_t i;
    json_array_foreach(events, i, event) {
        must(call(&r, event, 0));
    }
    mezzo_step_info info;
    must(mezzo_optimizer_info(r.optimizers[0], &info));
    assert_int_equal(info.step, 0);
    assert_int_equal(info.skipped, 1);
    mezzo_scaler_state s;
    must(mezzo_scaler_get_state(r.scaler, &s));
    assert_true(s.scale == 1);
    replay_close(&r);
    mezzo_device_close(device);
    json_decref(root);
}

// --- the toy model: scale 128, interval 1, an infinity in one element of one gradient at the third of four iterations
// -------
static void train_toy(golden_model *m, const json_t *toy, bool scaled, double *scales) {
    golden_model_restart(m);
    mezzo_optimizer_options sgd = mezzo_optimizer_defaults();
    sgd.kind = MEZZO_SGD;
    sgd.schedule = (mezzo_schedule){.kind = MEZZO_LR_CONSTANT, .lr = golden_number(toy, "lr")};
    sgd.momentum = sgd.weight_decay = 0;
    mezzo_optimizer *optimizer = NULL;
    mezzo_scaler *scaler = NULL;
    must(mezzo_optimizer_create(m->params, &sgd, &optimizer));
    mezzo_scaler_options o = mezzo_scaler_defaults();
    o.init_scale = golden_number(toy, "init_scale");
    o.growth_interval = (int64_t)golden_number(toy, "growth_interval");
    must(mezzo_scaler_create(m->device, &o, &scaler));
    int bad = mezzo_params_find(m->params, text(toy, "infinity_in"));
    size_t infinity_at = (size_t)golden_number(toy, "infinity_at");
    for (size_t i = 0; i < (size_t)golden_number(toy, "iterations"); ++i) {
        must(mezzo_optimizer_zero_grad(optimizer));
        golden_toy_batch(m, i);
        must(mezzo_program_run(m->program, scaled ? scaler : NULL, 1, i));
        if (i == infinity_at) {
            if (!scaled)
                continue;
            float *grad = golden_param(m, bad, true);
            grad[(size_t)golden_number(toy, "infinity_element")] = INFINITY;
            must(mezzo_params_write_grad(m->params, bad, grad));
            free(grad);
        }
        if (!scaled) {
            must(mezzo_optimizer_step(optimizer));
            continue;
        }
        must(mezzo_scaler_step(scaler, optimizer));
        must(mezzo_scaler_update(scaler));
        mezzo_scaler_state s;
        must(mezzo_scaler_get_state(scaler, &s));
        scales[i] = s.scale;
    }
    mezzo_scaler_free(scaler);
    mezzo_optimizer_free(optimizer);
}

TEST(an_infinity_in_one_gradient_of_many) {
    json_t *root = golden_json("scaler.json"), *toy = json_object_get(root, "toy");
    golden_model m;
    golden_toy_open(&m, test_device(), MEZZO_PRECISION_FP32);
    double scales[8] = {0};
    float *control[8];
    train_toy(&m, toy, false, NULL);
    int n = mezzo_params_count(m.params);
    assert_in_range(n, 1, 8);
    for (int p = 0; p < n; ++p)
        control[p] = golden_param(&m, p, false);
    train_toy(&m, toy, true, scales);
    const json_t *want_scales = json_object_get(toy, "scales");
    for (size_t i = 0; i < json_array_size(want_scales); ++i)
        assert_true(scales[i] == golden_real(json_array_get(want_scales, i)));
    for (int p = 0; p < n; ++p) {
        // Scales are powers of two and nothing underflows: bit for bit the run that never scaled and left the third
        // step out.
        float *scaled = golden_param(&m, p, false);
        assert_memory_equal(scaled, control[p], golden_param_count(&m, p) * sizeof *scaled);
        // And PyTorch's parameters: test_sgd.c's bound for three steps of the FP32 gradient (28 terms walked three
        // times), against PyTorch's FP32 run, which is off as much.
        const json_t *list = json_object_get(json_object_get(toy, "params"), mezzo_params_name(m.params, p));
        assert_int_equal(json_array_size(list), golden_param_count(&m, p));
        for (size_t i = 0; i < json_array_size(list); ++i)
            assert_true(fabs((double)scaled[i] - golden_real(json_array_get(list, i))) <=
                        2 * 0.1 * 3 * 2 * 3 * 28 * UNIT_F32);
        free(scaled);
        free(control[p]);
    }
    golden_model_close(&m);
    json_decref(root);
}
