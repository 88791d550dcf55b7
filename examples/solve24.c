/* A small model that is searched solves more than the same model that is sampled.
 *
 *     build/solve24 [-m model.gguf] [-b tokens] [-n puzzles] [-f puzzles.txt]
 *     build/solve24 [-m model.gguf] [-b tokens] [-a method] [-x tree.json] "4 7 8 8" "4 7 8 12>27" ...
 *
 * The first form gives every method the same number of generated tokens on
 * puzzles whose numbers the model has never seen, and prints a table; then it
 * draws the tree of one of them. The second form solves puzzles of yours (the
 * target is 24 where none is given), and draws their trees. Methods: greedy,
 * best_of_n, beam, tree_of_thought, depth_first, mcts (default). -x writes the
 * (last) tree to a file, as JSON or, when it ends in .dot, for Graphviz.
 */
#define _POSIX_C_SOURCE 200809L /* isatty, fileno */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#define IS_TERMINAL(f) isatty(fileno(f))
#else
#define IS_TERMINAL(f) 0
#endif

#include "countdown.h"
#include "dendrite.h"

enum { MAX_PUZZLES = 1000, MOST_LINES = 48 };

typedef struct options {
    const char *model, *puzzles, *tree;
    countdown_method method; /* for puzzles of the command line */
    unsigned n_puzzles;
    uint64_t budget;
} options;

typedef struct tally {
    unsigned n, n_solved;
    double tokens, forks, fork_ns, time_us, blocks, copied_blocks;
} tally;

/* Blocks that the tree holds, and those of an engine that copies a branch's context. */
static void count_blocks(dend_engine *engine, const dend_search *search, uint32_t free_before, tally *t) {
    dend_engine_stats stats;
    dend_search_info info;
    uint32_t i;
    dend_engine_get_stats(engine, &stats);
    dend_search_get_info(search, &info);
    t->blocks += free_before - stats.n_blocks_free;
    for (i = 0; i < info.n_slots; i++) {
        dend_node_info node;
        if (dend_search_node(search, i, &node) == DEND_OK && node.seq.generation != 0) {
            t->copied_blocks += (node.len_tokens + 15) / 16;
        }
    }
}

/* Searches one puzzle; the search lives on for the caller to look at. */
static dend_search *solve(dend_engine *engine, const dend_model *model, countdown *puzzle,
                          countdown_method method, uint64_t budget, dend_seq *prompt, tally *t) {
    dend_search_desc desc;
    dend_search *search = NULL;
    dend_search_info info;
    dend_engine_stats before;
    dend_error error;
    dend_engine_get_stats(engine, &before);
    if (dend_seq_create(engine, prompt) != DEND_OK ||
        dend_seq_append_text(engine, *prompt, puzzle->prompt, (size_t)-1, 0) != DEND_OK) {
        fprintf(stderr, "solve24: the prompt does not fit\n");
        exit(1);
    }
    desc = countdown_desc(engine, model, *prompt, puzzle, method, budget);
    if (dend_search_create(&desc, &search, &error) != DEND_OK) {
        fprintf(stderr, "solve24: %s\n", error.msg);
        exit(1);
    }
    dend_search_step(search, 0); /* what it has when it ends for whatever reason is the result */
    dend_search_get_info(search, &info);
    t->n++;
    t->n_solved += info.end == DEND_SEARCH_SOLVED;
    t->tokens += (double)info.n_tokens;
    t->forks += (double)info.n_forks;
    t->fork_ns += (double)info.fork_ns;
    t->time_us += (double)info.time_us;
    count_blocks(engine, search, before.n_blocks_free, t);
    return search;
}

/* Wilson's interval of a share, 95%, in percent. */
static void interval(unsigned n_solved, unsigned n, double *low, double *high) {
    double z = 1.96, p = (double)n_solved / n, centre = p + z * z / (2 * n);
    double spread = z * sqrt(p * (1 - p) / n + z * z / (4.0 * n * n)), scale = 100 / (1 + z * z / n);
    *low = (centre - spread) * scale;
    *high = (centre + spread) * scale;
}

static void progress(const char *name, unsigned done, unsigned n) {
    if (IS_TERMINAL(stderr)) {
        unsigned i, width = 40, filled = done * width / n;
        fprintf(stderr, "\r%-16s [", name);
        for (i = 0; i < width; i++) {
            fputc(i < filled ? '#' : ' ', stderr);
        }
        fprintf(stderr, done == n ? "]\r\033[K" : "] %u/%u", done, n);
        fflush(stderr);
    }
}

/* -- the tree in the terminal ----------------------------------------------------------------- */

typedef struct drawing {
    const dend_search *search;
    uint32_t best; /* its path is marked */
    unsigned n_lines, n_left_out;
    bool colours;
} drawing;

/* What a model writes must not steer the terminal. */
static void make_plain(char *text) {
    for (; *text; text++) {
        *text = (char)((unsigned char)*text < 32 || (unsigned char)*text > 126 ? '?' : *text);
    }
}

static bool is_on_path(const dend_search *search, uint32_t node, uint32_t end) {
    dend_node_info info;
    while (end != DEND_NODE_NONE && end != node && dend_search_node(search, end, &info) == DEND_OK) {
        end = info.parent;
    }
    return end == node;
}

/* Nodes below `node`, a line each; `prefix` is what stands before their branches. Depth is at most the puzzle's. */
static void draw(drawing *d, uint32_t node, const char *prefix) {
    static const char *const marks[] = {"", " (unfinished)", "  SOLVED", "", "  x", "", "  = another node"};
    dend_node_info info, child;
    uint32_t id;
    if (dend_search_node(d->search, node, &info) != DEND_OK) {
        return;
    }
    for (id = info.first_child; id != DEND_NODE_NONE; id = child.next_sibling) {
        char text[COUNTDOWN_TEXT], next[COUNTDOWN_TEXT];
        bool marked;
        dend_search_node(d->search, id, &child);
        marked = is_on_path(d->search, id, d->best);
        if (d->n_lines >= MOST_LINES && !marked) {
            d->n_left_out++;
            continue;
        }
        dend_search_step_text(d->search, id, text, sizeof text);
        make_plain(text);
        printf("%s%s %s%s%s%s", prefix, child.next_sibling == DEND_NODE_NONE ? "`--" : "|--",
               d->colours && marked ? "\033[1;32m" : "", text, d->colours && marked ? "\033[0m" : "",
               marks[child.state]);
        if (child.state == DEND_NODE_CLOSED && child.visits == 0) {
            printf("   (cut off)");
        } else if (child.state == DEND_NODE_OPEN || child.state == DEND_NODE_CLOSED) {
            printf("   value %.2f", (double)child.value);
        }
        printf("\n");
        d->n_lines++;
        snprintf(next, sizeof next, "%s%s", prefix, child.next_sibling == DEND_NODE_NONE ? "    " : "|   ");
        draw(d, id, next);
    }
}

static void draw_tree(const dend_search *search, const countdown *puzzle) {
    drawing d;
    dend_search_info info;
    char text[COUNTDOWN_TEXT];
    memset(&d, 0, sizeof d);
    dend_search_get_info(search, &info);
    d.search = search;
    d.best = info.best;
    d.colours = IS_TERMINAL(stdout);
    printf("%s\n", puzzle->prompt);
    draw(&d, 0, "");
    if (d.n_left_out) {
        printf("... and %u more branches\n", d.n_left_out);
    }
    dend_search_text(search, info.best, text, sizeof text);
    make_plain(text);
    printf("%s: %s   (%u nodes, %llu tokens, %llu forks)\n",
           info.end == DEND_SEARCH_SOLVED ? "solved" : "not solved", text, info.n_nodes,
           (unsigned long long)info.n_tokens, (unsigned long long)info.n_forks);
}

/* -- the table ------------------------------------------------------------------------------------ */

static void run_table(dend_engine *engine, const dend_model *model, const options *o, countdown *puzzles,
                      unsigned n) {
    static bool solved[COUNTDOWN_N_METHODS][MAX_PUZZLES];
    unsigned method, i, shown = n;
    dend_seq prompt;
    printf("%u puzzles with numbers that the model has never seen, %llu tokens each\n"
           "(temperature 0.7; docs/search.md has 400 puzzles, three temperatures and four budgets)\n\n",
           n, (unsigned long long)o->budget);
    printf(
        "method            solved   95%% interval   tokens    forks  ns/fork   blocks  copying   tokens\n");
    printf(
        "                                        a solve   a puzzle          a puzzle   engine   a second\n");
    for (method = 0; method < COUNTDOWN_N_METHODS; method++) {
        tally t;
        double low, high;
        memset(&t, 0, sizeof t);
        for (i = 0; i < n; i++) {
            unsigned before = t.n_solved;
            dend_search *search =
                solve(engine, model, &puzzles[i], (countdown_method)method, o->budget, &prompt, &t);
            solved[method][i] = t.n_solved > before;
            dend_search_free(search);
            dend_seq_drop(engine, prompt);
            progress(countdown_names[method], i + 1, n);
        }
        interval(t.n_solved, n, &low, &high);
        printf("%-16s %6.1f%%  %5.1f - %4.1f%%  %7.0f  %7.1f  %7.0f  %7.1f  %7.1f  %9.0f\n",
               countdown_names[method], 100.0 * t.n_solved / n, low, high,
               t.tokens / (t.n_solved ? t.n_solved : 1), t.forks / n, t.fork_ns / (t.forks > 0 ? t.forks : 1),
               t.blocks / n, t.copied_blocks / n, 1e6 * t.tokens / t.time_us);
        fflush(stdout);
    }
    for (i = 0; i < n && shown == n; i++) { /* one that needs the search */
        if (solved[COUNTDOWN_MCTS][i] && !solved[COUNTDOWN_GREEDY][i] && !solved[COUNTDOWN_BEST_OF_N][i]) {
            shown = i;
        }
    }
    if (shown < n) {
        tally unused;
        dend_search *search;
        memset(&unused, 0, sizeof unused);
        search = solve(engine, model, &puzzles[shown], COUNTDOWN_MCTS, o->budget, &prompt, &unused);
        printf("\nA puzzle that sampling did not solve, by MCTS (x: the model or the judge gave the step "
               "up):\n\n");
        draw_tree(search, &puzzles[shown]);
        dend_search_free(search);
        dend_seq_drop(engine, prompt);
    }
}

static bool write_to_file(void *user, const void *data, size_t n) {
    return fwrite(data, 1, n, (FILE *)user) == n;
}

static bool save_tree(const dend_search *search, const char *path) {
    size_t n = strlen(path);
    bool dot = n > 4 && strcmp(path + n - 4, ".dot") == 0, ok;
    dend_writer writer;
    FILE *f = fopen(path, "w");
    writer.write = write_to_file;
    writer.user = f;
    ok = f && dend_search_export(search, dot ? DEND_EXPORT_DOT : DEND_EXPORT_JSON, &writer) == DEND_OK;
    ok = f && fclose(f) == 0 && ok;
    if (!ok) {
        fprintf(stderr, "solve24: %s cannot be written\n", path);
    }
    return ok;
}

/* "tree_of_thought" or "tree of thought"; N_METHODS = none of them. */
static countdown_method method_of(const char *name) {
    unsigned m, i;
    for (m = 0; m < COUNTDOWN_N_METHODS; m++) {
        for (i = 0; name[i] &&
                    (name[i] == countdown_names[m][i] || (name[i] == '_' && countdown_names[m][i] == ' '));
             i++) {
        }
        if (!name[i] && !countdown_names[m][i]) {
            break;
        }
    }
    return (countdown_method)m;
}

/* Options may stand anywhere; what is none is a puzzle, and moves to the front of argv. */
static bool read_options(int argc, char **argv, options *o, int *n_texts) {
    int i;
    *n_texts = 0;
    o->model = "examples/models/countdown.gguf";
    o->puzzles = "examples/models/countdown_test.txt";
    o->tree = NULL;
    o->method = COUNTDOWN_MCTS;
    o->n_puzzles = 100;
    o->budget = 264;
    for (i = 1; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        char *end = NULL;
        unsigned long long v = strtoull(value, &end, 10);
        bool is_number = value[0] >= '0' && value[0] <= '9' && !*end;
        if (option[0] != '-') {
            argv[(*n_texts)++] = argv[i];
            continue;
        }
        i++; /* all options have a value */
        if (!*value) {
            return false;
        } else if (strcmp(option, "-m") == 0) {
            o->model = value;
        } else if (strcmp(option, "-f") == 0) {
            o->puzzles = value;
        } else if (strcmp(option, "-x") == 0) {
            o->tree = value;
        } else if (strcmp(option, "-a") == 0 && method_of(value) != COUNTDOWN_N_METHODS) {
            o->method = method_of(value);
        } else if (strcmp(option, "-n") == 0 && is_number && v > 0) {
            o->n_puzzles = v < MAX_PUZZLES ? (unsigned)v : MAX_PUZZLES;
        } else if (strcmp(option, "-b") == 0 && is_number && v > 0 && v <= 20000) {
            o->budget = v;
        } else {
            return false;
        }
    }
    return *n_texts > 0 || !o->tree; /* a tree is that of a puzzle */
}

int main(int argc, char **argv) {
    static countdown puzzles[MAX_PUZZLES];
    options o;
    dend_model_desc md;
    dend_engine_desc ed;
    dend_model *model;
    dend_engine *engine;
    dend_error error;
    unsigned n;
    const char *program = argv[0];
    int i, n_texts, failed = 0;
    if (!read_options(argc, argv, &o, &n_texts)) {
        fprintf(stderr,
                "usage: %s [-m model.gguf] [-b tokens, to 20000] [-n puzzles] [-f file]\n"
                "       %s [-m model.gguf] [-b tokens] [-a method] [-x tree.json|tree.dot] puzzle ...\n"
                "puzzles: \"4 7 8 8\" (for 24), \"4 7 8 12>27\"; numbers of 1 to 13, targets of 10 to 100\n"
                "methods: greedy, best_of_n, beam, tree_of_thought, depth_first, mcts\n",
                program, program);
        return 2;
    }
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    md.path = o.model;
    if (dend_model_load(&md, &model, &error) != DEND_OK) {
        fprintf(stderr, "solve24: %s: %s\n", o.model, error.msg);
        return 1;
    }
    ed.model = model;
    ed.n_seqs = 4096;
    ed.n_blocks = 8192;
    if (dend_engine_create(&ed, &engine, &error) != DEND_OK) {
        fprintf(stderr, "solve24: %s\n", error.msg);
        return 1;
    }
    if (countdown_token(model, ".") < 0 || countdown_token(model, "!") < 0) {
        fprintf(stderr, "solve24: %s does not know \".\" and \"!\"\n", o.model);
        failed = 1;
    } else if (n_texts > 0) {
        for (i = 0; i < n_texts; i++) {
            tally t;
            dend_seq prompt;
            dend_search *search;
            if (!countdown_read(&puzzles[0], argv[i])) {
                fprintf(stderr, "solve24: no puzzle: \"%s\" (such as \"4 7 8 12>27\")\n", argv[i]);
                failed = 1;
                continue;
            }
            memset(&t, 0, sizeof t);
            search = solve(engine, model, &puzzles[0], o.method, o.budget, &prompt, &t);
            draw_tree(search, &puzzles[0]);
            if (o.tree && !save_tree(search, o.tree)) {
                failed = 1;
            }
            dend_search_free(search);
            dend_seq_drop(engine, prompt);
        }
    } else if ((n = countdown_read_file(o.puzzles, puzzles, o.n_puzzles)) > 0) {
        run_table(engine, model, &o, puzzles, n);
    } else {
        fprintf(stderr, "solve24: no puzzles in %s\n", o.puzzles);
        failed = 1;
    }
    dend_engine_free(engine);
    dend_model_free(model);
    return fflush(stdout) != 0 || ferror(stdout) ? 1 : failed;
}
