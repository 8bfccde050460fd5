// Builds the losses of models from ONNX files: each compares an output with labels, or is an output of the file.
#include <pthread.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "models/graph_file.h"

// The parts of a loss. A loss of numbers compares x with labels t of the same shape; a loss of classes takes logits x
// and I32 classes t.
typedef struct parts {
    mezzo_graph *g;
    mezzo_value x, t, w; // w: a weight for each row [B], or MEZZO_NONE
} parts;

static mezzo_value number(mezzo_graph *g, float value) {
    return mezzo_constant(g, MEZZO_F32, value, 1, (int64_t[]){1});
}

// --- numbers: one for each element ---------------------------------------------------------------------------------
static mezzo_value absolute(const parts *p) {
    return mezzo_abs(p->g, mezzo_sub(p->g, p->x, p->t));
}

static mezzo_value squared(const parts *p) {
    const mezzo_value d = mezzo_sub(p->g, p->x, p->t);
    return mezzo_mul(p->g, d, d);
}

// Builds Huber's loss, d²/2 up to 1 and |d| - 1/2 beyond. With q = min(|d|, 1) both are q²/2 + |d| - q.
static mezzo_value huber(const parts *p) {
    const mezzo_value d = absolute(p), q = mezzo_clamp(p->g, d, 0, 1);
    return mezzo_add(p->g, mezzo_scale(p->g, mezzo_mul(p->g, q, q), 0.5F), mezzo_sub(p->g, d, q));
}

// Returns log x, where x below the smallest normal number counts as that number.
static mezzo_value safe_log(mezzo_graph *g, mezzo_value x) {
    return mezzo_log(g, mezzo_clamp(g, x, 1.17549435e-38F, 1));
}

// Returns -t·log x - (1 - t)·log(1 - x).
static mezzo_value binary(const parts *p) {
    const mezzo_value one = number(p->g, 1);
    const mezzo_value yes = mezzo_mul(p->g, p->t, safe_log(p->g, p->x));
    const mezzo_value no = mezzo_mul(p->g, mezzo_sub(p->g, one, p->t), safe_log(p->g, mezzo_sub(p->g, one, p->x)));
    return mezzo_scale(p->g, mezzo_add(p->g, yes, no), -1);
}

// Returns the binary loss of sigmoid(x): log(1 + eˣ) - t·x.
static mezzo_value binary_of_logits(const parts *p) {
    return mezzo_sub(p->g, mezzo_softplus(p->g, p->x), mezzo_mul(p->g, p->t, p->x));
}

// --- the table -----------------------------------------------------------------------------------------------------
typedef enum labels_kind { NO_LABELS, NUMBERS, CLASSES } labels_kind;
static const struct {
    const char *name;
    labels_kind labels;
    mezzo_value (*element)(const parts *p); // for NUMBERS
    bool log, predicts;                     // CLASSES: x is log-probabilities; NUMBERS: x estimates t
} kinds[] = {{"value", NO_LABELS, NULL, false, false}, {"cross_entropy", CLASSES, NULL, false, false},
             {"nll", CLASSES, NULL, true, false},      {"mse", NUMBERS, squared, false, true},
             {"l1", NUMBERS, absolute, false, true},   {"huber", NUMBERS, huber, false, true},
             {"bce", NUMBERS, binary, false, false},   {"bce_with_logits", NUMBERS, binary_of_logits, false, false}};

// --- reading -------------------------------------------------------------------------------------------------------
static const char *skip(const char *at) {
    return at + strspn(at, " ");
}

// Takes a name up to one of the marks, without blanks at its end.
static mezzo_status take_name(const char **at, char *out, size_t size) {
    const char *begin = skip(*at);
    size_t n = strcspn(begin, "(),+*");
    *at = begin + n;
    while (n > 0 && begin[n - 1] == ' ')
        n--;
    if (n == 0 || n >= size)
        return mz_fail(MEZZO_ERR_INVALID, "a name of %zu characters", n);
    snprintf(out, size, "%.*s", (int)n, begin);
    return MEZZO_OK;
}

// Takes a number for each class up to a closing bracket; at least one of them is not 0.
static mezzo_status take_class_weights(const char **at, mz_graph_term *term) {
    float sum = 0;
    const char *next = skip(*at + 1);
    for (char *end; *next != ']'; next = skip(end)) {
        const float weight = (float)mz_strtod(next, &end);
        if (end == next || !(weight >= 0 && weight < 1e9F) || term->n_class_weights == MZ_GRAPH_CLASSES)
            return mz_fail(MEZZO_ERR_INVALID, "'%.20s' where a class's weight should be (at most %d, from 0 to 1e9)",
                           next, MZ_GRAPH_CLASSES);
        term->class_weight[term->n_class_weights++] = weight;
        sum += weight;
    }
    *at = skip(next + 1);
    return sum > 0 ? MEZZO_OK : mz_fail(MEZZO_ERR_INVALID, "no class has a weight above 0");
}

static mezzo_status take_term(const char **at, mz_graph_term *term) {
    char name[80], *end;
    char *const places[] = {term->output, term->labels, term->weights};
    *term = (mz_graph_term){.factor = 1, .axis = -1};
    const float factor = (float)mz_strtod(*at, &end);
    if (end != *at && *skip(end) == '*') {
        if (!(factor > 0 && factor < 1e9F))
            return mz_fail(MEZZO_ERR_INVALID, "a factor of %g", (double)factor);
        term->factor = factor;
        *at = skip(end) + 1;
    }
    MEZZO_TRY(take_name(at, name, sizeof name));
    for (size_t i = 1; i < MZ_COUNT(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            term->kind = (int)i;
    if (kinds[term->kind].labels != NO_LABELS)
        snprintf(term->labels, sizeof term->labels, "labels");
    else
        snprintf(term->output, sizeof term->output, "%s", name);
    if (kinds[term->kind].labels == NUMBERS) // so that rows which fill up a batch do not count
        snprintf(term->weights, sizeof term->weights, "weights");
    if (**at != '(' || kinds[term->kind].labels == NO_LABELS)
        return MEZZO_OK;
    for (size_t i = 0; **at == '(' || **at == ','; i++) {
        ++*at;
        if (i == MZ_COUNT(places))
            return mz_fail(MEZZO_ERR_INVALID, "more than an output, labels and weights");
        *at = skip(*at);
        if (**at == '[' && !(i == 2 && kinds[term->kind].labels == CLASSES))
            return mz_fail(MEZZO_ERR_INVALID, "weights of classes where no loss of classes has them");
        MEZZO_TRY(**at == '[' ? take_class_weights(at, term) : take_name(at, places[i], sizeof term->output));
    }
    char *axis = strrchr(term->output, '@');
    if (axis != NULL && axis[1] >= '1' && axis[1] <= '5' && axis[2] == '\0') {
        term->axis = axis[1] - '0';
        *axis = '\0';
    }
    if (**at != ')')
        return mz_fail(MEZZO_ERR_INVALID, "no ) where it should be");
    *at = skip(*at + 1);
    return MEZZO_OK;
}

mezzo_status mz_graph_loss_read(const char *text, mz_graph_loss *out) {
    mezzo_status status = MEZZO_OK;
    const char *at = skip(text);
    *out = (mz_graph_loss){0};
    do {
        if (out->n == MZ_GRAPH_TERMS)
            status = mz_fail(MEZZO_ERR_INVALID, "more than %d terms", MZ_GRAPH_TERMS);
        if (status == MEZZO_OK)
            status = take_term(&at, &out->term[out->n++]);
    } while (status == MEZZO_OK && *at++ == '+' && *(at = skip(at)) != '\0');
    if (status == MEZZO_OK && at[-1] != '\0')
        status = mz_fail(MEZZO_ERR_INVALID, "'%s' after a term", at - 1);
    return mz_context(status,
                      "model.loss is \"%s\": write an output's name, cross_entropy, nll, mse, l1, huber, bce or "
                      "bce_with_logits, one with (OUTPUT,LABELS,WEIGHTS) after it, WEIGHTS an array or [A B …] by "
                      "class, or several with + between",
                      text);
}

// --- shapes --------------------------------------------------------------------------------------------------------
// Returns the axis of classes: the last one; for images, [B, classes, H, W] as in PyTorch, the second.
static int class_axis(const mz_graph_term *term) {
    return term->axis >= 0 ? term->axis : term->shape.rank >= 4 ? 1 : term->shape.rank - 1;
}

static int64_t count_of(const mz_graph_shape *shape) {
    int64_t n = 1;
    for (int i = 0; i < shape->rank; i++)
        n *= shape->dim[i];
    return n;
}

mezzo_status mz_graph_term_check(const mz_graph_term *term) {
    const mz_graph_shape *s = &term->shape;
    const char *name = term->output[0] != '\0' ? term->output : "its first output";
    if (kinds[term->kind].labels == NO_LABELS)
        return count_of(s) == 1 ? MEZZO_OK
                                : mz_fail(MEZZO_ERR_INVALID,
                                          "the output %s has %lld numbers for two rows, and a loss is one: choose a "
                                          "loss of it (--loss 'mse(%s)')",
                                          name, (long long)count_of(s), name);
    const int least = kinds[term->kind].labels == CLASSES ? 2 : 1;
    if (s->rank < least || s->dim[0] % 2 != 0 || term->axis >= s->rank)
        return mz_fail(MEZZO_ERR_INVALID, "%s of %s, which has no rows of a batch%s", kinds[term->kind].name, name,
                       least == 2 ? " with a score for each class" : "");
    if (term->n_class_weights > 0 && term->n_class_weights != mz_graph_term_classes(term))
        return mz_fail(MEZZO_ERR_INVALID, "%s of %s: %d weights for %lld classes", kinds[term->kind].name, name,
                       term->n_class_weights, (long long)mz_graph_term_classes(term));
    return MEZZO_OK;
}

int64_t mz_graph_term_classes(const mz_graph_term *term) {
    return kinds[term->kind].labels == CLASSES ? term->shape.dim[class_axis(term)] : 0;
}

bool mz_graph_term_has_numbers(const mz_graph_term *term) {
    return kinds[term->kind].labels == NUMBERS;
}

int64_t mz_graph_term_values(const mz_graph_term *term) {
    return kinds[term->kind].predicts ? count_of(&term->shape) / 2 : 0;
}

// Finds the shape of labels. Where an exporter joined two dimensions, [B·T, classes], labels have both.
int mz_graph_term_labels(const mz_graph_term *term, int64_t batch, int64_t dim[MZ_INPUT_RANK]) {
    const mz_graph_shape *s = &term->shape;
    int rank = 0;
    if (kinds[term->kind].labels == NO_LABELS)
        return 0;
    dim[rank++] = batch;
    if (s->dim[0] > 2)
        dim[rank++] = s->dim[0] / 2;
    for (int i = 1; i < s->rank && rank < MZ_INPUT_RANK; i++)
        if (kinds[term->kind].labels == NUMBERS || i != class_axis(term))
            dim[rank++] = s->dim[i];
    return rank;
}

typedef struct name {
    struct name *next;
    char text[80];
} name;

const char *mz_graph_name(const char *text) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static name *all;
    pthread_mutex_lock(&lock);
    name *n = all;
    while (n != NULL && strcmp(n->text, text) != 0)
        n = n->next;
    if (n == NULL && (n = mz_alloc(1, sizeof *n)) != NULL) {
        snprintf(n->text, sizeof n->text, "%s", text);
        n->next = all;
        all = n;
    }
    pthread_mutex_unlock(&lock);
    return n != NULL ? n->text : "labels";
}

// --- building ------------------------------------------------------------------------------------------------------
static mezzo_value input_named(int n, const mz_input *named, const mezzo_value *inputs, const char *text) {
    for (int i = 0; i < n && text[0] != '\0'; i++)
        if (strcmp(named[i].name, text) == 0 && !named[i].built)
            return inputs[i];
    return MEZZO_NONE;
}

// Returns Σ weight·value / Σ weight, and 0 where every weight is 0.
static mezzo_value weighted_mean(mezzo_graph *g, mezzo_value values, mezzo_value weights) {
    const mezzo_value sum = mezzo_sum(g, weights, -1);
    return mezzo_div(g, mezzo_sum(g, mezzo_mul(g, values, weights), -1), mezzo_maximum(g, sum, number(g, 1e-30F)));
}

// Returns the weighted mean of the rows' means.
static mezzo_value of_numbers(const parts *p, const mz_graph_term *term, int64_t batch) {
    mezzo_value each = mezzo_reshape(p->g, kinds[term->kind].element(p), 2, (int64_t[]){batch, -1});
    return weighted_mean(p->g, mezzo_mean(p->g, each, 1), p->w);
}

// Makes a constant of numbers that are known now, FP32 [n].
static mezzo_value known(mezzo_graph *g, const float *numbers, int64_t n) {
    enum { AT_ONCE = 12 };
    mezzo_value part[AT_ONCE];
    const int64_t each = (n + AT_ONCE - 1) / AT_ONCE;
    int n_parts = 0;
    for (int64_t at = 0; at < n; at += each, n_parts++)
        part[n_parts] = n == 1 ? number(g, numbers[0]) : known(g, numbers + at, at + each < n ? each : n - at);
    return n_parts == 1 ? part[0] : mezzo_concat(g, part, n_parts, 0);
}

// Returns the weighted mean of -log softmax(x)[t] for x [N, C] and t [N], over targets that are not negative.
static mezzo_value of_classes(const parts *p, const mz_graph_term *term, bool log, int64_t batch) {
    mezzo_graph *g = p->g;
    const int64_t rows = mezzo_value_dim(g, p->x, 0);
    const int last = 1;
    mezzo_value x = p->x;
    if (!log) {
        x = mezzo_sub(g, x, mezzo_reduce(g, MEZZO_REDUCE_MAX, x, 1, &last, true));
        x = mezzo_sub(g, x, mezzo_log(g, mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_exp(g, x), 1, &last, true)));
    }
    const mezzo_value zero = mezzo_constant(g, MEZZO_I32, 0, 1, (int64_t[]){1});
    const mezzo_value place = mezzo_reshape(g, p->t, 2, (int64_t[]){rows, 1}); // -1 reads the last class, with weight 0
    mezzo_value picked = mezzo_reshape(g, mezzo_gather(g, x, 1, place, true), 1, &rows);
    mezzo_value weight = number(g, 1);
    if (p->w.id >= 0) { // one weight for each row of the batch, for all of its targets
        weight = mezzo_expand(g, mezzo_reshape(g, p->w, 2, (int64_t[]){batch, 1}), 2, (int64_t[]){batch, rows / batch});
        weight = mezzo_reshape(g, weight, 1, &rows);
    }
    if (term->n_class_weights > 0)
        weight = mezzo_gather(g, known(g, term->class_weight, term->n_class_weights), 0, p->t, false);
    weight = mezzo_where(g, mezzo_less_equal(g, zero, p->t), weight, number(g, 0)); // [N]
    return mezzo_scale(g, weighted_mean(g, picked, weight), -1);
}

// Views x as [N, classes] and t as [N].
static mezzo_status build_classes(parts p, const mz_graph_term *term, const mz_form *form, bool outputs,
                                  mezzo_value *loss) {
    const int rank = mezzo_value_rank(p.g, p.x), axis = class_axis(term);
    const bool log = kinds[term->kind].log;
    int order[MEZZO_MAX_RANK];
    for (int i = 0; i < rank; i++)
        order[i] = i < axis ? i : i + 1 < rank ? i + 1 : axis;
    if (axis != rank - 1)
        p.x = mezzo_permute(p.g, p.x, order);
    p.x = mezzo_reshape(p.g, p.x, 2, (int64_t[]){-1, mz_graph_term_classes(term)});
    p.t = mezzo_reshape(p.g, p.t, 1, (int64_t[]){mezzo_value_dim(p.g, p.x, 0)});
    const bool alike = !log && p.w.id < 0 && term->n_class_weights == 0;
    *loss = alike ? mezzo_cross_entropy(p.g, p.x, p.t, -1) : of_classes(&p, term, log, form->batch);
    return outputs ? mezzo_graph_output(p.g, "logits", p.x) : MEZZO_OK;
}

mezzo_status mz_graph_loss_build(const mz_graph_loss *loss, const mz_form *form, int n, const mz_input *named,
                                 const mezzo_value *inputs, const mezzo_value *values, mezzo_graph *g) {
    mezzo_value sum = MEZZO_NONE;
    bool outputs = form->outputs;
    mezzo_module_begin(g, "loss");
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    for (int i = 0; i < loss->n; i++) {
        const mz_graph_term *term = &loss->term[i];
        const labels_kind labels = kinds[term->kind].labels;
        parts p = {g, values[term->index], input_named(n, named, inputs, term->labels),
                   input_named(n, named, inputs, term->weights)};
        mezzo_value one = p.x;
        if (labels == CLASSES)
            MEZZO_TRY(build_classes(p, term, form, outputs, &one));
        if (labels == NUMBERS) {
            const mezzo_value flat = mezzo_reshape(g, p.t, 2, (int64_t[]){form->batch, -1});
            p.x = mezzo_reshape(g, p.x, 2, (int64_t[]){form->batch, -1});
            p.t = flat;
            one = of_numbers(&p, term, form->batch);
            if (outputs && kinds[term->kind].predicts)
                MEZZO_TRY(mezzo_graph_output(g, "prediction", p.x));
        }
        if (labels == NO_LABELS)
            one = mezzo_reshape(g, one, 1, (int64_t[]){1});
        outputs = outputs && mz_graph_term_classes(term) + mz_graph_term_values(term) == 0;
        one = term->factor != 1 ? mezzo_scale(g, one, term->factor) : one;
        sum = sum.id < 0 ? one : mezzo_add(g, sum, one);
    }
    mezzo_autocast_end(g);
    mezzo_module_end(g);
    return mezzo_graph_loss(g, sum);
}
