// docs/OPS.md says of every op what ops.def says: slots, saved values, autocast class, tolerance class.
#include <stdlib.h>

#include "graph/op.h"
#include "test.h"

enum { CELLS = 6, CELL_BYTES = 128, LINE_BYTES = 1024 };

static const char *const classes[] = {
    [MZ_CAST_LOW] = "LOW",       [MZ_CAST_FP32] = "FP32", [MZ_CAST_WIDEST] = "WIDEST",
    [MZ_CAST_FOLLOW] = "FOLLOW", [MZ_CAST_INT] = "INT",   [MZ_CAST_EXPLICIT] = "EXPLICIT"};
static const char *const tolerances[] = {[MZ_TOL_EXACT] = "EXACT",
                                         [MZ_TOL_ROUND] = "ROUND",
                                         [MZ_TOL_ELEMENT] = "ELEMENT",
                                         [MZ_TOL_REDUCE] = "REDUCE",
                                         [MZ_TOL_MATMUL] = "MATMUL"};

// "| `a b` | LOW | …" → cells without spaces around and backticks. False when the line is not a table row.
static bool split_row(const char *line, char cells[CELLS][CELL_BYTES]) {
    if (line[0] != '|')
        return false;
    memset(cells, 0, CELLS * sizeof *cells);
    const char *at = line + 1;
    for (int i = 0; i < CELLS && *at != '\0' && *at != '\n'; i++) {
        size_t length = strcspn(at, "|\n"), n = 0;
        for (size_t k = 0; k < length && n + 1 < CELL_BYTES; k++)
            if (at[k] != '`')
                cells[i][n++] = at[k];
        while (n > 0 && cells[i][n - 1] == ' ')
            cells[i][--n] = '\0';
        size_t spaces = strspn(cells[i], " ");
        memmove(cells[i], cells[i] + spaces, n + 1 - spaces);
        at += length + (at[length] == '|');
    }
    return true;
}

// Slots as the document writes them: "x w bias? y* dw+".
static void expect_slots(const char *cell, const mz_slot *slots) {
    char text[CELL_BYTES] = "";
    size_t n = 0;
    for (int i = 0; *slots[i].name != '\0'; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%s%s%s", i > 0 ? " " : "", slots[i].name,
                              slots[i].is & MZ_SLOT_OPTIONAL ? "?" : "", slots[i].is & MZ_SLOT_REPEATED ? "*" : "",
                              slots[i].is & MZ_SLOT_GRADIENT ? "+" : "");
    assert_string_equal(cell, text);
}

static void expect_row(const mz_op_info *op, char cells[CELLS][CELL_BYTES]) {
    expect_slots(cells[1], op->in);
    expect_slots(cells[2], op->out);
    if (op->kind != MZ_KIND_FORWARD) {
        assert_string_equal(cells[3], tolerances[op->tolerance]);
        return;
    }
    assert_string_equal(cells[3], op->saved);
    assert_string_equal(cells[4], classes[op->cast_class]);
    assert_string_equal(cells[5], tolerances[op->tolerance]);
}

TEST(every_op_has_one_row_that_says_what_the_list_says) {
    const char *source = getenv("MEZZO_SOURCE");
    char path[4096], line[LINE_BYTES], cells[CELLS][CELL_BYTES];
    snprintf(path, sizeof path, "%s/docs/OPS.md", source != NULL ? source : ".");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    int rows[MZ_OP_COUNT] = {0}, unknown = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (!split_row(line, cells) || strcmp(cells[0], "op") == 0 || strncmp(cells[0], "--", 2) == 0)
            continue;
        int op = 0;
        while (op < MZ_OP_COUNT && strcmp(cells[0], mz_op_table[op].name) != 0)
            op++;
        if (op == MZ_OP_COUNT) {
            print_message("docs/OPS.md: there is no op \"%s\"\n", cells[0]);
            unknown++;
            continue;
        }
        rows[op]++;
        expect_row(&mz_op_table[op], cells);
    }
    fclose(file);
    assert_int_equal(unknown, 0);
    for (int op = 0; op < MZ_OP_COUNT; op++)
        if (rows[op] != 1)
            fail_msg("docs/OPS.md: %d rows for %s", rows[op], mz_op_table[op].name);
}

// The paragraph of primitives names those of primitives.def, in its order.
TEST(the_primitives_are_listed) {
    static const char *const names[] = {
#define PRIMITIVE(name) #name,
#include "graph/primitives.def"
#undef PRIMITIVE
    };
    const char *source = getenv("MEZZO_SOURCE");
    char path[4096], text[LINE_BYTES], list[2048] = "";
    snprintf(path, sizeof path, "%s/docs/OPS.md", source != NULL ? source : ".");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    bool within = false;
    while (fgets(text, sizeof text, file) != NULL && !(within && *text == '\n')) {
        const bool first = strncmp(text, "these: ", 7) == 0;
        within = within || first;
        for (char *word = strtok(first ? text + 7 : text, " `,.\n"); within && word != NULL;
             word = strtok(NULL, " `,.\n"))
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s ", word);
    }
    fclose(file);
    char want[2048] = "";
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s ", names[i]);
    assert_string_equal(list, want);
}
