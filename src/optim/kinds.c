#include "optim/kinds.h"

#define MOMENT(name, kept) +((kept) ? 1 : 0)
#define KIND(name, NAME, title, defaults, kinds_moments, ...)                                                          \
    static int moments_of_##name(const mz_update_rule *r) {                                                            \
        (void)r;                                                                                                       \
        return 0 kinds_moments;                                                                                        \
    }
#include "mezzo/optimizers.def"
#undef KIND
#undef MOMENT

const mz_kind mz_kinds[MEZZO_OPTIMIZER_KINDS] = {
#define DEFAULT(option, value) .option = true,
#define MOMENT(name, kept)     name,
#define KIND(name, NAME, title, defaults, kinds_moments, ...)                                                          \
    [MEZZO_##NAME] = {#name, title, MZ_OP_##name, {kinds_moments}, moments_of_##name, {defaults}},
#include "mezzo/optimizers.def"
#undef KIND
#undef MOMENT
#undef DEFAULT
};

const char mz_kind_bars[] =
#define KIND(name, ...) "|" #name
#include "mezzo/optimizers.def"
#undef KIND
    ;

const char *mezzo_optimizer_kind_name(mezzo_optimizer_kind kind) {
    return (size_t)kind < MEZZO_OPTIMIZER_KINDS ? mz_kinds[kind].name : "unknown";
}

int mz_kind_find(const char *name) {
    for (int i = 0; i < MEZZO_OPTIMIZER_KINDS; i++)
        if (strcmp(mz_kinds[i].name, name) == 0)
            return i;
    return -1;
}

void mezzo_optimizer_set_kind(mezzo_optimizer_options *options, mezzo_optimizer_kind kind) {
    if (options == NULL)
        return;
    options->kind = kind;
    switch (kind) {
#define DEFAULT(option, value) options->option = value;
#define KIND(name, NAME, title, defaults, ...)                                                                         \
    case MEZZO_##NAME:                                                                                                 \
        defaults break;
#include "mezzo/optimizers.def"
#undef KIND
#undef DEFAULT
    case MEZZO_OPTIMIZER_KINDS:
        break;
    }
}
