// The subcommands that draw share --plot FOLDER/NAME.svg.
#include "cli.h"

int cli_plot_parse(cli_plot *plot) {
    const char *path = cli_text("plot", NULL);
    *plot = (cli_plot){.asked = path != NULL};
    if (path == NULL)
        return CLI_DONE;
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path, *dot = strrchr(file, '.');
    size_t length = dot != NULL ? (size_t)(dot - file) : 0;
    if (length == 0 || length >= sizeof plot->name || (strcmp(dot, ".svg") != 0 && strcmp(dot, ".png") != 0) ||
        (size_t)(file - path) >= sizeof plot->folder)
        return cli_wrong("--plot %s: name a file that ends in .svg or .png", path);
    snprintf(plot->folder, sizeof plot->folder, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
    snprintf(plot->name, sizeof plot->name, "%.*s", (int)length, file);
    return CLI_DONE;
}

int cli_plotted(mezzo_status status, const cli_plot *plot) {
    CLI_TRY(cli_code(status));
    fprintf(stderr, "wrote %s.svg, %s.png and %s.gp in %s\n", cli_show(plot->name).text, cli_show(plot->name).text,
            cli_show(plot->name).text, cli_show(plot->folder).text);
    return CLI_DONE;
}
