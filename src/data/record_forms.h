// Reads one record as JSON, in one of the usual forms (record_forms.def), and its content: a conversation, a prompt
// with its answer, or a document.
#ifndef MZ_DATA_RECORD_FORMS_H
#define MZ_DATA_RECORD_FORMS_H

#include <jansson.h>

#include "base/base.h"

typedef enum mz_record_kind { MZ_RECORD_LIST, MZ_RECORD_TURN, MZ_RECORD_PAIR, MZ_RECORD_TEXT } mz_record_kind;

typedef struct mz_record_form {
    const char *name;
    mz_record_kind kind;
    const char *key, *answer, *context; // NULL: the form has no such key
} mz_record_form;
enum {
#define RECORD_FORM(name, ...) MZ_RECORD_FORM_##name,
#include "data/record_forms.def"
    MZ_RECORD_FORMS
};
extern const mz_record_form mz_record_forms[MZ_RECORD_FORMS];

// Finds a form by its name; *out NULL for "", NULL and "auto". INVALID: there is no form of that name; the message
// lists all.
mezzo_status mz_record_form_named(const char *name, const mz_record_form **out);

typedef struct mz_record_content {
    const mz_record_form *form;
    json_t *messages;            // [{"role", "content", …}]; owned; NULL: prompt and answer instead
    const char *prompt, *answer; // borrowed from the record; prompt NULL: it is a document
} mz_record_content;
// Parses a record. `form` NULL: its keys decide. Messages have texts as contents and the roles user, assistant and
// system for the names that ShareGPT uses; one whose "weight" is 0 does not count. FORMAT, naming `where` and the key:
// no form, a value of another type, a content part that is no text. Release it after an error, too.
mezzo_status mz_record_parse(const char *where, const json_t *record, const mz_record_form *form,
                             mz_record_content *out);
void mz_record_release(mz_record_content *content);

#endif
