// Writes runs as one HTML page that needs nothing else: curves, samples, configuration, the precision of every op.
#ifndef MZ_STUDY_RUN_PAGE_H
#define MZ_STUDY_RUN_PAGE_H

#include "study/page/run_log.h"

// The page of logs[0 … n), drawn by the charting library that the build found. Curves of more than 2,000 points are
// thinned to what looks the same. UNSUPPORTED: the build found no charting library; MEMORY. The caller frees *html with
// mz_text_free.
mezzo_status mz_run_page(const mz_run_log *logs, int n, const char *title, mz_text *html);

#endif
