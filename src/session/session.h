// A session is a model on a device with everything that trains it, assembled once and in one order: graph with its
// adapters and frozen parameters, parameters, programs, ranks, optimizer, scaler, step. Training, evaluation, sampling,
// timing, export and planning differ in which parts they open, and in whether they allocate memory.
#ifndef MZ_SESSION_H
#define MZ_SESSION_H

#include "base/scope.h"
#include "models/model.h"
#include "optim/step.h"

// Says what to assemble. Strings, patterns and overrides are borrowed.
typedef struct mz_session_options {
    mz_model model;
    mz_form form; // of the training graph, and of validation's programs
    mezzo_lora lora;
    const char *freeze;            // patterns of parameters that are not trained; NULL and "": none
    const char *train;             // patterns of the only parameters that are trained; NULL and "": all
    uint64_t seed;                 // of the parameters
    bool quick_init;               // initial values of the same variance that are cheap to draw; no run trains from
                                   // them
    mezzo_program_options program; // resolved; the session sets forward_only and the weights of micro batches
    mezzo_master master;
    mezzo_optimizer_options optimizer;
    mezzo_scaler_options scaler;
    mezzo_step_options step; // micro_batches: those of this rank, at least 1
    int rank, size;          // 0 of 1 without ranks
    mz_shard shard;          // what each rank owns a shard of
    bool canonical, bf16_wire;
    bool exchanges;               // rows travel to the ranks that own their experts
    int64_t bucket;               // number of gradients that are summed together
    bool replays, replays_update; // steps, and their updates, are computed twice (train/replay.h)
} mz_session_options;

static inline mz_ranks_options mz_session_ranks(const mz_session_options *o) {
    return (mz_ranks_options){o->shard, o->canonical, o->bf16_wire, o->step.micro_batches};
}
// Returns how the parameters of `rank` are divided.
static inline mz_cut mz_session_cut(const mz_session_options *o, int rank) {
    mz_cut cut = mz_ranks_cut(o->shard, o->canonical, rank, o->size, o->bucket);
    cut.exchanges = o->exchanges;
    return cut;
}
// Makes the options that time a step of a model: 1 micro batch of `batch` rows, AdamW with a small rate, clipping,
// quick initial values. INVALID as mezzo_model_check.
mezzo_status mz_session_usual(const mezzo_model_config *model, int64_t batch, mz_session_options *out);
// Sets a resolved precision and what follows from it: masters, and a loss scale where one is needed.
void mz_session_set_precision(mz_session_options *options, mezzo_precision precision);
bool mz_session_needs_scale(const mezzo_program_options *program); // whether some module computes in a format that
                                                                   // needs one

enum { // parts; each includes those before it, but EVAL
    MZ_SESSION_PARAMS = 1,
    MZ_SESSION_TRAIN = 2, // the training program
    MZ_SESSION_STEP = 4,  // ranks, optimizer, scaler, step
    MZ_SESSION_EVAL = 8,  // a program of the same graph without backward
};
typedef struct mz_session {
    mezzo_device *device; // borrowed
    mz_session_options options;
    mezzo_params *params;
    mezzo_program *train, *eval;
    mz_ranks *ranks; // NULL: one rank without canonical sums
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
} mz_session;
// Opens a session. Errors are those of the parts: INVALID, UNSUPPORTED, MEMORY. The caller closes *out after an error,
// too.
mezzo_status mz_session_open(mezzo_device *device, const mz_session_options *options, unsigned parts, mz_session *out);
void mz_session_close(mz_session *session);          // a zeroed or half-open one is allowed
size_t mz_session_memory(const mz_session *session); // bytes on the device

// Builds the graph of `form` with adapters and frozen parameters.
mezzo_status mz_session_graph(const mz_session_options *options, const mz_form *form, mezzo_graph **out);
MZ_FREE_AT(mz_graph_free_at, mezzo_graph, mezzo_graph_free)
// Builds the graph of a model alone, with which weights are read: one row, without adapters.
mezzo_status mz_model_graph(const mz_model *model, mezzo_graph **out);
// Makes a program without backward of `form` on these parameters, with the adapters that they have.
mezzo_status mz_model_program(const mz_model *model, const mz_form *form, mezzo_params *params,
                              const mezzo_program_options *options, mezzo_program **out);
mezzo_program_options mz_session_training(const mz_session_options *options); // the options of its training program
mezzo_program_options mz_session_forward(const mz_session_options *options);
// mz_model_hash returns a hash of the model's graph for one row, and warns where a checkpoint kept another one (0: it
// kept none): then this version builds another graph from the same description. mz_session_set_optimizer gives the
// optimizer a kind with its usual values; with a kind per matrix AdamW gets the rest, and *matrices is its group.
void mz_session_set_optimizer(mz_session_options *o, mezzo_optimizer_kind kind, mezzo_optimizer_options *matrices);
mezzo_status mz_model_hash(const mz_model *model, uint64_t *hash);
mezzo_status mz_model_compare_hash(const mz_model *model, uint64_t kept, const char *where);

// --- sketch.c: the same as sizes, without memory -------------------------------------------------------------------
enum { MZ_REPLAY_SUMS = 1024 }; // checksums that a replay reads from the device at a time
// Holds the bytes that training takes on the device, each with its padding.
typedef struct mz_footprint {
    int64_t parameters;                 // number of elements
    size_t weights, shadows, gradients; // FP32 masters, their low copies, FP32 gradients
    size_t optimizer;                   // its state and the lists of segments, and what ranks need
    size_t activations, workspace, inputs;
    size_t padding;  // of blocks of host memory, because large ones take whole huge pages; 0 on a GPU
    size_t unshared; // bytes of activations if no two values shared memory
    // `mezzo train` allocates these besides the training step; mz_footprint_total, the memory of a step alone, omits
    // them.
    size_t evaluation; // a forward-only program of the same shape
    size_t sampling;   // the programs of mz_sampler_sketch
    size_t replay;     // what train.replay and train.replay_update allocate
} mz_footprint;
// Computes all but `sampling`. Where `like` is given, a sketch that differs only in training, its evaluation is copied.
mezzo_status mz_session_sketch(mezzo_device *device, const mz_session_options *options, const mz_footprint *like,
                               mz_footprint *out);
// Compute the optimizer alone, with what ranks need; and a footprint with another optimizer, whose programs are the
// same.
mezzo_status mz_session_sketch_optimizer(mezzo_device *device, const mz_session_options *options,
                                         mz_optimizer_size *out);
void mz_footprint_set_optimizer(const mezzo_device *device, mz_optimizer_size optimizer, mz_footprint *footprint);
// Computes the memory of a program without backward in another form.
mezzo_status mz_session_sketch_forward(mezzo_device *device, const mz_session_options *options, const mz_form *form,
                                       mezzo_memory *out);

#endif
