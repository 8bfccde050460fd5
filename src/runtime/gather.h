// Parameters in shards: what a program's calls bring together of them, and what all of them are on the host.
#ifndef MZ_RUNTIME_GATHER_H
#define MZ_RUNTIME_GATHER_H

#include "runtime/params.h"

// Lets a graph whose storage is decided gather what it reads of parameters in shards; nothing where they are whole.
// ahead: a device can gather while it computes.
mezzo_status mz_params_gather(const mezzo_params *params, bool ahead, mezzo_graph *graph);
// The call of a node that gathers a region: prepared without memory, then given the part that it sends; its output is
// bound already. While params->whole is there it copies from the host, and no other rank need take part.
mezzo_status mz_gather_prepare(mz_prepared *out);
void mz_gather_bind(mezzo_params *params, int region, mz_call *call, mz_prepared *prepared);

#endif
