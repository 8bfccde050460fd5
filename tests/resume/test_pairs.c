// Neighbouring calls that a device runs in one piece give the bits of the pieces: a step with them, replayed as a
// graph, against one that goes call by call because a hook watches it. Devices without such pieces pass by doing the
// same twice. Seen to fail with an expert chosen twice, and with a slope left out on the way back.
#include "fixture.h"
#include "runtime/program.h"

enum { BATCH = 4, LENGTH = 32, RUNS = 3 }; // the third run of a program is a replay

static mezzo_status look(void *user, mezzo_program *program, size_t call) {
    (void)program, (void)call;
    ++*(int *)user;
    return MEZZO_OK;
}

static const char *const on_cuda[] = {"cross_entropy_both__cuda", "linear_route__cuda_small_n",
                                      "route_dx_linear_dx__cuda_small_n"};
static int seen[MZ_COUNT(on_cuda)]; // in all programs

// Loss and every gradient of the last run; free() it.
static float *step(mezzo_precision precision, int64_t experts, int64_t vocab, int64_t logits_rows, bool by_itself,
                   size_t *count) {
    mezzo_device *device;
    mezzo_model_config c;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *p;
    int looked = 0;
    static int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    must(mezzo_device_open(test_device(), 1, &device));
    must(mezzo_model_defaults(experts > 0 ? "glm4_moe" : "gpt2", &c));
    if (experts > 0)
        c.experts = experts, c.experts_per_token = 3;
    c.layers = experts > 0 ? 3 : 1, c.heads = 2, c.d_model = experts > 0 ? 128 : 32, c.d_ff = 64, c.vocab = vocab,
    c.seq_len = LENGTH, c.dropout = 0;
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mezzo_params_create(device, g, 5, &params));
    mezzo_program_options options = {.precision = precision, .loss_weight = 1, .logits_rows = logits_rows};
    must(mezzo_program_create(g, params, &options, &p));
    for (size_t i = 0; i < p->c.n_calls; i++)
        for (size_t k = 0; p->pairs[i] != NULL && k < MZ_COUNT(on_cuda); k++)
            seen[k] += strcmp(p->pairs[i]->name, on_cuda[k]) == 0;
    if (by_itself)
        p->hook = look, p->hook_user = &looked;
    for (int run = 0; run < RUNS; run++) {
        for (int i = 0; i < BATCH * LENGTH; i++) {
            tokens[i] = (int32_t)((i * 7 + 3 * run) % vocab);
            targets[i] = (int32_t)((i * 97 + run) % vocab);
        }
        must(mezzo_program_write(p, "tokens", tokens, sizeof tokens));
        must(mezzo_program_write(p, "targets", targets, sizeof targets));
        must(mezzo_params_zero_grad(params));
        must(mezzo_program_run(p, NULL, 1, (uint64_t)run));
    }
    assert_true(by_itself == (looked > 0));
    *count = (size_t)params->elements + 1;
    float *values = calloc(*count, sizeof *values);
    assert_non_null(values);
    must(mezzo_program_read(p, "loss", values, sizeof *values));
    must(device->backend->read(device, values + 1, params->grad, (*count - 1) * sizeof *values));
    mezzo_program_free(p);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
    return values;
}

TEST(one_piece_has_the_bits_of_two) {
    static const struct {
        mezzo_precision precision;
        int64_t experts, vocab, logits_rows;
    } cases[] = {{MEZZO_PRECISION_BF16, 0, 4096, 0}, {MEZZO_PRECISION_FP16, 0, 10008, 0},
                 {MEZZO_PRECISION_FP32, 0, 4104, 0}, {MEZZO_PRECISION_BF16, 0, 50304, 32},
                 {MEZZO_PRECISION_FP16, 8, 4096, 0}, {MEZZO_PRECISION_FP32, 13, 4096, 0}};
    for (size_t i = 0; i < MZ_COUNT(cases); i++) {
        size_t n, m;
        float *one = step(cases[i].precision, cases[i].experts, cases[i].vocab, cases[i].logits_rows, false, &n);
        float *two = step(cases[i].precision, cases[i].experts, cases[i].vocab, cases[i].logits_rows, true, &m);
        assert_int_equal(n, m);
        if (memcmp(one, two, n * sizeof *one) != 0)
            fail_msg("case %zu: losses %.9g and %.9g, or gradients, differ", i, (double)one[0], (double)two[0]);
        free(one);
        free(two);
    }
    for (size_t k = 0; k < MZ_COUNT(on_cuda) && strncmp(test_device(), "cuda", 4) == 0; k++)
        assert_true(seen[k] > 0);
}
