// Packs several short pieces into a row of a batch. Pieces have one order, and each goes into the first row with space
// for it, among the rows of its block of pieces. The pieces of a row depend on nothing but their sizes, so that a row
// is identified by its number alone.
#ifndef MZ_TASK_PACK_H
#define MZ_TASK_PACK_H

#include "base/base.h"

enum { MZ_PACK_BLOCK = 1024 }; // pieces that are packed together; a power of two

// Returns the positions that a piece takes: 1 to the length of a row; 0: it is left out.
typedef int64_t mz_piece_size(const void *user, uint64_t piece);

typedef struct mz_packer mz_packer;
// Makes a packer. `pieces`: their number; UINT64_MAX: without end. `user` is borrowed.
mezzo_status mz_packer_create(mz_piece_size *size, const void *user, uint64_t pieces, int64_t length, mz_packer **out);
void mz_packer_free(mz_packer *packer); // NULL is allowed

// A piece of a row, and the column where it begins.
typedef struct mz_packed {
    uint64_t piece;
    int64_t column;
} mz_packed;
// Finds the pieces of a row from left to right, at most MZ_PACK_BLOCK; none after the last row. MEMORY; INVALID: there
// is no end, and 65,536 pieces in a row are all left out.
mezzo_status mz_packer_row(mz_packer *packer, uint64_t row, mz_packed *out, size_t *n);
// Counts the rows of the first `pieces`, in whole blocks, and the positions that these pieces take.
mezzo_status mz_packer_count(mz_packer *packer, uint64_t pieces, uint64_t *rows, uint64_t *positions);

// Marks documents that follow each other in rows of a stream, each with `end` as its last token: writes the position of
// each token in its document, from 0 at the beginning of a row. The target of a document's last token, which belongs to
// the next document, becomes -1.
void mz_mark_documents(int32_t end, int64_t rows, int64_t length, const int32_t *tokens, int32_t *targets,
                       int32_t *positions);

#endif
