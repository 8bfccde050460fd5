// mezzo lab underflow shows which gradients of a model FP16 would lose, and which loss scale keeps them.
#include <math.h>

#include "cli.h"
#include "study/lab/lab.h"

static int print_result(const mz_underflow *u, int scale, size_t most) {
    const char *run = cli_line.n_operands > 1 ? cli_line.operands[1] : NULL;
    CLI_PLOT(mz_lab_draw_underflow, u, scale);
    return CLI_SHOW(mz_underflow_json(u, scale), mz_underflow_text, u, run != NULL ? mz_show(run).text : "a small GPT",
                    cli_text("precision", "FP32"), scale, most);
}

int cli_lab_underflow(void) {
    mz_underflow_options o = {.run = cli_line.n_operands > 1 ? cli_line.operands[1] : NULL,
                              .data = cli_text("data", NULL),
                              .device = cli_text("device", NULL),
                              .precision = cli_text("precision", NULL)};
    int64_t seed, most;
    double scale;
    CLI_TRY(cli_integer("steps", 1, 100000, 50, &o.steps));
    CLI_TRY(cli_integer("seed", 0, INT32_MAX, 1, &seed));
    CLI_TRY(cli_integer("count", 0, 100000, 12, &most));
    CLI_TRY(cli_number("loss-scale", 1, 0x1p60, 65536, &scale));
    int exponent = (int)lround(log2(scale));
    if (ldexp(1, exponent) != scale)
        return cli_wrong("--loss-scale %.9g: name a power of two", scale);
    o.seed = (uint64_t)seed;
    MZ_SCOPED(mz_underflow_close) mz_underflow u = {0};
    CLI_DO(mz_underflow_look(&o, &u));
    return print_result(&u, exponent, (size_t)most);
}
