/* ==========================================================================
 * >>04.05 PREFIX TREE: prompts that were seen before cost nothing
 * ==========================================================================
 * Agents send the same words again: a system prompt in front of every request,
 * and a chat's whole history with every turn. This room remembers computed
 * prefixes, so that a new sequence which begins alike takes them over. (The
 * idea is the RadixAttention of SGLang: Zheng et al., arXiv 2312.07104,
 * section 3. What follows from persistent tables is our own.)
 *
 * It is a radix tree over token ids, in steps of whole blocks:
 *
 *     root --[system prompt: 40 blocks]--> A --[first user: 3]--> B
 *                                            \-[second user: 5]--> C
 *
 * An ENTRY is the end of an edge, and names a version of each group's table
 * (04.02) that reaches from the first token to there: a root, depth and length,
 * just as a record does. So an entry holds no KV and no tokens of its own, its
 * blocks are shared by counts with whoever computed them, and to take over a
 * prefix means to name the same root: one more count, and one path cut where
 * the match ends inside of an edge. Edges are found by a hash of their first
 * block and then compared token by token; equal hashes prove nothing.
 *
 * WINDOWS  Groups of sliding-window layers give up old blocks. An entry serves
 * length n only if all of its groups still have what a token at n attends to.
 * Where tokens match and the window's blocks are gone, the asker computes them
 * once more, and an entry is made at that very length as it passes there: the
 * second asker pays, the third does not.
 *
 * WHEN  A prefix is listed when a prompt has been computed, so that requests
 * which come while the first is still being answered find it, and when its
 * sequence is dropped, so that the next turn of the chat finds the reply.
 * Forks do neither: a tree search drops thousands of them.
 *
 * Tokens are compared in the blocks of the first group, so nothing is listed
 * whose first group has given up blocks.
 *
 * ROOM  The entries are a fixed array. Of those that nobody pinned the least
 * recently used leaf goes when a new one comes, or when the cache runs short of
 * blocks or nodes (dendp_cache.give_up), so whatever worked without the tree
 * works with it. Ancestors are always used later than their descendants, so the
 * end of the list is a leaf, and evicting it is O(groups): its nodes wait on the
 * pending list like those of a dropped sequence.
 * ======================================================================== */

typedef struct dendp_prefix {
    uint32_t parent;       /* entry, or DENDP_NONE: the root */
    uint32_t len;          /* tokens from the root on, whole blocks; 0 = free */
    uint32_t n_children;   /* edges that begin here */
    uint32_t n_pins;       /* of this entry */
    uint32_t n_held;       /* pinned entries here and below; while > 0 it is not in the list */
    uint32_t newer, older; /* the list by last use; older also links free entries */
    uint32_t next;         /* in its bucket */
    uint64_t key;          /* of its parent and the first block of its edge */
    uint64_t hash;         /* of its tokens */
} dendp_prefix;

typedef struct dendp_prefix_tree {
    dendp_cache *cache;
    uint32_t n_entries, n_free, first_free; /* n_entries 0: there is no tree */
    uint32_t newest, oldest;
    uint32_t n_buckets; /* a power of two */
    dendp_prefix *entries;
    dendp_table *tables; /* [n_entries][n_groups] */
    uint32_t *buckets;   /* [n_buckets] first entry of each */
    uint64_t n_tokens;   /* on all edges */
    uint32_t n_pinned;   /* entries with pins */
    uint64_t n_lookups, n_hits, n_reused, n_evictions;
} dendp_prefix_tree;

/* What is looked for: tokens, or those of a record's table. */
typedef struct dendp_prefix_text {
    const int32_t *tokens;
    const dendp_table *table; /* of the first group, or NULL */
} dendp_prefix_text;

/* How far the tree knows a text. */
typedef struct dendp_prefix_match {
    uint32_t full;     /* the last entry whose edge matches wholly, or DENDP_NONE */
    uint32_t partial;  /* the child of it whose edge matches a part of, or DENDP_NONE */
    uint32_t n_blocks; /* that match */
} dendp_prefix_match;

static void dendp_prefix_carve(dendp_prefix_tree *t, const dendp_cache_desc *desc, dendp_carver *carver) {
    uint64_t n = desc->n_prefixes;
    t->n_entries = desc->n_prefixes;
    for (t->n_buckets = 1; t->n_buckets < n; t->n_buckets *= 2) {
    }
    t->entries = (dendp_prefix *)dendp_carve(carver, n, sizeof *t->entries);
    t->tables = (dendp_table *)dendp_carve(carver, n * desc->n_groups, sizeof *t->tables);
    t->buckets = (uint32_t *)dendp_carve(carver, t->n_buckets, sizeof *t->buckets);
}

static dendp_table *dendp_prefix_table(const dendp_prefix_tree *t, uint32_t e, uint32_t g) {
    return &t->tables[(size_t)e * t->cache->desc.n_groups + g];
}

/* -- the list by last use ----------------------------------------------------- */

static void dendp_prefix_unlink(dendp_prefix_tree *t, uint32_t e) {
    dendp_prefix *p = &t->entries[e];
    if (p->newer != DENDP_NONE) {
        t->entries[p->newer].older = p->older;
    } else {
        t->newest = p->older;
    }
    if (p->older != DENDP_NONE) {
        t->entries[p->older].newer = p->newer;
    } else {
        t->oldest = p->newer;
    }
}

static void dendp_prefix_link(dendp_prefix_tree *t, uint32_t e) {
    dendp_prefix *p = &t->entries[e];
    p->newer = DENDP_NONE;
    p->older = t->newest;
    if (t->newest != DENDP_NONE) {
        t->entries[t->newest].newer = e;
    } else {
        t->oldest = e;
    }
    t->newest = e;
}

/* The entry and its ancestors are in use now, the ancestors a little later. */
static void dendp_prefix_touch(dendp_prefix_tree *t, uint32_t e) {
    for (; e != DENDP_NONE; e = t->entries[e].parent) {
        if (t->entries[e].n_held == 0) {
            dendp_prefix_unlink(t, e);
            dendp_prefix_link(t, e);
        }
    }
}

/* -- entries -------------------------------------------------------------------- */

/* Where an entry's edge begins, in tokens. */
static uint32_t dendp_prefix_from(const dendp_prefix_tree *t, uint32_t e) {
    uint32_t parent = t->entries[e].parent;
    return parent == DENDP_NONE ? 0 : t->entries[parent].len;
}

/* The P tokens of block `index` of a table of the first group; NULL when given up. */
static const int32_t *dendp_prefix_tokens(const dendp_cache *c, const dendp_table *table, uint32_t index) {
    uint32_t block = dendp_table_get(&c->nodes, table, index);
    return block == DENDP_NONE ? NULL : c->pools[0].tokens + (size_t)block * c->desc.block_tokens;
}

static const int32_t *dendp_prefix_text_at(const dendp_cache *c, const dendp_prefix_text *text,
                                           uint32_t index) {
    return text->table ? dendp_prefix_tokens(c, text->table, index)
                       : text->tokens + (size_t)index * c->desc.block_tokens;
}

static uint64_t dendp_prefix_key(const dendp_cache *c, uint32_t parent, const int32_t *tokens) {
    uint64_t h = parent;
    uint32_t i;
    for (i = 0; i < c->desc.block_tokens; i++) {
        h = dendp_hash2(h, (uint64_t)(uint32_t)tokens[i]);
    }
    return h;
}

static void dendp_prefix_enter(dendp_prefix_tree *t, uint32_t e, uint64_t key) {
    uint32_t *bucket = &t->buckets[key & (t->n_buckets - 1)];
    t->entries[e].key = key;
    t->entries[e].next = *bucket;
    *bucket = e;
}

static void dendp_prefix_leave(dendp_prefix_tree *t, uint32_t e) {
    uint32_t *link = &t->buckets[t->entries[e].key & (t->n_buckets - 1)];
    while (*link != e) {
        link = &t->entries[*link].next;
    }
    *link = t->entries[e].next;
}

/* True when everything that a token at `len` attends to is in these tables [n_groups]. */
static bool dendp_prefix_serves(const dendp_cache *c, const dendp_table *tables, uint32_t len) {
    uint32_t g;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint64_t first = tables[g].first;
        if (first > 0 && first * c->desc.block_tokens + c->groups[g].desc.window > len) {
            return false;
        }
    }
    return true;
}

/* Nodes that dendp_prefix_share may take. */
static uint32_t dendp_prefix_share_nodes(const dendp_cache *c, const dendp_table *tables) {
    uint32_t g, n = 0;
    for (g = 0; g < c->desc.n_groups; g++) {
        n += tables[g].depth;
    }
    return n;
}

/* Names the first n_blocks blocks of `from` in `to` [n_groups]. Nodes have been reserved. */
static void dendp_prefix_share(dendp_cache *c, dendp_table *to, const dendp_table *from, uint32_t n_blocks) {
    uint32_t g;
    for (g = 0; g < c->desc.n_groups; g++) {
        to[g] = from[g];
        c->nodes.heads[to[g].root].count++;
        dendp_table_cut(&c->nodes, &to[g], g, n_blocks);
        to[g].first =
            dendp_min_u32(to[g].first, n_blocks); /* nothing of it is left: only a place in the tree */
    }
}

static void dendp_prefix_unshare(dendp_cache *c, const dendp_table *tables) {
    uint32_t g;
    for (g = 0; g < c->desc.n_groups; g++) {
        dendp_node_release(&c->nodes, tables[g].root);
    }
}

/* Takes an entry without children and pins out of the tree. */
static void dendp_prefix_evict(dendp_prefix_tree *t, uint32_t e) {
    dendp_prefix *p = &t->entries[e];
    dendp_prefix_leave(t, e);
    dendp_prefix_unlink(t, e);
    t->n_tokens -= p->len - dendp_prefix_from(t, e);
    if (p->parent != DENDP_NONE) {
        t->entries[p->parent].n_children--;
    }
    dendp_prefix_unshare(t->cache, dendp_prefix_table(t, e, 0));
    p->len = 0;
    p->older = t->first_free;
    t->first_free = e;
    t->n_free++;
    t->n_evictions++;
}

/* Evicts whatever is not pinned. Its nodes are taken apart later. */
static void dendp_prefix_clear(dendp_prefix_tree *t) {
    while (t->n_entries > 0 && t->oldest != DENDP_NONE) {
        dendp_prefix_evict(t, t->oldest);
    }
}

/* -- what is given up when the cache runs short --------------------------------- */

/* True when the last block of an entry, in some group, is the entry's alone. */
static bool dendp_prefix_alone(const dendp_prefix_tree *t, uint32_t e) {
    uint32_t g;
    for (g = 0; g < t->cache->desc.n_groups; g++) {
        const dendp_table *table = dendp_prefix_table(t, e, g);
        if (dendp_table_exclusive(&t->cache->nodes, table, g, table->n_blocks - 1)) {
            return true;
        }
    }
    return false;
}

/* True when an entry names the tail of a record, in some group. */
static bool dendp_prefix_names_tail(const dendp_prefix_tree *t, uint32_t e, uint32_t record) {
    const dendp_cache *c = t->cache;
    uint32_t g, index = c->records[record].len / c->desc.block_tokens;
    for (g = 0; g < c->desc.n_groups; g++) {
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, g), index);
        if (block != DENDP_NONE && block == dendp_table_get(&c->nodes, dendp_prefix_table(t, e, g), index)) {
            return true;
        }
    }
    return false;
}

/* Two sequences that did not know of each other may have computed the same
 * text: an entry then has blocks of its own beside those of the entry that grew
 * out of it. It takes those instead. False when there is no node left for it. */
static bool dendp_prefix_merge(dendp_prefix_tree *t, uint32_t e) {
    dendp_cache *c = t->cache;
    dendp_table *tables = dendp_prefix_table(t, e, 0);
    uint32_t child;
    for (child = 0; t->entries[child].len == 0 || t->entries[child].parent != e; child++) {
    }
    if (c->nodes.n_free < dendp_prefix_share_nodes(c, dendp_prefix_table(t, child, 0))) {
        return false;
    }
    dendp_prefix_unshare(c, tables);
    dendp_prefix_share(c, tables, dendp_prefix_table(t, child, 0), t->entries[e].len / c->desc.block_tokens);
    return true;
}

/* dendp_cache.give_up: evicts one entry, the oldest that helps. Nodes are had
 * from any; blocks from one whose last block nobody else names; a tail that need
 * not be copied from one that names it. So a pool that live sequences fill does
 * not empty the tree for nothing.  Cost: O(entries), when the older ones do not help. */
static bool dendp_prefix_give_up(void *user, uint32_t record, uint32_t n_nodes) {
    dendp_prefix_tree *t = (dendp_prefix_tree *)user;
    bool nodes = t->cache->nodes.n_free < n_nodes;
    uint32_t e;
    for (e = t->oldest; e != DENDP_NONE; e = t->entries[e].newer) {
        if (t->entries[e].n_children > 0) {
            if (!nodes && dendp_prefix_alone(t, e) && dendp_prefix_merge(t, e)) {
                return true;
            }
        } else if (nodes || dendp_prefix_alone(t, e) ||
                   (record != DENDP_NONE && dendp_prefix_names_tail(t, e, record))) {
            dendp_prefix_evict(t, e);
            return true;
        }
    }
    return false;
}

/* An empty tree, in the service of a cache that has just been reset. */
static void dendp_prefix_open(dendp_prefix_tree *t, dendp_cache *c) {
    uint32_t i;
    t->cache = c;
    t->newest = t->oldest = DENDP_NONE;
    t->first_free = t->n_entries ? 0 : DENDP_NONE;
    t->n_free = t->n_entries;
    for (i = 0; i < t->n_entries; i++) {
        memset(&t->entries[i], 0, sizeof t->entries[i]);
        t->entries[i].older = i + 1 < t->n_entries ? i + 1 : DENDP_NONE;
    }
    for (i = 0; i < t->n_buckets; i++) {
        t->buckets[i] = DENDP_NONE;
    }
    c->give_up = t->n_entries ? dendp_prefix_give_up : NULL;
    c->give_up_user = t;
}

/* -- matching --------------------------------------------------------------------- */

/* The child of `parent` whose edge begins with these P tokens, or DENDP_NONE. */
static uint32_t dendp_prefix_child(const dendp_prefix_tree *t, uint32_t parent, const int32_t *tokens) {
    const dendp_cache *c = t->cache;
    uint64_t key = dendp_prefix_key(c, parent, tokens);
    uint32_t index = parent == DENDP_NONE ? 0 : t->entries[parent].len / c->desc.block_tokens, e;
    for (e = t->buckets[key & (t->n_buckets - 1)]; e != DENDP_NONE; e = t->entries[e].next) {
        if (t->entries[e].key == key && t->entries[e].parent == parent &&
            memcmp(dendp_prefix_tokens(c, dendp_prefix_table(t, e, 0), index), tokens,
                   c->desc.block_tokens * sizeof(int32_t)) == 0) {
            return e;
        }
    }
    return DENDP_NONE;
}

/* Blocks index ... end-1 in which an entry has the text's tokens, without a gap.
 * The same leaf, or the same block, is the same tokens. */
static uint32_t dendp_prefix_run(const dendp_prefix_tree *t, uint32_t e, const dendp_prefix_text *text,
                                 uint32_t index, uint32_t end) {
    const dendp_cache *c = t->cache;
    const dendp_table *table = dendp_prefix_table(t, e, 0);
    while (index < end) {
        const int32_t *a, *b;
        if (text->table && index % DENDP_FANOUT == 0 && index + DENDP_FANOUT <= end &&
            dendp_table_leaf(&c->nodes, table, index) == dendp_table_leaf(&c->nodes, text->table, index)) {
            index += DENDP_FANOUT;
            continue;
        }
        a = dendp_prefix_tokens(c, table, index);
        b = dendp_prefix_text_at(c, text, index);
        if (!a || !b || (a != b && memcmp(a, b, c->desc.block_tokens * sizeof(int32_t)) != 0)) {
            break;
        }
        index++;
    }
    return index;
}

/* How much of the first n_blocks blocks of a text the tree knows. */
static dendp_prefix_match dendp_prefix_find(const dendp_prefix_tree *t, const dendp_prefix_text *text,
                                            uint32_t n_blocks) {
    dendp_prefix_match m;
    m.full = m.partial = DENDP_NONE;
    m.n_blocks = 0;
    while (m.n_blocks < n_blocks) {
        const int32_t *tokens = dendp_prefix_text_at(t->cache, text, m.n_blocks);
        uint32_t e = tokens ? dendp_prefix_child(t, m.full, tokens) : DENDP_NONE, end;
        if (e == DENDP_NONE) {
            break;
        }
        end = t->entries[e].len / t->cache->desc.block_tokens;
        m.n_blocks = dendp_prefix_run(t, e, text, m.n_blocks, dendp_min_u32(end, n_blocks));
        if (m.n_blocks < end) {
            m.partial = e;
            break;
        }
        m.full = e;
    }
    return m;
}

/* The entry that serves the longest prefix of n tokens, all but the last one at
 * most, and its length in *len; DENDP_NONE and 0 when none does. *known is the
 * length that is known by its tokens, whether or not its blocks are there. */
static uint32_t dendp_prefix_best(const dendp_prefix_tree *t, const int32_t *tokens, size_t n, uint32_t *len,
                                  uint32_t *known) {
    uint32_t P = t->cache->desc.block_tokens, e;
    dendp_prefix_text text;
    dendp_prefix_match m;
    *len = *known = 0;
    if (t->n_entries == 0 || n <= P) {
        return DENDP_NONE;
    }
    text.tokens = tokens;
    text.table = NULL;
    m = dendp_prefix_find(t, &text, (uint32_t)((n - 1) / P));
    *known = m.n_blocks * P;
    if (m.partial != DENDP_NONE &&
        dendp_prefix_serves(t->cache, dendp_prefix_table(t, m.partial, 0), *known)) {
        *len = *known;
        return m.partial;
    }
    for (e = m.full; e != DENDP_NONE; e = t->entries[e].parent) {
        if (dendp_prefix_serves(t->cache, dendp_prefix_table(t, e, 0), t->entries[e].len)) {
            *len = t->entries[e].len;
            return e;
        }
    }
    return DENDP_NONE;
}

/* -- taking over ------------------------------------------------------------------ */

/* Gives an empty sequence the longest cached prefix of the tokens that are going
 * to be appended; nothing where it does not want one, or carries a state that
 * must see every token. Undone by dendp_prefix_return. */
static void dendp_prefix_adopt(dendp_prefix_tree *t, dendp_slot *slot, const int32_t *tokens, size_t n) {
    dendp_cache *c = t->cache;
    uint32_t i, e, len, known, record;
    dendp_record *r = &c->records[slot->record];
    if (t->n_entries == 0 || !slot->reuse || r->len > 0 || n > c->desc.n_ctx) {
        return;
    }
    for (i = 0; i < c->desc.n_sidecars; i++) {
        if (r->sidecar[i]) {
            return;
        }
    }
    t->n_lookups++;
    e = dendp_prefix_best(t, tokens, n, &len, &known);
    if (e != DENDP_NONE) {
        dendp_prefix_touch(t, e);
        if (!dendp_table_reserve(&c->nodes, c->desc.n_groups,
                                 dendp_prefix_share_nodes(c, dendp_prefix_table(t, e, 0)), 0)) {
            return; /* as if it were not known */
        }
        record = dendp_record_own(c, slot);
        r = &c->records[record];
        dendp_prefix_share(c, dendp_cache_table(c, record, 0), dendp_prefix_table(t, e, 0),
                           len / c->desc.block_tokens);
        r->len = r->n_ready = r->n_reused = len;
        r->hash = t->entries[e].hash;
        if (len < t->entries[e].len) {
            r->hash = c->pools[0].hash[dendp_table_get(&c->nodes, dendp_prefix_table(t, e, 0),
                                                       len / c->desc.block_tokens)];
        }
        t->n_hits++;
        t->n_reused += len;
    }
    if (known > len) { /* windows are gone: leave an entry there when it has been computed again */
        record = dendp_record_own(c, slot);
        c->records[record].list_at = known;
    }
}

/* What could not be continued is empty again. */
static void dendp_prefix_return(dendp_prefix_tree *t, dendp_slot *slot) {
    dendp_cache *c = t->cache;
    dendp_record *r = &c->records[slot->record];
    uint32_t g;
    if (r->n_reused > 0) {
        t->n_hits--;
        t->n_reused -= r->n_reused;
        for (g = 0; g < c->desc.n_groups; g++) {
            dendp_table *table = dendp_cache_table(c, slot->record, g);
            dendp_node_release(&c->nodes, table->root);
            memset(table, 0, sizeof *table);
            table->root = DENDP_NONE;
        }
    }
    r->len = r->n_ready = r->n_reused = r->list_at = 0;
    r->hash = 0;
}

/* -- listing ---------------------------------------------------------------------- */

/* True when `to` [n_groups] gives up no block that `from` still has. */
static bool dendp_prefix_covers(const dendp_cache *c, const dendp_table *to, const dendp_table *from) {
    uint32_t g;
    for (g = 0; g < c->desc.n_groups && to[g].first <= from[g].first; g++) {
    }
    return g == c->desc.n_groups;
}

/* n free entries, evicting the oldest; the path that ends at `keep` stays. */
static bool dendp_prefix_room(dendp_prefix_tree *t, uint32_t n, uint32_t keep) {
    dendp_prefix_touch(t, keep);
    while (t->n_free < n) {
        uint32_t e;
        for (e = keep; e != DENDP_NONE && e != t->oldest; e = t->entries[e].parent) {
        }
        if (t->oldest == DENDP_NONE || e == t->oldest) {
            return false;
        }
        dendp_prefix_evict(t, t->oldest);
    }
    return true;
}

/* A new entry below `parent` for the first n_blocks blocks of `tables`, in whose
 * first group the tokens of its edge are. It is not yet in the list. */
static uint32_t dendp_prefix_make(dendp_prefix_tree *t, uint32_t parent, const dendp_table *tables,
                                  uint32_t n_blocks, uint64_t hash) {
    dendp_cache *c = t->cache;
    uint32_t e = t->first_free, from = parent == DENDP_NONE ? 0 : t->entries[parent].len;
    dendp_prefix *p = &t->entries[e];
    t->first_free = p->older;
    t->n_free--;
    memset(p, 0, sizeof *p);
    p->parent = parent;
    p->len = n_blocks * c->desc.block_tokens;
    p->hash = hash;
    if (parent != DENDP_NONE) {
        t->entries[parent].n_children++;
    }
    t->n_tokens += p->len - from;
    dendp_prefix_share(c, dendp_prefix_table(t, e, 0), tables, n_blocks);
    dendp_prefix_enter(
        t, e,
        dendp_prefix_key(c, parent,
                         dendp_prefix_tokens(c, dendp_prefix_table(t, e, 0), from / c->desc.block_tokens)));
    return e;
}

/* Cuts the edge of `e` after n_blocks blocks by an entry of its own, of `tables`. */
static uint32_t dendp_prefix_split(dendp_prefix_tree *t, uint32_t e, const dendp_table *tables,
                                   uint32_t n_blocks) {
    dendp_cache *c = t->cache;
    dendp_prefix *p = &t->entries[e];
    uint32_t parent = p->parent, middle, tail;
    uint64_t hash;
    tail = dendp_table_get(&c->nodes, dendp_prefix_table(t, e, 0), n_blocks);
    hash = c->pools[0].hash[tail];
    dendp_prefix_leave(t, e);
    middle = dendp_prefix_make(t, parent, tables, n_blocks, hash);
    if (parent != DENDP_NONE) {
        t->entries[parent].n_children--; /* e was it; now middle is */
    }
    t->n_tokens -= t->entries[middle].len - (parent == DENDP_NONE ? 0 : t->entries[parent].len);
    t->entries[middle].n_children = 1;
    t->entries[middle].n_held = p->n_held;
    p->parent = middle;
    dendp_prefix_enter(t, e,
                       dendp_prefix_key(c, middle, c->pools[0].tokens + (size_t)tail * c->desc.block_tokens));
    return middle;
}

/* Puts the first `len` tokens of a record, all computed, into the tree, whole
 * blocks only. With `exact` there is an entry of just that length afterwards.
 * Returns the entry that serves it; DENDP_NONE when there is none: less than a
 * block, tokens or blocks given up below a window, or no room. Evicts the oldest
 * entries, and never a block that somebody needs.
 * Cost: O(blocks) comparisons of P tokens, leaves that are shared already aside. */
static uint32_t dendp_prefix_list(dendp_prefix_tree *t, uint32_t record, uint32_t len, bool exact) {
    dendp_cache *c = t->cache;
    const dendp_record *r = &c->records[record];
    const dendp_table *tables = dendp_cache_table(c, record, 0);
    uint32_t P = c->desc.block_tokens, n = dendp_min_u32(len, r->n_ready) / P, e, n_need, n_nodes;
    dendp_prefix_text text;
    dendp_prefix_match m;
    uint64_t hash;
    if (t->n_entries == 0 || n == 0 || tables[0].first > 0 || !dendp_prefix_serves(c, tables, n * P)) {
        return DENDP_NONE;
    }
    text.tokens = NULL;
    text.table = tables;
    m = dendp_prefix_find(t, &text, n);
    if (m.n_blocks == n && m.partial != DENDP_NONE && !exact &&
        dendp_prefix_serves(c, dendp_prefix_table(t, m.partial, 0), n * P)) {
        dendp_prefix_touch(t, m.partial);
        return m.partial;
    }
    if (m.n_blocks == n && m.partial == DENDP_NONE &&
        dendp_prefix_serves(c, dendp_prefix_table(t, m.full, 0), n * P)) {
        dendp_prefix_touch(t, m.full);
        return m.full;
    }
    hash = n * P == r->len ? r->hash : c->pools[0].hash[dendp_table_get(&c->nodes, &tables[0], n)];
    n_need = m.n_blocks < n && m.partial != DENDP_NONE ? 2 : 1;
    n_nodes = n_need * dendp_prefix_share_nodes(c, tables);
    if (m.partial != DENDP_NONE) {
        n_nodes += dendp_prefix_share_nodes(c, dendp_prefix_table(t, m.partial, 0));
    }
    if (!dendp_table_reserve(&c->nodes, c->desc.n_groups, n_nodes, 0)) {
        return DENDP_NONE;
    }
    if (m.partial == DENDP_NONE && m.full != DENDP_NONE &&
        (m.n_blocks == n || /* it serves this length no more, or: it ends here, and the text goes on */
         (t->entries[m.full].n_children == 0 && t->entries[m.full].n_pins == 0 &&
          dendp_prefix_covers(c, tables, dendp_prefix_table(t, m.full, 0))))) {
        e = m.full;
        dendp_prefix_unshare(c, dendp_prefix_table(t, e, 0));
        dendp_prefix_share(c, dendp_prefix_table(t, e, 0), tables, n);
        t->n_tokens += n * P - t->entries[e].len;
        t->entries[e].len = n * P;
        t->entries[e].hash = hash;
        dendp_prefix_touch(t, e);
        return e;
    }
    if (!dendp_prefix_room(t, n_need, m.partial != DENDP_NONE ? m.partial : m.full)) {
        return DENDP_NONE;
    }
    if (m.partial != DENDP_NONE) {
        const dendp_table *theirs = dendp_prefix_table(t, m.partial, 0);
        bool ours = m.n_blocks == n || !dendp_prefix_serves(c, theirs, m.n_blocks * P);
        m.full = dendp_prefix_split(t, m.partial, ours ? tables : theirs, m.n_blocks);
        if (t->entries[m.full].n_held == 0) {
            dendp_prefix_link(t, m.full);
        }
    }
    e = m.full;
    if (m.n_blocks < n) {
        e = dendp_prefix_make(t, m.full, tables, n, hash);
        dendp_prefix_link(t, e);
    }
    dendp_prefix_touch(t, e);
    return e;
}

/* To be called when a batch has been committed, before old blocks are given up. */
static void dendp_prefix_committed(dendp_prefix_tree *t, uint32_t record) {
    dendp_record *r = &t->cache->records[record];
    if (r->list_at > 0 && r->n_ready >= r->list_at) {
        (void)dendp_prefix_list(t, record, r->list_at, false);
        r->list_at = 0;
    }
    if (r->list && r->n_ready == r->len) {
        (void)dendp_prefix_list(t, record, r->n_ready, false);
        r->list = false;
    }
}

/* To be called before a sequence is dropped. */
static void dendp_prefix_dropping(dendp_prefix_tree *t, const dendp_slot *slot) {
    const dendp_record *r = &t->cache->records[slot->record];
    if (slot->reuse && r->count - (r->held ? 1u : 0u) == 1) {
        (void)dendp_prefix_list(t, slot->record, r->n_ready, false);
    }
}

/* -- pins --------------------------------------------------------------------------- */

static void dendp_prefix_pin(dendp_prefix_tree *t, uint32_t e) {
    t->n_pinned += t->entries[e].n_pins++ == 0 ? 1u : 0u;
    if (t->entries[e].n_pins == 1) {
        for (; e != DENDP_NONE; e = t->entries[e].parent) {
            if (t->entries[e].n_held++ == 0) {
                dendp_prefix_unlink(t, e);
            }
        }
    }
}

static void dendp_prefix_unpin(dendp_prefix_tree *t, uint32_t e) {
    if (--t->entries[e].n_pins == 0) {
        t->n_pinned--;
        for (; e != DENDP_NONE; e = t->entries[e].parent) {
            if (--t->entries[e].n_held == 0) {
                dendp_prefix_link(t, e);
            }
        }
    }
}

/* The entry that ends with the last whole block of these tokens, or DENDP_NONE. */
static uint32_t dendp_prefix_exact(const dendp_prefix_tree *t, const int32_t *tokens, size_t n) {
    uint32_t P = t->cache->desc.block_tokens;
    dendp_prefix_text text;
    dendp_prefix_match m;
    if (t->n_entries == 0 || n < P || n > t->cache->desc.n_ctx) {
        return DENDP_NONE;
    }
    text.tokens = tokens;
    text.table = NULL;
    m = dendp_prefix_find(t, &text, (uint32_t)(n / P));
    return m.n_blocks == n / P && m.partial == DENDP_NONE ? m.full : DENDP_NONE;
}
