// Any bytes as a manifest: looked past, or a list of names inside the folder that is read back as it was written.
#include "checkpoint/checkpoint.h"
#include "folder.h"

static void expect_inside(const mz_manifest *m) {
    for (size_t i = 0; i < m->count; i++) {
        const char *name = m->entries[i].name;
        if (memchr(name, '\0', sizeof m->entries[i].name) == NULL || strncmp(name, "step-", 5) != 0 ||
            strspn(name + 5, "0123456789") != strlen(name + 5) || m->entries[i].step < 0 ||
            m->entries[i].step > MZ_CHECKPOINT_MAX_STEP)
            abort();
    }
    if (mz_manifest_best(m) >= (int)m->count)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_manifest first, again;
    fuzz_put("manifest.json", data, size);
    if (mz_manifest_load(fuzz_folder(), &first) != MEZZO_OK)
        abort();
    expect_inside(&first);
    if (mz_manifest_save(fuzz_folder(), &first) != MEZZO_OK || mz_manifest_load(fuzz_folder(), &again) != MEZZO_OK ||
        first.count != again.count || mz_manifest_best(&first) != mz_manifest_best(&again))
        abort();
    for (size_t i = 0; i < first.count; i++)
        if (strcmp(first.entries[i].name, again.entries[i].name) != 0 ||
            first.entries[i].step != again.entries[i].step ||
            first.entries[i].state_crc != again.entries[i].state_crc ||
            first.entries[i].state_bytes != again.entries[i].state_bytes)
            abort();
    mz_manifest_free(&first);
    mz_manifest_free(&again);
    return 0;
}
