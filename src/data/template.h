// Renders chat templates. The language is Jinja, evaluated as transformers does (trim_blocks, lstrip_blocks, loop
// controls, generation blocks, raise_exception, strftime_now, its own tojson, no mutation of lists and maps). A
// template renders as in Jinja or is refused: the error names a construct that is not supported where rendering reaches
// it.
#ifndef MZ_DATA_TEMPLATE_H
#define MZ_DATA_TEMPLATE_H

#include <jansson.h>

#include "base/base.h"

// Holds a text and the marks of its bytes. TOLD: they come from a message, and never make a special token. GENERATED:
// they were written inside {% generation %}.
enum { MZ_MARK_TOLD = 1, MZ_MARK_GENERATED = 2 };
typedef struct mz_marked_text {
    mz_text text, told; // told: a byte of marks for each byte of the text
} mz_marked_text;
void mz_marked_text_free(mz_marked_text *t);

// Holds what a template wrote while a loop was at a message.
typedef struct mz_template_span {
    size_t message, from, to; // message counts from 0; from and to are bytes
} mz_template_span;
typedef struct mz_template_spans {
    mz_template_span *at;
    size_t n, cap;
    bool generation; // the template has {% generation %}
} mz_template_spans;

// Renders a template. `values` is an object of what the template may name; strings of "messages" are told, but for
// roles. spans (may be NULL) are appended, in order of their beginnings; the caller frees `at`. Errors are "WHERE: line
// N: …": UNSUPPORTED (a construct that is not supported), FORMAT (Jinja refuses it, too), INVALID (the template refuses
// the conversation: raise_exception), MEMORY.
mezzo_status mz_template_render(const char *where, const char *source, const json_t *values, mz_marked_text *out);
mezzo_status mz_template_render_spans(const char *where, const char *source, const json_t *values, mz_marked_text *out,
                                      mz_template_spans *spans);

#endif
