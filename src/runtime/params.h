// Holds the parameters' memory: one flat FP32 buffer for the masters, one for the gradients, and one for each low
// format that a program reads.
#ifndef MZ_PARAMS_H
#define MZ_PARAMS_H

#include "graph/graph.h"
#include "backend/update.h"
#include "runtime/calls.h"
#include "quant/weights.h"
#include "mezzo/program.h"

typedef struct mz_param {
    char *name;
    mz_shape shape;
    mezzo_init init;
    mz_storage storage; // masters, gradients, moments and low copies share it
    mz_layout layout;   // of `storage`
    int64_t stored;     // number of elements with padding; offsets count these
    uint32_t key; // the stream of its random numbers: FNV-1a of its name; its low 31 bits differ from those of earlier
                  // parameters
    int64_t offset;        // elements into the master and gradient buffers, a multiple of 16
    int64_t count;         // number of elements of the shape
    mezzo_master master;   // FP32 masters come first in the flat buffers
    int64_t low_offset;    // split: bytes into the master buffer
    bool frozen;           // it has no gradient, moments or update; its offset counts in the master buffer alone
    bool has_grad;         // a program or the host has written its gradient since gradients were zeroed
    mz_parts parts;        // the layers whose rows it holds
    int64_t low_copy_slot; // elements into a low copy buffer (a multiple of 32); -1: no matmul-class op reads it
    // This process has elements [first, first + own): element i lies at place + i of the masters and at low_copy_place
    // + i of a low copy. With parameters in shards the places say where element 0 would lie, and may be negative.
    int64_t first, own, place, low_copy_place;
    int64_t counted; // its first element in the count of norm blocks (MZ_NORM_BLOCK): `offset`, or the offset without
                     // shards
    int region;      // the region that holds it, with parameters in shards; else -1
    bool experts;    // it holds the matrices of grouped_linear, [experts, …]
} mz_param;

typedef struct mz_low_copy {
    mezzo_dtype dtype;
    void *data;           // on the device
    mz_segment *segments; // on the device: each parameter with a low copy; low_copy_offset is set
    size_t n_segments;
} mz_low_copy;

// Where ranks share the update, flat buffers consist of contiguous regions: rank r's shard of a region begins at
// element from + r·shard. Regions with FP32 masters come first. Parameters and shards begin at multiples of
// MZ_NORM_BLOCK elements and have no padding inside, so a sum over these blocks does not depend on the number of ranks.
#define MZ_NORM_BLOCK 4096
typedef struct mz_region {
    int64_t from, shard;
    int64_t place; // of this rank's shard, in a buffer of its shards
} mz_region;

// Says how flat buffers are divided among ranks.
typedef struct mz_cut {
    int ranks;      // number of ranks; 0: buffers are not divided
    int64_t region; // the largest number of elements of a region; 0: no limit
    bool scattered; // a rank keeps its shards of the gradients; whole gradients are a program's values until they are
                    // summed
    bool sharded;   // parameters are in shards, too: a region has whole parameters, and programs gather them
    int rank;       // with `sharded`: the owner of the shards
    bool exchanges; // with `sharded`: a shard of experts is whole experts, and rows travel to the experts' owner
} mz_cut;

// Holds sharded parameters, whole, on the host: FP32 masters by offset, and each low copy by offset less `from`.
typedef struct mz_whole {
    float *master;
    uint16_t *low_copy[2];
    int64_t from;
} mz_whole;

struct mezzo_params {
    mezzo_device *device;
    mz_param *list;
    size_t n;
    mz_names names;             // index of the list's names
    int64_t elements;           // number of the gradients of all trained parameters, with padding
    size_t n_trained;           // number of parameters that are not frozen
    bool low_masters;           // some masters are not FP32
    int64_t fp32_elements;      // elements of the parameters with an FP32 master, which come first
    int64_t frozen_at;          // where frozen masters begin, in elements of the master buffer
    int64_t frozen_fp32;        // elements of the frozen masters in FP32
    size_t master_bytes;        // the master buffer has FP32 masters, and then the low halves of split ones
    mezzo_master master_format; // the format for parameters that only low-precision products read
    int64_t lora_rank;          // the rank of the adapters, for graphs of other shapes on these parameters; 0: no
                                // adapters
    double lora_alpha;
    char adapted[512];
    uint64_t seed; // the seed that the parameters were drawn from
    int ranks;     // number of ranks that the buffers are divided among; 0: they are not
    int rank;      // as in mz_cut; so is the next line
    bool scattered, sharded, exchanges;
    int64_t fp32_shards;   // number of this process's trained FP32 masters: all, or its shards
    int64_t copied_from;   // with `sharded`: elements before the first shard with a low copy
    int64_t counted;       // number of elements that the norm's blocks count
    mz_whole *whole;       // with `sharded`: set while this process reads parameters without the other ranks
    int64_t grad_elements; // elements of the gradient buffer: all, or a rank's shards
    mz_region *regions;
    int n_regions;
    int64_t low_copy_elements;      // elements of one low copy buffer
    bool padded;                    // some parameter has padding
    float *master, *grad;           // on the device
    mz_low_copy low_copies[2];      // in the order of first use; they live as long as params
    int n_low_copies;               // when it has grown, optimizers make their segments again
    uint64_t grad_version;          // grows whenever a run or the host changes gradients
    bool requantizes;               // programs with scales make copies of weights where they read them, quantized ones
                                    // and others: it saves memory and takes time
    bool overlaps_update;           // some program runs faster where the update overlaps its forward
    bool grads_empty;               // the gradients were zeroed, and nothing was added
    bool grads_stale;               // grads_empty holds, but the memory has the old gradients: see mz_params_settle
    mz_scales scales;               // the scales of tensors that programs on these parameters quantize
    mz_quantized_weights quantized; // the quantized weights that programs read
};

// Gives the parameters' adapters to a graph before it is built.
mezzo_status mz_params_adapt(const mezzo_params *params, mezzo_graph *graph);

// Gives a program's graph values for the low copies and quantized weights that these parameters keep (mz_graph_keep).
mezzo_status mz_params_keep(const mezzo_params *params, mezzo_graph *graph);
mezzo_status mz_quantized_bytes(const mezzo_graph *graph, size_t *bytes); // of all quantized weights that a graph reads

// mz_params_tensor returns the FP32 master, or the BF16 low copy where the master has another format; `inspect` reads
// it. With parameters in shards it returns this process's shard, absent where that is empty.
int mz_params_index(const mezzo_params *params, const mezzo_graph *g, size_t i); // the index of g's parameter i; -1:
                                                                                 // not found
mz_tensor mz_params_tensor(const mezzo_params *params, int index);
// Returns the low halves of a split master, U16 as bytes, stored as its BF16 copy is; absent where it is not split.
mz_tensor mz_params_low_halves(const mezzo_params *params, int index);

// Makes parameters as mezzo_params_create_as does, with buffers divided by `cut`. A cut for one rank gives the sums
// that several ranks compute; NULL: not divided.
mezzo_status mz_params_create(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              uint64_t seed, mezzo_master master, const mz_cut *cut, mezzo_params **out);
// Finds the elements [*first, *first + *count) of a parameter in a rank's shard of a region. *place is where element 0
// would lie in a buffer of this rank's shards; it may be negative.
void mz_params_shard(const mezzo_params *params, int index, int rank, int region, int64_t *first, int64_t *count,
                     int64_t *place);
// Returns the only parameter of a region; -1: the region has several.
int mz_region_only_param(const mezzo_params *params, int region);
// Returns whether the region is one parameter of experts, of which programs that train read this process's shard alone.
bool mz_region_exchanged(const mezzo_params *params, int region);
bool mz_region_has(const mezzo_params *params, const mz_region *region,
                   const mz_param *param);                    // whether the region has some elements of the parameter
int64_t mz_params_shard_elements(const mezzo_params *params); // the elements of a buffer of a rank's shards

// Lays out parameters as mz_params_create does, without device memory: for plans.
mezzo_status mz_params_sketch(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mezzo_params **out);

// Reads `count` masters of a parameter from element `first` to the host, as FP32.
mezzo_status mz_params_read_range(const mezzo_params *params, int index, int64_t first, int64_t count, float *out);

// Writes a parameter's masters from FP32 numbers on the host, of any alignment. The caller calls mz_params_refresh
// afterwards.
mezzo_status mz_params_write_master(mezzo_params *params, int index, const void *values);

// Makes the buffer of low copies in `dtype` where there is none, and fills it from the masters.
mezzo_status mz_params_low_copy(mezzo_params *params, mezzo_dtype dtype, const mz_low_copy **out);
// Rounds every low copy from the masters again, after the host wrote masters.
mezzo_status mz_params_refresh(mezzo_params *params);
mz_call mz_params_refresh_call(const mezzo_params *params, int low_copy); // returns the call for one low copy

// Allocates host memory for whole sharded parameters, which mz_ranks_gather_weights fills. Until mz_params_close_whole,
// programs copy from it instead of gathering, and mz_params_read_range reads it.
mezzo_status mz_params_open_whole(mezzo_params *params);
void mz_params_close_whole(mezzo_params *params);

// Zeroes gradients that were to be zeroed. Zeroing is deferred, because a program that writes every gradient overwrites
// them in its first run; other code calls this before it reads gradients or adds to them.
mezzo_status mz_params_settle(mezzo_params *params);

// The first member of a scaler, and all that a program knows of it.
typedef struct mz_scaler_head {
    mz_scaler_block *block; // on the device
    const mezzo_device *device;
} mz_scaler_head;

// Copies `count` elements of a parameter from element `first`, `size` bytes each, between the host and a flat buffer of
// the device, in which the parameter begins at `at`. Padding that is written becomes zeros.
mezzo_status mz_stored_read(mezzo_device *device, const mz_layout *layout, const void *at, size_t size, int64_t first,
                            int64_t count, void *out);
mezzo_status mz_stored_write(mezzo_device *device, const mz_layout *layout, void *at, size_t size, int64_t first,
                             int64_t count, const void *values);
// Multiplies each weight by 1 + by or 1 - by, at random from `seed`. Errors: MEMORY, those of reading and writing.
mezzo_status mz_params_perturb(mezzo_params *params, double by, uint64_t seed);
mz_tensor mz_params_grad(const mezzo_params *params, int index); // FP32; not allowed with scattered gradients

// Returns the device's `segments` as an update op reads them; storage.padded: some have padding.
mz_tensor mz_tensor_segments(const mezzo_params *params, void *segments, size_t n);
mz_tensor mz_tensor_f32(void *data, int64_t n);
mz_tensor mz_tensor_bytes(void *data, size_t n);
mz_tensor mz_tensor_low_copy(const mezzo_params *params, int index); // absent where the parameters have no such low
                                                                     // copy
mz_tensor mz_tensor_absent(void);

// Returns the device address of an output, for a loop that does not wait for the host.
mezzo_status mz_program_output_address(const mezzo_program *program, const char *output, const void **out);

// Lets the program use `owner`'s memory for inputs that runs write (caches). `owner` outlives the program, and both
// graphs have the same such inputs in the same order.
mezzo_status mz_program_share_state(mezzo_program *program, const mezzo_program *owner);

#endif
