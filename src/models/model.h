// A model is an object: it says what the inputs of its graphs are for, how a graph is built, what describes it, and
// which names its weights have elsewhere. A family with its keys (registry.c) is one maker of such objects.
#ifndef MZ_MODEL_H
#define MZ_MODEL_H

#include "mezzo/program.h"
#include "models/keys.h"

// Says what an input is for: a task fills the inputs of a batch by their roles.
typedef enum mz_role {
    MZ_ROLE_TOKENS,
    MZ_ROLE_TARGETS,
    MZ_ROLE_POSITIONS, // the position of each token in its document
    MZ_ROLE_FEATURES,
    MZ_ROLE_IMAGE,
    MZ_ROLE_CONDITION,
    MZ_ROLE_LATENT,
    MZ_ROLE_TIME,
    MZ_ROLE_NOISE,    // a key for each row's draw
    MZ_ROLE_SCHEDULE, // an mz_diffusion_row for each row
    MZ_ROLE_WEIGHT,   // a row's factor in the loss
    MZ_ROLE_PLACES,   // 0, 1, 2 … in every row
    MZ_ROLE_ONES,
} mz_role;

enum { MZ_MODEL_INPUTS = 12, MZ_INPUT_RANK = 6 };

// Holds one input of a graph, and a batch of it in host memory.
typedef struct mz_input {
    const char *name; // as in mezzo_input: static text, or the model's
    mz_role role;
    mezzo_dtype dtype;
    int rank;
    int64_t dim[MZ_INPUT_RANK]; // dim[0] is the batch's rows
    size_t bytes;
    void *data;      // NULL: no memory was allocated for it
    bool built;      // the maker's build adds it, and gets no value for it
    int64_t classes; // TARGETS: this input's own number of classes; 0: the model's. Other integers: rows of their
                     // table; 0: any
} mz_input;
#define MZ_INPUT(its_name, its_role, its_dtype, its_rank, ...)                                                         \
    (mz_input) {                                                                                                       \
        .name = (its_name), .role = (its_role), .dtype = (its_dtype), .rank = (its_rank), .dim = { __VA_ARGS__ }       \
    }

// Names one of a model's graphs.
typedef enum mz_model_part {
    MZ_PART_WHOLE,  // with the loss
    MZ_PART_CACHED, // it generates text: mezzo_model_build_cached
    MZ_PART_ENCODER,
    MZ_PART_DECODER,
} mz_model_part;
typedef struct mz_form {
    int64_t batch, length; // batch: rows; length: tokens of a row, 1 in models without sequences
    mz_model_part part;
    bool outputs;   // the whole graph has outputs besides the loss: "logits", "prediction"
    bool documents; // for a language model: a row has several documents, which do not see each other
    int64_t reach;  // tokens of the text to which a row belongs; 0: the row's, or the caches' length
} mz_form;

typedef struct mz_maker mz_maker;
typedef struct mz_graph_file mz_graph_file;
typedef struct mz_model {
    const mz_maker *maker;
    mezzo_model_config config; // its keys, which only its maker reads
    const mz_graph_file *file; // for "onnx": the open file, which lives as long as the process
} mz_model;

// Holds sizes on which a model and its data must agree; 0: the data does not decide it, or the model has no such size.
typedef struct mz_model_sizes {
    int64_t length; // tokens of a row, 1 in a model without sequences
    int64_t vocab, features, classes;
    int64_t image_size, channels, condition_size, condition_channels;
    int objective;  // the mz_objective of a model that predicts images; 0 for an autoencoder
    int64_t values; // of a model that predicts numbers: how many a row's prediction has
} mz_model_sizes;

// One entry of a description: a key with its number or its text.
typedef struct mz_fact {
    const char *key, *text; // text: NULL for a number
    mz_key_type type;       // of the number
    double number;
    bool same;       // a run resumes only from a checkpoint with the same value
    mezzo_list list; // of a LIST
} mz_fact;
typedef mezzo_status (*mz_fact_fn)(void *user, const mz_fact *fact);
// Finds the value of fact->key, as a text where `is_text`, else as a number of fact->type. *found false: there is no
// such key.
typedef mezzo_status (*mz_fact_find)(void *user, bool is_text, mz_fact *fact, bool *found);

struct mz_maker {
    const char *name;
    mezzo_model_purpose purpose;
    bool has_parts; // it has an encoder and a decoder
    // Checks keys. Errors name the key and the numbers; sizes that every family has were checked before.
    mezzo_status (*check)(const mezzo_model_config *config);
    mezzo_status (*open)(mz_model *model); // called after check succeeded; reads the model's file; NULL: there is none
    // Lists the inputs of a form, in the order in which the graph declares them, without memory. Returns their number.
    int (*inputs)(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]);
    // Builds a form into a graph that has its inputs; the caller asks mezzo_graph_status afterwards.
    mezzo_status (*build)(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g);
    // The sizes; a line of text; the description, without its name; and the model of a description. NULL for a built-in
    // family, whose keys give these.
    void (*sizes)(const mz_model *model, mz_model_sizes *out);
    void (*summary)(const mz_model *model, char *out, size_t size);
    mezzo_status (*describe)(const mz_model *model, mz_fact_fn put, void *user);
    mezzo_status (*read)(mz_fact_find find, void *user, const char *folder, mz_model *out);
    // Load weights that the model has into parameters of its graph; copy the files that `read` will look for into a run
    // folder; and write them with trained weights. NULL for models whose first weights are drawn, and whose description
    // is complete.
    mezzo_status (*load)(const mz_model *model, const mz_form *form, mezzo_params *params);
    mezzo_status (*keep)(const mz_model *model, const char *folder);
    mezzo_status (*save)(const mz_model *model, const mezzo_params *params, bool evaluation, const char *path);
};
extern const mz_maker mz_model_toy, mz_model_mlp, mz_model_cnn, mz_model_kl_vae, mz_model_radio_unet, mz_model_onnx;

// Makes a family's model with these keys. INVALID as mezzo_model_check.
mezzo_status mz_model_of(const mezzo_model_config *config, mz_model *out);
mz_model_sizes mz_model_sizes_of(const mz_model *model);
const char *mz_model_name(const mz_model *model);                   // its named size, its file's name, or its maker's
const char *mz_model_config_name(const mezzo_model_config *config); // its file's name, or its family's
// Writes "12 layers, 12 heads, width 768, context 1024, vocabulary 50257".
void mz_model_summary(const mz_model *model, char *out, size_t size);
int mz_model_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]);
// Builds a model by its maker. INVALID: a batch or length that does not fit, a part that the model does not have.
mezzo_status mz_model_build(const mz_model *model, const mz_form *form, mezzo_graph *graph);
// Passes every entry of its description in order, as a checkpoint keeps it, to `put`, until that fails.
mezzo_status mz_model_describe(const mz_model *model, mz_fact_fn put, void *user);
// Reads the model of a description. A missing key has the family's default. `folder`: that of the run, where files that
// belong to it are; NULL: none. INVALID: no maker has its name, or as mezzo_model_check; else the error of `find`.
mezzo_status mz_model_read(mz_fact_find find, void *user, const char *folder, mz_model *out);
// The longest context of a model where none is asked for, because published ones need more memory than a step has.
enum { MZ_SEQ_LEN_OWN = 4096 };
// Returns the positions in its exported configuration.
int64_t mz_model_positions(const mezzo_model_config *config);
// Returns whether positions in a text of this many tokens differ from those in a short one.
bool mz_model_is_long(const mz_model *model, int64_t tokens);
// Sets another context length, unless a parameter has a row for each position.
void mz_model_set_length(mz_model *model, int64_t length);
// Checks whether weights of `theirs` fit `ours`: INVALID names the first difference. `where` is the file of theirs,
// `other` the key that names another one.
mezzo_status mz_model_continues(const mz_model *ours, const mz_model *theirs, const char *where, const char *other);

// Sets the dimensions of a graph file that data decide: input `name` (NULL: the only one) has rows of this shape. A
// size that is given already stays.
mezzo_status mz_graph_file_bind(mezzo_model_config *config, const char *name, int rank, const int64_t *dim);
// Returns whether a run folder has a copy of a file that is no longer at its path; kept: the copy's path.
bool mz_graph_file_is_kept(const char *path, const char *folder, char *kept, size_t size);
bool mz_graph_file_wants_numbers(const mezzo_model_config *config); // its labels are numbers, not classes

// Returns how many blocks have a mixture of experts, and the first of them, after which all have one.
int64_t mz_model_mixtures(const mz_model *model, int64_t *first);

mezzo_model_purpose mz_model_purpose(const mz_model *model);

// Returns the inputs of a classifier of features; for makers.
int mz_classifier_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]);

#endif
