// Writes figures as gnuplot scripts with their data in them, and draws each as PNG and SVG beside the script.
#ifndef MZ_STUDY_FIGURES_H
#define MZ_STUDY_FIGURES_H

#include "study/analyse/analysis.h"

// Writes FOLDER/NAME.gp from `body`, which it frees: the data blocks, settings and one plot command of a figure of
// width × height pixels; then draws it. UNSUPPORTED: gnuplot is missing; IO: it failed, with the script's name.
mezzo_status mz_figure_make(const char *folder, const char *name, mz_text *body, int width, int height);

// Draws Graphviz' text as FILE.svg or FILE.png, and keeps FILE.dot beside it. UNSUPPORTED: Graphviz is missing, and
// FILE.dot is written; IO.
mezzo_status mz_figure_graph(const mz_text *dot, const char *path);

// Draws every figure of an analysis: decision_boundary, contours_dWIDTH, memory_saving, energy_saving (where known).
// *drawn counts those that gnuplot made; without gnuplot it writes the scripts, *drawn is 0 and `why` (of `size` bytes)
// has the reason.
mezzo_status mz_analysis_figures(const mz_analysis *a, const char *folder, int *drawn, char *why, size_t size);

#endif
