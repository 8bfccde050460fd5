// Declares the keys of models (mezzo/model_keys.def) as a table, for code that reads, writes or compares a model key by
// key.
#ifndef MZ_MODEL_KEYS_H
#define MZ_MODEL_KEYS_H

#include "base/base.h"
#include "mezzo/model.h"

typedef enum mz_key_type { MZ_KEY_INT, MZ_KEY_FLOAT, MZ_KEY_BOOL, MZ_KEY_LIST } mz_key_type;
typedef enum mz_key_resumes { MZ_KEY_SAME, MZ_KEY_SHAPE, MZ_KEY_FREE } mz_key_resumes;

typedef struct mz_model_key {
    const char *name, *path; // "d_model", "model.d_model"
    mz_key_type type;
    size_t offset;      // in mezzo_model_config
    const char *models; // families that take it, separated by blanks
    const char *own;    // the configuration's text for the model's own value
    mz_key_resumes resumes;
} mz_model_key;

extern const mz_model_key mz_model_keys[];
extern const size_t mz_model_key_count;

bool mz_model_takes(const mz_model_key *key, const char *family);
// Get and set values as doubles, which hold every integer that a key may have; of a BOOL 0 or 1; of a LIST the first
// number.
double mz_model_key_get(const mz_model_key *key, const mezzo_model_config *config);
void mz_model_key_set(const mz_model_key *key, mezzo_model_config *config, double value);
double mz_model_key_own(const mz_model_key *key);
mezzo_list mz_model_key_list(const mz_model_key *key, const mezzo_model_config *config); // empty unless it is a LIST
void mz_model_key_copy(const mz_model_key *key, const mezzo_model_config *from, mezzo_model_config *to);
bool mz_model_key_same(const mz_model_key *key, const mezzo_model_config *a, const mezzo_model_config *b);
// Checks values of integer keys; INVALID names the first that is out of its range.
typedef struct mz_key_range {
    const char *key;
    int64_t value, least, most;
} mz_key_range;
mezzo_status mz_key_ranges_check(const mz_key_range *ranges, size_t n);
int mz_list_count(const mezzo_list *list);
enum { MZ_KEY_TEXT = 16 * MEZZO_LIST }; // bytes that suffice for any value as text
// Writes the value as a configuration has it: "12", "0.5", "true", "1,1.5".
const char *mz_model_key_text(const mz_model_key *key, const mezzo_model_config *config, char *out, size_t size);

#endif
