// Measures a model on data on which it is not trained.
#include <math.h>

#include "runtime/program.h"
#include "task/task.h"

static int64_t count_targets(const mz_source *source) {
    return (int64_t)(mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->bytes / sizeof(int32_t));
}

// Counts targets whose class has the largest logit; of equal ones the lowest class. Targets are I32 [targets].
static uint64_t count_right(const mz_source *source) {
    const int32_t *targets = mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->data;
    uint64_t right = 0;
    for (int64_t i = 0; i < count_targets(source); i++) {
        const float *row = source->logits + i * source->classes; // [classes]
        int64_t best = 0;
        for (int64_t c = 1; c < source->classes; c++)
            best = row[c] > row[best] ? c : best;
        right += targets[i] >= 0 && best == targets[i];
    }
    return right;
}

// Sums over numbers t that were predicted as p: their count, |p - t|, (p - t)², t and t².
typedef struct sums {
    double n, absolute, squared, t, t2;
} sums;

static void compare_numbers(const mz_source *source, sums *s) {
    const float *t = mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->data;
    const float *weights = mz_examples_input(&source->examples, MZ_ROLE_WEIGHT)->data;
    const int64_t n = count_targets(source), each = n / source->examples.items;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)source->prediction[i] - (double)t[i];
        if (!(weights[i / each] > 0))
            continue;
        s->n++;
        s->absolute += fabs(d);
        s->squared += d * d;
        s->t += (double)t[i];
        s->t2 += (double)t[i] * (double)t[i];
    }
}

mezzo_status mz_evaluate(mezzo_program *program, mz_source *source, uint64_t n, const volatile sig_atomic_t *stop,
                         mz_evaluation *out) {
    const size_t targets = source->logits != NULL || source->prediction != NULL ? (size_t)count_targets(source) : 0;
    sums numbers = {0};
    double sum = 0;
    uint64_t counted = 0, right = 0;
    *out = (mz_evaluation){(double)NAN, (double)NAN, (double)NAN, (double)NAN, 0, 0};
    for (uint64_t k = 0; k < n; k++) {
        float mean = 0;
        if (stop != NULL && *stop)
            return MEZZO_OK;
        mz_work("validation", (int64_t)k, (int64_t)n);
        MEZZO_TRY(mz_source_draw(source, k, NULL, 0));
        MEZZO_TRY(mz_examples_write(&source->examples, program));
        MEZZO_TRY(mezzo_program_run(program, NULL, 0, 0));
        if (source->logits != NULL) {
            MEZZO_TRY(mezzo_program_read(program, "logits", source->logits,
                                         targets * (size_t)source->classes * sizeof *source->logits));
            right += count_right(source);
        }
        if (source->prediction != NULL) {
            MEZZO_TRY(mezzo_program_read(program, "prediction", source->prediction, targets * sizeof(float)));
            compare_numbers(source, &numbers);
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
    if (numbers.n > 0) {
        const double spread = numbers.t2 - numbers.t * numbers.t / numbers.n;
        out->mae = numbers.absolute / numbers.n;
        out->r2 = spread > 0 ? 1 - numbers.squared / spread : (double)NAN;
    }
    return MEZZO_OK;
}
