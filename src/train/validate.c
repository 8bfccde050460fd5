// The loss on data that is not trained on.
#include <math.h>

#include "train/run.h"

mezzo_status mz_validate(mezzo_program *program, const mezzo_loader *loader, uint64_t n, int32_t *inputs,
                         int32_t *targets, size_t count, const volatile sig_atomic_t *stop, double *loss,
                         uint64_t *tokens) {
    double sum = 0;
    uint64_t counted = 0;
    *loss = (double)NAN;
    for (uint64_t k = 0; k < n; k++) {
        float mean = 0;
        uint64_t valid = 0;
        if (stop != NULL && *stop)
            return MEZZO_OK;
        MEZZO_TRY(mezzo_loader_batch(loader, k, inputs, targets));
        for (size_t i = 0; i < count; i++)
            valid += targets[i] >= 0; // the last windows of a pass are filled up with ignored targets
        MEZZO_TRY(mezzo_program_write(program, "tokens", inputs, count * sizeof *inputs));
        MEZZO_TRY(mezzo_program_write(program, "targets", targets, count * sizeof *targets));
        MEZZO_TRY(mezzo_program_run(program, NULL, 0, 0));
        MEZZO_TRY(mezzo_program_read(program, "loss", &mean, sizeof mean));
        sum += (double)mean * (double)valid;
        counted += valid;
    }
    if (counted > 0)
        *loss = sum / (double)counted;
    if (tokens != NULL)
        *tokens = counted;
    return MEZZO_OK;
}
