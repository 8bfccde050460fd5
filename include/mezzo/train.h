// A training run as one call, evaluation of its checkpoints and sampling from them, its configuration, and checkpoints
// for loops of your own. Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_TRAIN_H
#define MEZZO_TRAIN_H

#include <signal.h>

#include "mezzo/data.h"
#include "mezzo/model.h"
#include "mezzo/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- configuration -------------------------------------------------------------------------------------------------
// Holds the value of every key. Every key has a default; docs/train.md lists them. A file overrides a default, and the
// command line overrides a file.
typedef struct mezzo_config mezzo_config;
MEZZO_API mezzo_status mezzo_config_create(mezzo_config **out); // every default; the caller owns *out
MEZZO_API void mezzo_config_free(mezzo_config *config);         // NULL is allowed
// Reads a YAML file: nested maps or dotted keys. "base: other.yaml" (relative to the file) is loaded before it;
// "recipe" is ignored. FORMAT (not YAML; or its first line, as mezzo_config_save writes it, has the checksum of another
// text; to edit a file, remove that line), INVALID (an unknown key, naming the nearest known one; a value of the wrong
// type), IO: each names file, line and key.
MEZZO_API mezzo_status mezzo_config_load(mezzo_config *config, const char *path);
// Sets one key, by its name or short name ("optimizer.lr", "lr", "autocast.h.*.mlp*"), from text. `source` names the
// origin in errors ("command line"). INVALID as mezzo_config_load.
MEZZO_API mezzo_status mezzo_config_set(mezzo_config *config, const char *key, const char *value, const char *source);
// Reads --KEY VALUE and --KEY=VALUE with a key or a short name ("lr", "batch-size"); --KEY and --no-KEY for truth
// values. Other arguments go into rest[] (argc elements, borrowed from argv), *n_rest of them. They override a file in
// any order of the calls. INVALID as mezzo_config_load, and for an option without its value.
MEZZO_API mezzo_status mezzo_config_args(mezzo_config *config, int argc, const char *const *argv, const char **rest,
                                         int *n_rest);
// Returns the value as text, by key or short name, valid until the next call for this key or until it is set; NULL for
// an unknown key, and, with MEMORY's message, when memory is exhausted.
MEZZO_API const char *mezzo_config_get(const mezzo_config *config, const char *key);
// Writes every key as YAML, atomically: after an error the file is as before. IO names it.
MEZZO_API mezzo_status mezzo_config_save(const mezzo_config *config, const char *path);
// Checks ranges, and keys that contradict each other: INVALID names the key and its permitted values. It reads no
// files.
MEZZO_API mezzo_status mezzo_config_check(const mezzo_config *config);
// Gets the model that the keys describe. `vocab` (0 = not known yet) is used where model.vocab is 0. INVALID: no such
// model, or a key that its family does not take.
MEZZO_API mezzo_status mezzo_config_model(const mezzo_config *config, int64_t vocab, mezzo_model_config *out);
// Gets precision, residual, recompute, logits_rows and overrides of the keys. *out borrows the overrides from the
// configuration; its precision may be AUTO, which mezzo_precision_resolve resolves to one that a program takes.
// INVALID: a precision that does not exist, naming the nearest.
MEZZO_API mezzo_status mezzo_config_program(const mezzo_config *config, mezzo_program_options *out);

typedef struct mezzo_config_key {
    const char *key, *initial, *help;
    const char *type;    // "integer", "number", "true|false", "text", "map", or the permitted names: "adamw|sgd"
    const char *aliases; // short names, separated by spaces; "" if none
} mezzo_config_key;
MEZZO_API int mezzo_config_count(void);
MEZZO_API mezzo_config_key mezzo_config_describe(int index); // strings are static

// --- training ------------------------------------------------------------------------------------------------------
typedef enum mezzo_event {
    MEZZO_EVENT_START,  // once, before the first step; `text` is one line: model, parameters, device, precision and why
    MEZZO_EVENT_STEP,   // every log_every steps
    MEZZO_EVENT_EVAL,   // val_loss is new; `text` says on which data: "sample" or "whole set"
    MEZZO_EVENT_SAMPLE, // `text` is sampled text, or for a model of images the path of a sheet in the run folder
    MEZZO_EVENT_CHECKPOINT, // `text` is the checkpoint's path
    MEZZO_EVENT_WARNING,    // `text` is one line: a step was skipped, and where the first non-finite value appeared
    MEZZO_EVENT_PROFILE,    // `text` is a table of several lines: the ops that train.profile found worth improving
    MEZZO_EVENT_END,
} mezzo_event;

typedef struct mezzo_progress {
    mezzo_event event;
    int64_t step, steps;  // steps done, and their final number
    double loss;          // training loss of the last finished step, mean over its micro batches; NaN before the first
    double val_loss;      // of the last validation; NaN before the first
    double lr, grad_norm; // of that step; the norm is before clipping
    double loss_scale;    // 1 without a scaler
    int64_t skipped;      // steps skipped so far for non-finite gradients
    double tokens_per_second, step_ms; // since the last report; `unit` says what tokens are
    // Model FLOPs since the last report, divided by the device's peak (device.peak_tflops) and the time; NaN: the peak
    // is not known.
    double mfu, model_tflops;     // model_tflops: FLOPs a second × 1e-12
    double joules_per_token;      // over at least a second of steps; NaN: no readable counter
    double wait_ms;               // time in a step that the device waited for data
    size_t memory_bytes;          // parameters, gradients, optimizer, activations, workspace
    double seconds, seconds_left; // seconds_left includes validation, samples and checkpoints, as far as they were
                                  // measured
    const char *unit;             // "tokens"; for a classifier "examples"
    const char *precision, *text; // text: "" where the event has none. Valid during the call
} mezzo_progress;
typedef void (*mezzo_progress_fn)(void *user, const mezzo_progress *progress);

// Describes the training for which amp.precision auto is decided. Borrowed during the call.
typedef struct mezzo_auto_request {
    mezzo_device *device;
    const mezzo_model_config *model;
    const mezzo_program_options *program; // its precision is the result of mezzo_precision_resolve
    int64_t batch, grad_accum;
    uint64_t seed;
    const volatile sig_atomic_t *stop; // may be NULL
} mezzo_auto_request;
// Chooses a precision. *precision: one that mezzo_precision_resolve gives on this device; `reason` of `size` bytes: one
// line. An error ends the run.
typedef mezzo_status (*mezzo_choose_fn)(void *user, const mezzo_auto_request *request, mezzo_precision *precision,
                                        char *reason, size_t size);

typedef struct mezzo_hooks { // all may be NULL
    mezzo_progress_fn progress;
    void *user;
    // Not zero: the run finishes its step, writes a checkpoint and returns INTERRUPTED. A signal handler may set it.
    const volatile sig_atomic_t *stop;
    // Called once where amp.precision is auto; not on resume, where the precision is the checkpoint's. NULL:
    // mezzo_precision_resolve decides, from the device alone.
    mezzo_choose_fn choose;
    // Each change requests a checkpoint after the present step, and training continues. A signal handler may count it
    // up.
    const volatile sig_atomic_t *save;
} mezzo_hooks;

// Every random purpose in a run has a seed of its own, drawn from the run's, so that no two share a stream:
// mezzo_params_create takes PARAMETERS, a loader DATA or VALIDATION (its `stream` is the mezzo_corpus_part),
// mezzo_program_run and mezzo_step_micro DROPOUT, with the micro batch's number as step. A loop of one's own that draws
// seeds in this way gives the same training as mezzo_run_train, to the bit.
typedef enum mezzo_purpose {
    MEZZO_SEED_PARAMETERS = 1,
    MEZZO_SEED_DATA,
    MEZZO_SEED_DROPOUT,
    MEZZO_SEED_VALIDATION
} mezzo_purpose;
MEZZO_API uint64_t mezzo_seed(uint64_t seed, mezzo_purpose purpose);

typedef struct mezzo_train_result {
    int64_t steps, skipped;  // steps done in all, including those before a resume
    double loss;             // training loss of the last step
    double val_loss;         // of the last validation on the whole set; NaN without one
    double sampled_val_loss; // of the last validation on train.eval_iters random batches; NaN without one
    double best_val_loss;   // the lowest of the validations between steps: sampled ones, or whole where eval_iters is 0
    double val_accuracy;    // of a classifier, at the last validation; else NaN
    double val_mae, val_r2; // of a model that predicts numbers; else NaN
    double val_bits_per_byte; // computed from val_loss, as in mezzo_eval_result, like perplexity_per
    const char *perplexity_per;
    const char *unit;                  // the unit of tokens_per_second: "tokens", for a classifier "examples"
    double seconds, tokens_per_second; // of this call; the rate excludes validation and checkpoints
    double mfu;                        // of all steps of this call, as in mezzo_progress; NaN: not known
    double joules_per_token;           // over all steps of this call; NaN: not known
    double wait_share;                 // share of the steps' time that the device waited for data
    size_t memory_bytes;
    mezzo_precision precision; // the precision of the run, also where the key was auto
    int rank, ranks;           // this process among those that trained together, 0 of 1 alone; rank 0 wrote the folder
    char device[160];
    bool healthy;          // by the rules of docs/guard.md
    char health[512];      // one line: the state of the run, or its problem and a remedy to try
    char checkpoint[4096]; // the path of the last one; "" if none was written
    char sample[4096];     // the last sample text, or sheet of pictures (its path in the run folder); "" if none
} mezzo_train_result;

// Trains as `config` says, into its run folder. *result (may be NULL) describes the run until its end or its error.
// Errors: INVALID (configuration, data that does not fit the model, a run folder that holds another run and no resume),
// IO, FORMAT, MEMORY, UNSUPPORTED (device, precision), NUMERIC (naming step and op), INTERRUPTED.
MEZZO_API mezzo_status mezzo_run_train(const mezzo_config *config, const mezzo_hooks *hooks,
                                       mezzo_train_result *result);

typedef struct mezzo_bisect_result {
    bool found;
    int64_t first_step, last_step;                 // the checkpoint's, and the last one that ran
    int64_t step, micro;                           // the first bad step, and its micro batch (from 1; 0: no single one)
    char kind[16];                                 // "batch" "loss" "activation" "gradients" "parameters" "overflow"
    char op[32], module[128], phase[16], dtype[8]; // of the first bad value; "" where no op caused it
    char text[1024];                               // the finding in one line, with the inputs' ranges and a remedy to
                                                   // try
} mezzo_bisect_result;
// Repeats the steps after the checkpoint from which `config` resumes, writing nothing, until one is bad, and names the
// first bad op in it. Errors as mezzo_run_train; INVALID where train.resume is empty.
MEZZO_API mezzo_status mezzo_run_bisect(const mezzo_config *config, const mezzo_hooks *hooks,
                                        mezzo_bisect_result *result);

// --- evaluating and sampling ---------------------------------------------------------------------------------------
// Says what to evaluate. `path` is a run folder (its newest complete checkpoint, or the best one where `best`) or the
// folder of one checkpoint.
typedef struct mezzo_eval_options {
    const char *path;
    bool best;
    const char *data;      // NULL = the run's validation data; else text or shards, or a .npy of features, read
                           // completely
    const char *labels;    // for a classifier: the .npy of the classes of `data`; NULL without `data`
    const char *device;    // NULL = the run's
    const char *precision; // NULL = the run's
    int threads;           // 0 = all
    int64_t batch_size;    // 0 = the run's
    int64_t iters;         // number of random batches; 0 = the whole set
    bool no_ema;           // use the weights themselves, also where the checkpoint has their moving average
    const char *csv;       // NULL; else a file for the loss of each batch
    const char *as;        // NULL; else "f32", "f16", "bf16" or "q8_0": also evaluate the weights as an export in GGUF
                           // writes them; csv then has these losses
} mezzo_eval_options;
typedef struct mezzo_eval_result {
    double loss;       // mean over tokens or examples, nats
    double loss_as;    // with the weights rounded to `as`; NaN: not requested
    double perplexity; // e^loss, for a language model; else NaN
    // The unit of perplexity: "character", "byte" or "token", as the tokenizer splits text; "" where there is none.
    // Static.
    const char *perplexity_per;
    // Bits for each byte of the predicted text, so that models with different tokenizers compare; NaN: its bytes are
    // not known.
    double bits_per_byte;
    double accuracy; // share of right classes, for a classifier; else NaN
    double mae, r2;  // mean absolute error and coefficient of determination, for a model that predicts numbers; else
                     // NaN
    // For a model of gray images and the whole set, the scores that mezzo_run_predict gives in 5 steps; else NaN.
    double nmse, rmse, ssim, psnr;
    const char *unit;     // the unit of `tokens`: "tokens", for a classifier "examples", for pictures "images"
    int64_t tokens, step; // number of evaluated tokens; the checkpoint's step
    double tokens_per_second;
    mezzo_precision precision;
    bool ema; // the weights' moving average was evaluated
    char as[8];
    char checkpoint[4096];
} mezzo_eval_result;
// Evaluates a checkpoint. *result is filled on success. Errors: IO, FORMAT (the checkpoint, naming file and key),
// INVALID (no checkpoint at the path, data that does not fit), UNSUPPORTED (device, precision; a model that has no file
// format `as`), NUMERIC (a weight is too large for `as`), INTERRUPTED.
MEZZO_API mezzo_status mezzo_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks,
                                      mezzo_eval_result *result);

typedef struct mezzo_sample_options {
    const char *path;
    bool best;
    const char *prompt;             // NULL or "" = a newline
    int64_t tokens;                 // number to draw; 0 = 200
    int samples;                    // number of texts; 0 = 1
    double temperature;             // 0 = always the most probable token
    double top_p;                   // draw from the smallest set of the most probable tokens whose probabilities reach
                                    // this sum; 0 or 1 = all
    int top_k;                      // draw from the k most probable; 0 = all
    uint64_t seed;                  // the same seed, checkpoint, precision and device give the same text
    const char *device, *precision; // NULL = the run's
    int threads;
    bool no_ema;      // as in mezzo_eval_options
    const char *chat; // a user's message in place of a prompt, by the tokenizer's chat template; the text is the answer
} mezzo_sample_options;
MEZZO_API mezzo_sample_options mezzo_sample_defaults(void); // temperature 0.8, top_k 0 (all), seed 1
// Called with each piece of text as it is drawn (`index`: the number of the sample); `text` may end within a character.
typedef void (*mezzo_text_fn)(void *user, int index, const char *text, size_t bytes);
// Samples texts from a checkpoint. Errors as mezzo_run_eval; INVALID also for a run without a tokenizer and a prompt
// that it cannot encode.
MEZZO_API mezzo_status mezzo_run_sample(const mezzo_sample_options *options, const mezzo_hooks *hooks,
                                        mezzo_text_fn write, void *user);

// Holds a conversation with a model, by its tokenizer's chat template (ChatML where it has none). mezzo_chat_open
// ignores prompt, chat and samples of `options`; tokens is the most that an answer has. The caller owns *out. Errors as
// mezzo_run_sample.
typedef struct mezzo_chat mezzo_chat;
typedef struct mezzo_chat_answer {
    int64_t prompt_tokens, context_tokens; // tokens that the model read, and the most that it can read
    int64_t left_out;                      // number of the oldest questions and answers that were left out
    bool ended;                            // the model ended its answer; false: it has reached the most tokens
    bool stopped;                          // the hooks' stop was set: the answer so far is part of the conversation
} mezzo_chat_answer;
MEZZO_API mezzo_status mezzo_chat_open(const mezzo_sample_options *options, mezzo_chat **out);
MEZZO_API void mezzo_chat_close(mezzo_chat *chat); // NULL is allowed
// Begins a new conversation. `system`: the system message; NULL or "": none. INVALID: it is not UTF-8.
MEZZO_API mezzo_status mezzo_chat_reset(mezzo_chat *chat, const char *system);
// Adds the user's `message`, and passes the answer to `write` (NULL: no function) as it is drawn. *out is filled on
// success. After an error the conversation is as before. INVALID: the message is not UTF-8, the tokenizer or the
// template refuses it, or it does not fit into the context.
MEZZO_API mezzo_status mezzo_chat_say(mezzo_chat *chat, const char *message, const mezzo_hooks *hooks,
                                      mezzo_text_fn write, void *user, mezzo_chat_answer *out);
// Writes the whole conversation as one line, {"messages": […]}, a record for training, atomically. IO names the file.
MEZZO_API mezzo_status mezzo_chat_save(const mezzo_chat *chat, const char *path);

// Says how a model of images predicts pictures: by default those of the run's data that are not for training.
typedef struct mezzo_predict_options {
    const char *path, *out; // a run or a checkpoint; the folder for the results, made if missing
    bool best;
    const char *data;               // NULL = the run's; else data whose pictures are all predicted
    const char *device, *precision; // NULL = the run's
    int64_t count, batch_size;      // number of pictures, 0 = all; 0 = the run's
    int rows;                       // number of rows of the sheet; 0 = 6
    int steps;                      // number of steps of the sampler; 0 = 5
    double eta;                     // for noise and velocity: the share of new noise in a step, 0 to 1
    uint64_t seed;
    int threads;
    bool no_ema; // as in mezzo_eval_options
} mezzo_predict_options;
typedef struct mezzo_predict_result {
    int64_t pictures, step; // number of predicted pictures; the checkpoint's step
    bool ema;               // the weights' moving average was used
    double nmse, rmse, ssim, psnr, seconds;
    char checkpoint[4096];
} mezzo_predict_result;
// Writes OUT/NAME.png for each picture and OUT/sheet.png, rows of condition, truth, prediction and error. Errors as
// mezzo_run_eval; INVALID also where the model is not one of images.
MEZZO_API mezzo_status mezzo_run_predict(const mezzo_predict_options *options, const mezzo_hooks *hooks,
                                         mezzo_predict_result *result);

// --- weights in and out --------------------------------------------------------------------------------------------
typedef struct mezzo_import_options {
    // A folder with config.json and model.safetensors (or model.safetensors.index.json and its files), one of these two
    // files, a GGUF file (versions 2 and 3, weights in F32, F16, BF16 and Q8_0), or llm.c's model file (magic 20240326,
    // versions 3 and 5).
    const char *path;
    const char *out;       // the run folder to make; it must not exist, or be empty
    const char *tokenizer; // NULL: the folder's own, or GPT-2's where the folder has none but GPT-2's vocabulary;
                           // "none"; else a tokenizer's name or file: MEZZO_ERR_INVALID where the folder has another
    const char *adapter;   // a folder of PEFT's with LoRA adapters of these weights, which the checkpoint keeps
                           // separately; NULL: none
    int64_t seq_len;       // the model's context; 0: the folder's. A table of positions (gpt2's) is truncated to it;
                           // FORMAT where the table is shorter
} mezzo_import_options;
typedef struct mezzo_import_result {
    mezzo_model_config model;
    int64_t parameters;
    bool tokenizer;              // the run has a tokenizer, so that it can sample and read texts
    int64_t adapters, lora_rank; // number of linear layers with an adapter, 0: none; the adapters' rank
    double lora_alpha;           // for later training of the adapters, as lora_rank
} mezzo_import_result;
// Makes a run folder with one checkpoint, of step 0, in FP32. Everything is checked before anything is written, and the
// folder appears complete or not at all. Errors name file and key or tensor: IO, FORMAT (a tensor is missing, has
// another shape, belongs to no part; a model_type or a setting that Mezzo does not compute; a pickle), NUMERIC (a
// weight is NaN or infinite), INVALID (nothing to import, `out` exists), MEMORY.
MEZZO_API mezzo_status mezzo_import(const mezzo_import_options *options, mezzo_import_result *result);

typedef struct mezzo_export_options {
    const char *path, *out; // a run folder or a checkpoint; the folder to make, which must not exist, or be empty
    bool best;
    bool no_ema;         // as in mezzo_eval_options
    bool adapter;        // write the adapters alone, in PEFT's files; else they are merged into the weights
    mezzo_dtype dtype;   // of the weights: F32, BF16 or F16
    int64_t shard_bytes; // most bytes of a file of weights (which has at least one tensor); several files get an index;
                         // 0 = one file
    const char *gguf;    // "f32", "f16", "bf16" or "q8_0": `out` is one file for llama.cpp, with the tokenizer and its
                         // chat template, and must not exist; dtype is ignored. NULL: a folder
    bool onnx; // for a run whose model is an ONNX file: `out` is that file with the run's weights, and must not exist
    bool evaluation; // that file is written for use, as by mezzo_onnx_save
} mezzo_export_options;
typedef struct mezzo_export_result {
    mezzo_model_config model;
    int64_t tensors, files; // numbers of tensors and files of weights
    bool ema;               // they are the weights' moving average
    char checkpoint[4096];
} mezzo_export_result;
// Makes a folder that transformers loads: config.json, model.safetensors (or model.safetensors.index.json and its
// files) and, for byte-pair tokenizers, vocab.json and merges.txt; it appears complete or not at all. It contains token
// ids and generation settings that an import kept. NUMERIC: a weight is too large for `dtype`. UNSUPPORTED:
// transformers, or llama.cpp, has no such model or, in GGUF, no such tokenizer. Other errors as in mezzo_run_eval and
// mezzo_import.
MEZZO_API mezzo_status mezzo_export(const mezzo_export_options *options, mezzo_export_result *result);

// --- checkpoints ---------------------------------------------------------------------------------------------------
// A checkpoint is FOLDER/step-00000500/{model.safetensors, optimizer.safetensors, ema.safetensors, state.json}, the
// third where an average is kept; FOLDER/manifest.json names it once it is complete and on the disk.
// docs/checkpoints.md describes the format.
enum { MEZZO_DESCRIPTION = 4096 }; // most bytes of a model's description, its NUL included
typedef struct mezzo_checkpoint {
    mezzo_params *params;
    mezzo_optimizer *optimizer; // NULL: not kept
    mezzo_scaler *scaler;       // NULL: not kept
    int64_t step;               // steps done, skipped ones included
    uint64_t seed;
    uint64_t batches;               // micro batches drawn so far, at which the data continue
    bool packed;                    // documents shared the rows of these batches (data.pack)
    double val_loss, best_val_loss; // NaN: none yet
    bool val_sampled; // the losses are of random batches, not of the whole set: only losses of one kind compare
    char model[MEZZO_DESCRIPTION]; // the model's description (mezzo_model_describe); "": not kept
    uint64_t graph;                // a hash of the graph that Mezzo built from `model`; 0: not kept
    bool has_ema;       // filled: the checkpoint has a moving average of the weights, which the optimizer kept
    bool ema;           // for loading: read the average into `params` where there is one, instead of the weights
    char precision[16]; // "" : not kept
    char master[16];    // the storage of the run's masters; "" : not known
    char moments[16];   // the storage of its optimizer's moments
    char tokenizer[64]; // name of a file beside FOLDER; "": not kept
    mezzo_data_mark data, validation; // marks of the training and validation data; bytes 0: not kept
} mezzo_checkpoint;

// Describes a model as a checkpoint does: by a JSON object. INVALID as mezzo_model_check, or `size` is too small.
MEZZO_API mezzo_status mezzo_model_describe(const mezzo_model_config *config, char *out, size_t size);
// Reads the keys of a described model. FORMAT: no JSON object, or a value has another type; INVALID as
// mezzo_model_check.
MEZZO_API mezzo_status mezzo_model_parse(const char *description, mezzo_model_config *out);
// Writes a checkpoint and removes older ones except the newest keep_last (0 = all) and the best one: of the validated
// ones with the newest one's val_sampled, the one with the lowest val_loss. `path` (may be NULL) of `size` bytes gets
// its folder. After an error the older checkpoints are as before. A checkpoint of the same step is replaced. INVALID:
// no parameters, a step below 0 or of more than 18 digits, batches above INT64_MAX, a tokenizer that is no plain file
// name, or another process that writes there; NUMERIC: a value that is not finite, with its tensor and element; IO:
// also where the flushed file reads back differently.
MEZZO_API mezzo_status mezzo_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, int64_t keep_last,
                                             char *path, size_t size);
// Finds the newest complete checkpoint of FOLDER (or the best, where `best`): the one that the manifest names if its
// sizes and checksums are right, else the newest that is complete by itself; one with numbers that are not finite is
// skipped. Changes nothing. INVALID where there is none, naming those that were found.
MEZZO_API mezzo_status mezzo_checkpoint_find(const char *folder, bool best, char *path, size_t size);
// Fills everything but the three objects, which need not be set, and `ema`. IO and FORMAT name the file and the key.
MEZZO_API mezzo_status mezzo_checkpoint_describe(const char *path, mezzo_checkpoint *checkpoint);
// Reads into the objects that are set, and fills the other members. Everything is checked before anything is changed:
// FORMAT or INVALID name the file and the tensor with both shapes, or the one with a number that is not finite.
MEZZO_API mezzo_status mezzo_checkpoint_load(const char *path, mezzo_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif
#endif
