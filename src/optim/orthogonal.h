// Updates groups whose kind is per matrix: their matrices are stacked by shape, and calls run between the two passes of
// the kind's formula.
#ifndef MZ_OPTIM_ORTHOGONAL_H
#define MZ_OPTIM_ORTHOGONAL_H

#include "backend/collective.h"
#include "optim/optimizer.h"

// Holds matrices of one shape, of one group. With ranks each rank makes a contiguous share of them orthogonal,
// whichever of their elements it updates.
typedef struct mz_stack {
    mz_group *group;
    int first, n;                 // segments of this rank's shards of the parameters, in the tables of segments
    int64_t count, rows, columns; // the matrices as they are stored
    int64_t own_first, own;       // this rank's share of the matrices
    int64_t elements;             // elements that the two passes update, on all ranks
    int64_t from;                 // first element of the directions in the scratch
    double scale;                 // of the update
    bool is_rest;                 // its segments belong to an earlier stack, which has the beginning of the same
                                  // parameter
    bool is_aligned;              // its directions begin at a multiple of 64 elements
    double gain;                  // factor of its results: its own scale divided by that of the passes
    int64_t width;                // columns without padding
    double norm;                  // √min(rows, columns) without padding: the norm of a matrix with orthogonal rows or
                                  // columns
    int64_t rows_at;              // where the rows' moving averages begin, in elements of the scratch
    int at_once;                  // steps of the iteration that are taken at once: 1 or 2
    int64_t chosen_for;           // its products have the bits of those in a batch of this many matrices, on any number
                                  // of ranks
    size_t first_held, n_held;    // pieces of the ranks' directions; those of a parameter belong to its first stack
    // Collectives that bring directions to the ranks that own the matrices, then those that spread the rows' moving
    // averages, and then those that return the results.
    size_t first_gather, n_gathers, n_rows, n_returns;
    mz_update_op momentum, normalize, gram, polynomial, product, advance, finish, scale_rows, apply;
    mz_update_attrs momentum_update, apply_update;
} mz_stack;

// Says where a parameter's rows have their moving averages: one number for each row of each matrix.
typedef struct mz_row_place {
    int owned;
    int64_t first, count; // the rows of each of its matrices
    int64_t matrices, at; // at: the first matrix's place, in elements of the scratch
    int64_t pitch;        // rows of a matrix as it is stored
} mz_row_place;

// Says which rank updates some elements of a stack; place: of the first one, in elements of the scratch.
typedef struct mz_held {
    int rank;
    int64_t place, count;
} mz_held;

// Says where a collective's elements begin, in bytes of the scratch.
typedef struct mz_move {
    int64_t send, receive;
} mz_move;

struct mz_stacks {
    mz_stack *list;
    size_t n, cap;
    mz_segment *directions, *updates; // [n_segments]: with masters, and with gradients, in the scratch
    size_t n_segments, cap_directions, cap_updates;
    mz_held *held;
    size_t n_held, cap_held;
    mz_collective *collectives; // of elements of the scratch
    mz_move *moves;             // [n_collectives]
    size_t n_collectives, cap_collectives, cap_moves;
    int rank, size;     // among the ranks that share the work
    int64_t room;       // elements between the places that stacks take in turn; 0: all share one place, or each has its
                        // own
    int turn;           // the place of the next stack
    void *d_segments;   // on the device: both tables
    mz_row_place *rows; // [n_rows]
    size_t n_rows, cap_rows;
    int64_t row_elements, next_row; // elements at the beginning of the scratch, which steps keep
    int64_t elements;               // elements of these and of the directions that lie in the scratch together
    size_t bytes;                   // bytes of the scratch
    char *scratch;                  // on the device: directions in FP32, then what the products read and write
};

// Returns whether the parameter is a matrix of a block, as the pattern MEZZO_MATRICES selects.
bool mz_is_block_matrix(const char *name, int rank);
// Lays out the stacks. INVALID: a group per matrix has a parameter that is no matrix.
mezzo_status mz_stacks_lay_out(mezzo_optimizer *optimizer);
// Prepares all calls, after the groups' own are filled, and allocates memory where the parameters have some. *scratch
// grows to what the calls need.
mezzo_status mz_stacks_prepare(mezzo_optimizer *optimizer, size_t *scratch);
void mz_stacks_free(mezzo_optimizer *optimizer);
size_t mz_stacks_bytes(const mezzo_optimizer *optimizer);   // bytes on the device
mz_tensor mz_stacks_rows(const mezzo_optimizer *optimizer); // the moving averages of all rows; may be
                                                            // empty
// Follow step_control: with ranks, the first begins the exchange of directions, so that other calls may run during it;
// the second issues the rest. *begun: stacks whose momentum pass has been issued.
mezzo_status mz_stacks_begin(mezzo_optimizer *optimizer, mz_sequence *into, size_t *begun);
mezzo_status mz_stacks_issue(mezzo_optimizer *optimizer, mz_sequence *into, size_t begun);

// --- orthogonal.c for orthogonal_issue.c -----------------------------------------------------------------------------
// With ranks the directions of this many stacks have separate memory: one is exchanged and one returned while one is
// multiplied.
enum { MZ_STACK_PLACES = 3 };
// Returns in out the coefficients c₀, c₁, c₂ of a step, from 0, of the iteration.
void mz_orthogonal_coefficients(const mezzo_orthogonal *orthogonal, int step, float out[3]);
// Returns whether the group's kind keeps a moving average for each row: it is per matrix and reads beta2.
bool mz_group_keeps_rows(const mz_group *group);
// Returns the first stack after `at` that does not have the rest of the same parameters.
size_t mz_stacks_end_of_parameters(const struct mz_stacks *stacks, size_t at);
// Holds offsets in the scratch, in bytes: of X and the place that takes turns with it, and of two places for matrices
// of the small side. The last product, which reads the first of these, may write over the second.
typedef struct mz_places {
    size_t x, next, small[2], end;
} mz_places;
mz_places mz_stack_places(const mezzo_optimizer *optimizer, const mz_stack *stack);

#endif
