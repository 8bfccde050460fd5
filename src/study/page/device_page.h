// Writes a report as one HTML page that its owner can send on: a device's description and self-tests, an advice.
#ifndef MZ_STUDY_DEVICE_PAGE_H
#define MZ_STUDY_DEVICE_PAGE_H

#include "io/json.h"

// Each member of `report` is a section: an object as a table of names and values, an array of objects as a table with
// their keys as columns, a string as a paragraph. Rows whose "passed" is false are marked. The JSON itself is the last
// section. MEMORY; the caller frees *html with mz_text_free.
mezzo_status mz_json_page(const char *title, const json_t *report, mz_text *html);

#endif
