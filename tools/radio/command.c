// Runs mezzo data radio, which makes cities and their radio maps.
#include "cli.h"
#include "tools/radio/radio.h"

static const cli_range ranges[] = {
    {MZ_FIELD(mz_radio_options, maps), "maps", 1, 1e7, 0},
    {MZ_FIELD(mz_radio_options, transmitters), "transmitters", 1, 10000, 1},
    {MZ_FIELD(mz_radio_options, size), "size", 16, 4096, 256},
    {MZ_FIELD(mz_radio_options, extent), "extent", 64, 4096, 0},
    {MZ_FIELD(mz_radio_options, seed), "seed", 0, 0x1p63, 1},
    {MZ_FIELD(mz_radio_options, threads), "threads", 1, 4096, 0},
};

typedef struct shown {
    mz_radio_written written;
    const char *folder;
} shown;

static const mz_row_field fields[] = {
    {MZ_FIELD(shown, folder), "folder"},
    {MZ_FIELD(shown, written.maps), "maps"},
    {MZ_FIELD(shown, written.pictures), "pictures"},
    {MZ_FIELD(shown, written.built_up), "built_up"},
    {MZ_FIELD(shown, written.seconds), "seconds"},
};

int cli_data_radio(void) {
    mz_radio_options options = {.out = cli_text("out", NULL)};
    shown s = {.folder = options.out};
    CLI_TRY(CLI_REFUSE("is for texts, not for radio maps", "tokenizer", "format", "split"));
    CLI_TRY(CLI_RANGES(ranges, &options));
    if (options.maps == 0)
        return cli_wrong("--maps is missing: the number of cities");
    if (options.out == NULL)
        return cli_wrong("--out is missing: the folder to create");
    CLI_DO(mz_radio_write(&options, cli_interrupts(NULL), &s.written));
    if (cli_has("json"))
        return cli_json_print(MZ_OBJECT(fields, &s));
    printf("%s: %s cit%s with %lld transmitter%s each, %.0f %% built up, in %.1f s\n", mz_show(s.folder).text,
           mz_count_text((double)s.written.maps).text, s.written.maps == 1 ? "y" : "ies",
           (long long)options.transmitters, options.transmitters == 1 ? "" : "s", 100 * s.written.built_up,
           s.written.seconds);
    return CLI_DONE;
}
