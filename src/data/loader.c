// Loads batches. The options alone decide which window of which file is row r of batch k, so that a run resumes from
// one number.
#include "data/corpus.h"
#include "data/tokenizer.h"

// Philox's `tensor` word for draws of data. Graph nodes count from 0, so no dropout mask shares a draw with a loader.
#define PHILOX_DATA  0xDA7A0000u
#define READ_THROUGH ((uint64_t)256 << 20) // shards of at most this many bytes are checked before the first batch

struct mezzo_loader {
    const mz_stream *stream;
    mezzo_loader_options options;
    uint64_t *first;  // [segments + 1]: number of windows (SEQUENTIAL) or starts (RANDOM) in earlier files
    double *weighted; // [segments + 1]: the same, multiplied by weights; NULL: all weights are equal
    uint64_t total;
    uint64_t position;
};

// Returns the number of windows or starting places in one file.
static uint64_t places(const mezzo_loader_options *o, uint64_t tokens) {
    uint64_t length = (uint64_t)o->length;
    if (o->order == MEZZO_LOADER_RANDOM)
        return tokens > length ? tokens - length : 0; // equals torch.randint's len(data) - block_size
    return tokens > 1 ? (tokens - 1 + length - 1) / length : 0;
}

static mezzo_status check_options(const mezzo_corpus *corpus, mezzo_loader_options *o) {
    // A batch's bytes must fit in a size_t, and its number of elements in an int32.
    if (o->batch < 1 || o->length < 1 || o->batch > INT32_MAX || o->length > INT32_MAX ||
        o->batch * o->length > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID,
                       "a batch of %lld sequences of %lld tokens; both must be 1 or more, and their "
                       "product at most %d",
                       (long long)o->batch, (long long)o->length, INT32_MAX);
    if ((size_t)o->split >= MZ_COUNT(corpus->splits) ||
        (o->order != MEZZO_LOADER_RANDOM && o->order != MEZZO_LOADER_SEQUENTIAL))
        return mz_fail(MEZZO_ERR_INVALID, "a loader has no split %d or no order %d", (int)o->split, (int)o->order);
    const mezzo_tokenizer *tok = corpus->tokenizer;
    if (o->vocab < 0 || (o->vocab == 0 && !tok))
        return mz_fail(MEZZO_ERR_INVALID,
                       "the vocabulary is not known: these shards came without a tokenizer; give the "
                       "model's vocabulary (50257 for GPT-2)");
    if (o->vocab == 0)
        o->vocab = tok->vocab;
    if (tok && tok->vocab > o->vocab)
        return mz_fail(MEZZO_ERR_INVALID,
                       "the tokenizer has %d tokens, the model %d; give the model a vocabulary of at "
                       "least the tokenizer's",
                       (int)tok->vocab, (int)o->vocab);
    return MEZZO_OK;
}

static mezzo_status fail_too_short(const mz_stream *stream, const mezzo_loader_options *o) {
    const char *part = o->split == MEZZO_TRAIN ? "training" : "validation";
    if (stream->count == 0)
        return mz_fail(MEZZO_ERR_INVALID, "there are no %s tokens; give %s data, or a text to split", part, part);
    uint64_t longest = 0;
    for (size_t i = 0; i < stream->count; i++)
        if (stream->segments[i].tokens.count > longest)
            longest = stream->segments[i].tokens.count;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: %s part of %llu tokens is shorter than one sequence, which needs %lld (length %lld, and one to "
                   "predict); use a longer text or a shorter sequence",
                   stream->segments[0].path, part, (unsigned long long)longest, (long long)o->length + 1,
                   (long long)o->length);
}

// Sums weights, by which training alone draws.
static mezzo_status weigh(mezzo_loader *loader) {
    const mz_stream *stream = loader->stream;
    bool even = loader->options.order != MEZZO_LOADER_RANDOM || loader->options.split != MEZZO_TRAIN;
    size_t same = 0;
    while (same < stream->count && stream->segments[same].weight == stream->segments[0].weight)
        same++;
    if (even || same == stream->count)
        return MEZZO_OK;
    MEZZO_TRY(MZ_NEW(loader->weighted, stream->count + 1));
    for (size_t i = 0; i < stream->count; i++) {
        const double weight = stream->segments[i].weight > 0 ? stream->segments[i].weight : 1;
        loader->weighted[i + 1] = loader->weighted[i] + weight * (double)(loader->first[i + 1] - loader->first[i]);
    }
    return MEZZO_OK;
}

mezzo_status mezzo_loader_create(const mezzo_corpus *corpus, const mezzo_loader_options *options, mezzo_loader **out) {
    MZ_REQUIRE(corpus, options, out);
    *out = NULL;
    mezzo_loader_options o = *options;
    MEZZO_TRY(check_options(corpus, &o));
    const mz_stream *stream = &corpus->splits[o.split];
    uint64_t bytes = 0;
    for (size_t i = 0; i < stream->count; i++)
        bytes += stream->segments[i].tokens.count * stream->segments[i].tokens.width;
    if (corpus->from_shards && bytes <= READ_THROUGH)
        MEZZO_TRY(mz_stream_check(stream, (uint32_t)o.vocab));

    mezzo_loader *loader;
    MEZZO_TRY(MZ_NEW(loader, 1));
    *loader = (mezzo_loader){.stream = stream, .options = o};
    loader->first = mz_alloc(stream->count + 1, sizeof *loader->first);
    mezzo_status status = loader->first ? MEZZO_OK : MEZZO_ERR_MEMORY;
    for (size_t i = 0; status == MEZZO_OK && i < stream->count; i++) {
        loader->total += places(&o, stream->segments[i].tokens.count);
        loader->first[i + 1] = loader->total;
    }
    if (status == MEZZO_OK && loader->total == 0)
        status = fail_too_short(stream, &o);
    if (status == MEZZO_OK)
        status = weigh(loader);
    if (status != MEZZO_OK) {
        mezzo_loader_free(loader);
        return status;
    }
    *out = loader;
    return MEZZO_OK;
}

void mezzo_loader_free(mezzo_loader *loader) {
    if (!mz_free_once(loader, "loader"))
        return;
    MZ_FREE(loader->first, loader->weighted, loader);
}

// Returns the file of place number `place`: the last one whose first[] is at most that. Files without places are
// skipped.
static size_t find_segment(const mezzo_loader *loader, uint64_t place) {
    size_t low = 0, high = loader->stream->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (loader->first[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Returns a uniform number of 0 … n - 1, up to n / 2^64: the high half of the product (Lemire, "Fast Random Integer
// Generation in an Interval", 2019, without the rejection).
static uint64_t uniform(const uint32_t words[2], uint64_t n) {
    return (uint64_t)((unsigned __int128)((uint64_t)words[1] << 32 | words[0]) * n >> 64);
}

// Draws a file by its weight, then a place in it.
static uint64_t draw_weighted(const mezzo_loader *loader, const uint32_t words[4]) {
    const size_t count = loader->stream->count;
    const double at = (double)uniform(words + 2, UINT64_C(1) << 53) * 0x1p-53 * loader->weighted[count];
    size_t i = 0;
    while (i + 1 < count && at >= loader->weighted[i + 1])
        i++;
    while (loader->first[i + 1] == loader->first[i]) // the sum of weights was rounded
        i--;
    return loader->first[i] + uniform(words, loader->first[i + 1] - loader->first[i]);
}

// Draws the place for row number `row` of all batches.
static uint64_t draw(const mezzo_loader *loader, uint64_t row) {
    mz_philox_key key = {loader->options.seed, loader->options.stream, PHILOX_DATA};
    uint32_t words[4];
    mz_philox(key, row, words);
    return loader->weighted != NULL ? draw_weighted(loader, words) : uniform(words, loader->total);
}

static void fill_empty(int32_t *inputs, int32_t *targets, size_t from, size_t to) {
    for (size_t t = from; t < to; t++) {
        inputs[t] = 0;
        targets[t] = -1;
    }
}

// Fills one window: inputs[t] is token start + t, targets[t] the one after it, up to the file's end.
static mezzo_status fill_row(const mezzo_loader *loader, uint64_t place, int32_t *inputs, int32_t *targets) {
    const mezzo_loader_options *o = &loader->options;
    size_t s = find_segment(loader, place), length = (size_t)o->length;
    const mz_segment *segment = &loader->stream->segments[s];
    uint64_t start = place - loader->first[s];
    if (o->order == MEZZO_LOADER_SEQUENTIAL)
        start *= (uint64_t)o->length;
    uint64_t left = segment->tokens.count - 1 - start;
    size_t n = left < length ? (size_t)left : length;
    size_t good = mz_tokens_copy(&segment->tokens, start, n, (uint32_t)o->vocab, inputs);
    if (good < n)
        return mz_segment_fail_token(segment, start + good, (uint32_t)o->vocab);
    if (mz_token_at(&segment->tokens, start + n) >= (uint32_t)o->vocab)
        return mz_segment_fail_token(segment, start + n, (uint32_t)o->vocab);
    memcpy(targets, inputs + 1, (n - 1) * sizeof *targets);
    targets[n - 1] = (int32_t)mz_token_at(&segment->tokens, start + n);
    fill_empty(inputs, targets, n, length);
    return mz_map_check(segment->tokens.data);
}

mezzo_status mezzo_loader_batch(const mezzo_loader *loader, uint64_t k, int32_t *inputs, int32_t *targets) {
    MZ_REQUIRE(loader, inputs, targets);
    const mezzo_loader_options *o = &loader->options;
    size_t batch = (size_t)o->batch, length = (size_t)o->length;
    if (o->order == MEZZO_LOADER_SEQUENTIAL)
        k %= mezzo_loader_batches(loader);
    for (size_t r = 0; r < batch; r++, inputs += length, targets += length) {
        uint64_t row = k * batch + r;
        if (o->order == MEZZO_LOADER_RANDOM)
            row = draw(loader, row);
        if (row < loader->total)
            MEZZO_TRY(fill_row(loader, row, inputs, targets));
        else
            fill_empty(inputs, targets, 0, length);
    }
    return MEZZO_OK;
}

mezzo_status mezzo_loader_next(mezzo_loader *loader, int32_t *inputs, int32_t *targets) {
    MZ_REQUIRE(loader, inputs, targets);
    MEZZO_TRY(mezzo_loader_batch(loader, loader->position, inputs, targets));
    loader->position++;
    return MEZZO_OK;
}

uint64_t mezzo_loader_position(const mezzo_loader *loader) {
    if (loader == NULL)
        return 0;
    return loader->position;
}

void mezzo_loader_seek(mezzo_loader *loader, uint64_t position) {
    if (loader != NULL)
        loader->position = position;
}

uint64_t mezzo_loader_batches(const mezzo_loader *loader) {
    if (loader == NULL)
        return 0;
    const mezzo_loader_options *o = &loader->options;
    uint64_t batch = (uint64_t)o->batch;
    if (o->order == MEZZO_LOADER_SEQUENTIAL)
        return (loader->total + batch - 1) / batch;
    uint64_t batches = loader->stream->tokens / (batch * (uint64_t)o->length);
    return batches > 0 ? batches : 1;
}

uint64_t mezzo_loader_targets(const mezzo_loader *loader) {
    if (loader == NULL)
        return 0;
    uint64_t targets = 0;
    for (size_t i = 0; i < loader->stream->count; i++) {
        uint64_t tokens = loader->stream->segments[i].tokens.count;
        targets += tokens > 0 ? tokens - 1 : 0;
    }
    return targets;
}
