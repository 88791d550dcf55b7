/* ==========================================================================
 * >>04.02 BLOCK TABLE: a persistent array, so that a fork costs O(1)
 * ==========================================================================
 * A sequence needs the map  block index -> block.  As a plain array, a fork
 * would copy it: 8,192 entries at 131,072 tokens. Here it is a *persistent*
 * 32-way radix tree: versions share every node that they agree on, and a fork
 * shares the root. (Driscoll et al., "Making data structures persistent",
 * JCSS 1989: path copying; Bagwell's array-mapped trees for the shape.)
 *
 *     depth 2:            root [ 0 | 1 | ... ]
 *                          /        \
 *              leaf [b0 b1 ... b31]  leaf [b32 b33 ...]      32 blocks a leaf
 *
 * With P = 16 a leaf covers 512 tokens, depth 2 covers 16,384, depth 3
 * 524,288. The tree grows at the root as the sequence grows, and shrinks when
 * it is cut. Two sequences that name the same leaf node share those tokens:
 * sharing is visible as equality of node numbers.
 *
 * COUNTS  A node's count is the number of parents and records that name it.
 * A block's count is the number of leaf *nodes* that name it, so a block with
 * count 1 may still be shared, through a shared leaf. Hence the one rule for
 * every write to a table:
 *
 *     a record may change a node, or a block's owned slots, only if the
 *     record, the root, every node on the path and the block have count 1.
 *
 * dendp_table_open makes a path exclusive by copying what is shared on it
 * (at most `depth` nodes of 256 bytes; a copied leaf raises 32 block counts).
 *
 * RELEASE  A node whose count falls to 0 goes onto a pending list and is taken
 * apart later, one node at a time, under a budget: dropping the sole owner of
 * 131,072 tokens must not stall a frame, and nothing recurses. Whoever runs
 * short of blocks drains the list first, so deferred blocks count as free.
 * ======================================================================== */

#define DENDP_FANOUT 32u
#define DENDP_MAX_DEPTH 6u /* 32^6 blocks: more than any pool */

typedef struct dendp_entry {
    uint32_t block;   /* or DENDP_NONE: never filled, or given up below a window */
    uint32_t slotmap; /* 0: all slots up to the fill mark are live (the only value so far) */
} dendp_entry;

typedef union dendp_node {
    uint32_t child[DENDP_FANOUT];    /* level > 0: node numbers or DENDP_NONE */
    dendp_entry entry[DENDP_FANOUT]; /* level 0 */
} dendp_node;

typedef struct dendp_node_head {
    uint32_t count;
    uint32_t next; /* free list or pending list */
    uint16_t level, group;
} dendp_node_head;

/* A version of one group's table. */
typedef struct dendp_table {
    uint32_t root;     /* or DENDP_NONE: empty */
    uint32_t depth;    /* levels; 0 = empty */
    uint32_t n_blocks; /* indices 0 ... n_blocks-1 are in use */
    uint32_t first;    /* indices below are given up for good (windows) */
} dendp_table;

typedef struct dendp_node_pool {
    uint32_t n_nodes, n_free, first_free;
    uint32_t first_pending, n_pending;
    dendp_node *nodes;
    dendp_node_head *heads;
    dendp_block_pool *pools; /* [n_groups] */
} dendp_node_pool;

static void dendp_node_pool_carve(dendp_node_pool *np, dendp_carver *c) {
    np->nodes = (dendp_node *)dendp_carve(c, np->n_nodes, sizeof(dendp_node));
    np->heads = (dendp_node_head *)dendp_carve(c, np->n_nodes, sizeof(dendp_node_head));
}

static void dendp_node_pool_reset(dendp_node_pool *np) {
    uint32_t i;
    for (i = 0; i < np->n_nodes; i++) {
        np->heads[i].count = 0;
        np->heads[i].next = i + 1 < np->n_nodes ? i + 1 : DENDP_NONE;
    }
    np->first_free = np->n_nodes ? 0 : DENDP_NONE;
    np->n_free = np->n_nodes;
    np->first_pending = DENDP_NONE;
    np->n_pending = 0;
}

/* A node with count 1 and no children. The caller has reserved it. */
static uint32_t dendp_node_take(dendp_node_pool *np, uint32_t level, uint32_t group) {
    uint32_t id = np->first_free, i;
    dendp_node_head *head = &np->heads[id];
    np->first_free = head->next;
    np->n_free--;
    head->count = 1;
    head->level = (uint16_t)level;
    head->group = (uint16_t)group;
    if (level == 0) {
        for (i = 0; i < DENDP_FANOUT; i++) {
            np->nodes[id].entry[i].block = DENDP_NONE;
            np->nodes[id].entry[i].slotmap = 0;
        }
    } else {
        for (i = 0; i < DENDP_FANOUT; i++) {
            np->nodes[id].child[i] = DENDP_NONE;
        }
    }
    return id;
}

/* Gives back a node whose children have been moved or released. */
static void dendp_node_give(dendp_node_pool *np, uint32_t id) {
    np->heads[id].count = 0;
    np->heads[id].next = np->first_free;
    np->first_free = id;
    np->n_free++;
}

/* One name fewer for a node; what reaches 0 waits on the pending list. */
static void dendp_node_release(dendp_node_pool *np, uint32_t id) {
    if (id != DENDP_NONE && --np->heads[id].count == 0) {
        np->heads[id].next = np->first_pending;
        np->first_pending = id;
        np->n_pending++;
    }
}

/* Takes apart up to `budget` pending nodes; true while more are pending. */
static bool dendp_node_reclaim(dendp_node_pool *np, uint32_t budget) {
    while (np->first_pending != DENDP_NONE && budget > 0) {
        uint32_t id = np->first_pending, i;
        dendp_node_head *head = &np->heads[id];
        dendp_node *node = &np->nodes[id];
        np->first_pending = head->next;
        np->n_pending--;
        budget--;
        for (i = 0; i < DENDP_FANOUT; i++) {
            if (head->level > 0) {
                dendp_node_release(np, node->child[i]);
            } else if (node->entry[i].block != DENDP_NONE) {
                dendp_block_release(&np->pools[head->group], node->entry[i].block);
            }
        }
        dendp_node_give(np, id);
    }
    return np->first_pending != DENDP_NONE;
}

/* True when n_nodes nodes and, in every group, n_blocks blocks are free,
 * draining the pending list as far as that takes. */
static bool dendp_table_reserve(dendp_node_pool *np, uint32_t n_groups, uint32_t n_nodes, uint32_t n_blocks) {
    for (;;) {
        bool enough = np->n_free >= n_nodes;
        uint32_t g;
        for (g = 0; g < n_groups; g++) {
            enough = enough && np->pools[g].n_free >= n_blocks;
        }
        if (enough || np->first_pending == DENDP_NONE) {
            return enough;
        }
        dendp_node_reclaim(np, 1);
    }
}

/* Which child of a node of `level` leads to block `index`. */
static uint32_t dendp_table_digit(uint32_t index, uint32_t level) {
    return (index >> (5 * level)) & (DENDP_FANOUT - 1);
}

/* Blocks that a table of `depth` levels can hold (depth <= DENDP_MAX_DEPTH). */
static uint64_t dendp_table_capacity(uint32_t depth) {
    return depth == 0 ? 0 : (uint64_t)1 << (5 * depth);
}

/* Levels that n_blocks blocks need. */
static uint32_t dendp_table_depth_for(uint32_t n_blocks) {
    uint32_t depth = 0;
    while (dendp_table_capacity(depth) < n_blocks) {
        depth++;
    }
    return depth;
}

/* The leaf over block `index`, to read; NULL when there is none. */
static const dendp_node *dendp_table_leaf(const dendp_node_pool *np, const dendp_table *t, uint32_t index) {
    uint32_t id = t->root, level;
    if (index >= dendp_table_capacity(t->depth)) {
        return NULL;
    }
    for (level = t->depth; level-- > 1;) {
        id = np->nodes[id].child[dendp_table_digit(index, level)];
        if (id == DENDP_NONE) {
            return NULL;
        }
    }
    return &np->nodes[id];
}

/* Block number at `index`, or DENDP_NONE. */
static uint32_t dendp_table_get(const dendp_node_pool *np, const dendp_table *t, uint32_t index) {
    const dendp_node *leaf = index < t->n_blocks ? dendp_table_leaf(np, t, index) : NULL;
    return leaf ? leaf->entry[index % DENDP_FANOUT].block : DENDP_NONE;
}

/* True when every node over block `index` and the block itself have count 1
 * (the record's own count is the caller's to check). */
static bool dendp_table_exclusive(const dendp_node_pool *np, const dendp_table *t, uint32_t group,
                                  uint32_t index) {
    uint32_t id = t->root, level, block;
    for (level = t->depth; level-- > 0;) {
        if (id == DENDP_NONE || np->heads[id].count != 1) {
            return false;
        }
        if (level > 0) {
            id = np->nodes[id].child[dendp_table_digit(index, level)];
        }
    }
    block = t->depth ? np->nodes[id].entry[index % DENDP_FANOUT].block : DENDP_NONE;
    return block != DENDP_NONE && np->pools[group].count[block] == 1;
}

/* An exclusive node in the place of `id`: itself when its count is 1, else a
 * copy that shares children 0 ... last (the ones behind are not taken over). */
static uint32_t dendp_node_own(dendp_node_pool *np, uint32_t id, uint32_t last) {
    uint32_t copy, i;
    dendp_node_head head = np->heads[id];
    if (head.count == 1) {
        return id;
    }
    copy = dendp_node_take(np, head.level, head.group);
    for (i = 0; i <= last; i++) {
        if (head.level > 0) {
            uint32_t child = np->nodes[id].child[i];
            np->nodes[copy].child[i] = child;
            if (child != DENDP_NONE) {
                np->heads[child].count++;
            }
        } else {
            np->nodes[copy].entry[i] = np->nodes[id].entry[i];
            if (np->nodes[id].entry[i].block != DENDP_NONE) {
                np->pools[head.group].count[np->nodes[id].entry[i].block]++;
            }
        }
    }
    dendp_node_release(np, id);
    return copy;
}

/* Nodes that dendp_table_open may take for one index. */
static uint32_t dendp_table_open_nodes(const dendp_table *t, uint32_t index) {
    return dendp_max_u32(t->depth, dendp_table_depth_for(index + 1)) * 2;
}

/* An exclusive path to the leaf over `index`, grown where it does not exist
 * yet; returns the leaf to write. Nodes have been reserved. */
static dendp_node *dendp_table_open(dendp_node_pool *np, dendp_table *t, uint32_t group, uint32_t index) {
    uint32_t id, level, *link = &t->root;
    while (dendp_table_capacity(t->depth) <= index) { /* grow at the root */
        if (t->depth > 0) {
            uint32_t root = dendp_node_take(np, t->depth, group);
            np->nodes[root].child[0] = t->root;
            t->root = root;
        }
        t->depth++;
    }
    for (level = t->depth; level-- > 0;) {
        id = *link == DENDP_NONE ? dendp_node_take(np, level, group)
                                 : dendp_node_own(np, *link, DENDP_FANOUT - 1);
        *link = id;
        if (level > 0) {
            link = &np->nodes[id].child[dendp_table_digit(index, level)];
        }
    }
    return &np->nodes[*link];
}

/* Keeps blocks 0 ... n_keep-1 and lets go of the rest. Shared nodes stay as
 * they are for their other owners. Takes at most `depth` reserved nodes. */
static void dendp_table_cut(dendp_node_pool *np, dendp_table *t, uint32_t group, uint32_t n_keep) {
    uint32_t level, i, *link = &t->root;
    if (n_keep >= t->n_blocks) {
        return;
    }
    t->n_blocks = n_keep;
    if (n_keep == 0) {
        dendp_node_release(np, t->root);
        t->root = DENDP_NONE;
        t->depth = 0;
        return;
    }
    for (level = t->depth; level-- > 0;) {
        uint32_t last = dendp_table_digit(n_keep - 1, level);
        uint32_t id = dendp_node_own(np, *link, last);
        *link = id;
        for (i = last + 1; i < DENDP_FANOUT; i++) {
            if (level > 0) {
                dendp_node_release(np, np->nodes[id].child[i]);
                np->nodes[id].child[i] = DENDP_NONE;
            } else if (np->nodes[id].entry[i].block != DENDP_NONE) {
                dendp_block_release(&np->pools[group], np->nodes[id].entry[i].block);
                np->nodes[id].entry[i].block = DENDP_NONE;
            }
        }
        link = level > 0 ? &np->nodes[id].child[last] : link;
    }
    while (t->depth > dendp_table_depth_for(n_keep)) { /* shrink at the root, which is ours by now */
        uint32_t root = t->root;
        t->root = np->nodes[root].child[0];
        dendp_node_give(np, root);
        t->depth--;
    }
}
