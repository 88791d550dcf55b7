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
} dendp_forward;

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

static void dendp_forward_layer(dendp_forward *f, const dendp_row *rows, uint32_t n, uint32_t layer) {
    const dendp_config *c = &f->model->config;
    const dendp_layer *w = &f->model->layers[layer];
    const dendp_backend *be = f->backend;
    dendp_scratch *s = &f->scratch;
    uint32_t D = c->n_embd, d = c->head_dim, H = c->n_heads, G = c->n_kv_heads, F = c->n_ff;
    size_t ld = (size_t)(H + 2 * G) * d;
    dendp_layer_view view = dendp_forward_view(f, layer);
    dendp_linear linear;

    be->norm(be->self, s->x, w->attn_norm, c->norm_eps, n, D, s->h);
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 3;
    linear.part[0] = &w->q;
    linear.part[1] = &w->k;
    linear.part[2] = &w->v;
    linear.bias[0] = w->q_bias;
    linear.bias[1] = w->k_bias;
    linear.bias[2] = w->v_bias;
    be->matmul(be->self, &linear, s->h, D, n, s->qkv, ld);
    be->rotate(be->self, &view, s->angles[dendp_config_slides(c, layer)], c->n_rot, c->family->rope, n,
               s->qkv, ld);
    be->kv_write(be->self, &view, f->cache, f->overlay, rows, n, s->qkv + (size_t)H * d,
                 s->qkv + (size_t)(H + G) * d, ld);
    be->attention(be->self, &view, f->cache, f->overlay, rows, n, s->qkv, ld, s->heads);
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 1;
    linear.part[0] = &w->o;
    linear.bias[0] = w->o_bias;
    be->matmul(be->self, &linear, s->heads, (size_t)H * d, n, s->h, D);
    if (w->attn_post_norm) {
        be->norm(be->self, s->h, w->attn_post_norm, c->norm_eps, n, D, s->h);
    }
    be->add(be->self, s->x, s->h, n, D);

    be->norm(be->self, s->x, w->ffn_norm, c->norm_eps, n, D, s->h);
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 2;
    linear.part[0] = &w->gate;
    linear.part[1] = &w->up;
    linear.bias[0] = w->gate_bias;
    linear.bias[1] = w->up_bias;
    be->matmul(be->self, &linear, s->h, D, n, s->gu, (size_t)2 * F);
    (c->family->gelu ? be->gelu_mul : be->silu_mul)(be->self, s->gu, n, F, s->ffn);
    memset(&linear, 0, sizeof linear);
    linear.n_parts = 1;
    linear.part[0] = &w->down;
    linear.bias[0] = w->down_bias;
    be->matmul(be->self, &linear, s->ffn, F, n, s->h, D);
    if (w->ffn_post_norm) {
        be->norm(be->self, s->h, w->ffn_post_norm, c->norm_eps, n, D, s->h);
    }
    be->add(be->self, s->x, s->h, n, D);
}

/* Runs n <= n_batch rows. Logits of rows that ask go to logits[logits_row][V]. */
static void dendp_forward_run(dendp_forward *f, const dendp_row *rows, uint32_t n, float *logits) {
    const dendp_config *c = &f->model->config;
    const dendp_backend *be = f->backend;
    dendp_scratch *s = &f->scratch;
    uint32_t r, layer, n_last = 0, D = c->n_embd;
    be->angles(be->self, s->freqs[0], c->rope.magnitude, c->n_rot, rows, n, s->angles[0]);
    if (s->angles[1] != s->angles[0]) {
        be->angles(be->self, s->freqs[1], c->rope_local.magnitude, c->n_rot, rows, n, s->angles[1]);
    }
    be->embed(be->self, &f->model->embd, rows, c->embd_scale, n, s->x, D);
    for (layer = 0; layer < c->n_layers; layer++) {
        dendp_forward_layer(f, rows, n, layer);
    }
    for (r = 0; r < n; r++) {
        if (rows[r].logits_row != DENDP_NONE) {
            memcpy(s->last + (size_t)n_last * D, s->x + (size_t)r * D, D * sizeof(float));
            s->out_rows[n_last++] = rows[r].logits_row;
        }
    }
    if (n_last > 0) {
        be->norm(be->self, s->last, f->model->out_norm, c->norm_eps, n_last, D, s->h);
        be->head(be->self, &f->model->head, s->h, n_last, D, logits, s->out_rows);
    }
}
