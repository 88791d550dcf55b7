/* Countdown puzzles for examples, benchmarks and tests: reading one, the judge of
 * its steps, and how each search method is set up for it.
 *
 *     8 11 4 11>24:8/4=2 2 11 11.11+11=22 2 22.22+2=24
 *
 * Four numbers and a target; each step puts two numbers together and says what is
 * left, ascending. tools/train/countdown.py has the rules and makes puzzles and
 * training texts; examples/models/README.md describes the model.
 */
#ifndef COUNTDOWN_H
#define COUNTDOWN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dendrite.h"

enum { COUNTDOWN_NUMBERS = 6, COUNTDOWN_TEXT = 256 };

typedef struct countdown {
    unsigned n;
    long numbers[COUNTDOWN_NUMBERS];
    long target;
    char prompt[COUNTDOWN_TEXT]; /* "8 11 4 11>24:" */
} countdown;

/* A whole number of digits alone; moves *text behind it. */
static bool countdown_number(const char **text, long most, long *v) {
    char *end;
    if (**text < '0' || **text > '9') {
        return false;
    }
    *v = strtol(*text, &end, 10);
    *text = end;
    return *v >= 1 && *v <= most;
}

/* Reads "8 11 4 11>24" with or without the colon; without ">" the target is 24. The model has seen four numbers of 1
 * to 13, and targets of 10 to 100: others are read, and hopeless. */
static bool countdown_read(countdown *p, const char *text) {
    unsigned i;
    size_t at = 0;
    memset(p, 0, sizeof *p);
    p->target = 24;
    while (*text && *text != '>') {
        if (p->n == COUNTDOWN_NUMBERS || !countdown_number(&text, 9999, &p->numbers[p->n++]) ||
            (*text && !strchr(" >\r\n", *text))) {
            return false;
        }
        text += strspn(text, " \r\n");
    }
    if (*text == '>') {
        text++;
        if (!countdown_number(&text, 99999, &p->target)) {
            return false;
        }
        text += *text == ':';
    }
    if (text[strspn(text, " \r\n")]) {
        return false;
    }
    for (i = 0; i < p->n; i++) {
        at += (size_t)snprintf(p->prompt + at, sizeof p->prompt - at, "%s%ld", i ? " " : "", p->numbers[i]);
    }
    snprintf(p->prompt + at, sizeof p->prompt - at, ">%ld:", p->target);
    return p->n >= 2;
}

/* Reads a file with a puzzle a line: at most `most` of them; returns how many. */
static unsigned countdown_read_file(const char *path, countdown *puzzles, unsigned most) {
    char line[COUNTDOWN_TEXT];
    unsigned n = 0;
    FILE *f = fopen(path, "r");
    while (f && n < most && fgets(line, sizeof line, f)) {
        n += countdown_read(&puzzles[n], line);
    }
    if (f) {
        fclose(f);
    }
    return n;
}

/* Takes a number out of state[*n]; false when it is not there. */
static bool countdown_take(long *state, unsigned *n, long v) {
    unsigned i;
    for (i = 0; i < *n; i++) {
        if (state[i] == v) {
            state[i] = state[--*n];
            return true;
        }
    }
    return false;
}

static int countdown_ascending(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

/* Does one step, "8/4=2 2 11 11" with or without what is left: changes state[*n]; false when it is not legal. */
static bool countdown_step(long *state, unsigned *n, const char **text) {
    char *at;
    long a = strtol(*text, &at, 10), b, c;
    char op = *at;
    unsigned i;
    if (at == *text || !op) {
        return false;
    }
    *text = at + 1;
    b = strtol(*text, &at, 10);
    if (at == *text || *at != '=') {
        return false;
    }
    *text = at + 1;
    c = strtol(*text, &at, 10);
    if (at == *text || *n < 2 || !countdown_take(state, n, a) || !countdown_take(state, n, b) || c < 1 ||
        (op == '+'   ? a + b != c
         : op == '-' ? a - b != c
         : op == '*' ? a * b != c
         : op == '/' ? b * c != a
                     : true)) {
        return false;
    }
    state[(*n)++] = c;
    *text = at;
    if (*n == 1) {
        return true;
    }
    qsort(state, *n, sizeof *state, countdown_ascending);
    for (i = 0; i < *n; i++) {
        if (**text != ' ' || strtol(*text + 1, &at, 10) != state[i]) {
            return false;
        }
        *text = at;
    }
    return true;
}

/* The judge: a step is dead when it is illegal, or when the model says so with a "!"; the last number must be the
 * target. It knows nothing of where a legal step leads. Nodes with the same numbers left are one state. */
static void countdown_judge(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    const countdown *p = (const countdown *)user;
    char text[COUNTDOWN_TEXT];
    const char *at = text;
    long state[COUNTDOWN_NUMBERS];
    unsigned n = p->n, i;
    memcpy(state, p->numbers, sizeof state);
    if (dend_search_text(search, node, text, sizeof text) >= sizeof text) {
        verdict->kind = DEND_VERDICT_DEAD;
        return;
    }
    while (*at && *at != '!') {
        if (!countdown_step(state, &n, &at) || (*at && *at != '.' && *at != '!')) {
            verdict->kind = DEND_VERDICT_DEAD;
            return;
        }
        at += *at == '.';
    }
    if (n == 1) {
        verdict->kind = state[0] == p->target ? DEND_VERDICT_SOLVED : DEND_VERDICT_DEAD;
        verdict->value = state[0] == p->target ? 1.0f : 0.0f;
    } else if (*at == '!') {
        verdict->kind = DEND_VERDICT_DEAD;
    } else {
        verdict->key = n;
        for (i = 0; i < n; i++) {
            verdict->key = verdict->key * 1000003u + (uint64_t)state[i];
        }
    }
}

/* The token of one character. */
static int32_t countdown_token(const dend_model *model, const char *text) {
    int32_t token = -1;
    size_t n;
    return dend_tokenize(model, text, 1, 0, &token, 1, &n) == DEND_OK && n == 1 ? token : -1;
}

/* -- the methods, each set up for this task ------------------------------------------------ */

typedef enum countdown_method {
    COUNTDOWN_GREEDY = 0, /* one solution, the likeliest token each time */
    COUNTDOWN_BEST_OF_N,
    COUNTDOWN_BEAM,
    COUNTDOWN_TREE_OF_THOUGHT,
    COUNTDOWN_DEPTH_FIRST,
    COUNTDOWN_MCTS,
    COUNTDOWN_N_METHODS
} countdown_method;

static const char *const countdown_names[COUNTDOWN_N_METHODS] = {"greedy",          "best of n",   "beam",
                                                                 "tree of thought", "depth first", "mcts"};

/* What a search needs to know of a puzzle, whatever its method. */
static dend_search_desc countdown_task(dend_engine *engine, const dend_model *model, dend_seq prompt,
                                       countdown *puzzle, uint64_t max_tokens) {
    dend_search_desc d;
    memset(&d, 0, sizeof d);
    d.engine = engine;
    d.prompt = prompt;
    d.step_end = DEND_STEP_DELIMITER;
    d.delimiters = ".!";
    d.value = DEND_VALUE_SELF;
    d.yes = countdown_token(model, ".");
    d.no = countdown_token(model, "!");
    d.judge = countdown_judge;
    d.user = puzzle;
    d.max_tokens = max_tokens;
    return d;
}

/* A description for one puzzle and method. The numbers were chosen on the puzzles of countdown_tune.txt. One lane:
 * where tokens are counted, a token that waits for what the last one has shown is worth more. */
static dend_search_desc countdown_desc(dend_engine *engine, const dend_model *model, dend_seq prompt,
                                       countdown *puzzle, countdown_method method, uint64_t max_tokens) {
    dend_search_desc d = countdown_task(engine, model, prompt, puzzle, max_tokens);
    d.max_depth = 8;
    d.n_nodes = 2048;
    d.n_lanes = 1;
    d.min_prob = 0.02f;
    switch (method) {
    case COUNTDOWN_GREEDY:
        d.method = DEND_SEARCH_BEAM;
        d.beam.width = d.beam.n_children = 1;
        d.beam.once = true;
        break;
    case COUNTDOWN_BEST_OF_N:
        d.method = DEND_SEARCH_BEST_OF_N;
        d.temperature = 0.7f;
        break;
    case COUNTDOWN_BEAM:
        d.method = DEND_SEARCH_BEAM;
        d.beam.width = 5;
        d.beam.n_children = 3;
        break;
    case COUNTDOWN_TREE_OF_THOUGHT:
        d.method = DEND_SEARCH_TREE_OF_THOUGHT;
        d.thought.width = 5;
        d.thought.n_children = 3;
        break;
    case COUNTDOWN_DEPTH_FIRST:
        d.method = DEND_SEARCH_DEPTH_FIRST;
        d.thought.n_children = 2;
        d.thought.threshold = 0.5f;
        break;
    default:
        d.method = DEND_SEARCH_MCTS;
        d.mcts.explore = 0.2f;
        break;
    }
    return d;
}

#endif /* COUNTDOWN_H */
