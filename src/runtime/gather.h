// Declares how programs gather parameters whose shards other ranks own, or copy them from the host.
#ifndef MZ_RUNTIME_GATHER_H
#define MZ_RUNTIME_GATHER_H

#include "runtime/params.h"

// Adds gathers of the sharded parameters that a graph reads, after its storage is decided. Whole parameters need none.
// ahead: the device can gather while it computes. trains: the program reads exchanged experts as this rank's shards.
mezzo_status mz_params_gather(const mezzo_params *params, bool ahead, bool trains, mezzo_graph *graph);
// mz_gather_prepare makes the plan of a node that gathers a region; mz_gather_bind gives its call the shard to send.
// While params->whole is set, the call copies from the host and no other rank takes part.
mezzo_status mz_gather_prepare(mz_prepared *out);
void mz_gather_bind(mezzo_params *params, int region, mz_call *call, mz_prepared *prepared);

#endif
