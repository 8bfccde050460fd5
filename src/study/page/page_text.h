// Declares the parts that all of Mezzo's pages share: their style, and text that is safe within HTML.
#ifndef MZ_STUDY_PAGE_TEXT_H
#define MZ_STUDY_PAGE_TEXT_H

#include "io/json.h"

extern const unsigned char mz_page_css[];
extern const size_t mz_page_css_size;
extern const char mz_page_css_sha256[];

void mz_page_add_base64(mz_text *t, const unsigned char *bytes, size_t n);
void mz_page_add_escaped(mz_text *t, const char *text); // writes '<', '>', '&' and quotes as references
// Adds 'sha256-BASE64' of a part of the page, from its SHA-256 in hexadecimal (CSP Level 3, section 2.3.1).
void mz_page_add_hash(mz_text *t, const char *hex);

// Writes a report as one HTML page that its owner can send on: a device's description and self-tests, an advice. Each
// member of `report` is a section: an object as a table of names and values, an array of objects as a table with their
// keys as columns, a string as a paragraph. Rows whose "passed" is false are marked. The JSON itself is the last
// section. MEMORY; the caller frees *html with mz_text_free.
mezzo_status mz_json_page(const char *title, const json_t *report, mz_text *html);

#endif
