// Describes where a logical element lies when axes are stored with padding, and what decides that. Storage is not
// shape.
#ifndef MZ_STORAGE_H
#define MZ_STORAGE_H

#include "base/base.h"
#include "mezzo/graph.h"

typedef struct mz_shape mz_shape;

// How the dimensions of a shape are stored. Dimension d is dim[d] / inner[d] runs of inner[d] elements, each run with
// room for pitch[d]; pitch 0: without padding. So 3·H·D with heads of D = 75 stored as 80 has inner 75 and pitch 80.
// Padding holds zeros, and every kernel that writes a padded tensor leaves them there.
typedef struct mz_storage {
    bool padded; // some dimension has padding
    int32_t inner[MEZZO_MAX_RANK], pitch[MEZZO_MAX_RANK];
} mz_storage;

int64_t mz_stored_dim(const mz_shape *shape, const mz_storage *storage, int d);
mz_shape mz_stored_shape(const mz_shape *shape, const mz_storage *storage);
int64_t mz_stored_count(const mz_shape *shape, const mz_storage *storage);
int64_t mz_stored_index(const mz_shape *shape, const mz_storage *storage, int64_t i); // the place of logical element i,
                                                                                      // row-major
bool mz_storage_equal(const mz_storage *a, const mz_storage *b);
// Returns whether both have the same logical elements in the same places, whatever the dimensions, so that one can be a
// view of the other.
bool mz_storage_same_places(const mz_shape *a, const mz_storage *sa, const mz_shape *b, const mz_storage *sb);

// A storage as at most two levels, for kernels that walk a parameter's elements whatever its shape: logical element i
// is column i % width of row i / width; rows come in groups of `group`, stored with room for group_pitch rows of
// `pitch` elements. width 0: without padding.
typedef struct mz_layout {
    int64_t width, pitch, group, group_pitch;
} mz_layout;
bool mz_layout_of(const mz_shape *shape, const mz_storage *storage, mz_layout *out); // returns false where more levels
                                                                                     // are needed
static inline int64_t mz_layout_index(const mz_layout *l, int64_t i) {
    if (l->width == 0)
        return i;
    int64_t row = i / l->width, column = i % l->width;
    return (row / l->group * l->group_pitch + row % l->group) * l->pitch + column;
}
// Returns how many elements from logical element i on lie next to each other; at most `most`.
static inline int64_t mz_layout_run(const mz_layout *l, int64_t i, int64_t most) {
    int64_t left = l->width == 0 ? most : l->width - i % l->width;
    return left < most ? left : most;
}

// Returns whether only the last dimension is padded, after one run: rows, each `pitch` elements after the one before.
bool mz_storage_is_rows(const mz_shape *shape, const mz_storage *storage);

// Says which padded tensors an op's kernels read and write in their own storage.
typedef enum mz_padded {
    MZ_PADDED_NONE,
    MZ_PADDED_ROWS, // where all tensors are rows, and those that share an axis have one pitch
    MZ_PADDED_AXES, // where tensors that share an axis are stored alike
    MZ_PADDED_ANY,  // in any storage
} mz_padded;

// The kinds of an axis, strongest first: an axis that several ops share is of the first kind that any of them names.
typedef enum mz_axis {
    MZ_AXIS_VOCABULARY, // the classes of a cross-entropy
    MZ_AXIS_HEAD,       // the size of a head
    MZ_AXIS_WIDTH,      // the dimension that norms normalise and embeddings write
    MZ_AXIS_EXPERT,     // an expert's inner width
    MZ_AXIS_FEATURES,   // other sides of products, such as d_ff
    MZ_AXIS_COUNT
} mz_axis;

// How a device stores axes: a pure function of an axis' kind and logical extent. All zero: without padding.
typedef struct mz_storage_policy {
    int32_t multiple[MZ_AXIS_COUNT]; // extents are rounded up to it; 0: they stay
    int32_t up_to[MZ_AXIS_COUNT];    // `multiple` times a power of two, up to this: the greatest that adds at most 1/32
                                     // replaces it
    int32_t more[MZ_AXIS_COUNT];     // elements added after rounding (tests)
    int32_t eight;                   // rows that 8-bit products read are multiples of it; 0: they have no padding
    bool physical;                   // for tests: kernels that know padding replace some that do not
} mz_storage_policy;
int64_t mz_policy_extent(const mz_storage_policy *policy, mz_axis axis, int64_t extent);
bool mz_policy_pads(const mz_storage_policy *policy); // whether it pads any axis
// Reads "8" for every axis, or "vocabulary=64,head=8+3,eight16": multiples and what is added. Returns false for other
// text.
bool mz_policy_parse(const char *text, mz_storage_policy *out);

#endif
