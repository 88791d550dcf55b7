/* libFuzzer target: any bytes as calls of the public functions, in any order
 * and with any arguments, on a tiny model: forks, appends, steps, rewinds,
 * drops, draws, token trees, saves and loads, a scheduler, searches. What must
 * hold: a sequence's tokens are those that a plain list beside it says, a stale
 * handle stays stale, counts add up, and when all is dropped all blocks are back.
 *
 * Run it from the repository's root, where the model is found:
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

#define FUZZ_API_MODEL "tests/golden/tiny_llama_f16.gguf"
#define FUZZ_API_SEQS 12u
#define FUZZ_API_CTX 64u

/* What a sequence must be. */
typedef struct fuzz_api_seq {
    dend_seq seq;
    int32_t tokens[FUZZ_API_CTX];
    uint32_t n;
    bool live;
} fuzz_api_seq;

typedef struct fuzz_api_world {
    const uint8_t *data;
    size_t size, at;
    dend_engine *engine;
    uint32_t n_vocab;
    fuzz_api_seq seqs[FUZZ_API_SEQS];
    unsigned char saved[1 << 17];
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
    FUZZ_API_REQUIRE(dend_seq_get_info(w->engine, s->seq, &info) == DEND_OK);
    FUZZ_API_REQUIRE(info.len_tokens >= s->n && info.len_tokens <= FUZZ_API_CTX);
    FUZZ_API_REQUIRE(dend_seq_tokens(w->engine, s->seq, s->n, info.len_tokens - s->n, s->tokens + s->n) ==
                     DEND_OK);
    s->n = info.len_tokens;
}

static void fuzz_api_serve(fuzz_api_world *w, fuzz_api_seq *s) {
    dend_scheduler_desc d;
    dend_scheduler *scheduler = NULL;
    dend_request r;
    dend_request_id id;
    uint32_t turns;
    memset(&d, 0, sizeof d);
    d.engine = w->engine;
    d.n_requests = fuzz_api_byte(w) % 5;
    d.prefill_share = fuzz_api_byte(w);
    if (dend_scheduler_create(&d, &scheduler, NULL) != DEND_OK) {
        FUZZ_API_REQUIRE(!scheduler);
        return;
    }
    memset(&r, 0, sizeof r);
    r.seq = s->seq;
    r.max_tokens = fuzz_api_byte(w) % 8;
    r.priority = (int32_t)fuzz_api_byte(w) - 128;
    r.user = fuzz_api_byte(w) % 3;
    if (dend_scheduler_submit(scheduler, &r, &id) == DEND_OK) {
        if (fuzz_api_byte(w) % 4 == 0) {
            FUZZ_API_REQUIRE(dend_scheduler_cancel(scheduler, id) == DEND_OK);
        }
        for (turns = 0; dend_scheduler_step(scheduler, 0) == DEND_PENDING; turns++) {
            FUZZ_API_REQUIRE(turns < 1000);
        }
    }
    dend_scheduler_free(scheduler);
    fuzz_api_take(w, s);
}

static void fuzz_api_search(fuzz_api_world *w, const fuzz_api_seq *s) {
    dend_search_desc d;
    dend_search *search = NULL;
    uint32_t turns;
    memset(&d, 0, sizeof d);
    d.engine = w->engine;
    d.prompt = s->seq;
    d.method = (dend_search_method)(fuzz_api_byte(w) % 7);
    d.step_end = (dend_step_end)(fuzz_api_byte(w) % 6);
    d.max_step_tokens = fuzz_api_byte(w) % 4;
    d.n_lanes = fuzz_api_byte(w) % 6;
    d.n_nodes = 32;
    d.max_tokens = fuzz_api_byte(w) % 20;
    if (dend_search_create(&d, &search, NULL) == DEND_OK) {
        for (turns = 0; turns < 30 && dend_search_step(search, 1) == DEND_PENDING; turns++) {
        }
        (void)dend_search_best(search);
    }
    dend_search_free(search);
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
    switch (fuzz_api_byte(w) % 14) {
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
            FUZZ_API_REQUIRE(s->live && s->n + n <= FUZZ_API_CTX);
            memcpy(s->tokens + s->n, tokens, n * sizeof tokens[0]);
            s->n += n;
        }
        break;
    case 4:
    case 5:
        (void)dend_step(w->engine, fuzz_api_byte(w));
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
            FUZZ_API_REQUIRE(s->n < FUZZ_API_CTX);
            s->tokens[s->n++] = token;
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
        if (s->live) {
            fuzz_api_serve(w, s);
        }
        break;
    default:
        if (s->live) {
            fuzz_api_search(w, s);
        }
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static dend_model *model;
    static fuzz_api_world w;
    dend_engine_desc d;
    dend_engine_stats stats;
    dend_model_info info;
    uint32_t i, turns, n_live;
    if (!model) {
        dend_model_desc md;
        memset(&md, 0, sizeof md);
        md.path = FUZZ_API_MODEL;
        FUZZ_API_REQUIRE(dend_model_load(&md, &model, NULL) == DEND_OK);
    }
    dend_model_get_info(model, &info);
    memset(&w, 0, sizeof w);
    w.data = data;
    w.size = size < 2048 ? size : 2048;
    w.n_vocab = info.n_vocab;
    memset(&d, 0, sizeof d);
    d.model = model;
    d.n_ctx = FUZZ_API_CTX;
    d.n_seqs = FUZZ_API_SEQS;
    d.n_blocks = 20;
    d.n_batch = 8;
    d.n_logits = 4;
    d.n_tree_rows = 8;
    d.n_threads = 1;
    d.release_budget = 1;
    FUZZ_API_REQUIRE(dend_engine_create(&d, &w.engine, NULL) == DEND_OK);
    while (w.at < w.size) {
        fuzz_api_act(&w);
        for (i = 0, n_live = 0; i < FUZZ_API_SEQS; i++) {
            n_live += w.seqs[i].live;
            fuzz_api_check(&w, &w.seqs[i]);
        }
        dend_engine_get_stats(w.engine, &stats);
        FUZZ_API_REQUIRE(stats.n_seqs - stats.n_seqs_free == n_live);
    }
    for (i = 0; i < FUZZ_API_SEQS; i++) {
        if (w.seqs[i].live) {
            FUZZ_API_REQUIRE(dend_seq_drop(w.engine, w.seqs[i].seq) == DEND_OK);
        }
    }
    for (turns = 0; turns < 64; turns++) { /* what is released later */
        FUZZ_API_REQUIRE(dend_step(w.engine, 0) == DEND_OK);
    }
    dend_engine_get_stats(w.engine, &stats);
    FUZZ_API_REQUIRE(stats.n_blocks_free == stats.n_blocks && stats.n_seqs_free == stats.n_seqs &&
                     stats.n_logits_free == stats.n_logits);
    dend_engine_free(w.engine);
    return 0;
}
