/* ==========================================================================
 * >>02.12 MERGES: from a word's symbols to its tokens
 * ==========================================================================
 * Both kinds of tokenizers do the same to a word: it begins as small symbols,
 * and of all neighbouring pairs that may merge the best one becomes one symbol,
 * until no pair may (Sennrich et al., "Neural machine translation of rare words
 * with subword units", ACL 2016). They differ in three things:
 *
 *                      byte-level BPE            pieces
 *   a symbol begins as a byte                    a character
 *   a pair may merge   if the merge list has it  if both together are a token
 *   the best one has   the lowest place there    the highest score
 *
 * (bytes: Radford et al., "Language models are unsupervised multitask
 * learners", 2019; pieces: Kudo and Richardson, "SentencePiece", EMNLP 2018.
 * Pieces of a tokenizer.json have a merge list.) Of equal pairs the leftmost
 * comes first. With the score turned into a rank all of it is one algorithm.
 *
 * Short words look for the lowest rank by scanning. Long ones keep a heap of
 * (rank, place), or else a megabyte of one letter would take hours:
 *
 *     a b a b c       pairs (0: ab) (1: ba) (2: ab) (3: bc)
 *     ab . ab . c     the list goes on at next[]; a pair that was replaced
 *                     stays in the heap, and is known by its rank
 *
 * A pair that is longer than any token need not be looked up, so that each step
 * costs O(1) however long the symbols grow.
 *
 * What has no token: a byte of byte-level BPE is left out; a character of pieces
 * becomes the tokens of its bytes, or the unknown token, once for a run of such
 * characters, or is left out where there is none.
 *
 * Cost: O(n log n) for a word of n bytes. Up to 24 bytes in registers and two
 * cache lines, up to 256 on the stack; beyond, 40 bytes for each byte of the
 * word from the model's allocator, kept for the rest of the call.
 * ======================================================================== */

enum {
    DENDP_TOK_SHORT = 24,   /* bytes of a word that is merged by scanning */
    DENDP_TOK_MEDIUM = 256, /* bytes of a word whose heap lies on the stack */
    DENDP_TOK_CACHED = 512  /* words of one call that are remembered */
};

/* A short word and its tokens. Text repeats its words: most of a long one is looked up here. n 0: empty. */
typedef struct dendp_tok_cached {
    unsigned char n, n_tokens, s[14];
    int32_t tokens[4];
} dendp_tok_cached;

/* One call of encode: where tokens go, and memory for long words. */
typedef struct dendp_tok_run {
    const dendp_tokenizer *t;
    int32_t *out;
    size_t cap, n;           /* n counts on when out is full */
    bool unknown;            /* the last token stands for a character without one */
    size_t n_unknown;        /* characters without one */
    dendp_tok_cached *cache; /* [CACHED], or NULL */
    void *scratch[2];        /* of a word's list, and of its bytes where they are not those of the text */
    uint64_t scratch_bytes[2];
} dendp_tok_run;

static void dendp_tok_emit(dendp_tok_run *run, uint32_t id) {
    if (id == DENDP_TOK_NONE) return; /* a byte that has no token */
    if (run->n < run->cap) run->out[run->n] = (int32_t)id;
    run->n++;
    run->unknown = false;
}

/* A character of pieces, s[n], that is no token. */
static void dendp_tok_emit_bytes(dendp_tok_run *run, const unsigned char *s, size_t n) {
    const dendp_tokenizer *t = run->t;
    bool all = true;
    size_t i;
    for (i = 0; i < n; i++) all = all && t->byte_ids[s[i]] != DENDP_TOK_NONE;
    if (all) {
        for (i = 0; i < n; i++) dendp_tok_emit(run, t->byte_ids[s[i]]);
    } else {
        run->n_unknown++;
        if (!run->unknown && t->unk >= 0) {
            dendp_tok_emit(run, (uint32_t)t->unk);
            run->unknown = true;
        }
    }
}

/* A symbol of the final list: token id, or s[n] where it is none. */
static void dendp_tok_emit_symbol(dendp_tok_run *run, uint32_t id, const unsigned char *s, size_t n) {
    if (id == DENDP_TOK_NONE && run->t->spelling == DENDP_SPELL_PIECES) {
        dendp_tok_emit_bytes(run, s, n);
    } else {
        dendp_tok_emit(run, id);
    }
}

/* Bytes of the character with which s[n] begins, n > 0; a byte of no character is one of its own. */
static size_t dendp_tok_char(const unsigned char *s, size_t n) {
    size_t len;
    if (s[0] < 0x80) return 1;
    (void)dendp_uni_next(s, n, &len);
    return len;
}

/* The first symbols of s[n]: symbol k has id ids[k] and begins at starts[k]; starts[count] = n. Returns the count. */
static uint32_t dendp_tok_symbols(const dendp_tokenizer *t, const unsigned char *s, uint32_t n, uint32_t *ids,
                                  uint32_t *starts) {
    uint32_t at, count = 0;
    if (t->spelling == DENDP_SPELL_BYTES) {
        for (at = 0; at < n; at++) {
            ids[at] = t->byte_ids[s[at]];
            starts[at] = at;
        }
        count = n;
    } else {
        for (at = 0; at < n; count++) {
            size_t len = dendp_tok_char(s + at, n - at);
            ids[count] = dendp_tok_word(t, s + at, len);
            starts[count] = at;
            at += (uint32_t)len;
        }
    }
    starts[count] = n;
    return count;
}

/* The rank of a pair of symbols with ids left and right, which together are the bytes s[n], and what they make. */
static uint32_t dendp_tok_pair_rank(const dendp_tokenizer *t, uint32_t left, uint32_t right,
                                    const unsigned char *s, size_t n, uint32_t *made) {
    const dendp_merge *m;
    if (t->by_score) {
        *made = n <= t->max_plain ? dendp_tok_word(t, s, n) : DENDP_TOK_NONE;
        return *made == DENDP_TOK_NONE ? DENDP_TOK_NONE : t->ranks[*made];
    }
    m = dendp_tok_merge(t, left, right);
    *made = m ? m->made : DENDP_TOK_NONE;
    return m ? m->rank : DENDP_TOK_NONE;
}

/* A word of at most SHORT bytes. ranks[i] is of the pair (i, i + 1). O(n^2), in few cache lines. */
static void dendp_tok_merge_short(dendp_tok_run *run, const unsigned char *s, uint32_t n_bytes) {
    const dendp_tokenizer *t = run->t;
    uint32_t ids[DENDP_TOK_SHORT + 1], starts[DENDP_TOK_SHORT + 2];
    uint32_t ranks[DENDP_TOK_SHORT + 1], made[DENDP_TOK_SHORT + 1], i;
    uint32_t n = dendp_tok_symbols(t, s, n_bytes, ids, starts);
    for (i = 0; i + 1 < n; i++) {
        ranks[i] =
            dendp_tok_pair_rank(t, ids[i], ids[i + 1], s + starts[i], starts[i + 2] - starts[i], &made[i]);
    }
    while (n > 1) {
        uint32_t best = 0, at;
        for (i = 1; i + 1 < n; i++) best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == DENDP_TOK_NONE) break;
        ids[best] = made[best];
        n--;
        for (i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            starts[i] = starts[i + 1];
            ranks[i - 1] = ranks[i];
            made[i - 1] = made[i];
        }
        starts[n] = n_bytes;
        for (at = best > 0 ? best - 1 : 0; at <= best && at + 1 < n; at++) {
            ranks[at] = dendp_tok_pair_rank(t, ids[at], ids[at + 1], s + starts[at],
                                            starts[at + 2] - starts[at], &made[at]);
        }
    }
    for (i = 0; i < n; i++) dendp_tok_emit_symbol(run, ids[i], s + starts[i], starts[i + 1] - starts[i]);
}

/* A heap with four children a node, the least key on top: rank, then place. */
static void dendp_tok_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    while (i > 0 && key < heap[(i - 1) / 4]) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = key;
}

static uint64_t dendp_tok_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0, child;
    while ((child = 4 * i + 1) < *n) {
        size_t least = child, end = child + 4 < *n ? child + 4 : *n;
        while (++child < end) least = heap[child] < heap[least] ? child : least;
        if (key <= heap[least]) break;
        heap[i] = heap[least];
        i = least;
    }
    heap[i] = key;
    return top;
}

/* A word on its way: symbols are a linked list over the places of its first symbols. */
typedef struct dendp_tok_list {
    const dendp_tokenizer *t;
    const unsigned char *s;
    uint64_t *heap; /* [2 * cap] */
    size_t n_heap;
    uint32_t n;             /* symbols at first */
    uint32_t *ids, *starts; /* [cap + 1] */
    uint32_t *next, *prev;  /* [cap] next n: the end */
    uint32_t *ranks, *made; /* [cap] of the pair of a symbol and the next one; NONE for dead symbols */
} dendp_tok_list;

/* Looks the pair of symbol `at` and the next one up, and remembers it. */
static void dendp_tok_list_pair(dendp_tok_list *w, uint32_t at) {
    uint32_t right = w->next[at];
    w->ranks[at] = DENDP_TOK_NONE;
    if (right == w->n) return;
    w->ranks[at] = dendp_tok_pair_rank(w->t, w->ids[at], w->ids[right], w->s + w->starts[at],
                                       w->starts[w->next[right]] - w->starts[at], &w->made[at]);
    if (w->ranks[at] != DENDP_TOK_NONE) {
        dendp_tok_push(w->heap, &w->n_heap, (uint64_t)w->ranks[at] << 32 | at);
    }
}

/* A word of any length. Each pair that may merge is pushed once when it comes
 * to be. A key that comes up stands for the pair that its place has now if that
 * has the key's rank: then that pair's own key is the same. There are at most
 * n - 1 keys at first, and two more for each of at most n - 1 merges, which took
 * one out: never more than 2n. */
static void dendp_tok_merge_list(dendp_tok_run *run, dendp_tok_list *w, uint32_t n_bytes) {
    uint32_t i;
    w->n = dendp_tok_symbols(w->t, w->s, n_bytes, w->ids, w->starts);
    w->n_heap = 0;
    for (i = 0; i < w->n; i++) {
        w->next[i] = i + 1;
        w->prev[i] = i - 1; /* wraps for the first, which nobody asks */
    }
    for (i = 0; i < w->n; i++) dendp_tok_list_pair(w, i);
    while (w->n_heap > 0) {
        uint64_t key = dendp_tok_pop(w->heap, &w->n_heap);
        uint32_t at = (uint32_t)key, right = w->next[at];
        if (w->ranks[at] != (uint32_t)(key >> 32)) continue;
        w->ids[at] = w->made[at];
        w->ranks[right] = DENDP_TOK_NONE;
        w->next[at] = w->next[right];
        if (w->next[at] < w->n) w->prev[w->next[at]] = at;
        dendp_tok_list_pair(w, at);
        if (at > 0) dendp_tok_list_pair(w, w->prev[at]);
    }
    for (i = 0; i < w->n; i = w->next[i]) {
        dendp_tok_emit_symbol(run, w->ids[i], w->s + w->starts[i], w->starts[w->next[i]] - w->starts[i]);
    }
}

/* At least n bytes for the rest of the call, at least twice what it had: all words together cost O(longest). */
static void *dendp_tok_scratch(dendp_tok_run *run, uint32_t which, uint64_t n) {
    uint64_t had = run->scratch_bytes[which];
    if (had < n) {
        dendp_free(&run->t->allocator, run->scratch[which], had);
        run->scratch_bytes[which] = n < 2 * had ? 2 * had : n;
        run->scratch[which] = dendp_alloc(&run->t->allocator, run->scratch_bytes[which]);
        if (!run->scratch[which]) run->scratch_bytes[which] = 0;
    }
    return run->scratch[which];
}

/* Merges one word s[n], n > 0. Returns: OK, MEMORY. */
static dend_status dendp_tok_merge_word(dendp_tok_run *run, const unsigned char *s, size_t n) {
    dendp_tok_list w;
    if (run->t->spelling == DENDP_SPELL_BYTES) {
        uint32_t id = n == 1                ? run->t->byte_ids[s[0]]
                      : run->t->whole_words ? dendp_tok_word(run->t, s, n)
                                            : DENDP_TOK_NONE;
        if (n == 1 || id != DENDP_TOK_NONE) {
            dendp_tok_emit(run, id);
            return DEND_OK;
        }
    }
    w.t = run->t;
    w.s = s;
    if (n <= DENDP_TOK_SHORT) {
        dendp_tok_merge_short(run, s, (uint32_t)n);
    } else if (n <= DENDP_TOK_MEDIUM) {
        uint64_t heap[2 * DENDP_TOK_MEDIUM];
        uint32_t words[6][DENDP_TOK_MEDIUM + 1];
        w.heap = heap;
        w.ids = words[0], w.starts = words[1], w.next = words[2];
        w.prev = words[3], w.ranks = words[4], w.made = words[5];
        dendp_tok_merge_list(run, &w, (uint32_t)n);
    } else {
        if (n >= UINT32_MAX / 2) return DEND_ERR_MEMORY;
        w.heap = (uint64_t *)dendp_tok_scratch(run, 0, (uint64_t)n * (2 * 8 + 6 * 4) + 6 * 4);
        if (!w.heap) return DEND_ERR_MEMORY;
        w.ids = (uint32_t *)(w.heap + 2 * n);
        w.starts = w.ids + n + 1;
        w.next = w.starts + n + 1;
        w.prev = w.next + n + 1;
        w.ranks = w.prev + n + 1;
        w.made = w.ranks + n + 1;
        dendp_tok_merge_list(run, &w, (uint32_t)n);
    }
    return DEND_OK;
}

/* The tokens of one word s[n], n > 0. Returns: OK, MEMORY. */
static dend_status dendp_tok_encode_word(dendp_tok_run *run, const unsigned char *s, size_t n) {
    dendp_tok_cached *c;
    size_t first = run->n, n_unknown = run->n_unknown, i;
    uint64_t words[2] = {0, 0};
    dend_status status;
    if (!run->cache || n < 2 || n > sizeof c->s) return dendp_tok_merge_word(run, s, n);
    memcpy(words, s, n);
    c = &run->cache[dendp_mix64(words[0] ^ words[1] * 0x9e3779b97f4a7c15u) % DENDP_TOK_CACHED];
    if (c->n == n && memcmp(c->s, s, n) == 0) {
        for (i = 0; i < c->n_tokens; i++) dendp_tok_emit(run, (uint32_t)c->tokens[i]);
        return DEND_OK;
    }
    status = dendp_tok_merge_word(run, s, n);
    if (status == DEND_OK && run->n - first <= 4 && run->n <= run->cap && run->n_unknown == n_unknown) {
        c->n = (unsigned char)n;
        c->n_tokens = (unsigned char)(run->n - first);
        memcpy(c->s, s, n);
        for (i = first; i < run->n; i++) c->tokens[i - first] = run->out[i];
    }
    return status;
}
