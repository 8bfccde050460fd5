// A training run as one call, evaluating and sampling from what it left, its configuration, and checkpoints for loops
// of your own.
// Ownership, threads and errors that a comment does not name: mezzo.h.
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
// Every key has a default; docs/train.md lists them. A file is stronger than a default, the command line stronger than
// a file.
typedef struct mezzo_config mezzo_config;
MEZZO_API mezzo_status mezzo_config_create(mezzo_config **out); // every default; the caller owns *out
MEZZO_API void mezzo_config_free(mezzo_config *config);         // NULL is fine
// A YAML file: nested maps or dotted keys. "base: other.yaml" (relative to the file) is loaded before it; "recipe" is
// passed over. FORMAT (not YAML; or its first line, as mezzo_config_save writes it, has the
// checksum of another text: who edits the file removes that line), INVALID (an unknown key, naming the nearest known
// one; a value of the wrong type), IO: each names file, line and key.
MEZZO_API mezzo_status mezzo_config_load(mezzo_config *config, const char *path);
// One key or short name ("optimizer.lr", "lr", "autocast.h.*.mlp*") from text. `source` says where it came from in
// errors ("command line"). INVALID as mezzo_config_load.
MEZZO_API mezzo_status mezzo_config_set(mezzo_config *config, const char *key, const char *value, const char *source);
// --KEY VALUE and --KEY=VALUE with a key or a short name ("lr", "batch-size"); --KEY and --no-KEY for truth values.
// What is no option goes into rest[] (room for argc entries, borrowed from argv), *n_rest of them. Stronger than a
// file, whatever the order of the calls. INVALID as mezzo_config_load, and for an option without its value.
MEZZO_API mezzo_status mezzo_config_args(mezzo_config *config, int argc, const char *const *argv, const char **rest,
                                         int *n_rest);
// The value as text, by key or short name, valid until the next call for this key or until it is set; NULL for an
// unknown key, and with MEMORY's message when out of memory.
MEZZO_API const char *mezzo_config_get(const mezzo_config *config, const char *key);
// Every key, as YAML, atomically: the file is as it was, or whole. IO names it.
MEZZO_API mezzo_status mezzo_config_save(const mezzo_config *config, const char *path);
// Ranges, and keys that contradict each other: INVALID naming the key and what it may be. Files are not inspected.
MEZZO_API mezzo_status mezzo_config_check(const mezzo_config *config);
// The model the keys describe. `vocab` (0 = not known yet) stands where model.vocab is 0. INVALID: no such model, or a
// key that its family does not take.
MEZZO_API mezzo_status mezzo_config_model(const mezzo_config *config, int64_t vocab, mezzo_model_config *out);
// Precision, residual, recompute, logits_rows and overrides of the keys. *out borrows the overrides from the
// configuration; its precision may be AUTO, which mezzo_precision_resolve turns into one that a program takes. INVALID:
// a precision that does not exist, naming the nearest.
MEZZO_API mezzo_status mezzo_config_program(const mezzo_config *config, mezzo_program_options *out);

typedef struct mezzo_config_key {
    const char *key, *initial, *help;
    const char *type;    // "integer", "number", "true|false", "text", "map", or the names it takes: "adamw|sgd"
    const char *aliases; // short names, separated by spaces; "" if none
} mezzo_config_key;
MEZZO_API int mezzo_config_count(void);
MEZZO_API mezzo_config_key mezzo_config_describe(int index); // strings are static

// --- training ------------------------------------------------------------------------------------------------------
typedef enum mezzo_event {
    MEZZO_EVENT_START,  // once, before the first step; `text` is one line: model, parameters, device, precision and why
    MEZZO_EVENT_STEP,   // every log_every steps
    MEZZO_EVENT_EVAL,   // val_loss is new; `text` is what it is of: "sample" or "whole set"
    MEZZO_EVENT_SAMPLE, // `text` is sampled text, or of a model of images a sheet's path in the run folder
    MEZZO_EVENT_CHECKPOINT, // `text` is the checkpoint's path
    MEZZO_EVENT_WARNING,    // `text` is one line: a step was skipped, and where the first non-finite value appeared
    MEZZO_EVENT_PROFILE,    // `text` is a table of several lines: the ops that train.profile found worth improving
    MEZZO_EVENT_END,
} mezzo_event;

typedef struct mezzo_progress {
    mezzo_event event;
    int64_t step, steps; // done, of how many
    double loss;     // training loss of the last finished step, mean over its micro batches; NaN before there is one
    double val_loss; // of the last validation; NaN before there is one
    double lr, grad_norm;              // of that step; the norm is before clipping
    double loss_scale;                 // 1 without a scaler
    int64_t skipped;                   // steps skipped so far for non-finite gradients
    double tokens_per_second, step_ms; // since the last report; tokens: what `unit` names
    // Model FLOPs since the last report, over the device's peak (device.peak_tflops) and the time; NaN: no peak known.
    double mfu, model_tflops;     // model_tflops: FLOPs a second × 1e-12
    double joules_per_token;      // of the last second or more of steps; NaN: no counter may be read
    double wait_ms;               // of a step: what the device waited for data
    size_t memory_bytes;          // parameters, gradients, optimizer, activations, workspace
    double seconds, seconds_left; // left: validation, samples and checkpoints included, as far as they were measured
    const char *unit;             // "tokens"; of a classifier "examples"
    const char *precision, *text; // text: "" where the event has none. Valid during the call
} mezzo_progress;
typedef void (*mezzo_progress_fn)(void *user, const mezzo_progress *progress);

// Holds what a run is about to train, where amp.precision is auto. Borrowed during the call.
typedef struct mezzo_auto_request {
    mezzo_device *device;
    const mezzo_model_config *model;
    const mezzo_program_options *program; // its precision is what mezzo_precision_resolve gave
    int64_t batch, grad_accum;
    uint64_t seed;
    const volatile sig_atomic_t *stop; // may be NULL
} mezzo_auto_request;
// *precision: one that mezzo_precision_resolve gives on this device; `reason` of `size` bytes: one line. An error ends
// the run.
typedef mezzo_status (*mezzo_choose_fn)(void *user, const mezzo_auto_request *request, mezzo_precision *precision,
                                        char *reason, size_t size);

typedef struct mezzo_hooks { // all may be NULL
    mezzo_progress_fn progress;
    void *user;
    // Not zero: the run finishes its step, writes a checkpoint and returns INTERRUPTED. A signal handler may set it.
    const volatile sig_atomic_t *stop;
    // Asked once where amp.precision is auto; not on resume, where it is what the checkpoint was trained in. NULL:
    // decided by mezzo_precision_resolve, from the device alone.
    mezzo_choose_fn choose;
    // Each change asks for a checkpoint after the step under way, and training goes on. A signal handler may count it
    // up.
    const volatile sig_atomic_t *save;
} mezzo_hooks;

// Everything random in a run has a seed of its own, drawn from the run's, so that no two purposes share a stream:
// mezzo_params_create takes PARAMETERS, a loader DATA or VALIDATION (its `stream` is the mezzo_corpus_part),
// mezzo_program_run and mezzo_step_micro DROPOUT, with the micro batch's number as step. A loop of one's own that draws
// them so trains what mezzo_run_train does, to the bit.
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
    double val_loss;         // of the last validation on the whole set, NaN if there was none
    double sampled_val_loss; // of the last one on train.eval_iters random batches, NaN if there was none
    double best_val_loss;   // the lowest of the validations between steps: sampled ones, or whole where eval_iters is 0
    double val_accuracy;    // of a classifier, at the last validation; else NaN
    double val_mae, val_r2; // of a model that predicts numbers; else NaN
    double val_bits_per_byte; // of val_loss, as mezzo_eval_result has it, and perplexity_per
    const char *perplexity_per;
    const char *unit;                  // what tokens_per_second counts: "tokens", of a classifier "examples"
    double seconds, tokens_per_second; // of this call, validation and checkpoints left out of the rate
    double mfu;                        // of all steps of this call, as mezzo_progress has it; NaN: not known
    double joules_per_token;           // likewise
    double wait_share;                 // of the steps' time, that the device waited for data
    size_t memory_bytes;
    mezzo_precision precision; // what "auto" became
    int rank, ranks;           // this process among those that trained together, 0 of 1 alone; rank 0 wrote the folder
    char device[160];
    bool healthy;          // by the rules of docs/guard.md
    char health[512];      // one line: what the run is like, or what is wrong and what to try
    char checkpoint[4096]; // the last one written; "" if none
    char sample[4096];     // the last sample text, or sheet of pictures (its path in the run folder); "" if none
} mezzo_train_result;

// Trains as `config` says, into its run folder. *result (may be NULL) is filled as far as the run came, also on errors.
// Errors: INVALID (configuration, data that does not fit the model, a run folder that holds another run and no resume),
// IO, FORMAT, MEMORY, UNSUPPORTED (device, precision), NUMERIC (naming step and op), INTERRUPTED.
MEZZO_API mezzo_status mezzo_run_train(const mezzo_config *config, const mezzo_hooks *hooks,
                                       mezzo_train_result *result);

typedef struct mezzo_bisect_result {
    bool found;
    int64_t first_step, last_step; // the checkpoint's; the last one that was run
    int64_t step, micro;           // the first bad step, and its micro batch (from 1; 0: none in particular)
    char kind[16];                 // "batch" "loss" "activation" "gradients" "parameters" "overflow"
    char op[32], module[128], phase[16], dtype[8]; // of the first bad value; "" where no op is to blame
    char text[1024];                               // all of it in one line, with the inputs' ranges and what to try
} mezzo_bisect_result;
// Runs the steps after the checkpoint that `config` resumes from, writing nothing, until one is bad, and names the
// first bad op in it. Errors as mezzo_run_train; INVALID where train.resume is empty.
MEZZO_API mezzo_status mezzo_run_bisect(const mezzo_config *config, const mezzo_hooks *hooks,
                                        mezzo_bisect_result *result);

// --- evaluating and sampling ---------------------------------------------------------------------------------------
// `path` is a run folder (its newest whole checkpoint, or the best one where `best`) or one checkpoint's folder inside
// one.
typedef struct mezzo_eval_options {
    const char *path;
    bool best;
    const char *data;      // NULL = the run's validation data; else text or shards, or a .npy of features, all of it
    const char *labels;    // of a classifier: the .npy of the classes of `data`; NULL without `data`
    const char *device;    // NULL = the run's
    const char *precision; // NULL = the run's
    int threads;           // 0 = all
    int64_t batch_size;    // 0 = the run's
    int64_t iters;         // random batches; 0 = the whole set
    bool no_ema;           // the weights themselves, also where the checkpoint has their moving average
    const char *csv;       // NULL; else a file to write, with the loss of each batch
    const char *as;        // NULL; else "f32", "f16", "bf16" or "q8_0": also with the weights as an export in GGUF
                           // writes them, and csv is of these
} mezzo_eval_options;
typedef struct mezzo_eval_result {
    double loss;       // mean over tokens or examples, nats
    double loss_as;    // with the weights rounded to `as`; NaN: not asked for
    double perplexity; // e^loss, of a language model; else NaN
    // The unit of perplexity: "character", "byte" or "token", as the tokenizer cuts text; "" where there is none.
    // Static.
    const char *perplexity_per;
    // Bits for each byte of the text that was predicted, so that models with different tokenizers compare; NaN: its
    // bytes are not known.
    double bits_per_byte;
    double accuracy; // share of right classes, of a classifier; else NaN
    double mae, r2;  // mean absolute error and coefficient of determination, of a model that predicts numbers; else NaN
    // For a model of gray images and the whole set, the scores that mezzo_run_predict gives in 5 steps; else NaN.
    double nmse, rmse, ssim, psnr;
    const char *unit;     // of `tokens`: "tokens", of a classifier "examples", of pictures "images"
    int64_t tokens, step; // evaluated; the checkpoint's step
    double tokens_per_second;
    mezzo_precision precision;
    bool ema; // of the weights' moving average
    char as[8];
    char checkpoint[4096];
} mezzo_eval_result;
// *result is filled on success. Errors: IO, FORMAT (the checkpoint, naming file and key), INVALID (no checkpoint there,
// data that does not fit), UNSUPPORTED (device, precision; a model that `as` has no file of), NUMERIC (a weight is too
// large for `as`), INTERRUPTED.
MEZZO_API mezzo_status mezzo_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks,
                                      mezzo_eval_result *result);

typedef struct mezzo_sample_options {
    const char *path;
    bool best;
    const char *prompt;             // NULL or "" = a newline
    int64_t tokens;                 // how many to draw; 0 = 200
    int samples;                    // how many texts; 0 = 1
    double temperature;             // 0 = always the likeliest token
    double top_p;                   // draw among the fewest likeliest whose probabilities reach this; 0 or 1 = all
    int top_k;                      // draw among the k likeliest; 0 = all
    uint64_t seed;                  // the same seed, checkpoint, precision and device give the same text
    const char *device, *precision; // NULL = the run's
    int threads;
    bool no_ema;      // as mezzo_eval_options
    const char *chat; // instead of a prompt: a user's message, by the tokenizer's chat template; text is the answer
} mezzo_sample_options;
MEZZO_API mezzo_sample_options mezzo_sample_defaults(void); // temperature 0.8, top_k 0 (all), seed 1
// Called with each piece of text as it is drawn (`index`: which sample); `text` is not whole characters in general.
typedef void (*mezzo_text_fn)(void *user, int index, const char *text, size_t bytes);
// Errors as mezzo_run_eval; INVALID also for a run without a tokenizer and a prompt that it cannot encode.
MEZZO_API mezzo_status mezzo_run_sample(const mezzo_sample_options *options, const mezzo_hooks *hooks,
                                        mezzo_text_fn write, void *user);

// A conversation with a model, by its tokenizer's chat template (ChatML where it has none). Of `options`, prompt, chat
// and samples are not read; tokens is the most that an answer has. The caller owns *out. Errors as mezzo_run_sample.
typedef struct mezzo_chat mezzo_chat;
typedef struct mezzo_chat_answer {
    int64_t prompt_tokens, context_tokens; // what the model read, and how many tokens it can
    int64_t left_out;                      // the oldest questions and answers that it did not read any more
    bool ended;                            // the model ended its answer; false: it has as many tokens as it may have
    bool stopped;                          // the hooks' stop was set: the answer so far is part of the conversation
} mezzo_chat_answer;
MEZZO_API mezzo_status mezzo_chat_open(const mezzo_sample_options *options, mezzo_chat **out);
MEZZO_API void mezzo_chat_close(mezzo_chat *chat); // NULL is fine
// Begins anew. `system`: the message of the system; NULL or "": none. INVALID: it is not UTF-8.
MEZZO_API mezzo_status mezzo_chat_reset(mezzo_chat *chat, const char *system);
// The user says `message`, and `write` (NULL: no function) gets the answer as it is drawn. *out is filled on success.
// After an error the conversation is as before. INVALID: the message is not UTF-8, the tokenizer or the template
// refuses it, or it does not fit into the context.
MEZZO_API mezzo_status mezzo_chat_say(mezzo_chat *chat, const char *message, const mezzo_hooks *hooks,
                                      mezzo_text_fn write, void *user, mezzo_chat_answer *out);
// The whole conversation as one line, {"messages": […]}, a record to train on, atomically. IO names the file.
MEZZO_API mezzo_status mezzo_chat_save(const mezzo_chat *chat, const char *path);

// Pictures by a model of images: of the run's data, those that are not trained on.
typedef struct mezzo_predict_options {
    const char *path, *out; // a run or a checkpoint; the folder to write into, made if missing
    bool best;
    const char *data;               // NULL = the run's; else all of it
    const char *device, *precision; // NULL = the run's
    int64_t count, batch_size;      // 0 = all; 0 = the run's
    int rows;                       // of the sheet; 0 = 6
    int steps;                      // of the sampler; 0 = 5
    double eta;                     // noise and velocity: how much new noise a step draws, 0 to 1
    uint64_t seed;
    int threads;
    bool no_ema; // as mezzo_eval_options
} mezzo_predict_options;
typedef struct mezzo_predict_result {
    int64_t pictures, step; // predicted; the checkpoint's step
    bool ema;               // by the weights' moving average
    double nmse, rmse, ssim, psnr, seconds;
    char checkpoint[4096];
} mezzo_predict_result;
// Writes OUT/NAME.png of each picture and OUT/sheet.png, rows of condition, truth, prediction and error. Errors as
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
    const char *tokenizer; // NULL: the folder's own, or GPT-2's where it has none and the vocabulary is; "none"; else
                           // a tokenizer's name or file: MEZZO_ERR_INVALID where the folder has another
    const char *adapter;   // a folder of PEFT's with LoRA adapters of these weights, which stand beside them in the
                           // checkpoint; NULL: none
    int64_t seq_len;       // the context that the model gets; 0: the folder's. A table of positions (gpt2's) is cut to
                           // it, and FORMAT where it is shorter
} mezzo_import_options;
typedef struct mezzo_import_result {
    mezzo_model_config model;
    int64_t parameters;
    bool tokenizer;              // the run has one, so that it can sample and read texts
    int64_t adapters, lora_rank; // linear layers with an adapter; 0: none
    double lora_alpha;           // what goes on training them sets, as lora_rank
} mezzo_import_result;
// Makes a run folder with one checkpoint, of step 0, in FP32. Everything is checked before anything is written, and the
// folder appears whole or not at all. Errors name file and key or tensor: IO, FORMAT (a tensor is missing, has another
// shape, belongs to no part; a model_type or a setting that is not computed here; a pickle), NUMERIC (a weight is NaN
// or infinite), INVALID (nothing to import, `out` is not free), MEMORY.
MEZZO_API mezzo_status mezzo_import(const mezzo_import_options *options, mezzo_import_result *result);

typedef struct mezzo_export_options {
    const char *path, *out; // a run folder or a checkpoint; the folder to make, which must not exist, or be empty
    bool best;
    bool no_ema;         // as mezzo_eval_options
    bool adapter;        // the adapters alone, in PEFT's files; else they are merged into the weights
    mezzo_dtype dtype;   // of the weights: F32, BF16 or F16
    int64_t shard_bytes; // weights are cut into files of at most so many bytes (one tensor at least), with an index; 0
                         // = one file
    const char *gguf;    // "f32", "f16", "bf16" or "q8_0": `out` is one file for llama.cpp, with the tokenizer and its
                         // chat template, and must not exist; dtype does not count. NULL: a folder
    bool onnx; // of a run whose model is an ONNX file: `out` is that file with the run's weights, and must not
               // exist
} mezzo_export_options;
typedef struct mezzo_export_result {
    mezzo_model_config model;
    int64_t tensors, files; // of weights
    bool ema;               // they are the weights' moving average
    char checkpoint[4096];
} mezzo_export_result;
// Makes a folder that transformers loads: config.json, model.safetensors (or model.safetensors.index.json and its
// files) and, for byte-pair tokenizers, vocab.json and merges.txt; whole or not at all. Token ids and generation
// settings that an import kept go along. NUMERIC: a weight is too large for `dtype`. UNSUPPORTED: transformers, or
// llama.cpp, has no such model or, in GGUF, no such tokenizer. Else as mezzo_run_eval and mezzo_import.
MEZZO_API mezzo_status mezzo_export(const mezzo_export_options *options, mezzo_export_result *result);

// --- checkpoints ---------------------------------------------------------------------------------------------------
// FOLDER/step-00000500/{model.safetensors, optimizer.safetensors, ema.safetensors, state.json}, the third where an
// average is kept; named by FOLDER/manifest.json once they
// are whole and on the disk. docs/checkpoints.md has the format.
enum { MEZZO_DESCRIPTION = 4096 }; // bytes that a model's description takes at most, its end included
typedef struct mezzo_checkpoint {
    mezzo_params *params;
    mezzo_optimizer *optimizer; // NULL: not kept
    mezzo_scaler *scaler;       // NULL: not kept
    int64_t step;               // steps done, skipped ones included
    uint64_t seed;
    uint64_t batches;               // micro batches drawn so far: where the data goes on
    bool packed;                    // documents shared the rows of these batches (data.pack)
    double val_loss, best_val_loss; // NaN: none yet
    bool val_sampled; // these are of random batches, and not of the whole set: only losses of one kind compare
    char model[MEZZO_DESCRIPTION]; // its description (mezzo_model_describe); "": not kept
    uint64_t graph;                // a hash of the graph that Mezzo built from `model`; 0: not kept
    bool has_ema;       // filled: the checkpoint has a moving average of the weights, which the optimizer kept
    bool ema;           // to load: the average into `params` where there is one, instead of the weights
    char precision[16]; // "" : not kept
    char master[16];    // how the run kept its masters; "" : not known
    char moments[16];   // and its optimizer's moments
    char tokenizer[64]; // file beside FOLDER; "": not kept
    mezzo_data_mark data, validation; // what was trained and validated on; bytes 0: not kept
} mezzo_checkpoint;

// A model's description as a checkpoint keeps it: a JSON object. INVALID as mezzo_model_check, or `size` is too small.
MEZZO_API mezzo_status mezzo_model_describe(const mezzo_model_config *config, char *out, size_t size);
// The keys of a described model. FORMAT: no JSON object, or a value has another type; INVALID as mezzo_model_check.
MEZZO_API mezzo_status mezzo_model_parse(const char *description, mezzo_model_config *out);
// Writes one and removes older ones but the newest keep_last (0 = all) and the best one: of the validated
// ones with the newest one's val_sampled, the one with the lowest val_loss. `path`
// (may be NULL) of `size` bytes gets its folder. On any error the older checkpoints are as they were. A checkpoint of
// the same step is replaced. INVALID: no parameters, a step below 0 or of more than 18 digits, batches above
// INT64_MAX, a tokenizer that is no plain file name, or another process is writing there; NUMERIC: a value that is
// not finite, with its tensor and element; IO: also where the flushed file reads back differently.
MEZZO_API mezzo_status mezzo_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, int64_t keep_last,
                                             char *path, size_t size);
// The newest whole checkpoint of FOLDER (or the best, where `best`): what the manifest names if its sizes and checksums
// are right, else the newest that is whole by itself; one with numbers that are not finite is skipped. Changes
// nothing. INVALID where there is none, saying what was found.
MEZZO_API mezzo_status mezzo_checkpoint_find(const char *folder, bool best, char *path, size_t size);
// Fills everything but the three objects, which need not be set, and `ema`. IO and FORMAT name the file and the key.
MEZZO_API mezzo_status mezzo_checkpoint_describe(const char *path, mezzo_checkpoint *checkpoint);
// Reads into the objects that are set, and fills the rest. All that is read is checked before anything is changed:
// FORMAT or INVALID name the file and the tensor with both shapes, or the one with a number that is not finite.
MEZZO_API mezzo_status mezzo_checkpoint_load(const char *path, mezzo_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif
#endif
