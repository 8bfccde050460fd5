// Generates text from a model. It keeps keys and values of the tokens that were read, so that a token costs one
// position: a program of one position draws, and one of several reads prompts. After the model's context is full, the
// window moves with every token, and with it all positions: from there on, and where a device has no kernel for cached
// attention, the whole window is evaluated for each token. Causal attention makes the zeros after the last token
// irrelevant.
#include "base/scope.h"
#include "data/tokenizer.h"
#include "runtime/program.h"
#include "session/session.h"
#include "task/sampler.h"

// A program of PREFILL positions reads a prompt; only a rest of at most SHORT positions is read one by one.
#define PREFILL 64
#define SHORT   6

// --- programs ------------------------------------------------------------------------------------
// Writes inputs that are the same for every token. The loss is not read here, because every target is ignored.
static mezzo_status write_fixed(mz_sampler *s, const mz_form *form, mezzo_program *program) {
    mz_input inputs[MZ_MODEL_INPUTS];
    const int n = mz_model_inputs(&s->model, form, inputs);
    MZ_SCOPED(mz_free_at) int32_t *values = mz_alloc((size_t)form->length, sizeof *values);
    MEZZO_TRY(values == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK);
    for (int k = 0; k < n; k++) {
        const mz_role role = inputs[k].role;
        if (role == MZ_ROLE_TOKENS)
            s->tokens = inputs[k].name;
        if (role != MZ_ROLE_TARGETS && role != MZ_ROLE_ONES && role != MZ_ROLE_PLACES)
            continue;
        for (int64_t i = 0; i < form->length; i++)
            values[i] = role == MZ_ROLE_TARGETS ? -1 : role == MZ_ROLE_ONES ? 1 : (int32_t)i;
        MEZZO_TRY(mezzo_program_write(program, inputs[k].name, values, (size_t)form->length * sizeof *values));
    }
    return MEZZO_OK;
}

static mz_form form_of(int64_t tokens, bool cached, int64_t reach) {
    return (mz_form){
        .batch = 1, .length = tokens, .part = cached ? MZ_PART_CACHED : MZ_PART_WHOLE, .outputs = true, .reach = reach};
}

// Makes a program of `tokens` positions, with a cache or over the whole window.
static mezzo_status make_program(mz_sampler *s, int64_t tokens, bool cached, mezzo_program **out) {
    const mezzo_program_options forward = {
        .precision = s->precision, .residual = s->residual, .overrides = s->overrides, .n_overrides = s->n_overrides};
    const mz_form form = form_of(tokens, cached, s->reach);
    MEZZO_TRY(mz_model_program(&s->model, &form, s->params, &forward, out));
    return write_fixed(s, &form, *out);
}

static void close_programs(mz_sampler *s) {
    mezzo_program_free(s->several);
    mezzo_program_free(s->one);
    mezzo_program_free(s->whole);
    s->several = s->one = s->whole = NULL;
}

static mezzo_status open_cached(mz_sampler *s) {
    MEZZO_TRY(make_program(s, 1, true, &s->one));
    if (s->chunk == 1)
        return MEZZO_OK;
    MEZZO_TRY(make_program(s, s->chunk, true, &s->several));
    return mz_program_share_state(s->several, s->one);
}

static mezzo_status copy_options(mz_sampler *s, const mezzo_program_options *options) {
    s->precision = options->precision;
    s->residual = options->residual;
    s->n_overrides = options->n_overrides;
    MEZZO_TRY(MZ_NEW(s->overrides, (size_t)options->n_overrides + 1));
    for (int i = 0; i < options->n_overrides; i++)
        s->overrides[i] = options->overrides[i]; // the patterns belong to the configuration, which outlives the sampler
    return MEZZO_OK;
}

static mezzo_status open_window(mz_sampler *s) {
    if (s->whole != NULL)
        return MEZZO_OK;
    float *logits;
    MEZZO_TRY(MZ_NEW(logits, (size_t)(s->length * s->vocab)));
    mz_free(s->logits);
    s->logits = logits;
    return make_program(s, s->length, false, &s->whole);
}

static mezzo_status open_programs(mz_sampler *s) {
    const mezzo_status status = open_cached(s);
    if (status != MEZZO_ERR_UNSUPPORTED)
        return status;
    mz_log("dispatch", "sampling without a cache: %s", mezzo_error_message());
    close_programs(s);
    return open_window(s);
}

mezzo_status mz_sampler_create(mezzo_params *params, const mz_model *model, const mezzo_program_options *options,
                               const mezzo_tokenizer *tokenizer, mz_sampler **out) {
    const mz_model_sizes sizes = mz_model_sizes_of(model);
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mz_sampler *s;
    MEZZO_TRY(MZ_NEW(s, 1));
    s->params = params;
    s->tokenizer = tokenizer;
    s->model = *model;
    s->length = sizes.length;
    s->vocab = sizes.vocab;
    s->chunk = s->length < PREFILL ? s->length : PREFILL;
    size_t vocab = (size_t)s->vocab;
    s->window = mz_alloc((size_t)s->length, sizeof *s->window);
    s->logits = mz_alloc((size_t)s->chunk * vocab, sizeof *s->logits);
    if (s->window == NULL || s->logits == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mz_draw_room_create(s->vocab, params->device->threads, &s->room));
    MEZZO_TRY_GOTO(status, copy_options(s, options));
    s->reach = 1;
    MEZZO_TRY_GOTO(status, open_programs(s));
    *out = s;
    s = NULL;
fail:
    mz_sampler_free(s);
    return status;
}

// Computes the memory of the programs that mz_sampler_create opens, which share a cache, and of the whole window where
// a sample is longer than it.
mezzo_status mz_sampler_sketch(mezzo_device *device, const mz_session_options *o, int64_t tokens, size_t *bytes) {
    const int64_t length = mz_model_sizes_of(&o->model).length, chunk = length < PREFILL ? length : PREFILL;
    const mz_form one = form_of(1, true, 0), several = form_of(chunk, true, 0), whole = form_of(length, false, 0);
    mezzo_memory m;
    *bytes = 0;
    const mezzo_status status = mz_session_sketch_forward(device, o, &one, &m);
    const bool cached = status != MEZZO_ERR_UNSUPPORTED; // otherwise there is no kernel for a cache
    if (cached) {
        MEZZO_TRY(status);
        *bytes += m.activations + m.workspace + m.inputs;
    }
    if (cached && chunk > 1) {
        MEZZO_TRY(mz_session_sketch_forward(device, o, &several, &m));
        *bytes += m.activations + m.workspace;
    }
    if (!cached || length < tokens) {
        MEZZO_TRY(mz_session_sketch_forward(device, o, &whole, &m));
        *bytes += m.activations + m.workspace + m.inputs;
    }
    return MEZZO_OK;
}

void mz_sampler_free(mz_sampler *s) {
    if (s == NULL)
        return;
    close_programs(s);
    MZ_FREE(s->overrides, s->window, s->logits);
    mz_draw_room_free(s->room);
    mz_free(s);
}

size_t mz_sampler_memory(const mz_sampler *s) {
    const mezzo_program *programs[] = {s->one, s->several, s->whole};
    size_t bytes = 0;
    for (size_t i = 0; i < MZ_COUNT(programs); i++) {
        mezzo_memory m = {0};
        if (programs[i] != NULL)
            mezzo_program_memory(programs[i], &m);
        bytes += m.activations + m.workspace + m.inputs;
    }
    return bytes;
}

// --- running -------------------------------------------------------------------------------------
// Fills the window with the prompt's last tokens; *n is their number.
static void start_with(mz_sampler *s, const int32_t *tokens, size_t count, int64_t *n) {
    const size_t kept = count > (size_t)s->length ? (size_t)s->length : count;
    *n = 1;
    s->window[0] = 0;
    if (kept == 0)
        return;
    memcpy(s->window, tokens + count - kept, kept * sizeof *tokens);
    *n = (int64_t)kept;
}

static mezzo_status start(mz_sampler *s, const char *prompt, int64_t *n) {
    const char *text = prompt != NULL && prompt[0] != '\0' ? prompt : "\n";
    mz_token_list list = {0};
    start_with(s, NULL, 0, n);
    mezzo_status status = mz_tokenizer_encode_piece(s->tokenizer, text, strlen(text), 0, MZ_PLACE_BEGINS, &list);
    if (status == MEZZO_OK)
        start_with(s, list.tokens, list.n, n);
    mz_token_list_free(&list);
    // A text without a line break may lack a token for the implied prompt; then the first token starts.
    if (status != MEZZO_OK && status != MEZZO_ERR_MEMORY && text != prompt)
        return MEZZO_OK;
    return mz_context(status, "the prompt: ");
}

// Reads the window's positions done … done + tokens - 1 into the caches; *row is the last position's logits. Positions
// after the window's last token, where a program has more, are read, too, and are overwritten before attention sees
// them.
static mezzo_status read_positions(mz_sampler *s, mezzo_program *program, int64_t tokens, int64_t n, float **row) {
    int32_t ids[PREFILL], positions[PREFILL];
    for (int64_t i = 0; i < tokens; i++) {
        int64_t at = s->done + i;
        ids[i] = at < n ? s->window[at] : 0;
        positions[i] = (int32_t)(at < s->length ? at : s->length - 1); // the first ones count; all must be in the table
    }
    size_t bytes = (size_t)tokens * sizeof *ids;
    MEZZO_TRY(mezzo_program_write(program, s->tokens, ids, bytes));
    MEZZO_TRY(mezzo_program_write(program, "positions", positions, bytes));
    MEZZO_TRY(mezzo_program_run(program, NULL, 0, 0));
    int64_t read = n - s->done < tokens ? n - s->done : tokens;
    s->done += read;
    if (s->done < n) // it is not the last piece, so its logits are not needed
        return MEZZO_OK;
    MEZZO_TRY(mezzo_program_read(program, "logits", s->logits, (size_t)(tokens * s->vocab) * sizeof *s->logits));
    *row = s->logits + (read - 1) * s->vocab; // [1, tokens, V]
    return MEZZO_OK;
}

// Opens programs for a text of n tokens: where its positions differ from a shorter text's, the text is read again.
static mezzo_status reach(mz_sampler *s, int64_t n) {
    if (mz_model_is_long(&s->model, n) == mz_model_is_long(&s->model, s->reach))
        return MEZZO_OK;
    close_programs(s);
    s->reach = n;
    s->done = s->done < 0 ? s->done : 0;
    return open_programs(s);
}

// Finds the logits after the window's n tokens, and the program that computed them.
static mezzo_status logits_after(mz_sampler *s, int64_t n, float **row, mezzo_program **program) {
    MEZZO_TRY(reach(s, n));
    while (s->one != NULL && s->done >= 0 && s->done < n) {
        bool several = s->several != NULL && n - s->done > SHORT;
        *program = several ? s->several : s->one;
        MEZZO_TRY(read_positions(s, *program, several ? s->chunk : 1, n, row));
    }
    if (s->one != NULL && s->done >= 0)
        return MEZZO_OK;
    size_t bytes = (size_t)s->length * sizeof *s->window;
    MEZZO_TRY(open_window(s));
    *program = s->whole;
    memset(s->window + n, 0, (size_t)(s->length - n) * sizeof *s->window);
    MEZZO_TRY(mezzo_program_write(s->whole, s->tokens, s->window, bytes));
    MEZZO_TRY(mezzo_program_run(s->whole, NULL, 0, 0));
    MEZZO_TRY(mezzo_program_read(s->whole, "logits", s->logits, (size_t)(s->length * s->vocab) * sizeof *s->logits));
    *row = s->logits + (n - 1) * s->vocab; // [1, T, V]
    return MEZZO_OK;
}

static mezzo_status draw_all(mz_sampler *s, int64_t n, int64_t tokens, mz_draw draw, int index,
                             const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user) {
    for (int64_t i = 0; i < tokens && (stop == NULL || !*stop) && (draw.enough == NULL || !*draw.enough);
         i++, draw.index++) {
        int32_t token = 0;
        size_t bytes = 0;
        float *logits = NULL;
        mezzo_program *program = NULL;
        MEZZO_TRY(logits_after(s, n, &logits, &program));
        mezzo_status status = mz_draw_token(s->room, logits, &draw, &token);
        MEZZO_TRY(status == MEZZO_ERR_NUMERIC ? mz_program_blame(program, "a logit") : status);
        const char *text = mezzo_tokenizer_bytes(s->tokenizer, token, &bytes);
        if (bytes > 0)
            write(user, index, text, bytes);
        if (n == s->length) {
            memmove(s->window, s->window + 1, (size_t)(--n) * sizeof *s->window);
            s->done = -1; // every position changes, so the caches are invalid
        }
        s->window[n++] = token;
    }
    return MEZZO_OK;
}

mezzo_status mz_sampler_run(mz_sampler *s, const char *prompt, int64_t tokens, mz_draw draw, int index,
                            const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user) {
    int64_t n;
    MEZZO_TRY(start(s, prompt, &n));
    s->done = 0; // parameters may have changed since the last text
    return draw_all(s, n, tokens, draw, index, stop, write, user);
}

// Returns how many positions of this prompt the caches hold; its last one is always read, for its logits.
static int64_t known_positions(const mz_sampler *s, const int32_t *prompt, size_t count) {
    int64_t n = 0;
    while (n < s->done && (size_t)n + 1 < count && count <= (size_t)s->length && s->window[n] == prompt[n])
        n++;
    return n;
}

mezzo_status mz_sampler_run_on(mz_sampler *s, const int32_t *prompt, size_t count, int64_t tokens, mz_draw draw,
                               int index, const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user) {
    const int64_t known = draw.same_weights ? known_positions(s, prompt, count) : 0;
    int64_t n;
    start_with(s, prompt, count, &n);
    s->done = known;
    return draw_all(s, n, tokens, draw, index, stop, write, user);
}
