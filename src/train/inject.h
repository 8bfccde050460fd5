// Declares the functions that a run calls where a fault may strike. The pointer to them is NULL unless the program is
// linked with tools/inject/inject.c, which injects faults for tests.
#ifndef MZ_TRAIN_INJECT_H
#define MZ_TRAIN_INJECT_H

#include "runtime/program.h"

struct mz_training;

typedef struct mz_injections {
    mezzo_status (*open)(struct mz_training *run);
    void (*close)(struct mz_training *run);
    void (*at)(struct mz_training *run, int64_t step, int64_t micro, uint64_t data); // sets the present step and micro
                                                                                     // batch (from 0) for injections
    mezzo_status (*gradient)(struct mz_training *run);
    mezzo_status (*parameter)(struct mz_training *run);
    mezzo_status (*drop)(struct mz_training *run, int64_t step);
    mezzo_status (*update)(struct mz_training *run);            // called after an update
    mezzo_status (*disk)(struct mz_training *run, bool before); // called around a save: changes the parameter, and
                                                                // restores it
} mz_injections;
extern const mz_injections *mz_injecting;

#define MZ_INJECT_OPEN(run)            MEZZO_TRY(mz_injecting != NULL ? mz_injecting->open(run) : MEZZO_OK)
#define MZ_INJECT_GRADIENT(run)        MEZZO_TRY(mz_injecting != NULL ? mz_injecting->gradient(run) : MEZZO_OK)
#define MZ_INJECT_PARAMETER(run)       MEZZO_TRY(mz_injecting != NULL ? mz_injecting->parameter(run) : MEZZO_OK)
#define MZ_INJECT_DROP(run, step)      MEZZO_TRY(mz_injecting != NULL ? mz_injecting->drop((run), (step)) : MEZZO_OK)
#define MZ_INJECT_UPDATE(run)          MEZZO_TRY(mz_injecting != NULL ? mz_injecting->update(run) : MEZZO_OK)
#define MZ_INJECT_DISK(run, before)    MEZZO_TRY(mz_injecting != NULL ? mz_injecting->disk((run), (before)) : MEZZO_OK)
#define MZ_INJECT_AT(run, step, micro) MZ_INJECT_AT_DATA(run, step, micro, (run)->data->position)
#define MZ_INJECT_AT_DATA(run, step, micro, data)                                                                      \
    (mz_injecting != NULL ? mz_injecting->at((run), (step), (micro), (data) + (uint64_t)(micro)) : (void)0)

#endif
