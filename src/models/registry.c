// The models by name, their named sizes, and the checks every model shares.
#include <math.h>

#include "base/base.h"
#include "models/models.h"

static const mz_model *const models[] = {&mz_model_toy, &mz_model_gpt2};

// Every name a user may give, with the sizes it stands for. A named size becomes its family with those sizes.
#define GPT2(size, l, h, c)                                                                                            \
    {                                                                                                                  \
        size, {                                                                                                        \
            .name = "gpt2", .layers = (l), .heads = (h), .d_model = (c), .vocab = 50257, .seq_len = 1024, .bias = true \
        }                                                                                                              \
    }
static const struct {
    const char *name;
    mezzo_model_config config;
} sizes[] = {
    {"toy", {.name = "toy", .layers = 1, .heads = 1, .d_model = 10, .vocab = 3, .seq_len = 1}},
    GPT2("gpt2", 12, 12, 768),
    GPT2("gpt2-124M", 12, 12, 768),
    GPT2("gpt2-355M", 24, 16, 1024),
    GPT2("gpt2-774M", 36, 20, 1280),
    GPT2("gpt2-1558M", 48, 25, 1600),
};

int mezzo_model_count(void) {
    return (int)MZ_COUNT(sizes);
}

const char *mezzo_model_name(int index) {
    return index >= 0 && index < (int)MZ_COUNT(sizes) ? sizes[index].name : NULL;
}

mezzo_status mezzo_model_defaults(const char *name, mezzo_model_config *config) {
    const char *names[MZ_COUNT(sizes)];
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        if (strcmp(sizes[i].name, name) == 0) {
            *config = sizes[i].config;
            return MEZZO_OK;
        }
        names[i] = sizes[i].name;
    }
    const char *nearest = mz_nearest(name, names, MZ_COUNT(names));
    if (nearest != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "there is no model \"%s\"; did you mean \"%s\"?", name, nearest);
    mz_text list = {0};
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        mz_text_addf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    mezzo_status status =
        list.status != MEZZO_OK
            ? list.status
            : mz_fail(MEZZO_ERR_INVALID, "there is no model \"%s\"; choose one of %s", name, list.data);
    mz_text_free(&list);
    return status;
}

static const mz_model *find(const char *name) {
    for (size_t i = 0; i < MZ_COUNT(models); i++)
        if (strcmp(models[i]->name, name) == 0)
            return models[i];
    return NULL;
}

mezzo_status mezzo_model_check(const mezzo_model_config *config) {
    // The upper bounds keep every product of sizes inside 64 bits, and ids inside 32.
    const struct {
        const char *key;
        int64_t value, least, most;
    } ranges[] = {
        {"layers", config->layers, 1, 4096},
        {"heads", config->heads, 1, 65536},
        {"d_model", config->d_model, 1, INT64_C(1) << 20},
        {"d_ff", config->d_ff, 0, INT64_C(1) << 24},
        {"vocab", config->vocab, 1, INT32_MAX},
        {"seq_len", config->seq_len, 1, INT64_C(1) << 24},
    };
    const mz_model *model = find(config->name);
    if (model == NULL) {
        mezzo_model_config unused;
        MEZZO_TRY(mezzo_model_defaults(config->name, &unused)); // names the nearest
        return mz_fail(MEZZO_ERR_INVALID, "model.name is the named size \"%s\"; its family is \"%s\"", config->name,
                       unused.name);
    }
    for (size_t i = 0; i < MZ_COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most)
            return mz_fail(MEZZO_ERR_INVALID, "model.%s is %lld: it must be from %lld to %lld", ranges[i].key,
                           (long long)ranges[i].value, (long long)ranges[i].least, (long long)ranges[i].most);
    if (!(config->dropout >= 0 && config->dropout < 1)) // written so that NaN fails
        return mz_fail(MEZZO_ERR_INVALID, "model.dropout is %g: it must be at least 0 and below 1", config->dropout);
    return model->check(config);
}

mezzo_status mezzo_model_build(mezzo_graph *graph, const mezzo_model_config *config, int64_t batch, int64_t seq_len,
                               bool keep_logits) {
    MEZZO_TRY(mezzo_model_check(config));
    if (batch < 1 || batch > INT64_C(1) << 24)
        return mz_fail(MEZZO_ERR_INVALID, "the batch size is %lld: it must be from 1 to %d", (long long)batch, 1 << 24);
    if (seq_len < 1 || seq_len > config->seq_len)
        return mz_fail(MEZZO_ERR_INVALID,
                       "a sequence of %lld tokens does not fit: the model's model.seq_len is %lld positions",
                       (long long)seq_len, (long long)config->seq_len);
    MEZZO_TRY(find(config->name)->build(graph, config, batch, seq_len, keep_logits));
    return mezzo_graph_status(graph);
}
