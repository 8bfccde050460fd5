// Builds attention and rotary embeddings of ONNX files.
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "onnx/convert.h"

// --- masks ---------------------------------------------------------------------------------------------------------
// Says which keys a known mask lets a query see.
typedef enum sight { SEES_ALL, SEES_PAST, SEES_OTHER } sight;

static bool is_seen(const mz_onnx_value *mask, double number, bool *odd) {
    if (mask->integer)
        return number != 0;
    *odd = *odd || !(number == 0 || number <= -1e4);
    return number == 0;
}

// Finds what the mask shows. *window: how many positions each query sees at most, its own included; 0: all.
static sight what_is_seen(const mz_onnx_value *mask, int64_t queries, int64_t keys, int64_t *window) {
    const int64_t rows = mask->rank > 1 ? mask->dim[mask->rank - 2] : 1,
                  columns = mask->rank > 0 ? mask->dim[mask->rank - 1] : 1,
                  all = mz_onnx_elements(mask->rank, mask->dim), pages = rows * columns > 0 ? all / rows / columns : 0;
    bool odd = false, full = true, past = true;
    int64_t last = 0; // the last key that the last query sees
    *window = 0;
    if (pages < 1 || (rows != 1 && rows != queries) || (columns != 1 && columns != keys))
        return SEES_OTHER;
    for (int64_t j = 0; j < keys; j++)
        last += is_seen(mask, mask->numbers[(rows - 1) * columns + (columns == 1 ? 0 : j)], &odd);
    const int64_t span = queries == keys ? last : INT64_MAX;
    for (int64_t page = 0; page < pages; page++)
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < keys; j++) {
                const double number =
                    mask->numbers[(page * rows + (rows == 1 ? 0 : i)) * columns + (columns == 1 ? 0 : j)];
                const bool seen = is_seen(mask, number, &odd);
                full = full && seen;
                past = past && seen == (j <= i && i - j < span);
            }
    if (odd || !(full || past))
        return SEES_OTHER;
    *window = !full && span < queries ? span : 0;
    return full ? SEES_ALL : SEES_PAST;
}

// --- attention -----------------------------------------------------------------------------------------------------
// Views a value [B, H, T, D] as [B, T, H·D].
static mezzo_status rows_of_heads(mz_onnx_call *call, mz_onnx_value *x, const int *perm, mezzo_value *out) {
    MEZZO_TRY(mz_onnx_ordered(call, x, 4, perm, out));
    const mezzo_graph *g = call->build->g;
    const int64_t dim[] = {mezzo_value_dim(g, *out, 0), mezzo_value_dim(g, *out, 1),
                           mezzo_value_dim(g, *out, 2) * mezzo_value_dim(g, *out, 3)};
    *out = mz_onnx_shaped(call->build->g, *out, 3, dim);
    return mezzo_graph_status(g);
}

// Returns the value of which q, k and v are the three parts, one after another along its last dimension; NONE: there is
// no such value.
static mezzo_value packed(const mz_onnx_call *call, const mz_onnx_value *query, mezzo_value q, mezzo_value k,
                          mezzo_value v) {
    const mezzo_onnx *onnx = call->build->onnx;
    const MzPb__Node *node = NULL;
    for (int at = query->producer, steps = 0; at >= 0 && steps < 8; steps++) {
        node = onnx->model->graph->node[at];
        at = node->n_input > 0 ? mz_onnx_find(onnx, node->input[0])->producer : -1;
        if (strcmp(node->op_type, "Split") == 0)
            break;
    }
    if (!node || strcmp(node->op_type, "Split") != 0 || node->n_output != 3)
        return MEZZO_NONE;
    const mezzo_value parts[] = {q, k, v};
    const mz_onnx_value *whole = mz_onnx_find(onnx, node->input[0]);
    for (int i = 0; i < 3; i++)
        if (mz_onnx_find(onnx, node->output[i])->base.id != parts[i].id)
            return MEZZO_NONE;
    const mezzo_graph *g = call->build->g;
    const bool last = mz_onnx_in_order(whole) && whole->rank == 3 && whole->dim[2] == 3 * mezzo_value_dim(g, q, 2) &&
                      mezzo_value_dim(g, q, 2) == mezzo_value_dim(g, v, 2);
    return last ? whole->base : MEZZO_NONE;
}

// Returns the mask as numbers to add to scores, [1 or B, 1 or H, 1 or Tq, Tk]. *blind: rows in which -∞ hides every
// key, [… 1], where a later node guards against them; their scores then are finite.
static mezzo_status additive(mz_onnx_call *call, const mz_onnx_attention *a, int64_t keys, mezzo_value *out,
                             mezzo_value *blind) {
    mezzo_graph *g = call->build->g;
    int64_t dim[] = {1, 1, 1, 1};
    MEZZO_TRY(mz_onnx_value_of(call, a->mask, out));
    for (int i = 0; i < a->mask->rank && i < 4; i++)
        dim[3 - i] = a->mask->dim[a->mask->rank - 1 - i];
    *out = mz_onnx_shaped(g, *out, 4, dim);
    const mezzo_value lowest = mz_onnx_scalar(call, -FLT_MAX);
    if (a->mask->integer)
        *out = mezzo_where(g, mezzo_not_equal(g, *out, mz_onnx_scalar(call, 0)), mz_onnx_scalar(call, 0),
                           a->guarded ? mz_onnx_scalar(call, -INFINITY) : lowest);
    if (a->guarded) {
        *blind = mezzo_less(g, mezzo_reduce(g, MEZZO_REDUCE_MAX, *out, 1, (int[]){-1}, true), lowest);
        *out = mezzo_maximum(g, *out, lowest);
    }
    if (dim[3] != keys) {
        dim[3] = keys;
        *out = mezzo_expand(g, *out, 4, dim);
    }
    return mezzo_graph_status(g);
}

// Appends zeros to the width of [B, T, H·D]: they change no score, and a value's zeros are sliced off the result.
static mezzo_value widen_heads(mezzo_graph *g, mezzo_value x, int64_t heads, int64_t width, int64_t to) {
    const int64_t b = mezzo_value_dim(g, x, 0), t = mezzo_value_dim(g, x, 1);
    if (width == to)
        return x;
    x = mezzo_pad(g, mz_onnx_shaped(g, x, 4, (int64_t[]){b, t, heads, width}), (int64_t[]){0, 0, 0, 0},
                  (int64_t[]){0, 0, 0, to - width}, 0);
    return mz_onnx_shaped(g, x, 3, (int64_t[]){b, t, heads * to});
}

// Makes the fused op. known: the mask consists of known numbers, and `causal` and `window` say what it lets a query
// see.
static mezzo_status fused(mz_onnx_call *call, const mz_onnx_attention *a, bool known, bool causal, int64_t window) {
    static const int heads_third[] = {0, 2, 1, 3}, turned[] = {0, 2, 3, 1};
    mezzo_graph *g = call->build->g;
    const int64_t b = a->q->dim[0], heads = a->q->dim[1], queries = a->q->dim[2], kv = a->k->dim[1], d = a->q->dim[3],
                  dv = a->v->dim[3], width = d > dv ? d : dv;
    mezzo_value q, k, v, mask = MEZZO_NONE, blind = MEZZO_NONE;
    MEZZO_TRY(rows_of_heads(call, a->q, heads_third, &q));
    MEZZO_TRY(rows_of_heads(call, a->k, a->k_turned ? turned : heads_third, &k));
    MEZZO_TRY(rows_of_heads(call, a->v, heads_third, &v));
    if (!known)
        MEZZO_TRY(additive(call, a, a->k->dim[a->k_turned ? 3 : 2], &mask, &blind));
    if (!(a->scale > 0)) // 0 in a form means 1/√D
        q = mezzo_scale(g, q, (float)a->scale);
    const mezzo_attention_form form = {.heads = (int)heads,
                                       .kv_heads = (int)kv,
                                       .full = !causal,
                                       .window = window,
                                       .scale = a->scale > 0 ? (float)a->scale : 1,
                                       .score_cap = (float)a->cap};
    const mezzo_value whole =
        known && heads == kv && d == dv && a->scale > 0 ? packed(call, a->q, q, k, v) : MEZZO_NONE;
    q = widen_heads(g, q, heads, d, width);
    k = widen_heads(g, k, kv, d, width);
    v = widen_heads(g, v, kv, dv, width);
    if (!known)
        v = mezzo_attention_masked(g, q, k, v, mask, &form);
    else
        v = whole.id >= 0 ? mezzo_attention_of(g, whole, MEZZO_NONE, MEZZO_NONE, &form)
                          : mezzo_attention_of(g, q, k, v, &form);
    v = mz_onnx_shaped(g, v, 4, (int64_t[]){b, queries, heads, width});
    v = dv < width ? mezzo_slice(g, v, 3, 0, dv) : v;
    if (blind.id >= 0) // [… H, Tq, 1] is aligned with [B, Tq, H, D]
        v = mezzo_where(g, mezzo_permute(g, blind, heads_third), mz_onnx_scalar(call, 0), v);
    return mz_onnx_give_as(call, 0, false, 4, v, heads_third);
}

mezzo_status mz_onnx_attend(mz_onnx_call *call, const mz_onnx_attention *a, bool *done) {
    const int64_t queries = a->q->dim[2], keys = a->k->dim[a->k_turned ? 3 : 2];
    int64_t window = 0;
    sight seen = SEES_ALL;
    if (a->mask)
        seen = a->mask->kind == MZ_ONNX_HOST ? what_is_seen(a->mask, queries, keys, &window) : SEES_OTHER;
    *done = true;
    if (a->causal && seen == SEES_PAST) // both the attribute and the mask are causal
        seen = window == 0 ? SEES_ALL : SEES_OTHER;
    return fused(call, a, seen != SEES_OTHER, a->causal || seen == SEES_PAST, seen == SEES_OTHER ? 0 : window);
}

// Gets [B, T, H·D] as a value [B, H, T, D]; a value of four dimensions stays.
static mezzo_status split_heads(mz_onnx_call *call, int in, int64_t heads, mz_onnx_value *out) {
    mz_onnx_value *x = call->in[in];
    *out = *x;
    if (x->rank == 4)
        return MEZZO_OK;
    if (x->rank != 3 || heads < 1 || x->dim[2] % heads)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its input '%s' has %d dimensions and %lld heads", x->name,
                            x->rank, (long long)heads);
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, in, &v));
    const int64_t b = x->dim[0], t = x->dim[1], d = x->dim[2] / heads;
    *out = (mz_onnx_value){.name = x->name,
                           .kind = MZ_ONNX_VALUE,
                           .rank = 4,
                           .dim = {b, heads, t, d},
                           .perm = {0, 2, 1, 3},
                           .moved = MEZZO_NONE,
                           .base = mz_onnx_shaped(call->build->g, v, 4, (int64_t[]){b, t, heads, d})};
    return mezzo_graph_status(call->build->g);
}

// Joins output 0, [B, H, T, D], as [B, T, H·D].
static mezzo_status join_heads(mz_onnx_call *call) {
    mezzo_value y;
    MEZZO_TRY(rows_of_heads(call, call->out[0], (const int[]){0, 2, 1, 3}, &y));
    return mz_onnx_give(call, 0, false, 3, y);
}

mezzo_status mz_onnx_attention_node(mz_onnx_call *call) {
    const MzPb__Node *node = call->node;
    mz_onnx_value q, k, v;
    bool done;
    for (int i = 1; i < call->n_out; i++)
        if (node->output[i][0] != '\0')
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "keys, values or scores as outputs");
    if (mz_onnx_has(call, 4) || mz_onnx_has(call, 5) || mz_onnx_has(call, 6))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "keys and values of the past");
    for (int i = 0; i < 3; i++)
        if (call->in[i]->kind != MZ_ONNX_VALUE)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input '%s' is not computed", call->in[i]->name);
    const int64_t heads = mz_onnx_int_or(node, "q_num_heads", 0),
                  kv_heads = mz_onnx_int_or(node, "kv_num_heads", heads);
    MEZZO_TRY(split_heads(call, 0, heads, &q));
    MEZZO_TRY(split_heads(call, 1, kv_heads, &k));
    MEZZO_TRY(split_heads(call, 2, kv_heads, &v));
    if (q.dim[3] != k.dim[3] || k.dim[2] != v.dim[2] || k.dim[1] != v.dim[1] || q.dim[0] != k.dim[0] ||
        q.dim[0] != v.dim[0] || k.dim[1] < 1 || q.dim[1] % k.dim[1])
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
    const mz_onnx_attention a = {.q = &q,
                                 .k = &k,
                                 .v = &v,
                                 .scale = mz_onnx_float_or(node, "scale", 1 / sqrt((double)q.dim[3])),
                                 .cap = mz_onnx_float_or(node, "softcap", 0),
                                 .mask = mz_onnx_has(call, 3) ? call->in[3] : NULL,
                                 .causal = mz_onnx_int_or(node, "is_causal", 0) != 0};
    MEZZO_TRY(mz_onnx_attend(call, &a, &done));
    return call->in[0]->rank == 3 ? join_heads(call) : MEZZO_OK;
}

// --- rotary embeddings ---------------------------------------------------------------------------------------------
// Finds theta of tables [… T, D] of cosines and sines, position · theta^(-2i/D), repeated in both halves; 0: there is
// none.
static double find_theta(const mz_onnx_value *c, const mz_onnx_value *s, int64_t rows, int64_t width) {
    const int64_t half = width / 2, n = mz_onnx_elements(c->rank, c->dim);
    if (rows < 2 || half < 1 || width % 2 || n % (rows * width) || mz_onnx_elements(s->rank, s->dim) != n)
        return 0;
    double theta = 10000;
    if (half > 1) {
        theta = pow(atan2(s->numbers[width + 1], c->numbers[width + 1]), -(double)half);
        char text[32];
        mz_snprintf(text, sizeof text, "%.5g", theta);
        theta = mz_strtod(text, NULL);
    }
    if (!(theta > 1 && theta < 1e12))
        return 0;
    for (int64_t i = 0; i < n; i++) {
        const double t = (double)(i / width % rows), angle = t * pow(theta, -2.0 * (double)(i % half) / (double)width);
        const double slack = 2e-6 + t * 2.4e-7; // FP32's error of the angle
        if (fabs(c->numbers[i] - cos(angle)) > slack || fabs(s->numbers[i] - sin(angle)) > slack)
            return 0;
    }
    return theta;
}

mezzo_status mz_onnx_rope(mz_onnx_call *call, mz_onnx_value *x, const mz_onnx_value *cosines,
                          const mz_onnx_value *sines, bool *done) {
    static const int heads_third[] = {0, 2, 1, 3};
    mezzo_graph *g = call->build->g;
    const int64_t t = x->dim[2], d = x->dim[3];
    const bool fits = cosines->rank >= 2 && cosines->dim[cosines->rank - 1] == d &&
                      cosines->dim[cosines->rank - 2] == t && sines->rank >= 2 && sines->dim[sines->rank - 1] == d;
    const double theta = fits ? find_theta(cosines, sines, t, d) : 0;
    *done = theta > 0;
    if (!*done)
        return MEZZO_OK;
    mezzo_value v;
    MEZZO_TRY(rows_of_heads(call, x, heads_third, &v));
    mz_onnx_rope_table *table = &call->build->rope;
    if (table->width != d || table->rows != t || table->theta != theta)
        *table = (mz_onnx_rope_table){t, d, theta, mezzo_rope_table(g, MEZZO_NONE, t, (int)d, (float)theta)};
    v = mezzo_rope(g, v, table->made, (int)x->dim[1], (int)x->dim[1], false);
    v = mz_onnx_shaped(g, v, 4, (int64_t[]){x->dim[0], t, x->dim[1], d});
    return mz_onnx_give_as(call, 0, false, 4, v, heads_third);
}

// Builds RotaryEmbedding: a table's rows by position, or rows for each position; pairs are halves or neighbours.
mezzo_status mz_onnx_rotary(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const MzPb__Node *node = call->node;
    const bool beside = mz_onnx_int_or(node, "interleaved", 0) != 0;
    mz_onnx_value x;
    mezzo_value v, turn[2], part[2];
    if (call->in[0]->kind != MZ_ONNX_VALUE)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input is not computed");
    MEZZO_TRY(split_heads(call, 0, mz_onnx_int_or(node, "num_heads", 0), &x));
    const int64_t b = x.dim[0], h = x.dim[1], t = x.dim[2], d = x.dim[3];
    const int64_t given = mz_onnx_int_or(node, "rotary_embedding_dim", 0), turned = given ? given : d,
                  half = turned / 2;
    if (turned < 2 || turned % 2 || turned > d)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld of %lld dimensions are turned", (long long)turned,
                            (long long)d);
    for (int i = 0; i < 2; i++) {
        MEZZO_TRY(mz_onnx_number(call, 1 + i, &turn[i]));
        if (mz_onnx_has(call, 3)) {
            mezzo_value ids;
            MEZZO_TRY(mz_onnx_index(call, 3, &ids));
            turn[i] = mezzo_gather(g, turn[i], 0, ids, false);
        }
        turn[i] = mz_onnx_shaped(g, turn[i], 4, (int64_t[]){-1, 1, t, half});
    }
    MEZZO_TRY(mz_onnx_value_of(call, &x, &v));
    const mezzo_value all = v;
    v = turned < d ? mezzo_slice(g, v, 3, 0, turned) : v;
    if (beside)
        v = mz_onnx_shaped(g, v, 5, (int64_t[]){b, h, t, half, 2});
    MEZZO_TRY(mezzo_split(g, v, beside ? 4 : 3, 2, part));
    for (int i = 0; i < 2; i++)
        part[i] = mz_onnx_shaped(g, part[i], 4, (int64_t[]){b, h, t, half});
    mezzo_value made[] = {mezzo_sub(g, mezzo_mul(g, part[0], turn[0]), mezzo_mul(g, part[1], turn[1])),
                          mezzo_add(g, mezzo_mul(g, part[0], turn[1]), mezzo_mul(g, part[1], turn[0]))};
    for (int i = 0; i < 2 && beside; i++)
        made[i] = mz_onnx_shaped(g, made[i], 5, (int64_t[]){b, h, t, half, 1});
    v = mz_onnx_shaped(g, mezzo_concat(g, made, 2, beside ? 4 : 3), 4, (int64_t[]){b, h, t, turned});
    if (turned < d)
        v = mezzo_concat(g, (mezzo_value[]){v, mezzo_slice(g, all, 3, turned, d)}, 2, 3);
    MEZZO_TRY(mz_onnx_give(call, 0, false, 4, v));
    return call->in[0]->rank == 3 ? join_heads(call) : MEZZO_OK;
}
