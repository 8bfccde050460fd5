#include "base/names.h"

uint32_t mz_name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name != '\0'; ++name)
        h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

int mz_names_find(const mz_names *names, const char *name, mz_name_of *of, const void *list) {
    const uint32_t hash = mz_name_hash(name);
    for (size_t at = hash; names->cap > 0; ++at) {
        const struct mz_name_slot *s = &names->slots[at & (names->cap - 1)];
        if (s->number == 0)
            break;
        if (s->hash == hash && strcmp(of(list, s->number - 1), name) == 0)
            return s->number - 1;
    }
    return -1;
}

static void put(mz_names *names, uint32_t hash, int32_t number) {
    size_t at = hash;
    while (names->slots[at & (names->cap - 1)].number != 0)
        ++at;
    names->slots[at & (names->cap - 1)] = (struct mz_name_slot){hash, number};
}

// Adds a name. The table is at most half full, so that an empty slot is near.
mezzo_status mz_names_add(mz_names *names, const char *name, int number) {
    if (2 * (names->n + 1) > names->cap) {
        mz_names old = *names;
        names->cap = old.cap > 0 ? 2 * old.cap : 64;
        names->slots = mz_alloc(names->cap, sizeof *names->slots);
        if (names->slots == NULL) {
            *names = old;
            return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
        }
        for (size_t i = 0; i < old.cap; ++i)
            if (old.slots[i].number != 0)
                put(names, old.slots[i].hash, old.slots[i].number);
        mz_free(old.slots);
    }
    put(names, mz_name_hash(name), number + 1);
    names->n++;
    return MEZZO_OK;
}

void mz_names_free(mz_names *names) {
    mz_free(names->slots);
    *names = (mz_names){0};
}

int mz_word_index(const char *list, const char *word, size_t n) {
    static const char ends[] = " ,|";
    int i = 0;
    for (const char *at = list + strspn(list, ends); *at != '\0'; i++) {
        const size_t length = strcspn(at, ends);
        if (length == n && memcmp(at, word, n) == 0)
            return i;
        at += length + strspn(at + length, ends);
    }
    return -1;
}
