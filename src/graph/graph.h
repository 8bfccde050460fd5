// The graph inside: values, nodes, and the passes in their order. Backends see ops, attrs and tensors (op.h), not this.
#ifndef MZ_GRAPH_H
#define MZ_GRAPH_H

#include "base/base.h"
#include "base/names.h"
#include "graph/op.h"
#include "mezzo/graph.h"
#include "mezzo/program.h"

typedef enum mz_value_kind {
    MZ_VALUE_TEMP,      // made by a node; lives in the arena
    MZ_VALUE_INPUT,     // written by the host
    MZ_VALUE_PARAM,     // a parameter's FP32 master
    MZ_VALUE_LOW_COPY,  // its low-precision copy, kept by the update
    MZ_VALUE_QUANTIZED, // its 8-bit data with a scale, turned or not, kept by the update: the keep pass
    MZ_VALUE_GRAD,      // its FP32 gradient: backward adds to it
    MZ_VALUE_SCALE,     // the loss scale [1], FP32, on the device
    MZ_VALUE_ENTRY,     // a mz_scale_entry of the parameters' table, which its name finds
} mz_value_kind;

typedef struct mz_value {
    mz_value_kind kind;
    mezzo_dtype dtype;    // before autocast: F32, I32, or what an explicit cast says
    mezzo_dtype gradient; // what gradients of it are made and added up in; set by autocast
    mz_scaling scaling;   // of its elements; NONE: they are the numbers
    int scale;            // with scaling: the value that holds its scales, FP32; wherever that lives, state included
    bool columnwise;      // mz_tensor's
    mz_shape shape;
    mz_storage storage; // how it is stored: the storage pass
    int producer, slot; // node and its output slot; -1 for sources
    int param;          // PARAM, SHADOW, CODES, GRAD: index into params
    int alias;          // shares the memory of this value (reshape, a block of rows); -1
    size_t offset;      // with alias: bytes from its start
    bool keep;          // an output: lives to the end
    bool state;         // an input that runs read and write: it stays where it is from run to run
    char *name;         // inputs, parameters, outputs; NULL otherwise
} mz_value;

// The layers whose rows a weight has, one below the other, where there are several: adapters have their names.
enum { MZ_MAX_PARTS = 4 };
typedef struct mz_parts {
    int n; // 0: one layer, the weight's own
    struct {
        char name[32]; // beside the weight's module
        int64_t rows;
    } list[MZ_MAX_PARTS];
} mz_parts;

typedef struct mz_param_spec {
    char *name;
    mezzo_init init;
    mz_shape shape;
    int value, low_copy, grad; // value ids; -1 until made
    bool frozen;               // no gradient is made for it
    bool copied; // autocast: everything that reads it reads its low-precision copy, and nothing its master
    bool stored; // it is stored already, in this way
    mz_storage storage;
    mz_parts parts;
} mz_param_spec;

typedef enum mz_phase { MZ_FORWARD, MZ_RECOMPUTE, MZ_BACKWARD } mz_phase;
const char *mz_phase_name(mz_phase phase); // "forward", "recompute", "backward"

// How a node's values are stored: autocast writes it, autodiff and fuse obey.
typedef struct mz_formats {
    mezzo_dtype operand;  // what a product's inputs are read in
    mezzo_dtype gradient; // what the products of its gradient read the output's gradient in
    mezzo_dtype output;   // what it stores
    mz_scaling scaling;   // of operands and gradient
    bool plain_dw;        // with scaling: a weight's gradient reads activations and dy as they were before it
} mz_formats;

typedef struct mz_node {
    mz_op op;
    mz_attrs attrs;
    int n_in, n_out;
    int in[MZ_MAX_IN], out[MZ_MAX_OUT]; // value ids; -1 = absent
    mz_phase phase;
    int module;    // index into modules
    int precision; // mezzo_precision of the region or override; -1 = the program's
    int segment;   // recompute segment; -1
    mz_numerics numerics;
    mz_formats formats;
    const char *rule; // static text: what decided the dtypes
    bool pinned;      // a model's own cast: kept by every pass
    int until;        // what it touches stays until this node at least, with which it may run in one piece
    int gathers;      // 1 + the region of parameters that the node brings together from its parts; 0: it does not
} mz_node;

typedef struct mz_output {
    char *name;
    int value;
} mz_output;

struct mezzo_graph {
    mz_value *values;
    size_t n_values, cap_values;
    mz_node *nodes;
    size_t n_nodes, cap_nodes;
    mz_param_spec *params;
    size_t n_params, cap_params;
    mz_output *outputs;
    size_t n_outputs, cap_outputs;
    char **modules; // paths; modules[0] is ""
    size_t n_modules, cap_modules;
    mz_names sources, entries, paths;                 // of parameters and named values; of table entries; of modules
    size_t named_params, named_values, named_modules; // how many of each list are in these
    int *scopes;                                      // builder: open modules
    size_t n_scopes, cap_scopes;
    int *regions; // builder: open autocast regions' precisions
    size_t n_regions, cap_regions;
    int segment, n_segments; // builder: open segment, -1; count
    bool repeats_init;    // a parameter's first values repeat after a million: to time steps, nobody trains from them
    uint32_t next_rng;    // stream number of the next random op
    int64_t cache_length; // builder: positions of the caches that attention makes; 0: it makes none
    int n_caches, positions; // builder: attentions with a cache; value id of the positions of cache or documents, -1
    int64_t lora_rank;       // builder: of adapters; 0: none
    double lora_alpha;
    char adapted[512];   // builder: the patterns of modules that have them
    int loss;            // value id, -1
    int scale;           // MZ_VALUE_SCALE, -1 until autodiff
    mezzo_status status; // first error, with its message
    char *message;
};

// --- growing a graph (graph.c) -------------------------------------------------------------------------------------
mezzo_status mz_graph_value(mezzo_graph *g, mz_value value, int *id); // takes over value.name
mezzo_status mz_graph_node(mezzo_graph *g, mz_node node, int *id);    // appended; sets the outputs' producer
mezzo_status mz_graph_copy(const mezzo_graph *g, mezzo_graph **out);
mezzo_status mz_graph_index_names(mezzo_graph *g);              // what came since the last call
bool mz_graph_has_name(const mezzo_graph *g, const char *name); // an indexed parameter, input or entry has it
int mz_graph_module(const mezzo_graph *g, const char *path);    // an indexed module; -1: there is none
void mz_graph_compact(mezzo_graph *g, const bool *dead);        // drops nodes, keeps order, relinks
void mz_graph_relink(mezzo_graph *g);                           // sets every value's producer and slot from the nodes
mezzo_status mz_graph_consumers(const mezzo_graph *g,
                                int **counts); // uses of each value by nodes, + 1 if kept; caller frees
// A cast of v to a product's operand as f says, appended: its output's format is f.operand with f.scaling, and its
// gradient's f.gradient; with scales it is a `quantize`, whose entry is called by the module and `role`. n has module,
// phase, segment and rule, and gets all else.
mezzo_status mz_graph_quantize(mezzo_graph *g, mz_node n, int v, mz_formats f, const char *role, int *out);
// What a quantize makes of a value, turned so that a gradient's product sums over its last dimension: written by the
// same node. A value without scales is itself.
mezzo_status mz_graph_columnwise(mezzo_graph *g, int value, int *out);
int mz_graph_before_rounding(const mezzo_graph *g, int value); // what a quantize rounded; a value without scales itself
bool mz_is_adapter(const char *parameter);                     // its name says so
// The module, "h.0.attn.q_proj", whose adapter acts on rows *first … *first + *rows - 1 of a weight "….weight" of
// `all` rows: the weight's own (index 0), or one of its parts. false: there are no more, or it is no weight.
bool mz_adapted_module(const char *weight, int64_t all, const mz_parts *parts, int index, char module[512],
                       int64_t *first, int64_t *rows);
const char *mz_graph_value_name(const mezzo_graph *g, int value, char *buf, size_t size);

// The activation that a node is, or, with `gradient`, whose gradient it is; NONE: neither (fuse.c).
mz_act mz_act_of(const mz_node *node, bool gradient);
double mz_node_flops(const mezzo_graph *g, const mz_node *node); // a multiply-add counts two; 0: not counted

// hash.c: of a graph before its passes; the same for graphs with the same nodes, shapes, names and constants.
mezzo_status mz_graph_hash(const mezzo_graph *graph, uint64_t *hash);

// Shapes and dtypes of a node's outputs from its inputs and attrs (shape.c): fails naming op, values and both shapes.
mezzo_status mz_infer(const mezzo_graph *g, const mz_node *node, mz_shape out[MZ_MAX_OUT]);

// After autocast: how a parameter's master is kept where `asked` is wanted, and the words for why (rule may be NULL).
mezzo_master mz_master_of(const mezzo_graph *g, size_t param, mezzo_master asked, const char **rule);

// --- passes --------------------------------------------------------------------------------------------------------
// What a graph is made ready for. Passes of this folder read the options alone; those that ask the device or the
// parameters, and the table of all, are in runtime/passes.c.
typedef struct mz_target {
    const mezzo_program_options *options;
    mezzo_device *device;         // NULL: passes up to chunk
    const mezzo_params *params;   // likewise
    struct mz_compiled *compiled; // likewise: what passes decide beside the graph (runtime/program.h)
} mz_target;
typedef mezzo_status mz_pass_fn(mezzo_graph *g, const mz_target *target); // changes the graph in place
mz_pass_fn mz_pass_autocast, mz_pass_autodiff, mz_pass_recompute, mz_pass_fuse, mz_pass_chunk;

// What the owner of the parameters keeps of each beside its master, by the graph's parameters.
typedef struct mz_keeping {
    bool *copied;    // there is a place for low-precision copies
    bool *quantized; // 8-bit data can be kept: it lies here whole, without padding
} mz_keeping;
mezzo_status mz_graph_keep(mezzo_graph *g, const mz_keeping *kept);
// Values get the storage of their axes, and copies stand between ops that take it and those that do not.
typedef struct mz_storage_options {
    mz_storage_policy policy;
    mz_padded (*takes_padding)(mz_op op); // which padded tensors an op's kernels take; NULL: none
} mz_storage_options;
mz_padded mz_takes_padding(const mz_storage_options *options, mz_op op);
mezzo_status mz_graph_store(mezzo_graph *g, const mz_storage_options *options);
// How each value would be stored, if all ops took it (axes.c). out [n_values].
mezzo_status mz_graph_storage(const mezzo_graph *g, const mz_storage_policy *policy, mz_storage *out);
// Whether each value's rows are, or can be stored as, multiples of 16 numbers, as 8-bit products read them. out
// [n_values].
mezzo_status mz_graph_rows_of_16(const mezzo_graph *g, bool *out);
bool mz_value_is_rows(const mezzo_graph *g, int value); // a block of rows of the value that it shares memory with
// With storage decided: a product's gradient with an activation's derivative also writes the activation's result, which
// backward's products read, where `can` says that it will. Nothing is kept of that result from forward to backward.
typedef mezzo_status mz_can_recompute(void *user, const mezzo_graph *g, const mz_node *dx, bool *out);
mezzo_status mz_graph_remake(mezzo_graph *g, mz_can_recompute *can, void *user);
// Parameters that lie in regions of which this process has a part (gather.c).
typedef struct mz_gathering {
    const int *region;       // by the graph's parameters: which; -1: it is here whole
    const int64_t *at;       // likewise: elements from the region's beginning
    const int64_t *elements; // by region
    int n_regions;
    bool ahead; // a region is brought together while the one before it is read
} mz_gathering;
mezzo_status mz_graph_gather(mezzo_graph *g, const mz_gathering *parts);

int mz_main_output(const mz_node *n); // the first that is there; -1: none (explain.c)
// One row of mezzo_graph_explain for each node of a graph after a pass (explain.c).
void mz_graph_explain(const mezzo_graph *g, mezzo_explain_fn visit, void *user);
// A graph after a pass in Graphviz' DOT language, ops coloured by what they store (dot.c). Appends to *out.
mezzo_status mz_graph_dot(const mezzo_graph *g, mz_text *out);

// --- plan ----------------------------------------------------------------------------------------------------------
typedef struct mz_plan {
    size_t *offset;   // per value: bytes into the arena; SIZE_MAX for values outside it
    size_t gradients; // bytes of the gradient buffer, where that is the arena's beginning; 0: it is none of it
    size_t borrowed;  // bytes of these up to the last that a value takes
    size_t arena;     // bytes, without the gradient buffer's
    size_t unshared;  // bytes if nothing shared
    size_t inputs;    // bytes of those that a run brings
    size_t state;     // bytes of those that stay
    size_t looks;     // at what was placed, while places were looked for
} mz_plan;
// For a device that runs two streams of nodes at once (streams.c): each node's stream, and the node after which it
// could start.
typedef struct mz_stream_plan {
    signed char *stream;
    int *since;
} mz_stream_plan;
mezzo_status mz_graph_stream(const mezzo_graph *g, mz_stream_plan *out);
void mz_stream_plan_free(mz_stream_plan *streams);
typedef struct mz_part { // bytes of the buffer of gradients that hold nothing before a node
    size_t from, to;
    int first;
} mz_part;
// The flat buffer of gradients: bytes in all, and where each parameter's begins; SIZE_MAX: nothing else may lie there.
typedef struct mz_gradient_room {
    size_t *offset; // by the graph's parameters; NULL: scattered
    size_t bytes;
    // Scattered: whole gradients lie among the other values until they are summed, and the buffer has the sums' parts.
    int *until;    // by the graph's parameters: the node up to which its gradient is kept
    size_t *least; // likewise: bytes that it takes at least, where it is alone in a region that is longer
    mz_part *part; // NULL: nothing else may lie in the buffer
    int n_parts;
    bool late; // sums run beside nodes
} mz_gradient_room;
// streams: NULL for one stream. Otherwise values of nodes on the second stream keep their bytes as long as that node
// may be early or late. room: NULL, or gradients that hold nothing before the graph first writes them, whole: other
// values may lie there until then; or scattered ones.
mezzo_status mz_graph_plan(const mezzo_graph *g, const mz_stream_plan *streams, const mz_gradient_room *room,
                           mz_plan *plan);
void mz_plan_free(mz_plan *plan);

#endif
