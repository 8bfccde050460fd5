// Chooses a token from a row of logits: the likeliest one, or one drawn by temperature, top-k and top-p.
#ifndef MZ_TASK_DRAW_H
#define MZ_TASK_DRAW_H

#include "base/base.h"

typedef struct mz_draw {       // says how a token is chosen
    double temperature, top_p; // temperature 0: the likeliest token; top_p 0 and 1: no limit
    int top_k;                 // 0: no limit
    uint64_t seed, index;      // the index-th draw of this seed
    const bool *enough;        // the text ends where `write` has set it; NULL: never
    bool same_weights;         // parameters are those of the last text, so that a common beginning is not read again
} mz_draw;

typedef struct mz_draw_room mz_draw_room; // memory for the choice from one row

mezzo_status mz_draw_room_create(int64_t vocab, int threads, mz_draw_room **out);
void mz_draw_room_free(mz_draw_room *room);

// Draws a token. Logits are [vocab]; -inf marks a token that cannot be drawn. The number of threads changes no choice.
// NUMERIC where a logit is NaN or the largest is not finite.
mezzo_status mz_draw_token(mz_draw_room *room, const float *logits, const mz_draw *draw, int32_t *token);

#endif
