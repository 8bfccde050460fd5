// Describes a decoder by data: a row of families.def has what a family fixes, and the model's keys have the rest.
#ifndef MZ_DECODER_H
#define MZ_DECODER_H

#include "models/model.h"

// Names of modules. A part's name is that of its adapter; NULL: the product has one adapter as a whole.
typedef struct mz_decoder_names {
    const char *embedding, *positions, *block; // positions: the table of learned ones; block: "layers" gives layers.0 …
    const char *attention, *qkv, *q, *k, *v, *out;
    const char *mlp, *up, *gate_part, *up_part, *down;
    const char *before_attention, *after_attention, *before_mlp, *after_mlp; // norms
    const char *final, *head;
} mz_decoder_names;

typedef enum mz_norm_kind { MZ_NORM_RMS, MZ_NORM_LAYER } mz_norm_kind;
typedef enum mz_norm_place {
    MZ_NORM_PRE,
    MZ_NORM_POST,
    MZ_NORM_BOTH
} mz_norm_place; // POST: applied to a branch's
                 // result
typedef enum mz_position_kind { MZ_POSITIONS_ROTARY, MZ_POSITIONS_LEARNED } mz_position_kind;
typedef enum mz_decoder_act { MZ_DECODER_SILU, MZ_DECODER_GELU, MZ_DECODER_GELU_TANH, MZ_DECODER_RELU2 } mz_decoder_act;
typedef enum mz_tied { MZ_TIED_NEVER, MZ_TIED_ALWAYS, MZ_TIED_BY_KEY } mz_tied;
enum { MZ_HEAD_OWN = 1, MZ_HEAD_TIED };                                                // values of tie_head
enum { MZ_ROPE_NONE = 1, MZ_ROPE_LINEAR, MZ_ROPE_LLAMA3, MZ_ROPE_YARN, MZ_ROPE_LONG }; // values of rope_scaling
typedef enum mz_router { MZ_ROUTER_NONE, MZ_ROUTER_SIGMOID, MZ_ROUTER_SOFTMAX } mz_router;

// Says which initial values a matrix [out, in] has. RESIDUAL: it belongs to a product that writes into the residual
// stream.
typedef enum mz_decoder_weight { MZ_WEIGHT_EMBEDDING, MZ_WEIGHT_PLAIN, MZ_WEIGHT_RESIDUAL } mz_decoder_weight;
typedef mezzo_init mz_decoder_init_fn(const mezzo_model_config *config, mz_decoder_weight kind, int64_t in,
                                      int64_t out);

// A flag is the offset of a BOOL in mezzo_model_config, or 0 (never) or 1 (always).
typedef size_t mz_decoder_flag;
typedef struct mz_decoder {
    const char *name;
    const mz_decoder_names *names;
    mz_tied tied; // whether the head is the embedding's weight
    mz_norm_kind norm;
    mz_norm_place place;
    mz_position_kind positions;
    mz_decoder_act act;
    mz_router router; // for blocks after the dense ones, which have experts
    bool plain_mlp;   // one product before the activation, without a gate
    bool ungrouped;   // as many key heads as heads, whose width is the model's divided by their number
    bool windows;     // it has the key `window`, and with `windows_from` the key `window_from`
    bool windows_from;
    bool local_rope;  // blocks with the window have positions of their own, from the key `rope_local`
    bool partial;     // the key `rotary` says how much of a head is rotated
    bool interleaved; // a rotary pair is two neighbours
    bool whole_norms; // RMS norms of all query heads together, and of all key heads
    bool has_dropout;
    bool scaled_embedding; // it is multiplied by √d_model
    int full_every;        // > 0: it has the key `full_every`, whose default this is
    float fixed_eps;       // of norms; 0: the key norm_eps has it
    float norm_offset;     // it is added to the weights of RMS norms
    mz_decoder_flag norm_bias, qkv_bias, out_bias, mlp_bias;
    mz_decoder_flag head_norms; // RMS norms of every query and key head
    mz_decoder_flag parallel;   // attention and MLP both read the block's input
    mz_decoder_init_fn *init;   // NULL: N(0, 0.02²)
} mz_decoder;

const mz_decoder *mz_decoder_find(const char *name); // NULL: no family of decoders has this name
const mz_decoder_names *mz_decoder_names_of(const mz_decoder *family);
// Returns whether block `index` has the window (and local positions).
bool mz_decoder_slides(const mezzo_model_config *config, int64_t index);
// Returns LongRoPE's factor on cosines and sines (Ding et al., arXiv:2402.13753).
double mz_decoder_long_attention(const mezzo_model_config *config);
// Resolves sizes in which 0 means the family's own: kv_heads, head_dim, d_ff, d_expert, rotary; and keys that the
// family does not take get the values that it computes with.
mezzo_model_config mz_decoder_resolve(const mz_decoder *family, const mezzo_model_config *config);

// Checks the keys, for makers (registry.c). Errors name the key.
mezzo_status mz_decoder_check(const mezzo_model_config *config);
mezzo_status mz_decoder_build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g);

#endif
