// Draws where the memory goes, as stacked bars.
#ifndef MZ_STUDY_MEMORY_FIGURE_H
#define MZ_STUDY_MEMORY_FIGURE_H

#include "study/measure/measure.h"

typedef struct mz_memory_bar {
    char name[48];
    mz_footprint footprint;
} mz_memory_bar;
// FOLDER/NAME.gp, drawn as NAME.png and NAME.svg. limit: bytes, a line across; 0: none. Errors: UNSUPPORTED (no
// gnuplot), IO.
mezzo_status mz_memory_draw(const char *folder, const char *name, const char *title, const mz_memory_bar *bars, int n,
                            size_t limit);

#endif
