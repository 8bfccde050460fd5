// Writes an audit of a PyTorch program as one self-contained HTML page.
#ifndef MZ_STUDY_AUDIT_PAGE_H
#define MZ_STUDY_AUDIT_PAGE_H

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

// Writes the page. Errors: MEMORY. The caller frees *html with mz_text_free.
mezzo_status mz_audit_page(const mz_audit_report *report, mz_text *html);

#endif
