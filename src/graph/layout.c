// Computes where logical elements lie in padded storage.
#include <stdlib.h>

#include "graph/op.h"

int64_t mz_stored_dim(const mz_shape *shape, const mz_storage *storage, int d) {
    if (!storage->padded || storage->pitch[d] == 0)
        return shape->dim[d];
    return shape->dim[d] / storage->inner[d] * storage->pitch[d];
}

mz_shape mz_stored_shape(const mz_shape *shape, const mz_storage *storage) {
    mz_shape stored = *shape;
    for (int d = 0; d < shape->rank; d++)
        stored.dim[d] = mz_stored_dim(shape, storage, d);
    return stored;
}

int64_t mz_stored_count(const mz_shape *shape, const mz_storage *storage) {
    int64_t n = 1;
    for (int d = 0; d < shape->rank; d++)
        n *= mz_stored_dim(shape, storage, d);
    return n;
}

int64_t mz_stored_index(const mz_shape *shape, const mz_storage *storage, int64_t i) {
    int64_t at = 0, step = 1;
    if (!storage->padded)
        return i;
    for (int d = shape->rank - 1; d >= 0; d--) {
        int64_t k = i % shape->dim[d];
        i /= shape->dim[d];
        if (storage->pitch[d] != 0)
            k = k / storage->inner[d] * storage->pitch[d] + k % storage->inner[d];
        at += k * step;
        step *= mz_stored_dim(shape, storage, d);
    }
    return at;
}

bool mz_storage_equal(const mz_storage *a, const mz_storage *b) {
    if (!a->padded || !b->padded)
        return a->padded == b->padded;
    for (int d = 0; d < MEZZO_MAX_RANK; d++)
        if (a->pitch[d] != b->pitch[d] || (a->pitch[d] != 0 && a->inner[d] != b->inner[d]))
            return false;
    return true;
}

// A storage is a list of factors from the innermost out. Each factor has `logical` elements in the space of `stored`:
// one dimension with padding, and all dimensions without it below. The function returns their number.
typedef struct factor {
    int64_t logical, stored;
} factor;
static int factors_of(const mz_shape *shape, const mz_storage *storage, factor out[MEZZO_MAX_RANK]) {
    int64_t plain = 1; // product of the unpadded dimensions since the last padded one
    int n = 0;
    for (int d = shape->rank - 1; storage->padded && d >= 0; d--) {
        if (storage->pitch[d] == 0) {
            plain *= shape->dim[d];
            continue;
        }
        out[n++] = (factor){plain * storage->inner[d], plain * storage->pitch[d]};
        plain = shape->dim[d] / storage->inner[d];
    }
    if (n > 0 && plain == 1) // the padding of the outermost factor lies after all data
        n--;
    return n;
}

bool mz_storage_same_places(const mz_shape *a, const mz_storage *sa, const mz_shape *b, const mz_storage *sb) {
    factor fa[MEZZO_MAX_RANK], fb[MEZZO_MAX_RANK];
    int na = factors_of(a, sa, fa), nb = factors_of(b, sb, fb);
    if (na != nb || mz_stored_count(a, sa) != mz_stored_count(b, sb))
        return false;
    for (int i = 0; i < na; i++)
        if (fa[i].logical != fb[i].logical || fa[i].stored != fb[i].stored)
            return false;
    return true;
}

bool mz_layout_of(const mz_shape *shape, const mz_storage *storage, mz_layout *out) {
    factor f[MEZZO_MAX_RANK];
    int n = factors_of(shape, storage, f);
    *out = (mz_layout){0};
    if (n == 0)
        return true;
    *out = (mz_layout){f[0].logical, f[0].stored, 1, 1};
    if (n > 1) {
        out->group = f[1].logical;
        out->group_pitch = f[1].stored;
    }
    return n <= 2;
}

bool mz_storage_is_rows(const mz_shape *shape, const mz_storage *storage) {
    for (int d = 0; d < shape->rank && storage->padded; d++)
        if (storage->pitch[d] != 0 && (d + 1 < shape->rank || storage->inner[d] != shape->dim[d]))
            return false;
    return true;
}

// --- policies ------------------------------------------------------------------------------------------------------
static const char *const axis_names[MZ_AXIS_COUNT] = {
    [MZ_AXIS_VOCABULARY] = "vocabulary", [MZ_AXIS_HEAD] = "head",         [MZ_AXIS_WIDTH] = "width",
    [MZ_AXIS_EXPERT] = "expert",         [MZ_AXIS_FEATURES] = "features",
};

int64_t mz_policy_extent(const mz_storage_policy *policy, mz_axis axis, int64_t extent) {
    int64_t multiple = policy->multiple[axis];
    for (int64_t m = 2 * multiple; multiple > 0 && m <= policy->up_to[axis]; m *= 2)
        if (((extent + m - 1) / m * m - extent) * 32 <= extent)
            multiple = m;
    return (multiple > 0 ? (extent + multiple - 1) / multiple * multiple : extent) + policy->more[axis];
}

bool mz_policy_pads(const mz_storage_policy *policy) {
    if (policy->eight > 0)
        return true;
    for (int a = 0; a < MZ_AXIS_COUNT; a++)
        if (policy->multiple[a] > 1 || policy->more[a] > 0)
            return true;
    return false;
}

// Reads "8", "8+3" or "+3" for the axes [first, last].
static bool parse_extent(const char *text, int first, int last, mz_storage_policy *out, const char **end) {
    char *at = (char *)(uintptr_t)text;
    long multiple = *text == '+' ? 0 : strtol(text, &at, 10), more = 0;
    if (*at == '+')
        more = strtol(at + 1, &at, 10);
    if (at == text || multiple < 0 || more < 0 || multiple > 4096 || more > 4096)
        return false;
    for (int a = first; a <= last; a++) {
        out->multiple[a] = (int32_t)multiple;
        out->up_to[a] = 0;
        out->more[a] = (int32_t)more;
    }
    *end = at;
    return true;
}

bool mz_policy_parse(const char *text, mz_storage_policy *out) {
    *out = (mz_storage_policy){0};
    while (*text != '\0') {
        int first = 0, last = MZ_AXIS_COUNT - 1;
        size_t length = strcspn(text, "=,");
        if (text[length] == '=') {
            for (first = 0; first < MZ_AXIS_COUNT; first++)
                if (strlen(axis_names[first]) == length && strncmp(axis_names[first], text, length) == 0)
                    break;
            last = first;
            text += length + 1;
        } else if (sscanf(text, "eight%d", &out->eight) == 1 && out->eight > 0) {
            text += length + (text[length] == ',');
            continue;
        } else if (strncmp(text, "physical", length) == 0 && length == 8) {
            out->physical = true;
            text += length + (text[length] == ',');
            continue;
        }
        if (first == MZ_AXIS_COUNT || !parse_extent(text, first, last, out, &text) || (*text != '\0' && *text != ','))
            return false;
        text += *text == ',';
    }
    return true;
}
