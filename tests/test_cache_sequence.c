/* Sequences against a model that copies.
 *
 * The model is the plainest thing that could work: each sequence owns an array
 * of its tokens, and a fork copies the array. K and V need no array: they are
 * a function of the token history, so what a position must hold follows from
 * the model's tokens, and any mix-up between sequences, positions, groups,
 * layers or heads shows as a difference of bits.
 *
 * After every operation all counts are walked (tests/test_cache.h); after
 * every few, everything that every sequence can see is compared with the model.
 */
#include "test_cache.h"

#define TS_MAX_SEQS 16u
#define TS_STALE 8u

typedef struct ts_config {
    const char *name;
    uint32_t codec, P, n_groups;
    uint32_t n_blocks, n_seqs, n_ctx, n_logits, release_budget;
    uint32_t n_sidecars, items[2];
    uint32_t max_append, check_every, n_ops;
    bool poison;
    /* the run must have met these, or it proves less than it says */
    uint32_t min_no_blocks, min_no_seqs, min_side_full;
    uint32_t n_prefixes; /* of a prefix tree; texts then repeat */
} ts_config;

typedef struct ts_seq {
    bool live;
    dend_seq handle;
    uint32_t share; /* sequences with the same number share a record */
    uint32_t len, n_ready, first[3];
    bool logits, want;
    uint64_t stream, n_forks;
    void *user;
    int32_t *tokens;   /* [n_ctx] */
    uint64_t *history; /* [n_ctx + 1] */
    bool has[2];
    uint32_t n_notes[2];
    tc_note notes[2][TC_SIDE_NOTES];
} ts_seq;

typedef struct ts_row {
    uint32_t record, pos;
    uint64_t history;
    bool write;
} ts_row;

typedef struct ts_world {
    const ts_config *config;
    tc_cache *t;
    test_rng rng;
    ts_seq seqs[TS_MAX_SEQS]; /* by slot number */
    uint32_t n_shares, n_stale;
    dend_seq stale[TS_STALE];
    uint64_t row_history[64]; /* whose logits a row holds */
    int32_t *tokens;          /* scratch [n_ctx + 64] */
    uint32_t n_no_blocks, n_no_seqs, n_side_full, n_unsupported, n_in_place;
    /* pins: tokens of a pinned prefix each */
    uint32_t n_pins, pin_len[8];
    int32_t *pins[8];
} ts_world;

/* -- the model ---------------------------------------------------------------------- */

static dendp_slot *ts_slot(const ts_world *w, const ts_seq *s) {
    dendp_slot *slot = dendp_cache_slot(w->t->c, s->handle);
    TC_CHECK(slot != NULL);
    return slot;
}

/* A live sequence, or NULL. */
static ts_seq *ts_pick(ts_world *w) {
    uint32_t n = w->config->n_seqs, i, at = test_below(&w->rng, n);
    for (i = 0; i < n; i++) {
        ts_seq *s = &w->seqs[(at + i) % n];
        if (s->live) {
            return s;
        }
    }
    return NULL;
}

static bool ts_shared(const ts_world *w, const ts_seq *s) {
    uint32_t i;
    for (i = 0; i < w->config->n_seqs; i++) {
        if (&w->seqs[i] != s && w->seqs[i].live && w->seqs[i].share == s->share) {
            return true;
        }
    }
    return false;
}

/* What a write does: the sequence stops sharing its record. */
static void ts_own(ts_world *w, ts_seq *s) {
    if (ts_shared(w, s)) {
        s->share = ++w->n_shares;
    }
}

/* Copies the state (not the handle) of one sequence. */
static void ts_copy(const ts_world *w, ts_seq *to, const ts_seq *from) {
    int32_t *tokens = to->tokens;
    uint64_t *history = to->history;
    dend_seq handle = to->handle;
    *to = *from;
    to->tokens = tokens;
    to->history = history;
    to->handle = handle;
    memcpy(tokens, from->tokens, w->config->n_ctx * sizeof *tokens);
    memcpy(history, from->history, (w->config->n_ctx + 1) * sizeof *history);
}

static ts_seq *ts_fresh(ts_world *w, dend_seq handle) {
    ts_seq *s = &w->seqs[handle.slot];
    TC_CHECK(handle.slot < w->config->n_seqs && handle.generation != 0 && !s->live);
    s->live = true;
    s->handle = handle;
    return s;
}

static uint32_t ts_rewind_min(const ts_world *w, const ts_seq *s) {
    uint32_t g, least = 0;
    for (g = 0; g < w->config->n_groups; g++) {
        uint32_t need = s->first[g] * w->config->P + w->t->groups[g].window;
        least = s->first[g] > 0 && need > least ? need : least;
    }
    return least < s->len ? least : s->len;
}

/* Everything that the sequences can see, against the model. */
static void ts_compare(ts_world *w) {
    const dendp_cache *c = w->t->c;
    uint32_t i, j, pos, n = w->config->n_seqs;
    tc_walk_poison(w->t);
    for (i = 0; i < n; i++) {
        const ts_seq *s = &w->seqs[i];
        const dendp_slot *slot;
        const dendp_record *r;
        uint64_t hash = 0;
        if (!s->live) {
            TC_CHECK(c->slots[i].record == DENDP_NONE);
            continue;
        }
        slot = ts_slot(w, s);
        r = &c->records[slot->record];
        TC_CHECK(slot->stream == s->stream && slot->n_forks == s->n_forks && slot->user == s->user);
        for (j = 0; j < n; j++) {
            TC_CHECK(!w->seqs[j].live ||
                     (w->seqs[j].share == s->share) == (c->slots[j].record == slot->record));
        }
        TC_CHECK(r->len == s->len && r->n_ready == s->n_ready);
        TC_CHECK((r->logits_row != DENDP_NONE) == s->logits);
        TC_CHECK(r->want_logits == s->want);
        TC_CHECK(!s->logits || w->row_history[r->logits_row] == s->history[s->len]);
        TC_CHECK(dendp_record_rewind_min(c, slot->record) == ts_rewind_min(w, s));
        for (j = 0; j < w->config->n_groups; j++) {
            TC_CHECK(dendp_cache_table(c, slot->record, j)->first == s->first[j]);
        }
        for (pos = 0; pos < s->len; pos++) {
            if (pos % w->config->P == 0) {
                uint32_t block =
                    dendp_table_get(&c->nodes, dendp_cache_table(c, slot->record, 0), pos / w->config->P);
                TC_CHECK(c->pools[0].hash[block] == hash);
            }
            TC_CHECK(dendp_record_token(c, slot->record, pos) == s->tokens[pos]);
            hash = dendp_hash2(hash, (uint64_t)(uint32_t)s->tokens[pos]);
            if (pos < s->n_ready) {
                tc_check_kv(w->t, slot->record, pos, s->history[pos + 1]);
            }
        }
        TC_CHECK(r->hash == hash);
        for (j = 0; j < w->config->n_sidecars; j++) {
            const tc_side_item *item;
            TC_CHECK((r->sidecar[j] != 0) == s->has[j]);
            if (s->has[j]) {
                item = tc_side_item_of(&w->t->side[j], r->sidecar[j]);
                TC_CHECK(item->n == s->n_notes[j]);
                TC_CHECK(memcmp(item->notes, s->notes[j], s->n_notes[j] * sizeof(tc_note)) == 0);
            }
        }
    }
}

/* -- operations ---------------------------------------------------------------------- */

static void ts_create(ts_world *w) {
    uint64_t before = tc_digest_bytes(w->t);
    dend_seq handle;
    dend_status status = dendp_cache_seq_create(w->t->c, &handle);
    ts_seq *s;
    if (status != DEND_OK) {
        TC_CHECK(status == DEND_ERR_NO_SEQUENCES && w->t->c->n_free_slots == 0);
        TC_CHECK(before == tc_digest_bytes(w->t));
        w->n_no_seqs++;
        return;
    }
    s = ts_fresh(w, handle);
    s->share = ++w->n_shares;
    s->len = s->n_ready = s->first[0] = s->first[1] = s->first[2] = 0;
    s->logits = s->want = s->has[0] = s->has[1] = false;
    s->history[0] = 0;
    s->n_forks = 0;
    s->user = NULL;
    s->stream = ts_slot(w, s)->stream;
}

static void ts_fork(ts_world *w) {
    ts_seq *parent = ts_pick(w), *s;
    uint32_t flags = test_below(&w->rng, 4) == 0 ? DEND_FORK_SAME_STREAM : 0u;
    uint64_t before = tc_digest_bytes(w->t);
    dend_seq handle;
    dend_status status;
    if (!parent) {
        return;
    }
    status = dendp_cache_seq_fork(w->t->c, parent->handle, flags, &handle);
    if (status != DEND_OK) {
        TC_CHECK(status == DEND_ERR_NO_SEQUENCES && w->t->c->n_free_slots == 0);
        TC_CHECK(before == tc_digest_bytes(w->t));
        w->n_no_seqs++;
        return;
    }
    s = ts_fresh(w, handle);
    ts_copy(w, s, parent);
    parent->n_forks += flags ? 0u : 1u;
    s->n_forks = 0;
    s->user = NULL;
    TC_CHECK(ts_slot(w, s)->user == NULL);
    s->stream = ts_slot(w, s)->stream;
    TC_CHECK((s->stream == parent->stream) == (flags != 0));
    ts_slot(w, s)->user = s->user = test_below(&w->rng, 2) ? (void *)s : NULL;
}

/* NO_BLOCKS must mean that blocks, or nodes, really are too few for n_new more
 * blocks, one copied tail and the paths to them, deferred releases included. */
static void ts_check_shortage(ts_world *w, uint32_t n_new) {
    const dendp_cache *c = w->t->c;
    uint32_t g, levels = dendp_table_depth_for(dendp_div_up(c->desc.n_ctx, c->desc.block_tokens));
    bool enough = c->nodes.n_free >= c->desc.n_groups * (3 * levels + n_new / 16 + 1);
    for (g = 0; g < c->desc.n_groups; g++) {
        enough = enough && c->pools[g].n_free >= n_new + 1;
    }
    TC_CHECK(c->nodes.first_pending == DENDP_NONE && !enough);
    w->n_no_blocks++;
}

/* With a prefix tree: what the live sequences and the pinned prefixes name alone
 * leaves less than n_new blocks and one copied tail; the rest was given up. */
static void ts_check_shortage_tree(ts_world *w, uint32_t n_new) {
    const dendp_cache *c = w->t->c;
    const dendp_prefix_tree *tree = &w->t->tree;
    uint32_t g, i, k, N = c->desc.n_blocks;
    unsigned char *used = (unsigned char *)calloc(N, 1);
    bool enough = c->nodes.n_free >= c->desc.n_groups * (3 * 4 + n_new / 16 + 1);
    assert_non_null(used);
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t n_used = 0;
        memset(used, 0, N);
        for (i = 0; i < c->desc.n_seqs + tree->n_entries; i++) {
            bool entry = i >= c->desc.n_seqs;
            const dendp_table *t =
                entry ? dendp_prefix_table(tree, i - c->desc.n_seqs, g) : dendp_cache_table(c, i, g);
            if (entry ? tree->entries[i - c->desc.n_seqs].len > 0 &&
                            tree->entries[i - c->desc.n_seqs].n_held > 0
                      : c->records[i].count > 0) {
                for (k = t->first; k < t->n_blocks; k++) {
                    used[dendp_table_get(&c->nodes, t, k)] = 1;
                }
            }
        }
        for (i = 0; i < N; i++) {
            n_used += used[i];
        }
        enough = enough && N - n_used >= n_new + 1;
    }
    free(used);
    TC_CHECK(!enough); /* what had been taken over may be pending again */
    w->n_no_blocks++;
}

/* One of a few texts, which branch at whole blocks and inside of them. */
static int32_t ts_text(uint32_t text, uint32_t pos) {
    uint32_t branch = pos < 20 ? text & 1u : pos < 48 ? text & 3u : pos < 64 ? text & 7u : text;
    return (int32_t)((branch * 31 + pos * 7 + pos / 11) % 50);
}

static void ts_append(ts_world *w) {
    ts_seq *s = ts_pick(w);
    uint32_t n, i, n_old, n_new, left, reused = 0, text;
    uint64_t before, bytes;
    dend_status status;
    if (!s) {
        return;
    }
    left = w->config->n_ctx - s->len;
    n = test_below(&w->rng, 12) == 0 ? 0 : 1 + test_below(&w->rng, w->config->max_append);
    n = test_below(&w->rng, 3) == 0 && n > 3 ? 1 + n % 3 : n;
    text = w->config->n_prefixes ? test_below(&w->rng, 16) : 0;
    n = w->config->n_prefixes && s->len == 0 && n > 0 ? n + test_below(&w->rng, 90) : n;
    for (i = 0; i < n; i++) {
        w->tokens[i] =
            w->config->n_prefixes && s->len == 0 ? ts_text(text, i) : (int32_t)test_below(&w->rng, 50);
    }
    before = tc_digest_state(w->t);
    bytes = tc_digest_bytes(w->t);
    if (s->len == 0) { /* as dend_seq_append does */
        dendp_prefix_adopt(&w->t->tree, ts_slot(w, s), w->tokens, n);
        reused = w->t->c->records[ts_slot(w, s)->record].len;
        TC_CHECK(reused % w->config->P == 0 && (reused == 0 || reused < n));
        TC_CHECK(reused == 0 || ts_slot(w, s)->reuse);
    }
    status = dendp_cache_append(w->t->c, ts_slot(w, s), w->tokens + reused, n - reused);
    if (status != DEND_OK && s->len == 0) {
        dendp_prefix_return(&w->t->tree, ts_slot(w, s));
        if (w->t->c->records[ts_slot(w, s)->record].count == 1) {
            ts_own(w, s); /* an empty record that was shared may have been cloned */
        }
    }
    if (n > left || n == 0) {
        TC_CHECK(status == (n ? DEND_ERR_CONTEXT_FULL : DEND_OK));
        TC_CHECK(bytes == tc_digest_bytes(w->t));
        return;
    }
    n_old = dendp_div_up(s->len, w->config->P);
    n_new = dendp_div_up(s->len + n, w->config->P);
    if (status != DEND_OK) {
        TC_CHECK(status == DEND_ERR_NO_BLOCKS);
        TC_CHECK(s->len == 0 || before == tc_digest_state(w->t));
        if (w->config->n_prefixes) {
            ts_check_shortage_tree(w, n_new - n_old);
        } else {
            ts_check_shortage(w, n_new - n_old);
        }
        return;
    }
    ts_own(w, s);
    if (s->len == 0) {
        w->t->c->records[ts_slot(w, s)->record].list = ts_slot(w, s)->reuse && n > 1;
        s->n_ready = reused;
        for (i = 0; i < w->config->n_groups; i++) {
            s->first[i] = dendp_cache_table(w->t->c, ts_slot(w, s)->record, i)->first;
            TC_CHECK(s->first[i] == 0 || s->first[i] * w->config->P + w->t->groups[i].window <= reused);
        }
    }
    for (i = 0; i < n; i++) {
        s->tokens[s->len + i] = w->tokens[i];
        s->history[s->len + i + 1] = tc_history(s->history[s->len + i], w->tokens[i]);
    }
    s->len += n;
    s->logits = false;
    s->want = true;
    w->n_in_place += n_new == n_old ? 1u : 0u;
}

/* What a step does: a batch of waiting tokens of up to three records. Rows are
 * claimed while the batch is gathered, so that sharers in it do not compute a
 * slot twice; then K and V are written, and each record is committed. */
static void ts_compute(ts_world *w) {
    dendp_cache *c = w->t->c;
    ts_row rows[3 * 64];
    uint32_t records[3], ends[3], n_rows = 0, n = 0, i, j, most = 1 + test_below(&w->rng, 64);
    uint32_t n_picks = 1 + test_below(&w->rng, 3);
    most = test_below(&w->rng, 3) ? 64 : most;
    for (i = 0; i < n_picks; i++) {
        const ts_seq *s = ts_pick(w);
        uint32_t record = s ? ts_slot(w, s)->record : DENDP_NONE, pos;
        const dendp_record *r;
        for (j = 0; j < n; j++) {
            record = records[j] == record ? DENDP_NONE : record; /* once a batch */
        }
        if (record == DENDP_NONE) {
            continue;
        }
        r = &c->records[record];
        TC_CHECK(r->n_ready == s->n_ready && r->len == s->len);
        dendp_record_skip_ready(c, record);
        TC_CHECK(r->n_ready >= s->n_ready && r->n_ready <= r->len);
        records[n] = record;
        for (pos = r->n_ready; pos < r->len && dendp_record_slot_ready(c, record, pos, true); pos++) {
        }
        ends[n] = dendp_min_u32(r->len, pos + most);
        for (; pos < ends[n]; pos++) {
            rows[n_rows].record = record;
            rows[n_rows].pos = pos;
            rows[n_rows].history = s->history[pos + 1];
            rows[n_rows].write = !dendp_record_slot_ready(c, record, pos, true);
            TC_CHECK(rows[n_rows].write || pos > r->n_ready);
            dendp_record_claim(c, record, pos);
            TC_CHECK(dendp_record_slot_ready(c, record, pos, true));
            TC_CHECK(!rows[n_rows].write || !dendp_record_slot_ready(c, record, pos, false));
            n_rows++;
        }
        n++;
    }
    for (i = 0; i < n_rows; i++) {
        if (rows[i].write) {
            tc_put(w->t, rows[i].record, rows[i].pos, rows[i].history);
        }
    }
    for (j = 0; j < n; j++) {
        dendp_record *r = &c->records[records[j]];
        uint32_t row = DENDP_NONE;
        dendp_record_commit(c, records[j], ends[j]);
        dendp_prefix_committed(&w->t->tree, records[j]);
        TC_CHECK(r->n_ready == ends[j]);
        if (r->n_ready == r->len && r->want_logits && r->len > 0 && test_below(&w->rng, 3)) {
            TC_CHECK(r->logits_row == DENDP_NONE);
            row = dendp_logits_take(c);
            if (row != DENDP_NONE) {
                r->logits_row = row;
                r->want_logits = false;
                dendp_queue_update(c, records[j]);
            }
        }
        for (i = 0; i < w->config->n_seqs; i++) {
            ts_seq *s = &w->seqs[i];
            if (s->live && ts_slot(w, s)->record == records[j]) {
                s->n_ready = r->n_ready;
                s->logits = s->logits || row != DENDP_NONE;
                s->want = s->want && row == DENDP_NONE;
                if (row != DENDP_NONE) {
                    w->row_history[row] = s->history[s->len];
                }
            }
        }
    }
}

/* A sidecar's room was full: handles may have moved to a record of their own
 * and sidecars been copied, but what anyone can see is the same. */
static void ts_side_full(ts_world *w, ts_seq *s, uint32_t record_before) {
    if (ts_slot(w, s)->record != record_before) {
        ts_own(w, s);
    }
    w->n_side_full++;
}

static void ts_rewind(ts_world *w) {
    ts_seq *s = ts_pick(w);
    uint32_t len, i, j, kept, record;
    uint64_t before, bytes;
    bool side = false;
    dend_status status;
    if (!s) {
        return;
    }
    len = test_below(&w->rng, s->len + 2);
    switch (test_below(&w->rng, 8)) {
    case 0:
        len = 0;
        break;
    case 1:
        len = s->len;
        break;
    case 2:
        len = len / w->config->P * w->config->P;
        break;
    case 3:
    case 4:
        len = s->len > 3 ? s->len - 1 - test_below(&w->rng, 3) : len;
        break;
    default:
        break;
    }
    before = tc_digest_state(w->t);
    bytes = tc_digest_bytes(w->t);
    record = ts_slot(w, s)->record;
    for (i = 0; i < w->config->n_sidecars; i++) {
        side = side || s->has[i];
    }
    status = dendp_cache_rewind(w->t->c, ts_slot(w, s), len);
    if (len >= s->len || len < ts_rewind_min(w, s)) {
        TC_CHECK(status == (len > s->len    ? DEND_ERR_ARGUMENT
                            : len == s->len ? DEND_OK
                                            : DEND_ERR_UNSUPPORTED));
        TC_CHECK(bytes == tc_digest_bytes(w->t));
        w->n_unsupported += status == DEND_ERR_UNSUPPORTED ? 1u : 0u;
        return;
    }
    if (status != DEND_OK) {
        TC_CHECK(status == DEND_ERR_NO_BLOCKS);
        if (side && w->t->c->nodes.n_free >= w->config->n_groups * 4) { /* not for want of nodes */
            ts_side_full(w, s, record);
        } else {
            TC_CHECK(before == tc_digest_state(w->t));
            ts_check_shortage(w, 0);
        }
        return;
    }
    ts_own(w, s);
    for (j = 0; j < 2; j++) {
        for (i = kept = 0; i < s->n_notes[j] && s->has[j]; i++) {
            if (s->notes[j][i].pos < len) {
                s->notes[j][kept++] = s->notes[j][i];
            }
        }
        s->n_notes[j] = kept;
    }
    s->len = len;
    s->n_ready = s->n_ready < len ? s->n_ready : len;
    s->logits = false;
    s->want = s->n_ready < len;
}

static void ts_trim(ts_world *w) {
    ts_seq *s = ts_pick(w);
    uint32_t g = 1, n, pos, window = w->t->groups[1].window;
    uint64_t before;
    dend_status status;
    if (!s || w->config->n_groups < 2 || s->n_ready < window) {
        return;
    }
    pos = test_below(&w->rng, 3) ? s->n_ready - window : test_below(&w->rng, s->n_ready - window + 1);
    n = pos / w->config->P;
    before = tc_digest_state(w->t);
    status = dendp_cache_trim(w->t->c, ts_slot(w, s), g, pos);
    if (status != DEND_OK) {
        TC_CHECK(status == DEND_ERR_NO_BLOCKS);
        TC_CHECK(before == tc_digest_state(w->t));
        TC_CHECK(w->t->c->nodes.first_pending == DENDP_NONE);
        w->n_no_blocks++;
    } else if (n <= s->first[g]) {
        TC_CHECK(before == tc_digest_state(w->t));
    } else {
        ts_own(w, s);
        s->first[g] = n;
    }
}

static void ts_drop(ts_world *w, ts_seq *s) {
    if (!s) {
        return;
    }
    dendp_prefix_dropping(&w->t->tree, ts_slot(w, s));
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(w->t->c, s->handle));
    s->live = false;
    w->stale[w->n_stale++ % TS_STALE] = s->handle;
}

static void ts_use_stale(ts_world *w) {
    uint64_t before = tc_digest_bytes(w->t);
    uint32_t i, n = w->n_stale < TS_STALE ? w->n_stale : TS_STALE;
    dend_seq seq, out;
    for (i = 0; i < n + 3; i++) {
        seq.slot = i == n ? w->config->n_seqs : i == n + 1 ? UINT32_MAX : 0;
        seq.generation = i == n + 2 ? 0 : 1;
        seq = i < n ? w->stale[i] : seq;
        TC_CHECK(dendp_cache_slot(w->t->c, seq) == NULL);
        TC_CHECK(dendp_cache_seq_fork(w->t->c, seq, 0, &out) == DEND_ERR_STALE);
        TC_CHECK(dendp_cache_seq_drop(w->t->c, seq) == DEND_ERR_STALE);
    }
    TC_CHECK(before == tc_digest_bytes(w->t));
}

static void ts_note(ts_world *w) {
    ts_seq *s = ts_pick(w);
    dendp_slot *slot;
    uint32_t which, handle, record;
    tc_side_item *item;
    tc_note note;
    if (!s || w->config->n_sidecars == 0) {
        return;
    }
    which = test_below(&w->rng, w->config->n_sidecars);
    slot = ts_slot(w, s);
    record = slot->record;
    if (!s->has[which] || test_below(&w->rng, 8) == 0) { /* a new list instead of the old one, if any */
        handle = tc_side_take(&w->t->side[which]);
        if (!handle) {
            w->n_side_full++;
            return;
        }
        dendp_cache_sidecar_set(w->t->c, slot, which, handle);
        s->n_notes[which] = 0;
    } else {
        handle = dendp_cache_sidecar_own(w->t->c, slot, which);
        if (!handle) {
            ts_side_full(w, s, record);
            return;
        }
    }
    ts_own(w, s);
    s->has[which] = true;
    TC_CHECK(w->t->c->records[slot->record].sidecar[which] == handle);
    item = tc_side_item_of(&w->t->side[which], handle);
    TC_CHECK(item->count == 1);
    if (item->n < TC_SIDE_NOTES) {
        note.pos = test_below(&w->rng, s->len + 1);
        note.value = test_below(&w->rng, 1000);
        item->notes[item->n++] = note;
        s->notes[which][s->n_notes[which]++] = note;
    }
}

static void ts_release_logits(ts_world *w) {
    ts_seq *s = ts_pick(w);
    if (s && s->logits) {
        dendp_logits_drop(w->t->c, &w->t->c->records[dendp_record_own(w->t->c, ts_slot(w, s))]);
        ts_own(w, s);
        s->logits = false;
    }
}

/* Saves a sequence and brings it back beside the original; damaged bytes must be refused. */
static void ts_save(ts_world *w) {
    ts_seq *s = ts_pick(w), *twin;
    tc_buffer buffer;
    dend_reader reader;
    dend_seq handle;
    dend_status status;
    uint64_t before;
    uint32_t j, n, damage = test_below(&w->rng, 3);
    bool too_big = false;
    if (!s) {
        return;
    }
    for (j = 0; j < w->config->n_sidecars; j++) {
        too_big = too_big || (s->has[j] && s->n_notes[j] > 31);
    }
    buffer.fail_at = test_below(&w->rng, 6) == 0 ? 1 + test_below(&w->rng, 4) : 0;
    status = tc_save(w->t, &s->handle, NULL, 1, 50, &buffer);
    if (status != DEND_OK) {
        TC_CHECK(status == (too_big ? DEND_ERR_UNSUPPORTED : DEND_ERR_IO));
        TC_CHECK(too_big || buffer.fail_at > 0);
        free(buffer.data);
        return;
    }
    TC_CHECK(!too_big && buffer.fail_at == 0);
    reader = tc_buffer_reader(&buffer);
    before = tc_digest_state(w->t);
    if (damage == 1) {
        buffer.data[test_below(&w->rng, (uint32_t)buffer.n)] ^= (unsigned char)(1u << test_below(&w->rng, 8));
    } else if (damage == 2) {
        reader.size = test_below(&w->rng, (uint32_t)buffer.n);
    }
    buffer.fail_at = 0;
    status = tc_restore(w->t, &reader, 50, &handle, NULL, 1, &n, NULL);
    free(buffer.data);
    TC_CHECK(damage == 0 || status != DEND_OK);
    if (status != DEND_OK) {
        TC_CHECK(before == tc_digest_state(w->t));
        TC_CHECK(damage || status == DEND_ERR_NO_BLOCKS || status == DEND_ERR_NO_SEQUENCES);
        w->n_no_seqs += status == DEND_ERR_NO_SEQUENCES ? 1u : 0u;
        return;
    }
    twin = ts_fresh(w, handle);
    ts_copy(w, twin, s);
    twin->share = ++w->n_shares;
    twin->want = s->want || s->logits;
    twin->logits = false;
    twin->user = NULL;
}

/* Saves all sequences at once, brings them to life in a new cache, and finds there
 * what the model says, shared as it was; saved again they are the same bytes. */
static void ts_session(const ts_world *w) {
    const ts_config *config = w->config;
    tc_cache *u = tc_new(config->codec, config->n_blocks, config->n_seqs, config->n_ctx);
    ts_world *v = (ts_world *)calloc(1, sizeof *v);
    dend_seq from[TS_MAX_SEQS], to[TS_MAX_SEQS];
    uint64_t tags[TS_MAX_SEQS], got[TS_MAX_SEQS];
    tc_buffer a, b;
    dend_reader reader;
    dend_status status;
    uint32_t i, g, n = 0, n_out;
    assert_non_null(v);
    a.fail_at = b.fail_at = 0;
    u->desc = w->t->desc;
    memcpy(u->groups, w->t->groups, sizeof u->groups);
    u->desc.groups = u->groups;
    tc_open(u, config->n_sidecars, TC_SIDE_ITEMS, TC_SIDE_ITEMS);
    for (i = 0; i < config->n_seqs; i++) {
        if (w->seqs[i].live) {
            from[n] = w->seqs[i].handle;
            tags[n] = (uint64_t)w->seqs[i].len << 40 | i;
            v->seqs[n++] = w->seqs[i];
        }
    }
    status = tc_save(w->t, from, tags, n, 50, &a);
    if (status == DEND_ERR_UNSUPPORTED) { /* a list of notes is too long */
        TC_CHECK(config->n_sidecars > 0);
        free(a.data);
        free(v);
        tc_close(u);
        return;
    }
    ASSERT_STATUS(DEND_OK, status);
    reader = tc_buffer_reader(&a);
    status = tc_restore(u, &reader, 50, to, got, TS_MAX_SEQS, &n_out, NULL);
    ASSERT_STATUS(DEND_OK, status);
    TC_CHECK(n_out == n && memcmp(tags, got, n * sizeof *tags) == 0);
    tc_walk(u);
    v->config = config;
    v->t = u;
    for (i = 0; i < n; i++) {
        ts_seq *s = &v->seqs[i];
        TC_CHECK(to[i].slot == i);
        s->handle = to[i];
        s->want = s->want || s->logits;
        s->logits = false;
        s->user = NULL;
    }
    ts_compare(v);
    for (g = 0; g < config->n_groups; g++) {
        TC_CHECK(tc_blocks_used(u, g) == w->t->snapshot.n_blocks[g]);
    }
    TC_CHECK(u->c->nodes.n_nodes - u->c->nodes.n_free == w->t->snapshot.n_nodes);
    ASSERT_STATUS(DEND_OK, tc_save(u, to, tags, n, 50, &b));
    TC_CHECK(a.n == b.n && memcmp(a.data, b.data, a.n) == 0);
    free(a.data);
    free(b.data);
    free(v);
    tc_close(u);
}

/* Pins, unpins, clears, switches reuse on and off. */
static void ts_prefix(ts_world *w) {
    ts_seq *s = ts_pick(w);
    dendp_prefix_tree *tree = &w->t->tree;
    uint32_t x = test_below(&w->rng, 20), e, k;
    if (x < 6 && s && w->n_pins < 4) {
        e = dendp_prefix_list(tree, ts_slot(w, s)->record, s->n_ready, true);
        if (e != DENDP_NONE) {
            k = w->n_pins++;
            w->pin_len[k] = tree->entries[e].len;
            TC_CHECK(w->pin_len[k] == s->n_ready / w->config->P * w->config->P);
            w->pins[k] = (int32_t *)malloc(s->n_ready * sizeof(int32_t));
            assert_non_null(w->pins[k]);
            memcpy(w->pins[k], s->tokens, w->pin_len[k] * sizeof(int32_t));
            dendp_prefix_pin(tree, e);
        }
    } else if (x < 14 && w->n_pins > 0) {
        k = test_below(&w->rng, w->n_pins);
        e = dendp_prefix_exact(tree, w->pins[k], w->pin_len[k]);
        TC_CHECK(e != DENDP_NONE && tree->entries[e].n_pins > 0); /* whatever has happened */
        dendp_prefix_unpin(tree, e);
        free(w->pins[k]);
        w->pins[k] = w->pins[--w->n_pins];
        w->pin_len[k] = w->pin_len[w->n_pins];
    } else if (x == 14) {
        dendp_prefix_clear(tree);
        TC_CHECK(tree->oldest == DENDP_NONE);
    } else if (s) {
        ts_slot(w, s)->reuse = x < 18;
    }
}

/* -- the run --------------------------------------------------------------------------- */

static void ts_step(ts_world *w) {
    uint32_t x = test_below(&w->rng, 100);
    if (w->config->n_prefixes && test_below(&w->rng, 12) == 0) {
        ts_prefix(w);
    } else if (x < (w->config->n_prefixes ? 12u : 4u)) {
        ts_create(w);
    } else if (x < 17) {
        ts_fork(w);
    } else if (x < 43) {
        ts_append(w);
    } else if (x < 63) {
        ts_compute(w);
    } else if (x < 73) {
        ts_rewind(w);
    } else if (x < 77) {
        ts_trim(w);
    } else if (x < 88) {
        ts_drop(w, ts_pick(w));
    } else if (x < 91) {
        ts_save(w);
    } else if (x < 92) {
        ts_use_stale(w);
    } else if (x < 97) {
        ts_note(w);
    } else if (x < 98) {
        ts_release_logits(w);
    } else {
        dendp_node_reclaim(&w->t->c->nodes, 1);
    }
}

static void ts_run(const ts_config *config, uint64_t seed) {
    ts_world *w = (ts_world *)calloc(1, sizeof *w);
    tc_cache *t = tc_new(config->codec, config->n_blocks, config->n_seqs, config->n_ctx);
    uint32_t i, g;
    assert_non_null(w);
    assert_true(config->n_seqs <= TS_MAX_SEQS);
    w->config = config;
    w->t = t;
    w->rng.state = seed;
    t->desc.block_tokens = config->P;
    t->desc.n_logits = config->n_logits;
    t->desc.release_budget = config->release_budget;
    t->desc.poison = config->poison;
    t->desc.n_prefixes = config->n_prefixes;
    if (config->n_groups == 3) {
        static const uint32_t shape[3][4] = {{2, 2, 8, 0}, {1, 1, 20, 24}, {1, 3, 5, 0}};
        for (g = 0; g < 3; g++) {
            t->groups[g].n_layers = shape[g][0];
            t->groups[g].n_kv_heads = shape[g][1];
            t->groups[g].head_dim = shape[g][2];
            t->groups[g].window = shape[g][3];
        }
        t->desc.n_groups = 3;
    }
    tc_open(t, config->n_sidecars, config->items[0], config->items[1]);
    w->tokens = (int32_t *)calloc(config->n_ctx + 512, sizeof *w->tokens);
    assert_non_null(w->tokens);
    for (i = 0; i < config->n_seqs; i++) {
        w->seqs[i].tokens = (int32_t *)calloc(config->n_ctx, sizeof(int32_t));
        w->seqs[i].history = (uint64_t *)calloc(config->n_ctx + 1, sizeof(uint64_t));
        assert_non_null(w->seqs[i].tokens);
        assert_non_null(w->seqs[i].history);
    }
    tc_walk(t);
    for (i = 0; i < config->n_ops; i++) {
        ts_step(w);
        tc_walk(t);
        if (i % config->check_every == 0) {
            ts_compare(w);
        }
        if (i % (config->check_every * 16) == 0) {
            ts_session(w);
        }
    }
    ts_compare(w);
    for (i = 0; i < config->n_seqs; i++) { /* all gone: all must come back */
        if (w->seqs[i].live) {
            ts_drop(w, &w->seqs[i]);
            tc_walk(t);
        }
    }
    while (dendp_node_reclaim(&t->c->nodes, 1)) {
        tc_walk(t);
    }
    ts_compare(w);
    if (config->n_prefixes) { /* the tree still has something; without it all is free */
        TC_CHECK(t->tree.n_free < t->tree.n_entries && t->tree.n_hits > 0 && t->tree.n_evictions > 0);
        while (w->n_pins > 0) {
            w->n_pins--;
            dendp_prefix_unpin(&t->tree,
                               dendp_prefix_exact(&t->tree, w->pins[w->n_pins], w->pin_len[w->n_pins]));
            free(w->pins[w->n_pins]);
            tc_walk(t);
        }
        dendp_prefix_clear(&t->tree);
        while (dendp_node_reclaim(&t->c->nodes, 1)) {
            tc_walk(t);
        }
    }
    assert_int_equal(t->c->nodes.n_free, t->c->nodes.n_nodes);
    for (g = 0; g < config->n_groups; g++) {
        assert_int_equal(tc_blocks_used(t, g), 0);
    }
    assert_int_equal(t->c->n_free_logits, config->n_logits);
    assert_int_equal(t->c->n_free_slots, config->n_seqs);
    if (w->n_no_blocks < config->min_no_blocks || w->n_no_seqs < config->min_no_seqs ||
        w->n_side_full < config->min_side_full || w->n_in_place == 0 || t->c->n_block_copies == 0) {
        fail_msg("%s met too little: %u x no blocks, %u x no sequences, %u x sidecars full", config->name,
                 w->n_no_blocks, w->n_no_seqs, w->n_side_full);
    }
    for (i = 0; i < config->n_seqs; i++) {
        free(w->seqs[i].tokens);
        free(w->seqs[i].history);
    }
    free(w->tokens);
    free(w);
    tc_close(t);
}

/* name, codec, P, groups, blocks, seqs, ctx, logits, budget, sidecars, {items},
 * max_append, check_every, n_ops, poison, minima, prefixes */
static const ts_config ts_configs[] = {
    {"f32, plain", TC_F32, 16, 1, 200, 12, 200, 4, 64, 0, {0, 0}, 40, 4, 2500, true, 0, 50, 0, 0},
    {"f32, tiny pool", TC_F32, 16, 1, 14, 8, 150, 2, 0, 0, {0, 0}, 40, 4, 2500, true, 50, 50, 0, 0},
    {"f32, groups, tiny pool", TC_F32, 16, 3, 26, 9, 200, 3, 1, 2, {5, 3}, 40, 6, 2500, true, 50, 50, 30, 0},
    {"f32, groups, P 32", TC_F32, 32, 3, 60, 10, 300, 3, 64, 2, {24, 10}, 40, 8, 2000, true, 0, 50, 0, 0},
    {"f16, groups", TC_F16, 16, 3, 120, 12, 220, 4, 64, 1, {12, 0}, 40, 8, 1500, true, 0, 30, 0, 0},
    {"f16, tiny pool, P 32", TC_F16, 32, 1, 9, 8, 200, 2, 1, 1, {5, 0}, 40, 4, 2000, true, 50, 50, 5, 0},
    {"q8_0, groups, P 32", TC_Q8, 32, 3, 40, 10, 250, 4, 0, 2, {10, 10}, 40, 8, 1500, true, 0, 30, 0, 0},
    {"q8_0, tiny pool", TC_Q8, 16, 1, 16, 8, 150, 3, 64, 0, {0, 0}, 40, 4, 2000, true, 50, 50, 0, 0},
    {"toy, plain", TC_TOY, 16, 1, 100, 12, 200, 4, 64, 0, {0, 0}, 40, 4, 2500, false, 0, 50, 0, 0},
    {"toy, P 32, tiny pool", TC_TOY, 32, 1, 10, 8, 200, 2, 1, 1, {6, 0}, 40, 4, 2500, true, 50, 50, 5, 0},
    {"toy, groups, tiny pool", TC_TOY, 16, 3, 22, 9, 200, 2, 0, 2, {5, 3}, 40, 8, 1500, false, 15, 30, 5, 0},
    {"toy, groups, P 32", TC_TOY, 32, 3, 60, 10, 300, 3, 64, 2, {16, 8}, 50, 8, 1200, true, 0, 30, 0, 0},
    {"f32, long, budget 1", TC_F32, 16, 1, 130, 8, 1500, 3, 1, 0, {0, 0}, 400, 16, 1500, true, 20, 20, 0, 0},
    {"toy, long, budget 0", TC_TOY, 16, 1, 80, 6, 1200, 3, 0, 0, {0, 0}, 300, 24, 600, true, 10, 10, 0, 0},
    {"prefixes", TC_F32, 16, 1, 36, 8, 200, 3, 2, 0, {0, 0}, 40, 6, 3000, true, 5, 50, 0, 12},
    {"prefixes, tiny pool", TC_TOY, 16, 1, 18, 6, 150, 3, 64, 1, {2, 0}, 30, 6, 3000, true, 20, 50, 5, 6},
    {"prefixes, windows", TC_TOY, 16, 3, 36, 8, 200, 3, 1, 0, {0, 0}, 40, 8, 3000, true, 5, 50, 0, 24},
    {"prefixes, P 32", TC_Q8, 32, 3, 18, 6, 250, 3, 0, 0, {0, 0}, 60, 8, 2000, true, 10, 20, 0, 2},
};

#define TS_N_CONFIGS (sizeof ts_configs / sizeof ts_configs[0])

static void test_cache_random_operations(void **state) {
    size_t i;
    (void)state;
    for (i = 0; i < TS_N_CONFIGS; i++) {
        ts_run(&ts_configs[i], 1000 + i);
    }
}

/* -- single cases ------------------------------------------------------------------- */

/* Appends n tokens (base, base + 1, ...) to a sequence and writes their K and V. */
static void ts_grow(tc_cache *t, dend_seq seq, uint64_t *history, int32_t base, uint32_t n, bool compute) {
    dendp_slot *slot = dendp_cache_slot(t->c, seq);
    uint32_t i;
    assert_non_null(slot);
    for (i = 0; i < n; i++) {
        int32_t token = base + (int32_t)i;
        uint32_t pos = t->c->records[slot->record].len;
        ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, slot, &token, 1));
        *history = tc_history(*history, token);
        if (compute) {
            tc_put(t, slot->record, pos, *history);
            dendp_record_commit(t->c, slot->record, pos + 1);
        }
    }
    tc_walk(t);
}

static dend_seq ts_begin(tc_cache *t) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_create(t->c, &seq));
    return seq;
}

static dend_seq ts_child(tc_cache *t, dend_seq parent) {
    dend_seq seq;
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_fork(t->c, parent, 0, &seq));
    return seq;
}

static dendp_record *ts_record(const tc_cache *t, dend_seq seq) {
    return &t->c->records[dendp_cache_slot(t->c, seq)->record];
}

/* A handle never comes back to life, not even when its slot's generation has
 * gone round; the zero handle is nobody's. */
static void test_cache_generation_wraps(void **state) {
    tc_cache *t = tc_new(TC_F32, 4, 1, 64);
    dend_seq a, b, zero;
    (void)state;
    tc_open(t, 0, 0, 0);
    memset(&zero, 0, sizeof zero);
    t->c->slots[0].generation = UINT32_MAX;
    a = ts_begin(t);
    assert_int_equal(a.generation, UINT32_MAX);
    assert_null(dendp_cache_slot(t->c, zero));
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, a));
    b = ts_begin(t);
    assert_int_equal(b.generation, 1);
    assert_null(dendp_cache_slot(t->c, a));
    assert_null(dendp_cache_slot(t->c, zero));
    ASSERT_STATUS(DEND_OK, dendp_cache_seq_drop(t->c, b));
    tc_walk(t);
    tc_close(t);
}

/* Forks of a record with waiting tokens: what one computes, the others have. */
static void test_cache_waiting_computed_once(void **state) {
    tc_cache *t = tc_new(TC_TOY, 16, 4, 200);
    dend_seq a, b;
    uint64_t ha = 0, hb;
    uint32_t rec_b, pos;
    (void)state;
    tc_open(t, 0, 0, 0);
    a = ts_begin(t);
    ts_grow(t, a, &ha, 0, 5, true);
    ts_grow(t, a, &ha, 5, 6, false); /* 5 ... 10 wait */
    b = ts_child(t, a);
    assert_int_equal(t->c->first_waiting, dendp_cache_slot(t->c, a)->record);
    assert_int_equal(t->c->first_waiting, t->c->last_waiting); /* shared: once in the queue */
    hb = ha;
    ts_grow(t, b, &hb, 70, 2, false); /* 11, 12: in place, behind the shared waiting ones */
    assert_int_equal(t->c->n_block_copies, 0);
    rec_b = dendp_cache_slot(t->c, b)->record;
    assert_int_equal(ts_record(t, a)->n_ready, 5);
    for (pos = 5, ha = hb = 0; pos < 13; pos++) { /* B computes all of its own */
        uint32_t i;
        for (i = 0, hb = 0; i <= pos; i++) {
            hb = tc_history(hb, i < 11 ? (int32_t)i : (int32_t)(70 + i - 11));
            ha = i == 10 ? hb : ha;
        }
        tc_put(t, rec_b, pos, hb);
    }
    dendp_record_commit(t->c, rec_b, 13);
    tc_walk(t);
    assert_int_equal(ts_record(t, a)->n_ready, 5);
    dendp_record_skip_ready(t->c, dendp_cache_slot(t->c, a)->record);
    assert_int_equal(ts_record(t, a)->n_ready, 11); /* all of A, and not one more */
    tc_check_kv(t, dendp_cache_slot(t->c, a)->record, 10, ha);
    tc_check_kv(t, rec_b, 12, hb);
    tc_walk(t);
    tc_close(t);
}

/* Trimming asks for no more than there is: the tail block stays, whatever `pos`. */
static void test_cache_trim_keeps_tail(void **state) {
    tc_cache *t = tc_new(TC_F32, 16, 2, 200);
    uint64_t history = 0;
    dend_seq a;
    (void)state;
    t->groups[1] = t->groups[0];
    t->groups[1].window = 16;
    t->desc.n_groups = 2;
    tc_open(t, 0, 0, 0);
    a = ts_begin(t);
    ts_grow(t, a, &history, 0, 70, true);
    ASSERT_STATUS(DEND_OK, dendp_cache_trim(t->c, dendp_cache_slot(t->c, a), 1, 1000));
    assert_int_equal(dendp_cache_table(t->c, dendp_cache_slot(t->c, a)->record, 1)->first, 4);
    assert_int_equal(tc_blocks_used(t, 0), 5);
    assert_int_equal(tc_blocks_used(t, 1), 1);
    ts_grow(t, a, &history, 100, 30, true);
    tc_check_kv(t, dendp_cache_slot(t->c, a)->record, 99, history);
    assert_int_equal(dendp_record_rewind_min(t->c, dendp_cache_slot(t->c, a)->record), 80);
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, a), 79));
    ASSERT_STATUS(DEND_OK, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, a), 80));
    tc_walk(t);
    tc_close(t);
}

/* Two sidecars, and no room to copy the second: a rewind of a fork fails, and
 * both sides see what they saw before; with room it succeeds. */
static void test_cache_sidecar_full(void **state) {
    tc_cache *t = tc_new(TC_F32, 16, 4, 200);
    uint64_t history = 0, hash;
    dend_seq a, b;
    uint32_t i, h[2], spare, before_a, before_b;
    (void)state;
    tc_open(t, 2, 4, 2);
    a = ts_begin(t);
    ts_grow(t, a, &history, 0, 40, true);
    for (i = 0; i < 2; i++) {
        h[i] = tc_side_take(&t->side[i]);
        t->side[i].items[h[i] - 1].n = 2;
        t->side[i].items[h[i] - 1].notes[0].pos = 3;
        t->side[i].items[h[i] - 1].notes[1].pos = 30;
        dendp_cache_sidecar_set(t->c, dendp_cache_slot(t->c, a), i, h[i]);
    }
    b = ts_child(t, a);
    spare = tc_side_take(&t->side[1]);
    assert_int_not_equal(spare, 0);
    before_a = tc_blocks_used(t, 0);
    hash = ts_record(t, a)->hash;
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, b), 20));
    assert_int_equal(ts_record(t, b)->len, 40);
    assert_int_equal(ts_record(t, b)->n_ready, 40);
    assert_true(ts_record(t, b)->hash == hash && ts_record(t, a)->hash == hash);
    assert_int_equal(tc_blocks_used(t, 0), before_a);
    for (i = 0; i < 2; i++) {
        assert_int_equal(tc_side_item_of(&t->side[i], ts_record(t, a)->sidecar[i])->n, 2);
        assert_int_equal(tc_side_item_of(&t->side[i], ts_record(t, b)->sidecar[i])->n, 2);
    }
    tc_side_release(&t->side[1], spare);
    tc_walk(t);
    ASSERT_STATUS(DEND_OK, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, b), 20));
    for (i = 0; i < 2; i++) {
        before_a = tc_side_item_of(&t->side[i], ts_record(t, a)->sidecar[i])->n;
        before_b = tc_side_item_of(&t->side[i], ts_record(t, b)->sidecar[i])->n;
        assert_int_equal(before_a, 2);
        assert_int_equal(before_b, 1);
    }
    tc_walk(t);
    tc_close(t);
}

/* A shortage in any one place, of blocks in the second group or of nodes, stops
 * every operation that would need it, and nothing changes. The test takes what
 * is left with its own hands and gives it back. */
static void test_cache_shortages(void **state) {
    tc_cache *t = tc_new(TC_F32, 40, 4, 1000);
    uint32_t *taken, n = 0, i;
    uint64_t history = 0, before, bytes;
    dend_seq a, b;
    int32_t token = 7;
    (void)state;
    t->groups[1] = t->groups[0];
    t->groups[1].window = 16;
    t->desc.n_groups = 2;
    tc_open(t, 0, 0, 0);
    taken = (uint32_t *)calloc(t->c->nodes.n_nodes + 40, sizeof *taken);
    assert_non_null(taken);
    a = ts_begin(t);
    ts_grow(t, a, &history, 0, 104, true);
    b = ts_child(t, a);
    while (t->c->pools[1].n_free > 0) {
        taken[n++] = dendp_block_take(&t->c->pools[1]);
    }
    before = tc_digest_state(t);
    bytes = tc_digest_bytes(t);
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, dendp_cache_slot(t->c, a), &token, 1)); /* in place */
    assert_true(before != tc_digest_state(t)); /* the digest sees what happens */
    before = tc_digest_state(t);
    bytes = tc_digest_bytes(t);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS,
                  dendp_cache_append(t->c, dendp_cache_slot(t->c, b), &token, 1)); /* a copy */
    assert_true(before == tc_digest_state(t) && bytes == tc_digest_bytes(t));
    while (n > 0) {
        dendp_block_release(&t->c->pools[1], taken[--n]);
    }
    tc_walk(t);
    while (t->c->nodes.n_free > 0) {
        taken[n++] = dendp_node_take(&t->c->nodes, 0, 0);
    }
    before = tc_digest_state(t);
    bytes = tc_digest_bytes(t);
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dendp_cache_append(t->c, dendp_cache_slot(t->c, b), &token, 1));
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, b), 20));
    ASSERT_STATUS(DEND_ERR_NO_BLOCKS, dendp_cache_trim(t->c, dendp_cache_slot(t->c, b), 1, 64));
    assert_true(before == tc_digest_state(t) && bytes == tc_digest_bytes(t));
    for (i = 0; i < n; i++) {
        dendp_node_give(&t->c->nodes, taken[i]);
    }
    ASSERT_STATUS(DEND_OK, dendp_cache_trim(t->c, dendp_cache_slot(t->c, b), 1, 64));
    ASSERT_STATUS(DEND_OK, dendp_cache_append(t->c, dendp_cache_slot(t->c, b), &token, 1));
    tc_walk(t);
    ASSERT_STATUS(DEND_OK, dendp_cache_rewind(t->c, dendp_cache_slot(t->c, a), 20));
    tc_walk(t);
    free(taken);
    tc_close(t);
}

static const struct CMUnitTest tests_cache_sequence[] = {
    cmocka_unit_test(test_cache_random_operations),     cmocka_unit_test(test_cache_generation_wraps),
    cmocka_unit_test(test_cache_waiting_computed_once), cmocka_unit_test(test_cache_trim_keeps_tail),
    cmocka_unit_test(test_cache_sidecar_full),          cmocka_unit_test(test_cache_shortages),
};
