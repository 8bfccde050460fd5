// A model from an ONNX file: its graph, built for a batch, its weights, and the same file with trained weights. Files
// of opset 13 and later are read; the caller gives the size of a dimension that the file only names. docs/onnx.md lists
// the ops. Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_ONNX_H
#define MEZZO_ONNX_H

#include "mezzo/graph.h"
#include "mezzo/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mezzo_onnx mezzo_onnx;

// Reads a file and checks it; separate weight files ("external data") are searched in its folder. The caller owns *out.
// Errors: IO; FORMAT: it is no ONNX model, is damaged, has an older opset, or has unknown ops (the message names the
// first one's node and counts the others); UNSUPPORTED: this build has no protobuf-c.
MEZZO_API mezzo_status mezzo_onnx_open(const char *path, mezzo_onnx **out);
MEZZO_API void mezzo_onnx_free(mezzo_onnx *onnx); // NULL is allowed

// Describes the inputs that a program must be given, and the outputs, in the file's order; the object owns the names.
typedef struct mezzo_onnx_port {
    const char *name;
    mezzo_dtype dtype; // F32; I32 for integers and truth values
    int rank;
    int64_t dim[MEZZO_MAX_RANK];        // 0: symbolic
    const char *symbol[MEZZO_MAX_RANK]; // its name; NULL: the dimension is a number, or has no name
} mezzo_onnx_port;
MEZZO_API int mezzo_onnx_inputs(const mezzo_onnx *onnx);
MEZZO_API int mezzo_onnx_outputs(const mezzo_onnx *onnx);
MEZZO_API mezzo_status mezzo_onnx_input(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out);
MEZZO_API mezzo_status mezzo_onnx_output(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out);

// Returns the separate files that hold its weights, relative to its folder; NULL past the last.
MEZZO_API const char *mezzo_onnx_data(const mezzo_onnx *onnx, int index);

typedef struct mezzo_onnx_dim {
    const char *name; // a symbol, or "INPUT.AXIS" ("input_ids.0") of any input, which overrides the file
    int64_t size;
} mezzo_onnx_dim;

// Builds the model into a graph: inputs under their names, weights as parameters under theirs. Numbers that are not
// weights (masks, tables of constants) become frozen parameters. values[i] is output i, and the array has one element
// for every output; the caller adds a loss. Dropout is left out, as in files for evaluation. Running statistics of
// batch normalizations are frozen parameters, too. In a file that was exported for training they follow the batches
// (mezzo_graph_track), as in torch: a training program normalizes by its batch's own statistics, others by these.
// Errors: INVALID: a dimension without a size, shapes that do not fit (the message names the node); FORMAT: an unknown
// form of an op; MEMORY.
MEZZO_API mezzo_status mezzo_onnx_build(mezzo_onnx *onnx, mezzo_graph *graph, int n, const mezzo_onnx_dim *dims,
                                        mezzo_value *values);
// Returns how often an idiom became one op of Mezzo in the last build: "attention", "gelu", "group_norm", "layer_norm",
// "rms_norm", "rope", "silu", "swiglu". 0 for other names. ONNX ops that are the idiom themselves, as Attention, are
// not counted.
MEZZO_API int mezzo_onnx_recognized(const mezzo_onnx *onnx, const char *idiom);
// Writes the file's weights to the parameters of a graph that mezzo_onnx_build built.
MEZZO_API mezzo_status mezzo_onnx_load(const mezzo_onnx *onnx, mezzo_params *params);
// Writes the original file with the weights of `params`, in FP32, as a single file. evaluation: a file that was
// exported for training is written for use; its BatchNormalization nodes take their running statistics, and Dropout
// drops nothing. UNSUPPORTED: another node reads a batch's statistics.
MEZZO_API mezzo_status mezzo_onnx_save(const mezzo_onnx *onnx, const mezzo_params *params, bool evaluation,
                                       const char *path);

#ifdef __cplusplus
}
#endif
#endif
