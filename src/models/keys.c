#include "models/keys.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/decimal.h"

const mz_model_key mz_model_keys[] = {
#define MODEL_KEY(type, name, models, own, least, most, option, resumes, help)                                         \
    {#name, "model." #name, MZ_KEY_##type, offsetof(mezzo_model_config, name), models, own, MZ_KEY_##resumes},
#include "mezzo/model_keys.def"
#undef MODEL_KEY
};
const size_t mz_model_key_count = MZ_COUNT(mz_model_keys);

bool mz_model_takes(const mz_model_key *key, const char *family) {
    const size_t n = strlen(family);
    if (n == 0) // another program's state.json may have none
        return false;
    for (const char *at = key->models; (at = strstr(at, family)) != NULL; at += n)
        if ((at == key->models || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

double mz_model_key_get(const mz_model_key *key, const mezzo_model_config *config) {
    const void *at = (const char *)config + key->offset;
    if (key->type == MZ_KEY_LIST)
        return (double)*(const float *)at;
    if (key->type == MZ_KEY_INT)
        return (double)*(const int64_t *)at;
    return key->type == MZ_KEY_FLOAT ? *(const double *)at : (double)*(const bool *)at;
}

void mz_model_key_set(const mz_model_key *key, mezzo_model_config *config, double value) {
    void *at = (char *)config + key->offset;
    if (key->type == MZ_KEY_INT)
        *(int64_t *)at = (int64_t)value;
    else if (key->type == MZ_KEY_FLOAT)
        *(double *)at = value;
    else if (key->type == MZ_KEY_LIST)
        *(float *)at = (float)value;
    else
        *(bool *)at = value != 0;
}

static size_t key_bytes(const mz_model_key *key) {
    static const size_t sizes[] = {[MZ_KEY_INT] = sizeof(int64_t),
                                   [MZ_KEY_FLOAT] = sizeof(double),
                                   [MZ_KEY_BOOL] = sizeof(bool),
                                   [MZ_KEY_LIST] = sizeof(mezzo_list)};
    return sizes[key->type];
}

mezzo_list mz_model_key_list(const mz_model_key *key, const mezzo_model_config *config) {
    mezzo_list list = {{0}};
    if (key->type == MZ_KEY_LIST)
        memcpy(&list, (const char *)config + key->offset, sizeof list);
    return list;
}

void mz_model_key_copy(const mz_model_key *key, const mezzo_model_config *from, mezzo_model_config *to) {
    memcpy((char *)to + key->offset, (const char *)from + key->offset, key_bytes(key));
}

bool mz_model_key_same(const mz_model_key *key, const mezzo_model_config *a, const mezzo_model_config *b) {
    return memcmp((const char *)a + key->offset, (const char *)b + key->offset, key_bytes(key)) == 0;
}

int mz_list_count(const mezzo_list *list) {
    int n = 0;
    while (n < MEZZO_LIST && list->at[n] != 0)
        n++;
    return n;
}

double mz_model_key_own(const mz_model_key *key) {
    return key->type == MZ_KEY_BOOL ? (double)(strcmp(key->own, "true") == 0) : mz_strtod(key->own, NULL);
}

const char *mz_model_key_text(const mz_model_key *key, const mezzo_model_config *config, char *out, size_t size) {
    const double value = mz_model_key_get(key, config);
    const mezzo_list list = mz_model_key_list(key, config);
    char one[MZ_FLOAT_TEXT];
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < mz_list_count(&list) && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i > 0 ? "," : "", mz_float_text(list.at[i], one));
    if (key->type == MZ_KEY_LIST)
        return out;
    if (key->type == MZ_KEY_BOOL)
        snprintf(out, size, "%s", value != 0 ? "true" : "false");
    else
        mz_snprintf(out, size, "%.17g", value);
    return out;
}

mezzo_status mz_key_ranges_check(const mz_key_range *ranges, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most)
            return mz_fail(MEZZO_ERR_INVALID, "model.%s is %lld: it must be from %lld to %lld", ranges[i].key,
                           (long long)ranges[i].value, (long long)ranges[i].least, (long long)ranges[i].most);
    return MEZZO_OK;
}
