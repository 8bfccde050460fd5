// The lessons that train a model share a text that is the same everywhere, and keys of a configuration.
#ifndef MZ_STUDY_LAB_TEXT_H
#define MZ_STUDY_LAB_TEXT_H

#include "mezzo/train.h"

// Writes 40 kB of made-up text to a temporary file; *path names it, for the caller to remove and mz_free.
mezzo_status mz_lab_text(char **path);
mezzo_status mz_lab_set(mezzo_config *config, const char *const (*keys)[2], size_t n); // {key, value}

#endif
