/* ==========================================================================
 * >>07.08 REPORT: what an engine runs on, in words
 * ==========================================================================
 * Every width, type and instruction set works, since the scalar kernels know
 * no limits. That is kind to whoever tries something odd and unkind to whoever
 * wonders why it is slow. So an engine can say which code serves what: a set
 * of kernels by its name, and "scalar: no fast kernel" where there is none.
 *
 * Where the fast kernels leave a rest to scalar code:
 *
 *     matmul     nowhere: panels are padded to whole groups
 *     V          columns behind the last multiple of 16 of a head, in all sets
 *     queries    for q8_0: what is behind the last multiple of 32 of a head
 *     norms      what is behind the last multiple of 16
 *     SiLU       what is behind the last multiple of 32 (AVX2), 16 (AVX-512), 4 (NEON)
 *
 * Embedding lookup, rotation, residual sums and the writing of K and V are
 * plain C that compilers vectorise as they can.
 * ======================================================================== */

static void dendp_text_put_kernels(dendp_text *t, const char *name) {
    dendp_text_put(t, name);
    dendp_text_put(t, strcmp(name, dendp_kernels_scalar.name) == 0 ? ": no fast kernel" : "");
}

/* "; the last 4 of 20 columns of V take scalar code", where a rest is left. */
static void dendp_text_put_rest(dendp_text *t, uint32_t n, uint32_t step, const char *what) {
    if (n % step) {
        dendp_text_put(t, "; the last ");
        dendp_text_put_number(t, n % step);
        dendp_text_put(t, " of ");
        dendp_text_put_number(t, n);
        dendp_text_put(t, what);
        dendp_text_put(t, " take scalar code");
    }
}

static const char *const dendp_form_names[DENDP_N_FORMS] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
                                                            "Q5_K", "Q6_K", "F32",  "F16",  "BF16"};

/* The set that a form's kernel belongs to: sets borrow from each other. */
static const char *dendp_form_kernel(const dendp_kernels *kn, dendp_form form) {
    static const dendp_kernels *const sets[] = {
        &dendp_kernels_scalar,
#if DENDP_X86
        &dendp_kernels_avx2,
#elif DENDP_ARM64
        &dendp_kernels_neon,
#endif
    };
    size_t i;
    for (i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (form < DENDP_N_QUANT_FORMS
                ? kn->quant[form] == sets[i]->quant[form]
                : kn->flt[form - DENDP_N_QUANT_FORMS] == sets[i]->flt[form - DENDP_N_QUANT_FORMS]) {
            return sets[i]->name;
        }
    }
    return kn->name;
}

static const char *dendp_vector_name(const dendp_vector_ops *ops) {
    if (ops == dendp_vector_ops_get(DEND_ISA_SCALAR)) {
        return dendp_kernels_scalar.name;
    }
#if DENDP_X86
    return ops == dendp_vector_ops_get(DEND_ISA_AVX2) ? "avx2" : "avx512";
#else
    return "neon";
#endif
}

/* Matrix i of a model, and where it has fewer: NULL. A tied head is no matrix of its own. */
static const dendp_panels *dendp_model_matrix_at(const dend_model *m, uint64_t i) {
    uint64_t first = m->config.tied_head ? 1 : 2;
    const dendp_layer *l;
    if (i < first) {
        return i == 0 ? &m->embd : &m->head;
    }
    i -= first;
    if (i / 7 >= m->config.n_layers) {
        return NULL;
    }
    l = &m->layers[i / 7];
    switch (i % 7) {
    case 0:
        return &l->q;
    case 1:
        return &l->k;
    case 2:
        return &l->v;
    case 3:
        return &l->o;
    case 4:
        return &l->gate;
    case 5:
        return &l->up;
    default:
        return &l->down;
    }
}

/* A line for every type that the model's matrices have in the file. */
static void dendp_report_types(const dend_engine *e, dendp_text *t) {
    const dendp_panels *w;
    uint32_t id;
    for (id = 0; id < 64; id++) {
        const dendp_panels *one = NULL;
        uint64_t n = 0, bytes = 0, i;
        for (i = 0; (w = dendp_model_matrix_at(e->model, i)) != NULL; i++) {
            if (w->type->id == id) {
                one = w;
                n++;
                bytes += w->rows ? w->n_rows * w->file_row_bytes : w->n_panels * w->panel_bytes;
            }
        }
        if (one) {
            dendp_text_put(t, "  ");
            dendp_text_put(t, one->type->name);
            dendp_text_put(t, " as ");
            dendp_text_put(t, dendp_form_names[one->form]);
            dendp_text_put(t, id == DENDP_TYPE_IQ4_XS || id == DENDP_TYPE_Q2_K ? " (rounded): " : ": ");
            dendp_text_put_count(t, n, "matrix, ", "matrices, ");
            dendp_text_put_bytes(t, bytes);
            dendp_text_put(t, ", ");
            dendp_text_put_kernels(t, dendp_form_kernel(e->cpu.kernels, one->form));
            dendp_text_put(t, "\n");
        }
    }
}

/* Kernel sets, and what they leave to scalar code. */
static void dendp_report_kernels(const dend_engine *e, dendp_text *t) {
    const dendp_config *c = &e->model->config;
    const char *best = dendp_kernels_get(DEND_ISA_DEFAULT)->name, *vectors = dendp_vector_name(e->cpu.ops);
    dendp_text_put(t, "matmul: ");
    dendp_text_put_kernels(t, e->cpu.kernels->name);
    if (strcmp(best, e->cpu.kernels->name) != 0) {
        dendp_text_put(t, " (this processor has ");
        dendp_text_put(t, best);
        dendp_text_put(t, ")");
    }
    dendp_text_put(t, "\nvectors: ");
    dendp_text_put_kernels(t, vectors);
    if (e->cpu.ops != dendp_vector_ops_get(DEND_ISA_SCALAR)) {
        uint32_t step = strcmp(vectors, "avx2") == 0 ? 32 : strcmp(vectors, "avx512") == 0 ? 16 : 4;
        dendp_text_put_rest(t, c->n_embd, 16, " in norms");
        dendp_text_put_rest(t, c->n_ff, step, " in SiLU");
    }
    dendp_text_put(t, "\n");
}

static void dendp_report_cache(const dend_engine *e, dendp_text *t) {
    const dendp_config *c = &e->model->config;
    const dendp_tile_ops *tiles = dendp_tile_ops_get(e->desc.isa);
    dendp_text_put(t, "KV: ");
    dendp_text_put(t, e->cache.desc.codec.name);
    dendp_text_put(t, ", ");
    dendp_text_put_count(t, e->desc.n_blocks, "block of ", "blocks of ");
    dendp_text_put_number(t, e->desc.block_tokens);
    dendp_text_put(t, " tokens\nattention: heads of ");
    dendp_text_put_number(t, c->head_dim);
    dendp_text_put(t, ", ");
    dendp_text_put_kernels(t, tiles->name);
    if (strcmp(tiles->name, dendp_kernels_scalar.name) != 0) {
        dendp_text_put_rest(t, c->head_dim, 16, " columns of V");
        dendp_text_put_rest(t, c->head_dim, e->desc.kv_type == DEND_KV_Q8_0 ? 32 : 1, " of a query");
    }
    dendp_text_put(t, "\n");
}

static void dendp_report_threads(const dend_engine *e, dendp_text *t) {
    dendp_cpus cpus;
    dendp_cpus_find(&cpus);
    dendp_text_put(t, "threads: ");
    if (e->desc.jobs.run) {
        dendp_text_put(t, "the caller's job system, ");
        dendp_text_put_count(t, e->pool.n_threads, "worker", "workers");
    } else {
        dendp_text_put_number(t, e->pool.n_threads);
    }
    dendp_text_put(t, "; this process may use ");
    dendp_text_put_count(t, cpus.n_processors, "processor on ", "processors on ");
    dendp_text_put_count(t, cpus.n_cores, "core", "cores");
    if (cpus.quota) {
        dendp_text_put(t, ", with a quota of ");
        dendp_text_put_number(t, cpus.quota);
    }
    dendp_text_put(t, "\n");
}

static void dendp_report_memory(const dend_engine *e, dendp_text *t) {
    dend_plan_info plan;
    if (dendp_engine_measure(&e->desc, &plan, NULL) != DEND_OK) {
        return; /* it was measured when it was created */
    }
    dendp_text_put(t, "memory: KV ");
    dendp_text_put_bytes(t, plan.kv_bytes);
    dendp_text_put(t, ", tables ");
    dendp_text_put_bytes(t, plan.table_bytes);
    dendp_text_put(t, ", scratch ");
    dendp_text_put_bytes(t, plan.scratch_bytes);
    dendp_text_put(t, ", together ");
    dendp_text_put_bytes(t, plan.total_bytes);
    dendp_text_put(t, "; weights ");
    dendp_text_put_bytes(t, plan.weight_bytes);
    dendp_text_put(t, "\n");
}

DEND_IMPL size_t dend_engine_report(const dend_engine *engine, char *out, size_t cap) {
    const dend_model *m;
    dendp_text t;
    t.out = out;
    t.cap = out ? cap : 0;
    t.n = 0;
    if (t.cap) {
        out[0] = 0;
    }
    if (!engine) {
        return 0;
    }
    m = engine->model;
    dendp_text_put(&t, "dendrite " DEND_VERSION_STRING ": ");
    dendp_text_put_foreign(&t, m->architecture);
    dendp_text_put(&t, " \"");
    dendp_text_put_foreign(&t, m->name);
    dendp_text_put(&t, "\", ");
    dendp_text_put_count(&t, m->config.n_layers, "layer\n", "layers\n");
    dendp_report_kernels(engine, &t);
    dendp_text_put(&t, m->file_layout ? "weights: as in the file, packed at every use\n"
                                      : "weights: packed when loaded\n");
    dendp_report_types(engine, &t);
    dendp_report_cache(engine, &t);
    dendp_report_threads(engine, &t);
    dendp_report_memory(engine, &t);
    return t.n;
}
