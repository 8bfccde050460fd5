// A task stands between the training loop and the data. It owns the data and knows what a batch of it is, when one is
// bad, how much each counts, what is measured besides the loss, and what a sample of the model is. The loop knows none
// of that: it draws batches by number and feeds them to a program. The model says what its inputs are; the task fills
// them by their roles.
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
    int64_t items; // what speed is counted in: rows × what a row has of the task's unit
} mz_examples;
const mz_input *mz_examples_input(const mz_examples *examples, mz_role role); // NULL: the model has no such input

typedef enum mz_set { MZ_SET_TRAIN, MZ_SET_VALIDATION } mz_set;
typedef enum mz_order {
    MZ_ORDER_RANDOM,     // a batch is a pure function of (seed, set, number)
    MZ_ORDER_SEQUENTIAL, // every example once; what fills the last batch up has a weight of 0
} mz_order;

// Holds what mz_evaluate finds of a batch.
typedef struct mz_batch_score {
    double loss;      // mean
    uint64_t counted; // targets or examples
} mz_batch_score;

// Batches of one set in one order. A batch is known by its number alone; `position`, the number of the next one, is all
// the state there is.
typedef struct mz_source {
    const struct mz_task *task; // borrowed
    mz_examples examples;       // the batch that was drawn last; owned
    uint64_t position;          // kept by code that goes through the source in turn
    uint64_t batches;           // of one pass
    float *logits;              // [targets, classes], where accuracy is counted; NULL elsewhere
    int64_t classes;
    float *prediction;    // [rows, values], where the model predicts numbers; NULL elsewhere
    mz_batch_score *each; // NULL; else room for the score of each batch that mz_evaluate runs, the caller's
    void *state;          // the task's
    void (*spoil)(void *user, mz_examples *examples); // for tests: called on each batch before it is checked; NULL
    void *spoil_user;
} mz_source;

// Whether an option that is a text is set.
static inline bool mz_given(const char *text) {
    return text != NULL && text[0] != '\0';
}

// --- tasks ---------------------------------------------------------------------------------------
// Says where data and what belongs to it comes from. NULL and "" are nothing. Borrowed while the task is open.
typedef struct mz_task_options {
    const char *path, *train, *validation; // data.path, data.train, data.val
    const char *tokenizer;                 // language: its name or file, or "auto"
    const char *form;                      // language: that of records, or "auto"
    const char *features, *labels;         // classifier: data.features (or path), data.labels
    const char *latents;                   // images: a run folder of kl_vae; read by the code that opens the task
    bool any_labels, numbers;              // examples: the model says what labels are; a table's are numbers. Set by
                                           // mz_task_open
    double split;                          // the part of `path` that is trained on
    bool pack;                             // language: several documents in a row, each of which sees itself alone
    const char *all;                       // instead of these: one source, all of it MZ_SET_TRAIN
    const char *folder;                    // a run folder that is resumed
    const char *weights, *own;             // where trained weights come from; the file of their tokenizer
    bool no_data;                          // only what samples need: a tokenizer, if there is one
} mz_task_options;

// A mean over what counts.
typedef struct mz_evaluation {
    double loss;      // NaN where nothing counted or it was stopped early
    double accuracy;  // share of right answers; NaN where not counted
    double mae, r2;   // of predicted numbers: mean absolute error, coefficient of determination; NaN: there are none
    uint64_t counted; // targets or examples
    uint64_t bytes;   // of text that these targets stand for; 0: not known
} mz_evaluation;

// A number that a task derives from a score: "perplexity", "bits_per_byte", "accuracy".
typedef struct mz_task_metric {
    const char *name;
    double value;
} mz_task_metric;
enum { MZ_TASK_METRICS = 4 };

// Holds what is known of an answer once it is drawn.
typedef struct mz_answer {
    size_t first;   // the message from which on the model read the conversation; in and out
    int64_t prompt; // tokens that it read
    bool ended;     // by what ends an answer, and not for want of tokens
} mz_answer;

// How a sample is drawn. Text: the index-th token of this seed, and on from there.
typedef struct mz_sample_draw {
    const char *prompt;
    const json_t *messages; // NULL; else instead: a conversation whose next answer is drawn (answer.h), with `answer`
    mz_answer *answer;
    int64_t length;            // tokens
    double temperature, top_p; // top_p 0 and 1: all
    int top_k;
    uint64_t seed, index;
    int which; // handed to `write`
} mz_sample_draw;

typedef struct mz_task {
    const struct mz_task_kind *kind;
    mz_model model;       // once mz_task_set_model was called
    mz_model_sizes wants; // its sizes
    mz_model_sizes sizes; // that the data decides
    bool packs;           // language: batches have the positions of tokens in their documents
    bool masks;           // more targets of one batch may count than of another
    // Shares of a training batch that are padding, and would be with one document a row; NaN: not known. Once its model
    // is set.
    double padding, padding_alone;
    char note[400]; // once its model is set: one line that the owner of the run should read; "" = none
} mz_task;

// Holds what a task has to bring. Optional members may be NULL, and say what that means.
typedef struct mz_task_kind {
    const char *name; // "language model"
    const char *unit; // what items are: "tokens"
    bool scores;      // accuracy is counted at every validation: the graph keeps its logits
    mezzo_status (*open)(const mz_task_options *options, mz_task **out);
    void (*close)(mz_task *task);
    // NULL: nothing. Gives the sizes of a graph file's dimensions that the data decide.
    mezzo_status (*bind)(const mz_task *task, mezzo_model_config *config);
    mezzo_status (*check_model)(mz_task *task);   // NULL: any. Whether task->model fits the data; sets its note
    bool (*has)(const mz_task *task, mz_set set); // any example at all
    void (*describe)(const mz_task *task, char *out, size_t size);
    void (*report)(const mz_task *task); // NULL: nothing. Logs what was read of the data, once the model is set
    // Returns the mark that identifies these examples. They are read already, or few of their bytes are read.
    mezzo_data_mark (*mark)(const mz_task *task, mz_set set);
    // `source` has its examples; sets state and batches.
    mezzo_status (*open_source)(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source);
    void (*close_source)(mz_source *source);
    // Batch k into source->examples. INVALID: this batch is bad, others may be good.
    mezzo_status (*draw)(mz_source *source, uint64_t k);
    // Returns whether every value is one that the model can take; else `fault` says which is not.
    bool (*check)(const mz_task *task, const mz_examples *examples, char *fault, size_t size);
    void (*blank)(mz_examples *examples);            // makes a batch of which nothing counts
    uint64_t (*weight)(const mz_examples *examples); // how many of its targets count
    // Bytes of text that those stand for, 0 where that is not known, and what one is: "character", "byte", "token".
    // NULL: targets are no text.
    uint64_t (*bytes)(const mz_task *task, const mz_examples *examples);
    const char *(*target)(const mz_task *task);
    void (*made_up)(const mz_model_sizes *model, uint64_t seed, mz_examples *out);   // any numbers a model can take
    int (*metrics)(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]); // how many
    // The file in the run folder that samples need, "" = none; and writing it. NULL: never one.
    const char *(*keeps)(const mz_task *task);
    mezzo_status (*save)(const mz_task *task, const char *folder);
    bool pictures; // samples are predicted pictures: mz_images_predict, by a program that keeps its output
    // NULL: a model of this task has no other samples.
    mezzo_status (*open_sampler)(mz_task *task, mezzo_params *params, const mezzo_program_options *options);
    size_t (*sampler_memory)(const mz_task *task); // bytes of its programs
    mezzo_status (*sample)(mz_task *task, const mz_sample_draw *draw, const volatile sig_atomic_t *stop,
                           mezzo_text_fn write, void *user);
} mz_task_kind;

extern const mz_task_kind mz_task_language, mz_task_classifier, mz_task_images;
const mz_task_kind *mz_task_kind_of(mezzo_model_purpose purpose);

// Opens the data for a model of this family. Errors name the file, or the key that is missing.
mezzo_status mz_task_open(const mezzo_model_config *family, const mz_task_options *options, mz_task **out);
// Returns whether what options name is texts, for a model that could learn from either.
bool mz_task_reads_texts(const mz_task_options *options);
void mz_task_close(mz_task *task); // NULL is fine; after its sources
// The model that is trained on it, complete. INVALID where it does not fit the data.
mezzo_status mz_task_set_model(mz_task *task, const mz_model *model);
void mz_task_report(const mz_task *task);       // its note and what was read, to the log: for the leader of the ranks
const char *mz_task_keeps(const mz_task *task); // "" = nothing
mezzo_status mz_task_save(const mz_task *task, const char *folder);
// INVALID, naming the task, where it has none. A language model without a tokenizer is one of these.
mezzo_status mz_task_open_sampler(mz_task *task, mezzo_params *params, const mezzo_program_options *options);
bool mz_task_has_samples(const mz_task *task);
mezzo_data_mark mz_task_mark(const mz_task *task, mz_set set); // bytes 0: it has no such examples, or they are made up

// Opens batches of `rows` rows. `scores`: with room for logits, so that mz_evaluate counts accuracy. INVALID where the
// set has no examples.
mezzo_status mz_source_open(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed, bool scores,
                            mz_source **out);
void mz_source_close(mz_source *source); // NULL is fine
// THE place where a batch is drawn: number k, into source->examples. With `fault` of `size` bytes (NULL: not looked at)
// the batch is checked, and a bad one is blank, of no weight, with what is wrong in `fault`; "" = nothing.
mezzo_status mz_source_draw(mz_source *source, uint64_t k, char *fault, size_t size);
mezzo_status mz_examples_write(const mz_examples *examples, mezzo_program *program); // every input
// Makes a batch of made-up numbers for a form of the whole model, owned by the caller; free with mz_examples_free. Of
// documents, each row has one.
mezzo_status mz_examples_make(const mz_model *model, const mz_form *form, uint64_t seed, mz_examples *out);
void mz_examples_free(mz_examples *examples);

// score.c: batches 0 … n-1 through `program`, whose "loss" is read, and "logits" where the source has room for them.
// `forward`: batches are drawn and weighed here and nowhere else. Stops early, without an error, at *stop.
mezzo_status mz_evaluate(mezzo_program *program, mz_source *source, uint64_t n, const volatile sig_atomic_t *stop,
                         mz_evaluation *out);

#endif
