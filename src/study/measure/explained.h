// Collects a graph as the passes leave it: every op with its dtypes, every parameter with its master, and their sums,
// for `mezzo explain`.
#ifndef MZ_STUDY_EXPLAINED_H
#define MZ_STUDY_EXPLAINED_H

#include <jansson.h>

#include "optim/optimizer.h"
#include "runtime/params.h"
#include "runtime/passes.h"

// Holds a graph after a pass, with the decisions of passes that ask the device.
typedef struct mz_explained_graph {
    mezzo_params *params; // laid out, without memory; NULL without a device
    mz_compiled c;
} mz_explained_graph;
// Opens a graph as a program on the device would have it, for one of cut's ranks where cut is not NULL. device NULL:
// passes up to chunk. Free it after errors, too.
mezzo_status mz_explained_open(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                               mezzo_master master, const mz_cut *cut, const char *after, mz_explained_graph *out);
void mz_explained_close(mz_explained_graph *graph);

typedef struct mz_explained_row {
    mezzo_explain_row is; // its strings belong to the table
    const char *fused;    // the result of the fuse pass for its storage; "" where that is not asked for
    int number;           // number of the rule in the table, from 1, in the order of their first rows
    const char *kernel;   // "-": none is chosen, or the op needs none
    double stream;        // on which it runs; NaN: there is one stream
    double at, bytes;     // of the output, in the arena; NaN: it has no place there
    char *text;           // memory of the first line's texts
} mz_explained_row;

typedef struct mz_explained {
    mz_explained_row *rows;
    size_t n, cap;
    int rules; // number of different rules
    mezzo_status status;
} mz_explained;
// Reads the ops after a pass, as mezzo_graph_explain has them. Free after errors, too; a zeroed one is allowed.
mezzo_status mz_explained_read(const mz_explained_graph *g, mz_explained *out);
// Collects the ops of a graph after a pass that needs no device.
mezzo_status mz_explained_collect(const mezzo_graph *g, const mezzo_program_options *options, const char *after,
                                  mz_explained *out);
void mz_explained_free(mz_explained *table);
// Writes into `plain`, collected after autocast, what each op became in `fused`.
mezzo_status mz_explained_mark_fused(mz_explained *plain, const mz_explained *fused);

// Holds the ops whose dtypes differ under two precisions. Casts belong to one precision only, so every other op is
// compared; both have those in the same order.
typedef struct mz_explained_pair {
    const mz_explained_row *a, *b;
} mz_explained_pair;
bool mz_explained_next_pair(const mz_explained *a, const mz_explained *b, size_t at[2], mz_explained_pair *out);
bool mz_explained_same(const mz_explained_pair *pair);
size_t mz_explained_casts(const mz_explained *table);

enum { MZ_MASTERS = MEZZO_MASTER_STOCHASTIC + 1 };
typedef struct mz_explained_param {
    mezzo_explain_param is; // name and shape belong to the table
    const char *update;     // the kind of optimizer; "-": the parameter is frozen
    double lr_factor;       // multiplies the schedule's rate
    char *text;             // memory of names and shapes
} mz_explained_param;
typedef struct mz_explained_params {
    mz_explained_param *rows;
    size_t n, cap;
    size_t kept[MZ_MASTERS];               // how many have each format of masters
    size_t updated[MEZZO_OPTIMIZER_KINDS]; // how many each kind updates
    mezzo_status status;
} mz_explained_params;
// Collects parameters where masters are asked for by name ("split"; "auto": by the precision). Free after errors, too.
mezzo_status mz_explained_collect_params(const mezzo_graph *g, const mezzo_program_options *options,
                                         mezzo_master master, mz_explained_params *out);
// Adds what updates each parameter; the rows are the graph's parameters.
void mz_explained_add_optimizer(const mezzo_graph *g, const mezzo_optimizer_options *options, mz_explained_params *out);
void mz_explained_params_free(mz_explained_params *table);

// Holds the dtype names in which tensors that outlive an op are stored; "mixed" where they differ, "-" where there are
// none.
typedef struct mz_explained_summary {
    size_t params, low_copies;
    int64_t elements;
    const char *param, *low_copy, *gradient, *logits, *loss;
} mz_explained_summary;
mezzo_status mz_explained_summarize(const mezzo_graph *g, const mezzo_program_options *options,
                                    mz_explained_summary *out);

// --- one of several ranks --------------------------------------------------------------------------------------------
// Holds what one of several ranks has of a model's parameters and gradients, and what it gathers, for `mezzo explain
// --ranks`.
typedef struct mz_explained_ranks {
    int64_t ranks, buckets;            // buckets: of gradients, and of parameters where they are gathered
    size_t masters, copies, gradients; // bytes that it holds; copies: 0 where nothing reads a low copy
    int64_t forward, backward;         // buckets that a micro batch gathers; backward: with what is recomputed
    size_t gathered;                   // bytes of these, its own shard included
    int64_t exchanged;                 // products of a micro batch whose rows travel to the ranks of their experts
} mz_explained_ranks;

// Computes them from a layout for the device, without allocating there.
mezzo_status mz_explain_ranks(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mz_explained_ranks *out);

// --- the report (explained_report.c)
// -----------------------------------------------------------------------------------
typedef struct mz_explanation {
    const mz_pass *after;
    mz_explained rows;
    mz_explained_params params;
    mz_explained_summary summary;
    mz_explained_ranks ranks; // its ranks are 0: not asked for
} mz_explanation;
// params: with the table of parameters. shard: what the ranks divide, in the words of ranks.shard.
void mz_explanation_text(const mz_explanation *e, bool params, const char *shard, int columns, mz_text *t);
json_t *mz_explanation_json(const mz_explanation *e, const char *model, mezzo_precision precision);
// Writes the ops that differ under two precisions, which the names tell, as JSON or, where `json` is NULL, as text.
mezzo_status mz_explained_diff(const mz_explained *a, const mz_explained *b, const char *name_a, const char *name_b,
                               int columns, mz_text *t, json_t **json);

#endif
