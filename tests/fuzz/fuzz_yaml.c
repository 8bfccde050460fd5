// The loader refuses any bytes with a message, or writes them as YAML that loads to the same YAML.
#include "base/base.h"
#include "io/config.h"
#include "io/yaml.h"
#include "target.h"

static const mz_config_row schema[] = {
    {"seed", MZ_CONFIG_INT, "1", 0, 9e18, NULL, NULL, "", 0},
    {"optimizer.lr", MZ_CONFIG_FLOAT, "1e-3", 0, 10, NULL, "lr", "", 0},
    {"optimizer.eps", MZ_CONFIG_FLOAT, "1e-8", 0, 0, NULL, NULL, "", MZ_CONFIG_NON_FINITE},
    {"recompute", MZ_CONFIG_BOOL, "false", 0, 0, NULL, NULL, "", 0},
    {"precision.name", MZ_CONFIG_ENUM, "bf16", 0, 0, "fp32|bf16|fp16", NULL, "", 0},
    {"precision.overrides", MZ_CONFIG_MAP, "", 0, 0, "fp32|bf16", NULL, "", 0},
    {"labels", MZ_CONFIG_MAP, "", 0, 0, NULL, NULL, "", 0},
    {"data.path", MZ_CONFIG_STRING, "", 0, 0, NULL, NULL, "", 0},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_config *cfg, *again;
    if (mz_config_create(schema, MZ_COUNT(schema), &cfg) != MEZZO_OK ||
        mz_config_create(schema, MZ_COUNT(schema), &again) != MEZZO_OK)
        __builtin_trap();
    if (mz_config_parse_yaml(cfg, "input", (const char *)data, size) == MEZZO_OK) {
        mz_text first = {0}, second = {0};
        mz_config_add_yaml(cfg, &first);
        // Escapes make a text longer: what passes the reader's bound is no configuration that was written here.
        if (first.len <= MZ_YAML_MAX_BYTES && mz_config_parse_yaml(again, "again", first.data, first.len) != MEZZO_OK)
            __builtin_trap();
        mz_config_add_yaml(again, &second);
        if (first.len <= MZ_YAML_MAX_BYTES &&
            (first.len != second.len || memcmp(first.data, second.data, first.len) != 0))
            __builtin_trap();
        mz_text_free(&first);
        mz_text_free(&second);
    } else if (mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n')) {
        __builtin_trap();
    }
    mz_config_free(cfg);
    mz_config_free(again);
    return 0;
}
