// Runs the products of experts that several ranks own. The graph and its values stay those of one rank: a node's rows
// and results are this rank's own, in order of expert, and only its matrices are those of this rank's experts. The call
// sends each rank the rows of that rank's experts, multiplies the rows that it receives, and returns the results.
//
// Each rank's rows have a product of their own, as on a rank that has all experts. So a row's result has the same bits
// on any number of ranks, and slice r of a matrix gradient [ranks, experts here, …] belongs to rank r's micro batch:
// the sums over ranks add these slices (optim/ranks.c) without a transfer.
//
// The host reads how many rows each rank has for each expert, so a program with such calls is not captured.
#ifndef MZ_RUNTIME_EXCHANGE_H
#define MZ_RUNTIME_EXCHANGE_H

#include "runtime/calls.h"

// Makes the plan of a call whose node's `exchanges` is `ranks`: grouped_linear, one of its gradients, or the quantize
// of its matrices, which measures those of all ranks. counted: the plan of a product that runs earlier with the same
// offsets, whose numbers of rows this one uses, and which is freed later; NULL: it reads them. *out belongs to the
// caller. UNSUPPORTED: no kernel serves the product.
mezzo_status mz_exchange_prepare(mezzo_device *device, int ranks, const mz_call *call, const mz_prepared *counted,
                                 mz_prepared *out);

#endif
