// Issues the calls of groups whose kind is per matrix: with ranks, exchanges of directions run during products.
#include "optim/orthogonal.h"

#include "optim/ranks.h"

static mezzo_status issue(mezzo_optimizer *opt, mz_sequence *into, mz_update_op *op) {
    return mz_issue(opt->device, into, &op->prepared, &op->call, opt->scratch, NULL);
}

// y = X·Xᵀ.
static mezzo_status issue_gram(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s, void *x, void *y) {
    s->gram.call.in[0].data = s->gram.call.in[1].data = x;
    s->gram.call.out[0].data = y;
    return issue(opt, into, &s->gram);
}

// y = gain·(c₂·A·A + c₁·A + c₀).
static mezzo_status issue_polynomial(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s, void *a, void *y,
                                     const float c[3], float gain) {
    mz_call *call = &s->polynomial.call;
    for (int i = 0; i < call->n_in; i++)
        call->in[i].data = a;
    call->out[0].data = y;
    for (int i = 0; i < 3; i++)
        call->attrs.coefficients[i] = c[2 - i] * gain;
    return issue(opt, into, &s->polynomial);
}

// y = a·b, which commute.
static mezzo_status issue_product(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s, void *a, void *b, void *y) {
    s->product.call.in[0].data = a;
    s->product.call.in[1].data = b;
    s->product.call.out[0].data = y;
    return issue(opt, into, &s->product);
}

// Issues what two steps have of the small side: A = X·Xᵀ, Z = c₂·A·A + c₁·A + c₀, the second step's A = Z·(Z·A), and
// its Z times the first one's, to small[0]. `next`: where the product of that with X will be.
static mezzo_status issue_pair(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s, void *const small[2], void *x,
                               void *next, const float c[2][3], float gain) {
    void *const gram = small[0], *const z = small[1];
    MEZZO_TRY(issue_gram(opt, into, s, x, gram));
    MEZZO_TRY(issue_polynomial(opt, into, s, gram, z, c[0], 1));
    MEZZO_TRY(issue_product(opt, into, s, z, gram, next));
    MEZZO_TRY(issue_product(opt, into, s, z, next, gram));
    MEZZO_TRY(issue_polynomial(opt, into, s, gram, next, c[1], gain));
    return issue_product(opt, into, s, next, z, small[0]);
}

// Issues what one step has of the small side: A = X·Xᵀ, and c₂·A·A + c₁·A to small[0].
static mezzo_status issue_single(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s, void *const small[2], void *x,
                                 const float c[3], float gain) {
    const float without[3] = {0, c[1], c[2]};
    MEZZO_TRY(issue_gram(opt, into, s, x, small[1]));
    return issue_polynomial(opt, into, s, small[1], small[0], without, gain);
}

// Issues the iteration, one or two steps at once: of an odd number the third is alone. Each time a matrix of the small
// side is multiplied with X, to which a single step adds c₀·X. X alternates between two places, and the last product
// writes the result over the directions.
static mezzo_status issue_steps(mezzo_optimizer *opt, mz_sequence *into, mz_stack *s) {
    const mezzo_orthogonal *o = &s->group->orthogonal;
    const int matrix = s->rows <= s->columns ? 1 : 0; // the operand of the last product that is X
    const mz_places p = mz_stack_places(opt, s);
    char *const scratch = opt->stacks->scratch;
    void *const small[2] = {scratch + p.small[0], scratch + p.small[1]};
    void *x = scratch + p.x, *next = scratch + p.next;
    for (int step = 0, n; step < o->steps; step += n) {
        const bool is_alone = step + 1 == o->steps || (step == 2 && o->steps % 2 == 1);
        n = is_alone ? 1 : s->at_once;
        mz_update_op *last = step + n == o->steps ? &s->finish : &s->advance;
        const float gain = last == &s->finish ? (float)s->gain : 1;
        float c[2][3];
        mz_orthogonal_coefficients(o, step, c[0]);
        mz_orthogonal_coefficients(o, step + 1, c[1]);
        MEZZO_TRY(n == 2 ? issue_pair(opt, into, s, small, x, next, c, gain)
                         : issue_single(opt, into, s, small, x, c[0], gain));
        last->call.in[1 - matrix].data = small[0];
        last->call.in[matrix].data = last->call.in[MZ_IN(matmul, added)].data = x;
        if (last == &s->advance)
            last->call.out[0].data = next;
        last->call.attrs.coefficients[0] = 1;
        last->call.attrs.coefficients[1] = n == 2 ? 0 : c[0][0] * gain;
        MEZZO_TRY(issue(opt, into, last));
        void *const before = x;
        x = next;
        next = before;
    }
    return MEZZO_OK;
}

// Issues collectives [first, first + n), which move some of these directions, on a stream of their own.
static mezzo_status issue_collectives(mezzo_optimizer *opt, mz_sequence *into, size_t first, size_t n, mz_tensor all) {
    struct mz_stacks *k = opt->stacks;
    if (n == 0)
        return MEZZO_OK;
    for (size_t i = first; i < first + n; i++) {
        k->collectives[i].send = k->scratch + k->moves[i].send;
        k->collectives[i].recv = k->scratch + k->moves[i].receive;
    }
    k->collectives[first].more = (int)n - 1;
    const mz_prepared prepared = {.kernel = &mz_collective_kernel, .state = &k->collectives[first]};
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .in = {all}, .n_out = 1, .out = {all}}; // the op's name is for logs
    if (into == NULL)
        return mz_issue(opt->device, into, &prepared, &call, NULL, NULL);
    return mz_sequence_add_on(into, MZ_STREAM_COLLECTIVE, &prepared, &call, NULL);
}

// Returns the directions of a stack and of the stacks after it, up to `end`, that have the rest of a parameter.
static mz_tensor directions_of(const struct mz_stacks *k, size_t at, size_t end) {
    const mz_stack *first = &k->list[at], *last = &k->list[end - 1];
    return mz_tensor_f32(k->scratch + (size_t)first->from * sizeof(float),
                         last->from + last->count * last->rows * last->columns - first->from);
}

// Issues a pass, which touches the directions of its own parameters alone.
static mezzo_status issue_pass(mezzo_optimizer *opt, mz_sequence *into, mz_update_op *op, mz_tensor directions) {
    mz_span spans[MZ_SPANS];
    const mz_traffic traffic = mz_traffic_of(&op->call, spans);
    for (int i = 0; i < traffic.n_reads + traffic.n_writes; i++)
        if (spans[i].from == opt->stacks->scratch) {
            spans[i].from = directions.data;
            spans[i].to = spans[i].from + (size_t)mz_shape_count(&directions.shape) * sizeof(float);
        }
    return mz_issue(opt->device, into, &op->prepared, &op->call, opt->scratch, &traffic);
}

// Issues the momentum pass of the parameters that begin with stack *at, and moves *at to the next ones; the functions
// below issue the other parts of the update likewise.
static mezzo_status issue_momentum(mezzo_optimizer *opt, mz_sequence *into, size_t *at) {
    mz_stack *s = &opt->stacks->list[*at];
    const size_t end = mz_stacks_end_of_parameters(opt->stacks, *at);
    const mz_tensor directions = directions_of(opt->stacks, *at, end);
    *at = end;
    if (s->n > 0)
        MEZZO_TRY(issue_pass(opt, into, &s->momentum, directions));
    return issue_collectives(opt, into, s->first_gather, s->n_gathers, directions);
}

static mezzo_status issue_products(mezzo_optimizer *opt, mz_sequence *into, size_t *at) {
    for (const size_t end = mz_stacks_end_of_parameters(opt->stacks, *at); *at < end; ++*at) {
        mz_stack *s = &opt->stacks->list[*at];
        if (s->own > 0) {
            MEZZO_TRY(issue(opt, into, &s->normalize));
            MEZZO_TRY(issue_steps(opt, into, s));
        }
        if (s->own > 0 && mz_group_keeps_rows(s->group))
            MEZZO_TRY(issue(opt, into, &s->scale_rows));
        const size_t rows = s->first_gather + s->n_gathers;
        const mz_tensor averages =
            mz_tensor_f32(opt->stacks->scratch + (size_t)s->rows_at * sizeof(float), s->count * s->rows);
        MEZZO_TRY(issue_collectives(opt, into, rows, s->n_rows, averages));
        MEZZO_TRY(
            issue_collectives(opt, into, rows + s->n_rows, s->n_returns, directions_of(opt->stacks, *at, *at + 1)));
    }
    return MEZZO_OK;
}

static mezzo_status issue_apply(mezzo_optimizer *opt, mz_sequence *into, size_t *at) {
    mz_stack *s = &opt->stacks->list[*at];
    const size_t end = mz_stacks_end_of_parameters(opt->stacks, *at);
    const mz_tensor directions = directions_of(opt->stacks, *at, end);
    *at = end;
    return s->n > 0 ? issue_pass(opt, into, &s->apply, directions) : MEZZO_OK;
}

// Issues the update of all stacks. With ranks, the next directions are exchanged and the last results returned during
// the products of a stack: turn i applies the results of turn i - 2, whose memory the directions of turn i + 1 then
// use. Those of turns 0 and 1 are under way from the beginning.
mezzo_status mz_stacks_begin(mezzo_optimizer *opt, mz_sequence *into, size_t *begun) {
    *begun = 0;
    for (int turn = 0; turn < MZ_STACK_PLACES - 1 && opt->stacks->size > 1 && *begun < opt->stacks->n; turn++)
        MEZZO_TRY(issue_momentum(opt, into, begun));
    return MEZZO_OK;
}

mezzo_status mz_stacks_issue(mezzo_optimizer *opt, mz_sequence *into, size_t begun) {
    const size_t n = opt->stacks->n;
    const bool is_ahead = opt->stacks->size > 1;
    size_t made = 0, applied = 0;
    for (int turn = 0; made < n; turn++) {
        if (is_ahead && turn >= MZ_STACK_PLACES - 1)
            MEZZO_TRY(issue_apply(opt, into, &applied));
        if (begun < n && (turn > 0 || !is_ahead))
            MEZZO_TRY(issue_momentum(opt, into, &begun));
        MEZZO_TRY(issue_products(opt, into, &made));
        if (!is_ahead)
            MEZZO_TRY(issue_apply(opt, into, &applied));
    }
    while (applied < n)
        MEZZO_TRY(issue_apply(opt, into, &applied));
    return MEZZO_OK;
}
