// Imports published weights that train.init names into the run folder before the run.
#ifndef MZ_WEIGHTS_INIT_H
#define MZ_WEIGHTS_INIT_H

#include "mezzo/train.h"

// Imports a Hugging Face folder or a GGUF file that train.init names to OUT/init, and sets the key to that folder. Keys
// of the model that are not set become those of the weights. Errors as mezzo_import; INVALID: OUT/init holds other
// weights.
mezzo_status mz_init_import(mezzo_config *config);

#endif
