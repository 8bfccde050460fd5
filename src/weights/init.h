// Where train.init names published weights, they are imported into the run folder before the run.
#ifndef MZ_WEIGHTS_INIT_H
#define MZ_WEIGHTS_INIT_H

#include "mezzo/train.h"

// Where train.init names a folder of Hugging Face or a GGUF file, imports it to OUT/init and sets the key to that
// folder. The model's keys that are not set become those of the weights. Errors as mezzo_import; INVALID: OUT/init
// holds other weights.
mezzo_status mz_init_import(mezzo_config *config);

#endif
