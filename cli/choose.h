// These functions choose a precision by timing, for advise --measure and train --precision auto.
#ifndef CLI_CHOOSE_H
#define CLI_CHOOSE_H

#include "cli.h"
#include "study/measure/choose.h"

// precisions NULL: fp32 and those that the device has arithmetic for. memory 0: all free memory. Unless `quiet`,
// progress goes to stderr.
mezzo_status cli_choose(const mezzo_auto_request *r, size_t memory, const mezzo_precision *precisions, int n_precisions,
                        bool quiet, mz_choice *out);
json_t *cli_choice_json(const mz_choice *c);
mezzo_status cli_choice_save(const mz_choice *c, const char *folder); // FOLDER/precision.json

mezzo_status cli_advise_shape(mezzo_config *config); // sets the keys of the shape's options
int cli_advise_data(void);                           // advise --data
int cli_advise_per_op(void);                         // advise --data --per-op

#endif
