/* ==========================================================================
 * >>06.06 MEMORY: what sampling keeps for an engine
 * ==========================================================================
 * Choosing a token is a function (06.05); this room has what an engine holds for
 * it: scratch, and the two numbers of mirostat, how many tokens a sequence has
 * drawn with it and the sum of their surprises.
 *
 * They belong to the sequence at a length. A fork has its parent's, and from then
 * on its own; a rewind to length m has those that were there at m. So they are a
 * list that only grows, as the tokens do, and that forks share:
 *
 *     (pos 41, n 1, sum 3.2) <-- (42, 2, 5.0) <-- (43, 3, 9.1)      trunk
 *                                             \-- (43, 3, 6.6)      a fork of it
 *
 * A node is counted by the nodes behind it and the records that end in it. It is
 * a sidecar of the record (04.04), which carries it along forks, rewinds and
 * drops. Each node was made along with a token, in a slot of a block, and dies no
 * later than the token's last holder, so there are as many nodes as slots, and one
 * more a sequence for a list that is shared and cut. Saved are the last 15 nodes, as
 * many as a snapshot has room for: a loaded sequence that is rewound further begins
 * anew, with mu = 2 tau.
 *
 * A token counts when it was drawn with mirostat and then appended. Drawing and
 * appending are two calls, so the draw leaves a note on the sequence's handle: for
 * this text, this token, so many bits. A fork copies the note. An append that
 * finds it fitting makes a node. Rows of a token tree have notes too.
 * ======================================================================== */

#ifndef DEND_NO_SAMPLERS

#define DENDP_SURPRISE_MOST 128.0f /* bits of one token */
#define DENDP_SURPRISE_SAVED 15u   /* nodes, of 16 bytes, in a snapshot */

/* A node; handle h is number h - 1. */
typedef struct dendp_surprise {
    uint32_t count;  /* nodes and records that name it; 0 = free */
    uint32_t before; /* handle; 0 = none. Of a free one: the next free one */
    uint32_t pos, n; /* position of the token; n 0 = nothing is left after a rewind */
    double sum;
} dendp_surprise;

/* What a draw leaves: behind a text of len tokens with this hash, token has this surprise. */
typedef struct dendp_drawn {
    uint32_t generation, len;
    uint64_t hash;
    int32_t token; /* -1 = none */
    float bits;
} dendp_drawn;

typedef struct dendp_sampling {
    dendp_sidecar_vtable sidecar;
    float *x;      /* [V] */
    uint32_t *z;   /* [cap_past] */
    int32_t *past; /* [cap_past] */
    uint32_t cap_past;
    dendp_drawn *drawn;      /* [n_seqs] of each handle */
    dendp_drawn *tree_drawn; /* [n_tree_rows] of each row */
    dendp_surprise *nodes;
    uint32_t n_nodes, first_free, n_free;
} dendp_sampling;

/* -- the list ------------------------------------------------------------------- */

/* A node with count 1 behind `before`, which it does not count; 0 when there is none. */
static uint32_t dendp_surprise_take(dendp_sampling *s, uint32_t before) {
    uint32_t handle = s->first_free;
    if (handle) {
        dendp_surprise *node = &s->nodes[handle - 1];
        s->first_free = node->before;
        s->n_free--;
        memset(node, 0, sizeof *node);
        node->count = 1;
        node->before = before;
    }
    return handle;
}

static void dendp_surprise_retain(void *user, uint32_t handle) {
    ((dendp_sampling *)user)->nodes[handle - 1].count++;
}

static void dendp_surprise_release(void *user, uint32_t handle) {
    dendp_sampling *s = (dendp_sampling *)user;
    while (handle) {
        dendp_surprise *node = &s->nodes[handle - 1];
        uint32_t before = node->before;
        if (--node->count > 0) {
            break;
        }
        node->before = s->first_free;
        s->first_free = handle;
        s->n_free++;
        handle = before;
    }
}

/* Makes a node held once the same as `from`. */
static void dendp_surprise_copy(dendp_sampling *s, uint32_t to, uint32_t from) {
    dendp_surprise *node = &s->nodes[to - 1];
    *node = s->nodes[from - 1];
    node->count = 1;
    if (node->before) {
        s->nodes[node->before - 1].count++;
    }
}

static uint32_t dendp_surprise_own(void *user, uint32_t handle) {
    dendp_sampling *s = (dendp_sampling *)user;
    uint32_t copy = s->nodes[handle - 1].count == 1 ? handle : dendp_surprise_take(s, 0);
    if (copy && copy != handle) {
        dendp_surprise_copy(s, copy, handle);
        s->nodes[handle - 1].count--;
    }
    return copy;
}

static void dendp_surprise_rollback(void *user, uint32_t handle, uint32_t len) {
    dendp_sampling *s = (dendp_sampling *)user;
    dendp_surprise *node = &s->nodes[handle - 1];
    while (node->n > 0 && node->pos >= len) {
        uint32_t before = node->before;
        if (before) {
            dendp_surprise_copy(s, handle, before);
            dendp_surprise_release(s, before);
        } else {
            node->n = node->pos = 0;
            node->sum = 0.0;
        }
    }
}

/* How many nodes a snapshot takes. */
static uint32_t dendp_surprise_saved(const dendp_sampling *s, uint32_t handle) {
    uint32_t n = 0;
    for (; handle && s->nodes[handle - 1].n > 0 && n < DENDP_SURPRISE_SAVED; n++) {
        handle = s->nodes[handle - 1].before;
    }
    return n;
}

static uint64_t dendp_surprise_bytes(void *user, uint32_t handle) {
    return (uint64_t)dendp_surprise_saved((const dendp_sampling *)user, handle) * 16u;
}

static bool dendp_surprise_save(void *user, uint32_t handle, void *dst) {
    const dendp_sampling *s = (const dendp_sampling *)user;
    uint32_t n = dendp_surprise_saved(s, handle);
    while (n > 0) { /* the oldest comes first */
        const dendp_surprise *node = &s->nodes[handle - 1];
        unsigned char *to = (unsigned char *)dst + (size_t)(--n) * 16u;
        memcpy(to, &node->pos, 4);
        memcpy(to + 4, &node->n, 4);
        memcpy(to + 8, &node->sum, 8);
        handle = node->before;
    }
    return true;
}

static dend_status dendp_surprise_load(void *user, const void *src, uint64_t bytes, uint32_t *out) {
    dendp_sampling *s = (dendp_sampling *)user;
    const unsigned char *from = (const unsigned char *)src;
    uint32_t handle = 0, i, n = (uint32_t)(bytes / 16u);
    if (bytes == 0 || bytes % 16u || n > DENDP_SURPRISE_SAVED) {
        return DEND_ERR_FORMAT;
    }
    for (i = 0; i < n; i++, from += 16) {
        const dendp_surprise *last = handle ? &s->nodes[handle - 1] : NULL;
        uint32_t pos = dendp_load32(from), count = dendp_load32(from + 4), next;
        uint64_t bits = dendp_load64(from + 8);
        /* A sum is no more than 2^39, and neither NaN nor negative: its bits tell. */
        bool ok = count > 0 && bits < 0x4260000000000000u &&
                  (!last || (pos > last->pos && count == last->n + 1 && bits >= dendp_load64(&last->sum)));
        next = ok ? dendp_surprise_take(s, handle) : 0;
        if (!next) {
            dendp_surprise_release(s, handle);
            return ok ? DEND_ERR_NO_BLOCKS : DEND_ERR_FORMAT;
        }
        handle = next;
        s->nodes[handle - 1].pos = pos;
        s->nodes[handle - 1].n = count;
        memcpy(&s->nodes[handle - 1].sum, from + 8, 8);
    }
    *out = handle;
    return DEND_OK;
}

/* -- layout --------------------------------------------------------------------- */

/* Scratch of a choice; what is in there does not matter. */
static void dendp_sampling_carve_scratch(dendp_sampling *s, uint32_t V, uint32_t n_ctx, uint32_t n_tree_rows,
                                         dendp_carver *carver) {
    s->cap_past = n_ctx + n_tree_rows;
    s->x = (float *)dendp_carve(carver, V, sizeof *s->x);
    s->z = (uint32_t *)dendp_carve(carver, s->cap_past, sizeof *s->z);
    s->past = (int32_t *)dendp_carve(carver, s->cap_past, sizeof *s->past);
}

static void dendp_sampling_carve(dendp_sampling *s, uint32_t n_ctx, uint32_t n_seqs, uint32_t n_tree_rows,
                                 uint64_t n_slots, dendp_carver *carver) {
    uint64_t most = (uint64_t)n_ctx * n_seqs; /* tokens of all sequences, if none shares any */
    n_slots = (n_slots < most ? n_slots : most) + n_seqs;
    s->n_nodes = n_slots < DENDP_NONE ? (uint32_t)n_slots : DENDP_NONE - 1;
    s->drawn = (dendp_drawn *)dendp_carve(carver, n_seqs, sizeof *s->drawn);
    s->tree_drawn = (dendp_drawn *)dendp_carve(carver, n_tree_rows, sizeof *s->tree_drawn);
    s->nodes = (dendp_surprise *)dendp_carve(carver, s->n_nodes, sizeof *s->nodes);
    s->sidecar.name = "mirostat";
    s->sidecar.user = s;
    s->sidecar.retain = dendp_surprise_retain;
    s->sidecar.release = dendp_surprise_release;
    s->sidecar.clone_on_write = dendp_surprise_own;
    s->sidecar.rollback = dendp_surprise_rollback;
    s->sidecar.bytes = dendp_surprise_bytes;
    s->sidecar.save = dendp_surprise_save;
    s->sidecar.load = dendp_surprise_load;
}

static void dendp_sampling_reset(dendp_sampling *s, uint32_t n_seqs, uint32_t n_tree_rows) {
    uint32_t i;
    for (i = 0; i < s->n_nodes; i++) {
        memset(&s->nodes[i], 0, sizeof s->nodes[i]);
        s->nodes[i].before = i + 1 < s->n_nodes ? i + 2 : 0;
    }
    s->first_free = 1;
    s->n_free = s->n_nodes;
    memset(s->drawn, 0, n_seqs * sizeof *s->drawn);
    memset(s->tree_drawn, 0, n_tree_rows * sizeof *s->tree_drawn);
}

/* -- drawing ---------------------------------------------------------------------- */

/* Fills `past` for a record and a path of tokens behind it: at least n_tokens, and n_bytes of their text, or all. */
static void dendp_sampling_past(dendp_sampling *s, const dendp_cache *c, uint32_t record, const int32_t *path,
                                uint32_t n_path, uint32_t n_tokens, size_t n_bytes,
                                const dend_text_rules *rules, dend_sample_past *past) {
    uint32_t len = c->records[record].len, P = c->desc.block_tokens, total = len + n_path, have = 0;
    uint32_t block = DENDP_NONE, index = DENDP_NONE;
    size_t text = 0;
    while (have < total && (have < n_tokens || text < n_bytes)) {
        uint32_t pos = total - 1 - have;
        int32_t token;
        if (pos >= len) {
            token = path[pos - len];
        } else {
            if (pos / P != index) {
                index = pos / P;
                block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, 0), index);
            }
            token = block == DENDP_NONE ? -1 : c->pools[0].tokens[(size_t)block * P + pos % P];
        }
        s->past[s->cap_past - ++have] = token;
        if (text < n_bytes) {
            size_t bytes;
            dendp_rules_bytes(rules, token, &bytes);
            text += bytes;
        }
    }
    past->tokens = s->past + (s->cap_past - have);
    past->n_tokens = have;
}

/* Chooses the token behind the slot's sequence and a path, of whose surprises n and sum count in addition. */
static dend_status dendp_sampling_choose(dendp_sampling *s, const dendp_vector_ops *ops, const float *logits,
                                         uint32_t V, const dendp_tokenizer *tokenizer,
                                         const dend_sample_params *p, const dendp_cache *c,
                                         const dendp_slot *slot, const int32_t *path, uint32_t n_path,
                                         uint32_t n, double sum, uint32_t *ids, dend_sampled *out) {
    const dendp_record *r = &c->records[slot->record];
    dend_sample_past past = {NULL, 0, 0, 0.0};
    if (p && !dendp_sample_is_plain(p)) {
        dend_status status = dendp_chain_check(p, V);
        if (status == DEND_OK && p->rules && p->rules->tokenizer != tokenizer) {
            status = DEND_ERR_ARGUMENT;
        }
        if (status != DEND_OK) {
            return status;
        }
        dendp_sampling_past(s, c, slot->record, path, n_path, dendp_chain_window(p), dendp_chain_bytes(p),
                            p->rules, &past);
        if (r->sidecar[0]) {
            n += s->nodes[r->sidecar[0] - 1].n;
            sum += s->nodes[r->sidecar[0] - 1].sum;
        }
        past.n_surprises = n;
        past.surprise = sum;
    }
    return dendp_choose(ops, logits, V, p, slot->stream, (uint64_t)r->len + n_path, &past, ids, s->x, s->z,
                        out);
}

static bool dendp_sampling_is_mirostat(const dend_sample_params *p) {
    return p && p->temperature > 0.0f && p->mirostat_tau > 0.0f;
}

static float dendp_sampling_bits(const dend_sampled *drawn) {
    float bits = drawn->logprob * -1.44269504f;
    return bits > DENDP_SURPRISE_MOST ? DENDP_SURPRISE_MOST : bits > 0.0f ? bits : 0.0f;
}

/* Notes what was drawn behind a sequence with mirostat. */
static void dendp_sampling_note(dendp_sampling *s, const dendp_cache *c, dend_seq seq, const dendp_slot *slot,
                                const dend_sampled *drawn) {
    dendp_drawn *note = &s->drawn[seq.slot];
    note->generation = seq.generation;
    note->len = c->records[slot->record].len;
    note->hash = c->records[slot->record].hash;
    note->token = drawn->token;
    note->bits = dendp_sampling_bits(drawn);
}

/* A fork of the handle `from` has its note. */
static void dendp_sampling_fork(dendp_sampling *s, dend_seq from, dend_seq to) {
    bool has = s->drawn[from.slot].generation == from.generation;
    s->drawn[to.slot] = s->drawn[from.slot];
    s->drawn[to.slot].generation = has ? to.generation : 0;
}

/* Whether a token that is to follow the sequence was drawn with mirostat, and with how many bits. */
static bool dendp_sampling_counts(const dendp_sampling *s, const dendp_cache *c, dend_seq seq,
                                  const dendp_slot *slot, int32_t token, float *bits) {
    const dendp_drawn *note = &s->drawn[seq.slot];
    const dendp_record *r = &c->records[slot->record];
    *bits = note->bits;
    return note->generation == seq.generation && note->len == r->len && note->hash == r->hash &&
           note->token == token;
}

/* Counts a token that has been appended to the slot's sequence, whose record it owns. A node must be free. */
static void dendp_sampling_count(dendp_sampling *s, dendp_cache *c, dendp_slot *slot, uint32_t pos,
                                 float bits) {
    uint32_t before = c->records[slot->record].sidecar[0], handle;
    const dendp_surprise *last = before ? &s->nodes[before - 1] : NULL;
    bool follows = last && last->n > 0;
    handle = dendp_surprise_take(s, follows ? before : 0);
    s->nodes[handle - 1].pos = pos;
    s->nodes[handle - 1].n = (follows ? last->n : 0) + 1;
    s->nodes[handle - 1].sum = (follows ? last->sum : 0.0) + (double)bits;
    if (follows) {
        dendp_surprise_retain(s, before);
    }
    dendp_cache_sidecar_set(c, slot, 0, handle);
}

#endif /* DEND_NO_SAMPLERS */
