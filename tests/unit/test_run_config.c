// The typed configuration: every enum's values follow the names of its row in config.def, and a key whose default
// stands for another key has that one's value.
//
// To see it fail: two names of a row exchanged, min_lr read after the schedule was made from it.
#include "tiny_run.h"

#include "train/config.h"

static mezzo_config *with(const char *key, const char *value) {
    mezzo_config *config;
    must(mezzo_config_create(&config));
    must(mezzo_config_set(config, key, value, "test"));
    return config;
}

static mz_run_config typed(const mezzo_config *config) {
    mz_run_config c;
    must(mz_run_config_read(config, &c));
    return c;
}

// The value of an enum's key, which is `size` bytes at `at` of mz_run_config, for each of its names.
static void check_names(const char *key, size_t at, const char *const *names, int n, int first) {
    for (int i = 0; i < n; i++) {
        mezzo_config *config = with(key, names[i]);
        must(mezzo_config_set(config, "amp.precision", strcmp(key, "amp.precision") == 0 ? names[i] : "bf16", "test"));
        const mz_run_config c = typed(config);
        int value;
        memcpy(&value, (const char *)&c + at, sizeof value);
        if (value != first + i)
            fail_msg("%s %s is read as %d, not %d", key, names[i], value, first + i);
        mezzo_config_free(config);
    }
}

#define CHECK_NAMES(key, member, first, ...)                                                                           \
    {                                                                                                                  \
        static const char *const names[] = {__VA_ARGS__};                                                              \
        check_names(key, offsetof(mz_run_config, member), names, (int)MZ_COUNT(names), (int)(first));                  \
    }

TEST(enums) {
    const char *precisions[MEZZO_PRECISION_COUNT], *masters[3], *moments[3], *blocks[MEZZO_BLOCKS_COUNT];
    for (int i = 0; i < MEZZO_PRECISION_COUNT; i++)
        precisions[i] = mezzo_precision_name((mezzo_precision)i);
    for (int i = 0; i < MEZZO_BLOCKS_COUNT; i++)
        blocks[i] = mezzo_blocks_name((mezzo_blocks)i);
    for (int i = 0; i < 3; i++) {
        masters[i] = mezzo_master_name((mezzo_master)i);
        moments[i] = mezzo_moments_name((mezzo_moments)i);
    }
    check_names("amp.precision", offsetof(mz_run_config, program.precision), precisions, MEZZO_PRECISION_COUNT, 0);
    check_names("amp.emulate", offsetof(mz_run_config, program.emulate), blocks, MEZZO_BLOCKS_COUNT, 0);
    check_names("optimizer.moments", offsetof(mz_run_config, optimizer.moments), moments, 3, 0);
    check_names("optimizer.master", offsetof(mz_run_config, master), masters, 3, MZ_MASTER_FIRST);
    CHECK_NAMES("amp.residual", program.residual, MEZZO_RESIDUAL_WIDEST, "widest", "low")
    CHECK_NAMES("amp.scaler.enabled", scaling, MZ_SCALING_AUTO, "auto", "true", "false")
    CHECK_NAMES("optimizer.kind", optimizer.kind, MEZZO_ADAMW, "adamw", "sgd", "lion")
    CHECK_NAMES("schedule.kind", optimizer.schedule.kind, MEZZO_LR_CONSTANT, "constant", "linear", "cosine",
                "polynomial")
    CHECK_NAMES("guard.policy", guard_policy, MZ_GUARD_OFF, "off", "skip", "rollback", "stop")
    CHECK_NAMES("guard.spike", guard_spike, MZ_SPIKE_OFF, "off", "warn", "rollback", "stop")
    CHECK_NAMES("ranks.shard", shard, MZ_SHARD_NONE, "none", "optimizer", "gradients", "parameters")
}

TEST(derived) {
    mezzo_config *config = with("optimizer.lr", "0.5");
    must(mezzo_config_set(config, "train.steps", "7", "test"));
    must(mezzo_config_set(config, "ranks.reduce", "canonical", "test"));
    must(mezzo_config_set(config, "train.seed", "9007199254740992", "test"));
    must(mezzo_config_set(config, "autocast.h.*", "fp32", "test"));
    mz_run_config c = typed(config);
    assert_true(c.optimizer.schedule.min_lr == 0.05);
    assert_int_equal(c.optimizer.schedule.steps, 7);
    assert_true(c.canonical && !c.bf16_wire && !c.program.emulate_stochastic);
    assert_true(c.seed == UINT64_C(9007199254740992));
    assert_int_equal(c.program.n_overrides, 1);
    assert_string_equal(c.program.overrides[0].pattern, "h.*");
    assert_int_equal(mz_run_config_master(&c, MEZZO_PRECISION_BF16), mezzo_master_default(MEZZO_PRECISION_BF16));
    must(mezzo_config_set(config, "optimizer.min_lr", "0", "test"));
    must(mezzo_config_set(config, "schedule.steps", "3", "test"));
    c = typed(config);
    assert_true(c.optimizer.schedule.min_lr == 0 && c.optimizer.schedule.steps == 3);
    mezzo_config_free(config);
}
