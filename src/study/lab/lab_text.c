#define _GNU_SOURCE
#include "study/lab/lab.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "io/file.h"

static const char *const words[] = {"the",  "of",   "and",   "to",   "in",    "a",     "is",   "that", "for",  "it",
                                    "as",   "was",  "with",  "be",   "by",    "on",    "not",  "he",   "this", "are",
                                    "or",   "his",  "from",  "at",   "which", "but",   "have", "an",   "had",  "they",
                                    "you",  "were", "their", "one",  "all",   "we",    "can",  "her",  "has",  "there",
                                    "been", "if",   "more",  "when", "will",  "would", "who",  "so",   "no",   "out"};

// Writes words: common ones are drawn more often, and the word before shifts the draw, so that a model can learn. It
// uses integers only, so that the text is the same everywhere.
static void write_words(mz_text *t, size_t bytes) {
    uint64_t word = 0;
    for (uint64_t i = 0; t->len < bytes && t->status == MEZZO_OK; i++) {
        uint32_t draw[4];
        mz_philox((mz_philox_key){1, 0, 0x7EC7}, i, draw);
        uint64_t rank = draw[0] % (1 + draw[1] % MZ_COUNT(words)); // low ranks are likelier
        word = (rank + word / 3) % MZ_COUNT(words);
        mz_text_addf(t, "%s%s", words[word], i % 13 == 12 ? ".\n" : " ");
    }
}

mezzo_status mz_lab_text(char **path) {
    const char *folder = getenv("TMPDIR");
    mz_text t = {0};
    *path = mz_format("%s/mezzo-lab-XXXXXX", folder != NULL && *folder != '\0' ? folder : "/tmp");
    if (*path == NULL)
        return MEZZO_ERR_MEMORY;
    int file = mkstemp(*path);
    if (file < 0)
        return mz_fail(MEZZO_ERR_IO, "%s: a temporary file could not be made; set TMPDIR", *path);
    close(file);
    write_words(&t, 40000);
    return mz_text_save(&t, *path);
}

mezzo_status mz_lab_set(mezzo_config *config, const char *const (*keys)[2], size_t n) {
    for (size_t i = 0; i < n; i++)
        MEZZO_TRY(mezzo_config_set(config, keys[i][0], keys[i][1], "mezzo lab"));
    return MEZZO_OK;
}
