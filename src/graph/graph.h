// A graph has values and nodes, and passes change it. Backends do not see it; they see ops, attributes and tensors
// (op.h).
#ifndef MZ_GRAPH_H
#define MZ_GRAPH_H

#include "base/base.h"
#include "base/names.h"
#include "graph/op.h"
#include "graph/post.h"
#include "mezzo/graph.h"
#include "mezzo/program.h"

typedef enum mz_value_kind {
    MZ_VALUE_TEMP,      // the result of a node, in the arena
    MZ_VALUE_INPUT,     // data that the host writes
    MZ_VALUE_PARAM,     // a parameter's FP32 master
    MZ_VALUE_LOW_COPY,  // a parameter's low copy, which the update writes
    MZ_VALUE_QUANTIZED, // a parameter's quantized data, rowwise or columnwise, which the update writes (keep pass)
    MZ_VALUE_GRAD,      // a parameter's FP32 gradient, to which backward adds
    MZ_VALUE_SCALE,     // the loss scale [1], FP32, on the device
    MZ_VALUE_ENTRY,     // a mz_scale_entry of the parameters' table, which has the value's name
} mz_value_kind;

typedef struct mz_value {
    mz_value_kind kind;
    mezzo_dtype dtype;    // before autocast F32, I32, or that of an explicit cast
    mezzo_dtype gradient; // the format in which its gradients are made and added; autocast sets it
    mz_scaling scaling;   // the recipe of its scales; NONE: it has none
    int scale;            // with scaling: the FP32 value that holds its scales
    bool columnwise;      // its layout, as in mz_tensor
    mz_shape shape;
    mz_storage storage; // its layout in memory, which the storage pass sets
    int producer, slot; // node and its output slot; -1 for sources
    int param;          // PARAM, LOW_COPY, QUANTIZED, GRAD: index into params
    int alias;          // the value whose memory it shares (a reshape, a block of rows); -1
    size_t offset;      // with alias: bytes from its start
    bool keep;          // it is an output, so its memory is kept to the end
    bool state;         // an input that runs read and write, so that its memory is kept
    char *name;         // of inputs, parameters and outputs; NULL otherwise
} mz_value;

// A weight may hold the rows of several layers, stacked; adapters use these layers' names.
enum { MZ_MAX_PARTS = 4 };
typedef struct mz_parts {
    int n;      // number of parts with names; 0: one layer, with the weight's name
    int layers; // number of entries of `list`, with names or without; 0: one layer
    struct {
        char name[32]; // follows the module of the weight
        int64_t rows;
    } list[MZ_MAX_PARTS];
} mz_parts;

typedef struct mz_param_spec {
    char *name;
    mezzo_init init;
    mz_shape shape;
    int value, low_copy, grad; // value ids; -1 until made
    bool frozen;               // it has no gradient
    bool copied;               // every reader takes its low copy, none its master (autocast)
    bool read_in_other_mode;   // a program of the other mode reads its master (mode.c)
    bool stored;               // `storage` is fixed already
    mz_storage storage;
    mz_parts parts;
} mz_param_spec;

typedef enum mz_phase { MZ_FORWARD, MZ_RECOMPUTE, MZ_BACKWARD } mz_phase;
const char *mz_phase_name(mz_phase phase); // "forward", "recompute", "backward"

// The formats of a node's values, which autocast sets and later passes obey.
typedef struct mz_formats {
    mezzo_dtype operand;  // format of a product's operands
    mezzo_dtype gradient; // format of dy in the products of its gradient
    mezzo_dtype output;   // format of its output
    mz_scaling scaling;   // the scaling of its operands and of dy
    bool plain_dw;        // with scaling: the product of a weight's gradient reads activations and dy from before
                          // quantization
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
    const char *rule; // static text: the reason for the dtypes
    bool pinned;      // a model's own cast, which every pass keeps
    int until;        // the node up to which its memory is kept, because one call may run both
    int gathers;      // 1 + the region of parameters that the node gathers; 0: none
    int exchanges;    // the number of ranks that own the experts whose matrices the node reads; 0: this rank has all
} mz_node;

// Returns the value in a slot; -1: absent.
static inline int mz_node_in(const mz_node *n, int slot) {
    return slot < n->n_in ? n->in[slot] : -1;
}
static inline int mz_node_out(const mz_node *n, int slot) {
    return slot < n->n_out ? n->out[slot] : -1;
}

typedef struct mz_output {
    char *name;
    int value;
} mz_output;

typedef struct mz_tracking { // a parameter and the value that it follows
    int param, value;
    double momentum;
} mz_tracking;

struct mezzo_graph {
    mz_value *values;
    size_t n_values, cap_values;
    mz_node *nodes;
    size_t n_nodes, cap_nodes;
    mz_param_spec *params;
    size_t n_params, cap_params;
    mz_output *outputs;
    size_t n_outputs, cap_outputs;
    mz_tracking *tracked;
    size_t n_tracked, cap_tracked;
    char **modules; // paths; modules[0] is ""
    size_t n_modules, cap_modules;
    mz_names sources, entries, paths;                 // indices of the names of parameters and values, of table
                                                      // entries, and of modules
    size_t named_params, named_values, named_modules; // how many of each list these indices hold
    int *scopes;                                      // builder: open modules
    size_t n_scopes, cap_scopes;
    int *regions; // builder: open autocast regions' precisions
    size_t n_regions, cap_regions;
    int segment, n_segments; // builder: open segment, -1; count
    bool repeats_init;       // initial values repeat after a million, for timing only
    uint32_t next_rng;       // stream number of the next random op
    int64_t cache_length;    // builder: positions of the caches that attention makes; 0: it makes none
    int n_caches, positions; // builder: attentions with a cache; value id of the positions of cache or documents, -1
    int64_t lora_rank;       // builder: the rank of adapters; 0: none
    double lora_alpha;
    char adapted[512];   // builder: the patterns of the modules with adapters
    int loss;            // value id, -1
    int scale;           // MZ_VALUE_SCALE, -1 until autodiff
    mezzo_status status; // first error, with its message
    char *message;
};

// --- growing a graph (graph.c) -------------------------------------------------------------------------------------
mezzo_status mz_graph_value(mezzo_graph *g, mz_value value, int *id); // takes over the memory of value.name
mezzo_status mz_graph_node(mezzo_graph *g, mz_node node, int *id);    // appends the node and sets its outputs' producer
mezzo_status mz_graph_copy(const mezzo_graph *g, mezzo_graph **out);
mezzo_status mz_graph_index_names(mezzo_graph *g);              // indexes names added after the last call
bool mz_graph_has_name(const mezzo_graph *g, const char *name); // an indexed parameter, input or entry has this name
int mz_graph_module(const mezzo_graph *g, const char *path);    // the index of the module with this path; -1: there is
                                                                // none
void mz_graph_compact(mezzo_graph *g, const bool *dead);        // drops dead nodes, keeps the order and relinks
void mz_graph_relink(mezzo_graph *g);                           // sets every value's producer and slot from the nodes
mezzo_status
mz_graph_consumers(const mezzo_graph *g,
                   int **counts); // number of readers of each value, + 1 for an output; the caller frees it
// Appends a cast of v to a product's operand: the output's format is f.operand with f.scaling, and its gradient's is
// f.gradient. With scales the cast is a `quantize`, whose entry has the name of module and `role`. n brings module,
// phase, segment and rule; the function sets the rest.
mezzo_status mz_graph_quantize(mezzo_graph *g, mz_node n, int v, mz_formats f, const char *role, int *out);
// Finds the columnwise output of the quantize that makes `value`, which a gradient's product reads; the same node
// writes it. The function returns a value without scales as it is.
mezzo_status mz_graph_columnwise(mezzo_graph *g, int value, int *out);
// Returns the entry whose scale a quantize writes; -1: the node is no quantize, or its scales have no history.
int mz_graph_entry(const mezzo_graph *g, const mz_node *n);
int mz_graph_before_rounding(
    const mezzo_graph *g,
    int value); // returns the input of the quantize that made the value; a value without scales stays as it is
bool mz_is_adapter(const char *parameter); // whether the name is that of an adapter
// Finds the module, "h.0.attn.q_proj", whose adapter acts on rows *first … *first + *rows - 1 of a weight "….weight" of
// `all` rows: the weight's own layer (index 0), or one of `parts`. Returns false where there is no such layer.
bool mz_adapted_module(const char *weight, int64_t all, const mz_parts *parts, int index, char module[512],
                       int64_t *first, int64_t *rows);
mz_tensor mz_value_stored(const mz_value *v);               // the tensor as it is stored, without addresses
mz_tensor mz_value_tensor(const mezzo_graph *g, int value); // the same for a value's id; -1: absent
const char *mz_graph_value_name(const mezzo_graph *g, int value, char *buf, size_t size);

// Returns the activation that a node computes or, with `gradient`, whose gradient it computes; NONE: neither (fuse.c).
mz_act mz_act_of(const mz_node *node, bool gradient);
double mz_node_flops(const mezzo_graph *g, const mz_node *node); // a multiply-add counts two; 0: not counted

// Hashes a graph before its passes (hash.c). Graphs with the same nodes, shapes, names and constants have equal hashes.
mezzo_status mz_graph_hash(const mezzo_graph *graph, uint64_t *hash);

// Infers shapes and dtypes of a node's outputs from its inputs and attrs (shape.c). The error names op, values and both
// shapes.
mezzo_status mz_infer(const mezzo_graph *g, const mz_node *node, mz_shape out[MZ_MAX_OUT]);

// Returns the format of a parameter's master after autocast where the user wants `asked`; *rule (or NULL): why.
mezzo_master mz_master_of(const mezzo_graph *g, size_t param, mezzo_master asked, const char **rule);

// --- passes --------------------------------------------------------------------------------------------------------
// The passes make a graph ready for a target. Passes of this folder read the options alone; runtime/passes.c has the
// table of all passes and those that ask the device or the parameters.
typedef struct mz_target {
    const mezzo_program_options *options;
    mezzo_device *device;         // NULL: passes up to chunk
    const mezzo_params *params;   // NULL as well for these passes
    struct mz_compiled *compiled; // the passes' other decisions (runtime/program.h); NULL as well
} mz_target;
typedef mezzo_status mz_pass_fn(mezzo_graph *g, const mz_target *target); // changes the graph in place
// Replaces, before the passes, each value of mezzo_by_mode by one of its two operands, and drops nodes that are not
// read.
mezzo_status mz_graph_choose_mode(mezzo_graph *g, bool forward_only);
// The output of programs that train with the values of all tracked parameters, one after another (track.c).
#define MZ_TRACKED "tracked values"
mezzo_status mz_graph_join_tracked(mezzo_graph *g);
int64_t mz_graph_tracked(const mezzo_graph *g); // the number of their elements
mz_pass_fn mz_pass_autocast, mz_pass_autodiff, mz_pass_recompute, mz_pass_chunk, mz_pass_transpose;

// Replaces, after recompute, a node without a kernel by its composition (compose.h). An op without a composition stays;
// so does one whose operands have scales or blocks.
typedef bool mz_has_kernel(const void *user, const mezzo_graph *g, const mz_node *node);
mezzo_status mz_graph_decompose(mezzo_graph *g, mz_has_kernel *has_kernel, const void *user);
// Nodes become post-ops of their neighbours (post.def) where a kernel of the neighbour's op takes them; NULL: all do.
typedef bool mz_takes_post(const void *user, mz_op op, mz_post post);
mezzo_status mz_graph_fuse(mezzo_graph *g, mz_takes_post *takes_post, const void *user);
uint64_t mz_node_posts(const mz_node *node); // the node's list of post-ops (post.h)
// For each parameter of the graph: what the parameters hold beside the master.
typedef struct mz_keeping {
    bool *copied;    // low copies have memory
    bool *quantized; // quantized data can be kept: the parameter is whole here and has no padding
} mz_keeping;
mezzo_status mz_graph_keep(mezzo_graph *g, const mz_keeping *kept);
// Gives values the storage of their axes, and puts copies before ops that do not take it.
typedef struct mz_storage_options {
    mz_storage_policy policy;
    mz_padded (*takes_padding)(mz_op op); // which padded tensors an op's kernels take; NULL: none
} mz_storage_options;
mz_padded mz_takes_padding(const mz_storage_options *options, mz_op op);
mezzo_status mz_graph_store(mezzo_graph *g, const mz_storage_options *options);
// Computes the storage that each value would have if all ops took it (axes.c). out [n_values].
mezzo_status mz_graph_storage(const mezzo_graph *g, const mz_storage_policy *policy, mz_storage *out);
// Sets out[v] where the rows of value v are multiples of 16 numbers, or can be stored so, as 8-bit products read them.
// out [n_values].
mezzo_status mz_graph_rows_of_16(const mezzo_graph *g, bool *out);
bool mz_value_is_rows(const mezzo_graph *g,
                      int value); // the value is a block of rows of the value whose memory it shares
// Where `can` allows it, a node with an activation's derivative gets the post-op act_out: it also writes the
// activation's result, which products of backward read, so that forward's result need not be kept. Post-ops that only
// some kernels offer are added after storage, all others by the fuse pass.
typedef mezzo_status mz_can_recompute(void *user, const mezzo_graph *g, const mz_node *dx, bool *out);
mezzo_status mz_graph_recompute_act(mezzo_graph *g, bool offered, mz_can_recompute *can, void *user);
// Parameters in regions, of which this process has one shard (gather.c).
typedef struct mz_gathering {
    const int *region;       // by the graph's parameters: its region; -1: it is whole here
    const int64_t *at;       // by the graph's parameters: elements from the region's beginning
    const int64_t *elements; // by region
    const bool *exchanged;   // by region: its experts are exchanged, so that readers use this rank's shard alone
    int n_regions, ranks;
    bool ahead; // the gather of a region runs while nodes read the region before it
} mz_gathering;
mezzo_status mz_graph_gather(mezzo_graph *g, const mz_gathering *parts);

int mz_main_output(const mz_node *n); // the first output that is present; -1: none (explain.c)
// Makes one row of mezzo_graph_explain for each node of a graph after a pass (explain.c).
void mz_graph_explain(const mezzo_graph *g, mezzo_explain_fn visit, void *user);
// Appends a graph after a pass to *out in Graphviz' DOT language, ops coloured by what they store (dot.c).
mezzo_status mz_graph_dot(const mezzo_graph *g, mz_text *out);

// --- plan ----------------------------------------------------------------------------------------------------------
typedef struct mz_plan {
    size_t *offset;   // per value: bytes into the arena; SIZE_MAX for values outside it
    size_t gradients; // bytes of the gradient buffer, where it is the beginning of the arena; 0: it lies elsewhere
    size_t borrowed;  // bytes of the gradient buffer up to the last one that another value takes
    size_t arena;     // bytes, without the gradient buffer's
    size_t unshared;  // bytes that would be needed if no values shared memory
    size_t inputs;    // bytes of the inputs that each run supplies
    size_t state;     // bytes of the inputs that runs keep
    size_t looks;     // number of comparisons with placed values during the search
} mz_plan;
// For a device that runs two streams of nodes at once (streams.c): each node's stream, and the node after which it can
// start.
typedef struct mz_stream_plan {
    signed char *stream;
    int *since;
} mz_stream_plan;
mezzo_status mz_graph_stream(const mezzo_graph *g, mz_stream_plan *out);
void mz_stream_plan_free(mz_stream_plan *streams);
typedef struct mz_part { // bytes of the gradient buffer that hold nothing before a node
    size_t from, to;
    int first;
} mz_part;
// Describes the flat buffer of gradients: all its bytes, and where each parameter's begin; SIZE_MAX: no other value may
// lie there.
typedef struct mz_gradient_room {
    size_t *offset; // by the graph's parameters; NULL: gradients are scattered
    size_t bytes;
    // Scattered gradients lie whole among the other values until they are summed; the buffer then has this rank's
    // shards.
    int *until;    // by the graph's parameters: the node up to which its gradient is kept
    size_t *least; // by the graph's parameters: the least bytes that it takes, where it is alone in a region that is
                   // longer
    mz_part *part; // NULL: no other value may lie in the buffer
    int n_parts;
    bool late; // sums may run at the same time as later nodes
} mz_gradient_room;
// Plans memory. streams: NULL for one stream; otherwise values of nodes on the second stream keep their bytes as long
// as such a node may be early or late. room: NULL; or gradients that hold nothing before the graph first writes them,
// so that other values may lie there until then; or scattered gradients.
mezzo_status mz_graph_plan(const mezzo_graph *g, const mz_stream_plan *streams, const mz_gradient_room *room,
                           mz_plan *plan);
void mz_plan_free(mz_plan *plan);

#endif
