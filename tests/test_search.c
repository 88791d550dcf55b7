/* Tree search, on the model that the project carries: the tree against plain
 * decoding and brute force, budgets, want of memory, and hostile callbacks. */

#include "../examples/countdown.h"

#define SCH_MODEL "examples/models/countdown.gguf"
#define SCH_PUZZLE "4 7 8 12>27"

static dend_model *sch_model(void) {
    static dend_model *model; /* shared by all tests, and never freed */
    if (!model) {
        dend_model_desc d;
        dend_error error;
        memset(&d, 0, sizeof d);
        d.path = SCH_MODEL;
        if (dend_model_load(&d, &model, &error) != DEND_OK) {
            fail_msg("%s: %s", SCH_MODEL, error.msg);
        }
    }
    return model;
}

static dend_engine_desc sch_engine_desc(uint32_t n_blocks, uint32_t n_seqs, uint32_t n_threads) {
    dend_engine_desc d;
    memset(&d, 0, sizeof d);
    d.model = sch_model();
    d.n_blocks = n_blocks;
    d.n_seqs = n_seqs;
    d.n_threads = n_threads;
    return d;
}

static dend_engine *sch_engine(uint32_t n_blocks, uint32_t n_seqs, uint32_t n_threads) {
    dend_engine_desc d = sch_engine_desc(n_blocks, n_seqs, n_threads);
    dend_engine *engine = NULL;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &engine, NULL));
    return engine;
}

/* One puzzle on one engine. */
typedef struct sch {
    dend_engine *engine;
    dend_seq prompt;
    countdown puzzle;
    dend_search_desc desc;
    dend_search *search;
    uint32_t blocks_before, seqs_before, n_judged;
} sch;

static void sch_open(sch *t, dend_engine *engine, const char *puzzle) {
    dend_engine_stats stats;
    memset(t, 0, sizeof *t);
    t->engine = engine;
    assert_true(countdown_read(&t->puzzle, puzzle));
    dend_engine_get_stats(engine, &stats);
    t->blocks_before = stats.n_blocks_free;
    t->seqs_before = stats.n_seqs_free;
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &t->prompt));
    ASSERT_STATUS(DEND_OK, dend_seq_append_text(engine, t->prompt, t->puzzle.prompt, (size_t)-1, 0));
    t->desc = countdown_task(engine, sch_model(), t->prompt, &t->puzzle, 300);
    t->desc.n_nodes = 512;
    t->desc.keep_going = true;
}

static void sch_create(sch *t) {
    dend_error error;
    memset(&error, 0, sizeof error);
    if (dend_search_create(&t->desc, &t->search, &error) != DEND_OK) {
        fail_msg("search: %s", error.msg);
    }
}

static dend_search_info sch_info(const sch *t) {
    dend_search_info info;
    dend_search_get_info(t->search, &info);
    return info;
}

/* Frees the search and the prompt; every block and slot is back in its pool. */
static void sch_close(sch *t) {
    dend_engine_stats stats;
    dend_search_free(t->search);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(t->engine, t->prompt));
    ASSERT_STATUS(DEND_OK, dend_step(t->engine, 0));
    dend_engine_get_stats(t->engine, &stats);
    assert_int_equal(stats.n_blocks_free, t->blocks_before);
    assert_int_equal(stats.n_seqs_free, t->seqs_before);
    assert_int_equal(stats.n_logits_free, stats.n_logits);
}

static void sch_close_all(sch *t) {
    sch_close(t);
    dend_engine_free(t->engine);
}

/* What a writer got, 0-terminated. */
typedef struct sch_text {
    char *data;
    size_t n, cap;
    size_t fail_at; /* 0 = never */
} sch_text;

static bool sch_text_write(void *user, const void *data, size_t n) {
    sch_text *t = (sch_text *)user;
    if (t->fail_at && t->n + n >= t->fail_at) {
        return false;
    }
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->data = (char *)realloc(t->data, t->cap);
        assert_non_null(t->data);
    }
    memcpy(t->data + t->n, data, n);
    t->n += n;
    t->data[t->n] = 0;
    return true;
}

static char *sch_export(const dend_search *search, dend_export_format format) {
    sch_text text;
    dend_writer writer;
    memset(&text, 0, sizeof text);
    writer.write = sch_text_write;
    writer.user = &text;
    ASSERT_STATUS(DEND_OK, dend_search_export(search, format, &writer));
    return text.data;
}

/* Lists, counts, ways not taken and texts hold together. */
static void sch_walk(const dend_search *s) {
    uint32_t id, i, n_live = 0, n_seqs = 0, n_others = 0, n_used = 0, n_free_others = 0;
    static uint32_t in_flight[1u << 16];
    char whole[4096], part[4096];
    assert_true(s->n_slots < (1u << 16));
    memset(in_flight, 0, s->n_slots * sizeof *in_flight);
    for (i = 0; i < s->desc.n_lanes; i++) {
        if (s->lanes[i].state != DENDP_LANE_IDLE) {
            for (id = s->nodes[s->lanes[i].node].parent; id != DENDP_NONE; id = s->nodes[id].parent) {
                in_flight[id]++;
            }
        }
    }
    for (id = 0; id < s->n_slots; id++) {
        const dendp_search_node *n = &s->nodes[id];
        uint32_t c, n_children = 0;
        if (n->state == DENDP_NODE_FREE) {
            continue;
        }
        n_live++;
        n_seqs += n->seq.generation != 0 && id != 0 ? 1u : 0u;
        assert_int_equal(n->in_flight, in_flight[id]);
        for (c = dendp_snode_first_child(s, n); c != DENDP_NONE; c = dendp_snode_next_child(s, n, c)) {
            assert_int_equal(s->nodes[c].parent, id);
            assert_int_equal(s->nodes[c].depth, n->depth + 1);
            n_children++;
        }
        assert_int_equal(n->n_children, n_children);
        if (n->state != DEND_NODE_MERGED) {
            for (i = n->others; i != DENDP_NONE; i = s->others[i].next) {
                assert_int_equal(s->nodes[s->others[i].source].parent, id);
                assert_true(s->others[i].shared < s->nodes[s->others[i].source].n_tokens ||
                            s->nodes[s->others[i].source].state == DEND_NODE_GROWING ||
                            s->nodes[s->others[i].source].state == DEND_NODE_CLOSED);
                n_others++;
            }
        }
        if (id != 0) {
            size_t n_whole = dend_search_text(s, id, whole, sizeof whole);
            size_t n_part = dend_search_step_text(s, id, part, sizeof part);
            assert_int_equal(n->len_tokens, s->nodes[n->parent].len_tokens + n->n_tokens);
            assert_true(n_part <= n_whole);
            assert_string_equal(whole + n_whole - n_part, part);
            if (n->state != DEND_NODE_GROWING) {
                n_used += n->n_tokens - n->n_shared;
            }
        }
        assert_true(dendp_finite(n->value));
        assert_true(dendp_finite((float)n->value_sum));
    }
    for (i = s->first_other; i != DENDP_NONE; i = s->others[i].next) {
        n_free_others++;
    }
    assert_int_equal(n_live, s->n_live);
    assert_int_equal(n_seqs, s->info.n_seqs);
    assert_int_equal(n_used, s->n_tokens_used);
    assert_int_equal(n_others + n_free_others, s->n_others_used);
    assert_true(s->info.n_tokens <= s->desc.max_tokens);
}

/* A node's log-probability by plain decoding: its tokens appended to a fresh prompt, one at a time. */
static double sch_score(dend_engine *engine, dend_seq prompt, const int32_t *tokens, size_t n, size_t from) {
    dend_seq seq;
    double sum = 0;
    size_t i;
    uint32_t V = engine->model->config.n_vocab;
    ASSERT_STATUS(DEND_OK, dend_seq_fork(engine, prompt, 0, &seq));
    for (i = 0; i < n; i++) {
        const float *logits;
        double total = 0, max = -1e30;
        uint32_t v;
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(engine, seq));
        ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(engine, seq, &logits));
        for (v = 0; v < V; v++) {
            max = (double)logits[v] > max ? (double)logits[v] : max;
        }
        for (v = 0; v < V; v++) {
            total += exp((double)logits[v] - max);
        }
        if (i >= from) {
            sum += (double)logits[tokens[i]] - max - log(total);
        }
        ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, &tokens[i], 1));
    }
    ASSERT_STATUS(DEND_OK, dend_seq_drop(engine, seq));
    return sum;
}

static const dend_search_method sch_methods[] = {DEND_SEARCH_MCTS, DEND_SEARCH_BEAM,
                                                 DEND_SEARCH_TREE_OF_THOUGHT, DEND_SEARCH_DEPTH_FIRST,
                                                 DEND_SEARCH_BEST_OF_N};

/* -- the tree is what plain decoding says ------------------------------------------------ */

/* Every method: log-probabilities of all steps, the sequences of nodes, and what they say next. */
static void test_search_equals_plain_decoding(void **state) {
    size_t m;
    (void)state;
    for (m = 0; m < 5; m++) {
        sch t;
        uint32_t id;
        sch_open(&t, sch_engine(0, 512, 1), SCH_PUZZLE);
        t.desc.method = sch_methods[m];
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        sch_walk(t.search);
        assert_true(sch_info(&t).n_nodes > 5);
        for (id = 1; id < sch_info(&t).n_slots; id++) {
            dend_node_info n;
            int32_t tokens[256];
            size_t len;
            if (dend_search_node(t.search, id, &n) != DEND_OK || n.state == DEND_NODE_CLOSED) {
                continue;
            }
            len = dend_search_tokens(t.search, id, tokens, 256);
            assert_true(len <= 256);
            assert_int_equal(len, n.len_tokens - t.search->nodes[0].len_tokens);
            ASSERT_NEAR(sch_score(t.engine, t.prompt, tokens, len, len - n.n_tokens), n.logprob, 2e-3, 1e-4);
        }
        sch_close_all(&t);
    }
}

/* The first child of the root is what greedy decoding writes. */
static void test_search_first_child_is_greedy(void **state) {
    sch t;
    char text[256], greedy[256];
    size_t n = 0, n_bytes;
    dend_seq seq;
    (void)state;
    sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_true(dend_search_step_text(t.search, 1, text, sizeof text) > 0);
    ASSERT_STATUS(DEND_OK, dend_seq_fork(t.engine, t.prompt, 0, &seq));
    do {
        int32_t token;
        ASSERT_STATUS(DEND_OK, dend_next(t.engine, seq, NULL, &token));
        greedy[n++] = *dend_token_bytes(sch_model(), token, &n_bytes);
    } while (greedy[n - 1] != '.' && greedy[n - 1] != '!');
    greedy[n] = 0;
    assert_string_equal(greedy, text);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, seq));
    sch_close_all(&t);
}

/* Steps of one token: the children of a node are the likeliest tokens, in their order. */
static void test_search_children_are_the_likeliest(void **state) {
    sch t;
    uint32_t id, i, V;
    const float *logits;
    float last = 0.0f;
    dend_node_info root, child;
    (void)state;
    sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
    t.desc.step_end = DEND_STEP_TOKEN;
    t.desc.value = DEND_VALUE_LOGPROB;
    t.desc.judge = NULL;
    t.desc.max_depth = 1;
    t.desc.method = DEND_SEARCH_BEAM;
    t.desc.beam.width = 8;
    t.desc.min_prob = 1e-6f;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_EXHAUSTED);
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 0, &root));
    assert_true(root.n_children >= 8);
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(t.engine, t.prompt));
    ASSERT_STATUS(DEND_OK, dend_step(t.engine, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_logits(t.engine, t.prompt, &logits));
    V = t.engine->model->config.n_vocab;
    for (id = root.first_child, i = 0; id != DEND_NODE_NONE; id = child.next_sibling, i++) {
        int32_t token;
        uint32_t v, above = 0;
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, id, &child));
        assert_int_equal(dend_search_tokens(t.search, id, &token, 1), 1);
        for (v = 0; v < V; v++) {
            above += logits[v] > logits[token] ? 1u : 0u;
        }
        assert_int_equal(above, i); /* the i-th best */
        assert_true(i == 0 || child.logprob <= last);
        last = child.logprob;
    }
    sch_close_all(&t);
}

/* Beam search over tokens against one that is written down plainly: all continuations of all beams, sorted. */
static void test_search_beam_equals_plain_beam(void **state) {
    enum { WIDTH = 3, DEPTH = 9 };
    typedef struct beam {
        int32_t tokens[DEPTH];
        double score;
    } beam;
    beam beams[WIDTH], next[WIDTH];
    sch t;
    uint32_t V, d, b, v, k, id, n_beams = 1, n_found = 0;
    (void)state;
    sch_open(&t, sch_engine(0, 512, 1), "3 5 2 9>33");
    V = t.engine->model->config.n_vocab;
    memset(beams, 0, sizeof beams);
    for (d = 0; d < DEPTH; d++) {
        uint32_t n_next = 0;
        for (b = 0; b < n_beams; b++) {
            for (v = 1; v < V; v++) { /* token 0 ends a text */
                beam x = beams[b];
                x.tokens[d] = (int32_t)v;
                x.score = beams[b].score + sch_score(t.engine, t.prompt, x.tokens, d + 1, d);
                for (k = n_next; k > 0 && next[k - 1].score < x.score; k--) {
                    if (k < WIDTH) {
                        next[k] = next[k - 1];
                    }
                }
                if (k < WIDTH) {
                    next[k] = x;
                    n_next = n_next < WIDTH ? n_next + 1 : WIDTH;
                }
            }
        }
        memcpy(beams, next, sizeof beams);
        n_beams = n_next;
    }
    t.desc.step_end = DEND_STEP_TOKEN;
    t.desc.value = DEND_VALUE_LOGPROB;
    t.desc.judge = NULL;
    t.desc.method = DEND_SEARCH_BEAM;
    t.desc.beam.width = WIDTH;
    t.desc.beam.once = true;
    t.desc.beam.keep_going = true;
    t.desc.max_depth = DEPTH;
    t.desc.min_prob = 1e-9f;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    for (id = 0; id < sch_info(&t).n_slots; id++) { /* each of the best beams is a node that ended at DEPTH */
        dend_node_info n;
        int32_t tokens[DEPTH];
        if (dend_search_node(t.search, id, &n) != DEND_OK || n.depth != DEPTH) {
            continue;
        }
        assert_int_equal(n.state, DEND_NODE_ENDED);
        assert_int_equal(dend_search_tokens(t.search, id, tokens, DEPTH), DEPTH);
        for (b = 0; b < WIDTH; b++) {
            if (memcmp(tokens, beams[b].tokens, sizeof tokens) == 0) {
                ASSERT_NEAR(beams[b].score, n.path_logprob, 2e-3, 1e-4);
                n_found++;
            }
        }
    }
    assert_int_equal(n_found, WIDTH);
    sch_close_all(&t);
}

/* The caller's sequence from a node is the prompt and the node's text, and goes on like it. */
static void test_search_take(void **state) {
    sch t;
    uint32_t id;
    (void)state;
    sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    for (id = 0; id < sch_info(&t).n_slots; id += 3) {
        dend_seq seq, plain;
        int32_t tokens[256], x, y;
        size_t n;
        dend_status status, other;
        dend_node_info info;
        if (dend_search_node(t.search, id, &info) != DEND_OK || info.state == DEND_NODE_GROWING) {
            continue;
        }
        n = dend_search_tokens(t.search, id, tokens, 256);
        ASSERT_STATUS(DEND_OK, dend_search_take(t.search, id, &seq));
        ASSERT_STATUS(DEND_OK, dend_seq_fork(t.engine, t.prompt, 0, &plain));
        ASSERT_STATUS(DEND_OK, dend_seq_append(t.engine, plain, tokens, n));
        status = dend_next(t.engine, seq, NULL, &x);
        other = dend_next(t.engine, plain, NULL, &y);
        assert_int_equal(status, other);
        assert_int_equal(x, y);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, seq));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, plain));
    }
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_take(t.search, 100000, NULL));
    sch_close_all(&t);
}

/* -- determinism, memory, budgets -------------------------------------------------------- */

static char *sch_run_for_tree(dend_search_method method, uint32_t n_threads, uint32_t n_blocks,
                              uint32_t n_seqs, uint64_t seed, dend_search_info *info) {
    sch t;
    char *tree;
    sch_open(&t, sch_engine(n_blocks, n_seqs, n_threads), SCH_PUZZLE);
    t.desc.method = method;
    t.desc.seed = seed;
    t.desc.n_lanes = 4;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    sch_walk(t.search);
    *info = sch_info(&t);
    tree = sch_export(t.search, DEND_EXPORT_JSON);
    sch_close_all(&t);
    return tree;
}

/* The same tree with any number of threads, and with so few blocks or slots that sequences are given up and built
 * again; another one with another seed, where samples are drawn. */
static void test_search_tree_depends_on_the_seed_alone(void **state) {
    size_t m;
    uint64_t n_rebuilt = 0;
    (void)state;
    for (m = 0; m < 5; m++) {
        dend_search_info info, with_threads, with_few;
        char *tree = sch_run_for_tree(sch_methods[m], 1, 0, 512, 7, &info);
        char *other = sch_run_for_tree(sch_methods[m], 3, 0, 512, 7, &with_threads);
        assert_string_equal(tree, other);
        free(other);
        other = sch_run_for_tree(sch_methods[m], 1, 28, 512, 7, &with_few);
        assert_string_equal(tree, other);
        assert_true(with_few.n_evicted > 0);
        n_rebuilt += with_few.n_rebuilt;
        free(other);
        other = sch_run_for_tree(sch_methods[m], 1, 0, 10, 7, &with_few);
        assert_string_equal(tree, other);
        assert_true(with_few.n_evicted > 0);
        free(other);
        other = sch_run_for_tree(sch_methods[m], 1, 0, 512, 8, &info);
        assert_int_equal(strcmp(tree, other) != 0, sch_methods[m] == DEND_SEARCH_BEST_OF_N);
        free(other);
        free(tree);
    }
    assert_true(n_rebuilt > 0);
}

/* One allocation of the planned size; none while running. A restart begins anew. */
static void test_search_memory(void **state) {
    size_t m;
    (void)state;
    for (m = 0; m < 5; m++) {
        sch t;
        test_heap heap;
        uint64_t planned = 0;
        char *first, *again;
        sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
        t.desc.method = sch_methods[m];
        t.desc.allocator = test_heap_allocator(&heap);
        ASSERT_STATUS(DEND_OK, dend_search_plan(&t.desc, &planned, NULL));
        sch_create(&t);
        assert_int_equal(heap.n_allocs, 1);
        assert_int_equal(heap.n_live_bytes, planned);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        first = sch_export(t.search, DEND_EXPORT_JSON);
        ASSERT_STATUS(DEND_OK, dend_search_restart(t.search, t.prompt, 0));
        assert_int_equal(sch_info(&t).n_nodes, 1);
        assert_int_equal(sch_info(&t).n_tokens, 0);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        again = sch_export(t.search, DEND_EXPORT_JSON);
        assert_string_equal(first, again);
        free(first);
        free(again);
        assert_int_equal(heap.n_allocs, 1);
        sch_close_all(&t);
        assert_int_equal(heap.n_live_bytes, 0);
    }
}

static void test_search_no_memory(void **state) {
    sch t;
    test_heap heap;
    (void)state;
    sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
    t.desc.allocator = test_heap_allocator(&heap);
    heap.fail_at = 1;
    ASSERT_STATUS(DEND_ERR_MEMORY, dend_search_create(&t.desc, &t.search, NULL));
    assert_null(t.search);
    sch_close_all(&t);
}

/* Ten thousand nodes at once, each with a sequence; less than 200 bytes a node. */
static void test_search_ten_thousand_nodes(void **state) {
    sch t;
    uint32_t id, n_open = 0;
    uint64_t small = 0, large = 0;
    (void)state;
    sch_open(&t, sch_engine(12000, 10100, 1), "7 9 12 13>95");
    t.desc.step_end = DEND_STEP_TOKEN;
    t.desc.value = DEND_VALUE_LOGPROB;
    t.desc.judge = NULL;
    t.desc.max_tokens = 1000000;
    t.desc.n_nodes = 10001;
    t.desc.n_lanes = 64;
    t.desc.min_prob = 1e-12f;
    ASSERT_STATUS(DEND_OK, dend_search_plan(&t.desc, &small, NULL));
    t.desc.n_nodes = 20002;
    ASSERT_STATUS(DEND_OK, dend_search_plan(&t.desc, &large, NULL));
    print_message("a node costs %.1f bytes\n", (double)(large - small) / 10001);
    assert_true(large - small < 200u * 10001u);
    t.desc.n_nodes = 10001;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_NODES);
    assert_int_equal(sch_info(&t).n_nodes, 10001);
    for (id = 1; id < 10001;
         id++) { /* each that may go on has a sequence; what is closed has given its own up */
        dend_node_info n;
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, id, &n));
        assert_true(n.state != DEND_NODE_OPEN || n.seq.generation != 0);
        n_open += n.state == DEND_NODE_OPEN ? 1u : 0u;
    }
    print_message("%u of them open\n", n_open);
    assert_true(n_open > 1000);
    assert_int_equal(sch_info(&t).n_evicted, 0);
    sch_walk(t.search);
    sch_close_all(&t);
}

/* Budgets of 1 to 40 tokens are met exactly, by every method; nothing is held afterwards. */
static void test_search_token_budgets(void **state) {
    size_t m;
    dend_engine *engine = sch_engine(0, 256, 1);
    (void)state;
    for (m = 0; m < 5; m++) {
        uint64_t budget;
        for (budget = 1; budget <= 40; budget += m == 0 ? 1 : 7) {
            sch t;
            sch_open(&t, engine, SCH_PUZZLE);
            t.desc.method = sch_methods[m];
            t.desc.max_tokens = budget;
            sch_create(&t);
            ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
            assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
            assert_int_equal(sch_info(&t).n_tokens, budget);
            assert_int_equal(sch_info(&t).n_lanes, 0);
            sch_walk(t.search);
            ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0)); /* it has ended */
            assert_int_equal(sch_info(&t).n_tokens, budget);
            sch_close(&t);
        }
    }
    dend_engine_free(engine);
}

static void test_search_other_budgets(void **state) {
    sch t;
    uint32_t n_nodes;
    (void)state;
    for (n_nodes = 2; n_nodes < 30; n_nodes += 3) {
        sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
        t.desc.n_nodes = n_nodes;
        t.desc.beam.width = t.desc.thought.width = 1;
        t.desc.max_tokens = 5000;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        assert_int_equal(sch_info(&t).end, DEND_SEARCH_NODES);
        assert_true(sch_info(&t).n_nodes <= n_nodes);
        sch_walk(t.search);
        sch_close_all(&t);
    }
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE); /* tokens that the tree can hold */
    t.desc.n_tokens = 33;
    t.desc.max_tokens = 5000;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_NODES);
    assert_int_equal(sch_info(&t).n_tokens, 33);
    sch_walk(t.search);
    sch_close_all(&t);
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE); /* a microsecond */
    t.desc.max_time_us = 1;
    t.desc.max_tokens = 1000000;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_TIME);
    sch_close_all(&t);
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE); /* blocks */
    t.desc.max_blocks = 6;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
    assert_true(sch_info(&t).n_evicted > 0);
    sch_walk(t.search);
    sch_close_all(&t);
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE); /* a budget a call: PENDING until it is done */
    sch_create(&t);
    {
        uint32_t n_calls = 0;
        dend_status status;
        while ((status = dend_search_step(t.search, 1)) == DEND_PENDING) {
            sch_walk(t.search);
            n_calls++;
        }
        ASSERT_STATUS(DEND_OK, status);
        assert_true(n_calls > 20);
    }
    sch_close_all(&t);
}

static void sch_counting_judge(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    sch *t = (sch *)user;
    countdown_judge(&t->puzzle, search, node, verdict);
    t->n_judged++;
}

/* With the time over from the start each call begins a child or two, which may be over at once, or takes one lane a
 * token further, and the tree that grows is the one of a single call. */
static void test_search_slices(void **state) {
    uint32_t n_left = 0;
    size_t m;
    (void)state;
    for (m = 0; m < sizeof sch_methods / sizeof sch_methods[0]; m++) {
        sch t;
        char *want, *have;
        uint32_t pass;
        want = have = NULL;
        for (pass = 0; pass < 2; pass++) {
            dend_status status;
            sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
            t.desc.method = sch_methods[m];
            t.desc.n_lanes = 8;
            t.desc.max_tokens = 200;
            t.desc.judge = sch_counting_judge;
            t.desc.user = &t;
            sch_create(&t);
            do {
                uint32_t judged = t.n_judged;
                status = dend_search_step(t.search, pass);
                assert_true(pass == 0 || t.n_judged <= judged + 2);
                n_left += t.search->next_lane > 0 ? 1u : 0u;
            } while (status == DEND_PENDING);
            ASSERT_STATUS(DEND_OK, status);
            *(pass ? &have : &want) = sch_export(t.search, DEND_EXPORT_DOT);
            sch_close_all(&t);
        }
        assert_string_equal(have, want);
        free(have);
        free(want);
    }
    assert_true(n_left > 100);
}

/* Freed after any number of batches, with lanes in the middle of their steps. */
static void test_search_freed_in_the_middle(void **state) {
    size_t m;
    dend_engine *engine = sch_engine(0, 256, 1);
    (void)state;
    for (m = 0; m < 5; m++) {
        uint32_t n, i;
        for (n = 0; n < 30; n += m == 0 ? 1 : 5) {
            sch t;
            sch_open(&t, engine, SCH_PUZZLE);
            t.desc.method = sch_methods[m];
            sch_create(&t);
            for (i = 0; i < n; i++) {
                ASSERT_STATUS(DEND_PENDING, dend_search_step(t.search, 1));
            }
            sch_close(&t);
        }
    }
    dend_engine_free(engine);
}

/* So few blocks that lanes are given up in the middle of their steps, down to where not even one has room. */
static void test_search_few_blocks(void **state) {
    size_t m;
    (void)state;
    for (m = 0; m < 5; m++) {
        uint32_t n_blocks, n_short = 0, n_done = 0;
        for (n_blocks = 1; n_blocks < 12; n_blocks++) {
            sch t;
            dend_status status;
            uint32_t i;
            dend_engine_desc ed = sch_engine_desc(n_blocks, 64, 1);
            dend_engine *engine;
            ed.n_ctx = 128;
            ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
            sch_open(&t, engine, SCH_PUZZLE);
            t.desc.method = sch_methods[m];
            t.desc.max_tokens = 150;
            sch_create(&t);
            status = dend_search_step(t.search, 0);
            sch_walk(t.search);
            if (status != DEND_OK) {
                ASSERT_STATUS(DEND_ERR_NO_BLOCKS, status);
                for (i = 0; i < 3; i++) { /* asking again changes nothing */
                    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dend_search_step(t.search, 0));
                    sch_walk(t.search);
                }
                assert_true(dend_search_best(t.search) != DEND_NODE_NONE);
                n_short++;
            } else {
                assert_int_equal(sch_info(&t).n_tokens, 150);
                n_done++;
            }
            sch_close_all(&t);
        }
        assert_true(n_short > 0);
        assert_true(n_done > 0);
    }
}

/* Somebody else takes all blocks, and gives them back: the search goes on. */
static void test_search_waits_for_blocks(void **state) {
    sch t;
    dend_seq hog;
    int32_t zero[16];
    dend_engine_desc ed = sch_engine_desc(64, 64, 1);
    dend_engine *engine;
    (void)state;
    memset(zero, 0, sizeof zero);
    ed.n_ctx = 1024;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
    sch_open(&t, engine, SCH_PUZZLE);
    sch_create(&t);
    ASSERT_STATUS(DEND_PENDING, dend_search_step(t.search, 1));
    ASSERT_STATUS(DEND_OK, dend_seq_create(t.engine, &hog));
    while (dend_seq_append(t.engine, hog, zero, 16) == DEND_OK) {
    }
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dend_search_step(t.search, 0));
    sch_walk(t.search);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, hog));
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
    sch_walk(t.search);
    sch_close_all(&t);
}

/* Somebody else holds all rows of logits but k. */
static void test_search_few_logits(void **state) {
    uint32_t k;
    (void)state;
    for (k = 0; k < 3; k++) {
        sch t;
        dend_seq others[4];
        uint32_t i;
        dend_engine_desc ed = sch_engine_desc(0, 64, 1);
        dend_engine *engine;
        ed.n_logits = 4;
        ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
        sch_open(&t, engine, SCH_PUZZLE);
        for (i = 0; i < 4 - k; i++) {
            ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &others[i]));
            ASSERT_STATUS(DEND_OK, dend_seq_append_text(engine, others[i], "1 2", 3, 0));
        }
        ASSERT_STATUS(DEND_OK, dend_seq_release_logits(engine, t.prompt));
        ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
        sch_create(&t);
        ASSERT_STATUS(k ? DEND_OK : DEND_ERR_NO_LOGITS, dend_search_step(t.search, 0));
        for (i = 0; i < 4 - k; i++) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(engine, others[i]));
        }
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        assert_int_equal(sch_info(&t).n_tokens, 300);
        sch_close_all(&t);
    }
}

static bool sch_never(void *user, dend_engine *engine, dend_seq seq, size_t n_tokens) {
    (void)user;
    (void)engine;
    (void)seq;
    (void)n_tokens;
    fail_msg("a search asked what to do with a full context");
    return false;
}

/* A context that is full ends the text, whatever the engine does with other sequences. */
static void test_search_full_context(void **state) {
    static const dend_context_policy policies[] = {DEND_CONTEXT_STATUS, DEND_CONTEXT_SLIDE,
                                                   DEND_CONTEXT_CALLBACK};
    static char texts[3][1 << 16]; /* of all nodes, one after the other */
    uint32_t i, id;
    (void)state;
    for (i = 0; i < 3; i++) {
        sch t;
        uint32_t n_ended = 0;
        size_t at = 0;
        dend_engine_desc ed = sch_engine_desc(0, 64, 1);
        dend_engine *engine;
        ed.n_ctx = 24;
        ed.n_blocks = 64;
        ed.context_policy = policies[i];
        ed.on_context_full = policies[i] == DEND_CONTEXT_CALLBACK ? sch_never : NULL;
        ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
        sch_open(&t, engine, SCH_PUZZLE);
        t.desc.judge = NULL;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        for (id = 0; id < sch_info(&t).n_slots; id++) {
            dend_node_info n;
            if (dend_search_node(t.search, id, &n) == DEND_OK) {
                assert_true(n.len_tokens <= 24);
                n_ended += n.len_tokens == 24 && n.state == DEND_NODE_ENDED ? 1u : 0u;
                at += dend_search_text(t.search, id, texts[i] + at, sizeof texts[i] - at);
                assert_true(at + 1 < sizeof texts[i]);
                texts[i][at++] = '|';
                texts[i][at] = 0;
            }
        }
        assert_true(n_ended > 0);
        assert_string_equal(texts[i], texts[0]);
        sch_walk(t.search);
        sch_close_all(&t);
    }
}

/* -- callbacks ------------------------------------------------------------------------------ */

typedef struct sch_hostile {
    sch *t;
    uint32_t calls, at;
    int what;
} sch_hostile;

enum {
    SCH_NAN = 0,
    SCH_INFINITY,
    SCH_STOP,
    SCH_DROP_NODE,
    SCH_DROP_ALL,
    SCH_FREE,
    SCH_STEP,
    SCH_DEAD,
    SCH_N_HOSTILE
};

static void sch_hostile_judge(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    sch_hostile *h = (sch_hostile *)user;
    dend_node_info info;
    uint32_t id;
    countdown_judge(&h->t->puzzle, search, node, verdict);
    if (++h->calls != h->at) {
        return;
    }
    switch (h->what) {
    case SCH_NAN:
        verdict->value = (float)NAN;
        break;
    case SCH_INFINITY:
        verdict->value = (float)INFINITY;
        break;
    case SCH_STOP:
        verdict->kind = DEND_VERDICT_STOP;
        break;
    case SCH_DROP_NODE:
        ASSERT_STATUS(DEND_OK, dend_search_node(search, node, &info));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(h->t->engine, info.seq));
        break;
    case SCH_DROP_ALL:
        for (id = 0; id < search->n_slots; id++) {
            if (dend_search_node(search, id, &info) == DEND_OK && info.seq.generation) {
                (void)dend_seq_drop(h->t->engine, info.seq);
            }
        }
        break;
    case SCH_FREE:
        dend_search_free(search);
        break;
    case SCH_DEAD:
        verdict->kind = DEND_VERDICT_DEAD;
        break;
    default:
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_step(search, 0));
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_restart(search, h->t->prompt, 0));
        break;
    }
}

static void test_search_hostile_judges(void **state) {
    size_t m;
    int what;
    (void)state;
    for (m = 0; m < 5; m++) {
        for (what = 0; what < SCH_N_HOSTILE; what++) {
            sch t;
            sch_hostile h;
            dend_status status;
            sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
            memset(&h, 0, sizeof h);
            h.t = &t;
            h.at = 7;
            h.what = what;
            t.desc.method = sch_methods[m];
            t.desc.judge = sch_hostile_judge;
            t.desc.user = &h;
            sch_create(&t);
            status = dend_search_step(t.search, 0);
            switch (what) {
            case SCH_NAN:
            case SCH_INFINITY:
                ASSERT_STATUS(DEND_ERR_CALLBACK, status);
                assert_int_equal(sch_info(&t).n_bad_values, 1);
                sch_walk(t.search);
                ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
                assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
                break;
            case SCH_STOP:
                ASSERT_STATUS(DEND_OK, status);
                assert_int_equal(sch_info(&t).end, DEND_SEARCH_STOPPED);
                assert_int_equal(h.calls, 7);
                break;
            case SCH_DROP_NODE:
            case SCH_STEP:
            case SCH_DEAD:
                ASSERT_STATUS(DEND_OK, status);
                assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
                break;
            case SCH_DROP_ALL: /* the root too: nothing can be built any more */
                if (status != DEND_OK) {
                    ASSERT_STATUS(DEND_ERR_STALE, status);
                }
                break;
            default:
                ASSERT_STATUS(DEND_ERR_CANCELLED, status);
                t.search = NULL;
                break;
            }
            if (t.search) {
                sch_walk(t.search);
                assert_true(dend_search_best(t.search) != DEND_NODE_NONE);
            }
            sch_close_all(&t);
        }
    }
}

static void sch_judge_all_dead(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    (void)user;
    (void)search;
    (void)node;
    verdict->kind = DEND_VERDICT_DEAD;
}

static void sch_judge_one_state(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    (void)user;
    (void)search;
    (void)node;
    verdict->key = 5;
}

/* All children dead, all children one state, and samples that are all equal: the search ends by itself or with its
 * budget. */
static void test_search_nowhere_to_go(void **state) {
    size_t m;
    int kind;
    (void)state;
    for (m = 0; m < 5; m++) {
        for (kind = 0; kind < 3; kind++) {
            sch t;
            dend_search_info info;
            sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
            t.desc.method = sch_methods[m];
            t.desc.max_tokens = 3000;
            if (kind < 2) {
                t.desc.judge = kind ? sch_judge_one_state : sch_judge_all_dead;
            } else {
                t.desc.propose = DEND_PROPOSE_SAMPLE;
                t.desc.temperature = 1e-6f;
            }
            sch_create(&t);
            ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
            info = sch_info(&t);
            sch_walk(t.search);
            if (sch_methods[m] == DEND_SEARCH_BEST_OF_N) {
                assert_int_equal(info.end, DEND_SEARCH_TOKENS);
            } else {
                assert_int_equal(info.end, DEND_SEARCH_EXHAUSTED);
            }
            if (kind == 0) {
                assert_int_equal(info.n_dead, info.n_nodes - 1);
                assert_int_equal(info.best, 0);
            } else if (kind == 2) { /* one path */
                assert_true(info.n_nodes <= 5);
            }
            sch_close_all(&t);
        }
    }
}

/* -- methods ---------------------------------------------------------------------------------- */

/* Sampled children: equal ones are one node, and its copies count them. */
static void test_search_samples_merge(void **state) {
    sch t;
    uint32_t id, i, copies = 0, n_equal = 0;
    dend_node_info root, a;
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_BEST_OF_N;
    t.desc.best_of_n.n = 40;
    t.desc.max_tokens = 5000;
    t.desc.temperature = 1.0f;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_EXHAUSTED);
    sch_walk(t.search);
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 0, &root));
    for (id = root.first_child; id != DEND_NODE_NONE; id = a.next_sibling) {
        char x[256], y[256];
        uint32_t other;
        dend_node_info b;
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, id, &a));
        copies += a.n_copies;
        dend_search_text(t.search, id, x, sizeof x);
        for (other = a.next_sibling, i = 0; other != DEND_NODE_NONE; other = b.next_sibling, i++) {
            ASSERT_STATUS(DEND_OK, dend_search_node(t.search, other, &b));
            dend_search_text(t.search, other, y, sizeof y);
            n_equal += strcmp(x, y) == 0 ? 1u : 0u;
        }
    }
    assert_int_equal(copies, 40);
    assert_int_equal(n_equal, 0);
    sch_close_all(&t);
}

/* Steps of a token with SAMPLE: how often each first token comes is what its probability says. */
static void test_search_samples_follow_the_model(void **state) {
    sch t;
    const float *logits;
    double total = 0, x2 = 0;
    uint32_t v, V, id, n_classes = 0;
    dend_node_info root, n;
    enum { SAMPLES = 3000 };
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_BEST_OF_N;
    t.desc.best_of_n.n = SAMPLES;
    t.desc.step_end = DEND_STEP_TOKEN;
    t.desc.max_depth = 1;
    t.desc.judge = NULL;
    t.desc.max_tokens = SAMPLES + 1;
    t.desc.temperature = 1.0f;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(t.engine, t.prompt));
    ASSERT_STATUS(DEND_OK, dend_step(t.engine, 0));
    ASSERT_STATUS(DEND_OK, dend_seq_logits(t.engine, t.prompt, &logits));
    V = t.engine->model->config.n_vocab;
    for (v = 0; v < V; v++) {
        total += exp((double)logits[v]);
    }
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 0, &root));
    for (id = root.first_child; id != DEND_NODE_NONE; id = n.next_sibling) {
        int32_t token;
        double want;
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, id, &n));
        assert_int_equal(dend_search_tokens(t.search, id, &token, 1), 1);
        want = SAMPLES * exp((double)logits[token]) / total;
        if (want >= 5) {
            x2 += (n.n_copies - want) * (n.n_copies - want) / want;
            n_classes++;
        }
    }
    assert_true(n_classes >= 2);
    assert_true(x2 < 6.0 * n_classes + 20); /* far beyond chance */
    sch_close_all(&t);
}

static void sch_judge_parity(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    char text[256];
    (void)user;
    dend_search_text(search, node, text, sizeof text);
    verdict->key = (uint64_t)(text[0] & 1);
    verdict->value = verdict->key ? 1.0f : 0.1f; /* the rarer answer may have the best value */
}

/* Self-consistency takes the answer that most samples gave, whatever its value. */
static void test_search_majority(void **state) {
    sch t;
    uint32_t id, votes[2] = {0, 0};
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_BEST_OF_N;
    t.desc.best_of_n.n = 31;
    t.desc.best_of_n.majority = true;
    t.desc.step_end = DEND_STEP_TOKEN;
    t.desc.max_depth = 1;
    t.desc.temperature = 2.0f;
    t.desc.judge = sch_judge_parity;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    for (id = 1; id < sch_info(&t).n_slots; id++) {
        dend_node_info n;
        if (dend_search_node(t.search, id, &n) == DEND_OK && n.state == DEND_NODE_ENDED) {
            votes[n.key & 1] += n.n_copies;
        }
    }
    assert_int_equal(votes[0] + votes[1], 31);
    {
        dend_node_info best;
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, dend_search_best(t.search), &best));
        assert_int_equal(best.key, votes[1] > votes[0] ? 1 : 0);
    }
    sch_close_all(&t);
}

typedef struct sch_policy {
    uint32_t n_select, n_expand, n_evaluate, n_backup;
} sch_policy;

static uint32_t sch_select(void *user, dend_search *search) {
    sch_policy *p = (sch_policy *)user;
    dend_node_info n;
    uint32_t id;
    dend_search_info info;
    p->n_select++;
    dend_search_get_info(search, &info);
    for (id = info.n_slots; id-- > 0;) { /* the latest that can grow: depth first */
        if (dend_search_node(search, id, &n) == DEND_OK && n.next_logprob > -1e30f) {
            return id;
        }
    }
    return DEND_NODE_NONE;
}

static void sch_expand(void *user, dend_search *search, uint32_t node, dend_proposal *proposal) {
    (void)search;
    (void)node;
    ((sch_policy *)user)->n_expand++;
    proposal->kind = DEND_PROPOSE_LIKELIEST;
}

static float sch_evaluate(void *user, dend_search *search, uint32_t node, float value) {
    (void)search;
    (void)node;
    ((sch_policy *)user)->n_evaluate++;
    return 1.0f - value;
}

static void sch_backup(void *user, dend_search *search, uint32_t node, float value) {
    ((sch_policy *)user)->n_backup++;
    dend_search_visit(search, node, value);
    dend_search_visit(search, 0, value);
    dend_search_visit(search, 0, (float)NAN); /* ignored */
    dend_search_visit(search, 99999, 1.0f);
}

/* All four parts of a policy replaced. */
static void test_search_policy(void **state) {
    sch t;
    sch_policy p;
    dend_node_info root, n;
    (void)state;
    memset(&p, 0, sizeof p);
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.policy.select = sch_select;
    t.desc.policy.expand = sch_expand;
    t.desc.policy.evaluate = sch_evaluate;
    t.desc.policy.backup = sch_backup;
    t.desc.policy.user = &p;
    t.desc.n_lanes = 1;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    sch_walk(t.search);
    assert_true(p.n_select > 3 && p.n_expand > 3 && p.n_evaluate > 3);
    assert_int_equal(p.n_evaluate, p.n_backup);
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 0, &root));
    assert_int_equal(root.visits, p.n_backup);
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 1, &n));
    ASSERT_NEAR(1.0f - t.search->nodes[1].self_value, n.value, 1e-6, 0);
    sch_close_all(&t);
}

/* UCT, and PUCT with widening: a width that forbids a child gives way where nothing else can grow. */
static void test_search_widening_does_not_end_it(void **state) {
    int kind;
    (void)state;
    for (kind = 0; kind < 2; kind++) {
        sch t;
        sch_hostile h;
        sch_open(&t, sch_engine(0, 512, 1), SCH_PUZZLE);
        memset(&h, 0, sizeof h);
        h.t = &t;
        h.at = 1; /* the first step is dead */
        h.what = SCH_DEAD;
        t.desc.mcts.uct = kind == 0;
        t.desc.mcts.widen = kind == 0 ? 0.0f : 1.0f;
        t.desc.judge = sch_hostile_judge;
        t.desc.user = &h;
        t.desc.n_lanes = 1;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
        sch_walk(t.search);
        sch_close_all(&t);
    }
}

/* Every text of three tokens is reached, by every method that enumerates and with any number of lanes. */
static void test_search_reaches_everything(void **state) {
    size_t m;
    uint32_t kind;
    (void)state;
    for (m = 0; m < 4; m++) {
        for (kind = 0; kind < 3; kind++) {
            sch t;
            uint32_t id, n_texts = 0, V;
            sch_open(&t, sch_engine(kind == 1 ? 10 : 0, kind == 2 ? 8 : 12000, 1), SCH_PUZZLE);
            V = t.engine->model->config.n_vocab;
            t.desc.method = sch_methods[m];
            t.desc.mcts.uct = kind == 2;
            t.desc.step_end = DEND_STEP_TOKEN;
            t.desc.value = DEND_VALUE_LOGPROB;
            t.desc.judge = NULL;
            t.desc.max_depth = 3;
            t.desc.n_children = 64;
            t.desc.n_nodes = 12000;
            t.desc.n_tokens = 12000;
            t.desc.max_tokens = 1000000;
            t.desc.min_prob = 1e-30f;
            t.desc.n_lanes = kind == 1 ? 1 : 16;
            sch_create(&t);
            ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
            assert_int_equal(sch_info(&t).end, DEND_SEARCH_EXHAUSTED);
            for (id = 0; id < sch_info(&t).n_slots; id++) {
                dend_node_info n;
                n_texts +=
                    dend_search_node(t.search, id, &n) == DEND_OK && n.state == DEND_NODE_ENDED ? 1u : 0u;
            }
            /* V - 1 tokens go on at the first two places, the one that ends a text ends it */
            assert_int_equal(n_texts, 1 + (V - 1) + (V - 1) * (V - 1) * V);
            sch_close_all(&t);
        }
    }
}

/* Questions behind steps where slots, rows of logits and blocks are few: no call hangs, no step goes unjudged. */
static void test_search_questions_in_want(void **state) {
    uint32_t n_seqs, n_blocks, n_logits;
    (void)state;
    for (n_seqs = 3; n_seqs < 8; n_seqs += 2) {
        for (n_blocks = 6; n_blocks < 40; n_blocks += 9) {
            for (n_logits = 1; n_logits < 5; n_logits += 3) {
                sch t;
                int32_t question[3];
                size_t n;
                uint32_t id;
                dend_status status;
                dend_engine_desc ed = sch_engine_desc(n_blocks, n_seqs, 1);
                dend_engine *engine;
                ed.n_ctx = 64;
                ed.n_logits = n_logits;
                ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
                sch_open(&t, engine, SCH_PUZZLE);
                ASSERT_STATUS(DEND_OK, dend_tokenize(sch_model(), ">24", 3, 0, question, 3, &n));
                ASSERT_STATUS(DEND_OK, dend_seq_release_logits(engine, t.prompt));
                t.desc.value_prompt = question;
                t.desc.n_value_prompt = 3;
                sch_create(&t);
                status = dend_search_step(t.search, 0);
                if (status != DEND_OK && status != DEND_ERR_NO_BLOCKS && status != DEND_ERR_NO_SEQUENCES) {
                    fail_msg("%s with %u slots, %u blocks, %u rows", dend_status_name(status), n_seqs,
                             n_blocks, n_logits);
                }
                sch_walk(t.search);
                for (id = 1; id < sch_info(&t).n_slots && status == DEND_OK; id++) {
                    dend_node_info info;
                    char text[64];
                    size_t len;
                    if (dend_search_node(t.search, id, &info) == DEND_OK && info.state == DEND_NODE_CLOSED &&
                        info.n_children == 0) { /* a step that was given up: none that is written whole */
                        len = dend_search_step_text(t.search, id, text, sizeof text);
                        assert_true(len == 0 || (text[len - 1] != '.' && text[len - 1] != '!') ||
                                    info.visits > 0);
                    }
                }
                sch_close_all(&t);
            }
        }
    }
}

static void sch_expand_samples(void *user, dend_search *search, uint32_t node, dend_proposal *proposal) {
    (void)user;
    (void)search;
    (void)node;
    proposal->kind = DEND_PROPOSE_SAMPLE;
    proposal->temperature = 0.01f;
}

static uint32_t sch_select_root(void *user, dend_search *search) {
    (void)user;
    (void)search;
    return 0;
}

/* Policies that propose what the description does not, or select what cannot grow: the search ends. */
static void test_search_stubborn_policies(void **state) {
    int kind;
    (void)state;
    for (kind = 0; kind < 4; kind++) {
        sch t;
        sch_policy p;
        memset(&p, 0, sizeof p);
        sch_open(&t, sch_engine(0, 512, 1), SCH_PUZZLE);
        t.desc.max_tokens = 20000;
        t.desc.n_nodes = 2048;
        if (kind == 0) {
            t.desc.policy.expand = sch_expand_samples;
        } else if (kind == 1) {
            t.desc.propose = DEND_PROPOSE_SAMPLE;
            t.desc.policy.expand = sch_expand;
        } else {
            t.desc.policy.select = sch_select_root;
            t.desc.max_depth = kind == 2 ? 32 : 1;
        }
        t.desc.policy.user = &p;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        sch_walk(t.search);
        assert_true(sch_info(&t).end == DEND_SEARCH_EXHAUSTED || sch_info(&t).end == DEND_SEARCH_TOKENS ||
                    sch_info(&t).end == DEND_SEARCH_NODES);
        if (kind == 0) { /* the same few samples again and again: each node is left after eight */
            assert_int_equal(sch_info(&t).end, DEND_SEARCH_EXHAUSTED);
            assert_true(sch_info(&t).n_tokens < 2000);
        } else if (kind == 1) {
            assert_true(sch_info(&t).n_nodes > 100);
        }
        sch_close_all(&t);
    }
}

/* Depth first goes on to what its threshold kept out, best first, also where all values are negative. */
static void sch_judge_low(void *user, dend_search *search, uint32_t node, dend_verdict *verdict) {
    (void)user;
    (void)search;
    verdict->value = -0.5f - 0.001f * (float)(node % 10);
}

static void test_search_depth_first_lowers_its_threshold(void **state) {
    sch t;
    (void)state;
    sch_open(&t, sch_engine(0, 512, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_DEPTH_FIRST;
    t.desc.thought.threshold = 0.5f;
    t.desc.judge = sch_judge_low;
    t.desc.n_lanes = 1;
    t.desc.max_tokens = 2000;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    sch_walk(t.search);
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
    sch_close_all(&t);
}

static void sch_vote(void *user, dend_search *search, const uint32_t *nodes, uint32_t n, float *votes) {
    uint32_t i;
    (void)user;
    (void)search;
    for (i = 0; i < n; i++) {
        votes[i] = nodes[i] == 3 ? 1.0f : n > 3 && i == 0 ? (float)NAN : 0.0f;
    }
}

/* A vote decides which node goes on: the one of the width. */
static void test_search_vote(void **state) {
    sch t;
    uint32_t id;
    dend_status status;
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_TREE_OF_THOUGHT;
    t.desc.thought.width = 1;
    t.desc.thought.once = true;
    t.desc.thought.vote = sch_vote;
    t.desc.judge = NULL;
    t.desc.n_lanes = 1;
    sch_create(&t);
    while ((status = dend_search_step(t.search, 0)) == DEND_ERR_CALLBACK) {
    }
    ASSERT_STATUS(DEND_OK, status);
    for (id = 1; id < sch_info(&t).n_slots; id++) {
        dend_node_info n;
        if (dend_search_node(t.search, id, &n) == DEND_OK && n.depth == 2) {
            assert_int_equal(n.parent, 3);
        }
    }
    sch_close_all(&t);
}

/* Rollouts: values come from the ends of texts, so every node that was backed up has one below it. */
static void test_search_rollouts(void **state) {
    sch t;
    uint32_t id, n_leaves = 0;
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.value = DEND_VALUE_ROLLOUT;
    t.desc.max_tokens = 600;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    sch_walk(t.search);
    for (id = 1; id < sch_info(&t).n_slots; id++) {
        dend_node_info n;
        if (dend_search_node(t.search, id, &n) == DEND_OK && n.state == DEND_NODE_DEAD) {
            assert_int_equal(n.visits, 1);
            n_leaves++;
        }
    }
    assert_true(n_leaves > 3);
    assert_true(t.search->nodes[0].visits >= n_leaves);
    sch_close_all(&t);
}

/* A step that is over with its first token, whose rollout no lane has begun yet, is no end of the search. */
static void test_search_rollouts_of_short_steps(void **state) {
    uint32_t n_lanes;
    (void)state;
    for (n_lanes = 1; n_lanes < 4; n_lanes++) {
        sch t;
        sch_open(&t, sch_engine(8192, 2048, 1), "8 11 4 11>24");
        t.desc.value = DEND_VALUE_ROLLOUT;
        t.desc.delimiters = ".";
        t.desc.judge = NULL;
        t.desc.n_lanes = n_lanes;
        t.desc.max_tokens = 3000;
        t.desc.n_nodes = 4096;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        sch_walk(t.search);
        assert_int_equal(sch_info(&t).end, DEND_SEARCH_TOKENS);
        assert_int_equal(sch_info(&t).n_tokens, 3000);
        sch_close_all(&t);
    }
}

/* Self-evaluation behind a prompt: the value is P(yes) of that text by plain decoding. */
static void test_search_value_prompt(void **state) {
    sch t;
    int32_t question[3];
    size_t n;
    uint32_t id, n_checked = 0;
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    ASSERT_STATUS(DEND_OK, dend_tokenize(sch_model(), ">24", 3, 0, question, 3, &n));
    t.desc.value_prompt = question;
    t.desc.n_value_prompt = 3;
    t.desc.judge = NULL;
    t.desc.max_tokens = 120;
    sch_create(&t);
    memset(question, 0, sizeof question); /* it was copied */
    ASSERT_STATUS(DEND_OK, dend_tokenize(sch_model(), ">24", 3, 0, question, 3, &n));
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    sch_walk(t.search);
    for (id = 1; id < sch_info(&t).n_slots; id++) {
        dend_node_info info;
        dend_seq seq;
        const float *logits;
        if (dend_search_node(t.search, id, &info) != DEND_OK || info.state != DEND_NODE_OPEN) {
            continue;
        }
        ASSERT_STATUS(DEND_OK, dend_search_take(t.search, id, &seq));
        ASSERT_STATUS(DEND_OK, dend_seq_append(t.engine, seq, question, 3));
        ASSERT_STATUS(DEND_OK, dend_step(t.engine, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_logits(t.engine, seq, &logits));
        ASSERT_NEAR(1.0 / (1.0 + exp((double)logits[t.desc.no] - (double)logits[t.desc.yes])), info.value,
                    1e-5, 0);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, seq));
        n_checked++;
    }
    assert_true(n_checked > 2);
    sch_close_all(&t);
}

static bool sch_step_ends(void *user, const int32_t *tokens, uint32_t n) {
    (void)user;
    (void)tokens;
    return n == 5;
}

/* The four ends of steps, and steps cut at their most tokens. */
static void test_search_step_ends(void **state) {
    int kind;
    (void)state;
    for (kind = 0; kind < 4; kind++) {
        sch t;
        uint32_t id;
        sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
        t.desc.judge = NULL;
        t.desc.value = DEND_VALUE_LOGPROB;
        t.desc.step_end = kind == 0 ? DEND_STEP_CALLBACK : kind == 1 ? DEND_STEP_TOKEN : DEND_STEP_DELIMITER;
        t.desc.step_ends = sch_step_ends;
        t.desc.delimiters = kind == 2 ? "=" : "~";
        t.desc.max_step_tokens = 7;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        sch_walk(t.search);
        for (id = 1; id < sch_info(&t).n_slots; id++) {
            dend_node_info n;
            char text[64];
            if (dend_search_node(t.search, id, &n) != DEND_OK || n.state != DEND_NODE_OPEN) {
                continue;
            }
            dend_search_step_text(t.search, id, text, sizeof text);
            if (kind == 0) {
                assert_int_equal(n.n_tokens, 5);
            } else if (kind == 1) {
                assert_int_equal(n.n_tokens, 1);
            } else if (kind == 2) {
                assert_true(n.n_tokens == 7 || text[strlen(text) - 1] == '=');
            } else {
                assert_int_equal(n.n_tokens, 7);
            }
        }
        sch_close_all(&t);
    }
}

/* Diverse groups: with a large penalty two groups do not choose one step. */
static void test_search_diverse_beam(void **state) {
    int diverse;
    (void)state;
    for (diverse = 0; diverse < 2; diverse++) {
        sch t;
        uint32_t i, k, n_same = 0;
        sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
        t.desc.method = DEND_SEARCH_BEAM;
        t.desc.step_end = DEND_STEP_TOKEN;
        t.desc.value = DEND_VALUE_LOGPROB;
        t.desc.judge = NULL;
        t.desc.beam.width = 4;
        t.desc.beam.n_groups = diverse ? 4 : 1;
        t.desc.beam.diversity = diverse ? 1000.0f : 0.0f;
        t.desc.beam.once = true;
        t.desc.beam.keep_going = true;
        t.desc.min_prob = 1e-9f;
        t.desc.max_depth = 6;
        t.desc.n_lanes = 1;
        sch_create(&t);
        while (dend_search_step(t.search, 1) == DEND_PENDING) {
            for (i = 0; i < t.search->state.n_level; i++) {
                for (k = 0; k < i; k++) {
                    n_same +=
                        dendp_snode_same_step(t.search, t.search->level[i], t.search->level[k]) ? 1u : 0u;
                }
            }
        }
        assert_true(diverse ? n_same == 0 : n_same > 0);
        sch_close_all(&t);
    }
}

/* Depth first visits no node below the threshold in its first pass. */
static void test_search_depth_first_threshold(void **state) {
    sch t;
    uint32_t id, n_below = 0;
    (void)state;
    sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
    t.desc.method = DEND_SEARCH_DEPTH_FIRST;
    t.desc.thought.threshold = 0.5f;
    t.desc.thought.once = true;
    t.desc.max_tokens = 2000;
    sch_create(&t);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    assert_int_equal(sch_info(&t).end, DEND_SEARCH_EXHAUSTED);
    for (id = 1; id < sch_info(&t).n_slots; id++) {
        dend_node_info n;
        if (dend_search_node(t.search, id, &n) == DEND_OK && n.value < 0.5f) {
            assert_int_equal(n.n_children, 0);
            n_below++;
        }
    }
    assert_true(n_below > 0);
    sch_close_all(&t);
}

/* A search that is solved stops there, and says where. */
static void test_search_solves(void **state) {
    size_t m;
    (void)state;
    for (m = 0; m < 5; m++) {
        sch t;
        dend_node_info best;
        sch_open(&t, sch_engine(0, 512, 1), "1 2 3 4>10"); /* many ways */
        t.desc.method = sch_methods[m];
        t.desc.keep_going = false;
        t.desc.max_tokens = 4000;
        sch_create(&t);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        assert_int_equal(sch_info(&t).end, DEND_SEARCH_SOLVED);
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, dend_search_best(t.search), &best));
        assert_int_equal(best.state, DEND_NODE_SOLVED);
        sch_close_all(&t);
    }
}

/* The best child by visits and by mean against a plain scan. */
static void test_search_best_child(void **state) {
    sch t;
    uint32_t id;
    (void)state;
    sch_open(&t, sch_engine(0, 512, 1), SCH_PUZZLE);
    sch_create(&t);
    assert_int_equal(dend_search_best_child(t.search, 0, true), DEND_NODE_NONE);
    assert_int_equal(dend_search_best_child(t.search, 12345, true), DEND_NODE_NONE);
    assert_int_equal(dend_search_best_child(NULL, 0, true), DEND_NODE_NONE);
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
    for (id = 0; id < sch_info(&t).n_slots; id++) {
        dend_node_info n, c, most, best;
        uint32_t child, by_visits, by_mean;
        if (dend_search_node(t.search, id, &n) != DEND_OK || n.n_children == 0) {
            continue;
        }
        by_visits = dend_search_best_child(t.search, id, true);
        by_mean = dend_search_best_child(t.search, id, false);
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, by_visits, &most));
        ASSERT_STATUS(DEND_OK, dend_search_node(t.search, by_mean, &best));
        assert_int_equal(most.parent, id);
        assert_int_equal(best.parent, id);
        for (child = n.first_child; child != DEND_NODE_NONE; child = c.next_sibling) {
            ASSERT_STATUS(DEND_OK, dend_search_node(t.search, child, &c));
            if (c.state != DEND_NODE_DEAD) {
                assert_true(most.state != DEND_NODE_DEAD && c.visits <= most.visits);
                assert_true(best.state != DEND_NODE_DEAD && c.mean <= best.mean);
            }
        }
    }
    sch_close_all(&t);
}

/* What it is for: with the same tokens MCTS, as examples/countdown.h sets it up, solves at least twice as many of the
 * tuning puzzles as greedy decoding, and no method solves fewer. */
static void test_search_pays(void **state) {
    countdown puzzles[30];
    uint32_t n_solved[COUNTDOWN_N_METHODS], m;
    dend_engine *engine = sch_engine(0, 1024, 0);
    (void)state;
    memset(n_solved, 0, sizeof n_solved);
    assert_int_equal(countdown_read_file("examples/models/countdown_tune.txt", puzzles, 30), 30);
    for (m = 0; m < COUNTDOWN_N_METHODS; m++) {
        uint32_t i;
        for (i = 0; i < 30; i++) {
            dend_search_desc d;
            dend_search *search;
            dend_search_info info;
            dend_seq prompt;
            ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &prompt));
            ASSERT_STATUS(DEND_OK, dend_seq_append_text(engine, prompt, puzzles[i].prompt, (size_t)-1, 0));
            d = countdown_desc(engine, sch_model(), prompt, &puzzles[i], (countdown_method)m, 264);
            ASSERT_STATUS(DEND_OK, dend_search_create(&d, &search, NULL));
            ASSERT_STATUS(DEND_OK, dend_search_step(search, 0));
            dend_search_get_info(search, &info);
            assert_true(info.n_tokens <= 264);
            n_solved[m] += info.end == DEND_SEARCH_SOLVED ? 1u : 0u;
            dend_search_free(search);
            ASSERT_STATUS(DEND_OK, dend_seq_drop(engine, prompt));
        }
        print_message("%s: %u of %u\n", countdown_names[m], n_solved[m], i);
    }
    assert_true(n_solved[COUNTDOWN_MCTS] >= 2 * n_solved[COUNTDOWN_GREEDY]);
    for (m = 0; m < COUNTDOWN_N_METHODS; m++) {
        assert_true(n_solved[m] >= n_solved[COUNTDOWN_GREEDY]);
    }
    dend_engine_free(engine);
}

/* -- export, arguments ------------------------------------------------------------------------ */

/* A small reader of JSON: returns what follows one value, or NULL. */
static const char *sch_json(const char *s, int depth) {
    char close = *s == '{' ? '}' : ']';
    if (depth > 8) {
        return NULL;
    }
    if (*s == '"') {
        for (s++; *s != '"'; s++) {
            if ((unsigned char)*s < 32) {
                return NULL;
            }
            if (*s == '\\') {
                s++;
                if (!strchr("\"\\nu", *s)) {
                    return NULL;
                }
            }
        }
        return s + 1;
    }
    if (*s == '{' || *s == '[') {
        bool object = *s == '{';
        s++;
        while (*s != close) {
            while (*s == '\n' || *s == ',') {
                s++;
            }
            if (object) {
                s = *s == '"' ? sch_json(s, depth + 1) : NULL;
                if (!s || *s++ != ':') {
                    return NULL;
                }
            }
            s = sch_json(s, depth + 1);
            if (!s) {
                return NULL;
            }
            while (*s == '\n') {
                s++;
            }
            if (*s != ',' && *s != close) {
                return NULL;
            }
        }
        return s + 1;
    }
    if (strncmp(s, "null", 4) == 0) {
        return s + 4;
    }
    s += *s == '-';
    if (*s < '0' || *s > '9') {
        return NULL;
    }
    while ((*s >= '0' && *s <= '9') || *s == '.') {
        s++;
    }
    return s;
}

static void test_search_export(void **state) {
    size_t m;
    (void)state;
    for (m = 0; m < 5; m++) {
        sch t;
        char *text, *at;
        const char *end;
        uint32_t n = 0;
        sch_text broken;
        dend_writer writer;
        sch_open(&t, sch_engine(0, 256, 1), SCH_PUZZLE);
        t.desc.method = sch_methods[m];
        sch_create(&t);
        ASSERT_STATUS(DEND_PENDING, dend_search_step(t.search, 1)); /* of a tree that is being grown, too */
        text = sch_export(t.search, DEND_EXPORT_JSON);
        assert_non_null(sch_json(text, 0));
        free(text);
        ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0));
        text = sch_export(t.search, DEND_EXPORT_JSON);
        end = sch_json(text, 0);
        assert_non_null(end);
        assert_string_equal(end, "\n");
        for (at = text; (at = strstr(at, "{\"id\":")) != NULL; at++) {
            n++;
        }
        assert_int_equal(n, sch_info(&t).n_nodes);
        free(text);
        text = sch_export(t.search, DEND_EXPORT_DOT);
        assert_int_equal(strncmp(text, "digraph search {", 16), 0);
        for (at = text, n = 0; (at = strstr(at, " [fillcolor=")) != NULL; at++) {
            n++;
        }
        assert_int_equal(n, sch_info(&t).n_nodes);
        free(text);
        memset(&broken, 0, sizeof broken);
        broken.fail_at = 1;
        writer.write = sch_text_write;
        writer.user = &broken;
        ASSERT_STATUS(DEND_ERR_IO, dend_search_export(t.search, DEND_EXPORT_JSON, &writer));
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_export(t.search, DEND_EXPORT_JSON, NULL));
        ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_export(t.search, (dend_export_format)9, &writer));
        free(broken.data);
        sch_close_all(&t);
    }
}

static void sch_refuse(const sch *t, const dend_search_desc *d, dend_status status) {
    dend_search *search = (dend_search *)1;
    dend_error error;
    uint64_t bytes;
    (void)t;
    memset(&error, 0, sizeof error);
    ASSERT_STATUS(status, dend_search_create(d, &search, &error));
    assert_null(search);
    assert_non_null(error.msg);
    if (status == DEND_ERR_ARGUMENT) {
        ASSERT_STATUS(status, dend_search_plan(d, &bytes, NULL));
    }
}

static void test_search_arguments(void **state) {
    sch t;
    dend_search_desc d;
    dend_seq empty;
    dend_search_info info;
    dend_node_info node;
    int32_t bad_token = -1;
    (void)state;
    sch_open(&t, sch_engine(0, 0, 1), SCH_PUZZLE);
#define SCH_REFUSE(change, status)                                                                           \
    do {                                                                                                     \
        d = t.desc;                                                                                          \
        change;                                                                                              \
        sch_refuse(&t, &d, status);                                                                          \
    } while (0)
    SCH_REFUSE(d.engine = NULL, DEND_ERR_ARGUMENT);
    SCH_REFUSE(memset(&d.prompt, 0, sizeof d.prompt), DEND_ERR_STALE);
    SCH_REFUSE(d.canary_end_ = 1, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.method = (dend_search_method)77, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.step_end = (dend_step_end)77, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.propose = (dend_propose)77, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.value = (dend_value)77, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.delimiters = "", DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.delimiters = NULL, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.step_end = DEND_STEP_CALLBACK, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.temperature = (float)NAN, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.min_prob = 1.0f, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.mcts.explore = -1.0f, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.mcts.fpu = (float)INFINITY, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.yes = -1, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.no = 1 << 20, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.n_value_prompt = 1, DEND_ERR_ARGUMENT);
    SCH_REFUSE((d.n_value_prompt = 1, d.value_prompt = &bad_token), DEND_ERR_ARGUMENT);
    d = t.desc; /* what is not asked is not read */
    d.value = DEND_VALUE_LOGPROB;
    d.n_value_prompt = 3;
    d.n_nodes = 2; /* the default widths follow */
    ASSERT_STATUS(DEND_OK, dend_search_create(&d, &t.search, NULL));
    dend_search_free(t.search);
    SCH_REFUSE(d.max_step_tokens = 5000, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.max_depth = 1u << 20, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.n_children = 1u << 20, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.n_nodes = 1, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.n_nodes = (1u << 24) + 1, DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.n_lanes = 257, DEND_ERR_ARGUMENT);
    SCH_REFUSE((d.beam.width = 2, d.beam.n_groups = 3), DEND_ERR_ARGUMENT);
    SCH_REFUSE(d.thought.width = 100000, DEND_ERR_ARGUMENT);
    SCH_REFUSE((d.method = DEND_SEARCH_BEST_OF_N, d.propose = DEND_PROPOSE_LIKELIEST), DEND_ERR_ARGUMENT);
    ASSERT_STATUS(DEND_OK, dend_seq_create(t.engine, &empty));
    SCH_REFUSE(d.prompt = empty, DEND_ERR_ARGUMENT);
    ASSERT_STATUS(DEND_OK, dend_seq_drop(t.engine, empty));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_create(NULL, &t.search, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_create(&t.desc, NULL, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_step(NULL, 0));
    dend_search_free(NULL);
    dend_search_get_info(NULL, &info);
    assert_int_equal(info.n_nodes, 0);
    assert_int_equal(dend_search_best(NULL), DEND_NODE_NONE);
    assert_int_equal(dend_search_text(NULL, 0, NULL, 0), 0);
    sch_create(&t);
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_node(t.search, 1, &node));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_search_node(t.search, 0, NULL));
    ASSERT_STATUS(DEND_OK, dend_search_node(t.search, 0, &node));
    assert_int_equal(node.parent, DEND_NODE_NONE);
    assert_int_equal(node.first_child, DEND_NODE_NONE);
    assert_int_equal(node.next_sibling, DEND_NODE_NONE);
    assert_int_equal(dend_search_text(t.search, 0, NULL, 0), 0);
    ASSERT_STATUS(DEND_ERR_STALE, dend_search_restart(t.search, empty, 0));
    ASSERT_STATUS(DEND_OK, dend_search_step(t.search, 0)); /* the failed restart changed nothing */
    {
        char text[8];
        size_t n = dend_search_text(t.search, 1, text, sizeof text);
        assert_true(n > 7);
        assert_int_equal(strlen(text), 7); /* cut */
        memset(text, 7, sizeof text);
        dend_search_text(t.search, 1, text, 0);
        assert_int_equal(text[0], 7);
    }
    sch_close_all(&t);
#undef SCH_REFUSE
}

static const struct CMUnitTest tests_search[] = {
    cmocka_unit_test(test_search_equals_plain_decoding),
    cmocka_unit_test(test_search_first_child_is_greedy),
    cmocka_unit_test(test_search_children_are_the_likeliest),
    cmocka_unit_test(test_search_beam_equals_plain_beam),
    cmocka_unit_test(test_search_take),
    cmocka_unit_test(test_search_memory),
    cmocka_unit_test(test_search_no_memory),
    cmocka_unit_test(test_search_ten_thousand_nodes),
    cmocka_unit_test(test_search_token_budgets),
    cmocka_unit_test(test_search_other_budgets),
    cmocka_unit_test(test_search_slices),
    cmocka_unit_test(test_search_freed_in_the_middle),
    cmocka_unit_test(test_search_few_blocks),
    cmocka_unit_test(test_search_waits_for_blocks),
    cmocka_unit_test(test_search_few_logits),
    cmocka_unit_test(test_search_full_context),
    cmocka_unit_test(test_search_hostile_judges),
    cmocka_unit_test(test_search_nowhere_to_go),
    cmocka_unit_test(test_search_samples_merge),
    cmocka_unit_test(test_search_samples_follow_the_model),
    cmocka_unit_test(test_search_majority),
    cmocka_unit_test(test_search_policy),
    cmocka_unit_test(test_search_widening_does_not_end_it),
    cmocka_unit_test(test_search_reaches_everything),
    cmocka_unit_test(test_search_questions_in_want),
    cmocka_unit_test(test_search_stubborn_policies),
    cmocka_unit_test(test_search_depth_first_lowers_its_threshold),
    cmocka_unit_test(test_search_vote),
    cmocka_unit_test(test_search_rollouts),
    cmocka_unit_test(test_search_rollouts_of_short_steps),
    cmocka_unit_test(test_search_value_prompt),
    cmocka_unit_test(test_search_step_ends),
    cmocka_unit_test(test_search_diverse_beam),
    cmocka_unit_test(test_search_depth_first_threshold),
    cmocka_unit_test(test_search_solves),
    cmocka_unit_test(test_search_best_child),
    cmocka_unit_test(test_search_pays),
    cmocka_unit_test(test_search_export),
    cmocka_unit_test(test_search_arguments),
};

/* What the thread sanitizer is to see. */
static const struct CMUnitTest tests_search_threads[] = {
    cmocka_unit_test(test_search_tree_depends_on_the_seed_alone),
};
