/* Search on a real model, and on a task whose answers can be checked: sums in words.
 *
 *     make bench-search-real [N=problems] [OUT=file.json]
 *     build/bench_search_real [-n problems] [-b tokens] [-s seed] [-t threads] [-d problems.jsonl]
 *                             [-o file.json] [-v] [model.gguf]
 *
 * Each problem of bench/data/gsm8k.jsonl is solved in five ways:
 *
 *     greedy       the likeliest token each time (dend_next)
 *     majority     best of N, the most common answer (self-consistency)
 *     likeliest    the same samples, the answer of the best mean log-probability
 *     thought      tree of thought, breadth first; the model itself judges each line (DEND_VALUE_SELF)
 *     mcts         PUCT; each new line is continued to its end (DEND_VALUE_ROLLOUT)
 *
 * THE BUDGET of each search is six times the tokens that greedy took on the problem: about six answers' worth.
 * (-b 8x: eight times; -b 600: that number for every problem.) Only generated tokens count. A search also
 * computes rows that it does not generate: the question that asks the model for its opinion, tokens that are
 * computed again. "rows" is all that went through the model behind the prompt.
 *
 * NO ORACLE  The judge reads the answer that a text ends with, whatever it is, and makes it the node's key; it
 * does not know the right one. Three figures are taken afterwards:
 *
 *     right   the answer that the method chooses is the right one
 *     vote    the most common answer of all that it found is
 *     any     one of them is: what the best chooser of answers could get
 *
 * -v prints the texts that were chosen. A model must know ChatML.
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include <stdio.h>

enum {
    MAX_PROBLEMS = 256,
    MAX_LINE = 8192,      /* bytes of a line of the data */
    MAX_TEXT = 16 * 1024, /* bytes of a prompt, or of a solution */
    MAX_TOKENS = 4096,    /* of a solution */
    MAX_LINES = 64,       /* of a solution: depth of a tree */
    MAX_ANSWERS = 4096,   /* of one search */
    MAX_GREEDY = 256      /* tokens: a model that has not answered by then goes on forever */
};

typedef struct problem {
    char prompt[MAX_LINE];
    double answer;
} problem;

/* What a method did, over all problems. */
typedef struct tally {
    uint32_t n_right, n_vote, n_any;
    uint32_t n_answers; /* texts that ended with one */
    uint64_t n_tokens, n_rows, n_forks;
    uint64_t time_ns, model_ns, choose_ns, judge_ns;
} tally;

/* An answer that was chosen. */
typedef struct choice {
    uint64_t key;
    float value;
    bool found;
} choice;

enum { GREEDY, MAJORITY, LIKELIEST, THOUGHT, MCTS, N_METHODS };

static const struct {
    const char *key, *text;
} methods[N_METHODS] = {{"greedy", "greedy"},
                        {"majority", "best of N, majority"},
                        {"likeliest", "its likeliest answer"},
                        {"thought", "tree of thought"},
                        {"mcts", "MCTS"}};

typedef struct bench {
    dend_model *model;
    dend_engine *engine;
    const char *model_path;
    problem problems[MAX_PROBLEMS];
    uint32_t n_problems;
    uint64_t budget, seed; /* tokens; or, with times_greedy, how many times greedy's */
    bool times_greedy;
    bool verbose;
    uint32_t n_threads;
    int32_t question[64], yes, no; /* asks the model for its opinion, in the middle of its answer */
    size_t n_question;
    bool asks; /* values of this search are the model's opinion */
    tally tallies[N_METHODS];
    char text[MAX_TEXT];
    int32_t tokens[MAX_TOKENS];
    bool failed;
} bench;

/* Every status passes through here; false = the figures are worth nothing. */
static bool must(bench *b, dend_status status, const char *what) {
    if (status < 0 && !b->failed) {
        fprintf(stderr, "bench_search_real: %s: %s\n", what, dend_status_text(status));
        b->failed = true;
    }
    return !b->failed;
}

/* -- problems ------------------------------------------------------------------------ */

/* Copies the string behind "key": to out; the few escapes that the data has. */
static bool read_string(const char *line, const char *key, char *out, size_t cap) {
    const char *at = strstr(line, key);
    size_t n = 0;
    at = at ? strchr(at + strlen(key), '"') : NULL;
    if (!at) {
        return false;
    }
    for (at++; *at && *at != '"' && n + 1 < cap; at++) {
        if (*at == '\\') {
            at++;
            if (*at != 'n' && *at != '"' && *at != '\\' && *at != '/') {
                return false;
            }
            out[n++] = *at == 'n' ? '\n' : *at;
        } else {
            out[n++] = *at;
        }
    }
    out[n] = 0;
    return *at == '"';
}

static bool read_problems(bench *b, const char *path) {
    char line[MAX_LINE];
    FILE *f = fopen(path, "r");
    bool ok = f != NULL;
    while (ok && b->n_problems < MAX_PROBLEMS && fgets(line, sizeof line, f)) {
        problem *p = &b->problems[b->n_problems];
        const char *answer = strstr(line, "\"answer\":");
        ok = answer && read_string(line, "\"prompt\":", p->prompt, sizeof p->prompt);
        if (ok) {
            p->answer = strtod(answer + strlen("\"answer\":"), NULL);
            b->n_problems++;
        }
    }
    if (f) {
        fclose(f);
    }
    return ok && b->n_problems > 0;
}

/* -- answers ------------------------------------------------------------------------- */

/* The first or the last number of a text as people write it: "$1,234.50". */
static bool find_number(const char *text, bool last, double *out) {
    bool found = false;
    while (*text) {
        char digits[32];
        size_t n = 0;
        bool minus = *text == '-' && text[1] >= '0' && text[1] <= '9';
        text += minus;
        if (*text < '0' || *text > '9') {
            text++;
            continue;
        }
        while (n + 1 < sizeof digits) {
            if ((*text >= '0' && *text <= '9') || (*text == '.' && text[1] >= '0' && text[1] <= '9')) {
                digits[n++] = *text++;
            } else if (*text == ',' && strspn(text + 1, "0123456789") == 3) {
                text++;
            } else {
                break;
            }
        }
        digits[n] = 0;
        *out = minus ? -strtod(digits, NULL) : strtod(digits, NULL);
        found = true;
        if (!last) {
            break;
        }
        text += strspn(text, "0123456789"); /* of a number without end */
    }
    return found;
}

/* The answer that a line gives: "Answer: 12 apples", "#### 12", "Answer: 3 * 4 = 12". */
static bool read_answer(const char *line, double *out) {
    const char *at = strstr(line, "Answer:"), *equals;
    at = at ? at : strstr(line, "####");
    if (!at) {
        return false;
    }
    equals = strrchr(at, '=');
    return find_number(equals ? equals : at, false, out);
}

/* Equal answers have equal keys. */
static uint64_t answer_key(double answer) {
    return answer > -1e12 && answer < 1e12 ? (uint64_t)llround(answer * 1000.0) : UINT64_MAX;
}

/* Whether a text has come to an answer: a line says so, or the text is over, and then its last number counts. */
static bool judge_text(const char *text, const char *line, bool over, uint64_t *key) {
    double answer;
    if (!read_answer(line, &answer) && !(over && find_number(text, true, &answer))) {
        return false;
    }
    *key = answer_key(answer);
    return true;
}

/* The judge. A text with an answer is SOLVED, right or wrong; one that is over without any leads nowhere. */
static void judge(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    bench *b = (bench *)user;
    dend_node_info info, parent;
    char line[MAX_TEXT];
    size_t n = dend_search_tokens(search, node, b->tokens, MAX_TOKENS);
    bool over = n == 0 || n > MAX_TOKENS || dend_token_is_end(b->model, b->tokens[n - 1]);
    if (dend_search_node(search, node, &info) != DEND_OK) {
        return;
    }
    over = over || info.depth >= MAX_LINES;
    line[0] = 0;
    dend_search_step_text(search, node, line, sizeof line);
    if (over) {
        dend_search_text(search, node, b->text, sizeof b->text);
    }
    if (judge_text(b->text, line, over, &verdict->key)) {
        verdict->kind = DEND_VERDICT_SOLVED;
        /* The model is not asked about a line behind which its text is over, and would be asked in vain: the
         * answer is worth what the work above it is. */
        if (b->asks && info.parent != 0 && dend_search_node(search, info.parent, &parent) == DEND_OK) {
            verdict->value = parent.value;
        }
    } else if (over) {
        verdict->kind = DEND_VERDICT_DEAD;
    }
}

/* -- methods ------------------------------------------------------------------------- */

/* The prompt, computed. Two worked examples, and the first line of the answer: told in words alone, a small model
 * writes essays. */
static bool make_prompt(bench *b, const problem *p, dend_seq *out) {
    snprintf(
        b->text, sizeof b->text,
        "<|im_start|>system\nYou solve word problems in short lines of plain text.<|im_end|>\n"
        "<|im_start|>user\nTom has 3 boxes with 12 pencils each. He gives away 10 pencils and then buys 5 "
        "more. How many pencils does Tom have now?<|im_end|>\n"
        "<|im_start|>assistant\nStep by step:\n"
        "Tom has 3 * 12 = 36 pencils in his boxes.\n"
        "After giving away 10 he has 36 - 10 = 26 pencils.\n"
        "After buying 5 he has 26 + 5 = 31 pencils.\n"
        "Answer: 31<|im_end|>\n"
        "<|im_start|>user\nA shop sells 40 loaves a day. A quarter of them are white, and half of the rest "
        "are rye. How many loaves of rye does it sell in 5 days?<|im_end|>\n"
        "<|im_start|>assistant\nStep by step:\n"
        "The shop sells 40 / 4 = 10 white loaves a day.\n"
        "The rest are 40 - 10 = 30 loaves.\n"
        "Half of the rest are rye: 30 / 2 = 15 loaves.\n"
        "In 5 days it sells 15 * 5 = 75 loaves of rye.\n"
        "Answer: 75<|im_end|>\n"
        "<|im_start|>user\n%s<|im_end|>\n"
        "<|im_start|>assistant\nStep by step:\n",
        p->prompt);
    return must(b, dend_seq_create(b->engine, out), "prompt") &&
           must(b, dend_seq_append_text(b->engine, *out, b->text, (size_t)-1, 0), "prompt") &&
           must(b, dend_step(b->engine, 0), "prompt");
}

static void print_text(const char *method, const char *text) {
    printf("---- %s\n%s\n", method, text);
}

/* Returns how many tokens it took. */
static uint64_t solve_greedy(bench *b, dend_seq prompt, choice *out) {
    tally *t = &b->tallies[GREEDY];
    dend_seq seq;
    size_t n_bytes, at = 0, line = 0;
    uint64_t n_tokens = 0;
    memset(out, 0, sizeof *out);
    b->text[0] = 0;
    if (!must(b, dend_seq_fork(b->engine, prompt, 0, &seq), "fork")) {
        return 0;
    }
    while (!out->found && n_tokens < MAX_GREEDY) {
        uint64_t start = dendp_now_ns(), stepped, chosen;
        dend_status status = dend_step(b->engine, 0); /* dend_next would, but its time is to be known */
        const char *bytes;
        int32_t token;
        stepped = dendp_now_ns();
        if (!must(b, status, "step")) {
            break;
        }
        status = dend_next(b->engine, seq, NULL, &token);
        chosen = dendp_now_ns();
        if (!must(b, status, "next")) {
            break;
        }
        n_tokens++;
        bytes = dend_token_bytes(b->model, token, &n_bytes);
        if (at + n_bytes < sizeof b->text) {
            memcpy(b->text + at, bytes, n_bytes);
            at += n_bytes;
            b->text[at] = 0;
        }
        if (status == DEND_END || memchr(bytes, '\n', n_bytes)) {
            out->found = judge_text(b->text, b->text + line, status == DEND_END, &out->key);
            line = at;
        }
        t->model_ns += stepped - start;
        t->choose_ns += chosen - stepped;
        t->judge_ns += dendp_now_ns() - chosen;
        t->time_ns += dendp_now_ns() - start;
        if (status == DEND_END) {
            break;
        }
    }
    dend_seq_drop(b->engine, seq);
    t->n_tokens += n_tokens;
    t->n_answers += out->found;
    if (b->verbose) {
        print_text(methods[GREEDY].text, b->text);
    }
    return n_tokens;
}

static void describe(bench *b, int method, dend_seq prompt, uint64_t budget, uint64_t seed,
                     dend_search_desc *d) {
    memset(d, 0, sizeof *d);
    d->engine = b->engine;
    d->prompt = prompt;
    d->judge = judge;
    d->user = b;
    d->max_tokens = budget;
    d->max_step_tokens = 96;
    d->max_depth = MAX_LINES;
    d->temperature = 0.7f;
    d->keep_going = true; /* an answer is not the end: it may be wrong */
    d->seed = seed;
    /* Samples that are begun together run out of tokens together: fewer at once than the budget has answers. */
    d->n_lanes = 4;
    switch (method) {
    case THOUGHT:
        d->method = DEND_SEARCH_TREE_OF_THOUGHT;
        d->value = DEND_VALUE_SELF;
        d->value_prompt = b->question;
        d->n_value_prompt = (uint32_t)b->n_question;
        d->yes = b->yes;
        d->no = b->no;
        d->thought.width = 2; /* times two children: a level for the tokens of four lines */
        d->thought.n_children = 2;
        break;
    case MCTS:
        d->method = DEND_SEARCH_MCTS;
        d->value = DEND_VALUE_ROLLOUT;
        break;
    default:
        d->method = DEND_SEARCH_BEST_OF_N;
        d->best_of_n.majority = true;
        break;
    }
    b->asks = method == THOUGHT;
}

/* All answers of a search: the most common one, and of equally common ones that of most value; the one of most
 * value; and whether the right one is among them. */
static void look_at_answers(const dend_search *search, uint64_t right, tally *t, choice *common,
                            choice *likeliest) {
    static struct {
        choice c;
        uint32_t n;
    } answers[MAX_ANSWERS];
    uint32_t n = 0, id, i, best = 0;
    bool any = false;
    dend_search_info info;
    dend_search_get_info(search, &info);
    memset(common, 0, sizeof *common);
    memset(likeliest, 0, sizeof *likeliest);
    for (id = 0; id < info.n_slots; id++) {
        dend_node_info node;
        if (dend_search_node(search, id, &node) != DEND_OK || node.state != DEND_NODE_SOLVED) {
            continue;
        }
        t->n_answers += node.n_copies;
        any = any || node.key == right;
        for (i = 0; i < n && answers[i].c.key != node.key; i++) {
        }
        if (i == MAX_ANSWERS) {
            continue;
        }
        if (i == n) {
            memset(&answers[n++], 0, sizeof answers[0]);
        }
        if (!answers[i].c.found || node.value > answers[i].c.value) {
            answers[i].c.value = node.value;
        }
        answers[i].c.key = node.key;
        answers[i].c.found = true;
        answers[i].n += node.n_copies;
    }
    for (i = 0; i < n; i++) {
        if (!likeliest->found || answers[i].c.value > likeliest->value) {
            *likeliest = answers[i].c;
        }
        if (answers[i].n > answers[best].n ||
            (answers[i].n == answers[best].n && answers[i].c.value > answers[best].c.value)) {
            best = i;
        }
    }
    if (n > 0) {
        *common = answers[best].c;
    }
    t->n_vote += common->found && common->key == right;
    t->n_any += any;
}

/* The answer of the node that the search holds to be the best; *likeliest: that of most value. */
static choice solve_search(bench *b, int method, dend_seq prompt, uint64_t budget, uint64_t seed,
                           uint64_t right, choice *likeliest) {
    tally *t = &b->tallies[method];
    dend_search_desc d;
    dend_search *search = NULL;
    dend_search_info info;
    dend_node_info node;
    choice best, common;
    memset(&best, 0, sizeof best);
    memset(likeliest, 0, sizeof *likeliest);
    describe(b, method, prompt, budget, seed, &d);
    if (!must(b, dend_search_create(&d, &search, NULL), "search") ||
        !must(b, dend_search_step(search, 0), "search")) {
        dend_search_free(search);
        return best;
    }
    dend_search_get_info(search, &info);
    look_at_answers(search, right, t, &common, likeliest);
    if (must(b, dend_search_node(search, info.best, &node), "best") && node.state == DEND_NODE_SOLVED) {
        best.key = node.key;
        best.value = node.value;
        best.found = true;
    }
    if (best.found != common.found ||
        (method == MAJORITY && best.found && best.key != common.key && best.value != common.value)) {
        fprintf(stderr, "bench_search_real: the search and its nodes disagree about the best\n");
        b->failed = true;
    }
    t->n_tokens += info.n_tokens;
    t->time_ns += info.time_us * 1000u;
    t->model_ns += info.model_us * 1000u;
    t->choose_ns += info.choose_us * 1000u;
    t->judge_ns += info.judge_us * 1000u;
    if (b->verbose) {
        dend_search_text(search, info.best, b->text, sizeof b->text);
        print_text(methods[method].text, b->text);
        printf("     %u nodes, %u with an answer, %u dead, best value %.3f, %u evicted\n", info.n_nodes,
               info.n_solved, info.n_dead, (double)node.value, info.n_evicted);
    }
    dend_search_free(search);
    return best;
}

/* One problem in every way; prints a line with the answers. */
static void solve(bench *b, uint32_t id) {
    const problem *p = &b->problems[id];
    uint64_t right = answer_key(p->answer), budget = b->budget;
    choice chosen[N_METHODS], unused;
    dend_seq prompt;
    int m;
    if (!make_prompt(b, p, &prompt)) {
        return;
    }
    if (b->verbose) {
        printf("\n==== %s\n", p->prompt);
    }
    for (m = 0; m < N_METHODS && !b->failed; m++) {
        tally *t = &b->tallies[m];
        dend_engine_stats before, after;
        dend_engine_get_stats(b->engine, &before);
        if (m == GREEDY) {
            uint64_t n_tokens = solve_greedy(b, prompt, &chosen[m]);
            budget = b->times_greedy ? b->budget * n_tokens : b->budget;
            t->n_vote += chosen[m].found && chosen[m].key == right;
            t->n_any += chosen[m].found && chosen[m].key == right;
        } else if (m != LIKELIEST) {
            chosen[m] = solve_search(b, m, prompt, budget, b->seed + id, right,
                                     m == MAJORITY ? &chosen[LIKELIEST] : &unused);
        }
        dend_engine_get_stats(b->engine, &after);
        t->n_rows += after.n_rows - before.n_rows;
        t->n_forks += after.n_forks - before.n_forks;
        t->n_right += chosen[m].found && chosen[m].key == right;
    }
    dend_seq_drop(b->engine, prompt);
    if (b->failed) {
        return;
    }
    printf("%3u  %8.6g |", id, p->answer);
    for (m = 0; m < N_METHODS; m++) {
        if (chosen[m].found) {
            printf(" %9.6g%s", (double)(int64_t)chosen[m].key / 1000.0, chosen[m].key == right ? "*" : " ");
        } else {
            printf(" %9s ", "-");
        }
    }
    printf(" | %llu\n", (unsigned long long)budget);
    fflush(stdout);
}

/* -- output -------------------------------------------------------------------------- */

/* 95 % interval of a share k of n: Wilson, J. Am. Stat. Assoc. 22 (1927). */
static void wilson(uint32_t k, uint32_t n, double *low, double *high) {
    double z = 1.959964, p = (double)k / n, zz = z * z / n;
    double middle = (p + zz / 2) / (1 + zz), half = z * sqrt(p * (1 - p) / n + zz / (4.0 * n)) / (1 + zz);
    *low = middle > half ? middle - half : 0;
    *high = middle + half;
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* What is left of the time when model, choosing and judge are taken away. */
static uint64_t rest_ns(const tally *t) {
    uint64_t named = t->model_ns + t->choose_ns + t->judge_ns;
    return t->time_ns > named ? t->time_ns - named : 0;
}

static double tokens_per_s(const tally *t) {
    return t->time_ns ? (double)t->n_tokens * 1e9 / (double)t->time_ns : 0;
}

/* The samples of majority are those of likeliest too. */
static void share_samples(bench *b) {
    uint32_t n_right = b->tallies[LIKELIEST].n_right;
    b->tallies[LIKELIEST] = b->tallies[MAJORITY];
    b->tallies[LIKELIEST].n_right = n_right;
}

static void print_tables(const bench *b) {
    uint32_t n = b->n_problems;
    int m;
    printf("\n%-22s %6s %12s %6s %6s %8s %9s %9s\n", "problems right", "right", "95 %", "vote", "any",
           "answers", "tokens", "rows");
    for (m = 0; m < N_METHODS; m++) {
        const tally *t = &b->tallies[m];
        double low, high;
        wilson(t->n_right, n, &low, &high);
        printf("%-22s %3u/%-2u %5.0f - %2.0f %% %6u %6u %8u %9llu %9llu\n", methods[m].text, t->n_right, n,
               100 * low, 100 * high, t->n_vote, t->n_any, t->n_answers, (unsigned long long)t->n_tokens,
               (unsigned long long)t->n_rows);
    }
    printf("\n%-22s %9s %7s %9s %9s %9s %9s\n", "time", "tokens/s", "forks", "model", "choosing", "judge",
           "rest");
    for (m = 0; m < N_METHODS; m++) {
        const tally *t = &b->tallies[m];
        if (m == LIKELIEST) {
            continue; /* majority's samples */
        }
        printf("%-22s %9.1f %7llu %7.2f %% %7.2f %% %7.3f %% %7.3f %%\n", methods[m].text, tokens_per_s(t),
               (unsigned long long)t->n_forks, percent(t->model_ns, t->time_ns),
               percent(t->choose_ns, t->time_ns), percent(t->judge_ns, t->time_ns),
               percent(rest_ns(t), t->time_ns));
    }
}

static bool write_json(const bench *b, const char *path) {
    FILE *f = fopen(path, "w");
    bool ok;
    int m;
    if (!f) {
        return false;
    }
    fprintf(f, "{\n  \"problems\": %u,\n  \"budget_tokens\": %llu,\n  \"budget_times_greedy\": %llu,\n",
            b->n_problems, (unsigned long long)(b->times_greedy ? 0 : b->budget),
            (unsigned long long)(b->times_greedy ? b->budget : 0));
    for (m = 0; m < N_METHODS; m++) {
        const tally *t = &b->tallies[m];
        const char *key = methods[m].key;
        double low, high;
        wilson(t->n_right, b->n_problems, &low, &high);
        fprintf(f, "  \"%s_right\": %u,\n  \"%s_right_low\": %.4f,\n  \"%s_right_high\": %.4f,\n", key,
                t->n_right, key, low, key, high);
        fprintf(f, "  \"%s_vote\": %u,\n  \"%s_any\": %u,\n  \"%s_answers\": %u,\n", key, t->n_vote, key,
                t->n_any, key, t->n_answers);
        fprintf(f, "  \"%s_tokens\": %llu,\n  \"%s_rows\": %llu,\n  \"%s_forks\": %llu,\n", key,
                (unsigned long long)t->n_tokens, key, (unsigned long long)t->n_rows, key,
                (unsigned long long)t->n_forks);
        fprintf(f, "  \"%s_seconds\": %.3f,\n  \"%s_tokens_per_s\": %.1f,\n", key, (double)t->time_ns * 1e-9,
                key, tokens_per_s(t));
        fprintf(f, "  \"%s_model_percent\": %.3f,\n  \"%s_choose_percent\": %.3f,\n", key,
                percent(t->model_ns, t->time_ns), key, percent(t->choose_ns, t->time_ns));
        fprintf(f, "  \"%s_judge_percent\": %.4f,\n  \"%s_rest_percent\": %.4f%s\n", key,
                percent(t->judge_ns, t->time_ns), key, percent(rest_ns(t), t->time_ns),
                m + 1 < N_METHODS ? "," : "");
    }
    fprintf(f, "}\n");
    ok = !ferror(f);
    return fclose(f) == 0 && ok;
}

/* -- main ---------------------------------------------------------------------------- */

/* The token of a whole text, or -1. */
static int32_t one_token(const bench *b, const char *text) {
    int32_t token;
    size_t n;
    return dend_tokenize(b->model, text, (size_t)-1, DEND_TOKENIZE_SPECIAL, &token, 1, &n) == DEND_OK &&
                   n == 1
               ? token
               : -1;
}

static bool open_engine(bench *b) {
    static const char question[] = "<|im_end|>\n<|im_start|>user\nIs the last line a correct step towards "
                                   "the answer? Answer Yes or No.<|im_end|>\n"
                                   "<|im_start|>assistant\n";
    dend_model_desc md;
    dend_engine_desc ed;
    dend_error error;
    memset(&md, 0, sizeof md);
    memset(&ed, 0, sizeof ed);
    memset(&error, 0, sizeof error);
    md.path = b->model_path;
    if (dend_model_load(&md, &b->model, &error) == DEND_OK) {
        ed.model = b->model;
        ed.n_ctx = 2048;
        ed.n_threads = b->n_threads;
        ed.n_seqs = 512; /* each line of a tree keeps one */
        dend_engine_create(&ed, &b->engine, &error);
    }
    if (!b->engine) {
        fprintf(stderr, "%s: %s\n", b->model_path, error.msg);
        return false;
    }
    b->yes = one_token(b, "Yes");
    b->no = one_token(b, "No");
    if (one_token(b, "<|im_start|>") < 0 || b->yes < 0 || b->no < 0 ||
        dend_tokenize(b->model, question, (size_t)-1, DEND_TOKENIZE_SPECIAL, b->question,
                      sizeof b->question / sizeof b->question[0], &b->n_question) != DEND_OK) {
        fprintf(stderr, "%s: not a model that knows ChatML\n", b->model_path);
        return false;
    }
    return true;
}

static bool parse(int argc, char **argv, bench *b, const char **data, const char **out,
                  uint32_t *n_problems) {
    char *end;
    int i;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0) {
            b->verbose = true;
        } else if (argv[i][0] != '-') {
            b->model_path = argv[i];
        } else if (argv[i][1] && !argv[i][2] && i + 1 < argc) {
            const char *value = argv[++i];
            switch (argv[i - 1][1]) {
            case 'n':
                *n_problems = (uint32_t)strtoul(value, NULL, 10);
                break;
            case 'b':
                b->budget = strtoull(value, &end, 10);
                b->times_greedy = *end == 'x';
                break;
            case 's':
                b->seed = strtoull(value, NULL, 10);
                break;
            case 't':
                b->n_threads = (uint32_t)strtoul(value, NULL, 10);
                break;
            case 'd':
                *data = value;
                break;
            case 'o':
                *out = value;
                break;
            default:
                return false;
            }
        } else {
            return false;
        }
    }
    return b->budget > 0;
}

int main(int argc, char **argv) {
    static bench b;
    const char *data = "bench/data/gsm8k.jsonl", *out = NULL;
    uint32_t n_problems = 0, i;
    b.model_path = "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf";
    b.seed = 1;
    b.budget = 6;
    b.times_greedy = true;
    if (!parse(argc, argv, &b, &data, &out, &n_problems)) {
        fprintf(stderr,
                "usage: %s [-n problems] [-b tokens, or 8x] [-s seed] [-t threads] [-d problems.jsonl] [-o "
                "file.json] "
                "[-v] [model.gguf]\n",
                argv[0]);
        return 2;
    }
    if (!read_problems(&b, data)) {
        fprintf(stderr, "bench_search_real: %s holds no problems, or one that cannot be read\n", data);
        return 1;
    }
    b.n_problems = n_problems && n_problems < b.n_problems ? n_problems : b.n_problems;
    if (!open_engine(&b)) {
        return 1;
    }
    printf("%s\n%u problems, %llu%s tokens for each search of each, seed %llu, %s, %u threads\n",
           b.model_path, b.n_problems, (unsigned long long)b.budget, b.times_greedy ? " times greedy's" : "",
           (unsigned long long)b.seed, b.engine->cpu.kernels->name, b.engine->pool.n_threads);
    printf("equal generated tokens are not equal compute: rows are all that went through the model\n\n");
    printf("%3s  %8s |", "", "answer");
    for (i = 0; i < N_METHODS; i++) {
        printf(" %9s ", methods[i].key);
    }
    printf(" | budget\n");
    for (i = 0; i < b.n_problems && !b.failed; i++) {
        solve(&b, i);
    }
    if (b.failed) {
        fprintf(stderr, "bench_search_real: something went wrong, so there are no figures\n");
    } else {
        share_samples(&b);
        print_tables(&b);
        if (out && !write_json(&b, out)) {
            fprintf(stderr, "bench_search_real: cannot write %s\n", out);
            b.failed = true;
        }
    }
    dend_engine_free(b.engine);
    dend_model_free(b.model);
    return b.failed ? 1 : 0;
}
