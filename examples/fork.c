/* One prompt, N branches. The prompt is computed once; each branch is a fork
 * that costs nanoseconds, and all branches decode in one batch a step.
 *
 *     build/fork [-m model.gguf] [-n branches] [-t tokens] [-s seed] [-v] [prompt]
 *
 * On a terminal the branches grow before your eyes, a line each; their whole
 * texts follow, then what forking cost and what a copying engine would need.
 * -v says first what the engine runs on.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

#include "dendrite.h"

enum { MAX_BRANCHES = 64, MAX_TOKENS = 2048, MAX_TEXT = 64 * 1024, FORK_ROUNDS = 256, FORKS_A_ROUND = 32 };

typedef struct branch {
    dend_seq seq;
    char text[MAX_TEXT];
    size_t n_bytes;
    unsigned n_tokens;
    bool ended;
    double first_append_ns;
} branch;

typedef struct options {
    const char *model, *prompt;
    unsigned n_branches, n_tokens;
    uint64_t seed;
    bool verbose;
} options;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, compare_doubles);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Columns of the terminal, or 0 when the output is no terminal. */
static unsigned terminal_columns(void) {
#if defined(TIOCGWINSZ)
    struct winsize size;
    if (isatty(1) && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 24) {
        return size.ws_col;
    }
#endif
    return 0;
}

/* Draws the end of every branch's text in a line of its own. */
static void draw(const branch *branches, unsigned n, unsigned columns, bool again) {
    unsigned i;
    if (again) {
        printf("\033[%uA", n);
    }
    for (i = 0; i < n; i++) {
        const branch *b = &branches[i];
        size_t room = columns - 8, from = b->n_bytes > room ? b->n_bytes - room : 0, k;
        while (from < b->n_bytes && ((unsigned char)b->text[from] & 0xc0) == 0x80) {
            from++; /* not into the middle of a character */
        }
        printf("\r\033[K\033[36m%3u\033[0m %s ", i + 1, b->ended ? "." : "|");
        for (k = from; k < b->n_bytes; k++) {
            unsigned char c = (unsigned char)b->text[k];
            putchar(c < 32 || c == 127 ? ' ' : c); /* the model's bytes must not steer the terminal */
        }
        putchar('\n');
    }
    fflush(stdout);
}

/* Prints text wrapped at 88 columns behind an indent. */
static void print_wrapped(const char *text, size_t n) {
    size_t column = 0, i;
    printf("     ");
    for (i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n' || (c == ' ' && column > 88)) {
            printf("\n     ");
            column = 0;
        } else {
            putchar(c < 32 || c == 127 ? ' ' : c);
            column++;
        }
    }
    printf("\n");
}

/* Samples a token for every live branch and appends it; returns how many live on. */
static unsigned grow(dend_engine *engine, const dend_model *model, branch *branches, const options *o) {
    dend_sample_params params = {0};
    unsigned i, alive = 0;
    params.temperature = 0.8f;
    params.top_p = 0.95f;
    for (i = 0; i < o->n_branches; i++) {
        branch *b = &branches[i];
        dend_sampled s;
        size_t n_bytes;
        const char *bytes;
        double start;
        if (b->ended || dend_sample(engine, b->seq, &params, &s) != DEND_OK) {
            b->ended = true;
            continue;
        }
        start = now_ns();
        if (dend_token_is_end(model, s.token) || dend_seq_append(engine, b->seq, &s.token, 1) != DEND_OK) {
            b->ended = true;
            continue;
        }
        if (b->n_tokens == 0) {
            b->first_append_ns = now_ns() - start;
        }
        bytes = dend_token_bytes(model, s.token, &n_bytes);
        if (bytes && b->n_bytes + n_bytes < MAX_TEXT) {
            memcpy(b->text + b->n_bytes, bytes, n_bytes);
            b->n_bytes += n_bytes;
        }
        b->ended = ++b->n_tokens >= o->n_tokens;
        alive += !b->ended;
    }
    return alive;
}

/* Median nanoseconds of a fork, in rounds of forks that are dropped again. */
static double time_forks(dend_engine *engine, dend_seq parent) {
    static double rounds[FORK_ROUNDS];
    dend_seq children[FORKS_A_ROUND];
    unsigned r, i;
    for (r = 0; r < FORK_ROUNDS; r++) {
        double start = now_ns();
        for (i = 0; i < FORKS_A_ROUND; i++) {
            if (dend_seq_fork(engine, parent, 0, &children[i]) != DEND_OK) {
                return 0;
            }
        }
        rounds[r] = (now_ns() - start) / FORKS_A_ROUND;
        for (i = 0; i < FORKS_A_ROUND; i++) {
            dend_seq_drop(engine, children[i]);
        }
    }
    return median(rounds, FORK_ROUNDS);
}

static int run(dend_engine *engine, const dend_model *model, branch *branches, const options *o) {
    static double appends[MAX_BRANCHES];
    unsigned columns = terminal_columns(), i, alive, total = 0, block_tokens = 16, in_use, copying = 0;
    dend_seq root;
    dend_seq_info info;
    dend_engine_stats stats;
    dend_status status;
    double start, prompt_s, decode_s = 0;
    char prompt[8192];
    int32_t probe[8];
    size_t n;

    /* Models that know ChatML get the prompt as a user's message. */
    if (dend_tokenize(model, "<|im_start|>", 12, DEND_TOKENIZE_SPECIAL, probe, 8, &n) == DEND_OK && n == 1) {
        snprintf(prompt, sizeof prompt, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", o->prompt);
    } else {
        snprintf(prompt, sizeof prompt, "%s", o->prompt);
    }
    status = dend_seq_create(engine, &root);
    if (status == DEND_OK) {
        status = dend_seq_append_text(engine, root, prompt, (size_t)-1, 0);
    }
    start = now_ns();
    if (status == DEND_OK) {
        status = dend_step(engine, 0);
    }
    prompt_s = (now_ns() - start) / 1e9;
    for (i = 0; i < o->n_branches && status == DEND_OK; i++) {
        status = dend_seq_fork(engine, root, 0, &branches[i].seq);
    }
    if (status != DEND_OK) {
        fprintf(stderr, "fork: %s\n", dend_status_text(status));
        return 1;
    }
    printf("prompt: %s\n\n", o->prompt);
    if (columns) {
        draw(branches, o->n_branches, columns, false);
    }
    do {
        alive = grow(engine, model, branches, o);
        start = now_ns();
        status = dend_step(engine, 0);
        decode_s += (now_ns() - start) / 1e9;
        if (columns) {
            draw(branches, o->n_branches, columns, true);
        }
    } while (alive && status == DEND_OK);
    if (status != DEND_OK) {
        fprintf(stderr, "fork: %s\n", dend_status_text(status));
        return 1;
    }

    dend_engine_get_stats(engine, &stats);
    in_use = stats.n_blocks - stats.n_blocks_free;
    printf("\n");
    for (i = 0; i < o->n_branches; i++) {
        printf("%3u  (%u tokens)\n", i + 1, branches[i].n_tokens);
        print_wrapped(branches[i].text, branches[i].n_bytes);
        dend_seq_get_info(engine, branches[i].seq, &info);
        copying += (info.len_tokens + block_tokens - 1) / block_tokens;
        total += branches[i].n_tokens;
        appends[i] = branches[i].first_append_ns;
    }
    dend_seq_get_info(engine, root, &info);
    copying += (info.len_tokens + block_tokens - 1) / block_tokens;
    printf("\n  prompt                    %10u tokens   %10.1f tokens/s\n", info.len_tokens,
           info.len_tokens / prompt_s);
    printf("  branches                  %10u          %10.1f tokens/s, all together\n", o->n_branches,
           total / decode_s);
    printf("  fork                      %10.0f ns       median of %d\n", time_forks(engine, root),
           FORK_ROUNDS * FORKS_A_ROUND);
    printf("  first append after fork   %10.0f ns       median of %u\n", median(appends, o->n_branches),
           o->n_branches);
    printf("  KV blocks in use          %10u          a copying engine: %u\n", in_use, copying);
    printf("  kernels                   %10s          %u threads\n", stats.isa, stats.n_threads);
    return 0;
}

static bool parse(int argc, char **argv, options *o) {
    int i;
    o->model = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    o->prompt = "Tell me a short story about a lighthouse keeper who finds a strange door.";
    o->n_branches = 6;
    o->n_tokens = 64;
    o->seed = 1;
    o->verbose = false;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0) {
            o->verbose = true;
        } else if (argv[i][0] == '-' && argv[i][1] && !argv[i][2] && i + 1 < argc) {
            const char *value = argv[++i];
            switch (argv[i - 1][1]) {
            case 'm':
                o->model = value;
                break;
            case 'n':
                o->n_branches = (unsigned)strtoul(value, NULL, 10);
                break;
            case 't':
                o->n_tokens = (unsigned)strtoul(value, NULL, 10);
                break;
            case 's':
                o->seed = strtoull(value, NULL, 10);
                break;
            default:
                return false;
            }
        } else if (argv[i][0] != '-') {
            o->prompt = argv[i];
        } else {
            return false;
        }
    }
    return o->n_branches > 0 && o->n_branches <= MAX_BRANCHES && o->n_tokens > 0 &&
           o->n_tokens <= MAX_TOKENS && strlen(o->prompt) < 4096;
}

int main(int argc, char **argv) {
    static branch branches[MAX_BRANCHES];
    dend_model_desc model_desc = {0};
    dend_engine_desc engine_desc = {0};
    dend_model *model = NULL;
    dend_engine *engine = NULL;
    dend_error error = {0};
    options o;
    int result = 1;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: %s [-m model.gguf] [-n 1..%d branches] [-t 1..%d tokens] [-s seed] [-v] [prompt]\n",
                argv[0], MAX_BRANCHES, MAX_TOKENS);
        return 2;
    }
    model_desc.path = o.model;
    if (dend_model_load(&model_desc, &model, &error) == DEND_OK) {
        engine_desc.model = model;
        engine_desc.n_seqs = MAX_BRANCHES + FORKS_A_ROUND + 1;
        engine_desc.n_logits = MAX_BRANCHES + 1;
        engine_desc.seed = o.seed;
        if (dend_engine_create(&engine_desc, &engine, &error) == DEND_OK) {
            if (o.verbose) {
                char text[2048];
                dend_engine_report(engine, text, sizeof text);
                puts(text);
            }
            result = run(engine, model, branches, &o);
        }
    }
    if (error.status != DEND_OK) {
        fprintf(stderr, "%s: %s (%s, at byte %llu)\n", o.model, error.msg, dend_status_name(error.status),
                (unsigned long long)error.where);
    }
    dend_engine_free(engine);
    dend_model_free(model);
    return result;
}
