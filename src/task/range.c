#include "task/range.h"

mezzo_status mz_range_open(mz_range range, const char *what, int64_t n_train, int64_t rows, mz_source *source) {
    const bool trains = range.stream == MZ_SET_TRAIN;
    range.first = trains ? 0 : n_train;
    range.n = trains ? n_train : range.n - n_train;
    if (range.n == 0)
        return mz_fail(MEZZO_ERR_INVALID, "there are no %s %s: make data.split %s", trains ? "training" : "validation",
                       what, trains ? "larger" : "smaller");
    mz_range *r;
    MEZZO_TRY(MZ_NEW(r, 1));
    *r = range;
    source->state = r;
    source->batches = (uint64_t)((r->n + rows - 1) / rows);
    return MEZZO_OK;
}

void mz_range_close(mz_source *source) {
    mz_free(source->state);
}

int64_t mz_range_place(const mz_range *r, uint64_t index) {
    uint32_t words[4];
    if (!r->random)
        return index < (uint64_t)r->n ? (int64_t)index : -1;
    mz_philox((mz_philox_key){r->seed, r->stream, r->tensor}, index, words);
    return (int64_t)(((__uint128_t)(words[0] | (uint64_t)words[1] << 32) * (uint64_t)r->n) >> 64);
}
