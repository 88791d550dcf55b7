/* A conversation in the terminal.
 *
 *     build/chat [-m model.gguf] [-s "system prompt"] [-t temperature] [-n tokens] [-f family] [-c context]
 *                [--load FILE] [--save FILE] [-h]
 *
 * Replies appear as they are made, whole characters at a time; what they cost follows on stderr. The keys and
 * values of the conversation stay in the cache, so that each turn computes only its own tokens. Ctrl-C stops a
 * reply, and at the prompt it quits, as the end of the input does (a pipe will do for input). When the context
 * is full the oldest turns are forgotten, and the rest is computed anew. --save writes the conversation, cache
 * included, when the program ends; --load goes on from there at once.
 */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>
#define IS_TERMINAL isatty(0)
#else
#define IS_TERMINAL 0
#endif
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dendrite.h"

typedef struct chat {
    dend_model *model;
    dend_engine *engine;
    dend_seq seq;
    const char *family;
    dend_sample_params params;
    unsigned max_tokens, n_ctx;
    dend_chat_message *messages; /* texts are ours */
    size_t n;
} chat;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

/* Reads are to end when Ctrl-C comes, so no SA_RESTART. */
static void catch_interrupts(void) {
#if defined(_POSIX_C_SOURCE)
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, NULL);
#else
    signal(SIGINT, on_interrupt);
#endif
}

static double seconds(void) {
#if defined(_POSIX_C_SOURCE)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

static void *need(void *p) {
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void add_message(chat *c, dend_role role, const char *text, size_t n) {
    dend_chat_message *m;
    char *copy = (char *)need(malloc(n + 1));
    c->messages = (dend_chat_message *)need(realloc(c->messages, (c->n + 1) * sizeof *m));
    m = &c->messages[c->n++];
    memcpy(copy, text, n);
    copy[n] = 0;
    m->role = role;
    m->text = copy;
    m->n_bytes = n;
}

static void remove_messages(chat *c, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) free((void *)(size_t)c->messages[i].text);
    memmove(c->messages + first, c->messages + first + n, (c->n - first - n) * sizeof *c->messages);
    c->n -= n;
}

static uint32_t length(const chat *c) {
    dend_seq_info info;
    return dend_seq_get_info(c->engine, c->seq, &info) == DEND_OK ? info.len_tokens : 0;
}

/* Whether the last message has room beside the system's alone. */
static bool fits(const chat *c) {
    dend_chat_message m[2];
    size_t n = 0, n_tokens = 0;
    dend_status status;
    if (c->n > 1 && c->messages[0].role == DEND_ROLE_SYSTEM) m[n++] = c->messages[0];
    m[n++] = c->messages[c->n - 1];
    status = dend_chat_tokenize(c->model, c->family, m, n, DEND_CHAT_GENERATE, NULL, 0, &n_tokens);
    return (status != DEND_OK && status != DEND_ERR_BUFFER) || n_tokens + c->n_ctx / 8 <= c->n_ctx;
}

/* Appends the last message, a user's, and the beginning of a reply. Where there is no room, the oldest turn goes
 * and all of the rest is appended anew. */
static dend_status append(chat *c) {
    bool begins = length(c) == 0;
    size_t first = begins ? 0 : c->n - 1;
    uint32_t flags = DEND_CHAT_GENERATE | (begins ? 0u : (uint32_t)DEND_CHAT_AFTER_REPLY);
    for (;;) {
        size_t system = c->n > 0 && c->messages[0].role == DEND_ROLE_SYSTEM ? 1 : 0;
        dend_status status =
            dend_seq_append_chat(c->engine, c->seq, c->family, c->messages + first, c->n - first, flags);
        bool full = status == DEND_ERR_CONTEXT_FULL || status == DEND_ERR_NO_BLOCKS ||
                    (status == DEND_OK && length(c) + c->n_ctx / 8 > c->n_ctx);
        if (!full || c->n < system + 3) return status; /* two messages to forget, and the last one */
        fprintf(stderr, "[the context is full: the oldest turn is forgotten]\n");
        remove_messages(c, system, 2);
        status = dend_seq_rewind(c->engine, c->seq, 0);
        if (status != DEND_OK) return status;
        first = 0;
        flags = DEND_CHAT_GENERATE;
    }
}

/* How many of n bytes are whole characters, whatever follows them. */
static size_t whole_characters(const char *s, size_t n) {
    size_t back = 1;
    while (back < 4 && back < n && ((unsigned char)s[n - back] & 0xc0) == 0x80) back++;
    if (n > 0) {
        unsigned char lead = (unsigned char)s[n - back];
        size_t len = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (len > back) return n - back;
    }
    return n;
}

/* Makes a reply to the last message and adds it. What was appended for a message that was interrupted before the
 * reply began is taken back. */
static dend_status reply(chat *c) {
    uint32_t before = length(c), n_tokens = 0, prompt;
    char *text = NULL;
    size_t n = 0, shown = 0;
    double start = seconds(), first = 0;
    dend_status status;
    if (!fits(c)) {
        fprintf(stderr, "[this is longer than the context: not sent]\n");
        remove_messages(c, c->n - 1, 1);
        return DEND_OK;
    }
    status = append(c);
    prompt = length(c) - (length(c) >= before ? before : 0);
    while (status == DEND_OK && !interrupted && (status = dend_step(c->engine, 20000)) == DEND_PENDING)
        status = DEND_OK;
    if (status != DEND_OK || interrupted) {
        if (length(c) >= before && dend_seq_rewind(c->engine, c->seq, before) == DEND_OK)
            remove_messages(c, c->n - 1, 1);
        if (status != DEND_OK) fprintf(stderr, "[%s]\n", dend_status_text(status));
        return interrupted ? DEND_OK : status;
    }
    first = seconds();
    while (!interrupted && n_tokens < c->max_tokens) {
        int32_t token;
        size_t len;
        const char *bytes;
        status = dend_next(c->engine, c->seq, &c->params, &token);
        if (status != DEND_OK) break;
        bytes = dend_token_bytes(c->model, token, &len);
        if (n == 0 && len > 0 && bytes[0] == ' ') { /* of SentencePiece vocabularies */
            bytes++;
            len--;
        }
        text = (char *)need(realloc(text, n + len + 1));
        memcpy(text + n, bytes, len);
        n += len;
        n_tokens++;
        len = whole_characters(text, n);
        if (len > shown) {
            fwrite(text + shown, 1, len - shown, stdout);
            fflush(stdout);
            shown = len;
        }
    }
    if (n > shown) fwrite(text + shown, 1, n - shown, stdout);
    printf("\n");
    fflush(stdout);
    add_message(c, DEND_ROLE_ASSISTANT, text ? text : "", n);
    free(text);
    fprintf(stderr, "[%u tokens read in %.2f s, %u written, %.1f tokens/s; %u of %u in the context%s]\n",
            (unsigned)prompt, first - start, (unsigned)n_tokens, n_tokens / (seconds() - first + 1e-9),
            (unsigned)length(c), c->n_ctx,
            interrupted                       ? "; stopped"
            : status == DEND_ERR_CONTEXT_FULL ? "; the context is full"
            : status == DEND_OK               ? "; -n reached"
                                              : "");
    return status == DEND_ERR_CONTEXT_FULL || status == DEND_END ? DEND_OK : status;
}

/* -- files: "DCHAT1\n", number of messages, each message, then what dend_seq_save writes -- */

static bool write_file(void *user, const void *data, size_t n) {
    return fwrite(data, 1, n, (FILE *)user) == n;
}

static long seq_offset;

static bool read_file(void *user, uint64_t offset, void *dst, size_t n) {
    FILE *f = (FILE *)user;
    return fseek(f, seq_offset + (long)offset, SEEK_SET) == 0 && fread(dst, 1, n, f) == n;
}

static bool save(const chat *c, const char *path) {
    FILE *f = fopen(path, "wb");
    dend_writer to;
    bool ok = f != NULL;
    to.write = write_file;
    to.user = f;
    ok = ok && fprintf(f, "DCHAT1\n%lu\n", (unsigned long)c->n) > 0;
    for (size_t i = 0; ok && i < c->n; i++) {
        const dend_chat_message *m = &c->messages[i];
        ok = fprintf(f, "%d %lu\n", (int)m->role, (unsigned long)m->n_bytes) > 0 &&
             write_file(f, m->text, m->n_bytes);
    }
    ok = ok && dend_seq_save(c->engine, c->seq, &to) == DEND_OK;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: cannot be written\n", path);
    return ok;
}

static bool load(chat *c, const char *path) {
    FILE *f = fopen(path, "rb");
    unsigned long n = 0, len;
    dend_reader from;
    dend_seq seq;
    int role;
    bool ok = f && fscanf(f, "DCHAT1 %lu", &n) == 1 && fgetc(f) == '\n';
    for (; ok && n > 0; n--) {
        ok = fscanf(f, "%d %lu", &role, &len) == 2 && fgetc(f) == '\n' && role >= 0 && role <= 3 &&
             len < (1u << 30);
        if (ok) {
            char *text = (char *)need(malloc(len + 1));
            ok = fread(text, 1, len, f) == len;
            if (ok) add_message(c, (dend_role)role, text, len);
            free(text);
        }
    }
    if (ok) {
        seq_offset = ftell(f);
        ok = fseek(f, 0, SEEK_END) == 0;
        from.read = read_file;
        from.user = f;
        from.size = (uint64_t)(ftell(f) - seq_offset);
        ok = ok && dend_seq_load(c->engine, &from, &seq) == DEND_OK;
    }
    if (ok) {
        dend_seq_drop(c->engine, c->seq);
        c->seq = seq;
        fprintf(stderr, "[%lu messages, %u tokens]\n", (unsigned long)c->n, (unsigned)length(c));
    } else {
        fprintf(stderr, "%s: no conversation of this model, or damaged\n", path);
    }
    if (f) fclose(f);
    return ok;
}

/* -- the program -- */

/* A line without its end, to be freed; NULL at the end of the input and for Ctrl-C. */
static char *read_line(void) {
    size_t n = 0, cap = 256;
    char *line = (char *)need(malloc(cap));
    while (fgets(line + n, (int)(cap - n), stdin)) {
        n += strlen(line + n);
        if (n > 0 && line[n - 1] == '\n') {
            line[n - 1] = 0;
            return line;
        }
        line = (char *)need(realloc(line, cap *= 2));
    }
    if (n > 0 && !interrupted) return line;
    free(line);
    return NULL;
}

static int usage(FILE *to, int status) {
    fprintf(to, "chat [-m model.gguf] [-s system prompt] [-t temperature] [-n tokens of a reply] [-f family] "
                "[-c context]\n"
                "     [--load FILE] [--save FILE] [-h]\n"
                "families: chatml qwen qwen3 llama2 llama3 llama3.1 gemma mistral mistral-v1 mistral-v3\n"
                "          mistral-tekken zephyr; without -f the model's own\n");
    return status;
}

int main(int argc, char **argv) {
    chat c;
    dend_model_desc md;
    dend_engine_desc ed;
    dend_error err;
    const char *system = NULL, *from = NULL, *to = NULL;
    dend_status status;
    memset(&c, 0, sizeof c);
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    md.path = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    c.params.temperature = 0.7f;
    c.params.top_p = 0.95f;
    c.max_tokens = 1024;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "-h") == 0) return usage(stdout, 0);
        if (!value) return usage(stderr, 2);
        if (strcmp(name, "-m") == 0)
            md.path = value;
        else if (strcmp(name, "-s") == 0)
            system = value;
        else if (strcmp(name, "-t") == 0)
            c.params.temperature = (float)atof(value);
        else if (strcmp(name, "-n") == 0)
            c.max_tokens = (unsigned)atoi(value);
        else if (strcmp(name, "-f") == 0)
            c.family = value;
        else if (strcmp(name, "-c") == 0)
            ed.n_ctx = (uint32_t)atoi(value);
        else if (strcmp(name, "--load") == 0)
            from = value;
        else if (strcmp(name, "--save") == 0)
            to = value;
        else
            return usage(stderr, 2);
        i++;
    }
    status = dend_model_load(&md, &c.model, &err);
    ed.model = c.model;
    ed.n_seqs = 2;
    ed.seed = (uint64_t)time(NULL);
    if (status == DEND_OK) status = dend_engine_resolve(&ed, &err);
    if (status == DEND_OK) status = dend_engine_create(&ed, &c.engine, &err);
    if (status != DEND_OK) {
        fprintf(stderr, "%s: %s\n", md.path, err.msg);
        return 1;
    }
    c.n_ctx = ed.n_ctx;
    status = dend_seq_create(c.engine, &c.seq);
    if (system) add_message(&c, DEND_ROLE_SYSTEM, system, strlen(system));
    if (!c.family && !dend_chat_family(c.model)) {
        fprintf(stderr, "%s: its chat template is none that we know: choose a family with -f\n", md.path);
        status = DEND_ERR_UNSUPPORTED;
    }
    if (status == DEND_OK && from) {
        remove_messages(&c, 0, c.n);
        if (!load(&c, from)) status = DEND_ERR_IO;
    }
    catch_interrupts();
    while (status == DEND_OK) {
        char *line;
        if (IS_TERMINAL) {
            printf("> ");
            fflush(stdout);
        }
        line = read_line();
        if (!line) break;
        interrupted = 0;
        if (*line) {
            add_message(&c, DEND_ROLE_USER, line, strlen(line));
            status = reply(&c);
        }
        interrupted = 0;
        free(line);
    }
    if (to && c.n > 0 && status == DEND_OK && !save(&c, to)) status = DEND_ERR_IO;
    remove_messages(&c, 0, c.n);
    free(c.messages);
    dend_engine_free(c.engine);
    dend_model_free(c.model);
    return status != DEND_OK;
}
