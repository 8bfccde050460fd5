// Names models in GGUF as llama.cpp computes them: a family's tensors and keys have these names there (gguf.def).
// Import and export take the parts of a family's map (hf.h) and give them GGUF's names.
#ifndef MZ_WEIGHTS_GGUF_H
#define MZ_WEIGHTS_GGUF_H

#include "data/tokenizer.h"
#include "io/gguf.h"
#include "weights/hf.h"

typedef struct mz_gguf_family {
    const char *model, *arch; // our family; general.architecture
    bool pairs;               // rotary pairs are neighbouring rows of queries and keys
    bool own_head;            // the head never shares the embedding's weight
    bool whole_heads;         // heads times head_dim is the width
    bool mixture;             // of the families of an architecture the one with experts
    bool windows;             // blocks with a window, by the family's own pattern
    bool capped;              // scores and logits always have caps
    bool shared_head;         // the head always is the embedding's weight
    bool frequencies;         // scaled positions of kind llama3 are a tensor of factors, rope_freqs.weight
    bool long_factors;        // those of kind longrope are two, rope_factors_long.weight and …_short.weight
    const char *off, *on;     // keys of the model, between blanks, that must be off, or on; NULL: none
} mz_gguf_family;
const mz_gguf_family *mz_gguf_by_model(const char *model); // NULL: llama.cpp has no such architecture
// Finds the family of a file; FORMAT names the architecture where there is none.
mezzo_status mz_gguf_family_of(const char *where, const mz_gguf *file, const mz_gguf_family **out);

// The parts of a parameter get GGUF's names, order and, where its weights stay FP32, that; an expert becomes a slice.
mezzo_status mz_gguf_rename(const mz_gguf_family *g, const mezzo_model_config *model, mz_hf_parts *parts);
#define MZ_GGUF_EMBEDDING "token_embd.weight"
#define MZ_GGUF_POSITIONS "position_embd.weight"
#define MZ_GGUF_HEAD      "output.weight"

// Reads the model from the keys of ARCH; what they leave open is in the tensors. FORMAT names the key that is missing,
// has another value than is computed here, or is not known.
mezzo_status mz_gguf_read_config(const mz_gguf_family *g, const mz_hf_family *family, const char *where,
                                 const mz_gguf *file, mezzo_model_config *out);
// UNSUPPORTED: what llama.cpp does not compute of such a model, by key.
mezzo_status mz_gguf_write_config(const mz_gguf_family *g, const char *where, const mezzo_model_config *model,
                                  mz_gguf_meta *meta);
// Computes tensor `which` of what frequencies of scaled positions are divided by, [half of the dimensions that turn],
// and its name; allocated, or NULL in *out where the model has no such tensor.
enum { MZ_GGUF_FACTORS = 2 };
mezzo_status mz_gguf_factors(const mezzo_model_config *model, int which, const char **name, float **out, int64_t *n);
bool mz_gguf_is_factors(const char *name);

// --- weights -------------------------------------------------------------------------------------------------------
typedef struct mz_gguf_format {
    const char *name; // "q8_0"
    mezzo_dtype dtype;
    bool q8_0;
    uint32_t file_type; // general.file_type
} mz_gguf_format;
// INVALID: it is none of f32, f16, bf16, q8_0.
mezzo_status mz_gguf_format_named(const char *name, mz_gguf_format *out);
// How a tensor with rows of `cols` is written: vectors and what part.fp32 says in FP32; rows that blocks of Q8_0 do not
// divide in F16.
void mz_gguf_format_of(const mz_gguf_format *f, const mz_hf_part *part, bool vector, int64_t cols, mezzo_dtype *dtype,
                       bool *q8_0);

// --- tokenizers (gguf_tokenizer.c) ---------------------------------------------------------------------------------
// tokenizer.ggml.* and tokenizer.chat_template. Tokens that the model has and the tokenizer has not are unused ones.
// UNSUPPORTED: llama.cpp does not split texts as this tokenizer does.
mezzo_status mz_gguf_write_tokenizer(const char *where, const mezzo_tokenizer *tok, int64_t vocab, const json_t *ids,
                                     mz_gguf_meta *meta);
// *out NULL: the file has none. FORMAT: what of it is not supported. `ids` (an object) gets bos_token_id and
// eos_token_id.
mezzo_status mz_gguf_read_tokenizer(const char *where, const mz_gguf *file, mezzo_tokenizer **out, json_t *ids);

#endif
