/* ==========================================================================
 * >>07.02 ATTENTION: partial softmax over segments of 512 positions
 * ==========================================================================
 * A row attends to positions 0 ... pos of its sequence, or in a sliding layer
 * to the last `window` of these. The positions are cut into fixed segments of
 * 512 (a leaf of the block table when P = 16); those before the window are left
 * out, and so are its tiles before it. Each (row, KV head, segment) is a task of its
 * own that yields, for every query head of the group, a partial result
 *
 *     m = max score     l = sum of 2^(s - m)     o = sum of 2^(s - m) v
 *
 * A second pass merges a row's partials in ascending order (the algebra of
 * FlashAttention; Dao et al., 2022, and Flash-Decoding, 2023). Scores carry the
 * model's factor times log2(e), so that powers of two will do.
 *
 * Segments and tiles stand at absolute positions, tiles are walked in
 * ascending order, and a row looks at nothing but its own keys: so its result
 * has the same bits alone, in a prompt, among branches, or in a token tree,
 * for any number of threads. Branches that share a leaf read the same tiles
 * one after another, while they are in cache: that is the whole of "cascade".
 *
 * A VIEW is what one row sees. An ordinary row sees its record's table. A row
 * of a token tree sees the table up to the committed length, and its ancestors
 * and itself in the overlay (slots beside the cache, one a row). The tiles
 * from the committed length on are gathered: each ancestor goes to the slot of
 * its logical position in a scratch tile, which then is what plain decoding
 * would have found in the cache.
 * ======================================================================== */

#define DENDP_SEGMENT 512u
#define DENDP_MAX_TREE 256u            /* rows of one token tree */
#define DENDP_ATTENTION_QUERIES 8u     /* query heads of one pass over a segment */
#define DENDP_GATHER_BYTES (72u << 10) /* room for the gathered tiles of one chunk: 160 KB of stack in all */
#define DENDP_TILES_AHEAD 4u /* tiles are too short, and too far apart, for the hardware to fetch ahead */

/* The overlay: K and V of tree rows, in the codec's tiles, 16 rows a tile.
 * [tile of rows][layer][KV head][K tile | V tile] */
typedef struct dendp_overlay {
    unsigned char *data;
    uint64_t tile_bytes, layer_bytes; /* layer_bytes: all heads of a layer in one row tile */
    uint32_t n_rows;                  /* capacity */
} dendp_overlay;

/* One row on its way through the model. */
typedef struct dendp_row {
    int32_t token;
    uint32_t pos;    /* of the token */
    uint32_t record; /* whose table it reads */
    uint32_t n_past; /* positions that it reads from the table: pos + 1, or the committed length of a tree */
    uint32_t tree_first;                     /* overlay slot of its tree's row 0, or DENDP_NONE */
    uint32_t tree_row;                       /* its row in the tree */
    uint32_t logits_row;                     /* row of the output, or DENDP_NONE */
    bool write_kv;                           /* false when a sharer has written the same already */
    uint64_t ancestors[DENDP_MAX_TREE / 64]; /* rows of its tree that it sees, itself included */
} dendp_row;

/* Sizes the overlay and returns its bytes. All layers share one tile size. */
static uint64_t dendp_overlay_layout(dendp_overlay *o, uint64_t tile_bytes, uint32_t n_kv_heads,
                                     uint32_t n_layers, uint32_t n_rows) {
    o->n_rows = n_rows;
    o->tile_bytes = tile_bytes;
    o->layer_bytes = tile_bytes * n_kv_heads;
    return (uint64_t)dendp_div_up(n_rows, DENDP_TILE) * n_layers * o->layer_bytes;
}

/* K tile that holds overlay slot `slot`; the slot in it is slot % 16. */
static unsigned char *dendp_overlay_tile(const dendp_overlay *o, uint32_t n_layers, uint32_t slot,
                                         uint32_t layer, uint32_t head) {
    return o->data + ((uint64_t)(slot / DENDP_TILE) * n_layers + layer) * o->layer_bytes +
           head * o->tile_bytes;
}

/* Everything that the tasks of one layer's attention read. */
typedef struct dendp_attention {
    const dendp_cache *cache;
    const dendp_overlay *overlay;
    const dendp_vector_ops *ops;
    const dendp_row *rows; /* the rows of this wave */
    uint32_t n_rows;
    uint32_t layer, n_layers;     /* of the model */
    uint32_t group, group_layer;  /* where the cache keeps this layer */
    uint32_t n_heads, n_kv_heads; /* H, G */
    uint32_t head_dim;            /* d */
    uint32_t window;              /* positions that a row sees, its own included; 0 = all */
    const float *q;               /* [n_rows][ld_q], rotated and scaled */
    size_t ld_q;
    float *partials;         /* [segment of all rows][H][d + 2]: m, l, o */
    uint32_t most_segments;  /* that any row of the wave sees */
    uint32_t *first_segment; /* [n_rows + 1]: where each row's partials begin */
    bool fine;               /* short tasks */
    uint32_t rows_per_task, n_chunks;
    uint32_t heads_per_merge;
    uint32_t n_strips; /* tasks along a row: each takes every n_strips-th segment */
    float *out;        /* [n_rows][H*d] */
} dendp_attention;

/* The first position that a row sees. */
static uint32_t dendp_row_begin(const dendp_row *row, uint32_t window) {
    return window != 0 && row->pos >= window ? row->pos - window + 1 : 0;
}

/* Segments that a row sees something of. */
static uint32_t dendp_row_segments(const dendp_row *row, uint32_t window) {
    return row->pos / DENDP_SEGMENT - dendp_row_begin(row, window) / DENDP_SEGMENT + 1;
}

/* Puts tile `tile` of a tree row together in `scratch` (K, V): committed
 * slots from the cache, then the ancestors in order of depth. */
static void dendp_gather_tile(const dendp_attention *a, const dendp_row *row, uint32_t head, uint32_t tile,
                              unsigned char *scratch) {
    const dendp_cache *c = a->cache;
    const dendp_codec *codec = &c->desc.codec;
    const dendp_group *group = &c->groups[a->group];
    uint32_t first = tile * DENDP_TILE, pos, word, P = c->desc.block_tokens;
    unsigned char *v = scratch + group->k_bytes;
    if (first < row->n_past) {
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, row->record, a->group), first / P);
        const unsigned char *k =
            dendp_cache_tile(c, a->group, block, a->group_layer, head, first % P / DENDP_TILE);
        codec->copy_slots(scratch, v, 0, k, k + group->k_bytes, 0, row->n_past - first, a->head_dim);
    }
    pos = row->n_past;
    for (word = 0; word < DENDP_MAX_TREE / 64; word++) {
        uint64_t bits = row->ancestors[word];
        for (; bits; bits &= bits - 1, pos++) {
            uint32_t ancestor = word * 64;
            uint64_t low = bits & (~bits + 1);
            while (low >>= 1) {
                ancestor++;
            }
            if (pos / DENDP_TILE == tile) {
                uint32_t slot = row->tree_first + ancestor;
                const unsigned char *k = dendp_overlay_tile(a->overlay, a->n_layers, slot, a->layer, head);
                codec->copy_slots(scratch, v, pos % DENDP_TILE, k, k + group->k_bytes, slot % DENDP_TILE, 1,
                                  a->head_dim);
            }
        }
    }
}

/* The tiles of one segment as one row and KV head see them: from the first to the last of which it sees a slot. */
typedef struct dendp_segment_view {
    uint32_t first;                                         /* tile number of tiles[0] */
    uint32_t n_tiles;                                       /* at most 32 */
    const unsigned char *tiles[DENDP_SEGMENT / DENDP_TILE]; /* K, then V; NULL: to be gathered */
    uint16_t mask[DENDP_SEGMENT / DENDP_TILE];              /* slots that the row sees */
} dendp_segment_view;

static void dendp_segment_look_up(const dendp_attention *a, const dendp_row *row, uint32_t head,
                                  uint32_t segment, dendp_segment_view *view) {
    const dendp_cache *c = a->cache;
    const dendp_table *table = dendp_cache_table(c, row->record, a->group);
    const dendp_node *leaf = NULL;
    uint32_t P = c->desc.block_tokens, sees = dendp_row_begin(row, a->window), tile;
    uint32_t begin = dendp_max_u32(segment * DENDP_SEGMENT, sees / DENDP_TILE * DENDP_TILE);
    uint32_t end = dendp_min_u32(row->pos + 1, (segment + 1) * DENDP_SEGMENT);
    view->first = begin / DENDP_TILE;
    view->n_tiles = dendp_div_up(end - begin, DENDP_TILE);
    for (tile = 0; tile < view->n_tiles; tile++) {
        uint32_t pos = begin + tile * DENDP_TILE, left = end - pos;
        view->mask[tile] = (uint16_t)(left >= DENDP_TILE ? 0xffffu : (1u << left) - 1u);
        if (pos < sees) { /* only the first tile */
            view->mask[tile] = (uint16_t)(view->mask[tile] & (0xffffu << (sees - pos)));
        }
        view->tiles[tile] = NULL;
        if (pos + DENDP_TILE <= row->n_past || row->tree_first == DENDP_NONE) {
            uint32_t index = pos / P;
            if (!leaf || index % DENDP_FANOUT == 0) {
                leaf = dendp_table_leaf(&c->nodes, table, index);
            }
            view->tiles[tile] = dendp_cache_tile(c, a->group, leaf->entry[index % DENDP_FANOUT].block,
                                                 a->group_layer, head, pos % P / DENDP_TILE);
        }
    }
}

/* One (row, KV head, the n-th segment that it sees), up to DENDP_ATTENTION_QUERIES query heads. */
static void dendp_attend(const dendp_attention *a, uint32_t r, uint32_t head, uint32_t nth, uint32_t first_q,
                         uint32_t n_q) {
    const dendp_codec *codec = &a->cache->desc.codec;
    const dendp_row *row = &a->rows[r];
    const dendp_group *group = &a->cache->groups[a->group];
    uint64_t k_bytes = group->k_bytes;
    uint32_t d = a->head_dim, tile, i, t;
    const float *floats = a->q + r * a->ld_q + (size_t)first_q * d;
    float *partial = a->partials + ((size_t)(a->first_segment[r] + nth) * a->n_heads + first_q) * (d + 2);
    float s[DENDP_ATTENTION_QUERIES * DENDP_SEGMENT], o[DENDP_ATTENTION_QUERIES * DENDP_MAX_HEAD_DIM];
    dendp_q8_query queries[DENDP_ATTENTION_QUERIES * DENDP_MAX_HEAD_DIM / 32];
    const void *q = floats;
    dendp_segment_view view;
    union { /* gathered tiles, aligned for any codec */
        float f[DENDP_GATHER_BYTES / sizeof(float)];
        unsigned char bytes[DENDP_GATHER_BYTES];
    } scratch;

    dendp_segment_look_up(a, row, head, dendp_row_begin(row, a->window) / DENDP_SEGMENT + nth, &view);
    if (codec->put_query) {
        for (i = 0; i < n_q; i++) {
            codec->put_query(codec->act_row, floats + (size_t)i * d, d,
                             (unsigned char *)queries + i * codec->query_bytes(d));
        }
        q = queries;
    }
    for (tile = 0; tile < view.n_tiles; tile++) {
        const unsigned char *k = view.tiles[tile], *ahead = NULL;
        uint32_t later = tile + DENDP_TILES_AHEAD;
        if (later < view.n_tiles) {
            ahead = view.tiles[later];
        } else if (later < 2 * view.n_tiles && view.tiles[later - view.n_tiles]) { /* V comes next */
            ahead = view.tiles[later - view.n_tiles] + k_bytes;
        }
        if (!k) {
            dendp_gather_tile(a, row, head, view.first + tile, scratch.bytes);
            k = scratch.bytes;
        }
        codec->score_tile(k, ahead ? ahead : k, d, q, n_q, s + (size_t)tile * DENDP_TILE, DENDP_SEGMENT);
    }
    for (i = 0; i < n_q; i++) {
        float *si = s + (size_t)i * DENDP_SEGMENT, *p = partial + (size_t)i * (d + 2);
        for (tile = 0; tile < view.n_tiles; tile++) {
            for (t = 0; t < DENDP_TILE && view.mask[tile] != 0xffffu; t++) {
                if (!(view.mask[tile] >> t & 1u)) {
                    si[tile * DENDP_TILE + t] = DENDP_MASKED;
                }
            }
        }
        p[1] = a->ops->softmax(si, view.n_tiles * DENDP_TILE, &p[0]);
    }
    memset(o, 0, (size_t)n_q * d * sizeof(float));
    for (tile = 0; tile < view.n_tiles;) {
        uint32_t most = row->tree_first == DENDP_NONE ? DENDP_CHUNK_TILES : codec->chunk_tiles, n;
        const void *v[DENDP_CHUNK_TILES], *ahead[DENDP_CHUNK_TILES];
        for (n = 0; n < most && tile + n < view.n_tiles; n++) {
            const unsigned char *k = view.tiles[tile + n], *later = NULL;
            if (tile + n + DENDP_TILES_AHEAD < view.n_tiles) {
                later = view.tiles[tile + n + DENDP_TILES_AHEAD];
            }
            if (!k) {
                dendp_gather_tile(a, row, head, view.first + tile + n, scratch.bytes + n * group->tile_bytes);
                k = scratch.bytes + n * group->tile_bytes;
            }
            v[n] = k + k_bytes;
            ahead[n] = later ? later + k_bytes : k + k_bytes;
        }
        codec->add_v_tiles(v, ahead, view.mask + tile, n, d, s + (size_t)tile * DENDP_TILE, DENDP_SEGMENT,
                           n_q, o);
        tile += n;
    }
    for (i = 0; i < n_q; i++) {
        memcpy(partial + (size_t)i * (d + 2) + 2, o + (size_t)i * d, d * sizeof(float));
    }
}

/* Task: one chunk of rows, one KV head, one strip of segments. */
static void dendp_attention_task(void *ctx, uint32_t index) {
    const dendp_attention *a = (const dendp_attention *)ctx;
    uint32_t chunk = index % a->n_chunks, head = index / a->n_chunks % a->n_kv_heads;
    uint32_t strip = index / a->n_chunks / a->n_kv_heads, group = a->n_heads / a->n_kv_heads, r, i, segment;
    uint32_t end = dendp_min_u32(a->n_rows, (chunk + 1) * a->rows_per_task);
    for (segment = strip; segment < a->most_segments; segment += a->n_strips) {
        for (r = chunk * a->rows_per_task; r < end; r++) {
            for (i = 0; i < group && segment < dendp_row_segments(&a->rows[r], a->window);
                 i += DENDP_ATTENTION_QUERIES) {
                dendp_attend(a, r, head, segment, head * group + i,
                             dendp_min_u32(DENDP_ATTENTION_QUERIES, group - i));
            }
        }
    }
}

/* Task: merges the parts of some heads of one row. A part with l = 0 adds nothing. */
static void dendp_attention_merge(void *ctx, uint32_t index) {
    const dendp_attention *a = (const dendp_attention *)ctx;
    uint32_t tasks = dendp_div_up(a->n_heads, a->heads_per_merge), r = index / tasks, s, j;
    uint32_t d = a->head_dim, h = index % tasks * a->heads_per_merge,
             n = a->first_segment[r + 1] - a->first_segment[r];
    uint32_t end = dendp_min_u32(a->n_heads, h + a->heads_per_merge);
    for (; h < end; h++) {
        const float *part = a->partials + ((size_t)a->first_segment[r] * a->n_heads + h) * (d + 2);
        float *out = a->out + ((size_t)r * a->n_heads + h) * d, m = part[0], l = part[1], inverse;
        memcpy(out, part + 2, d * sizeof(float));
        for (s = 1; s < n; s++) {
            float m2, l2, max, keep, add;
            part += (size_t)a->n_heads * (d + 2);
            m2 = part[0];
            l2 = part[1];
            max = m > m2 ? m : m2;
            keep = dendp_exp2(m - max);
            add = dendp_exp2(m2 - max);
            a->ops->blend(out, keep, part + 2, add, d);
            l = dendp_fma(l2, add, l * keep);
            m = max;
        }
        inverse = l > 0.0f ? 1.0f / l : 0.0f;
        for (j = 0; j < d; j++) {
            out[j] *= inverse;
        }
    }
}

/* Attention of one layer for n_rows rows, in waves of as many rows as the
 * partials have room for (`cap_segments` row-segments; one row always fits).
 * False when the slices are late. */
static bool dendp_attention_run(dendp_attention *a, dendp_pool *pool, dendp_slices *slices,
                                const dendp_row *rows, uint32_t n_rows, const float *q, float *out,
                                uint32_t cap_segments) {
    uint32_t done = 0;
    while (done < n_rows) {
        uint32_t n = 0, total = 0, most = 0;
        while (done + n < n_rows) {
            uint32_t segments = dendp_row_segments(&rows[done + n], a->window);
            if (n > 0 && total + segments > cap_segments) {
                break;
            }
            a->first_segment[n++] = total;
            total += segments;
            most = dendp_max_u32(most, segments);
        }
        a->first_segment[n] = total;
        a->rows = rows + done;
        a->n_rows = n;
        a->q = q + done * a->ld_q;
        a->out = out + (size_t)done * a->n_heads * a->head_dim;
        a->rows_per_task = dendp_max_u32(1, dendp_min_u32(a->fine ? 2 : 8, n / (4 * pool->n_threads)));
        a->n_chunks = dendp_div_up(n, a->rows_per_task);
        a->most_segments = most;
        a->n_strips = dendp_min_u32(most, 64); /* so that the number of tasks stays far from 2^32 */
        a->heads_per_merge = n < pool->n_threads ? dendp_div_up(a->n_heads, pool->n_threads) : a->n_heads;
        if (!dendp_pool_run_sliced(pool, slices, dendp_attention_task, a,
                                   a->n_chunks * a->n_kv_heads * a->n_strips) ||
            !dendp_pool_run_sliced(pool, slices, dendp_attention_merge, a,
                                   n * dendp_div_up(a->n_heads, a->heads_per_merge))) {
            return false;
        }
        done += n;
    }
    return true;
}
