// Text from a model. The whole window is evaluated for each token: causal attention makes what stands after the last token, zeros,
// irrelevant to it.
#include <math.h>
#include <stdlib.h>

#include "train/run.h"

#define PHILOX_SAMPLE 0x5A3F1E00u // the `tensor` word of sampling draws

mezzo_status mz_sampler_create(mezzo_params *params, const mezzo_model_config *model,
                               const mezzo_program_options *options, const mezzo_tokenizer *tokenizer,
                               mz_sampler **out) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    mezzo_program_options forward = *options;
    forward.forward_only = true;
    forward.recompute = false;
    *out = NULL;
    mz_sampler *s = mz_alloc(1, sizeof *s);
    if (s == NULL)
        return MEZZO_ERR_MEMORY;
    s->tokenizer = tokenizer;
    s->length = model->seq_len;
    s->vocab = model->vocab;
    size_t length = (size_t)s->length, vocab = (size_t)s->vocab;
    s->window = mz_alloc(length, sizeof *s->window);
    s->targets = mz_alloc(length, sizeof *s->targets);
    s->logits = mz_alloc(length * vocab, sizeof *s->logits);
    s->weights = mz_alloc(vocab, sizeof *s->weights);
    s->order = mz_alloc(vocab, sizeof *s->order);
    if (s->window == NULL || s->targets == NULL || s->logits == NULL || s->weights == NULL || s->order == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < length; i++)
        s->targets[i] = -1; // ignored by the loss, which nobody reads here
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, model, 1, s->length, true));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, params, &forward, &s->program));
    MEZZO_TRY_GOTO(status, mezzo_program_write(s->program, "targets", s->targets, length * sizeof *s->targets));
    *out = s;
    s = NULL;
fail:
    mezzo_graph_free(graph);
    mz_sampler_free(s);
    return status;
}

void mz_sampler_free(mz_sampler *s) {
    if (s == NULL)
        return;
    mezzo_program_free(s->program);
    mz_free(s->window);
    mz_free(s->targets);
    mz_free(s->logits);
    mz_free(s->weights);
    mz_free(s->order);
    mz_free(s);
}

// --- choosing a token -------------------------------------------------------------------------------------------------------
static int32_t likeliest(const float *logits, int64_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

// The k-th largest logit. Insertion into the k best so far: k is small, and ties keep the lower token.
static float kth_largest(const mz_sampler *s, const float *logits, int64_t k) {
    int64_t n = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        if (n == k && logits[i] <= logits[s->order[n - 1]])
            continue;
        int64_t at = n < k ? n++ : n - 1;
        for (; at > 0 && logits[s->order[at - 1]] < logits[i]; at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
    return logits[s->order[n - 1]];
}

static double uniform53(mz_draw draw) { // [0, 1)
    uint32_t words[4];
    mz_philox((mz_philox_key){draw.seed, 0, PHILOX_SAMPLE}, draw.index, words);
    return (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53;
}

static mezzo_status choose(mz_sampler *s, const float *logits, mz_draw draw, int32_t *out) {
    int32_t best = likeliest(logits, s->vocab);
    *out = best;
    if (!isfinite(logits[best]))
        return mz_fail(MEZZO_ERR_NUMERIC, "sampling: the logits are not finite");
    if (draw.temperature <= 0)
        return MEZZO_OK;
    float least = draw.top_k > 0 && draw.top_k < s->vocab ? kth_largest(s, logits, draw.top_k) : -INFINITY;
    double total = 0;
    for (int64_t i = 0; i < s->vocab; i++) {
        double x = ((double)logits[i] - (double)logits[best]) / draw.temperature;
        s->weights[i] = logits[i] >= least ? exp(x) : 0;
        total += s->weights[i];
    }
    double left = uniform53(draw) * total;
    for (int32_t i = 0; i < s->vocab; i++) {
        if (s->weights[i] == 0)
            continue;
        *out = i;
        left -= s->weights[i];
        if (left < 0)
            break;
    }
    return MEZZO_OK;
}

// --- running ------------------------------------------------------------------------------------------------------------------
// Fills the window with the prompt's last tokens; *n is how many.
static mezzo_status start(mz_sampler *s, const char *prompt, int64_t *n) {
    const char *text = prompt != NULL && prompt[0] != '\0' ? prompt : "\n";
    size_t bytes = strlen(text), count = 0;
    *n = 1;
    s->window[0] = 0;
    int32_t *tokens = mz_alloc(bytes, sizeof *tokens);
    if (tokens == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = mezzo_tokenizer_encode(s->tokenizer, text, bytes, tokens, &count);
    if (status == MEZZO_OK && count > 0) {
        size_t kept = count > (size_t)s->length ? (size_t)s->length : count;
        memcpy(s->window, tokens + count - kept, kept * sizeof *tokens);
        *n = (int64_t)kept;
    }
    mz_free(tokens);
    // A text without a line break may have no token for the implied prompt: then the first token starts.
    if (status != MEZZO_OK && status != MEZZO_ERR_MEMORY && text != prompt)
        return MEZZO_OK;
    return mz_context(status, "the prompt: ");
}

static mezzo_status next_token(mz_sampler *s, int64_t n, mz_draw draw, int32_t *out) {
    size_t bytes = (size_t)s->length * sizeof *s->window;
    memset(s->window + n, 0, (size_t)(s->length - n) * sizeof *s->window);
    MEZZO_TRY(mezzo_program_write(s->program, "tokens", s->window, bytes));
    MEZZO_TRY(mezzo_program_run(s->program, NULL, 0, 0));
    MEZZO_TRY(mezzo_program_read(s->program, "logits", s->logits, (size_t)(s->length * s->vocab) * sizeof *s->logits));
    return choose(s, s->logits + (n - 1) * s->vocab, draw, out); // logits [1, T, V], row n-1
}

mezzo_status mz_sampler_run(mz_sampler *s, const char *prompt, int64_t tokens, mz_draw draw, int index,
                            const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user) {
    int64_t n;
    MEZZO_TRY(start(s, prompt, &n));
    for (int64_t i = 0; i < tokens && (stop == NULL || !*stop); i++, draw.index++) {
        int32_t token = 0;
        size_t bytes = 0;
        MEZZO_TRY(next_token(s, n, draw, &token));
        const char *text = mezzo_tokenizer_bytes(s->tokenizer, token, &bytes);
        if (bytes > 0)
            write(user, index, text, bytes);
        if (n == s->length)
            memmove(s->window, s->window + 1, (size_t)(--n) * sizeof *s->window);
        s->window[n++] = token;
    }
    return MEZZO_OK;
}
