/* ==========================================================================
 * >>07.03 BACKEND: the operations of a forward pass, and the CPU's version
 * ==========================================================================
 * Everything that touches activations or KV bytes goes through one table of
 * functions, dendp_backend. Above that line is host logic only: tables, rows,
 * sequences, sampling. The CPU backend is here; another device exports the
 * same table, and pointers marked "backend memory" are then its own.
 *
 * Shapes: T rows of a batch; matrices are row-major with a leading dimension.
 * Operations run in the order of the calls. None allocates, none can fail.
 *
 * Operations of a forward pass may stop half done, at the time that `limit` has
 * set: they then return false, and the next call on the backend must be the same
 * call, which goes on where it stood. Of each operation at least one task is
 * done. A pass that begins with fine = true is cut into tasks of some 100 us, so
 * that it stops close to its time; the cut changes no result.
 *
 *     angles     a[T][n_rot]      = cos, sin of each pair at each row's position
 *     embed      x[T][D]          = rows of the embedding * scale
 *     norm       y[T][n]          = rms_norm(x) * w, perhaps in place
 *     matmul     y[T][all rows]   = x [T][K] times up to 3 matrices, + biases
 *     rotate     q, k             = rope([norm] q) * scale, rope([norm] k), in place
 *     kv_write   K, V of the rows -> blocks or overlay
 *     attention  out[T][H*d]
 *     silu_mul   y[T][F]          = silu(gate) * up
 *     gelu_mul   y[T][F]          = gelu(gate) * up
 *     add        y += x
 *     head       logits rows of the output pool
 *     copy_tree  overlay slots    -> blocks (accepted rows)
 * ======================================================================== */

#define DENDP_MAX_PARTS 3u

/* Matrices that multiply the same activations; outputs stand side by side. */
typedef struct dendp_linear {
    uint32_t n_parts;
    const dendp_panels *part[DENDP_MAX_PARTS];
    const float *bias[DENDP_MAX_PARTS]; /* or NULL */
} dendp_linear;

/* What rotate, kv_write and attention need to know of a layer. */
typedef struct dendp_layer_view {
    uint32_t layer, n_layers, group, group_layer;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;              /* positions that it sees; 0 = all */
    float score_scale;            /* of q: with log2(e) */
    const float *q_norm, *k_norm; /* [d], or NULL */
    float norm_eps;
} dendp_layer_view;

typedef struct dendp_backend {
    const char *name;
    void *self;
    void (*begin)(void *self, bool fine);            /* a pass; one that stands half done is forgotten */
    void (*limit)(void *self, uint64_t deadline_ns); /* of dendp_now_ns; 0 = none */
    void (*cancel)(void *self, bool on);             /* from any thread: stop as if the time were up */
    bool (*cancelled)(void *self);
    bool (*angles)(void *self, const float *freqs, float magnitude, uint32_t n_rot, const dendp_row *rows,
                   uint32_t n, float *angles);
    bool (*embed)(void *self, const dendp_panels *w, const dendp_row *rows, float scale, uint32_t n, float *x,
                  size_t ldx);
    bool (*norm)(void *self, const float *x, const float *w, float eps, uint32_t n_rows, uint32_t n,
                 float *y);
    bool (*matmul)(void *self, const dendp_linear *w, const float *x, size_t ldx, uint32_t n, float *y,
                   size_t ldy);
    bool (*rotate)(void *self, const dendp_layer_view *v, const float *angles, uint32_t n_rot,
                   dendp_rope_kind kind, uint32_t n, float *qkv, size_t ld);
    bool (*kv_write)(void *self, const dendp_layer_view *v, const dendp_cache *c, const dendp_overlay *o,
                     const dendp_row *rows, uint32_t n, const float *k, const float *val, size_t ld);
    bool (*attention)(void *self, const dendp_layer_view *v, const dendp_cache *c, const dendp_overlay *o,
                      const dendp_row *rows, uint32_t n, const float *q, size_t ld, float *out);
    bool (*silu_mul)(void *self, const float *gate_up, uint32_t n, uint32_t n_ff, float *y);
    bool (*gelu_mul)(void *self, const float *gate_up, uint32_t n, uint32_t n_ff, float *y);
    bool (*add)(void *self, float *y, const float *x, uint32_t n_rows, uint32_t n);
    bool (*head)(void *self, const dendp_panels *w, const float *x, uint32_t n, uint32_t width, float *logits,
                 const uint32_t *out_rows);
    void (*copy_tree)(void *self, const dendp_layer_view *v, const dendp_cache *c, const dendp_overlay *o,
                      uint32_t record, uint32_t first_pos, const uint32_t *slots, uint32_t n);
} dendp_backend;

/* -- the CPU ------------------------------------------------------------------ */

/* A place for one panel of a matrix that keeps the file's rows; the panel
 * stands DENDP_ALIGN bytes behind the head. */
typedef struct dendp_panel_buffer {
    uint32_t taken;
} dendp_panel_buffer;

typedef struct dendp_cpu {
    dendp_pool *pool;
    const dendp_kernels *kernels;
    const dendp_vector_ops *ops;
    void *act;               /* quantised activations of a batch */
    float *partials;         /* attention */
    uint32_t *first_segment; /* [n_batch + 1] */
    uint32_t cap_segments;   /* row-segments that partials hold */
    unsigned char *buffers;  /* [n_buffers][buffer_bytes], each a dendp_panel_buffer and its panel */
    uint64_t buffer_bytes;
    uint32_t n_buffers;  /* 0 when the weights are panels already */
    dendp_slices slices; /* of the operation that runs, or stands half done */
    bool fine;
} dendp_cpu;

static void dendp_cpu_begin(void *self, bool fine) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    (void)dendp_slices_end(&cpu->slices);
    cpu->fine = fine;
}

static void dendp_cpu_limit(void *self, uint64_t deadline_ns) {
    ((dendp_cpu *)self)->slices.deadline_ns = deadline_ns;
}

static void dendp_cpu_cancel(void *self, bool on) {
    dendp_atomic_store(&((dendp_cpu *)self)->slices.stop, on ? 1 : 0);
}

static bool dendp_cpu_cancelled(void *self) {
    return dendp_atomic_load(&((dendp_cpu *)self)->slices.stop) != 0;
}

/* Rows that one task of a row-wise operation takes: work for every thread, but no crumbs. */
static uint32_t dendp_cpu_chunk(const dendp_cpu *cpu, uint32_t n_rows) {
    return dendp_max_u32(1, dendp_min_u32(16, n_rows / (2 * cpu->pool->n_threads)));
}

typedef void (*dendp_gate)(const float *gate, const float *up, uint32_t n, float *y);

/* The arguments of a row-wise operation; each task handles `chunk` rows. */
typedef struct dendp_cpu_rows {
    const dendp_cpu *cpu;
    const dendp_layer_view *view;
    const dendp_cache *cache;
    const dendp_overlay *overlay;
    const dendp_row *rows;
    const dendp_panels *panels;
    dendp_gate gate;
    const float *x, *x2, *w;
    float *y;
    size_t ldx, ldy;
    float eps, scale;
    uint32_t n_rows, chunk, n, n_rot;
    dendp_rope_kind rope;
} dendp_cpu_rows;

static bool dendp_cpu_run_rows(dendp_cpu *cpu, dendp_cpu_rows *a, uint32_t n_rows, dendp_task task) {
    a->cpu = cpu;
    a->n_rows = n_rows;
    a->chunk = dendp_cpu_chunk(cpu, n_rows);
    return dendp_pool_run_sliced(cpu->pool, &cpu->slices, task, a, dendp_div_up(n_rows, a->chunk)) &&
           dendp_slices_end(&cpu->slices);
}

static uint32_t dendp_cpu_rows_end(const dendp_cpu_rows *a, uint32_t index) {
    return dendp_min_u32(a->n_rows, (index + 1) * a->chunk);
}

/* A function of the position alone, in double precision: positions may be large. */
static void dendp_cpu_angles_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    uint32_t r, i;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        float *angles = a->y + (size_t)r * a->n_rot;
        for (i = 0; i < a->n_rot / 2; i++) {
            double angle = (double)a->rows[r].pos * (double)a->x[i];
            angles[2 * i] = (float)cos(angle) * a->scale;
            angles[2 * i + 1] = (float)sin(angle) * a->scale;
        }
    }
}

static bool dendp_cpu_angles(void *self, const float *freqs, float magnitude, uint32_t n_rot,
                             const dendp_row *rows, uint32_t n, float *angles) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.x = freqs;
    a.scale = magnitude;
    a.n_rot = n_rot;
    a.rows = rows;
    a.y = angles;
    return dendp_cpu_run_rows((dendp_cpu *)self, &a, n, dendp_cpu_angles_task);
}

static void dendp_cpu_embed_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    uint32_t r;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        dendp_panels_get_row(a->panels, (uint32_t)a->rows[r].token, a->y + r * a->ldy);
        if (a->scale != 1.0f) {
            dendp_scale_by(a->y + r * a->ldy, a->scale, a->panels->k);
        }
    }
}

static bool dendp_cpu_embed(void *self, const dendp_panels *w, const dendp_row *rows, float scale, uint32_t n,
                            float *x, size_t ldx) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.panels = w;
    a.scale = scale;
    a.rows = rows;
    a.y = x;
    a.ldy = ldx;
    return dendp_cpu_run_rows((dendp_cpu *)self, &a, n, dendp_cpu_embed_task);
}

static void dendp_cpu_norm_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    uint32_t r;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        a->cpu->ops->rms_norm(a->x + (size_t)r * a->n, a->w, a->eps, a->n, a->y + (size_t)r * a->n);
    }
}

static bool dendp_cpu_norm(void *self, const float *x, const float *w, float eps, uint32_t n_rows, uint32_t n,
                           float *y) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.x = x;
    a.w = w;
    a.eps = eps;
    a.n = n;
    a.y = y;
    return dendp_cpu_run_rows((dendp_cpu *)self, &a, n_rows, dendp_cpu_norm_task);
}

static void dendp_cpu_gate_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    uint32_t r;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        const float *gate = a->x + (size_t)r * 2 * a->n;
        a->gate(gate, gate + a->n, a->n, a->y + (size_t)r * a->n);
    }
}

/* y = gate(the first half of a row) * the second. */
static bool dendp_cpu_gate(dendp_cpu *cpu, dendp_gate gate, const float *gate_up, uint32_t n, uint32_t n_ff,
                           float *y) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.gate = gate;
    a.x = gate_up;
    a.n = n_ff;
    a.y = y;
    return dendp_cpu_run_rows(cpu, &a, n, dendp_cpu_gate_task);
}

static bool dendp_cpu_silu_mul(void *self, const float *gate_up, uint32_t n, uint32_t n_ff, float *y) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    return dendp_cpu_gate(cpu, cpu->ops->silu_mul, gate_up, n, n_ff, y);
}

static bool dendp_cpu_gelu_mul(void *self, const float *gate_up, uint32_t n, uint32_t n_ff, float *y) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    return dendp_cpu_gate(cpu, cpu->ops->gelu_mul, gate_up, n, n_ff, y);
}

static void dendp_cpu_add_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    uint32_t first = index * a->chunk, n = dendp_cpu_rows_end(a, index) - first;
    dendp_add_to(a->y + (size_t)first * a->n, a->x + (size_t)first * a->n, n * a->n);
}

static bool dendp_cpu_add(void *self, float *y, const float *x, uint32_t n_rows, uint32_t n) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.x = x;
    a.n = n;
    a.y = y;
    return dendp_cpu_run_rows((dendp_cpu *)self, &a, n_rows, dendp_cpu_add_task);
}

/* -- matmul ------------------------------------------------------------------- */

typedef struct dendp_cpu_matmul_args {
    const dendp_cpu *cpu;
    const dendp_linear *w;
    const float *x;
    size_t ldx, ldy;
    float *y;
    uint32_t n;                                /* rows of x */
    uint32_t first_panel[DENDP_MAX_PARTS + 1]; /* of each part, counted through */
    uint32_t chunk;                            /* panels of a task */
    const uint32_t *out_rows;                  /* of the head: row r of the result goes to this row of y */
} dendp_cpu_matmul_args;

static void dendp_cpu_quantise_task(void *ctx, uint32_t tile) {
    const dendp_cpu_matmul_args *a = (const dendp_cpu_matmul_args *)ctx;
    dendp_act_quantise(a->cpu->kernels, a->x, a->ldx, a->n, a->w->part[0]->k, a->cpu->act, tile, 1);
}

/* Claims a buffer for a panel; NULL when the weights need none. There is one
 * for every thread, but a caller's job system may run more tasks at once than
 * it has said: then this waits. It never waits for long, since whoever holds
 * a buffer computes and gives it back, and waits for nothing meanwhile. */
static dendp_panel_buffer *dendp_cpu_claim(const dendp_cpu *cpu, uint32_t index) {
    uint32_t i, spins = 0;
    while (cpu->n_buffers) {
        for (i = 0; i < cpu->n_buffers; i++) { /* neighbours in time begin at different ones */
            unsigned char *at =
                cpu->buffers + (uint64_t)((index % cpu->n_buffers + i) % cpu->n_buffers) * cpu->buffer_bytes;
            dendp_panel_buffer *buffer = (dendp_panel_buffer *)(void *)at;
            uint32_t taken = 0;
            if (dendp_atomic_load(&buffer->taken) == 0 && dendp_atomic_swap_if(&buffer->taken, &taken, 1)) {
                return buffer;
            }
        }
        if (++spins < 100) {
            dendp_pause();
        } else {
            dendp_yield();
        }
    }
    return NULL;
}

static void dendp_cpu_give_back(dendp_panel_buffer *buffer) {
    if (buffer) {
        dendp_atomic_store(&buffer->taken, 0);
    }
}

static void *dendp_cpu_panel_memory(dendp_panel_buffer *buffer) {
    return buffer ? (unsigned char *)(void *)buffer + DENDP_ALIGN : NULL;
}

#define DENDP_FIRST_BYTES 3072u /* as far as the kernels fetch ahead: these are nobody else's to fetch */

/* Panels [first, first + n) of one matrix into columns from `column` on. */
static void dendp_cpu_matmul_part(const dendp_cpu_matmul_args *a, const dendp_panels *w, const float *bias,
                                  uint32_t column, uint32_t first, uint32_t n, dendp_panel_buffer *buffer) {
    uint32_t begin = first * DENDP_LANES, end = dendp_min_u32(w->n_rows, (first + n) * DENDP_LANES), r, i;
    if (w->rows) { /* packed once, multiplied with all rows */
        for (i = first; i < first + n; i++) {
            dendp_panels one = dendp_panels_one(w, i, dendp_cpu_panel_memory(buffer));
            dendp_matmul(a->cpu->kernels, &one, a->cpu->act, a->x, a->ldx, a->n, 0, 1,
                         a->y + column + (size_t)i * DENDP_LANES, a->ldy);
        }
    } else {
        dendp_fetch_ahead(w->data + (uint64_t)first * w->panel_bytes, DENDP_FIRST_BYTES);
        dendp_matmul(a->cpu->kernels, w, a->cpu->act, a->x, a->ldx, a->n, first, n, a->y + column, a->ldy);
    }
    for (r = 0; bias && r < a->n; r++) {
        float *y = a->y + r * a->ldy + column;
        for (i = begin; i < end; i++) {
            y[i] += bias[i];
        }
    }
}

static void dendp_cpu_matmul_task(void *ctx, uint32_t index) {
    const dendp_cpu_matmul_args *a = (const dendp_cpu_matmul_args *)ctx;
    uint32_t first = index * a->chunk, end = first + a->chunk, p, column = 0;
    dendp_panel_buffer *buffer = dendp_cpu_claim(a->cpu, index);
    for (p = 0; p < a->w->n_parts; p++) {
        uint32_t lo = dendp_max_u32(first, a->first_panel[p]), hi = dendp_min_u32(end, a->first_panel[p + 1]);
        if (lo < hi) {
            dendp_cpu_matmul_part(a, a->w->part[p], a->w->bias[p], column, lo - a->first_panel[p], hi - lo,
                                  buffer);
        }
        column += a->w->part[p]->n_rows;
    }
    dendp_cpu_give_back(buffer);
}

#define DENDP_TASK_BYTES (256u << 10) /* of weights, for one row */

/* Panels of one task. Each task is a stream of its own that has to get going, so
 * small matrices are cut into one piece a thread; large ones, and those that meet
 * many rows, into up to 8, so that a thread that is late holds up less. */
static uint32_t dendp_cpu_panel_chunk(const dendp_cpu_matmul_args *a, uint32_t total, uint32_t n_threads) {
    uint64_t bytes = 0, pieces;
    uint32_t p;
    for (p = 0; p < a->w->n_parts; p++) {
        bytes += a->w->part[p]->n_panels * a->w->part[p]->panel_bytes;
    }
    pieces = bytes * (4 + a->n) / 4 / DENDP_TASK_BYTES / n_threads;
    if (a->cpu->fine && pieces > 32) {
        pieces = pieces < 1u << 18 ? pieces / 4 : 1u << 16; /* 1 MB of weights for one row, or the like */
    } else {
        pieces = pieces < 1 ? 1 : pieces > 8 ? 8 : pieces;
    }
    return dendp_max_u32(1, dendp_div_up(total, (uint32_t)pieces * n_threads));
}

/* Quantises the rows, then runs the panels of all parts through `task`: two loops of an operation. */
static bool dendp_cpu_matmul_run(dendp_cpu *cpu, dendp_cpu_matmul_args *a, dendp_task task) {
    uint32_t p, total;
    a->cpu = cpu;
    for (p = 0; p < a->w->n_parts; p++) {
        a->first_panel[p + 1] = a->first_panel[p] + a->w->part[p]->n_panels;
    }
    total = a->first_panel[a->w->n_parts];
    a->chunk = dendp_cpu_panel_chunk(a, total, cpu->pool->n_threads);
    return dendp_pool_run_sliced(cpu->pool, &cpu->slices, dendp_cpu_quantise_task, a,
                                 dendp_div_up(a->n, DENDP_TILE_ROWS)) &&
           dendp_pool_run_sliced(cpu->pool, &cpu->slices, task, a, dendp_div_up(total, a->chunk));
}

static bool dendp_cpu_matmul(void *self, const dendp_linear *w, const float *x, size_t ldx, uint32_t n,
                             float *y, size_t ldy) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    dendp_cpu_matmul_args a;
    memset(&a, 0, sizeof a);
    a.w = w;
    a.x = x;
    a.ldx = ldx;
    a.n = n;
    a.y = y;
    a.ldy = ldy;
    return dendp_cpu_matmul_run(cpu, &a, dendp_cpu_matmul_task) && dendp_slices_end(&cpu->slices);
}

#define DENDP_HEAD_ROWS 64u /* rows of the head at a time */

/* One panel at a time goes through a small buffer to the rows of the pool. */
static void dendp_cpu_head_task(void *ctx, uint32_t index) {
    const dendp_cpu_matmul_args *a = (const dendp_cpu_matmul_args *)ctx;
    const dendp_panels *w = a->w->part[0];
    uint32_t panel, end = dendp_min_u32(w->n_panels, (index + 1) * a->chunk), r;
    dendp_panel_buffer *buffer = dendp_cpu_claim(a->cpu, index);
    for (panel = index * a->chunk; panel < end; panel++) {
        float y[DENDP_HEAD_ROWS * DENDP_LANES];
        dendp_panels one = dendp_panels_one(w, panel, dendp_cpu_panel_memory(buffer));
        dendp_matmul(a->cpu->kernels, &one, a->cpu->act, a->x, a->ldx, a->n, 0, 1, y, DENDP_LANES);
        for (r = 0; r < a->n; r++) {
            memcpy(a->y + a->out_rows[r] * a->ldy + (size_t)panel * DENDP_LANES, y + (size_t)r * DENDP_LANES,
                   one.n_rows * sizeof(float));
        }
    }
    dendp_cpu_give_back(buffer);
}

static bool dendp_cpu_head(void *self, const dendp_panels *w, const float *x, uint32_t n, uint32_t width,
                           float *logits, const uint32_t *out_rows) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    uint32_t done;
    dendp_linear linear;
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 1;
    linear.part[0] = w;
    for (done = 0; done < n; done += DENDP_HEAD_ROWS) {
        dendp_cpu_matmul_args a;
        memset(&a, 0, sizeof a);
        a.w = &linear;
        a.x = x + (size_t)done * width;
        a.ldx = width;
        a.n = dendp_min_u32(DENDP_HEAD_ROWS, n - done);
        a.y = logits;
        a.ldy = w->n_rows;
        a.out_rows = out_rows + done;
        if (!dendp_cpu_matmul_run(cpu, &a, dendp_cpu_head_task)) {
            return false;
        }
    }
    return dendp_slices_end(&cpu->slices);
}

/* -- rope and KV -------------------------------------------------------------- */

static void dendp_cpu_rotate_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    const dendp_layer_view *v = a->view;
    uint32_t r, h, i;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        const float *angles = a->w + (size_t)r * a->n_rot;
        for (h = 0; h < v->n_heads + v->n_kv_heads; h++) {
            float *head = a->y + r * a->ldy + (size_t)h * v->head_dim;
            const float *norm = h < v->n_heads ? v->q_norm : v->k_norm;
            if (norm) {
                a->cpu->ops->rms_norm(head, norm, v->norm_eps, v->head_dim, head);
            }
            if (a->rope == DENDP_ROPE_HALVES) {
                dendp_rope_halves(head, angles, a->n_rot);
            } else {
                dendp_rope_interleaved(head, angles, a->n_rot);
            }
            for (i = 0; h < v->n_heads && i < v->head_dim; i++) {
                head[i] *= v->score_scale;
            }
        }
    }
}

static bool dendp_cpu_rotate(void *self, const dendp_layer_view *v, const float *angles, uint32_t n_rot,
                             dendp_rope_kind kind, uint32_t n, float *qkv, size_t ld) {
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.view = v;
    a.w = angles;
    a.n_rot = n_rot;
    a.rope = kind;
    a.y = qkv;
    a.ldy = ld;
    return dendp_cpu_run_rows((dendp_cpu *)self, &a, n, dendp_cpu_rotate_task);
}

static void dendp_cpu_kv_task(void *ctx, uint32_t index) {
    const dendp_cpu_rows *a = (const dendp_cpu_rows *)ctx;
    const dendp_layer_view *v = a->view;
    const dendp_cache *c = a->cache;
    uint32_t r, h, P = c->desc.block_tokens, d = v->head_dim;
    uint64_t k_bytes = c->groups[v->group].k_bytes;
    for (r = index * a->chunk; r < dendp_cpu_rows_end(a, index); r++) {
        const dendp_row *row = &a->rows[r];
        for (h = 0; h < v->n_kv_heads && row->write_kv; h++) {
            const float *k = a->x + r * a->ldx + (size_t)h * d, *val = a->x2 + r * a->ldx + (size_t)h * d;
            unsigned char *tile;
            uint32_t slot;
            if (row->tree_first != DENDP_NONE) {
                slot = row->tree_first + row->tree_row;
                tile = dendp_overlay_tile(a->overlay, v->n_layers, slot, v->layer, h);
            } else {
                const dendp_table *t = dendp_cache_table(c, row->record, v->group);
                uint32_t block = dendp_table_get(&c->nodes, t, row->pos / P);
                slot = row->pos;
                tile = dendp_cache_tile(c, v->group, block, v->group_layer, h, row->pos % P / DENDP_TILE);
            }
            c->desc.codec.put_token(tile, tile + k_bytes, d, slot % DENDP_TILE, k, val);
        }
    }
}

static bool dendp_cpu_kv_write(void *self, const dendp_layer_view *v, const dendp_cache *c,
                               const dendp_overlay *o, const dendp_row *rows, uint32_t n, const float *k,
                               const float *val, size_t ld) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    dendp_cpu_rows a;
    memset(&a, 0, sizeof a);
    a.view = v;
    a.cache = c;
    a.overlay = o;
    a.rows = rows;
    a.x = k;
    a.x2 = val;
    a.ldx = ld;
    return dendp_cpu_run_rows(cpu, &a, n, dendp_cpu_kv_task);
}

static bool dendp_cpu_attention(void *self, const dendp_layer_view *v, const dendp_cache *c,
                                const dendp_overlay *o, const dendp_row *rows, uint32_t n, const float *q,
                                size_t ld, float *out) {
    dendp_cpu *cpu = (dendp_cpu *)self;
    dendp_attention a;
    memset(&a, 0, sizeof a);
    a.cache = c;
    a.overlay = o;
    a.ops = cpu->ops;
    a.layer = v->layer;
    a.n_layers = v->n_layers;
    a.group = v->group;
    a.group_layer = v->group_layer;
    a.n_heads = v->n_heads;
    a.n_kv_heads = v->n_kv_heads;
    a.head_dim = v->head_dim;
    a.window = v->window;
    a.ld_q = ld;
    a.partials = cpu->partials;
    a.first_segment = cpu->first_segment;
    a.fine = cpu->fine;
    return dendp_attention_run(&a, cpu->pool, &cpu->slices, rows, n, q, out, cpu->cap_segments) &&
           dendp_slices_end(&cpu->slices);
}

/* Moves accepted tree rows, overlay slots in order of depth, to positions from first_pos on. */
static void dendp_cpu_copy_tree(void *self, const dendp_layer_view *v, const dendp_cache *c,
                                const dendp_overlay *o, uint32_t record, uint32_t first_pos,
                                const uint32_t *slots, uint32_t n) {
    uint32_t i, h, P = c->desc.block_tokens;
    uint64_t k_bytes = c->groups[v->group].k_bytes;
    (void)self;
    for (i = 0; i < n; i++) {
        uint32_t pos = first_pos + i;
        uint32_t block = dendp_table_get(&c->nodes, dendp_cache_table(c, record, v->group), pos / P);
        for (h = 0; h < v->n_kv_heads; h++) {
            unsigned char *to = dendp_cache_tile(c, v->group, block, v->group_layer, h, pos % P / DENDP_TILE);
            const unsigned char *from = dendp_overlay_tile(o, v->n_layers, slots[i], v->layer, h);
            c->desc.codec.copy_slots(to, to + k_bytes, pos % DENDP_TILE, from, from + k_bytes,
                                     slots[i] % DENDP_TILE, 1, v->head_dim);
        }
    }
}

static void dendp_cpu_backend(dendp_cpu *cpu, dendp_backend *out) {
    out->name = "cpu";
    out->self = cpu;
    out->begin = dendp_cpu_begin;
    out->limit = dendp_cpu_limit;
    out->cancel = dendp_cpu_cancel;
    out->cancelled = dendp_cpu_cancelled;
    out->angles = dendp_cpu_angles;
    out->embed = dendp_cpu_embed;
    out->norm = dendp_cpu_norm;
    out->matmul = dendp_cpu_matmul;
    out->rotate = dendp_cpu_rotate;
    out->kv_write = dendp_cpu_kv_write;
    out->attention = dendp_cpu_attention;
    out->silu_mul = dendp_cpu_silu_mul;
    out->gelu_mul = dendp_cpu_gelu_mul;
    out->add = dendp_cpu_add;
    out->head = dendp_cpu_head;
    out->copy_tree = dendp_cpu_copy_tree;
}
