// Declares functions that choose a precision by timing, for advise --measure and train --precision auto.
#ifndef CLI_CHOOSE_H
#define CLI_CHOOSE_H

#include "cli.h"
#include "study/measure/choose.h"

// Chooses. precisions NULL: fp32 and those for which the device has arithmetic. memory 0: all free memory. Unless
// `quiet`, progress goes to stderr.
mezzo_status cli_choose(const mezzo_auto_request *r, size_t memory, const mezzo_precision *precisions, int n_precisions,
                        bool quiet, mz_choice *out);
json_t *cli_choice_json(const mz_choice *c);
void cli_choice_table(const mz_choice *c, const char *unit);          // prints the candidates; unit: of the speeds
mezzo_status cli_choice_save(const mz_choice *c, const char *folder); // writes FOLDER/precision.json

mezzo_status cli_advise_shape(mezzo_config *config); // sets the keys of the shape's options
int cli_advise_data(void);                           // runs advise --data
int cli_advise_per_op(void);                         // runs advise --data --per-op

#endif
