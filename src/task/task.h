// A task connects the training loop with the data. It owns the data and knows what a batch of it is, when one is bad,
// how much each counts, what is measured besides the loss, and what a sample of the model is. The loop knows none of
// that: it draws batches by number and feeds them to a program. The model says what its inputs are; the task fills them
// by their roles.
//
// The language model is one task (language.c), the classifier another (classifier.c); a third is a third mz_task_kind
// and a row in task.c.
#ifndef MZ_TASK_H
#define MZ_TASK_H

#include <signal.h>

#include <jansson.h>

#include "base/base.h"
#include "mezzo/data.h"
#include "mezzo/train.h"
#include "models/model.h"

// --- batches -------------------------------------------------------------------------------------
typedef struct mz_examples {
    mz_input input[MZ_MODEL_INPUTS]; // the model's, with memory
    int n;
    int64_t items; // the count for speed: rows × a row's number of the task's unit
} mz_examples;
const mz_input *mz_examples_input(const mz_examples *examples, mz_role role); // NULL: the model has no such input

typedef enum mz_set { MZ_SET_TRAIN, MZ_SET_VALIDATION } mz_set;
typedef enum mz_order {
    MZ_ORDER_RANDOM,     // a batch is a pure function of (seed, set, number)
    MZ_ORDER_SEQUENTIAL, // every example once; examples that fill up the last batch have a weight of 0
} mz_order;

// Holds the results of mz_evaluate for a batch.
typedef struct mz_batch_score {
    double loss;      // mean
    uint64_t counted; // number of targets or examples
} mz_batch_score;

// Makes the batches of one set in one order. A batch is identified by its number alone; `position`, the number of the
// next one, is the only state.
typedef struct mz_source {
    const struct mz_task *task; // borrowed
    mz_examples examples;       // the batch that was drawn last; owned, but for a bound source
    mezzo_program *program;     // whose memory of inputs holds the examples (mz_source_bind); NULL: none
    uint64_t position;          // kept by a caller that goes through the source in order
    uint64_t batches;           // of one pass
    float *logits;              // [targets, classes], where accuracy is counted; NULL elsewhere
    int64_t classes;
    float *prediction;    // [rows, values], where the model predicts numbers; NULL elsewhere
    mz_batch_score *each; // NULL; else memory of the caller for the score of each batch that mz_evaluate runs
    void *state;          // of the task
    bool sound;           // `draw` has found every value of the batch good, so that nothing is left to check
    void (*spoil)(void *user, mz_examples *examples); // for tests: called on each batch before it is checked; NULL
    void *spoil_user;
} mz_source;

// Returns whether an option that is a text is set.
static inline bool mz_given(const char *text) {
    return text != NULL && text[0] != '\0';
}

// --- tasks ---------------------------------------------------------------------------------------
// Names the data and what belongs to it. NULL and "" mean none. Borrowed while the task is open.
typedef struct mz_task_options {
    const char *path, *train, *validation; // data.path, data.train, data.val
    const char *tokenizer;                 // language: a name or file, or "auto"
    const char *form;                      // language: the form of records, or "auto"
    const char *features, *labels;         // classifier: data.features (or path), data.labels
    const char *latents;                   // images: a run folder of kl_vae, which the code that opens the task reads
    bool any_labels, numbers;              // examples: the model says what labels are; a table's labels are numbers.
                                           // mz_task_open sets both
    double split;                          // the share of `path` for training
    bool pack;                             // language: a row has several documents, each of which sees itself alone
    const char *all;                       // instead of these: one source, all of it in MZ_SET_TRAIN
    const char *folder;                    // a run folder that is resumed
    const char *weights, *own;             // the source of trained weights; the file of their tokenizer
    bool no_data;                          // only what samples need is opened: a tokenizer, if there is one
} mz_task_options;

// Holds means over the targets that count.
typedef struct mz_evaluation {
    double loss;      // NaN where none counted or it was stopped early
    double accuracy;  // share of right answers; NaN where they are not counted
    double mae, r2;   // of predicted numbers: mean absolute error, coefficient of determination; NaN: there are none
    uint64_t counted; // number of targets or examples
    uint64_t bytes;   // bytes of text that these targets represent; 0: not known
} mz_evaluation;

// A number that a task derives from a score: "perplexity", "bits_per_byte", "accuracy".
typedef struct mz_task_metric {
    const char *name;
    double value;
} mz_task_metric;
enum { MZ_TASK_METRICS = 4 };

// Holds facts of a drawn answer.
typedef struct mz_answer {
    size_t first;   // the message from which on the model read the conversation; in and out
    int64_t prompt; // number of tokens that it read
    bool ended;     // the text that ends an answer ended it, not a lack of tokens
} mz_answer;

// Says how to draw a sample. Text: the index-th token of this seed, and the following ones.
typedef struct mz_sample_draw {
    const char *prompt;
    const json_t *messages; // a conversation whose next answer is drawn (answer.h), with `answer`; NULL: a text
    mz_answer *answer;
    int64_t length;            // in tokens
    double temperature, top_p; // top_p 0 and 1: no limit
    int top_k;
    uint64_t seed, index;
    int which; // passed to `write`
} mz_sample_draw;

typedef struct mz_task {
    const struct mz_task_kind *kind;
    mz_model model;       // valid after mz_task_set_model
    mz_model_sizes wants; // the model's sizes
    mz_model_sizes sizes; // sizes that the data decides
    bool packs;           // language: batches have the positions of tokens in their documents
    bool masks;           // batches may have different numbers of targets that count
    // Shares of a training batch that are padding, and would be with one document a row; NaN: not known. Valid once the
    // model is set.
    double padding, padding_alone;
    char note[400]; // one line that the owner of the run should read, once the model is set; "" = none
} mz_task;

// Holds a task's functions. Optional members may be NULL, with the meaning that their comments give.
typedef struct mz_task_kind {
    const char *name; // "language model"
    const char *unit; // of items: "tokens"
    bool scores;      // every validation counts accuracy, so the graph keeps its logits
    mezzo_status (*open)(const mz_task_options *options, mz_task **out);
    void (*close)(mz_task *task);
    // Sets the sizes of a graph file's dimensions that the data decide. NULL: there are none.
    mezzo_status (*bind)(const mz_task *task, mezzo_model_config *config);
    mezzo_status (*check_model)(mz_task *task);   // checks that task->model fits the data, and sets the note; NULL: any
                                                  // does
    bool (*has)(const mz_task *task, mz_set set); // whether the set has any example
    void (*describe)(const mz_task *task, char *out, size_t size);
    void (*report)(const mz_task *task); // logs what was read of the data, once the model is set; NULL: nothing
    // Returns the mark that identifies these examples, which are read already or of which few bytes are read.
    mezzo_data_mark (*mark)(const mz_task *task, mz_set set);
    // Opens a source, which has memory for its examples; sets state and batches.
    mezzo_status (*open_source)(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source);
    void (*close_source)(mz_source *source);
    // Draws batch k into source->examples. INVALID: this batch is bad, and others may be good. A task that looks at
    // every value as `check` does, while threads write it, sets source->sound where all are good.
    mezzo_status (*draw)(mz_source *source, uint64_t k);
    // Returns whether the model can take every value; else `fault` says which it cannot.
    bool (*check)(const mz_task *task, const mz_examples *examples, char *fault, size_t size);
    void (*blank)(mz_examples *examples);            // makes a batch of which nothing counts
    uint64_t (*weight)(const mz_examples *examples); // returns how many of its targets count
    // Returns the bytes of text that those represent, 0 where that is not known, and the name of one: "character",
    // "byte", "token". NULL: targets are no text.
    uint64_t (*bytes)(const mz_task *task, const mz_examples *examples);
    const char *(*target)(const mz_task *task);
    void (*made_up)(const mz_model_sizes *model, uint64_t seed, mz_examples *out);   // fills it with any numbers that a
                                                                                     // model can take
    int (*metrics)(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]); // returns how many there are
    // Return the file in the run folder that samples need, "" = none, and write it. NULL: there never is one.
    const char *(*keeps)(const mz_task *task);
    mezzo_status (*save)(const mz_task *task, const char *folder);
    bool pictures; // samples are predicted pictures: mz_images_predict, by a program that keeps its output
    // Opens the sampler. NULL: a model of this task has no other samples.
    mezzo_status (*open_sampler)(mz_task *task, mezzo_params *params, const mezzo_program_options *options);
    size_t (*sampler_memory)(const mz_task *task); // bytes of its programs
    mezzo_status (*sample)(mz_task *task, const mz_sample_draw *draw, const volatile sig_atomic_t *stop,
                           mezzo_text_fn write, void *user);
} mz_task_kind;

extern const mz_task_kind mz_task_language, mz_task_classifier, mz_task_images;
const mz_task_kind *mz_task_kind_of(mezzo_model_purpose purpose);

// Opens the data for a model of this family. Errors name the file, or the missing key.
mezzo_status mz_task_open(const mezzo_model_config *family, const mz_task_options *options, mz_task **out);
// Returns whether the options name texts, for a model that could learn from either.
bool mz_task_reads_texts(const mz_task_options *options);
void mz_task_close(mz_task *task); // NULL is allowed; called after its sources are closed
// Sets the complete model that is trained on the data. INVALID where it does not fit the data.
mezzo_status mz_task_set_model(mz_task *task, const mz_model *model);
void mz_task_report(const mz_task *task);       // logs its note and what was read; for rank 0
const char *mz_task_keeps(const mz_task *task); // "" = no file
mezzo_status mz_task_save(const mz_task *task, const char *folder);
// Opens the sampler. INVALID, naming the task, where it has none, as a language model without a tokenizer.
mezzo_status mz_task_open_sampler(mz_task *task, mezzo_params *params, const mezzo_program_options *options);
bool mz_task_has_samples(const mz_task *task);
mezzo_data_mark mz_task_mark(const mz_task *task, mz_set set); // bytes 0: there are no such examples, or they are made
                                                               // up

// Opens batches of `rows` rows. `scores`: with memory for logits, so that mz_evaluate counts accuracy. INVALID where
// the set has no examples.
mezzo_status mz_source_open(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed, bool scores,
                            mz_source **out);
void mz_source_close(mz_source *source); // NULL is allowed
// Makes the memory of the program's inputs that of the examples, so that mz_examples_write copies nothing to this
// program. The program stays as long as the source is drawn from.
mezzo_status mz_source_bind(mz_source *source, mezzo_program *program);
// Draws batch number k into source->examples; every batch is drawn here. With `fault` of `size` bytes (NULL: no check)
// the batch is checked, and a bad one becomes blank, of no weight, with what is wrong in `fault`; "" = nothing.
mezzo_status mz_source_draw(mz_source *source, uint64_t k, char *fault, size_t size);
mezzo_status mz_examples_write(const mz_examples *examples, mezzo_program *program); // writes every input
// Makes a batch of made-up numbers for a form of the whole model, owned by the caller; free with mz_examples_free. With
// documents, each row has one.
mezzo_status mz_examples_make(const mz_model *model, const mz_form *form, uint64_t seed, mz_examples *out);
void mz_examples_free(mz_examples *examples);

// Evaluates batches 0 … n-1 by `program`, whose "loss" is read, and "logits" where the source has memory for them
// (score.c). `forward` runs the drawn batches. It stops early, without an error, at *stop.
mezzo_status mz_evaluate(mezzo_program *program, mz_source *source, uint64_t n, const volatile sig_atomic_t *stop,
                         mz_evaluation *out);

#endif
