// Declares a run's configuration as one struct: what config.def lists, read and checked once.
#ifndef MZ_TRAIN_CONFIG_H
#define MZ_TRAIN_CONFIG_H

#include "io/config.h"
#include "mezzo/train.h"
#include "session/session.h"
#include "task/task.h"
#include "train/replay.h"

typedef struct mz_override_list mz_override_list;
typedef struct mz_group_list mz_group_list;

struct mezzo_config {
    mz_config *values;
    mz_override_list *overrides; // mezzo_config_program makes it from the map autocast
    mz_group_list *groups;       // made from the map optimizer.groups
};
MZ_FREE_AT(mz_config_free_at, mezzo_config, mezzo_config_free)

// Enums of keys, in the order of their names in config.def; value 0 of the first two leaves the choice to the
// precision.
typedef enum mz_scaling_choice { MZ_SCALING_AUTO, MZ_SCALING_ON, MZ_SCALING_OFF } mz_scaling_choice;
typedef enum mz_master_choice { MZ_MASTER_AUTO, MZ_MASTER_FIRST } mz_master_choice; // FIRST + mezzo_master
typedef enum mz_nesterov_choice { MZ_NESTEROV_AUTO, MZ_NESTEROV_ON, MZ_NESTEROV_OFF } mz_nesterov_choice;
typedef enum mz_guard_policy { MZ_GUARD_OFF, MZ_GUARD_SKIP, MZ_GUARD_ROLLBACK, MZ_GUARD_STOP } mz_guard_policy;
typedef enum mz_spike_policy { MZ_SPIKE_OFF, MZ_SPIKE_WARN, MZ_SPIKE_ROLLBACK, MZ_SPIKE_STOP } mz_spike_policy;

// Holds every key, typed. Strings are borrowed from the configuration. Options that no key sets have their usual
// values; a key whose default means another key's value has that value.
typedef struct mz_run_config {
    mezzo_model_config model; // as the keys say: a size that no key gives is the model's own
    mz_task_options data;
    mezzo_lora lora; // rank 0: no adapters
    mezzo_optimizer_options optimizer;
    mezzo_program_options program;
    mezzo_scaler_options scaler; // its `enabled` is set once the precision is known: `scaling`
#define CONFIG(path, type, ctype, member, fallback, min, max, names, alias, help, flags) ctype member;
#define CONFIG_IN(path, type, ctype, place, fallback, min, max, names, alias, help, flags)
#include "train/config.def"
} mz_run_config;

// Sets every size and setting of the model, without its name, as keys.
mezzo_status mz_config_set_model(mezzo_config *config, const mezzo_model_config *model);
// Sets the same keys where neither a file nor an option has set them.
mezzo_status mz_config_fill_model(mezzo_config *config, const mezzo_model_config *model);
// Names the copy in the run folder (train.out) of an ONNX file that is no longer at model.name.
mezzo_status mz_config_find_graph(mezzo_config *config);
// Returns the index, for mezzo_config_describe, of the key of this path, short name or "MAP.PATTERN", whose pattern
// *pattern then is; -1: none.
int mz_config_index(const char *name, const char **pattern);
// Sets a key whose value is a whole number; errors as mezzo_config_set.
mezzo_status mz_config_set_int(mezzo_config *config, const char *key, int64_t value, const char *source);
// Reads every key, and refuses those that contradict each other.
mezzo_status mz_run_config_read(const mezzo_config *config, mz_run_config *out);
// Returns how masters are stored with a resolved precision.
mezzo_master mz_run_config_master(const mz_run_config *config, mezzo_precision precision);
// Divides a step among ranks, once their number is known: grad_accum becomes a rank's micro batches a step. INVALID
// where global_batch and the other keys do not fit together.
mezzo_status mz_run_config_share(mz_run_config *config, int ranks);
// Turns train.epochs into steps, once the data is known: `batches` micro batches a pass, on `ranks`. Steps of the
// command line replace epochs of a file. INVALID where both keys come from one source.
mezzo_status mz_run_config_count_epochs(const mezzo_config *config, uint64_t batches, int ranks, mz_run_config *run);
// Returns what the keys say of a session: all but the model and its form's length. Precision and what follows from it
// are as asked, for 1 rank.
mz_session_options mz_run_config_session(const mz_run_config *config);
// Makes the options of a run without data: the whole model with its own sizes and outputs.
mezzo_status mz_run_config_sketch(const mz_run_config *config, mz_session_options *out);
// Makes the model that the keys describe, with the sizes that the data decides. INVALID as mezzo_config_model.
mezzo_status mz_run_config_model(const mz_run_config *config, const mz_model_sizes *sizes, mezzo_model_config *out);

#endif
