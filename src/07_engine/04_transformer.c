/* ==========================================================================
 * >>07.04 TRANSFORMER: one forward pass over a batch of rows
 * ==========================================================================
 * A batch is a list of rows: tokens of many sequences, in any mix of prompts,
 * single next tokens and token trees. The pass is the decoder of Vaswani et
 * al. (2017) in its llama form: pre-norm, rotary positions, grouped-query
 * attention, gated FFN.
 *
 *     x = embed(tokens) [* sqrt(D)]
 *     for each layer:
 *         h = norm(x);  q,k,v = h * Wqkv;  [norm of each q and k];  rope;  K,V into the cache
 *         x += [norm] attention(q) * Wo
 *         h = norm(x);  x += [norm] (act(h * Wgate) * (h * Wup)) * Wdown
 *     logits = norm(x) * Whead          (only for rows that ask)
 *
 * What stands in brackets, and act, are fields of the configuration (02.04).
 * K and V of all rows are written before any row attends, so rows of one
 * prompt see each other through the cache like everybody else. Every operation
 * treats rows one by one: what else is in the batch cannot change a row.
 *
 * A pass is a list of backend operations, each of which may stop half done
 * (07.03), so that a caller with little time goes through it in slices. Between
 * two layers a row is its line of x and nothing else: there rows that nobody
 * wants any more can be taken out.
 * ======================================================================== */

/* Buffers of a pass, backend memory. T = n_batch. */
typedef struct dendp_scratch {
    uint32_t n_batch;
    float *x;           /* [T][D] the residual stream */
    float *h;           /* [T][D] */
    float *qkv;         /* [T][(H + 2G) * d] */
    float *heads;       /* [T][H*d] attention output */
    float *gu;          /* [T][2F] gate and up */
    float *ffn;         /* [T][F] */
    float *angles[2];   /* [T][n_rot] cos, sin of each pair, and the same for sliding layers */
    float *freqs[2];    /* [n_rot/2] radians a position */
    float *last;        /* [T][D] the rows whose logits are wanted */
    uint32_t *out_rows; /* [T] where their logits go */
} dendp_scratch;

static void dendp_scratch_carve(dendp_scratch *s, const dendp_config *c, uint32_t n_batch,
                                dendp_carver *carver) {
    uint64_t T = n_batch, D = c->n_embd, d = c->head_dim;
    s->n_batch = n_batch;
    s->x = (float *)dendp_carve(carver, T * D, sizeof(float));
    s->h = (float *)dendp_carve(carver, T * D, sizeof(float));
    s->qkv = (float *)dendp_carve(carver, T * (c->n_heads + 2 * c->n_kv_heads) * d, sizeof(float));
    s->heads = (float *)dendp_carve(carver, T * c->n_heads * d, sizeof(float));
    s->gu = (float *)dendp_carve(carver, T * 2 * c->n_ff, sizeof(float));
    s->ffn = (float *)dendp_carve(carver, T * c->n_ff, sizeof(float));
    s->angles[0] = s->angles[1] = (float *)dendp_carve(carver, T * c->n_rot, sizeof(float));
    s->freqs[0] = s->freqs[1] = (float *)dendp_carve(carver, c->n_rot / 2, sizeof(float));
    if (dendp_config_two_ropes(c)) {
        s->angles[1] = (float *)dendp_carve(carver, T * c->n_rot, sizeof(float));
        s->freqs[1] = (float *)dendp_carve(carver, c->n_rot / 2, sizeof(float));
    }
    s->last = (float *)dendp_carve(carver, T * D, sizeof(float));
    s->out_rows = (uint32_t *)dendp_carve(carver, T, sizeof(uint32_t));
}

/* Radians a position of each pair: base^(-2i/n_rot), over the model's own divisors where it has some, scaled;
 * with YaRN less, the less the pair is one of the slow ones. freqs [n_rot/2]. */
static void dendp_rope_freqs(const dend_model *m, const dendp_rope *rope, float *freqs) {
    uint32_t i, n_rot = m->config.n_rot;
    for (i = 0; i < n_rot / 2; i++) {
        double f = pow((double)rope->base, -2.0 * (double)i / (double)n_rot), scale = (double)rope->scale;
        if (rope->yarn) {
            double width = (double)rope->high - (double)rope->low;
            double slow = ((double)i - (double)rope->low) / (width > 0.001 ? width : 0.001);
            slow = slow < 0 ? 0 : slow > 1 ? 1 : slow;
            scale = scale * slow + (1 - slow);
        }
        f *= scale;
        freqs[i] = (float)(m->rope_freqs ? f / (double)m->rope_freqs[i] : f);
    }
}

/* What a forward pass works on. */
typedef struct dendp_forward {
    const dend_model *model;
    const dendp_backend *backend;
    const dendp_cache *cache;
    const dendp_overlay *overlay;
    dendp_scratch scratch;
    const uint32_t *layer_group, *layer_index; /* [L]: where the cache keeps each layer */
    /* the pass that runs, or stands half done */
    dendp_row *rows;
    uint32_t n;
    float *logits;
    bool fine;
    uint32_t op; /* operations that are through */
} dendp_forward;

/* Operations of a pass: these, then DENDP_N_LAYER_OPS a layer, then the output norm and the head. */
enum { DENDP_OP_ANGLES = 0, DENDP_OP_ANGLES_LOCAL, DENDP_OP_EMBED, DENDP_OP_LAYERS };

/* Operations of a layer; one that a model lacks is through at once. */
enum {
    DENDP_OP_ATTN_NORM = 0,
    DENDP_OP_QKV,
    DENDP_OP_ROTATE,
    DENDP_OP_KV_WRITE,
    DENDP_OP_ATTENTION,
    DENDP_OP_O,
    DENDP_OP_ATTN_POST_NORM,
    DENDP_OP_ADD_ATTN,
    DENDP_OP_FFN_NORM,
    DENDP_OP_GATE_UP,
    DENDP_OP_ACTIVATION,
    DENDP_OP_DOWN,
    DENDP_OP_FFN_POST_NORM,
    DENDP_OP_ADD_FFN,
    DENDP_N_LAYER_OPS
};

/* What a layer is to rotation, cache and attention. */
static dendp_layer_view dendp_forward_view(const dendp_forward *f, uint32_t layer) {
    const dendp_config *c = &f->model->config;
    dendp_layer_view view;
    memset(&view, 0, sizeof view);
    view.layer = layer;
    view.n_layers = c->n_layers;
    view.group = f->layer_group[layer];
    view.group_layer = f->layer_index[layer];
    view.n_heads = c->n_heads;
    view.n_kv_heads = c->n_kv_heads;
    view.head_dim = c->head_dim;
    view.window = dendp_config_slides(c, layer) ? c->window : 0;
    view.score_scale = DENDP_LOG2E / sqrtf(c->score_width);
    view.q_norm = f->model->layers[layer].q_norm;
    view.k_norm = f->model->layers[layer].k_norm;
    view.norm_eps = c->norm_eps;
    return view;
}

/* One operation of a layer; false when it is not through. */
static bool dendp_forward_layer(dendp_forward *f, uint32_t layer, uint32_t op) {
    const dendp_config *c = &f->model->config;
    const dendp_layer *w = &f->model->layers[layer];
    const dendp_backend *be = f->backend;
    dendp_scratch *s = &f->scratch;
    uint32_t D = c->n_embd, H = c->n_heads, G = c->n_kv_heads, F = c->n_ff, n = f->n;
    size_t d = c->head_dim, ld = (H + 2 * G) * d;
    dendp_layer_view view = dendp_forward_view(f, layer);
    dendp_linear linear;
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 1;
    switch (op) {
    case DENDP_OP_ATTN_NORM:
        return be->norm(be->self, s->x, w->attn_norm, c->norm_eps, n, D, s->h);
    case DENDP_OP_QKV:
        linear.n_parts = 3;
        linear.part[0] = &w->q;
        linear.part[1] = &w->k;
        linear.part[2] = &w->v;
        linear.bias[0] = w->q_bias;
        linear.bias[1] = w->k_bias;
        linear.bias[2] = w->v_bias;
        return be->matmul(be->self, &linear, s->h, D, n, s->qkv, ld);
    case DENDP_OP_ROTATE:
        return be->rotate(be->self, &view, s->angles[dendp_config_slides(c, layer)], c->n_rot,
                          c->family->rope, n, s->qkv, ld);
    case DENDP_OP_KV_WRITE:
        return be->kv_write(be->self, &view, f->cache, f->overlay, f->rows, n, s->qkv + H * d,
                            s->qkv + (H + G) * d, ld);
    case DENDP_OP_ATTENTION:
        return be->attention(be->self, &view, f->cache, f->overlay, f->rows, n, s->qkv, ld, s->heads);
    case DENDP_OP_O:
        linear.part[0] = &w->o;
        linear.bias[0] = w->o_bias;
        return be->matmul(be->self, &linear, s->heads, H * d, n, s->h, D);
    case DENDP_OP_ATTN_POST_NORM:
        return !w->attn_post_norm || be->norm(be->self, s->h, w->attn_post_norm, c->norm_eps, n, D, s->h);
    case DENDP_OP_FFN_NORM:
        return be->norm(be->self, s->x, w->ffn_norm, c->norm_eps, n, D, s->h);
    case DENDP_OP_GATE_UP:
        linear.n_parts = 2;
        linear.part[0] = &w->gate;
        linear.part[1] = &w->up;
        linear.bias[0] = w->gate_bias;
        linear.bias[1] = w->up_bias;
        return be->matmul(be->self, &linear, s->h, D, n, s->gu, (size_t)2 * F);
    case DENDP_OP_ACTIVATION:
        return (c->family->gelu ? be->gelu_mul : be->silu_mul)(be->self, s->gu, n, F, s->ffn);
    case DENDP_OP_DOWN:
        linear.part[0] = &w->down;
        linear.bias[0] = w->down_bias;
        return be->matmul(be->self, &linear, s->ffn, F, n, s->h, D);
    case DENDP_OP_FFN_POST_NORM:
        return !w->ffn_post_norm || be->norm(be->self, s->h, w->ffn_post_norm, c->norm_eps, n, D, s->h);
    default: /* DENDP_OP_ADD_ATTN, DENDP_OP_ADD_FFN */
        return be->add(be->self, s->x, s->h, n, D);
    }
}

/* The output norm and the head, of the rows that ask for logits. */
static bool dendp_forward_head(dendp_forward *f, bool norm) {
    const dendp_config *c = &f->model->config;
    const dendp_backend *be = f->backend;
    dendp_scratch *s = &f->scratch;
    uint32_t r, n_last = 0, D = c->n_embd;
    for (r = 0; r < f->n; r++) {
        if (f->rows[r].logits_row != DENDP_NONE) {
            if (norm) {
                memcpy(s->last + (size_t)n_last * D, s->x + (size_t)r * D, D * sizeof(float));
            }
            s->out_rows[n_last++] = f->rows[r].logits_row;
        }
    }
    return n_last == 0 ||
           (norm ? be->norm(be->self, s->last, f->model->out_norm, c->norm_eps, n_last, D, s->h)
                 : be->head(be->self, &f->model->head, s->h, n_last, D, f->logits, s->out_rows));
}

/* Begins a pass of n <= n_batch rows, which stay where they are until it is
 * through. Logits of rows that ask go to logits[logits_row][V]. fine: the pass
 * will run in slices of little time. */
static void dendp_forward_begin(dendp_forward *f, dendp_row *rows, uint32_t n, float *logits, bool fine) {
    f->rows = rows;
    f->n = n;
    f->logits = logits;
    f->fine = fine;
    f->op = 0;
    f->backend->begin(f->backend->self, fine);
}

/* True when the pass stands between two layers: all that it has computed is in x then, a row a row. */
static bool dendp_forward_between_layers(const dendp_forward *f) {
    return f->op >= DENDP_OP_LAYERS && (f->op - DENDP_OP_LAYERS) % DENDP_N_LAYER_OPS == 0 &&
           (f->op - DENDP_OP_LAYERS) / DENDP_N_LAYER_OPS < f->model->config.n_layers;
}

/* Row `from` of the pass, which stands between two layers, becomes row `to`. */
static void dendp_forward_move_row(dendp_forward *f, uint32_t from, uint32_t to) {
    const dendp_config *c = &f->model->config;
    uint32_t i;
    f->rows[to] = f->rows[from];
    memmove(f->scratch.x + (size_t)to * c->n_embd, f->scratch.x + (size_t)from * c->n_embd,
            c->n_embd * sizeof(float));
    for (i = 0; i < 2; i++) {
        memmove(f->scratch.angles[i] + (size_t)to * c->n_rot, f->scratch.angles[i] + (size_t)from * c->n_rot,
                c->n_rot * sizeof(float));
    }
}

/* The pass, which stands between two layers, goes on with its first n rows. The
 * operation that comes next may stand half done, for rows that are no more: it
 * begins anew. */
static void dendp_forward_shrink(dendp_forward *f, uint32_t n) {
    f->n = n;
    f->backend->begin(f->backend->self, f->fine);
}

/* One operation of the pass, or what is left of it; false when it is not through. */
static bool dendp_forward_op(dendp_forward *f) {
    const dendp_config *c = &f->model->config;
    const dendp_backend *be = f->backend;
    dendp_scratch *s = &f->scratch;
    uint32_t layer, op = f->op;
    if (op == DENDP_OP_ANGLES) {
        return be->angles(be->self, s->freqs[0], c->rope.magnitude, c->n_rot, f->rows, f->n, s->angles[0]);
    }
    if (op == DENDP_OP_ANGLES_LOCAL) {
        return s->angles[1] == s->angles[0] || be->angles(be->self, s->freqs[1], c->rope_local.magnitude,
                                                          c->n_rot, f->rows, f->n, s->angles[1]);
    }
    if (op == DENDP_OP_EMBED) {
        return be->embed(be->self, &f->model->embd, f->rows, c->embd_scale, f->n, s->x, c->n_embd);
    }
    op -= DENDP_OP_LAYERS;
    layer = op / DENDP_N_LAYER_OPS;
    return layer < c->n_layers ? dendp_forward_layer(f, layer, op % DENDP_N_LAYER_OPS)
                               : dendp_forward_head(f, op % DENDP_N_LAYER_OPS == 0);
}

/* Goes on with the pass until it is through (or, with to_layer, stands between
 * two layers), which gives true, or until the deadline (0 = none) or a cancel.
 * Each call gets on by a task at least. */
static bool dendp_forward_go(dendp_forward *f, uint64_t deadline_ns, bool to_layer) {
    const dendp_backend *be = f->backend;
    uint32_t n_ops = DENDP_OP_LAYERS + f->model->config.n_layers * DENDP_N_LAYER_OPS + 2;
    be->limit(be->self, deadline_ns);
    while (f->op < n_ops) {
        if (!dendp_forward_op(f)) {
            return false;
        }
        f->op++;
        if (to_layer && dendp_forward_between_layers(f)) {
            return true;
        }
        if ((deadline_ns && dendp_now_ns() >= deadline_ns) || be->cancelled(be->self)) {
            break;
        }
    }
    return f->op == n_ops;
}
