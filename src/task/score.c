// How good a model is on data that it is not trained on.
#include <math.h>

#include "runtime/program.h"
#include "task/task.h"

// Targets whose class has the largest logit; of equal ones the lowest class. Targets are I32 [items].
static uint64_t count_right(const mz_source *source) {
    const int32_t *targets = mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->data;
    uint64_t right = 0;
    for (int64_t i = 0; i < source->examples.items; i++) {
        const float *row = source->logits + i * source->classes; // [classes]
        int64_t best = 0;
        for (int64_t c = 1; c < source->classes; c++)
            best = row[c] > row[best] ? c : best;
        right += targets[i] >= 0 && best == targets[i];
    }
    return right;
}

mezzo_status mz_evaluate(mezzo_program *program, mz_source *source, uint64_t n, const volatile sig_atomic_t *stop,
                         mz_evaluation *out) {
    const size_t logits = (size_t)(source->examples.items * source->classes) * sizeof *source->logits;
    double sum = 0;
    uint64_t counted = 0, right = 0;
    *out = (mz_evaluation){.loss = (double)NAN, .accuracy = (double)NAN};
    for (uint64_t k = 0; k < n; k++) {
        float mean = 0;
        if (stop != NULL && *stop)
            return MEZZO_OK;
        mz_work("validation", (int64_t)k, (int64_t)n);
        MEZZO_TRY(mz_source_draw(source, k, NULL, 0));
        MEZZO_TRY(mz_examples_write(&source->examples, program));
        MEZZO_TRY(mezzo_program_run(program, NULL, 0, 0));
        if (source->logits != NULL) {
            MEZZO_TRY(mezzo_program_read(program, "logits", source->logits, logits));
            right += count_right(source);
        }
        const uint64_t weight = source->task->kind->weight(&source->examples);
        if (weight > 0)
            MEZZO_TRY(mz_program_read_finite(program, "loss", &mean, 1));
        if (source->each != NULL)
            source->each[k] = (mz_batch_score){(double)mean, weight};
        sum += (double)mean * (double)weight;
        counted += weight;
        if (source->task->kind->bytes != NULL)
            out->bytes += source->task->kind->bytes(source->task, &source->examples);
    }
    mz_work("validation", (int64_t)n, (int64_t)n);
    if (counted == 0)
        return mz_fail(MEZZO_ERR_NUMERIC, "none of the %llu batches has a target: a loss is the mean of some",
                       (unsigned long long)n);
    out->counted = counted;
    out->loss = sum / (double)counted;
    if (source->logits != NULL)
        out->accuracy = (double)right / (double)counted;
    return MEZZO_OK;
}
