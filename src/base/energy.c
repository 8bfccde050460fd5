// Reads the energy use of this machine's processors from RAPL's counters.
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/decimal.h"

enum { MOST_PACKAGES = 64 };

static bool read_number(const char *folder, int package, const char *name, double *out) {
    char path[128], text[64];
    snprintf(path, sizeof path, "%s:%d/%s", folder, package, name);
    int file = open(path, O_RDONLY | O_CLOEXEC); // only root may read it on most systems
    ssize_t n = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0)
        close(file);
    if (n <= 0)
        return false;
    char *end;
    text[n] = '\0';
    *out = mz_strtod(text, &end);
    return end != text;
}

double mz_host_joules(double *range) {
    static const char folder[] = "/sys/class/powercap/intel-rapl";
    double sum = 0, x;
    int found = 0;
    *range = 0;
    while (found < MOST_PACKAGES && read_number(folder, found, "energy_uj", &x)) {
        sum += x * 1e-6;
        if (read_number(folder, found, "max_energy_range_uj", &x))
            *range = x * 1e-6;
        found++;
    }
    return found > 0 ? sum : (double)NAN;
}
