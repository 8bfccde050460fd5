// Parameters inside: one flat FP32 buffer of masters, one of gradients, and a flat buffer for each low format that a
// program reads.
#ifndef MZ_PARAMS_H
#define MZ_PARAMS_H

#include "graph/graph.h"
#include "runtime/calls.h"
#include "runtime/scales.h"
#include "mezzo/program.h"

typedef struct mz_param {
    char *name;
    mz_shape shape;
    mezzo_init init;
    mz_storage storage; // of masters, gradients, moments and low-precision copies alike
    mz_layout layout;   // the same
    int64_t stored;     // elements with padding: what offsets count
    uint32_t key;   // of its random numbers: FNV-1a of its name, made different from those before it in the low 31 bits
    int64_t offset; // elements into the master and gradient buffers, a multiple of 16
    int64_t count;  // elements of the shape
    mezzo_master master;   // how its masters are stored; FP32 ones come first in the flat buffers
    int64_t low_offset;    // split: bytes into the master buffer
    bool frozen;           // no gradient, no moments, no update; its offset is into the master buffer alone
    bool has_grad;         // a program or the host has written its gradient since it was zeroed
    mz_parts parts;        // the layers whose rows it has
    int64_t low_copy_slot; // elements into a low copy buffer (a multiple of 32); -1: no matmul-class op reads it
    // What this process has of it: elements [first, first + own), at place + i of the masters and low_copy_place + i of
    // a low copy. All of it at `offset` and `low_copy_slot`, but where parameters lie in shards: element 0 would lie
    // there, and the places may be negative.
    int64_t first, own, place, low_copy_place;
    int64_t counted; // what pieces (MZ_NORM_BLOCK) are counted by: `offset`, where parameters do not lie in shards
    int region;      // where parameters lie in shards: the region that has it; -1
} mz_param;

typedef struct mz_low_copy {
    mezzo_dtype dtype;
    void *data;           // device
    mz_segment *segments; // device: every parameter that has a slot, low_copy_offset set
    size_t n_segments;
} mz_low_copy;

// A parameter's 8-bit data, scaled by an entry of the table. Magnitude and codes are those of its master, and the
// scale that of the table, whenever a program runs.
typedef struct mz_quantized {
    int param, entry;
    mezzo_dtype dtype;
    void *rowwise, *columnwise; // device; NULL: no program reads them so
} mz_quantized;

// Where ranks share the update, the flat buffers are cut into regions, consecutive: rank r's part of one begins
// at element from + r·shard. Those with FP32 masters come first. Parameters begin at multiples of MZ_NORM_BLOCK
// elements, shards too, and nothing between their elements is padding, so that a sum over pieces in order is the same
// on any number of ranks and regions.
#define MZ_NORM_BLOCK 4096
typedef struct mz_region {
    int64_t from, shard;
    int64_t place; // of this rank's shard in a buffer that has its shards alone
} mz_region;

// How flat buffers are cut for ranks.
typedef struct mz_cut {
    int ranks;      // 0: they are not
    int64_t region; // elements of a region at most (as many pieces as ranks at least); 0: as many as there are
    bool scattered; // of gradients a rank keeps its shards alone; whole ones lie among a program's values, until they
                    // are summed
    bool sharded;   // of parameters too: a region has whole parameters, and programs gather what they read
    int rank;       // sharded: whose shards
} mz_cut;

// Parameters that lie in shards, on the host and whole: masters as FP32 by offset, and what each low copy has by offset
// less `from`.
typedef struct mz_whole {
    float *master;
    uint16_t *low_copy[2];
    int64_t from;
} mz_whole;

struct mezzo_params {
    mezzo_device *device;
    mz_param *list;
    size_t n;
    mz_names names;             // of the list
    int64_t elements;           // of all gradients, padding included: of parameters that are trained
    size_t n_trained;           // parameters that are not frozen
    bool low_masters;           // some masters are not FP32
    int64_t fp32_elements;      // the first of them: those that have an FP32 master
    int64_t frozen_at;          // elements into the master buffer: where frozen parameters' begin
    int64_t frozen_fp32;        // elements of those of them that have an FP32 master
    size_t master_bytes;        // of the master buffer: FP32 masters, then the low halves of split ones
    mezzo_master master_format; // masters of parameters that only low matmuls read
    int64_t lora_rank;          // of the graph's adapters, 0: none; for graphs of other shapes on these parameters
    double lora_alpha;
    char adapted[512];
    uint64_t seed; // that the parameters were drawn from
    int ranks;     // that the buffers are cut for; 0: they are not
    int rank;      // mz_cut's, as these
    bool scattered, sharded;
    int64_t fp32_shards;   // elements of FP32 masters of trained parameters that are here: fp32_elements, or the shards
    int64_t copied_from;   // sharded: elements of shards before the first that has a low copy
    int64_t counted;       // elements that pieces are counted by
    mz_whole *whole;       // sharded: NULL but while this process looks at parameters without the others
    int64_t grad_elements; // of the gradient buffer: all, or a rank's shards, consecutive
    mz_region *regions;
    int n_regions;
    int64_t low_copy_elements; // of one low copy buffer
    bool padded;               // some parameter has padding
    float *master, *grad;      // device
    mz_low_copy low_copies[2]; // in the order they were first needed; never moved or freed before params
    int n_low_copies;          // optimizers remake their segments when it has grown
    uint64_t grad_version;     // grows whenever gradients change, by a run or a host write
    bool overlaps_update;      // a program gains by an update beside its forward
    bool grads_empty;          // zeroed since, and nothing added
    bool grads_stale;          // grads_empty, but the memory still holds the old ones: see mz_params_settle
    mz_scales scales;          // of tensors that programs on these parameters quantize
    mz_quantized *quantized;   // those that programs read, in the order they were first needed
    int n_quantized;
    size_t cap_quantized;
    void **quantized_blocks; // device: their memory
    int n_quantized_blocks;
    size_t quantized_bytes;
    uint64_t quantized_version; // grows when there are more of them: optimizers write them
    bool quantized_stale;       // masters or scales were written since
};

// Gives a graph that is to be built for these parameters their adapters.
mezzo_status mz_params_adapt(const mezzo_params *params, mezzo_graph *graph);

// Gives a program's graph values for what these parameters keep (mz_graph_keep).
mezzo_status mz_params_keep(const mezzo_params *params, mezzo_graph *graph);
void mz_quantized_free(mezzo_params *params);
mezzo_status mz_quantized_bytes(const mezzo_graph *graph, size_t *bytes); // of all that a program's graph reads
// The quantize that writes codes `index` with the scale that their entry has.
mz_call mz_quantized_call(const mezzo_params *params, int index);
mezzo_status
mz_params_settle_quantized(mezzo_params *params); // before a run: writes those that are not as they should be

// What shows whether a parameter is finite: its FP32 master, or, where that is kept in another way, its BF16 low copy.
// Where parameters lie in shards, this process's; absent where it has nothing of it.
int mz_params_index(const mezzo_params *params, const mezzo_graph *g, size_t i); // of g's parameter i; -1: not there
mz_tensor mz_params_tensor(const mezzo_params *params, int index);

// mezzo_params_create_as, with buffers that are cut (for 1 rank: for the same sums alone); NULL: not cut.
mezzo_status mz_params_create(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              uint64_t seed, mezzo_master master, const mz_cut *cut, mezzo_params **out);
// What of a parameter is in a rank's shard of a region: elements [*first, *first + *count), and *place is where element
// 0 would lie in a buffer that has the shards of this rank alone, consecutive; it may be negative.
void mz_params_shard(const mezzo_params *params, int index, int rank, int region, int64_t *first, int64_t *count,
                     int64_t *place);
// The one parameter that region `region` of parameters in shards has; -1: it has several.
int mz_region_only_param(const mezzo_params *params, int region);
bool mz_region_has(const mezzo_params *params, const mz_region *region, const mz_param *param); // some of it
int64_t mz_params_shard_elements(const mezzo_params *params);                                   // of such a buffer
size_t mz_params_shards(const mezzo_params *params, int rank); // of a rank, of all parameters; one each at least

// Laid out as mz_params_create would, without memory of the device: for plans.
mezzo_status mz_params_sketch(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mezzo_params **out);

// `count` masters of a parameter from element `first`, FP32, to the host.
mezzo_status mz_params_read_range(const mezzo_params *params, int index, int64_t first, int64_t count, float *out);

// A parameter's masters from FP32 numbers on the host, of any alignment; mz_params_refresh has to follow.
mezzo_status mz_params_write_master(mezzo_params *params, int index, const void *values);

// Makes the low copy buffer of `dtype` if there is none, filled from the masters.
mezzo_status mz_params_low_copy(mezzo_params *params, mezzo_dtype dtype, const mz_low_copy **out);
// Rounds every low copy again from the masters (after masters were written from the host).
mezzo_status mz_params_refresh(mezzo_params *params);
mz_call mz_params_refresh_call(const mezzo_params *params, int low_copy); // of one of them

// Parameters that lie in shards, whole on the host (sharded alone): from here on programs copy from there what they
// would gather, and mz_params_read_range has what it asks for. Room first; mz_ranks_gather_weights fills it.
mezzo_status mz_params_open_whole(mezzo_params *params);
void mz_params_close_whole(mezzo_params *params);

// Zeroing is deferred, because a program that writes every gradient overwrites in its first run instead of adding to
// zeros. Whoever else reads or adds to gradients calls this first.
mezzo_status mz_params_settle(mezzo_params *params);

// A scaler's first member, all that a program knows of it.
typedef struct mz_scaler_head {
    mz_scaler_block *block; // device
    const mezzo_device *device;
} mz_scaler_head;

// `count` elements of a parameter from element `first`, `size` bytes each, between the host and a flat buffer of the
// device in which the parameter begins at `at`. What is written leaves zeros in padding.
mezzo_status mz_stored_read(mezzo_device *device, const mz_layout *layout, const void *at, size_t size, int64_t first,
                            int64_t count, void *out);
mezzo_status mz_stored_write(mezzo_device *device, const mz_layout *layout, void *at, size_t size, int64_t first,
                             int64_t count, const void *values);
mz_tensor mz_params_grad(const mezzo_params *params, int index); // a parameter's gradient, FP32; not where scattered

// Tensors for update ops.
// `segments` of the device as an update op reads them; its storage.padded says that some of them have padding.
mz_tensor mz_tensor_segments(const mezzo_params *params, void *segments, size_t n);
mz_tensor mz_tensor_f32(void *data, int64_t n);
mz_tensor mz_tensor_bytes(void *data, size_t n);
mz_tensor mz_tensor_low_copy(const mezzo_params *params, int index); // absent where there is no such low copy
mz_tensor mz_tensor_absent(void);

// What a program reads that is not its own, for whoever runs the loop without waiting: the device address of an output.
mezzo_status mz_program_output_address(const mezzo_program *program, const char *output, const void **out);

// Inputs that runs write (caches) are `owner`'s from here on, which must outlive the program: both graphs have the
// same, in the same order.
mezzo_status mz_program_share_state(mezzo_program *program, const mezzo_program *owner);

#endif
