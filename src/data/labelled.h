// Reads examples with a named class each, from a CSV table with a column of classes or from a folder of images for each
// class.
#ifndef MZ_DATA_LABELLED_H
#define MZ_DATA_LABELLED_H

#include "base/base.h"

// Holds names of classes by number. Zeroed, then freed.
typedef struct mz_classes {
    char **names;
    size_t n, cap;
} mz_classes;
void mz_classes_free(mz_classes *classes);
// Saves {"classes": ["cat", …]}; the reader's IO or FORMAT names file and key.
mezzo_status mz_classes_save(const mz_classes *classes, const char *path);
mezzo_status mz_classes_load(const char *path, mz_classes *out);

typedef struct mz_labelled {
    int64_t n, features;
    float *x;               // [n, features]; NULL: there are pixels instead
    uint8_t *pixels;        // [n, features]: [side, side, channels] each, where side is not 0
    int32_t *y;             // [n]; NULL: there are values instead
    float *values;          // [n]
    int64_t side, channels; // 0: no images, or images that are not square
} mz_labelled;

// Reads a table. `classes` brings the known ones in their order; an empty list gets those of the data, sorted as
// numbers where all are integers, else by bytes. INVALID: an unknown class.
//
// The column `label` ("" or NULL: "label") has the class, and every other column is a feature. FORMAT names file, line
// and column of a cell that is no finite number.
// `numbers`: that column has numbers to predict, and no classes.
mezzo_status mz_labelled_read_table(const char *path, const char *label, bool numbers, mz_classes *classes,
                                    mz_labelled *out);
// Returns whether a folder has token shards or records, and not a folder of images for each class.
bool mz_labelled_has_shards(const char *path);
// Reads PATH/CLASS/*.png: gray where all are gray, else RGB; all must have one size. Names that begin with a dot, and
// other files, are skipped. FORMAT names the file.
mezzo_status mz_labelled_read_images(const char *path, mz_classes *classes, mz_labelled *out);

#endif
