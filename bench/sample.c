// bench/sample: how long a token takes that is drawn with a cache of keys and values, beside the memory that its
// weights are read from, one CSV row a precision.
//
//   bench_sample [--device cpu] [--model gpt2-124M] [--threads N] [--tokens N] [--commit S] [--no-header] PRECISION...
//
// A token reads every weight once, but for the table of positions: `weights_mib`, in the precision of the products.
// `bandwidth` is what the same threads read of as many bytes, the fastest of ten passes each of three ways to read;
// `share` is the time of that over the median token's. Weights are random, the temperature is 0.8, and the first token
// is not counted.
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "mezzo/model.h"
#include "task/sampler.h"

enum { MOST_TOKENS = 1000, PASSES = 10 };

typedef struct setup {
    const char *device, *model, *commit;
    int threads, tokens;
} setup;

typedef struct times {
    double at[MOST_TOKENS + 1];
    int n;
} times;

static void on_text(void *user, int index, const char *text, size_t bytes) {
    times *t = user;
    (void)index, (void)text, (void)bytes;
    if (t->n <= MOST_TOKENS)
        t->at[t->n++] = mz_seconds();
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// How the yardstick reads: as it is, with a prefetch to L1, or with one to L2. Which is the fastest depends on the core
// and on how many of them read.
enum { WAYS = 3, AHEAD_L1 = 4096, AHEAD_L2 = 8192 };

static uint64_t sum_words(const uint64_t *data, size_t n, int way) {
    uint64_t lane[8] = {0}, sum = 0;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        if (way == 1)
            __builtin_prefetch((const char *)(data + i) + AHEAD_L1);
        else if (way == 2)
            __builtin_prefetch((const char *)(data + i) + AHEAD_L2, 0, 2);
        for (int k = 0; k < 8; k++)
            lane[k] += data[i + (size_t)k];
    }
    for (int k = 0; k < 8; k++)
        sum += lane[k];
    return sum;
}

// Bytes a second of the fastest pass over `bytes` of memory, each thread over its part, of all ways.
static double bandwidth(size_t bytes, int threads) {
    const size_t part = bytes / sizeof(uint64_t) / (size_t)threads / 8 * 8, n = part * (size_t)threads;
    uint64_t *data = mz_alloc(n, sizeof *data), kept = 0; // in huge pages, as weights lie
    double best = INFINITY;
    if (data == NULL)
        return NAN;
    for (int pass = -1; pass < PASSES * WAYS; pass++) {
        uint64_t sum = 0;
        const double start = mz_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
        {
            uint64_t *mine = data + part * (size_t)omp_get_thread_num();
            if (pass < 0)
                for (size_t i = 0; i < part; i++)
                    mine[i] = i;
            else
                sum = sum_words(mine, part, pass % WAYS);
        }
        const double seconds = mz_seconds() - start;
        best = pass >= 0 && seconds < best ? seconds : best;
        kept ^= sum;
    }
    data[0] = kept;
    const double rate = (double)(n * sizeof *data) / best;
    mz_free(data);
    return rate;
}

// Weights that a token reads: all but the table of positions.
static int64_t read_elements(const mezzo_params *params, const mezzo_model_config *model) {
    return mezzo_params_elements(params) - model->seq_len * model->d_model;
}

static mezzo_status print_row(const setup *s, mezzo_device *device, mezzo_precision precision, size_t bytes, times *t) {
    mezzo_device_info info;
    double seconds[MOST_TOKENS];
    const int n = t->n - 1;
    if (n < 1)
        return mz_fail(MEZZO_ERR_INVALID, "fewer than two tokens were drawn");
    for (int i = 0; i < n; i++)
        seconds[i] = t->at[i + 1] - t->at[i];
    qsort(seconds, (size_t)n, sizeof *seconds, by_size);
    MEZZO_TRY(mezzo_device_describe(device, &info));
    const double median = seconds[n / 2], rate = bandwidth(bytes, s->threads);
    printf(
        "%s,%s,%d,%d,%.3f,%.3f,%.1f,%.1f,%.1f,%.3f,\"%s\",%s,\"bench_sample --model %s --threads %d --tokens %d %s\"\n",
        s->model, mezzo_precision_name(precision), s->threads, n, median * 1e3, seconds[0] * 1e3,
        (double)bytes / (1 << 20), (double)bytes / median * 1e-9, rate * 1e-9, (double)bytes / rate / median,
        info.description, s->commit, s->model, s->threads, s->tokens, mezzo_precision_name(precision));
    fflush(stdout);
    return MEZZO_OK;
}

static mezzo_status measure(const setup *s, mezzo_precision precision) {
    mezzo_status status = MEZZO_OK;
    mezzo_device *device = NULL;
    mezzo_graph *graph = NULL;
    mezzo_params *params = NULL;
    mezzo_tokenizer *tokenizer = NULL;
    mz_sampler *sampler = NULL;
    mz_model object;
    mezzo_model_config model;
    times t = {0};
    const mezzo_program_options options = {.precision = precision, .forward_only = true};
    const mz_draw how = {.temperature = 0.8, .seed = 1};
    const int32_t first = 198; // a line break
    MEZZO_TRY(mezzo_model_defaults(s->model, &model));
    if (strcmp(model.name, "gpt2") != 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: only what a token of gpt2 reads is known here", s->model);
    model.vocab = 50257;
    MEZZO_TRY_GOTO(status, mezzo_device_open(s->device, s->threads, &device));
    MEZZO_TRY_GOTO(status, mezzo_tokenizer_create_gpt2(&tokenizer));
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, &model, 1, model.seq_len, true));
    MEZZO_TRY_GOTO(status,
                   mezzo_params_create_as(device, graph, &options, 1, mezzo_master_default(precision), &params));
    MEZZO_TRY_GOTO(status, mz_model_of(&model, &object));
    MEZZO_TRY_GOTO(status, mz_sampler_create(params, &object, &options, tokenizer, &sampler));
    MEZZO_TRY_GOTO(status, mz_sampler_run_on(sampler, &first, 1, s->tokens + 1, how, 0, NULL, on_text, &t));
    const bool half = precision == MEZZO_PRECISION_BF16 || precision == MEZZO_PRECISION_FP16;
    status = print_row(s, device, precision, (size_t)read_elements(params, &model) * (half ? 2 : 4), &t);
fail:
    mz_sampler_free(sampler);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    mezzo_tokenizer_free(tokenizer);
    mezzo_device_close(device);
    return status;
}

static int usage(void) {
    fprintf(stderr,
            "usage: bench_sample [--device D] [--model NAME] [--threads N] [--tokens N] [--commit S] [--no-header] "
            "PRECISION...\n");
    return 2;
}

int main(int argc, char **argv) {
    setup s = {
        .device = "cpu", .model = "gpt2-124M", .commit = "unknown", .threads = omp_get_max_threads(), .tokens = 64};
    bool header = true;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        const char *name = argv[at] + 2;
        if (strcmp(name, "no-header") == 0) {
            header = false;
            continue;
        }
        if (++at == argc)
            return usage();
        if (strcmp(name, "threads") == 0 || strcmp(name, "tokens") == 0)
            *(strcmp(name, "threads") == 0 ? &s.threads : &s.tokens) = atoi(argv[at]);
        else if (strcmp(name, "device") == 0 || strcmp(name, "model") == 0 || strcmp(name, "commit") == 0)
            *(strcmp(name, "device") == 0 ? &s.device : strcmp(name, "model") == 0 ? &s.model : &s.commit) = argv[at];
        else
            return usage();
    }
    if (at == argc || s.threads < 1 || s.tokens < 1 || s.tokens >= MOST_TOKENS)
        return usage();
    if (header)
        printf(
            "model,precision,threads,tokens,median_ms,best_ms,weights_mib,read_gb_s,bandwidth_gb_s,share,device,commit,"
            "command\n");
    for (; at < argc; at++) {
        mezzo_precision precision;
        if (mezzo_precision_parse(argv[at], &precision) != MEZZO_OK)
            return usage();
        if (measure(&s, precision) != MEZZO_OK) {
            fprintf(stderr, "bench_sample: %s: %s\n", argv[at], mezzo_error_message());
            return 3;
        }
    }
    return 0;
}
