// Chat templates: the part of Jinja that published ones are written in, evaluated as transformers does (trim_blocks,
// lstrip_blocks). Statements: if, elif, else, for, set, macro, generation. What is not known is refused where it is
// reached: no template is half understood.
#ifndef MZ_DATA_TEMPLATE_H
#define MZ_DATA_TEMPLATE_H

#include <jansson.h>

#include "base/base.h"

// A text, and which of its bytes came out of a message: these never make a special token.
typedef struct mz_marked_text {
    mz_text text, told; // told: a byte 0 or 1 for each of the text
} mz_marked_text;
void mz_marked_text_free(mz_marked_text *t);

// `values`: an object of what the template may name. Strings of "messages" are told, but for roles. Errors are "WHERE:
// line N: …": UNSUPPORTED (a construct that is not known), FORMAT (no Jinja, a type that does not fit), INVALID (the
// template refuses the conversation: raise_exception), MEMORY.
mezzo_status mz_template_render(const char *where, const char *source, const json_t *values, mz_marked_text *out);

#endif
