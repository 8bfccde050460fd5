// What a step costs in joules, from the device's own counter, or the processor's (RAPL). Where nothing can be read, NaN.
#include <glob.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "study/measure.h"

#define MOST_STEPS 10000

static bool read_number(const char *path, double *out) {
    char text[64];
    FILE *f = fopen(path, "r"); // root's alone on most systems
    bool good = f != NULL && fgets(text, sizeof text, f) != NULL;
    if (f != NULL)
        fclose(f);
    char *end;
    if (good)
        *out = strtod(text, &end);
    return good && end != text;
}

// Joules since some moment, all packages together; *range is where one package's counter starts again at 0.
static double rapl_joules(double *range) {
    glob_t found;
    double sum = 0, x;
    bool any = false;
    *range = 0;
    if (glob("/sys/class/powercap/intel-rapl:[0-9]*/energy_uj", 0, NULL, &found) != 0)
        return (double)NAN;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (strchr(strchr(path, ':') + 1, ':') != NULL) // a part of a package
            continue;
        if (read_number(path, &x)) {
            sum += x * 1e-6;
            any = true;
        }
        char *most = mz_format("%.*smax_energy_range_uj", (int)(strlen(path) - strlen("energy_uj")), path);
        if (most != NULL && read_number(most, &x))
            *range = x * 1e-6;
        mz_free(most);
    }
    globfree(&found);
    return any ? sum : (double)NAN;
}

typedef struct reading {
    double joules, range, watts;
} reading;

static mezzo_status read_sensors(mezzo_device *device, bool host, reading *out) {
    mezzo_telemetry t;
    MEZZO_TRY(mezzo_device_telemetry(device, &t));
    *out = (reading){.joules = t.joules, .watts = t.watts};
    if (isnan(out->joules) && host)
        out->joules = rapl_joules(&out->range);
    return MEZZO_OK;
}

mezzo_status mz_rig_energy(mz_rig *rig, double seconds, double step_seconds, mz_energy *out) {
    mezzo_device *device = mz_rig_device(rig);
    mezzo_device_info info;
    reading before, after;
    *out = (mz_energy){(double)NAN, (double)NAN};
    MEZZO_TRY(mezzo_device_describe(device, &info));
    bool host = strcmp(info.backend, "cuda") != 0;
    MEZZO_TRY(read_sensors(device, host, &before));
    if (isnan(before.joules) && isnan(before.watts))
        return MEZZO_OK;
    double steps = fmin(fmax(1, ceil(seconds / step_seconds)), MOST_STEPS), start = mz_seconds();
    MEZZO_TRY(mz_rig_run_steps(rig, (int64_t)steps));
    double elapsed = mz_seconds() - start;
    MEZZO_TRY(read_sensors(device, host, &after));
    double joules = after.joules - before.joules;
    if (joules < 0) // the counter started again
        joules += after.range;
    if (joules > 0 && elapsed > 0)
        *out = (mz_energy){joules / steps, joules / elapsed};
    else if (!isnan(after.watts)) // a sensor alone: what it says right after the steps
        *out = (mz_energy){after.watts * step_seconds, after.watts};
    return MEZZO_OK;
}
