// Defines rows and columns of mz_conv_kernels (conv_direct.h) by EACH_ROW, DECLARE, LOAD, STEP, ADD, STORE, NR, and
// WORD, the type of what STEP multiplies.
static void rows(int64_t runs, int64_t run_words, const mz_word *const *row, const int64_t *offset, const void *panel,
                 float *c, int64_t ldc) {
    const WORD *b = panel;
    EACH_ROW(DECLARE)
    for (int64_t run = 0; run < runs; run++) {
#define POINT(i) const WORD *p##i = (const WORD *)(const void *)(row[i] + offset[run]);
        EACH_ROW(POINT)
        for (int64_t k = 0; k < run_words; k++, b += NR) {
            LOAD(b)
#define STEP_ROW(i) STEP(i, p##i[k])
            EACH_ROW(STEP_ROW)
        }
    }
    EACH_ROW(STORE)
}

static void columns(int64_t lines, int64_t k, const mz_word *a_words, int64_t a_step, int64_t a_line,
                    const mz_word *b_words, int64_t b_step, int64_t b_line, float *c, bool add) {
    const int64_t ldc = NR;
    EACH_ROW(DECLARE)
    for (int64_t line = 0; line < lines; line++) {
        const WORD *a = (const WORD *)(const void *)(a_words + line * a_line);
        const WORD *b = (const WORD *)(const void *)(b_words + line * b_line);
        for (int64_t step = 0; step < k; step++, a += a_step, b += b_step) {
            LOAD(b)
#define STEP_COLUMN(i) STEP(i, a[i])
            EACH_ROW(STEP_COLUMN)
        }
    }
    if (add) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}
