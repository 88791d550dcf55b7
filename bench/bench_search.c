/* Search beside sampling, on the model that the project carries, and what search
 * itself costs, on SmolLM2 where it is there.
 *
 *     build/bench_search [-n puzzles] [-o file.json] [-f puzzles.txt] [-s smollm2.gguf]
 *     make bench-search [N=puzzles] [OUT=file.json]
 *
 * Every method solves the same held-out puzzles (examples/countdown.h) with
 * budgets of 132, 264, 528 and 1,056 generated tokens. A token is charged in
 * whichever branch it is generated; all methods have the same judge, which knows
 * whether a step is legal and whether the last number is the target. Best of N
 * runs at three temperatures; what is compared is the best of them on these very
 * puzzles. The search that is compared with it is the one with the most solved at
 * that budget. Intervals are a paired bootstrap over puzzles (10,000 resamples).
 *
 * Then, on SmolLM2 behind a prompt of 512 tokens: nodes grown a second with one
 * lane and with eight, in turns; and the share of the time in which neither the
 * model runs, nor logits are read, nor the judge is called: forks, drops, tree.
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "../examples/countdown.h"

enum {
    MAX_PUZZLES = 1000,
    N_BUDGETS = 4,
    N_COLUMNS = COUNTDOWN_N_METHODS + 2,
    RESAMPLES = 10000,
    ROUNDS = 5
};

static const uint64_t budgets[N_BUDGETS] = {132, 264, 528, 1056};

/* Columns: best of n takes three, for its temperatures. */
typedef struct column {
    const char *name;
    countdown_method method;
    float temperature;
} column;

static const column columns[N_COLUMNS] = {
    {"greedy", COUNTDOWN_GREEDY, 0.0f},
    {"best_of_n_t05", COUNTDOWN_BEST_OF_N, 0.5f},
    {"best_of_n_t07", COUNTDOWN_BEST_OF_N, 0.7f},
    {"best_of_n_t10", COUNTDOWN_BEST_OF_N, 1.0f},
    {"beam", COUNTDOWN_BEAM, 0.0f},
    {"tot", COUNTDOWN_TREE_OF_THOUGHT, 0.0f},
    {"depth_first", COUNTDOWN_DEPTH_FIRST, 0.0f},
    {"mcts", COUNTDOWN_MCTS, 0.0f},
};

typedef struct bench {
    dend_engine *engine;
    dend_model *model;
    countdown puzzles[MAX_PUZZLES];
    bool solved[N_COLUMNS][N_BUDGETS][MAX_PUZZLES];
    unsigned n;
    double parallel8_x, bookkeeping_pct, node_bytes; /* below 0 = not measured */
} bench;

static void die(const char *what, const char *why) {
    fprintf(stderr, "bench_search: %s: %s\n", what, why);
    exit(1);
}

static dend_model *load(const char *path, bool must) {
    dend_model_desc d;
    dend_model *model = NULL;
    dend_error error;
    memset(&d, 0, sizeof d);
    d.path = path;
    if (dend_model_load(&d, &model, &error) != DEND_OK && must) {
        die(path, error.msg);
    }
    return model;
}

/* Runs a search to its end. */
static dend_search_info run(const dend_search_desc *desc) {
    dend_search *search;
    dend_search_info info;
    dend_error error;
    if (dend_search_create(desc, &search, &error) != DEND_OK) {
        die("search", error.msg);
    }
    if (dend_search_step(search, 0) != DEND_OK) {
        die("search", "out of room");
    }
    dend_search_get_info(search, &info);
    dend_search_free(search);
    return info;
}

static bool solve(bench *b, countdown *puzzle, const column *c, uint64_t budget) {
    dend_seq prompt;
    dend_search_desc desc;
    dend_search_info info;
    if (dend_seq_create(b->engine, &prompt) != DEND_OK ||
        dend_seq_append_text(b->engine, prompt, puzzle->prompt, (size_t)-1, 0) != DEND_OK) {
        die("prompt", "does not fit");
    }
    desc = countdown_desc(b->engine, b->model, prompt, puzzle, c->method, budget);
    if (c->temperature > 0.0f) {
        desc.temperature = c->temperature;
    }
    info = run(&desc);
    if (info.n_tokens > budget) {
        die("search", "took more tokens than it may");
    }
    dend_seq_drop(b->engine, prompt);
    return info.end == DEND_SEARCH_SOLVED;
}

static double percent(const bench *b, unsigned c, unsigned k) {
    unsigned i, n = 0;
    for (i = 0; i < b->n; i++) {
        n += b->solved[c][k][i];
    }
    return 100.0 * n / b->n;
}

/* The column of [first, last] that solves most at a budget. */
static unsigned best_of(const bench *b, unsigned first, unsigned last, unsigned k) {
    unsigned c, best = first;
    for (c = first + 1; c <= last; c++) {
        best = percent(b, c, k) > percent(b, best, k) ? c : best;
    }
    return best;
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The difference of two columns in points: paired bootstrap, 2.5th and 97.5th percentile. */
static void bootstrap(const bench *b, unsigned one, unsigned other, unsigned k, double *low, double *high) {
    static double differences[RESAMPLES];
    uint64_t state = 20261;
    unsigned r, i;
    for (r = 0; r < RESAMPLES; r++) {
        int sum = 0;
        for (i = 0; i < b->n; i++) {
            unsigned at;
            state = state * 6364136223846793005u + 1442695040888963407u;
            at = (unsigned)((state >> 33) % b->n);
            sum += (int)b->solved[one][k][at] - (int)b->solved[other][k][at];
        }
        differences[r] = 100.0 * sum / b->n;
    }
    qsort(differences, RESAMPLES, sizeof differences[0], compare_doubles);
    *low = differences[RESAMPLES / 40];
    *high = differences[RESAMPLES - 1 - RESAMPLES / 40];
}

/* -- what search costs -------------------------------------------------------------------- */

/* Nodes a second of one search, and its share of bookkeeping. */
static double grow(dend_engine *engine, dend_seq prompt, uint32_t n_lanes, uint64_t tokens,
                   double *bookkeeping) {
    dend_search_desc desc;
    dend_search_info info;
    memset(&desc, 0, sizeof desc);
    desc.engine = engine;
    desc.prompt = prompt;
    desc.step_end = DEND_STEP_DELIMITER;
    desc.delimiters = ".,\n";
    desc.max_step_tokens = 12;
    desc.max_tokens = tokens;
    desc.n_lanes = n_lanes;
    info = run(&desc);
    *bookkeeping = 100.0 * (double)(info.time_us - info.model_us - info.choose_us - info.judge_us) /
                   (double)info.time_us;
    return 1e6 * (info.n_nodes - 1) / (double)info.time_us;
}

static void measure_cost(bench *b, const char *path) {
    static const char text[] =
        "The old lighthouse keeper wrote in his book every night. He wrote of ships and storms, of "
        "birds that struck the glass, and of the long silence between them. ";
    dend_model *model = load(path, false);
    dend_engine_desc ed;
    dend_engine *engine;
    dend_seq prompt;
    dend_seq_info info;
    double ratios[ROUNDS], shares[ROUNDS], rates[2], unused;
    unsigned r;
    b->parallel8_x = b->bookkeeping_pct = -1;
    if (!model) {
        printf("\n%s is not here: what search costs was not measured\n", path);
        return;
    }
    memset(&ed, 0, sizeof ed);
    ed.model = model;
    ed.n_seqs = 2048;
    ed.n_blocks = 1536;
    if (dend_engine_create(&ed, &engine, NULL) != DEND_OK || dend_seq_create(engine, &prompt) != DEND_OK) {
        die(path, "no engine");
    }
    do { /* 512 tokens */
        if (dend_seq_append_text(engine, prompt, text, (size_t)-1, 0) != DEND_OK) {
            die(path, "the prompt does not fit");
        }
        dend_seq_get_info(engine, prompt, &info);
    } while (info.len_tokens < 512);
    dend_seq_rewind(engine, prompt, 512);
    dend_step(engine, 0);
    printf("\nSmolLM2, 512-token prompt, MCTS           nodes/s, 1 lane   8 lanes   ratio   bookkeeping\n");
    for (r = 0; r < ROUNDS; r++) {
        rates[0] = grow(engine, prompt, 1, 256, &unused);
        rates[1] = grow(engine, prompt, 8, 1024, &shares[r]);
        ratios[r] = rates[1] / rates[0];
        printf("round %u %47.1f %9.1f %7.2f %11.2f%%\n", r + 1, rates[0], rates[1], ratios[r], shares[r]);
    }
    qsort(ratios, ROUNDS, sizeof ratios[0], compare_doubles);
    qsort(shares, ROUNDS, sizeof shares[0], compare_doubles);
    b->parallel8_x = ratios[ROUNDS / 2];
    b->bookkeeping_pct = shares[ROUNDS / 2];
    dend_engine_free(engine);
    dend_model_free(model);
}

static void measure_node(bench *b) {
    dend_search_desc desc;
    dend_seq prompt;
    int32_t token = 1;
    uint64_t small = 0, large = 0;
    if (dend_seq_create(b->engine, &prompt) != DEND_OK ||
        dend_seq_append(b->engine, prompt, &token, 1) != DEND_OK) {
        die("prompt", "does not fit");
    }
    memset(&desc, 0, sizeof desc);
    desc.engine = b->engine;
    desc.prompt = prompt;
    desc.max_tokens = 1u << 24;
    desc.n_nodes = 1u << 16;
    dend_search_plan(&desc, &small, NULL);
    desc.n_nodes = 1u << 17;
    dend_search_plan(&desc, &large, NULL);
    b->node_bytes = (double)(large - small) / (1u << 16);
    dend_seq_drop(b->engine, prompt);
}

/* -- results --------------------------------------------------------------------------------- */

static void number_or_null(FILE *f, const char *name, double v) {
    if (v < 0) {
        fprintf(f, "  \"%s\": null,\n", name);
    } else {
        fprintf(f, "  \"%s\": %.4g,\n", name, v);
    }
}

static void report(const bench *b, const char *out) {
    const unsigned at = 1, wide = 2; /* 264 and 528 tokens */
    unsigned sampled = best_of(b, 1, 3, at), searched = best_of(b, 4, N_COLUMNS - 1, at);
    unsigned widest = best_of(b, 4, N_COLUMNS - 1, wide), c, k;
    double low, high,
        vs_sampled = percent(b, searched, at) / (percent(b, sampled, at) > 0 ? percent(b, sampled, at) : 1);
    double greedy = percent(b, 0, wide), vs_greedy = percent(b, widest, wide) / (greedy > 0 ? greedy : 1);
    FILE *f;
    bootstrap(b, searched, sampled, at, &low, &high);
    printf("\nat 264 tokens %s solves %.1f points more than %s (95%%: %.1f to %.1f), %.2f times as many\n",
           columns[searched].name, percent(b, searched, at) - percent(b, sampled, at), columns[sampled].name,
           low, high, vs_sampled);
    printf("at 528 tokens %s solves %.2f times as many as greedy\n", columns[widest].name, vs_greedy);
    printf("a node costs %.0f bytes beside its blocks\n", b->node_bytes);
    if (!out) {
        return;
    }
    f = fopen(out, "w");
    if (!f) {
        die(out, "cannot be written");
    }
    fprintf(f, "{\n");
    for (k = 0; k < N_BUDGETS; k++) {
        for (c = 0; c < N_COLUMNS; c++) {
            fprintf(f, "  \"%s_%llu_pct\": %.1f,\n", columns[c].name, (unsigned long long)budgets[k],
                    percent(b, c, k));
        }
    }
    fprintf(f, "  \"greedy_pct\": %.1f,\n  \"best_of_n_pct\": %.1f,\n", percent(b, 0, at),
            percent(b, sampled, at));
    fprintf(f, "  \"beam_pct\": %.1f,\n  \"tot_pct\": %.1f,\n", percent(b, 4, at), percent(b, 5, at));
    fprintf(f, "  \"depth_first_pct\": %.1f,\n  \"mcts_pct\": %.1f,\n", percent(b, 6, at), percent(b, 7, at));
    fprintf(f, "  \"best_vs_greedy\": %.3f,\n  \"best_vs_best_of_n\": %.3f,\n", vs_greedy, vs_sampled);
    fprintf(f, "  \"best_vs_best_of_n_points\": %.1f,\n", percent(b, searched, at) - percent(b, sampled, at));
    fprintf(f, "  \"best_vs_best_of_n_ci_low\": %.1f,\n  \"best_vs_best_of_n_ci_high\": %.1f,\n", low, high);
    fprintf(f, "  \"best_method\": \"%s\",\n  \"budget_tokens\": 264,\n  \"puzzles\": %u,\n",
            columns[searched].name, b->n);
    number_or_null(f, "parallel8_x", b->parallel8_x);
    number_or_null(f, "bookkeeping_pct", b->bookkeeping_pct);
    fprintf(f, "  \"node_bytes\": %.0f\n}\n", b->node_bytes);
    if (fclose(f) != 0) {
        die(out, "cannot be written");
    }
}

int main(int argc, char **argv) {
    static bench b;
    const char *out = NULL, *path = "examples/models/countdown_test.txt";
    const char *smollm2 = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    unsigned most = 400, c, k, i;
    dend_engine_desc ed;
    for (i = 1; i + 1 < (unsigned)argc; i += 2) {
        if (strcmp(argv[i], "-n") == 0) {
            most = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "-o") == 0) {
            out = argv[i + 1];
        } else if (strcmp(argv[i], "-f") == 0) {
            path = argv[i + 1];
        } else if (strcmp(argv[i], "-s") == 0) {
            smollm2 = argv[i + 1];
        } else {
            die(argv[i], "unknown option");
        }
    }
    b.n = countdown_read_file(path, b.puzzles, most < MAX_PUZZLES ? most : MAX_PUZZLES);
    if (b.n == 0) {
        die(path, "no puzzles");
    }
    b.model = load("examples/models/countdown.gguf", true);
    memset(&ed, 0, sizeof ed);
    ed.model = b.model;
    ed.n_seqs = 4096;
    ed.n_blocks = 16384;
    if (dend_engine_create(&ed, &b.engine, NULL) != DEND_OK) {
        die("engine", "no memory");
    }
    printf("%u puzzles: percent solved with so many generated tokens\n\n%-16s", b.n, "");
    for (k = 0; k < N_BUDGETS; k++) {
        printf("%8llu", (unsigned long long)budgets[k]);
    }
    printf("\n");
    for (c = 0; c < N_COLUMNS; c++) {
        printf("%-16s", columns[c].name);
        for (k = 0; k < N_BUDGETS; k++) {
            for (i = 0; i < b.n; i++) {
                b.solved[c][k][i] = solve(&b, &b.puzzles[i], &columns[c], budgets[k]);
            }
            printf("%8.1f", percent(&b, c, k));
            fflush(stdout);
        }
        printf("\n");
    }
    measure_node(&b);
    measure_cost(&b, smollm2);
    report(&b, out);
    dend_engine_free(b.engine);
    dend_model_free(b.model);
    return 0;
}
