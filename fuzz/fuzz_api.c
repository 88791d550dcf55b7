/* libFuzzer target: any bytes as calls of the public functions, in any order
 * and with any arguments, on two tiny models: forks, appends, steps whole and in
 * slices, cancels, rewinds, drops, draws, token trees, sessions, prefixes, and
 * schedulers and searches that live beside each other and are freed under way.
 * What must hold: a sequence's tokens are those that a plain list beside it says,
 * a stale handle stays stale, counts add up, when all is dropped all blocks are
 * back, and a sequence has the logits, bit for bit, that a fresh engine computes
 * for its tokens.
 *
 * Run it from the repository's root, where the models are found:
 *
 *     make fuzz && build/fuzz_api
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif

#include <stdlib.h>

#define FUZZ_API_REQUIRE(condition)                                                                          \
    do {                                                                                                     \
        if (!(condition)) abort();                                                                           \
    } while (0)

#define FUZZ_API_SEQS 12u
#define FUZZ_API_CTX 64u
#define FUZZ_API_PINS 8u
#define FUZZ_API_PAIR 2u

static const char *const fuzz_api_models[FUZZ_API_PAIR] = {"tests/golden/tiny_llama_f16.gguf",
                                                           "tests/golden/tiny_gemma3.gguf"};

/* Tokens, as a sequence must have them or as they have been pinned. */
typedef struct fuzz_api_seq {
    dend_seq seq;
    int32_t tokens[FUZZ_API_CTX];
    uint32_t n;
    bool live;
} fuzz_api_seq;

typedef struct fuzz_api_world {
    const uint8_t *data;
    size_t size, at;
    dend_engine_desc desc;
    dend_engine *engine;
    uint32_t n_vocab;
    fuzz_api_seq seqs[FUZZ_API_SEQS];
    fuzz_api_seq pins[FUZZ_API_PINS];
    dend_scheduler *schedulers[FUZZ_API_PAIR];
    dend_request_id ids[FUZZ_API_PAIR];
    dend_search *searches[FUZZ_API_PAIR];
    unsigned char saved[1 << 19];
    size_t n_saved;
} fuzz_api_world;

static uint32_t fuzz_api_byte(fuzz_api_world *w) {
    return w->at < w->size ? w->data[w->at++] : 0;
}

static bool fuzz_api_write(void *user, const void *data, size_t n) {
    fuzz_api_world *w = (fuzz_api_world *)user;
    if (n > sizeof w->saved - w->n_saved) {
        return false;
    }
    memcpy(w->saved + w->n_saved, data, n);
    w->n_saved += n;
    return true;
}

static bool fuzz_api_read(void *user, uint64_t offset, void *dst, size_t n) {
    const fuzz_api_world *w = (const fuzz_api_world *)user;
    if (offset > w->n_saved || n > w->n_saved - offset) {
        return false;
    }
    memcpy(dst, w->saved + offset, n);
    return true;
}

/* A sequence beside its list. */
static void fuzz_api_check(const fuzz_api_world *w, const fuzz_api_seq *s) {
    dend_seq_info info;
    int32_t tokens[FUZZ_API_CTX];
    dend_status status = dend_seq_get_info(w->engine, s->seq, &info);
    if (!s->live) {
        FUZZ_API_REQUIRE(status == DEND_ERR_STALE);
        return;
    }
    FUZZ_API_REQUIRE(status == DEND_OK && info.len_tokens == s->n && info.n_waiting <= s->n);
    FUZZ_API_REQUIRE(dend_seq_tokens(w->engine, s->seq, 0, s->n, tokens) == DEND_OK);
    FUZZ_API_REQUIRE(memcmp(tokens, s->tokens, s->n * sizeof tokens[0]) == 0);
}

/* What others have added to a sequence becomes its list. */
static void fuzz_api_take(const fuzz_api_world *w, fuzz_api_seq *s) {
    dend_seq_info info;
    int32_t tokens[FUZZ_API_CTX];
    FUZZ_API_REQUIRE(dend_seq_get_info(w->engine, s->seq, &info) == DEND_OK);
    FUZZ_API_REQUIRE(info.len_tokens <= FUZZ_API_CTX);
    FUZZ_API_REQUIRE(dend_seq_tokens(w->engine, s->seq, 0, info.len_tokens, tokens) == DEND_OK);
    if (w->desc.context_policy != DEND_CONTEXT_SLIDE) {
        FUZZ_API_REQUIRE(info.len_tokens >= s->n && memcmp(tokens, s->tokens, s->n * sizeof *tokens) == 0);
    }
    memcpy(s->tokens, tokens, info.len_tokens * sizeof *tokens);
    s->n = info.len_tokens;
}

/* Microseconds for a call: none, or so few that it stops nearly everywhere. */
static uint64_t fuzz_api_budget(fuzz_api_world *w) {
    return fuzz_api_byte(w) % 4;
}

/* Makes, feeds, cancels, runs or frees one of two schedulers. */
static void fuzz_api_serve(fuzz_api_world *w, const fuzz_api_seq *s) {
    uint32_t k = fuzz_api_byte(w) % FUZZ_API_PAIR, i;
    dend_scheduler **scheduler = &w->schedulers[k];
    dend_request_info info;
    dend_scheduler_desc d;
    dend_request r;
    switch (*scheduler ? fuzz_api_byte(w) % 8 : 8) {
    case 0:
        dend_scheduler_free(*scheduler);
        *scheduler = NULL;
        break;
    case 1:
        (void)dend_scheduler_cancel(*scheduler, w->ids[k]);
        break;
    case 2:
        if (dend_scheduler_request_info(*scheduler, w->ids[k], &info) == DEND_OK &&
            info.state == DEND_REQUEST_DONE) {
            FUZZ_API_REQUIRE(dend_scheduler_collect(*scheduler, w->ids[k]) == DEND_OK);
            FUZZ_API_REQUIRE(dend_scheduler_collect(*scheduler, w->ids[k]) != DEND_OK);
        }
        break;
    case 3:
    case 4:
        memset(&r, 0, sizeof r);
        r.seq = s->seq;
        r.max_tokens = 1 + fuzz_api_byte(w) % 8;
        r.priority = (int32_t)fuzz_api_byte(w) - 128;
        r.user = fuzz_api_byte(w) % 3;
        r.params.temperature = (float)fuzz_api_byte(w) / 100.0f;
        (void)dend_scheduler_submit(*scheduler, &r, &w->ids[k]);
        break;
    case 8:
        memset(&d, 0, sizeof d);
        d.engine = w->engine;
        d.n_requests = fuzz_api_byte(w) % 5;
        d.prefill_share = fuzz_api_byte(w);
        if (dend_scheduler_create(&d, scheduler, NULL) != DEND_OK) {
            FUZZ_API_REQUIRE(!*scheduler);
        }
        break;
    default:
        (void)dend_scheduler_step(*scheduler, fuzz_api_budget(w));
        for (i = 0; i < FUZZ_API_SEQS; i++) {
            if (w->seqs[i].live) {
                fuzz_api_take(w, &w->seqs[i]);
            }
        }
        break;
    }
}

/* Makes, runs, asks or frees one of two searches. */
static void fuzz_api_search(fuzz_api_world *w, const fuzz_api_seq *s, fuzz_api_seq *other) {
    dend_search **search = &w->searches[fuzz_api_byte(w) % FUZZ_API_PAIR];
    dend_search_desc d;
    switch (*search ? fuzz_api_byte(w) % 8 : 8) {
    case 0:
        dend_search_free(*search);
        *search = NULL;
        break;
    case 1:
        if (!other->live && dend_search_take(*search, dend_search_best(*search), &other->seq) == DEND_OK) {
            other->n = 0;
            other->live = true;
            fuzz_api_take(w, other);
        }
        break;
    case 2:
        (void)dend_search_restart(*search, s->seq, fuzz_api_byte(w));
        break;
    case 8:
        memset(&d, 0, sizeof d);
        d.engine = w->engine;
        d.prompt = s->seq;
        d.method = (dend_search_method)(fuzz_api_byte(w) % 7);
        d.step_end = (dend_step_end)(fuzz_api_byte(w) % 6);
        d.max_step_tokens = fuzz_api_byte(w) % 4;
        d.n_lanes = fuzz_api_byte(w) % 6;
        d.n_nodes = 32;
        d.max_tokens = fuzz_api_byte(w) % 20;
        if (dend_search_create(&d, search, NULL) != DEND_OK) {
            FUZZ_API_REQUIRE(!*search);
        }
        break;
    default:
        (void)dend_search_step(*search, fuzz_api_budget(w));
        break;
    }
}

/* Pins, unpins, asks for or forgets what has been computed. */
static void fuzz_api_prefix(fuzz_api_world *w, const fuzz_api_seq *s) {
    fuzz_api_seq *pin = &w->pins[fuzz_api_byte(w) % FUZZ_API_PINS];
    uint32_t n = 0;
    switch (fuzz_api_byte(w) % 5) {
    case 0:
        FUZZ_API_REQUIRE(dend_prefix_clear(w->engine) == DEND_OK);
        break;
    case 1:
        (void)dend_seq_set_reuse(w->engine, s->seq, fuzz_api_byte(w) & 1u);
        break;
    case 2:
        FUZZ_API_REQUIRE(dend_prefix_lookup(w->engine, s->tokens, s->n, &n) == DEND_OK && n <= s->n);
        break;
    case 3:
        if (pin->live) {
            FUZZ_API_REQUIRE(dend_prefix_unpin(w->engine, pin->tokens, pin->n) == DEND_OK);
            pin->live = false;
        }
        break;
    default:
        if (!pin->live && dend_prefix_pin(w->engine, s->seq, &n) == DEND_OK) {
            FUZZ_API_REQUIRE(s->live && n > 0 && n <= s->n);
            memcpy(pin->tokens, s->tokens, sizeof s->tokens);
            pin->n = n;
            pin->live = true;
        }
        break;
    }
}

/* Saves all sequences and brings them back as new ones, where there is room. */
static void fuzz_api_session(fuzz_api_world *w) {
    dend_seq seqs[FUZZ_API_SEQS], back[FUZZ_API_SEQS];
    uint64_t tags[FUZZ_API_SEQS], n_bytes = 0;
    uint32_t n = 0, n_back = 0, i;
    bool damaged = fuzz_api_byte(w) % 3 == 0;
    for (i = 0; i < FUZZ_API_SEQS; i++) {
        if (w->seqs[i].live) {
            seqs[n] = w->seqs[i].seq;
            tags[n++] = i;
        }
    }
    if (dend_save_memory(w->engine, seqs, tags, n, w->saved, sizeof w->saved, &n_bytes) != DEND_OK) {
        FUZZ_API_REQUIRE(n_bytes > sizeof w->saved);
        return;
    }
    if (damaged && n_bytes) {
        w->saved[(fuzz_api_byte(w) * 257u) % n_bytes] ^= (unsigned char)(1 + fuzz_api_byte(w));
    }
    if (dend_restore_memory(w->engine, w->saved, (size_t)n_bytes, back, tags, FUZZ_API_SEQS, &n_back, NULL) !=
        DEND_OK) {
        return;
    }
    FUZZ_API_REQUIRE(damaged || n_back == n);
    for (i = 0; i < n_back; i++) {
        fuzz_api_seq *old = &w->seqs[tags[i] % FUZZ_API_SEQS];
        if (!damaged) {
            fuzz_api_seq same = *old;
            same.seq = back[i];
            fuzz_api_check(w, &same);
        }
        if (fuzz_api_byte(w) & 1u && !damaged) { /* the new one takes the old one's place */
            FUZZ_API_REQUIRE(dend_seq_drop(w->engine, old->seq) == DEND_OK);
            old->seq = back[i];
        } else {
            FUZZ_API_REQUIRE(dend_seq_drop(w->engine, back[i]) == DEND_OK);
        }
    }
}

/* The logits of a sequence are those of a fresh engine, however they came to be. */
static void fuzz_api_compare(const fuzz_api_world *w, const fuzz_api_seq *s) {
    dend_engine_desc d = w->desc;
    dend_engine *fresh;
    const float *have, *want;
    dend_seq seq;
    if (!s->live || s->n == 0 || dend_seq_want_logits(w->engine, s->seq) != DEND_OK ||
        dend_step(w->engine, 0) != DEND_OK || dend_seq_logits(w->engine, s->seq, &have) != DEND_OK) {
        return;
    }
    d.n_blocks = d.n_window_blocks = d.n_batch = 0;
    FUZZ_API_REQUIRE(dend_engine_create(&d, &fresh, NULL) == DEND_OK);
    FUZZ_API_REQUIRE(dend_seq_create(fresh, &seq) == DEND_OK);
    FUZZ_API_REQUIRE(dend_seq_append(fresh, seq, s->tokens, s->n) == DEND_OK);
    FUZZ_API_REQUIRE(dend_step(fresh, 0) == DEND_OK);
    FUZZ_API_REQUIRE(dend_seq_logits(fresh, seq, &want) == DEND_OK);
    FUZZ_API_REQUIRE(memcmp(have, want, w->n_vocab * sizeof *have) == 0);
    dend_engine_free(fresh);
}

static void fuzz_api_tree(fuzz_api_world *w, fuzz_api_seq *s) {
    int32_t tokens[8], parents[8], path[8];
    uint32_t n = fuzz_api_byte(w) % 9, i, row, length = 0;
    dend_tree tree;
    for (i = 0; i < n; i++) {
        tokens[i] = (int32_t)(fuzz_api_byte(w) * 3) - 5;
        parents[i] = (int32_t)(fuzz_api_byte(w) % (i + 2)) - 1;
    }
    tree.seq = s->seq;
    tree.n_rows = n;
    tree.tokens = tokens;
    tree.parents = parents;
    if (dend_tree_eval(w->engine, &tree, 1) != DEND_OK || n == 0) {
        return;
    }
    row = fuzz_api_byte(w) % n;
    FUZZ_API_REQUIRE(dend_tree_logits(w->engine, 0, row) != NULL &&
                     dend_tree_logits(w->engine, 0, n) == NULL);
    if (dend_tree_accept(w->engine, 0, row) == DEND_OK) {
        int32_t at;
        for (at = (int32_t)row; at >= 0; at = parents[at]) {
            path[length++] = tokens[at];
        }
        FUZZ_API_REQUIRE(s->n + length <= FUZZ_API_CTX);
        while (length > 0) {
            s->tokens[s->n++] = path[--length];
        }
    }
}

static void fuzz_api_act(fuzz_api_world *w) {
    fuzz_api_seq *s = &w->seqs[fuzz_api_byte(w) % FUZZ_API_SEQS];
    fuzz_api_seq *other = &w->seqs[fuzz_api_byte(w) % FUZZ_API_SEQS];
    dend_sample_params p;
    dend_sampled got;
    dend_writer to;
    dend_reader from;
    int32_t tokens[40], token;
    uint32_t i, n;
    switch (fuzz_api_byte(w) % 21) {
    case 0:
        if (!s->live && dend_seq_create(w->engine, &s->seq) == DEND_OK) {
            s->live = true;
            s->n = 0;
        }
        break;
    case 1:
        if (!other->live && dend_seq_fork(w->engine, s->seq, fuzz_api_byte(w) & 1u, &other->seq) == DEND_OK) {
            FUZZ_API_REQUIRE(s->live);
            memcpy(other->tokens, s->tokens, sizeof s->tokens);
            other->n = s->n;
            other->live = true;
        }
        break;
    case 2:
    case 3:
        n = fuzz_api_byte(w) % 40;
        for (i = 0; i < n; i++) {
            tokens[i] = (int32_t)(fuzz_api_byte(w) + (i % 50 == 49 ? 100u : 0u));
        }
        if (dend_seq_append(w->engine, s->seq, tokens, n) == DEND_OK) {
            FUZZ_API_REQUIRE(s->live);
            if (s->n + n <= FUZZ_API_CTX) {
                memcpy(s->tokens + s->n, tokens, n * sizeof tokens[0]);
                s->n += n;
            } else {
                FUZZ_API_REQUIRE(w->desc.context_policy == DEND_CONTEXT_SLIDE);
                fuzz_api_take(w, s);
            }
        }
        break;
    case 4:
    case 5:
        (void)dend_step(w->engine, fuzz_api_budget(w));
        break;
    case 6:
        n = fuzz_api_byte(w);
        if (dend_seq_rewind(w->engine, s->seq, n) == DEND_OK) {
            FUZZ_API_REQUIRE(s->live && n <= s->n);
            s->n = n;
        }
        break;
    case 7:
        FUZZ_API_REQUIRE(dend_seq_drop(w->engine, s->seq) == (s->live ? DEND_OK : DEND_ERR_STALE));
        s->live = false;
        break;
    case 8:
        memset(&p, 0, sizeof p);
        p.temperature = (float)fuzz_api_byte(w) / 64.0f;
        p.top_k = fuzz_api_byte(w);
        p.top_p = (float)fuzz_api_byte(w) / 200.0f;
        p.min_p = (float)fuzz_api_byte(w) / 250.0f;
        if (dend_sample(w->engine, s->seq, &p, &got) == DEND_OK) {
            FUZZ_API_REQUIRE(s->live && got.token >= 0 && (uint32_t)got.token < w->n_vocab);
        }
        break;
    case 9:
        if (s->live && dend_next(w->engine, s->seq, NULL, &token) == DEND_OK) {
            if (s->n < FUZZ_API_CTX) {
                s->tokens[s->n++] = token;
            } else {
                FUZZ_API_REQUIRE(w->desc.context_policy == DEND_CONTEXT_SLIDE);
                fuzz_api_take(w, s);
            }
        }
        break;
    case 10:
        fuzz_api_tree(w, s);
        break;
    case 11:
        w->n_saved = 0;
        to.write = fuzz_api_write;
        to.user = w;
        if (dend_seq_save(w->engine, s->seq, &to) == DEND_OK && !other->live) {
            from.read = fuzz_api_read;
            from.size = w->n_saved;
            from.user = w;
            if (fuzz_api_byte(w) % 3 == 0 && w->n_saved) { /* damaged */
                w->saved[(fuzz_api_byte(w) * 257u) % w->n_saved] ^= (unsigned char)(1 + fuzz_api_byte(w));
                if (dend_seq_load(w->engine, &from, &other->seq) == DEND_OK) {
                    FUZZ_API_REQUIRE(dend_seq_drop(w->engine, other->seq) == DEND_OK);
                }
            } else if (dend_seq_load(w->engine, &from, &other->seq) == DEND_OK) {
                memcpy(other->tokens, s->tokens, sizeof s->tokens);
                other->n = s->n;
                other->live = true;
            }
        }
        break;
    case 12:
        fuzz_api_session(w);
        break;
    case 13:
        fuzz_api_prefix(w, s);
        break;
    case 14:
        if (fuzz_api_byte(w) % 8 == 0) {
            dend_cancel(w->engine);
        } else {
            (void)dend_seq_want_logits(w->engine, s->seq);
        }
        break;
    case 15:
    case 16:
    case 17:
        fuzz_api_serve(w, s);
        break;
    default:
        fuzz_api_search(w, s, other);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static dend_model *models[FUZZ_API_PAIR];
    static fuzz_api_world w;
    dend_engine_desc *d = &w.desc;
    dend_engine_stats stats;
    dend_model_info info;
    uint32_t i, turns, n_live, kind;
    if (!models[0]) {
        dend_model_desc md;
        memset(&md, 0, sizeof md);
        for (i = 0; i < FUZZ_API_PAIR; i++) {
            md.path = fuzz_api_models[i];
            FUZZ_API_REQUIRE(dend_model_load(&md, &models[i], NULL) == DEND_OK);
        }
    }
    memset(&w, 0, offsetof(fuzz_api_world, saved));
    w.data = data;
    w.size = size < 2048 ? size : 2048;
    kind = fuzz_api_byte(&w);
    d->model = models[kind & 1u];
    d->n_prefixes = kind & 2u ? 4 : 0;
    d->context_policy = kind & 4u ? DEND_CONTEXT_SLIDE : DEND_CONTEXT_STATUS;
    d->kv_type = kind & 8u ? DEND_KV_Q8_0 : DEND_KV_F16;
    d->n_window_blocks = kind & 1u && kind & 16u ? 16 : 0;
    d->n_ctx = FUZZ_API_CTX;
    d->n_seqs = FUZZ_API_SEQS;
    d->n_blocks = 20;
    d->n_batch = 8;
    d->n_logits = 4;
    d->n_tree_rows = 8;
    d->n_threads = 1;
    d->release_budget = 1;
    dend_model_get_info(d->model, &info);
    w.n_vocab = info.n_vocab;
    FUZZ_API_REQUIRE(dend_engine_create(d, &w.engine, NULL) == DEND_OK);
    while (w.at < w.size) {
        fuzz_api_act(&w);
        for (i = 0, n_live = 0; i < FUZZ_API_SEQS; i++) {
            n_live += w.seqs[i].live;
            fuzz_api_check(&w, &w.seqs[i]);
        }
        dend_engine_get_stats(w.engine, &stats);
        FUZZ_API_REQUIRE(w.searches[0] || w.searches[1] ? stats.n_seqs - stats.n_seqs_free >= n_live
                                                        : stats.n_seqs - stats.n_seqs_free == n_live);
    }
    fuzz_api_compare(&w, &w.seqs[kind % FUZZ_API_SEQS]);
    for (i = 0; i < FUZZ_API_PAIR; i++) {
        dend_scheduler_free(w.schedulers[i]);
        dend_search_free(w.searches[i]);
    }
    for (i = 0; i < FUZZ_API_SEQS; i++) {
        if (w.seqs[i].live) {
            FUZZ_API_REQUIRE(dend_seq_drop(w.engine, w.seqs[i].seq) == DEND_OK);
        }
    }
    for (i = 0; i < FUZZ_API_PINS; i++) {
        if (w.pins[i].live) {
            FUZZ_API_REQUIRE(dend_prefix_unpin(w.engine, w.pins[i].tokens, w.pins[i].n) == DEND_OK);
        }
    }
    (void)dend_step(w.engine, 0); /* a cancel may still wait */
    FUZZ_API_REQUIRE(dend_prefix_clear(w.engine) == DEND_OK);
    for (turns = 0; turns < 64; turns++) { /* what is released later */
        FUZZ_API_REQUIRE(dend_step(w.engine, 0) == DEND_OK);
    }
    dend_engine_get_stats(w.engine, &stats);
    FUZZ_API_REQUIRE(stats.n_blocks_free == stats.n_blocks && stats.n_seqs_free == stats.n_seqs &&
                     stats.n_logits_free == stats.n_logits &&
                     stats.n_window_blocks_free == stats.n_window_blocks);
    dend_engine_free(w.engine);
    return 0;
}
