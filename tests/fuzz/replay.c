// Runs a fuzz target over the files named on the command line: in builds without libFuzzer the seeds stay a regression
// test. One that takes a minute of processor time is one that hangs, and ends it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "target.h"

static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    // Exactly as long as the file, so that a sanitizer sees a read past its end.
    size_t size = 0;
    uint8_t *data = NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long end = ftell(f);
        size = end > 0 ? (size_t)end : 0;
        rewind(f);
    }
    data = malloc(size > 0 ? size : 1);
    int failed = data == NULL || fread(data, 1, size, f) != size;
    fclose(f);
    if (!failed)
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    return failed;
}

int main(int argc, char **argv) {
    int failed = setrlimit(RLIMIT_CPU, &(struct rlimit){60, 60});
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    printf("%d inputs replayed\n", argc - 1);
    return failed;
}
