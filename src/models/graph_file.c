// The maker "onnx" makes a model of an ONNX file. The inputs are the file's, with one for each array of labels and of
// weights that the loss names; parameters begin with the file's values.
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/file.h"
#include "mezzo/onnx.h"
#include "models/graph_file.h"
#include "models/model.h"
#include "onnx/place.h"

#define FOLDER "graph" // in a run folder, with the file and the files that belong to it
#define KEPT   "model.onnx"
enum { DIMS = 64, OUTPUTS = 64 };

// A probe holds the shapes of the outputs for batches of one row and of two. Each dimension is a linear function of the
// batch, so that two of them give all.
typedef struct probe {
    struct probe *next;
    char dims[256];
    int64_t length;
    int n, rank[OUTPUTS];
    int64_t dim[2][OUTPUTS][MEZZO_MAX_RANK];
} probe;

struct mz_graph_file {
    mz_graph_file *next;
    char *path;
    struct stat was;
    uint32_t crc;
    mezzo_onnx *onnx;
    probe *probes;
};

// Files stay open until the process ends, because models are copied and none closes its file.
static mz_graph_file *files;
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER, build_lock = PTHREAD_MUTEX_INITIALIZER;

// --- files ---------------------------------------------------------------------------------------------------------
static bool is_same(const mz_graph_file *file, const char *path, const struct stat *now) {
    const struct stat *was = &file->was;
    return strcmp(file->path, path) == 0 && was->st_dev == now->st_dev && was->st_ino == now->st_ino &&
           was->st_size == now->st_size && was->st_mtim.tv_sec == now->st_mtim.tv_sec &&
           was->st_mtim.tv_nsec == now->st_mtim.tv_nsec;
}

static mezzo_status read_file(const char *path, const struct stat *now, mz_graph_file **out) {
    mezzo_status status = MEZZO_OK;
    mz_graph_file *file;
    MEZZO_TRY(MZ_NEW(file, 1));
    file->was = *now;
    file->path = mz_format("%s", path);
    if (file->path == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mezzo_onnx_open(path, &file->onnx));
    MEZZO_TRY_GOTO(status, mz_file_crc32c(path, &file->crc, NULL));
    if (mezzo_onnx_outputs(file->onnx) > OUTPUTS)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_FORMAT, "'%s' has more than %d outputs", path, OUTPUTS));
    file->next = files;
    files = *out = file;
    return MEZZO_OK;
fail:
    mezzo_onnx_free(file->onnx);
    MZ_FREE(file->path, file);
    return status;
}

static mezzo_status open_file(const char *path, mz_graph_file **out) {
    struct stat now;
    if (stat(path, &now) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "'%s': there is no such file: name an ONNX file (--model FILE.onnx)", path);
    pthread_mutex_lock(&files_lock);
    mz_graph_file *file = files;
    while (file != NULL && !is_same(file, path, &now))
        file = file->next;
    *out = file;
    const mezzo_status status = file != NULL ? MEZZO_OK : read_file(path, &now, out);
    pthread_mutex_unlock(&files_lock);
    return status;
}

// --- dimensions ----------------------------------------------------------------------------------------------------
typedef struct dims {
    int n;
    mezzo_onnx_dim dim[DIMS];
    char name[DIMS][80];
} dims;

static mezzo_status add_dim(dims *d, const char *name, size_t n, int64_t size) {
    if (d->n == DIMS || n >= sizeof d->name[0])
        return mz_fail(MEZZO_ERR_INVALID, "model.dims: more than %d sizes, or a name of more than %zu characters", DIMS,
                       sizeof d->name[0] - 1);
    snprintf(d->name[d->n], sizeof d->name[0], "%.*s", (int)n, name);
    d->dim[d->n] = (mezzo_onnx_dim){d->name[d->n], size};
    d->n++;
    return MEZZO_OK;
}

// Returns whether dimension 0 of an input counts the rows of a batch: it has no size in the file or, where all inputs
// have sizes, the size that the first input has there.
static bool is_batched(const mz_graph_file *file, const mezzo_onnx_port *port) {
    mezzo_onnx_port first = {0}, other;
    bool any = false;
    for (int i = 0; mezzo_onnx_input(file->onnx, i, &other) == MEZZO_OK; i++) {
        any = any || (other.rank > 0 && other.dim[0] == 0);
        first = i == 0 ? other : first;
        if (i + 1 == mezzo_onnx_inputs(file->onnx))
            break;
    }
    return port->rank > 0 && (any ? port->dim[0] == 0 : port->dim[0] == first.dim[0]);
}

// Returns whether an input may hold tokens, or a number for each token.
static bool is_sequence(const mezzo_onnx_port *port) {
    return port->dtype == MEZZO_I32 && port->rank == 2;
}

static mezzo_status list_dims(const mz_model *model, int64_t batch, dims *out) {
    const mz_graph_file *file = model->file;
    char place[80];
    out->n = 0;
    for (int i = 0; i < mezzo_onnx_inputs(file->onnx); i++) {
        mezzo_onnx_port port;
        MEZZO_TRY(mezzo_onnx_input(file->onnx, i, &port));
        const int n = snprintf(place, sizeof place, "%s.0", port.name);
        if (is_batched(file, &port))
            MEZZO_TRY(add_dim(out, place, (size_t)n, batch));
        if (is_sequence(&port) && model->config.seq_len > 0) {
            place[n - 1] = '1';
            MEZZO_TRY(add_dim(out, place, (size_t)n, model->config.seq_len));
        }
    }
    for (const char *at = model->config.dims; *at != '\0';) {
        char *end;
        const size_t n = strcspn(at, "=,");
        const long long size = at[n] == '=' ? strtoll(at + n + 1, &end, 10) : 0;
        if (n == 0 || size < 1 || (*end != '\0' && *end != ','))
            return mz_fail(MEZZO_ERR_INVALID, "model.dims is \"%s\": write name=size,name=size with sizes of 1 or more",
                           model->config.dims);
        MEZZO_TRY(add_dim(out, at, n, size));
        at = end + (*end == ',');
    }
    return MEZZO_OK;
}

static bool is_named(const mezzo_onnx_port *port, int axis, const char *name) {
    char place[80];
    snprintf(place, sizeof place, "%s.%d", port->name, axis);
    return strcmp(name, place) == 0 || (port->symbol[axis] && strcmp(name, port->symbol[axis]) == 0);
}

// Returns the last of the given sizes, which mezzo_onnx_build uses, too; 0: there is none.
static int64_t size_of(const mezzo_onnx_port *port, int axis, const dims *d) {
    int64_t size = port->dim[axis];
    for (int i = 0; i < d->n; i++)
        if (is_named(port, axis, d->name[i]))
            size = d->dim[i].size;
    return size;
}

// Checks that each given size belongs to a dimension of an input.
static mezzo_status check_names(const mz_graph_file *file, const dims *d) {
    for (int k = 0; k < d->n; k++) {
        bool found = false;
        mezzo_onnx_port port;
        for (int i = 0; i < mezzo_onnx_inputs(file->onnx) && !found; i++) {
            MEZZO_TRY(mezzo_onnx_input(file->onnx, i, &port));
            for (int axis = 0; axis < port.rank && axis < MEZZO_MAX_RANK && !found; axis++)
                found = is_named(&port, axis, d->name[k]);
        }
        if (!found)
            return mz_fail(MEZZO_ERR_INVALID,
                           "'%s': no input has a dimension '%s', which model.dims (--dim) gives a size", file->path,
                           d->name[k]);
    }
    return MEZZO_OK;
}

static mezzo_status check_dims(const mz_model *model) {
    dims d;
    MEZZO_TRY(list_dims(model, 1, &d));
    MEZZO_TRY(check_names(model->file, &d));
    for (int i = 0; i < mezzo_onnx_inputs(model->file->onnx); i++) {
        mezzo_onnx_port port;
        MEZZO_TRY(mezzo_onnx_input(model->file->onnx, i, &port));
        if (port.rank < 1 || port.rank > MZ_INPUT_RANK || !is_batched(model->file, &port))
            return mz_fail(MEZZO_ERR_FORMAT,
                           "'%s': input '%s' has no dimension for the rows of a batch: export the model with one that "
                           "has a name",
                           model->file->path, port.name);
        for (int axis = 0; axis < port.rank; axis++)
            if (size_of(&port, axis, &d) < 1)
                return mz_fail(MEZZO_ERR_INVALID,
                               "'%s': dimension %d of input '%s' has no size: give one (--dim %s%s=N)",
                               model->file->path, axis, port.name, port.symbol[axis] ? port.symbol[axis] : port.name,
                               port.symbol[axis] ? "" : (char[]){'.', (char)('0' + axis), '\0'});
    }
    return MEZZO_OK;
}

mezzo_status mz_graph_file_bind(mezzo_model_config *config, const char *name, int rank, const int64_t *dim) {
    mz_model model = {.config = *config};
    mz_graph_file *file;
    mezzo_onnx_port port = {0};
    dims d;
    MEZZO_TRY(open_file(config->graph, &file));
    model.file = file;
    MEZZO_TRY(list_dims(&model, 1, &d));
    const int n = mezzo_onnx_inputs(file->onnx);
    int i = 0;
    for (; i < n && mezzo_onnx_input(file->onnx, i, &port) == MEZZO_OK; i++)
        if (name != NULL ? strcmp(port.name, name) == 0 : n == 1)
            break;
    const int64_t planes[] = {rank == 3 ? dim[2] : 0, dim[0], rank > 1 ? dim[1] : 0};
    if (rank == 3 && port.rank == 4 && size_of(&port, 1, &d) == dim[2] && dim[2] != dim[0]) // the input is images
        dim = planes;
    for (int axis = 1; i < n && axis < port.rank && axis <= rank; axis++) {
        const size_t used = strlen(config->dims);
        if (size_of(&port, axis, &d) > 0 || port.rank != rank + 1)
            continue;
        const char *symbol = port.symbol[axis];
        const int more = symbol ? snprintf(config->dims + used, sizeof config->dims - used, "%s%s=%lld",
                                           used > 0 ? "," : "", symbol, (long long)dim[axis - 1])
                                : snprintf(config->dims + used, sizeof config->dims - used, "%s%s.%d=%lld",
                                           used > 0 ? "," : "", port.name, axis, (long long)dim[axis - 1]);
        if (more < 0 || (size_t)more >= sizeof config->dims - used)
            return mz_fail(MEZZO_ERR_INVALID, "'%s' has too many dimensions without sizes", config->graph);
        model.config = *config;
        MEZZO_TRY(list_dims(&model, 1, &d));
    }
    return MEZZO_OK;
}

bool mz_graph_file_wants_numbers(const mezzo_model_config *config) {
    mz_graph_loss loss;
    return config->loss[0] != '\0' && mz_graph_loss_read(config->loss, &loss) == MEZZO_OK &&
           mz_graph_term_has_numbers(&loss.term[0]);
}

// --- shapes --------------------------------------------------------------------------------------------------------
static mezzo_status build_file(const mz_model *model, int64_t batch, mezzo_graph *g, mezzo_value *values) {
    dims d;
    MEZZO_TRY(list_dims(model, batch, &d));
    return mezzo_onnx_build(model->file->onnx, g, d.n, d.dim, values);
}

static mezzo_status try_batch(const mz_model *model, int which, probe *p) {
    mezzo_graph *g;
    mezzo_value values[OUTPUTS];
    MEZZO_TRY(mezzo_graph_create(&g));
    mezzo_status status = build_file(model, which + 1, g, values);
    for (int i = 0; i < p->n && status == MEZZO_OK; i++) {
        p->rank[i] = mezzo_value_rank(g, values[i]);
        for (int axis = 0; axis < p->rank[i]; axis++)
            p->dim[which][i][axis] = mezzo_value_dim(g, values[i], axis);
    }
    mezzo_graph_free(g);
    mezzo_onnx_port first = {0};
    const bool any = mezzo_onnx_input(model->file->onnx, 0, &first) == MEZZO_OK && first.dim[0] == 0;
    char sizes[sizeof model->config.dims + 32] = "";
    if (model->config.seq_len > 0)
        snprintf(sizes, sizeof sizes, ", length %lld", (long long)model->config.seq_len);
    if (model->config.dims[0] != '\0')
        snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %s", model->config.dims);
    return mz_context(status, "for a batch of %d%s%s", which + 1, sizes,
                      any ? "" : " (a model for any batch is exported with a batch dimension that has a name)");
}

static mezzo_status make_probe(const mz_model *model, probe **out) {
    mz_graph_file *file = (mz_graph_file *)model->file; // a probe is a cache, so the file stays the same
    probe *p;
    MEZZO_TRY(MZ_NEW(p, 1));
    snprintf(p->dims, sizeof p->dims, "%s", model->config.dims);
    p->length = model->config.seq_len;
    p->n = mezzo_onnx_outputs(file->onnx);
    mezzo_status status = try_batch(model, 0, p);
    if (status == MEZZO_OK)
        status = try_batch(model, 1, p);
    if (status != MEZZO_OK) {
        mz_free(p);
        return status;
    }
    p->next = file->probes;
    file->probes = *out = p;
    return MEZZO_OK;
}

static mezzo_status find_probe(const mz_model *model, const probe **out) {
    pthread_mutex_lock(&build_lock);
    probe *p = model->file->probes;
    while (p != NULL && (strcmp(p->dims, model->config.dims) != 0 || p->length != model->config.seq_len))
        p = p->next;
    const mezzo_status status = p != NULL ? MEZZO_OK : make_probe(model, &p);
    pthread_mutex_unlock(&build_lock);
    *out = p;
    return status;
}

// Returns the shape of output `index` for a batch.
static mz_graph_shape shape_of(const probe *p, int index, int64_t batch) {
    mz_graph_shape shape = {.rank = p->rank[index]};
    for (int axis = 0; axis < shape.rank; axis++) {
        const int64_t one = p->dim[0][index][axis];
        shape.dim[axis] = one + (batch - 1) * (p->dim[1][index][axis] - one);
    }
    return shape;
}

// --- losses --------------------------------------------------------------------------------------------------------
static int find_output(const mz_graph_file *file, const char *name) {
    mezzo_onnx_port port;
    for (int i = 0; i < mezzo_onnx_outputs(file->onnx); i++)
        if (mezzo_onnx_output(file->onnx, i, &port) == MEZZO_OK && strcmp(port.name, name) == 0)
            return i;
    return -1;
}

// Chooses a loss where none is asked for: an output of one number or, for texts, the cross-entropy of the first output.
static mezzo_status choose_loss(const mz_model *model, const probe *p, mz_graph_loss *out) {
    mezzo_onnx_port port;
    for (int i = 0; i < p->n; i++) {
        const mz_graph_shape shape = shape_of(p, i, 2);
        int64_t count = 1;
        for (int axis = 0; axis < shape.rank; axis++)
            count *= shape.dim[axis];
        MEZZO_TRY(mezzo_onnx_output(model->file->onnx, i, &port));
        if (count == 1)
            return mz_graph_loss_read(port.name, out);
    }
    if (model->config.texts)
        return mz_graph_loss_read("cross_entropy", out);
    return mz_fail(
        MEZZO_ERR_INVALID,
        "'%s' has no output of one number that could be its loss: choose one (--loss cross_entropy, mse, l1, "
        "huber, bce, bce_with_logits or nll)",
        model->file->path);
}

static mezzo_status find_loss(const mz_model *model, const probe *p, mz_graph_loss *out) {
    MEZZO_TRY(model->config.loss[0] != '\0' ? mz_graph_loss_read(model->config.loss, out) : choose_loss(model, p, out));
    for (int i = 0; i < out->n; i++) {
        mz_graph_term *term = &out->term[i];
        term->index = term->output[0] != '\0' ? find_output(model->file, term->output) : 0;
        if (term->index < 0)
            return mz_fail(MEZZO_ERR_INVALID, "'%s' has no output '%s', which its loss names (--loss)",
                           model->file->path, term->output);
        term->shape = shape_of(p, term->index, 2);
        MEZZO_TRY(mz_context(mz_graph_term_check(term), "'%s'", model->file->path));
    }
    return MEZZO_OK;
}

// Finds the probe and the loss of an open model, both of which are known already.
static void understand(const mz_model *model, const probe **p, mz_graph_loss *loss) {
    *loss = (mz_graph_loss){0};
    if (find_probe(model, p) != MEZZO_OK || find_loss(model, *p, loss) != MEZZO_OK)
        *loss = (mz_graph_loss){0};
}

// --- the maker -----------------------------------------------------------------------------------------------------
static mezzo_status check(const mezzo_model_config *config) {
    mz_graph_file *file;
    mz_graph_loss loss;
    if (config->graph[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "model.name is onnx: name the file (--model FILE.onnx)");
    MEZZO_TRY(open_file(config->graph, &file));
    return config->loss[0] != '\0' ? mz_graph_loss_read(config->loss, &loss) : MEZZO_OK;
}

static int64_t length_of(const mz_model *model) {
    mezzo_onnx_port port;
    dims d;
    for (int i = 0; model->config.texts && i < mezzo_onnx_inputs(model->file->onnx); i++)
        if (mezzo_onnx_input(model->file->onnx, i, &port) == MEZZO_OK && is_sequence(&port) &&
            list_dims(model, 1, &d) == MEZZO_OK)
            return size_of(&port, 1, &d);
    return 1;
}

static bool holds(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

// Returns the role of an input: the first one of integers [B, T] has the tokens of texts.
static mz_role role_of(const mz_model *model, const mezzo_onnx_port *port, bool is_first) {
    if (!model->config.texts || !is_sequence(port))
        return MZ_ROLE_FEATURES;
    return is_first                        ? MZ_ROLE_TOKENS
           : holds(port->name, "position") ? MZ_ROLE_PLACES
           : holds(port->name, "mask")     ? MZ_ROLE_ONES
                                           : MZ_ROLE_FEATURES;
}

static bool is_listed(const mz_input *inputs, int n, const char *name) {
    return MZ_FIND(inputs, n, name, name) != NULL;
}

// Adds the inputs that the loss needs; two terms that name one array share an input.
static int add_labels(const mz_graph_loss *loss, int64_t batch, int n, mz_input out[MZ_MODEL_INPUTS]) {
    for (int i = 0; i < loss->n; i++) {
        const mz_graph_term *term = &loss->term[i];
        mz_input labels = {.name = mz_graph_name(term->labels),
                           .role = MZ_ROLE_TARGETS,
                           .dtype = mz_graph_term_classes(term) > 0 ? MEZZO_I32 : MEZZO_F32,
                           .classes = mz_graph_term_classes(term)};
        const mz_input weights = {.name = mz_graph_name(term->weights),
                                  .role = MZ_ROLE_WEIGHT,
                                  .dtype = MEZZO_F32,
                                  .rank = 1,
                                  .dim = {batch}};
        labels.rank = mz_graph_term_labels(term, batch, labels.dim);
        if (labels.rank > 0 && n < MZ_MODEL_INPUTS && !is_listed(out, n, labels.name))
            out[n++] = labels;
        if (term->weights[0] != '\0' && n < MZ_MODEL_INPUTS && !is_listed(out, n, weights.name))
            out[n++] = weights;
    }
    return n;
}

static int inputs_of(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    const probe *p;
    mz_graph_loss loss;
    dims d;
    int n = 0;
    bool tokens = false;
    if (list_dims(model, form->batch, &d) != MEZZO_OK)
        return 0;
    understand(model, &p, &loss);
    for (int i = 0; i < mezzo_onnx_inputs(model->file->onnx) && n < MZ_MODEL_INPUTS; i++) {
        mezzo_onnx_port port;
        if (mezzo_onnx_input(model->file->onnx, i, &port) != MEZZO_OK)
            break;
        mz_input *in = &out[n++];
        *in = (mz_input){.name = port.name, .dtype = port.dtype, .rank = port.rank, .built = true};
        in->role = role_of(model, &port, !tokens);
        tokens = tokens || in->role == MZ_ROLE_TOKENS;
        in->classes = port.dtype == MEZZO_I32 ? mz_onnx_rows_named_by(model->file->onnx, port.name) : 0;
        for (int axis = 0; axis < port.rank; axis++)
            in->dim[axis] = size_of(&port, axis, &d);
    }
    return add_labels(&loss, form->batch, n, out);
}

static mezzo_status open_model(mz_model *model) {
    const probe *p;
    mz_graph_loss loss;
    mz_graph_file *file;
    mz_input inputs[MZ_MODEL_INPUTS];
    MEZZO_TRY(open_file(model->config.graph, &file));
    model->file = file;
    MEZZO_TRY(check_dims(model));
    MEZZO_TRY(find_probe(model, &p));
    MEZZO_TRY(find_loss(model, p, &loss));
    const int n = inputs_of(model, &(mz_form){.batch = 1, .length = 1}, inputs);
    int roles[2] = {0};
    for (int i = 0; i < n; i++) {
        roles[0] += inputs[i].role == MZ_ROLE_TOKENS;
        roles[1] += inputs[i].role == MZ_ROLE_FEATURES;
    }
    if (n == MZ_MODEL_INPUTS)
        return mz_fail(MEZZO_ERR_FORMAT, "'%s': more than %d inputs with labels and weights", file->path,
                       MZ_MODEL_INPUTS - 1);
    if (model->config.texts &&
        (roles[0] != 1 || roles[1] > 0 || loss.n != 1 || mz_graph_term_classes(&loss.term[0]) == 0))
        return mz_fail(
            MEZZO_ERR_INVALID,
            "'%s' cannot learn from texts: that takes an input of tokens [batch, length], besides it at most "
            "masks and positions, and cross_entropy of an output [batch, length, vocabulary]; others learn "
            "from .npz files",
            file->path);
    return MEZZO_OK;
}

static void sizes_of(const mz_model *model, mz_model_sizes *out) {
    const probe *p;
    mz_graph_loss loss;
    *out = (mz_model_sizes){.length = length_of(model)};
    understand(model, &p, &loss);
    for (int i = loss.n - 1; i >= 0; i--) { // the first term with classes or numbers counts
        const int64_t classes = mz_graph_term_classes(&loss.term[i]), values = mz_graph_term_values(&loss.term[i]);
        if (classes + values > 0) {
            out->classes = classes;
            out->values = values;
        }
    }
    out->vocab = model->config.texts ? out->classes : 0;
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const probe *p;
    mz_graph_loss loss;
    mezzo_value values[OUTPUTS];
    mz_input named[MZ_MODEL_INPUTS];
    if (form->part == MZ_PART_CACHED)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "'%s' keeps no keys and values", model->file->path);
    understand(model, &p, &loss);
    const int n = inputs_of(model, form, named);
    pthread_mutex_lock(&build_lock);
    const mezzo_status status = build_file(model, form->batch, g, values);
    pthread_mutex_unlock(&build_lock);
    MEZZO_TRY(status);
    return mz_graph_loss_build(&loss, form, n, named, inputs, values, g);
}

static void summarize(const mz_model *model, char *out, size_t size) {
    const probe *p;
    mz_graph_loss loss;
    understand(model, &p, &loss);
    snprintf(out, size, "%s",
             model->config.loss[0] != '\0'    ? model->config.loss
             : loss.term[0].output[0] != '\0' ? loss.term[0].output
                                              : "cross_entropy");
}

static mezzo_status describe(const mz_model *model, mz_fact_fn put, void *user) {
    const mezzo_model_config *c = &model->config;
    const mz_fact facts[] = {{"crc32c", NULL, MZ_KEY_INT, model->file->crc, true, {{0}}},
                             {"loss", c->loss, MZ_KEY_INT, 0, true, {{0}}},
                             {"dims", c->dims, MZ_KEY_INT, 0, false, {{0}}},
                             {"seq_len", NULL, MZ_KEY_INT, (double)c->seq_len, false, {{0}}},
                             {"ignore_index", NULL, MZ_KEY_INT, (double)c->ignore_index, true, {{0}}},
                             {"texts", NULL, MZ_KEY_BOOL, c->texts, true, {{0}}}};
    for (size_t i = 0; i < MZ_COUNT(facts); i++)
        MEZZO_TRY(put(user, &facts[i]));
    return MEZZO_OK;
}

static mezzo_status find_number(mz_fact_find find, void *user, const char *key, mz_key_type type, double *out) {
    mz_fact fact = {.key = key, .type = type};
    bool found;
    MEZZO_TRY(find(user, false, &fact, &found));
    *out = found ? fact.number : 0;
    return MEZZO_OK;
}

static mezzo_status find_text(mz_fact_find find, void *user, const char *key, char *out, size_t size) {
    mz_fact fact = {.key = key};
    bool found;
    MEZZO_TRY(find(user, true, &fact, &found));
    snprintf(out, size, "%s", found ? fact.text : "");
    return MEZZO_OK;
}

static mezzo_status read_description(mz_fact_find find, void *user, const char *folder, mz_model *out) {
    mezzo_model_config c;
    double crc, length, ignored, texts;
    if (folder == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "the model is an ONNX file, which is in its run folder: name that");
    MEZZO_TRY(mezzo_model_defaults(mz_path_of("%s/" FOLDER "/" KEPT, folder).text, &c));
    MEZZO_TRY(find_text(find, user, "loss", c.loss, sizeof c.loss));
    MEZZO_TRY(find_text(find, user, "dims", c.dims, sizeof c.dims));
    MEZZO_TRY(find_number(find, user, "crc32c", MZ_KEY_INT, &crc));
    MEZZO_TRY(find_number(find, user, "seq_len", MZ_KEY_INT, &length));
    MEZZO_TRY(find_number(find, user, "ignore_index", MZ_KEY_INT, &ignored));
    MEZZO_TRY(find_number(find, user, "texts", MZ_KEY_BOOL, &texts));
    c.seq_len = (int64_t)length;
    c.ignore_index = (int64_t)ignored;
    c.texts = texts != 0;
    MEZZO_TRY(mz_model_of(&c, out));
    return out->file->crc == crc
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_INVALID, "%s is not the file that the run was trained with", out->file->path);
}

// --- weights and files ---------------------------------------------------------------------------------------------
// Builds a graph for mezzo_onnx_load and mezzo_onnx_save, which use the graph that was built last.
static mezzo_status with_weights(const mz_model *model, const mz_form *form, mezzo_params *to, const mezzo_params *from,
                                 bool evaluation, const char *path) {
    mezzo_graph *g;
    mezzo_value values[OUTPUTS];
    MEZZO_TRY(mezzo_graph_create(&g));
    pthread_mutex_lock(&build_lock);
    mezzo_status status = build_file(model, form->batch, g, values);
    if (status == MEZZO_OK)
        status = to != NULL ? mezzo_onnx_load(model->file->onnx, to)
                            : mezzo_onnx_save(model->file->onnx, from, evaluation, path);
    pthread_mutex_unlock(&build_lock);
    mezzo_graph_free(g);
    return status;
}

static mezzo_status load(const mz_model *model, const mz_form *form, mezzo_params *params) {
    return with_weights(model, form, params, NULL, false, NULL);
}

static mezzo_status save(const mz_model *model, const mezzo_params *params, bool evaluation, const char *path) {
    return with_weights(model, &(mz_form){.batch = 1}, NULL, params, evaluation, path);
}

static mezzo_status copy(const char *from, const char *to) {
    mz_map map;
    uint32_t ours, theirs;
    if (mz_path_exists(to) && mz_file_crc32c(from, &ours, NULL) == MEZZO_OK &&
        mz_file_crc32c(to, &theirs, NULL) == MEZZO_OK && ours == theirs)
        return MEZZO_OK;
    MEZZO_TRY(mz_dir_create(mz_path_folder(to).text));
    MEZZO_TRY(mz_map_open(from, &map));
    return mz_map_end(&map, mz_file_write_atomic(to, map.data, map.size));
}

bool mz_graph_file_is_kept(const char *path, const char *folder, char *kept, size_t size) {
    const int n = snprintf(kept, size, "%s/" FOLDER "/" KEPT, folder);
    return n > 0 && (size_t)n < size && !mz_path_exists(path) && mz_path_exists(kept);
}

// Copies the file, and the files beside it that hold its weights.
static mezzo_status keep(const mz_model *model, const char *folder) {
    const char *path = model->file->path, *name;
    MEZZO_TRY(copy(path, mz_path_of("%s/" FOLDER "/" KEPT, folder).text));
    for (int i = 0; (name = mezzo_onnx_data(model->file->onnx, i)) != NULL; i++)
        MEZZO_TRY(copy(mz_path_beside(path, name).text, mz_path_of("%s/" FOLDER "/%s", folder, name).text));
    return MEZZO_OK;
}

const mz_maker mz_model_onnx = {.name = "onnx",
                                .purpose = MEZZO_TASK_CLASSIFIER,
                                .check = check,
                                .open = open_model,
                                .inputs = inputs_of,
                                .build = build,
                                .sizes = sizes_of,
                                .summary = summarize,
                                .describe = describe,
                                .read = read_description,
                                .load = load,
                                .keep = keep,
                                .save = save};
