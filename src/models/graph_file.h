// Declares the loss of a model from an ONNX file. It has terms, each of an output and of arrays of the data
// (graph_loss.c).
#ifndef MZ_GRAPH_FILE_H
#define MZ_GRAPH_FILE_H

#include "models/model.h"

typedef struct mz_graph_shape {
    int rank;
    int64_t dim[MEZZO_MAX_RANK];
} mz_graph_shape;

enum { MZ_GRAPH_TERMS = 4, MZ_GRAPH_CLASSES = 128 };
typedef struct mz_graph_term {
    int kind; // index into graph_loss.c's table
    float factor;
    char output[80], labels[80], weights[80]; // "": the first output; no labels; no weights
    float class_weight[MZ_GRAPH_CLASSES];     // from "[0.5 1 2]" instead of weights
    int n_class_weights;                      // 0: every class counts alike
    int axis;                                 // the axis of classes, from "OUTPUT@AXIS"; -1: the output's rank decides
    int index;                                // of the output, once it was found
    mz_graph_shape shape;                     // of the output, for a batch of 2
} mz_graph_term;
typedef struct mz_graph_loss {
    int n;
    mz_graph_term term[MZ_GRAPH_TERMS];
} mz_graph_loss;

// Reads "cross_entropy", "mse(boxes,targets) + 0.5*cross_entropy(classes@1,labels,weights)", or the name of an output
// of one number. INVALID: another form.
mezzo_status mz_graph_loss_read(const char *text, mz_graph_loss *out);
// Checks that the output can have this loss. INVALID: it cannot.
mezzo_status mz_graph_term_check(const mz_graph_term *term);
int64_t mz_graph_term_classes(const mz_graph_term *term);  // 0: its labels are no classes
bool mz_graph_term_has_numbers(const mz_graph_term *term); // its labels are numbers
int64_t mz_graph_term_values(const mz_graph_term *term);   // numbers of a row's prediction; 0: it predicts no numbers
// Finds the shape of its labels and returns their rank; 0: it has none.
int mz_graph_term_labels(const mz_graph_term *term, int64_t batch, int64_t dim[MZ_INPUT_RANK]);
const char *mz_graph_name(const char *name); // returns a copy that lives as long as the process
// Builds the graph's loss, and the output "logits" or "prediction" where the form asks for outputs. It finds labels and
// weights by name in named[i], with the values inputs[i]; `values` are the file's outputs.
mezzo_status mz_graph_loss_build(const mz_graph_loss *loss, const mz_form *form, int n, const mz_input *named,
                                 const mezzo_value *inputs, const mezzo_value *values, mezzo_graph *g);

#endif
