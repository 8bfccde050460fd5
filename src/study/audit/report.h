// Writes what an audit of a PyTorch program found.
#ifndef MZ_STUDY_AUDIT_REPORT_H
#define MZ_STUDY_AUDIT_REPORT_H

#include <jansson.h>

#include "study/audit/cost.h"
#include "study/audit/judge.h"

typedef struct mz_audit_report {
    const mz_torch_trace *traces; // in order of the ranks
    int n;
    const mz_audit *audit;
    const mz_torch_costs *costs;     // of the first rank
    const mz_torch_kernels *kernels; // NULL: Mezzo's kernels were not timed
    const char *device;              // the device on which they were timed
} mz_audit_report;

void mz_audit_text(const mz_audit_report *r, int columns, mz_text *t); // tables have so many columns of a terminal
// Return NULL when out of memory. The sections are those of mz_json_page: single values are a table, each list is one.
json_t *mz_audit_json(const mz_audit_report *r);
json_t *mz_audit_sections(const mz_audit_report *r);

#endif
