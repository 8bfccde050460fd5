// state.json of a stranger's checkpoint: it is read whole or refused, and what was read is within what a save accepts.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    char path[64];
    mezzo_checkpoint c = {0};
    mz_checkpoint_state state;
    int fd = memfd_create("state.json", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mz_model model;
    const mezzo_status status = mz_state_load(path, &c, &state);
    if (status == MEZZO_OK && mz_description_read("there", c.model, &model) == MEZZO_OK && model.maker == NULL)
        abort();
    if (status == MEZZO_OK && (c.step < 0 || c.step > MZ_CHECKPOINT_MAX_STEP || c.batches > INT64_MAX ||
                               !mz_checkpoint_plain_name(c.tokenizer)))
        abort();
    close(fd);
    return 0;
}
