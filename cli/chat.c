// mezzo chat holds a conversation with a model in the terminal, or answers each line of a pipe.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <unistd.h>

#include "cli.h"

typedef struct talk {
    mezzo_chat *chat;
    volatile sig_atomic_t *stop; // also shows whether Ctrl-C was pressed before a message was typed
    const char *system;
    char *typed; // memory of a system message that /system gave
    bool is_terminal;
    int64_t left_out; // the number that was last reported
} talk;

static void write_piece(void *user, int index, const char *text, size_t bytes) {
    (void)user;
    (void)index;
    cli_print_text(stdout, text, bytes);
    fflush(stdout);
}

static int say(talk *t, const char *message) {
    mezzo_chat_answer answer;
    const mezzo_hooks hooks = {.stop = t->stop};
    mezzo_status status = mezzo_chat_say(t->chat, message, &hooks, write_piece, NULL, &answer);
    if (status != MEZZO_OK) {
        const int code = cli_error(status);
        return t->is_terminal && code == CLI_USAGE ? CLI_DONE : code; // at a terminal the user can type it again
    }
    putchar('\n');
    fflush(stdout);
    if (answer.left_out > t->left_out)
        cli_wrong("the context of %lld tokens is full: left out the oldest messages and their answers, %lld so far",
                  (long long)answer.context_tokens, (long long)answer.left_out);
    t->left_out = answer.left_out;
    if (answer.stopped && (!t->is_terminal || *t->stop != SIGINT))
        return CLI_INTERRUPTED;
    if (!answer.ended && !answer.stopped)
        cli_wrong("the answer is cut off at --tokens or at the context of %lld tokens",
                  (long long)answer.context_tokens);
    return CLI_DONE;
}

static int reset(talk *t, const char *system) {
    if (system != NULL)
        t->system = system;
    t->left_out = 0;
    return cli_code(mezzo_chat_reset(t->chat, t->system));
}

static int save(talk *t, const char *path) {
    if (path[0] == '\0')
        return cli_wrong("/save needs a file: /save FILE.jsonl");
    CLI_DO(mezzo_chat_save(t->chat, path));
    fprintf(stderr, "wrote %s\n", mz_show(path).text);
    return CLI_DONE;
}

static const char commands[] = "/system TEXT  begin anew with this system message (without TEXT: with none)\n"
                               "/reset        begin anew\n"
                               "/save FILE    write the conversation as a record to train on\n"
                               "/exit         leave, as Ctrl-D does\n"
                               "//…           a message that begins with /\n"
                               "Ctrl-C stops an answer; twice, it leaves\n";

// Obeys a line that begins with "/". *leave: the conversation ends.
static int obey(talk *t, const char *line, bool *leave) {
    const size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    if (n == 5 && strncmp(line, "/exit", n) == 0)
        *leave = true;
    else if (n == 5 && strncmp(line, "/help", n) == 0)
        fputs(commands, stderr);
    else if (n == 5 && strncmp(line, "/save", n) == 0)
        return save(t, rest);
    else if (n == 6 && strncmp(line, "/reset", n) == 0)
        return reset(t, NULL);
    else if (n == 7 && strncmp(line, "/system", n) == 0) {
        char *before = t->typed;
        t->typed = mz_strdup(rest);
        mz_free(before);
        return t->typed != NULL ? reset(t, t->typed) : cli_error(MEZZO_ERR_MEMORY);
    } else
        return cli_wrong("there is no command %.*s: /help lists them, and //… is a message", (int)(n < 40 ? n : 40),
                         mz_show(line).text);
    return CLI_DONE;
}

// Waits for a byte and reads it: returns 1, at the end 0, and -1 where a signal asks to leave. Signals arrive only
// during the wait; one that came before would not end it.
static int read_byte(talk *t, bool prompts, const sigset_t *before, char *byte) {
    for (;;) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        if (prompts)
            fputs("> ", stderr);
        const bool waits = pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, before) < 0;
        if (*t->stop != 0 && (!t->is_terminal || *t->stop != SIGINT))
            return -1;
        if (!waits || *t->stop == 0)
            break;
        fputs("\nCtrl-C again, or Ctrl-D, leaves; /help lists commands\n", stderr);
    }
    return read(STDIN_FILENO, byte, 1) == 1;
}

// Reads the next line, or the whole input; returns false at the end, and where a signal ended it, which *code shows.
static bool read_message(talk *t, mz_text *line, int *code) {
    const char end = cli_has("whole") ? '\0' : '\n';
    sigset_t signals, before;
    char byte = '\0';
    int got;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    line->len = 0;
    while ((got = read_byte(t, t->is_terminal && line->len == 0, &before, &byte)) == 1 && byte != end)
        mz_text_add(line, &byte, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (got < 0)
        *code = CLI_INTERRUPTED;
    if (got < 0 || (got == 0 && line->len == 0))
        return false;
    if (got == 1 && byte == '\0')
        mz_text_add(line, "", 1); // --whole: the code below refuses it
    mz_text_add(line, "", 0);
    if (line->status != MEZZO_OK) {
        *code = cli_error(line->status);
        return false;
    }
    if (memchr(line->data, '\0', line->len) != NULL) {
        const int wrong = cli_wrong("the message has a NUL in it: remove it");
        line->data[0] = '\0';
        *code = t->is_terminal ? CLI_DONE : wrong; // at a terminal the user can type it again
        return t->is_terminal;
    }
    while (line->len > 0 && (line->data[line->len - 1] == '\n' || line->data[line->len - 1] == '\r'))
        line->data[--line->len] = '\0';
    *t->stop = 0;
    return true;
}

static int talk_on(talk *t) {
    MZ_SCOPED(mz_text_free) mz_text text = {0};
    bool leave = false;
    int code = reset(t, t->system);
    while (code == CLI_DONE && !leave && read_message(t, &text, &code)) {
        const char *line = text.data;
        const bool slash = line[0] == '/' && !cli_has("whole"), obeys = slash && line[1] != '/';
        if (line[0] == '\0')
            continue;
        const int done = obeys ? obey(t, line, &leave) : say(t, line + slash);
        code = obeys && t->is_terminal ? CLI_DONE : done;
    }
    if (t->is_terminal)
        fputc('\n', stderr);
    return code;
}

static void close_talk(talk *t) {
    mezzo_chat_close(t->chat);
    mz_free(t->typed);
}

int cli_chat(void) {
    mezzo_sample_options options = mezzo_sample_defaults();
    CLI_TRY(cli_sample_options(&options));
    MZ_SCOPED(close_talk) talk t = {.system = cli_text("system", NULL), .is_terminal = isatty(STDIN_FILENO) == 1};
    CLI_DO(mezzo_chat_open(&options, &t.chat));
    t.stop = cli_interrupts(NULL);
    if (t.is_terminal)
        fputs("/help lists commands; Ctrl-D leaves\n", stderr);
    return talk_on(&t);
}
