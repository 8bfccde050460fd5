// Rounds a tensor's numbers to formats, tile by tile, with the scales and the rounding of emulated products and of
// quantize.
#include "backend/inspect.h"
#include "backend/ref/ref.h"
#include "backend/update.h"
#include "base/blocks.h"
#include "quant/entry.h"

enum { LONG = MZ_ROUNDING_LONG, SHORT = MZ_ROUNDING_SHORT };

typedef struct matrix {
    const mz_tensor *t;
    const uint16_t *low; // NULL, or the other halves of split masters
    int64_t rows, columns;
    mezzo_dtype via;
} matrix;

typedef struct box { // a part of a matrix
    int64_t row, column, rows, columns;
} box;

static float number_at(const matrix *m, int64_t row, int64_t column) {
    const int64_t i = row * m->columns + column;
    float x = (float)mz_ref_get(m->t, i);
    uint16_t narrow;
    if (m->low != NULL)
        x = mz_master_join(mezzo_f32_to_bf16(x), m->low[mz_tensor_index(m->t, i)]);
    if (m->via != MEZZO_BF16 && m->via != MEZZO_F16)
        return x;
    (void)mezzo_convert(&x, MEZZO_F32, &narrow, m->via, 1);
    (void)mezzo_convert(&narrow, m->via, &x, MEZZO_F32, 1);
    return x;
}

static box cut(const matrix *m, box b) { // the part of the box inside the matrix
    b.rows = b.rows < m->rows - b.row ? b.rows : m->rows - b.row;
    b.columns = b.columns < m->columns - b.column ? b.columns : m->columns - b.column;
    return b;
}

static float amax_of(const matrix *m, box b) {
    float amax = 0;
    b = cut(m, b);
    for (int64_t r = 0; r < b.rows; r++)
        for (int64_t c = 0; c < b.columns; c++) {
            const float x = number_at(m, b.row + r, b.column + c);
            amax = mz_blocks_amax((const float[]){amax, x}, 2);
        }
    return amax;
}

// Returns the bits of a scale as E8M0 or, for NVFP4, as E4M3.
static uint8_t code_of(const mz_rounding_how *how, float amax, float tensor) {
    return how->blocks != MEZZO_BLOCKS_NONE ? mz_blocks_scale(how->blocks, amax, tensor)
                                            : (uint8_t)(ilogbf(mz_scale_for(amax, how->dtype)) + 127);
}

static float scale_of(const mz_rounding_how *how, uint8_t code, float tensor) {
    return how->blocks != MEZZO_BLOCKS_NONE ? mz_blocks_scale_value(how->blocks, code) * tensor
                                            : mezzo_e8m0_to_f32(code);
}

// Returns the box of numbers that share the scale of the one at (row, column).
static box sharing(const mz_rounding_how *how, bool columnwise, const matrix *m, int64_t row, int64_t column) {
    if (how->blocks == MEZZO_BLOCKS_NONE && !mz_scaling_in_blocks(how->scaling))
        return (box){0, 0, m->rows, m->columns};
    const int64_t along = how->blocks != MEZZO_BLOCKS_NONE ? mz_blocks_table[how->blocks].size : MZ_SCALE_BLOCK;
    const int64_t across = mz_scalings[how->scaling].rows > 1 && how->blocks == MEZZO_BLOCKS_NONE ? along : 1;
    const int64_t down = columnwise ? along : across, right = columnwise ? across : along;
    return cut(m, (box){row / down * down, column / right * right, down, right});
}

typedef struct scaled { // the last box whose scale was computed
    box of;
    float scale;
} scaled;

static float scale_at(const mz_call *call, int f, const matrix *m, int64_t row, int64_t column, scaled *last,
                      mz_rounding_sums *found) {
    const mz_rounding_how *how = &call->attrs.rounding->how[f];
    const box b = sharing(how, call->attrs.rounding->columnwise, m, row, column);
    if (memcmp(&b, &last->of, sizeof b) == 0)
        return last->scale;
    const bool whole = b.rows == m->rows && b.columns == m->columns;
    const float tensor = mz_blocks_tensor_scale(how->blocks, mz_bits_float(found->amax));
    const float amax = whole ? mz_bits_float(found->amax) : amax_of(m, b);
    const uint8_t code = code_of(how, amax, tensor);
    *last = (scaled){b, scale_of(how, code, tensor)};
    if (b.row == row && b.column == column) // only its first number counts the scale
        found->scales[code] += amax > 0 && isfinite(amax) && last->scale > 0;
    return last->scale;
}

static void add_number(const mz_call *call, int f, float x, float scale, int64_t i, double *squares, double *errors,
                       mz_rounding_sums *found) {
    const mz_small small = mz_rounding_small(&call->attrs.rounding->how[f]);
    float q = x;
    if (!isfinite(x) || isnan(scale)) {
        found->not_finite++;
        x = q = 0;
    } else {
        mz_small_round(small, &q, 1, scale == 0 ? 0 : 1 / scale, scale);
        const float error = q - x;
        found->nonzero += x != 0;
        found->underflow += x != 0 && q == 0;
        found->saturated += fabsf(x) > mz_small_largest(small) * scale;
        *squares += (double)x * (double)x;
        *errors += (double)error * (double)error;
    }
    if (f == 0 && mz_present(mz_out(call, rounding, rounded)))
        mz_ref_put(mz_out(call, rounding, rounded), i, (double)q);
}

static double add_up(double *sums, int n) {
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

// Rounds a tile along its runs, so that neighbours share a scale.
static void round_tile(const mz_call *call, int f, const matrix *m, box tile, double sums[2], mz_rounding_sums *found) {
    static const double zeros[MZ_ROUNDING_SUMS] = {0};
    const bool down = call->attrs.rounding->columnwise;
    double squares[MZ_ROUNDING_SUMS], errors[MZ_ROUNDING_SUMS];
    scaled last = {.of = {.rows = -1}};
    memcpy(squares, zeros, sizeof squares);
    memcpy(errors, zeros, sizeof errors);
    for (int64_t k = 0; k < tile.rows * tile.columns; k++) {
        const int64_t r = down ? k % tile.rows : k / tile.columns, c = down ? k / tile.rows : k % tile.columns;
        const int64_t row = tile.row + r, column = tile.column + c;
        const int64_t at = down ? r / SHORT * SHORT + c : r * SHORT + c / SHORT * 8 + c % 8;
        const float scale = scale_at(call, f, m, row, column, &last, found);
        add_number(call, f, number_at(m, row, column), scale, row * m->columns + column, &squares[at], &errors[at],
                   found);
    }
    sums[0] = add_up(squares, MZ_ROUNDING_SUMS);
    sums[1] = add_up(errors, MZ_ROUNDING_SUMS);
}

void mz_ref_rounding(const mz_call *call) {
    const mz_rounding_attrs *a = call->attrs.rounding;
    const mz_shape *shape = &mz_in(call, rounding, x)->shape;
    const matrix m = {.t = mz_in(call, rounding, x),
                      .low = mz_in(call, rounding, low)->data,
                      .rows = mz_shape_rows(shape),
                      .columns = shape->dim[shape->rank - 1],
                      .via = a->via};
    const int64_t high = a->columnwise ? LONG : SHORT, wide = a->columnwise ? SHORT : LONG;
    for (int f = 0; f < a->n; f++) {
        mz_rounding_sums *found = (mz_rounding_sums *)mz_out(call, rounding, found)->data + f;
        double squares[MZ_ROUNDING_LANES] = {0}, errors[MZ_ROUNDING_LANES] = {0};
        int64_t tile = 0;
        const float amax = amax_of(&m, (box){0, 0, m.rows, m.columns});
        *found = (mz_rounding_sums){.amax = mz_magnitude_of_one_nan(mz_float_bits(amax))};
        for (int64_t row = 0; row < m.rows; row += high)
            for (int64_t column = 0; column < m.columns; column += wide, tile++) {
                double sums[2];
                round_tile(call, f, &m, cut(&m, (box){row, column, high, wide}), sums, found);
                squares[tile % MZ_ROUNDING_LANES] += sums[0];
                errors[tile % MZ_ROUNDING_LANES] += sums[1];
            }
        found->squares = add_up(squares, MZ_ROUNDING_LANES);
        found->error = add_up(errors, MZ_ROUNDING_LANES);
    }
}
