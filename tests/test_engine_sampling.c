/* Sampling through engines: mirostat's state along forks, rewinds, saving and loading, against a plain list a
 * sequence; token trees against plain decoding with everything on; stop strings in the scheduler. Helpers:
 * test_engine_api.c, test_engine_plan.c, test_serve_scheduler.c, test_sampling_filters.c. */

#define MIR_SEQS 6u
#define MIR_CTX 96u

/* A sequence with what counted, copied whole wherever the engine shares. */
typedef struct mir_seq {
    bool used;
    dend_seq seq;
    uint32_t len;
    float bits[MIR_CTX]; /* of the token at a position; below 0: it did not count */
    uint32_t known;      /* positions below are of unknown bits: a snapshot has only so many */
    uint32_t known_n;    /* what they sum up to */
    double known_sum;
    bool noted; /* a draw with mirostat since its last change */
    int32_t token;
    float noted_bits;
} mir_seq;

static void mir_tally(const mir_seq *m, uint32_t *n, double *sum) {
    uint32_t i;
    *n = m->known_n;
    *sum = m->known_sum;
    for (i = m->known; i < m->len; i++) {
        if (m->bits[i] >= 0.0f) {
            *n += 1;
            *sum += (double)m->bits[i];
        }
    }
}

static void mir_check(const dend_engine *e, const mir_seq *m) {
    const dendp_slot *slot = dendp_cache_slot(&e->cache, m->seq);
    uint32_t handle = e->cache.records[slot->record].sidecar[0], n;
    double sum;
    mir_tally(m, &n, &sum);
    assert_int_equal(m->len, e->cache.records[slot->record].len);
    assert_int_equal(n, handle ? e->sampling.nodes[handle - 1].n : 0);
    ASSERT_NEAR(sum, handle ? e->sampling.nodes[handle - 1].sum : 0.0, 1e-9, 1e-12);
}

/* Counts of all nodes are those of the nodes and records that name them. */
static void mir_walk(const dend_engine *e) {
    const dendp_sampling *s = &e->sampling;
    uint32_t *counts = (uint32_t *)calloc(s->n_nodes + 1, sizeof *counts), i, n_free = 0;
    assert_non_null(counts);
    for (i = 0; i < s->n_nodes; i++) {
        if (s->nodes[i].count) {
            counts[s->nodes[i].before]++;
        }
    }
    for (i = 0; i < e->desc.n_seqs; i++) {
        if (e->cache.records[i].count) {
            counts[e->cache.records[i].sidecar[0]]++;
        }
    }
    for (i = 0; i < s->n_nodes; i++) {
        assert_int_equal(s->nodes[i].count, counts[i + 1]);
        n_free += s->nodes[i].count == 0;
    }
    assert_int_equal(n_free, s->n_free);
    for (i = s->first_free; i; i = s->nodes[i - 1].before) {
        n_free--;
    }
    assert_int_equal(n_free, 0);
    free(counts);
}

static void mir_append(mir_seq *m, int32_t token) {
    m->bits[m->len++] = m->noted && token == m->token ? m->noted_bits : -1.0f;
    m->noted = false;
}

static dend_sample_params mir_params(test_rng *rng) {
    dend_sample_params p;
    memset(&p, 0, sizeof p);
    p.temperature = 0.5f + (float)test_below(rng, 10) / 10.0f;
    p.mirostat_tau = 1.0f + (float)test_below(rng, 50) / 10.0f;
    p.mirostat_eta = test_below(rng, 2) ? 0.5f : 0.0f;
    p.top_k = test_below(rng, 2) ? 100 : 0;
    return p;
}

/* A draw with mirostat, checked against the oracle with the numbers of the plain list. */
static void mir_draw(dend_engine *e, mir_seq *m, test_rng *rng, uint32_t *n_clear) {
    dend_sample_params p = mir_params(rng);
    dend_sample_past past = {NULL, 0, 0, 0.0};
    dend_sampled out, expected;
    void *scratch = malloc(dend_sample_scratch(ENG_V, 0));
    mir_tally(m, &past.n_surprises, &past.surprise);
    ASSERT_STATUS(DEND_OK, dend_sample(e, m->seq, &p, &out));
    ASSERT_STATUS(DEND_OK, dend_sample_after(eng_logits(e, m->seq), ENG_V, &p, eng_info(e, m->seq).stream,
                                             m->len, &past, scratch, &expected));
    assert_int_equal(expected.token, out.token);
    *n_clear += 1;
    m->noted = true;
    m->token = out.token;
    m->noted_bits = dendp_sampling_bits(&out);
    ASSERT_NEAR(out.logprob * -1.442695041f, m->noted_bits, 1e-5, 1e-5);
    free(scratch);
}

static void test_engine_mirostat_state(void **state) {
    dend_model *model = eng_load(eng_paths[0]);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    mir_seq m[MIR_SEQS];
    plan_bytes bytes;
    test_rng rng;
    uint32_t round, i, j, ops[9] = {0}, n_draws = 0;
    (void)state;
    memset(&bytes, 0, sizeof bytes);
    memset(m, 0, sizeof m);
    rng.state = 2021;
    d.n_ctx = MIR_CTX;
    d.n_seqs = MIR_SEQS;
    e = eng_open(&d);
    for (round = 0; round < 6000; round++) {
        uint32_t op = test_below(&rng, 12), at = test_below(&rng, MIR_SEQS), to = test_below(&rng, MIR_SEQS);
        mir_seq *q = &m[at];
        if (!q->used) {
            int32_t prompt[8];
            eng_tokens(&rng, prompt, 8);
            memset(q, 0, sizeof *q);
            q->seq = eng_with(e, prompt, 1 + round % 8);
            q->used = true;
            for (i = 0; i <= round % 8; i++) {
                mir_append(q, prompt[i]);
            }
            continue;
        }
        ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, q->seq));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        if (q->len + 4 >= MIR_CTX) {
            op = 8;
        }
        if ((op == 7 || op == 10) && to != at && m[to].used) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, m[to].seq));
            m[to].used = false;
        }
        if (op <= 4) { /* the usual way: draw and append */
            int32_t token;
            mir_draw(e, q, &rng, &n_draws);
            token = op == 4 ? (int32_t)test_below(&rng, ENG_V) : q->token; /* or something else */
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, q->seq, &token, 1));
            mir_append(q, token);
            op = 0;
        } else if (op == 5) { /* draw only, perhaps after having drawn before */
            mir_draw(e, q, &rng, &n_draws);
        } else if (op == 6) { /* append what was drawn, if anything was, and more */
            int32_t tokens[2];
            tokens[0] = q->noted ? q->token : 5;
            tokens[1] = 6;
            ASSERT_STATUS(DEND_OK, dend_seq_append(e, q->seq, tokens, 2));
            mir_append(q, tokens[0]);
            mir_append(q, tokens[1]);
        } else if (op == 7 && !m[to].used) { /* fork, note and all */
            m[to] = *q;
            m[to].seq = eng_fork(e, q->seq);
        } else if (op == 8) { /* rewind */
            uint32_t len = test_below(&rng, q->len + 1);
            len = len ? len : 1;
            ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, q->seq, len));
            q->noted = q->noted && len == q->len;
            q->len = len;
            if (len <= q->known) { /* further than the snapshot had it */
                for (i = 0; i < len; i++) {
                    q->bits[i] = -1.0f;
                }
                q->known = q->known_n = 0;
                q->known_sum = 0.0;
            }
        } else if (op == 9) { /* a greedy draw does not count, and leaves the note alone */
            dend_sampled out;
            ASSERT_STATUS(DEND_OK, dend_sample(e, q->seq, NULL, &out));
        } else if (op == 10 && !m[to].used) { /* save and load */
            uint32_t last[15], n = 0, total;
            double sum;
            ASSERT_STATUS(DEND_OK, plan_save(e, q->seq, &bytes));
            m[to] = *q;
            ASSERT_STATUS(DEND_OK, plan_restore(e, &bytes, &m[to].seq));
            m[to].noted = false;
            for (i = q->len; i > q->known && n < 15; i--) {
                if (q->bits[i - 1] >= 0.0f) {
                    last[n++] = i - 1;
                }
            }
            mir_tally(q, &total, &sum);
            if (n == 15) { /* what lies before the oldest of them is one number */
                for (i = 0; i < 15; i++) {
                    total--;
                    sum -= (double)q->bits[last[i]];
                }
                m[to].known = last[14];
                m[to].known_n = total;
                m[to].known_sum = sum;
                for (i = 0; i < last[14]; i++) {
                    m[to].bits[i] = -1.0f;
                }
            }
        } else if (op == 11) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, q->seq));
            q->used = false;
        } else {
            continue;
        }
        ops[op > 8 ? 8 : op]++;
        for (j = 0; j < MIR_SEQS; j++) {
            if (m[j].used) {
                mir_check(e, &m[j]);
            }
        }
        mir_walk(e);
    }
    printf("mirostat: %u draws, %u forks, %u loads and rewinds and drops\n", n_draws, ops[7], ops[8]);
    assert_true(n_draws > 2000 && ops[7] > 50 && ops[8] > 200);
    for (j = 0; j < MIR_SEQS; j++) {
        if (m[j].used) {
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, m[j].seq));
        }
    }
    mir_walk(e);
    assert_int_equal(e->sampling.n_free, e->sampling.n_nodes);
    free(bytes.data);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Everything on. */
static dend_sample_params smp_all(const dend_text_rules *rules, const dend_logit_bias *bias,
                                  uint32_t n_bias) {
    dend_sample_params p;
    memset(&p, 0, sizeof p);
    p.temperature = 1.2f, p.top_k = 120, p.top_p = 0.97f, p.min_p = 0.01f, p.typical_p = 0.98f;
    p.top_n_sigma = 2.5f, p.xtc_probability = 0.5f, p.xtc_threshold = 0.05f;
    p.mirostat_tau = 4.0f, p.mirostat_eta = 0.2f;
    p.repeat_penalty = 1.2f, p.frequency_penalty = 0.1f, p.presence_penalty = 0.1f, p.penalty_last_n = 20;
    p.dry_multiplier = 0.7f, p.bias = bias, p.n_bias = n_bias, p.rules = rules;
    return p;
}

static dend_text_rules *smp_rules(const dend_model *model) {
    static const char *const banned[] = {"e", "th", "a b"}, *const stops[] = {"xy", "qq"},
                             *const breaks[] = {" "};
    dend_text_rules_desc d;
    dend_text_rules *rules = NULL;
    memset(&d, 0, sizeof d);
    d.model = model;
    d.banned = banned, d.n_banned = 3, d.stops = stops, d.n_stops = 2, d.breakers = breaks, d.n_breakers = 1;
    ASSERT_STATUS(DEND_OK, dend_text_rules_create(&d, &rules, NULL));
    return rules;
}

/* Tokens of plain decoding: draw, append, step. */
static void smp_plain(dend_engine *e, dend_seq seq, const dend_sample_params *p, int32_t *out, uint32_t n) {
    uint32_t i;
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, seq));
    for (i = 0; i < n; i++) {
        dend_sampled drawn;
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_sample(e, seq, p, &drawn));
        out[i] = drawn.token;
        ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, &drawn.token, 1));
    }
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
}

/* A verifier that draws behind each row of a tree gets the tokens of plain decoding, and leaves the same state. */
static void test_engine_tree_sample(void **state) {
    static const dend_logit_bias bias[] = {{10, 1.0f}, {20, DEND_BAN}, {30, -2.0f}};
    dend_model *model = eng_load(eng_paths[0]);
    dend_text_rules *rules = smp_rules(model);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    test_rng rng;
    uint32_t round, accepted = 0, differs = 0;
    (void)state;
    rng.state = 17;
    d.n_ctx = 128;
    e = eng_open(&d);
    for (round = 0; round < 25; round++) {
        dend_sample_params p = smp_all(rules, bias, 3), warm;
        dend_seq trunk, plain, tree, other;
        int32_t prompt[30], expected[40], free_run[40];
        uint32_t n = 0;
        eng_tokens(&rng, prompt, 30);
        if (round % 5 == 0) {
            p.temperature = 0.0f;
        }
        p.salt = round;
        trunk = eng_with(e, prompt, 5 + test_below(&rng, 25));
        ASSERT_STATUS(DEND_OK, dend_step(e, 0));
        ASSERT_STATUS(DEND_OK, dend_seq_fork(e, trunk, DEND_FORK_SAME_STREAM, &plain));
        ASSERT_STATUS(DEND_OK, dend_seq_fork(e, trunk, DEND_FORK_SAME_STREAM, &tree));
        ASSERT_STATUS(DEND_OK, dend_seq_fork(e, trunk, DEND_FORK_SAME_STREAM, &other));
        smp_plain(e, plain, &p, expected, 40);
        memset(&warm, 0, sizeof warm);
        warm.temperature = p.temperature, warm.salt = p.salt;
        smp_plain(e, other, &warm, free_run, 40);
        differs += memcmp(expected, free_run, sizeof expected) != 0;
        while (n < 34) {
            int32_t tokens[12], parents[12];
            uint32_t row, depth, good = 1 + test_below(&rng, 4), rows = 0, at = n;
            dend_sampled drawn;
            dend_tree t;
            int32_t parent = -1, next;
            for (depth = 0; depth < 4; depth++) { /* a chain that is right for a while, and wrong siblings */
                uint32_t right = rows;
                tokens[rows] = depth < good ? expected[n + depth] : (int32_t)test_below(&rng, ENG_V);
                parents[rows++] = parent;
                tokens[rows] = (int32_t)test_below(&rng, ENG_V);
                parents[rows++] = parent;
                parent = (int32_t)right;
            }
            ASSERT_STATUS(DEND_OK, dend_sample(e, tree, &p, &drawn));
            t = eng_tree(tree, rows, tokens, parents);
            ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &t, 1));
            parent = -1;
            next = drawn.token;
            for (;;) { /* follow the child that was drawn */
                assert_int_equal(next, expected[at]);
                for (row = 0; row < rows && !(parents[row] == parent && tokens[row] == next); row++) {
                }
                if (row == rows) {
                    break;
                }
                at++;
                parent = (int32_t)row;
                ASSERT_STATUS(DEND_OK, dend_tree_sample(e, 0, row, &p, &drawn));
                next = drawn.token;
            }
            if (parent >= 0) {
                ASSERT_STATUS(DEND_OK, dend_tree_accept(e, 0, (uint32_t)parent));
                ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tree_sample(e, 0, (uint32_t)parent, &p, &drawn));
                accepted += at - n;
            } else { /* nothing fits: go on plainly */
                ASSERT_STATUS(DEND_OK, dend_seq_append(e, tree, &next, 1));
                at++;
            }
            ASSERT_STATUS(DEND_OK, dend_step(e, 0));
            n = at;
        }
        {
            const dendp_slot *x = dendp_cache_slot(&e->cache, plain), *y;
            const dendp_surprise *a, *b;
            ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, plain, eng_info(e, tree).len_tokens));
            x = dendp_cache_slot(&e->cache, plain);
            y = dendp_cache_slot(&e->cache, tree);
            if (p.temperature > 0.0f) {
                a = &e->sampling.nodes[e->cache.records[x->record].sidecar[0] - 1];
                b = &e->sampling.nodes[e->cache.records[y->record].sidecar[0] - 1];
                assert_int_equal(a->n, n);
                assert_int_equal(b->n, n);
                ASSERT_NEAR(a->sum, b->sum, 0.0, 0.0);
            }
        }
        mir_walk(e);
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, trunk));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, plain));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, tree));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, other));
    }
    assert_true(accepted > 400 && differs >= 20);
    dend_text_rules_free(rules);
    dend_engine_free(e);
    dend_model_free(model);
}

/* Forks, rewinds and loads with everything on repeat the same tokens; nothing is allocated; no banned string is
 * in the text; sequences do not see each other. */
static void test_engine_sampling_repeats(void **state) {
    static const dend_logit_bias bias[] = {{10, 1.0f}, {20, DEND_BAN}, {30, -2.0f}};
    dend_model *model = eng_load(eng_paths[0]);
    dend_text_rules *rules = smp_rules(model);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    test_heap heap;
    plan_bytes bytes;
    test_rng rng;
    uint32_t round, i;
    uint64_t n_allocs;
    (void)state;
    memset(&bytes, 0, sizeof bytes);
    memset(&heap, 0, sizeof heap);
    rng.state = 19;
    d.n_ctx = 128;
    d.allocator = test_heap_allocator(&heap);
    e = eng_open(&d);
    n_allocs = heap.n_allocs;
    for (round = 0; round < 10; round++) {
        dend_sample_params p = smp_all(rules, bias, 3);
        dend_seq a, b, c;
        int32_t prompt[20], one[30], two[30];
        uint32_t back = 1 + test_below(&rng, 14), len;
        char text[2000];
        size_t at = 0, k;
        eng_tokens(&rng, prompt, 20);
        a = eng_with(e, prompt, 20);
        ASSERT_STATUS(DEND_OK, dend_seq_fork(e, a, DEND_FORK_SAME_STREAM, &b));
        smp_plain(e, a, &p, one, 30);
        smp_plain(e, b, &p, two, 30);
        assert_memory_equal(one, two, sizeof one);
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, a, 20 + (30 - back))); /* and again from there */
        smp_plain(e, a, &p, two, back);
        assert_memory_equal(one + 30 - back, two, back * sizeof *two);
        ASSERT_STATUS(DEND_OK, plan_save(e, b, &bytes));
        ASSERT_STATUS(DEND_OK, plan_restore(e, &bytes, &c));
        smp_plain(e, b, &p, one, 20);
        smp_plain(e, c, &p, two, 20);
        assert_memory_equal(one, two, 20 * sizeof *one);
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, c, 50 - back)); /* into what was saved */
        ASSERT_STATUS(DEND_OK, dend_seq_rewind(e, b, 50 - back));
        smp_plain(e, b, &p, one, 20);
        smp_plain(e, c, &p, two, 20);
        assert_memory_equal(one, two, 20 * sizeof *one);
        len = eng_info(e, b).len_tokens;
        for (i = 20; i < len; i++) {
            int32_t token;
            size_t n;
            const char *s;
            ASSERT_STATUS(DEND_OK, dend_seq_tokens(e, b, i, 1, &token));
            assert_int_not_equal(token, 20);
            s = dend_token_bytes(model, token, &n);
            assert_true(at + n < sizeof text);
            memcpy(text + at, s, n);
            at += n;
        }
        for (k = 0; k < at; k++) {
            assert_false(text[k] == 'e' || (k + 1 < at && text[k] == 't' && text[k + 1] == 'h'));
            assert_false(k + 2 < at && memcmp(text + k, "a b", 3) == 0);
        }
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, a));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, b));
        ASSERT_STATUS(DEND_OK, dend_seq_drop(e, c));
    }
    assert_int_equal(heap.n_allocs, n_allocs);
    mir_walk(e);
    free(bytes.data);
    dend_engine_free(e);
    dend_text_rules_free(rules);
    dend_model_free(model);
}

/* What is refused changes nothing. */
static void test_engine_sampling_refused(void **state) {
    static dend_logit_bias all[ENG_V];
    dend_model *model = eng_load(eng_paths[0]), *twin = eng_load(eng_paths[0]);
    dend_text_rules *rules = smp_rules(twin);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e = eng_open(&d);
    dend_scheduler *s = srv_open(e, 4, 1);
    dend_sample_params p;
    dend_sampled out;
    dend_request r;
    dend_request_id id;
    int32_t prompt[4] = {1, 2, 3, 4}, parents[1] = {-1}, token;
    dend_tree tree;
    dend_seq seq = eng_with(e, prompt, 4);
    uint32_t i;
    (void)state;
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    for (i = 0; i < ENG_V; i++) {
        all[i].token = (int32_t)i;
        all[i].bias = DEND_BAN;
    }
    memset(&p, 0, sizeof p);
    p.bias = all, p.n_bias = ENG_V;
    ENG_REFUSED(DEND_ERR_NO_TOKENS, e, dend_sample(e, seq, &p, &out));
    ASSERT_STATUS(DEND_ERR_NO_TOKENS, dend_next(e, seq, &p, &token));
    p.n_bias--;
    ASSERT_STATUS(DEND_OK, dend_sample(e, seq, &p, &out));
    assert_int_equal(out.token, ENG_V - 1);
    all[3].token = ENG_V;
    ENG_REFUSED(DEND_ERR_TOKEN, e, dend_sample(e, seq, &p, &out));
    r = srv_request(seq, 3);
    r.params = p;
    ASSERT_STATUS(DEND_ERR_TOKEN, dend_scheduler_submit(s, &r, &id));
    all[3].token = 3;
    r.params.n_bias = ENG_V;
    ASSERT_STATUS(DEND_OK, dend_scheduler_submit(s, &r, &id));
    ASSERT_STATUS(DEND_OK, dend_scheduler_step(s, 0));
    srv_done(s, id, DEND_ERR_NO_TOKENS, 0);
    ASSERT_STATUS(DEND_OK, dend_seq_want_logits(e, seq));
    ASSERT_STATUS(DEND_OK, dend_step(e, 0));
    memset(&p, 0, sizeof p);
    p.rules = rules; /* of another model */
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_sample(e, seq, &p, &out));
    r.params = p;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_scheduler_submit(s, &r, &id));
    p.rules = NULL;
    p.temperature = 1.0f, p.mirostat_tau = -1.0f;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_sample(e, seq, &p, &out));
    p.mirostat_tau = 3.0f;
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_sample(e, 0, 0, &p, &out)); /* no tree */
    tree = eng_tree(seq, 1, prompt, parents);
    ASSERT_STATUS(DEND_OK, dend_tree_eval(e, &tree, 1));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_sample(e, 0, 1, &p, &out));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_sample(e, 1, 0, &p, &out));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_sample(e, 0, 0, &p, NULL));
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_tree_sample(NULL, 0, 0, &p, &out));
    p.mirostat_tau = 0.0f;
    ENG_REFUSED(DEND_OK, e, dend_tree_sample(e, 0, 0, &p, &out)); /* without mirostat it only looks */
    ASSERT_STATUS(DEND_OK, dend_seq_append(e, seq, prompt, 1));
    ENG_REFUSED(DEND_ERR_ARGUMENT, e, dend_tree_sample(e, 0, 0, &p, &out));
    ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seq));
    ENG_REFUSED(DEND_ERR_STALE, e, dend_tree_sample(e, 0, 0, &p, &out));
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_text_rules_free(rules);
    dend_model_free(twin);
    dend_model_free(model);
}

typedef struct smp_told {
    dend_scheduler *s;
    uint64_t last;
    uint32_t n;
} smp_told;

static bool smp_on_token(void *user, dend_request_id id, int32_t token) {
    smp_told *t = (smp_told *)user;
    dend_request_info info = srv_info(t->s, id);
    (void)token;
    assert_true(info.n_text >= t->last);
    t->last = info.n_text;
    t->n++;
    return true;
}

/* Requests with stop strings and all filters end where dend_next and dend_stop_feed say alone. */
static void test_engine_stops(void **state) {
    static const char *const stops[] = {"the", "ing", "o", "\n", "zz", "ab", "h s"};
    dend_model *model = eng_load(eng_paths[0]);
    dend_engine_desc d = eng_desc(model);
    dend_engine *e;
    dend_scheduler *s;
    test_rng rng;
    uint32_t round, n_stopped = 0, n_ended = 0;
    (void)state;
    rng.state = 23;
    d.n_batch = 32;
    d.n_ctx = 128;
    e = eng_open(&d);
    s = srv_open(e, 8, 1);
    for (round = 0; round < 20; round++) {
        dend_text_rules *rules[6];
        smp_told told[6];
        dend_seq seqs[6], alone[6];
        dend_request r[6];
        dend_request_id ids[6];
        uint32_t i;
        for (i = 0; i < 6; i++) {
            dend_text_rules_desc rd;
            int32_t prompt[10];
            memset(&rd, 0, sizeof rd);
            rd.model = model;
            rd.stops = stops + test_below(&rng, 5), rd.n_stops = 1 + test_below(&rng, 3);
            ASSERT_STATUS(DEND_OK, dend_text_rules_create(&rd, &rules[i], NULL));
            eng_tokens(&rng, prompt, 10);
            seqs[i] = eng_with(e, prompt, 10);
            ASSERT_STATUS(DEND_OK, dend_seq_fork(e, seqs[i], DEND_FORK_SAME_STREAM, &alone[i]));
            r[i] = srv_request(seqs[i], 25);
            r[i].params.temperature = 1.0f;
            if (i % 2) {
                r[i].params = smp_all(rules[i], NULL, 0);
            }
            r[i].params.rules = rules[i];
            r[i].on_token = smp_on_token;
            r[i].user_data = &told[i];
            memset(&told[i], 0, sizeof told[i]);
            told[i].s = s;
            ids[i] = srv_submit(s, &r[i]);
        }
        while (dend_scheduler_step(s, 1) == DEND_PENDING) {
        }
        for (i = 0; i < 6; i++) {
            dend_stop_state stop;
            dend_status status = DEND_OK, expected = DEND_OK;
            dend_request_info info = srv_info(s, ids[i]);
            uint32_t n = 0;
            memset(&stop, 0, sizeof stop);
            while (n < 25 && expected == DEND_OK) {
                int32_t token;
                size_t bytes;
                const char *text;
                status = dend_next(e, alone[i], &r[i].params, &token);
                if (status == DEND_END) {
                    expected = DEND_END;
                    break;
                }
                ASSERT_STATUS(DEND_OK, status);
                n++;
                text = dend_token_bytes(model, token, &bytes);
                expected = dend_stop_feed(rules[i], &stop, text, bytes, 0);
            }
            srv_done(s, ids[i], expected, n);
            assert_int_equal(told[i].n, n);
            assert_int_equal(info.stopped, stop.stopped);
            assert_int_equal(info.n_text, stop.stopped ? stop.n_release : stop.n_bytes);
            n_stopped += info.stopped;
            n_ended += info.status == DEND_END && !info.stopped;
            assert_int_equal(eng_info(e, seqs[i]).prefix_hash, eng_info(e, alone[i]).prefix_hash);
            ASSERT_STATUS(DEND_OK, dend_scheduler_collect(s, ids[i]));
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, seqs[i]));
            ASSERT_STATUS(DEND_OK, dend_seq_drop(e, alone[i]));
            dend_text_rules_free(rules[i]);
        }
    }
    printf("stops: %u requests ended by a string, %u by the model\n", n_stopped, n_ended);
    assert_true(n_stopped > 10);
    dend_scheduler_free(s);
    dend_engine_free(e);
    dend_model_free(model);
}

static const struct CMUnitTest tests_engine_sampling[] = {
    cmocka_unit_test(test_engine_mirostat_state), cmocka_unit_test(test_engine_tree_sample),
    cmocka_unit_test(test_engine_sampling_repeats), cmocka_unit_test(test_engine_sampling_refused),
    cmocka_unit_test(test_engine_stops)};
