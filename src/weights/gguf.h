// Declares how llama.cpp's GGUF files name models: the names of a family's tensors and keys there (gguf.def). Import
// and export take the parts of a family's map (hf.h) and give them GGUF's names.
#ifndef MZ_WEIGHTS_GGUF_H
#define MZ_WEIGHTS_GGUF_H

#include "data/tokenizer.h"
#include "io/gguf.h"
#include "weights/hf.h"

typedef struct mz_gguf_family {
    const char *model, *arch; // the family's name in Mezzo; general.architecture
    bool pairs;               // rotary pairs are neighbouring rows of queries and keys
    bool own_head;            // the head never shares the embedding's weight
    bool whole_heads;         // heads times head_dim is the width
    bool mixture;             // where families share an architecture, this one has the experts
    bool windows;             // some blocks have a window, by the family's own pattern
    bool capped;              // scores and logits always have caps
    bool shared_head;         // the head always is the embedding's weight
    bool frequencies;         // scaled positions of kind llama3 are a tensor of factors, rope_freqs.weight
    bool long_factors;        // those of kind longrope are two, rope_factors_long.weight and …_short.weight
    const char *off, *on;     // keys of the model, separated by blanks, that must be off, or on; NULL: none
} mz_gguf_family;
const mz_gguf_family *mz_gguf_by_model(const char *model); // NULL: llama.cpp has no such architecture
// Finds the family of a file; FORMAT names the architecture where there is none.
mezzo_status mz_gguf_family_of(const char *where, const mz_gguf *file, const mz_gguf_family **out);

// Gives the parts of a parameter GGUF's names and order, marks weights that stay FP32, and makes an expert a slice.
mezzo_status mz_gguf_rename(const mz_gguf_family *g, const mezzo_model_config *model, mz_hf_parts *parts);
#define MZ_GGUF_EMBEDDING "token_embd.weight"
#define MZ_GGUF_POSITIONS "position_embd.weight"
#define MZ_GGUF_HEAD      "output.weight"

// Reads the model from the keys of ARCH; the tensors give what the keys leave open. FORMAT names the key that is
// missing, unknown, or has a value that Mezzo does not compute.
mezzo_status mz_gguf_read_config(const mz_gguf_family *g, const mz_hf_family *family, const char *where,
                                 const mz_gguf *file, mezzo_model_config *out);
// Writes the keys. UNSUPPORTED names a key for which llama.cpp does not compute what the model does.
mezzo_status mz_gguf_write_config(const mz_gguf_family *g, const char *where, const mezzo_model_config *model,
                                  mz_gguf_meta *meta);
// Computes tensor `which` of divisors for the frequencies of scaled positions, [half of the rotated dimensions], and
// its name. The caller frees it; *out is NULL where the model has no such tensor.
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
// INVALID: the name is none of f32, f16, bf16, q8_0.
mezzo_status mz_gguf_format_named(const char *name, mz_gguf_format *out);
// Says how a tensor with rows of `cols` is written: vectors and parts with part.fp32 in FP32; rows that blocks of Q8_0
// do not divide in F16.
void mz_gguf_format_of(const mz_gguf_format *f, const mz_hf_part *part, bool vector, int64_t cols, mezzo_dtype *dtype,
                       bool *q8_0);

// --- tokenizers (gguf_tokenizer.c) ---------------------------------------------------------------------------------
// Writes tokenizer.ggml.* and tokenizer.chat_template. Tokens that the model has and the tokenizer lacks are marked
// unused. UNSUPPORTED: llama.cpp does not split texts as this tokenizer does.
mezzo_status mz_gguf_write_tokenizer(const char *where, const mezzo_tokenizer *tok, int64_t vocab, const json_t *ids,
                                     mz_gguf_meta *meta);
// Reads the tokenizer; *out NULL: the file has none. FORMAT names what is not supported. `ids` (an object) gets
// bos_token_id and eos_token_id.
mezzo_status mz_gguf_read_tokenizer(const char *where, const mz_gguf *file, mezzo_tokenizer **out, json_t *ids);

#endif
