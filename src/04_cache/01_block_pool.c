/* ==========================================================================
 * >>04.01 BLOCK POOL: where K and V live
 * ==========================================================================
 * KV memory is cut into blocks of P token slots, all of one size, allocated
 * once (the paging of vLLM: Kwon et al., SOSP 2023, section 4). A block serves
 * one *layer group*: it holds K and V of every KV head of every layer in the
 * group, so that a dense model spends one table look-up a tile, whatever its
 * depth. Models that forget at different rates in different layers (sliding
 * windows, per-layer eviction) have one pool for each group.
 *
 *     block b:   [layer in group][KV head][tile of P/16][ K tile | V tile ]
 *
 * Beside the bytes, a block carries
 *
 *     count   leaf nodes of block tables that name it; 0 = free
 *     fill    slots that some sequence has taken (the fill mark)
 *     ready   leading slots whose K and V are computed
 *     claimed leading slots that are ready, or will be when the batch in flight is through
 *     tokens  token ids of its slots      (first group only)
 *     hash    prefix hash before slot 0   (first group only)
 *
 * The fill mark is what lets a fork append without copying: whoever first
 * extends a shared block takes the next slot in place, and shorter sharers
 * never look beyond their own length. Taking and giving back a block is O(1).
 * ======================================================================== */

#define DENDP_NONE 0xffffffffu
#define DENDP_TILE 16u /* positions of a tile, always */

typedef struct dendp_block_pool {
    uint32_t n_blocks, n_free, first_free;
    uint32_t block_tokens; /* P */
    uint64_t block_bytes;  /* stride of data */
    unsigned char *data;   /* [n_blocks][block_bytes], backend memory */
    uint32_t *count;       /* [n_blocks] */
    uint32_t *next_free;   /* [n_blocks] */
    uint16_t *fill;        /* [n_blocks] */
    uint16_t *ready;       /* [n_blocks] */
    uint16_t *claimed;     /* [n_blocks] */
    int32_t *tokens;       /* [n_blocks][P], or NULL */
    uint64_t *hash;        /* [n_blocks], or NULL */
    bool poison;           /* tests: free blocks are filled with NaN patterns */
} dendp_block_pool;

/* Places the pool's arrays; call once to measure and once to cut. */
static void dendp_block_pool_carve(dendp_block_pool *pool, dendp_carver *c, bool has_tokens) {
    uint64_t n = pool->n_blocks;
    pool->data = (unsigned char *)dendp_carve(c, n, pool->block_bytes);
    pool->count = (uint32_t *)dendp_carve(c, n, sizeof(uint32_t));
    pool->next_free = (uint32_t *)dendp_carve(c, n, sizeof(uint32_t));
    pool->fill = (uint16_t *)dendp_carve(c, n, sizeof(uint16_t));
    pool->ready = (uint16_t *)dendp_carve(c, n, sizeof(uint16_t));
    pool->claimed = (uint16_t *)dendp_carve(c, n, sizeof(uint16_t));
    if (has_tokens) {
        pool->tokens = (int32_t *)dendp_carve(c, n * pool->block_tokens, sizeof(int32_t));
        pool->hash = (uint64_t *)dendp_carve(c, n, sizeof(uint64_t));
    }
}

static void dendp_block_poison(dendp_block_pool *pool, uint32_t block) {
    if (pool->poison) {
        memset(pool->data + block * pool->block_bytes, 0xff, (size_t)pool->block_bytes);
    }
}

/* All blocks free, the lowest number first. */
static void dendp_block_pool_reset(dendp_block_pool *pool) {
    uint32_t i;
    for (i = 0; i < pool->n_blocks; i++) {
        pool->count[i] = 0;
        pool->fill[i] = pool->ready[i] = pool->claimed[i] = 0;
        pool->next_free[i] = i + 1 < pool->n_blocks ? i + 1 : DENDP_NONE;
        dendp_block_poison(pool, i);
    }
    pool->first_free = pool->n_blocks ? 0 : DENDP_NONE;
    pool->n_free = pool->n_blocks;
}

/* A block with count 1 and no slot taken. The caller has checked n_free. */
static uint32_t dendp_block_take(dendp_block_pool *pool) {
    uint32_t block = pool->first_free;
    pool->first_free = pool->next_free[block];
    pool->n_free--;
    pool->count[block] = 1;
    pool->fill[block] = pool->ready[block] = pool->claimed[block] = 0;
    return block;
}

/* One leaf fewer names the block; the last one frees it. */
static void dendp_block_release(dendp_block_pool *pool, uint32_t block) {
    if (--pool->count[block] == 0) {
        dendp_block_poison(pool, block);
        pool->next_free[block] = pool->first_free;
        pool->first_free = block;
        pool->n_free++;
    }
}

/* The bytes of a block. */
static unsigned char *dendp_block_data(const dendp_block_pool *pool, uint32_t block) {
    return pool->data + block * pool->block_bytes;
}
