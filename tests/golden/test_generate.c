// Text from imported weights: the greedy text is transformers' generate(), read one position at a time or many; a cache
// changes no token, also past the context; draws are as frequent as temperature, top-k and top-p make them.
//
// To see it fail: a position too far in the cache, the first of several logits for the last, no new start of the cache
// for the next text.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "io/file.h"
#include "mezzo/train.h"
#include "task/sampler.h"

enum { VOCAB = 61, CONTEXT = 24, PROMPT = 5 };
static const char *const sources[] = {"hf_gpt2", "hf_glm4_moe", "hf_llama"};

typedef struct subject {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_tokenizer *tokenizer;
    mezzo_model_config model;
    mz_sampler *sampler;
    char text[512];
    size_t n;
} subject;

static void open_subject(subject *s, const char *source, const char *device, mezzo_precision precision) {
    char path[4096], letters[VOCAB + 1] = "";
    mezzo_import_result r;
    mezzo_graph *graph;
    *s = (subject){0};
    must(mz_dir_remove("imported"));
    must(mezzo_import(&(mezzo_import_options){.path = golden_path(source, path, sizeof path), .out = "imported"}, &r));
    s->model = r.model;
    must(mezzo_device_open(device, 2, &s->device));
    must(mezzo_graph_create(&graph));
    must(mezzo_model_build(graph, &s->model, 1, CONTEXT, true));
    must(mezzo_params_create(s->device, graph, 1, &s->params));
    mezzo_graph_free(graph);
    mezzo_checkpoint c = {.params = s->params};
    must(mezzo_checkpoint_load("imported/checkpoints/step-00000000", &c));
    for (int i = 0; i < VOCAB; i++) // token t is the character '0' + t
        letters[i] = (char)('0' + i);
    must(mezzo_tokenizer_create_char(letters, VOCAB, &s->tokenizer));
    mz_model object;
    must(mz_model_of(&s->model, &object));
    must(mz_sampler_create(s->params, &object, &(mezzo_program_options){.precision = precision}, s->tokenizer,
                           &s->sampler));
    // A device without a kernel for it evaluates the whole window for every token.
    assert_true(s->sampler->one != NULL || strcmp(device, "cuda") == 0);
    assert_int_equal(s->sampler->one != NULL, s->sampler->several != NULL);
}

static void close_subject(subject *s) {
    mz_sampler_free(s->sampler);
    mezzo_tokenizer_free(s->tokenizer);
    mezzo_params_free(s->params);
    mezzo_device_close(s->device);
}

static void collect(void *user, int index, const char *text, size_t bytes) {
    subject *s = user;
    (void)index;
    assert_true(s->n + bytes < sizeof s->text);
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = '\0';
}

static const char *generate(subject *s, const char *prompt, int64_t tokens, mz_draw draw) {
    s->n = 0;
    s->text[0] = '\0';
    must(mz_sampler_run(s->sampler, prompt, tokens, draw, 0, NULL, collect, s));
    return s->text;
}

// Row i of the stored greedy texts, as text.
static void stored_text(const char *source, int64_t row, char out[CONTEXT + 1]) {
    char name[64];
    snprintf(name, sizeof name, "%s_logits.safetensors", source);
    mz_safetensors *file = golden_tensors(name);
    golden_values v = golden_get(file, "greedy");
    assert_int_equal(v.dim[1], CONTEXT);
    for (int64_t i = 0; i < CONTEXT; i++)
        out[i] = (char)('0' + (int)v.at[row * CONTEXT + i]);
    out[CONTEXT] = '\0';
    golden_free(&v);
    mz_safetensors_close(file);
}

static void expect_greedy(const char *source, const char *device) {
    subject s;
    open_subject(&s, source, device, MEZZO_PRECISION_FP32);
    for (int64_t row = 0; row < 3; row++) {
        char want[CONTEXT + 1], prompt[CONTEXT + 1];
        stored_text(source, row, want);
        for (int64_t n = PROMPT; n < CONTEXT; n += 7) { // short prompts go position by position, longer ones at once
            memcpy(prompt, want, (size_t)n);
            prompt[n] = '\0';
            assert_string_equal(generate(&s, prompt, CONTEXT - n, (mz_draw){0}), want + n);
        }
    }
    assert_true(s.sampler->one == NULL || s.sampler->whole == NULL); // the context was never left
    close_subject(&s);
}

TEST(greedy_text_is_that_of_transformers) {
    for (size_t i = 0; i < MZ_COUNT(sources); i++) {
        expect_greedy(sources[i], test_device());
        expect_greedy(sources[i], "ref");
    }
}

static void changes_no_token(const char *source, mezzo_precision precision) {
    const mz_draw draws[] = {{0}, {.temperature = 0.8, .seed = 3}, {.temperature = 1.5, .top_k = 9, .top_p = 0.9}};
    subject with, without;
    open_subject(&with, source, test_device(), precision);
    open_subject(&without, source, test_device(), precision);
    mezzo_program *kept = without.sampler->one;
    without.sampler->one = NULL; // the whole window for every token
    // In BF16 the two round at the same places but add in other orders: texts of random draws may part where a draw
    // lies on an edge.
    for (size_t i = 0; i < (precision == MEZZO_PRECISION_FP32 ? MZ_COUNT(draws) : 1); i++) {
        char first[512];
        strcpy(first, generate(&with, "123", 60, draws[i])); // 60: far past the context
        assert_int_equal(strlen(first), 60);
        assert_string_equal(first, generate(&without, "123", 60, draws[i]));
        assert_string_equal(first, generate(&with, "123", 60, draws[i])); // again, from an old cache
    }
    without.sampler->one = kept;
    close_subject(&with);
    close_subject(&without);
}

TEST(a_cache_changes_no_token) {
    for (size_t i = 0; i < MZ_COUNT(sources); i++)
        changes_no_token(sources[i], MEZZO_PRECISION_FP32);
    changes_no_token("hf_gpt2", MEZZO_PRECISION_BF16);
}

// --- draws ---------------------------------------------------------------------------------------------------------
// The weights of the tokens after "123" at a temperature, and the order from the likeliest on.
static void weights_of(subject *s, double temperature, double weights[VOCAB], int order[VOCAB], double *total) {
    generate(s, "123", 1, (mz_draw){0});
    const float *logits = s->sampler->logits + (s->sampler->one == NULL ? 2 * VOCAB : 0);
    *total = 0;
    for (int i = 0; i < VOCAB; i++) {
        *total += weights[i] = exp((double)logits[i] / temperature);
        int at = i;
        for (; at > 0 && weights[order[at - 1]] < weights[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

// How often each token is drawn by `draws` seeds.
static void count_draws(subject *s, mz_draw draw, int draws, int counts[VOCAB]) {
    memset(counts, 0, VOCAB * sizeof *counts);
    for (draw.seed = 0; draw.seed < (uint64_t)draws; draw.seed++)
        counts[generate(s, "123", 1, draw)[0] - '0']++;
}

// Of `kept` tokens with these probabilities; a count of n draws is off by √(n·p·(1 - p)), 5 times that at most.
static void expect_shares(const int counts[VOCAB], int draws, const double weights[VOCAB], const int order[VOCAB],
                          int kept) {
    double total = 0;
    for (int i = 0; i < kept; i++)
        total += weights[order[i]];
    for (int i = 0; i < VOCAB; i++) {
        double p = i < kept ? weights[order[i]] / total : 0;
        assert_true(fabs(counts[order[i]] - draws * p) <= 5 * sqrt(draws * p * (1 - p)) + 1e-9);
    }
}

TEST(tokens_are_drawn_as_often_as_their_probabilities_say) {
    enum { DRAWS = 4000 };
    const double temperatures[] = {1, 2.5};
    subject s;
    int counts[VOCAB], order[VOCAB];
    double weights[VOCAB], total;
    open_subject(&s, "hf_gpt2", test_device(), MEZZO_PRECISION_FP32);
    for (size_t t = 0; t < MZ_COUNT(temperatures); t++) {
        weights_of(&s, temperatures[t], weights, order, &total);
        count_draws(&s, (mz_draw){.temperature = temperatures[t]}, DRAWS, counts);
        expect_shares(counts, DRAWS, weights, order, VOCAB);
        count_draws(&s, (mz_draw){.temperature = temperatures[t], .top_k = 4}, DRAWS, counts);
        expect_shares(counts, DRAWS, weights, order, 4);
        int nucleus = 0;
        for (double sum = 0; sum < 0.7 * total; nucleus++)
            sum += weights[order[nucleus]];
        assert_in_range(nucleus, 2, VOCAB - 3); // else this proves nothing
        count_draws(&s, (mz_draw){.temperature = temperatures[t], .top_p = 0.7}, DRAWS, counts);
        expect_shares(counts, DRAWS, weights, order, nucleus);
        // Both: the nucleus of what top-k leaves.
        double first = weights[order[0]] + weights[order[1]] + weights[order[2]];
        count_draws(&s,
                    (mz_draw){.temperature = temperatures[t], .top_k = 3, .top_p = 0.999 * weights[order[0]] / first},
                    100, counts);
        assert_int_equal(counts[order[0]], 100);
    }
    close_subject(&s);
}

TEST(a_seed_is_a_text) {
    subject s;
    char first[512], other[512];
    open_subject(&s, "hf_glm4_moe", test_device(), MEZZO_PRECISION_FP32);
    strcpy(first, generate(&s, "123", 40, (mz_draw){.temperature = 2, .seed = 5}));
    strcpy(other, generate(&s, "123", 40, (mz_draw){.temperature = 2, .seed = 6}));
    assert_string_not_equal(first, other);
    assert_string_equal(first, generate(&s, "123", 40, (mz_draw){.temperature = 2, .seed = 5}));
    // No temperature, one candidate, a nucleus of one: the likeliest, whatever the seed.
    strcpy(first, generate(&s, "123", 40, (mz_draw){0}));
    assert_string_equal(first, generate(&s, "123", 40, (mz_draw){.seed = 8}));
    assert_string_equal(first, generate(&s, "123", 40, (mz_draw){.temperature = 2, .top_k = 1, .seed = 9}));
    assert_string_equal(first, generate(&s, "123", 40, (mz_draw){.temperature = 2, .top_p = 1e-9, .seed = 9}));
    close_subject(&s);
}
