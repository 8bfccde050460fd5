// The search for modules that a precision hurts: 50 planted ones are found, and none of 50 good models is blamed.
#include <math.h>

#include "study/measure/per_op.h"
#include "tiny_run.h"

typedef struct planted {
    char up[64], down[64]; // parameters that are scaled up, and down again; "" for none
} planted;

// The module's inner activations leave FP16's range, and what it gives stays about what it was.
static mezzo_status prepare(void *user, mz_trial *trial) {
    const planted *p = user;
    if (p->up[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mz_trial_scale_weights(trial, p->up, 1e7));
    return mz_trial_scale_weights(trial, p->down, 1e-7);
}

static void search(uint32_t seed, int runs, planted *plant, mz_per_op *out) {
    static const char *const words[] = {"--layers=6",     "--heads=2",    "--d-model=16", "--seq-len=8",
                                        "--batch-size=4", "--device=cpu", "--threads=1",  "--warmup=0",
                                        TINY_DATA,        "--steps=6",    "--lr=0.001"};
    const char *rest[8];
    char text[32];
    int n = 0;
    mezzo_config *config;
    must(mezzo_config_create(&config));
    must(mezzo_config_args(config, (int)MZ_COUNT(words), words, rest, &n));
    snprintf(text, sizeof text, "%u", seed);
    must(mezzo_config_set(config, "train.seed", text, "test"));
    const mz_per_op_options o = {.config = config,
                                 .precision = MEZZO_PRECISION_FP16,
                                 .gap = 0.02,
                                 .runs = runs,
                                 .prepare = prepare,
                                 .user = plant};
    must(mz_per_op_find(&o, out));
    mezzo_config_free(config);
}

TEST(test_planted) {
    mz_per_op p;
    int most = 0;
    tiny_text();
    for (uint32_t i = 0; i < 50; i++) {
        planted plant;
        char module[32];
        snprintf(module, sizeof module, "h.%u.mlp", i % 6);
        snprintf(plant.up, sizeof plant.up, "%s.c_fc.weight", module);
        snprintf(plant.down, sizeof plant.down, "%s.c_proj.weight", module);
        search(i + 1, 30, &plant, &p);
        if (!p.closes || !p.minimal || p.n_kept != 1)
            fail_msg("%s: %d kept after %d runs", module, p.n_kept, p.runs);
        for (int k = 0; k < p.n; k++)
            assert_int_equal(p.kept[k], strcmp(p.modules[k], module) == 0);
        most = p.runs > most ? p.runs : most;
        mz_per_op_free(&p);
    }
    print_message("50 found, after at most %d runs\n", most);
    assert_in_range(most, 4, 3 + 8); // fp32, nothing and all kept; then halves of 15 modules, at most two tries each
}

TEST(test_good) {
    mz_per_op p;
    tiny_text();
    for (uint32_t i = 0; i < 50; i++) {
        planted none = {0};
        search(100 + i, 30, &none, &p);
        assert_true(p.harmless && p.n_kept == 0 && p.runs == 2);
        mz_per_op_free(&p);
    }
}

TEST(test_budget) { // what is said where the runs end first
    planted plant = {"h.2.mlp.c_fc.weight", "h.2.mlp.c_proj.weight"};
    mz_per_op p;
    tiny_text();
    search(1, 5, &plant, &p);
    assert_true(p.runs == 5 && p.closes && !p.minimal && p.n_kept > 1);
    mz_per_op_free(&p);
    search(1, 2, &plant, &p);
    assert_true(p.runs == 2 && !p.closes && p.n_kept == 0);
    mz_per_op_free(&p);
}
