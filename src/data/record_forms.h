// One record as JSON, in one of the forms that people use (record_forms.def), and what it says: a conversation, a
// prompt with its answer, or a document.
#ifndef MZ_DATA_RECORD_FORMS_H
#define MZ_DATA_RECORD_FORMS_H

#include <jansson.h>

#include "base/base.h"

typedef enum mz_record_kind { MZ_RECORD_LIST, MZ_RECORD_TURN, MZ_RECORD_PAIR, MZ_RECORD_TEXT } mz_record_kind;

typedef struct mz_record_form {
    const char *name;
    mz_record_kind kind;
    const char *key, *answer, *context; // NULL: it has none
} mz_record_form;
enum {
#define RECORD_FORM(name, ...) MZ_RECORD_FORM_##name,
#include "data/record_forms.def"
    MZ_RECORD_FORMS
};
extern const mz_record_form mz_record_forms[MZ_RECORD_FORMS];

// *out NULL: "", NULL or "auto". INVALID: there is no form of that name, with all that there are.
mezzo_status mz_record_form_named(const char *name, const mz_record_form **out);

typedef struct mz_record_content {
    const mz_record_form *form;
    json_t *messages;            // [{"role", "content", …}]; owned; NULL: prompt and answer instead
    const char *prompt, *answer; // borrowed from the record; prompt NULL: a document
} mz_record_content;
// `form` NULL: by the record's keys. Messages have texts for contents and the roles user, assistant and system for the
// names that ShareGPT uses; one whose "weight" is 0 does not count. FORMAT, naming `where` and the key: no form, a
// value of another type, a content part that is no text. Release it also then.
mezzo_status mz_record_parse(const char *where, const json_t *record, const mz_record_form *form,
                             mz_record_content *out);
void mz_record_release(mz_record_content *content);

#endif
