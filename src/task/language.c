// Draws windows of a token stream, where each token's target is the next one, or instructions, where only tokens of
// answers are targets. Inputs are "tokens" and "targets", I32 [B, T].
#include <math.h>

#include "data/corpus.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/quote.h"
#include "task/answer.h"
#include "task/instructions.h"
#include "task/pack.h"
#include "task/sampler.h"
#include "task/task.h"

#define TOKENIZER_FILE "tokenizer.json"
#define PHILOX_MADE_UP 0x70CE // the `tensor` word for made-up tokens

typedef struct language {
    mz_task task;
    mezzo_corpus *corpus;             // NULL where only samples are drawn
    mz_record_set sets[2];            // the records of each part
    mz_instructions *told[2];         // instructions by part, instead of a corpus
    mezzo_tokenizer *loaded;          // a tokenizer that was loaded without a corpus
    const mezzo_tokenizer *tokenizer; // NULL where shards came without one
    uint32_t *lengths;                // [vocab of the tokenizer]: bytes of text; NULL without a tokenizer
    int32_t end;                      // with task.packs and a corpus: the token that ends a document
    double packable;                  // task.padding with packing, whether or not it is used
    mz_sampler *sampler;
} language;

// --- data ----------------------------------------------------------------------------------------
static void close_task(mz_task *task) {
    language *l = (language *)task;
    mz_sampler_free(l->sampler);
    mz_free(l->lengths);
    for (size_t i = 0; i < MZ_COUNT(l->told); i++) {
        mz_instructions_free(l->told[i]);
        mz_record_set_close(&l->sets[i]);
    }
    mezzo_tokenizer_free(l->loaded);
    mezzo_corpus_free(l->corpus);
    mz_free(l);
}

// Takes documents as a text, where the records are documents alone.
static mezzo_status take_documents(language *l, double split, bool validates) {
    mezzo_tokenizer *tokenizer = l->loaded;
    l->loaded = NULL;
    MEZZO_TRY(mz_corpus_from_records(&l->sets[MEZZO_TRAIN], validates ? &l->sets[MEZZO_VALIDATION] : NULL, split,
                                     tokenizer, &l->corpus));
    for (size_t i = 0; i < MZ_COUNT(l->sets); i++)
        mz_chat_tokens_free(&l->sets[i].all); // the corpus has a copy
    return MEZZO_OK;
}

static mezzo_status open_records(language *l, const mz_task_options *o, const mz_tokenizer_sources *from) {
    const bool whole = mz_given(o->all), split = !whole && !mz_given(o->train),
               validates = !whole && mz_given(o->validation);
    const char *train = whole ? o->all : mz_given(o->train) ? o->train : o->path;
    const double end = split ? o->split : 1;
    const mz_record_set *sets = l->sets;
    MEZZO_TRY(mz_records_tokenizer(train, from, &l->loaded));
    MEZZO_TRY(mz_record_set_open(train, o->form, l->loaded, &l->sets[MEZZO_TRAIN]));
    if (validates)
        MEZZO_TRY(mz_record_set_open(o->validation, o->form, l->loaded, &l->sets[MEZZO_VALIDATION]));
    if (sets[0].conversations > 0) // samples and exports use the format of training
        MEZZO_TRY(mz_chat_keep_default(&l->loaded->chat));
    if (sets[0].documents == sets[0].count && sets[1].documents == sets[1].count)
        return take_documents(l, end, validates);
    l->task.masks = true;
    MEZZO_TRY(mz_instructions_create(&sets[MEZZO_TRAIN], 0, end, !whole, &l->told[MEZZO_TRAIN]));
    return mz_instructions_create(&sets[validates ? MEZZO_VALIDATION : MEZZO_TRAIN], validates ? 0 : end, 1, false,
                                  &l->told[MEZZO_VALIDATION]);
}

static mezzo_status open_corpus(language *l, const mz_task_options *o) {
    const mz_tokenizer_sources from = {.own = o->own, .weights = o->weights, .named = o->tokenizer};
    if (o->no_data)
        return mz_tokenizer_choose(&from, &l->loaded);
    if (mz_is_records(o->path) || mz_is_records(o->train) || mz_is_records(o->all))
        return open_records(l, o, &from);
    if (mz_given(o->all) && mz_path_is_dir(o->all))
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s is a folder: name the text or the shards in it to evaluate on, such as %s/val.bin",
                       mz_quote(o->all).text, o->all);
    mezzo_corpus_options c = {.path = o->path,
                              .train = o->train,
                              .validation = o->validation,
                              .tokenizer = o->tokenizer,
                              .form = o->form,
                              .train_fraction = o->split};
    if (mz_given(o->all)) // documents form one stream
        c = (mezzo_corpus_options){.train = o->all, .tokenizer = o->tokenizer};
    return mz_corpus_open(&c, &from, &l->corpus);
}

// Finds the bytes of each token's text; a token that encoding never makes, such as the one that ends a text, has 0.
static mezzo_status find_lengths(language *l) {
    const mezzo_tokenizer *t = l->tokenizer;
    if (t == NULL)
        return MEZZO_OK;
    MEZZO_TRY(MZ_NEW(l->lengths, t->vocab));
    for (int32_t i = 0; i < t->vocab; i++) {
        size_t n;
        const char *bytes = mezzo_tokenizer_bytes(t, i, &n);
        const bool special = t->kind->special != NULL && bytes != NULL && t->kind->special(t, bytes, n) == i;
        l->lengths[i] = special ? 0 : (uint32_t)n;
    }
    return MEZZO_OK;
}

// Opens packing: records fill rows, and a text's documents are separated by the token that ends them.
static mezzo_status open_packing(language *l, const char *path) {
    mz_chat_tokens end = {0};
    l->task.packs = l->task.masks = true;
    if (l->corpus == NULL)
        return MEZZO_OK;
    mezzo_status status = l->tokenizer != NULL ? mz_chat_end_token(&end, l->tokenizer) : MEZZO_OK;
    l->end = end.n > 0 ? end.tokens[0] : -1;
    mz_chat_tokens_free(&end);
    MEZZO_TRY(status);
    return l->end >= 0 ? MEZZO_OK
                       : mz_fail(MEZZO_ERR_INVALID,
                                 "%s: data.pack needs a token that ends a document, and the tokenizer has none: choose "
                                 "one that has (--tokenizer gpt2), or remove data.pack (--pack)",
                                 mz_quote(path).text);
}

static mezzo_status open_task(const mz_task_options *o, mz_task **out) {
    mezzo_status status = MEZZO_OK;
    if (mz_given(o->features) || mz_given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.%s is set, but the model reads text: remove it, or choose a classifier (--model mlp)",
                       mz_given(o->features) ? "features" : "labels");
    if (!o->no_data && !mz_given(o->path) && !mz_given(o->train) && !mz_given(o->all))
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.path is not set: give a text file or a folder of token shards (--data FILE)");
    language *l;
    MEZZO_TRY(MZ_NEW(l, 1));
    l->task.kind = &mz_task_language;
    MEZZO_TRY_GOTO(status, open_corpus(l, o));
    l->tokenizer = l->corpus != NULL ? mezzo_corpus_tokenizer(l->corpus) : l->loaded;
    MEZZO_TRY_GOTO(status, find_lengths(l));
    l->task.sizes.vocab = l->tokenizer != NULL ? mezzo_tokenizer_vocab(l->tokenizer)
                          : l->corpus != NULL  ? l->corpus->meta_vocab
                                               : 0;
    if (o->pack && !o->no_data)
        MEZZO_TRY_GOTO(status, open_packing(l, mz_given(o->all) ? o->all : mz_given(o->train) ? o->train : o->path));
    *out = &l->task;
    return MEZZO_OK;
fail:
    close_task(&l->task);
    return status;
}

static void describe(const mz_task *task, char *out, size_t size) {
    mz_model_summary(&task->model, out, size);
}

static const char *const part_names[] = {[MEZZO_TRAIN] = "", [MEZZO_VALIDATION] = "validation "};

// Refuses a part without targets. A record whose prompt fills the context, or whose answer is empty, has none, and
// nothing is learned from it.
static mezzo_status check_targets(language *l, mezzo_corpus_part part) {
    const mz_instructions *told = l->told[part];
    const long long length = (long long)l->task.wants.length;
    if (told == NULL || mz_instructions_count(told) == 0)
        return MEZZO_OK;
    const unsigned long long all = mz_instructions_count(told), some = mz_instructions_targets(told, length);
    const char *path = mz_instructions_path(told);
    if (some == 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: none of its %llu %srecords has a target within the context of %lld tokens: their answers "
                       "are empty or cut off; raise model.seq_len (--seq-len), or shorten the prompts",
                       path, all, part_names[part], length);
    const size_t used = strlen(l->task.note);
    if (some < all)
        snprintf(l->task.note + used, sizeof l->task.note - used,
                 "%s%.120s: %llu of its %llu %srecords have no target within the context of %lld tokens and teach "
                 "nothing",
                 used > 0 ? "; " : "", path, all - some, all, part_names[part], length);
    return MEZZO_OK;
}

static mezzo_status find_padding(language *l) {
    const mz_instructions *told = l->told[MEZZO_TRAIN];
    double packed;
    if (told == NULL || mz_instructions_count(told) == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_instructions_padding(told, l->task.wants.length, &l->task.padding_alone, &packed));
    l->packable = packed;
    l->task.padding = l->task.packs ? packed : l->task.padding_alone;
    return MEZZO_OK;
}

static mezzo_status check_model(mz_task *task) {
    language *l = (language *)task;
    task->note[0] = '\0';
    MEZZO_TRY(check_targets(l, MEZZO_TRAIN));
    MEZZO_TRY(check_targets(l, MEZZO_VALIDATION));
    return find_padding(l);
}

// Reports how much of the training batches is padding, and how much it is, or would be, with packing.
static void report_padding(const language *l) {
    const double alone = l->task.padding_alone, packed = l->packable;
    if (isnan(alone))
        return;
    if (l->task.packs)
        mz_log("notice", "packed: %.1f%% of a batch is padding; with a record in each row it would be %.1f%%",
               100 * packed, 100 * alone);
    else if (alone > 0.25)
        mz_log("notice", "%.1f%% of a batch is padding; packed (--pack) it would be %.1f%%", 100 * alone, 100 * packed);
}

// Reports what was read: a line for each set, and the first refused records.
static void report(const mz_task *task) {
    const language *l = (const language *)task;
    for (size_t i = 0; i < MZ_COUNT(l->sets); i++) {
        const mz_record_set *set = &l->sets[i];
        if (set->source == NULL)
            continue;
        (void)mz_record_set_log(set);
        if (set->documents > 0 && !mz_chat_has_end(l->tokenizer))
            mz_log("notice", "%s: the tokenizer has no end token, so that documents follow each other without one",
                   mz_quote(set->source).text);
    }
    for (size_t i = 0; i < MZ_COUNT(l->told); i++) {
        const int64_t length = task->wants.length;
        const uint64_t cut = l->told[i] != NULL ? mz_instructions_longer(l->told[i], length) : 0;
        if (cut > 0)
            mz_log("notice",
                   "%s: %llu of %llu %srecords have more than model.seq_len + 1 = %lld tokens: cutting their ends",
                   mz_quote(mz_instructions_path(l->told[i])).text, (unsigned long long)cut,
                   (unsigned long long)mz_instructions_count(l->told[i]), part_names[i], (long long)length + 1);
    }
    report_padding(l);
}

static const char *keeps(const mz_task *task) {
    return ((const language *)task)->tokenizer != NULL ? TOKENIZER_FILE : "";
}

static mezzo_status save(const mz_task *task, const char *folder) {
    const language *l = (const language *)task;
    if (l->tokenizer == NULL)
        return MEZZO_OK;
    return mezzo_tokenizer_save(l->tokenizer, mz_path_of("%s/" TOKENIZER_FILE, folder).text);
}

// --- batches -------------------------------------------------------------------------------------
static mezzo_status open_told(const mz_task *task, mezzo_corpus_part part, mz_order order, int64_t rows, uint64_t seed,
                              mz_source *source) {
    const mz_instructions *told = ((const language *)task)->told[part];
    if (told == NULL || mz_instructions_count(told) == 0)
        return mz_fail(MEZZO_ERR_INVALID, "there are no %s instructions: the file is too short for data.split",
                       part == MEZZO_TRAIN ? "training" : "validation");
    const mz_instruction_order how = {.random = order == MZ_ORDER_RANDOM,
                                      .packed = task->packs,
                                      .rows = rows,
                                      .length = task->wants.length,
                                      .seed = seed,
                                      .stream = (uint32_t)part};
    mz_instruction_rows *made;
    MEZZO_TRY(mz_instruction_rows_create(told, &how, &made));
    source->state = made;
    source->batches = mz_instruction_rows_batches(made);
    return MEZZO_OK;
}

static mezzo_status open_source(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source) {
    const language *l = (const language *)task;
    const mezzo_corpus_part part = set == MZ_SET_TRAIN ? MEZZO_TRAIN : MEZZO_VALIDATION;
    if (l->corpus == NULL)
        return open_told(task, part, order, rows, seed, source);
    const mezzo_loader_options options = {.split = part,
                                          .order =
                                              order == MZ_ORDER_RANDOM ? MEZZO_LOADER_RANDOM : MEZZO_LOADER_SEQUENTIAL,
                                          .batch = rows,
                                          .length = task->wants.length,
                                          .vocab = (int32_t)task->wants.vocab,
                                          .seed = seed,
                                          .stream = (uint32_t)part};
    mezzo_loader *loader;
    MEZZO_TRY(mezzo_loader_create(l->corpus, &options, &loader));
    source->state = loader;
    source->batches = mezzo_loader_batches(loader);
    return MEZZO_OK;
}

static void close_source(mz_source *source) {
    if (((const language *)source->task)->corpus == NULL)
        mz_instruction_rows_free(source->state);
    else
        mezzo_loader_free(source->state);
}

static mezzo_status draw(mz_source *source, uint64_t k) {
    int32_t *tokens = mz_examples_input(&source->examples, MZ_ROLE_TOKENS)->data;
    int32_t *targets = mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->data;
    const mz_input *positions = mz_examples_input(&source->examples, MZ_ROLE_POSITIONS);
    const language *l = (const language *)source->task;
    if (l->corpus == NULL)
        return mz_instruction_rows_batch(source->state, k, tokens, targets, positions != NULL ? positions->data : NULL);
    MEZZO_TRY(mezzo_loader_batch(source->state, k, tokens, targets));
    if (positions != NULL)
        mz_mark_documents(l->end, positions->dim[0], positions->dim[1], tokens, targets, positions->data);
    return MEZZO_OK;
}

// Checks that tokens are 0 … vocab - 1; a target may be -1, which is ignored. One comparison does both, because
// negative numbers are large as unsigned ones.
static bool check_tokens(const int32_t *tokens, int64_t n, uint32_t vocab, int32_t from, int64_t *at) {
    bool bad = false;
    for (int64_t i = 0; i < n; i++)
        bad |= (uint32_t)tokens[i] - (uint32_t)from >= vocab - (uint32_t)from;
    for (*at = 0; bad && (uint32_t)tokens[*at] - (uint32_t)from < vocab - (uint32_t)from;)
        ++*at;
    return !bad;
}

static bool check(const mz_task *task, const mz_examples *examples, char *fault, size_t size) {
    static const char *const names[] = {"token", "target"};
    static const mz_role roles[] = {MZ_ROLE_TOKENS, MZ_ROLE_TARGETS};
    const int64_t length = mz_examples_input(examples, MZ_ROLE_TOKENS)->dim[1];
    for (int i = 0; i < 2; i++) {
        const int32_t *tokens = mz_examples_input(examples, roles[i])->data;
        int64_t at;
        if (check_tokens(tokens, examples->items, (uint32_t)task->wants.vocab, -i, &at))
            continue;
        snprintf(fault, size, "%s %d in row %lld, column %lld: the model has tokens 0 to %lld", names[i], tokens[at],
                 (long long)(at / length), (long long)(at % length), (long long)task->wants.vocab - 1);
        return false;
    }
    return true;
}

static void blank(mz_examples *examples) {
    memset(mz_examples_input(examples, MZ_ROLE_TOKENS)->data, 0, mz_examples_input(examples, MZ_ROLE_TOKENS)->bytes);
    memset(mz_examples_input(examples, MZ_ROLE_TARGETS)->data, -1, mz_examples_input(examples, MZ_ROLE_TARGETS)->bytes);
    const mz_input *positions = mz_examples_input(examples, MZ_ROLE_POSITIONS);
    if (positions != NULL)
        memset(positions->data, 0, positions->bytes);
}

static uint64_t weight(const mz_examples *examples) {
    const int32_t *targets = mz_examples_input(examples, MZ_ROLE_TARGETS)->data;
    uint64_t n = 0;
    for (int64_t i = 0; i < examples->items; i++)
        n += targets[i] >= 0; // the last windows of a pass are filled up with ignored targets
    return n;
}

static uint64_t bytes(const mz_task *task, const mz_examples *examples) {
    const language *l = (const language *)task;
    const int32_t *targets = mz_examples_input(examples, MZ_ROLE_TARGETS)->data;
    uint64_t n = 0;
    for (int64_t i = 0; i < examples->items && l->lengths != NULL; i++)
        n += targets[i] >= 0 && targets[i] < l->tokenizer->vocab ? l->lengths[targets[i]] : 0;
    return n;
}

static const char *target(const mz_task *task) {
    const language *l = (const language *)task;
    const mz_tokenizer_kind *kind = l->tokenizer != NULL ? l->tokenizer->kind : NULL;
    return kind == &mz_tokenizer_char ? "character" : kind == &mz_tokenizer_byte ? "byte" : "token";
}

static int32_t made_up_token(const mz_model_sizes *model, uint64_t seed, uint64_t i) {
    uint32_t words[4];
    mz_philox((mz_philox_key){seed, 0, PHILOX_MADE_UP}, i, words);
    return (int32_t)(((uint64_t)words[0] * (uint64_t)model->vocab) >> 32);
}

static void made_up(const mz_model_sizes *model, uint64_t seed, mz_examples *out) {
    int32_t *tokens = mz_examples_input(out, MZ_ROLE_TOKENS)->data,
            *targets = mz_examples_input(out, MZ_ROLE_TARGETS)->data;
    for (int64_t i = 0; i < out->items; i++) {
        tokens[i] = made_up_token(model, seed, (uint64_t)i);
        if (i > 0)
            targets[i - 1] = tokens[i];
    }
    targets[out->items - 1] = made_up_token(model, seed, (uint64_t)out->items);
    const mz_input *positions = mz_examples_input(out, MZ_ROLE_POSITIONS);
    for (int64_t i = 0; positions != NULL && i < out->items; i++)
        ((int32_t *)positions->data)[i] = (int32_t)(i % positions->dim[1]);
}

static int metrics(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]) {
    const double bits = score->loss * (double)score->counted / 0.69314718055994530942;
    out[0] = (mz_task_metric){"perplexity", exp(score->loss)};
    out[1] = (mz_task_metric){"bits_per_byte", bits / (double)score->bytes};
    return score->bytes > 0 ? 2 : 1;
}

// --- samples -------------------------------------------------------------------------------------
static mezzo_status open_sampler(mz_task *task, mezzo_params *params, const mezzo_program_options *options) {
    language *l = (language *)task;
    if (l->tokenizer == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "the run has no tokenizer to turn tokens into text: put a tokenizer.json "
                                          "into its folder, or import with --tokenizer");
    return mz_sampler_create(params, &task->model, options, l->tokenizer, &l->sampler);
}

static size_t sampler_memory(const mz_task *task) {
    const language *l = (const language *)task;
    return l->sampler != NULL ? mz_sampler_memory(l->sampler) : 0;
}

static mezzo_status sample(mz_task *task, const mz_sample_draw *d, const volatile sig_atomic_t *stop,
                           mezzo_text_fn write, void *user) {
    const language *l = (const language *)task;
    const mz_draw how = {
        .temperature = d->temperature, .top_p = d->top_p, .top_k = d->top_k, .seed = d->seed, .index = d->index};
    if (d->messages != NULL)
        return mz_answer_draw(l->sampler, d, stop, write, user);
    return mz_sampler_run(l->sampler, d->prompt, d->length, how, d->which, stop, write, user);
}

static bool has(const mz_task *task, mz_set set) {
    const language *l = (const language *)task;
    if (l->corpus == NULL) {
        const mz_instructions *told = l->told[set == MZ_SET_TRAIN ? MEZZO_TRAIN : MEZZO_VALIDATION];
        return told != NULL && mz_instructions_count(told) > 0;
    }
    return mezzo_corpus_tokens(l->corpus, set == MZ_SET_TRAIN ? MEZZO_TRAIN : MEZZO_VALIDATION) > 0;
}

static mezzo_data_mark mark(const mz_task *task, mz_set set) {
    const language *l = (const language *)task;
    const mezzo_corpus_part part = set == MZ_SET_TRAIN ? MEZZO_TRAIN : MEZZO_VALIDATION;
    return l->corpus == NULL ? mz_instructions_mark(l->told[part]) : mz_stream_mark(&l->corpus->splits[part]);
}

const mz_task_kind mz_task_language = {.name = "language model",
                                       .unit = "tokens",
                                       .open = open_task,
                                       .close = close_task,
                                       .check_model = check_model,
                                       .has = has,
                                       .describe = describe,
                                       .report = report,
                                       .mark = mark,
                                       .open_source = open_source,
                                       .close_source = close_source,
                                       .draw = draw,
                                       .check = check,
                                       .blank = blank,
                                       .weight = weight,
                                       .bytes = bytes,
                                       .target = target,
                                       .made_up = made_up,
                                       .metrics = metrics,
                                       .keeps = keeps,
                                       .save = save,
                                       .open_sampler = open_sampler,
                                       .sampler_memory = sampler_memory,
                                       .sample = sample};
