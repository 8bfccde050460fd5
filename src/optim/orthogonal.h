// Groups whose kind is per matrix are updated here: their matrices are stacked by shape, and calls run between the two
// passes of the kind's formula.
#ifndef MZ_OPTIM_ORTHOGONAL_H
#define MZ_OPTIM_ORTHOGONAL_H

#include "backend/collective.h"
#include "optim/optimizer.h"

// Matrices of one shape, of one group. With ranks each makes a contiguous share of them orthogonal, whichever parts of
// their elements it updates.
typedef struct mz_stack {
    mz_group *group;
    int first, n;                 // of the tables of segments: this rank's parts of the parameters
    int64_t count, rows, columns; // matrices, as they are stored
    int64_t own_first, own;       // this rank's share of them
    int64_t elements;             // that the two passes update, of all ranks
    int64_t from;                 // where the directions begin, in elements of the scratch
    double scale;                 // of the update
    bool is_rest;                 // of a parameter whose segments the stack before it has, or an earlier one
    bool is_aligned;              // its directions begin at a multiple of 64 elements
    double gain;                  // on what becomes of the directions: its own scale beside that of the passes
    int64_t width;                // columns without padding
    double norm;                  // √min(rows, columns) without padding: that of orthogonal rows or columns
    int64_t rows_at;              // where the rows' moving averages begin, in elements of the scratch
    size_t first_gather, n_gathers, n_returns; // collectives: directions to all ranks, and what became of them
    mz_update_op momentum, normalize, gram, square, polynomial, advance, finish, scale_rows, apply;
    mz_update_attrs momentum_update, apply_update;
} mz_stack;

// Where a parameter's rows have their moving averages: one for each row of each matrix.
typedef struct mz_row_place {
    int owned;
    int64_t first, count; // rows of each of its matrices
    int64_t matrices, at; // at: of the first matrix, in elements of the scratch
    int64_t pitch;        // rows of a matrix as they are stored
} mz_row_place;

struct mz_stacks {
    mz_stack *list;
    size_t n, cap;
    mz_segment *directions, *updates; // [n_segments]: whose masters, and whose gradients, are in the scratch
    size_t n_segments, cap_directions, cap_updates;
    mz_collective *collectives; // broadcasts of elements of the scratch
    int64_t *places;            // [n_collectives]: the first element
    size_t n_collectives, cap_collectives, cap_places;
    int rank, size;     // of the ranks that share the work
    int64_t room;       // elements between the places that stacks take in turns; 0: all take one, or each its own
    int turn;           // of the next stack
    void *d_segments;   // both tables
    mz_row_place *rows; // [n_rows]
    size_t n_rows, cap_rows;
    int64_t row_elements, next_row; // of the scratch, at its beginning: kept from step to step
    int64_t elements;               // of them, and of the directions that lie in the scratch together
    size_t bytes;                   // of the scratch
    char *scratch;                  // device: directions in FP32, then what the products read and write
};

// Returns whether the pattern MEZZO_MATRICES names the parameter.
bool mz_is_block_matrix(const char *name, int rank);
// INVALID: a group per matrix has a parameter that is none.
mezzo_status mz_stacks_lay_out(mezzo_optimizer *optimizer);
// Prepares all calls, after the groups' own are filled, and adds memory where the parameters have some. *scratch grows
// to what they ask.
mezzo_status mz_stacks_prepare(mezzo_optimizer *optimizer, size_t *scratch);
void mz_stacks_free(mezzo_optimizer *optimizer);
size_t mz_stacks_bytes(const mezzo_optimizer *optimizer);                    // of the device
mz_tensor mz_stacks_rows(const mezzo_optimizer *optimizer);                  // all rows' moving averages; may be empty
mezzo_status mz_stacks_issue(mezzo_optimizer *optimizer, mz_sequence *into); // after step_control

#endif
