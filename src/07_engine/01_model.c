/* ==========================================================================
 * >>07.01 MODEL: a file becomes weights
 * ==========================================================================
 * Loading reads the file's metadata (02.02), the hyper-parameters and the list
 * of tensors that the family needs (02.04), the tokenizer (02.14), and then
 * packs every matrix into panels (03.01), the layout that the kernels stream.
 * After that the file is closed: a model holds its own memory, one block.
 *
 *     [ layers ][ vectors: norms, biases ][ panels of all matrices ]
 *
 * With keep_file_layout the third part is left out and the file stays open:
 * matrices are the file's own rows, which the engine packs as it goes. Behind
 * a reader there are no bytes to point at, so the third part holds the rows.
 * Offsets were checked when the file was opened, and no value of a matrix
 * leads anywhere, so a file that is written to meanwhile does no harm beyond
 * wrong numbers. One that shrinks is another matter: dend_model_desc.no_mmap.
 *
 * The layout is one function (dendp_model_place), run once to measure and once
 * to place. Which tensor goes where is one line for each role.
 * ======================================================================== */

/* The weights of one layer. Vectors are f32; absent ones are NULL. */
typedef struct dendp_layer {
    const float *attn_norm, *ffn_norm;              /* [D] */
    const float *attn_post_norm, *ffn_post_norm;    /* [D]: of what is added to the stream */
    const float *q_norm, *k_norm;                   /* [d]: of each head */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* [H*d], [G*d], [G*d], [D] */
    const float *gate_bias, *up_bias, *down_bias;   /* [F], [F], [D] */
    dendp_panels q, k, v, o;                        /* [H*d][D], [G*d][D], [G*d][D], [D][H*d] */
    dendp_panels gate, up, down;                    /* [F][D], [F][D], [D][F] */
} dendp_layer;

struct dend_model {
    dend_allocator allocator;
    dendp_config config;
    bool has_weights, has_tokenizer;
    dendp_tokenizer tokenizer;
    dendp_chat chat;
    char name[128], architecture[32];
    uint64_t n_params;
    uint64_t fingerprint; /* dendp_model_fingerprint */
    void *memory;         /* layers, vectors, panels */
    uint64_t memory_bytes;
    bool file_layout;   /* matrices are the file's rows, in `file` or in `memory` */
    dendp_file file;    /* with file_layout: what the rows lie in, unless it is only a reader */
    dendp_file *shards; /* [n_shards] more of that, of models in several files */
    uint32_t n_shards;
    uint64_t panel_bytes;    /* of the largest panel of any matrix */
    dendp_layer *layers;     /* [L] */
    const float *out_norm;   /* [D] */
    const float *rope_freqs; /* [n_rot/2] divisors, or NULL */
    dendp_panels embd, head; /* [V][D]; equal when the head is tied */
};

/* Where the model keeps the vector of a role, or NULL for matrices. */
static const float **dendp_model_vector(dend_model *m, dendp_tensor_role role, uint32_t layer) {
    dendp_layer *l = m->layers ? &m->layers[layer] : NULL;
    switch (role) {
    case DENDP_TENSOR_OUT_NORM:
        return &m->out_norm;
    case DENDP_TENSOR_ROPE_FREQS:
        return &m->rope_freqs;
    case DENDP_TENSOR_ATTN_NORM:
        return l ? &l->attn_norm : NULL;
    case DENDP_TENSOR_FFN_NORM:
        return l ? &l->ffn_norm : NULL;
    case DENDP_TENSOR_Q_BIAS:
        return l ? &l->q_bias : NULL;
    case DENDP_TENSOR_K_BIAS:
        return l ? &l->k_bias : NULL;
    case DENDP_TENSOR_V_BIAS:
        return l ? &l->v_bias : NULL;
    case DENDP_TENSOR_O_BIAS:
        return l ? &l->o_bias : NULL;
    case DENDP_TENSOR_Q_NORM:
        return l ? &l->q_norm : NULL;
    case DENDP_TENSOR_K_NORM:
        return l ? &l->k_norm : NULL;
    case DENDP_TENSOR_ATTN_POST_NORM:
        return l ? &l->attn_post_norm : NULL;
    case DENDP_TENSOR_GATE_BIAS:
        return l ? &l->gate_bias : NULL;
    case DENDP_TENSOR_UP_BIAS:
        return l ? &l->up_bias : NULL;
    case DENDP_TENSOR_DOWN_BIAS:
        return l ? &l->down_bias : NULL;
    case DENDP_TENSOR_FFN_POST_NORM:
        return l ? &l->ffn_post_norm : NULL;
    default:
        return NULL;
    }
}

/* Where it keeps the matrix of a role, or NULL for vectors. */
static dendp_panels *dendp_model_matrix(dend_model *m, dendp_tensor_role role, uint32_t layer) {
    dendp_layer *l = m->layers ? &m->layers[layer] : NULL;
    switch (role) {
    case DENDP_TENSOR_EMBD:
        return &m->embd;
    case DENDP_TENSOR_HEAD:
        return &m->head;
    case DENDP_TENSOR_Q:
        return l ? &l->q : NULL;
    case DENDP_TENSOR_K:
        return l ? &l->k : NULL;
    case DENDP_TENSOR_V:
        return l ? &l->v : NULL;
    case DENDP_TENSOR_O:
        return l ? &l->o : NULL;
    case DENDP_TENSOR_GATE:
        return l ? &l->gate : NULL;
    case DENDP_TENSOR_UP:
        return l ? &l->up : NULL;
    case DENDP_TENSOR_DOWN:
        return l ? &l->down : NULL;
    default:
        return NULL;
    }
}

/* Lays out all weights. With a base: places panels and decodes vectors. */
static dend_status dendp_model_place(dend_model *m, const dendp_gguf *g, dendp_carver *c, dend_error *err) {
    const dendp_config *cfg = &m->config;
    uint32_t role, layer;
    m->layers = (dendp_layer *)dendp_carve(c, cfg->n_layers, sizeof *m->layers);
    if (m->layers) {
        memset(m->layers, 0, cfg->n_layers * sizeof *m->layers);
    }
    for (role = 0; role < DENDP_N_TENSOR_ROLES; role++) {
        const dendp_tensor_spec *spec = &dendp_tensor_specs[role];
        for (layer = 0; layer < dendp_spec_count(spec, cfg); layer++) {
            const dendp_gguf_tensor *t = dendp_config_tensor(g, spec, layer);
            dendp_panels *matrix = dendp_model_matrix(m, spec->role, layer);
            const float **vector = dendp_model_vector(m, spec->role, layer);
            if (spec->rows == DENDP_EXTENT_ONE) {
                float *data = (float *)dendp_carve(c, t->n_elems, sizeof(float));
                if (data && vector) {
                    unsigned char half[2 * 1024];
                    uint64_t done, n;
                    for (done = 0; done < t->n_elems; done += n) {
                        uint64_t width = t->type->block_bytes;
                        n = t->n_elems - done < 512 ? t->n_elems - done : 512;
                        if (dendp_gguf_read_tensor(g, t, done * width, n * width, half) != DEND_OK) {
                            return DENDP_FAIL(err, DEND_ERR_IO, "weights cannot be read", t->offset);
                        }
                        t->type->decode(half, n, data + done);
                    }
                    *vector = data;
                }
            } else {
                dendp_panels panels;
                uint64_t bytes;
                unsigned char *data;
                dend_status status = dendp_panels_plan(&panels, t->type->id, (uint32_t)t->dims[1],
                                                       (uint32_t)t->dims[0], &bytes);
                if (status != DEND_OK) {
                    return DENDP_FAIL(err, status, "no kernel for this tensor", t->where);
                }
                m->panel_bytes = panels.panel_bytes > m->panel_bytes ? panels.panel_bytes : m->panel_bytes;
                panels.rows = m->file_layout ? dendp_gguf_tensor_data(g, t) : NULL;
                if (!panels.rows) {
                    data = (unsigned char *)dendp_carve(c, m->file_layout ? t->n_bytes : bytes, 1);
                    if (data && m->file_layout &&
                        dendp_gguf_read_tensor(g, t, 0, t->n_bytes, data) != DEND_OK) {
                        return DENDP_FAIL(err, DEND_ERR_IO, "weights cannot be read", t->offset);
                    }
                    panels.rows = m->file_layout ? data : NULL;
                    panels.data = m->file_layout ? NULL : data;
                }
                if (c->base && matrix) {
                    *matrix = panels;
                }
            }
        }
    }
    if (cfg->tied_head) {
        m->head = m->embd;
    }
    return c->overflow ? DENDP_FAIL(err, DEND_ERR_MEMORY, "weights are too large for this system", 0)
                       : DEND_OK;
}

/* Packing a matrix, panels per task; `rows` of a task come from the file's
 * memory, or through the reader into a buffer of the task's own. */
typedef struct dendp_pack {
    const dendp_gguf *g;
    const dendp_gguf_tensor *t;
    const dendp_panels *panels;
    const dend_allocator *allocator;
    uint32_t failed; /* a dend_status, negated */
} dendp_pack;

#define DENDP_PACK_PANELS 16u /* panels of one task */

static void dendp_pack_task(void *ctx, uint32_t index) {
    dendp_pack *p = (dendp_pack *)ctx;
    uint32_t first = index * DENDP_PACK_PANELS,
             n = dendp_min_u32(DENDP_PACK_PANELS, p->panels->n_panels - first);
    uint32_t n_rows = dendp_min_u32(n * DENDP_LANES, p->panels->n_rows - first * DENDP_LANES);
    uint64_t at = (uint64_t)first * DENDP_LANES * p->panels->file_row_bytes,
             bytes = n_rows * p->panels->file_row_bytes;
    const unsigned char *file = dendp_gguf_tensor_data(p->g, p->t);
    union {
        const unsigned char *from;
        unsigned char *to;
    } data;
    data.from = p->panels->data;
    if (file) {
        dendp_panels_pack(p->panels, data.to, file + at, first, n);
    } else {
        unsigned char *rows = (unsigned char *)dendp_alloc(p->allocator, bytes);
        dend_status status = rows ? dendp_gguf_read_tensor(p->g, p->t, at, bytes, rows) : DEND_ERR_MEMORY;
        if (status == DEND_OK) {
            dendp_panels_pack(p->panels, data.to, rows, first, n);
        } else {
            dendp_atomic_store(&p->failed, (uint32_t) - (int32_t)status);
        }
        dendp_free(p->allocator, rows, bytes);
    }
}

/* Packs every matrix. Callback sources are read by one thread, in file order. */
static dend_status dendp_model_pack(dend_model *m, const dendp_gguf *g, const dend_log *log,
                                    dend_error *err) {
    const dend_jobs no_jobs = {NULL, NULL, 0};
    dendp_pool *pool = (dendp_pool *)dendp_alloc(&m->allocator, sizeof *pool);
    uint32_t role, layer;
    dend_status status;
    if (!pool) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for threads", 0);
    }
    status = dendp_pool_open(pool, dendp_gguf_in_memory(g) ? dendp_cpu_count() : 1, &no_jobs, NULL);
    if (status != DEND_OK) { /* slower, not worse */
        dendp_log_line line;
        if (dendp_log_begin(&line, log, "threads cannot be started: one packs the weights")) {
            dendp_log_end(&line, log, DEND_LOG_WARNING);
        }
        status = dendp_pool_open(pool, 1, &no_jobs, err);
    }
    for (role = 0; role < DENDP_N_TENSOR_ROLES && status == DEND_OK; role++) {
        const dendp_tensor_spec *spec = &dendp_tensor_specs[role];
        uint32_t count = spec->rows == DENDP_EXTENT_ONE ? 0 : dendp_spec_count(spec, &m->config);
        for (layer = 0; layer < count && status == DEND_OK; layer++) {
            dendp_pack p;
            memset(&p, 0, sizeof p);
            p.g = g;
            p.t = dendp_config_tensor(g, spec, layer);
            p.panels = dendp_model_matrix(m, spec->role, layer);
            p.allocator = &m->allocator;
            dendp_pool_run(pool, dendp_pack_task, &p, dendp_div_up(p.panels->n_panels, DENDP_PACK_PANELS));
            if (p.failed) {
                status = (dend_status) - (int32_t)p.failed;
                DENDP_FAIL(err, status, "weights cannot be read", p.t->offset);
            }
        }
    }
    dendp_pool_close(pool);
    dendp_free(&m->allocator, pool, sizeof *pool);
    return status;
}

DEND_IMPL void dend_model_free(dend_model *model) {
    if (model) {
        dend_allocator allocator = model->allocator;
        dendp_tokenizer_free(&model->tokenizer);
        dendp_free(&allocator, model->memory, model->memory_bytes);
        dendp_file_close(&model->file);
        dendp_gguf_close_shards(model->shards, model->n_shards, &allocator);
        dendp_free(&allocator, model, sizeof *model);
    }
}

/* Copies a metadata string, cut to fit, always 0-terminated. */
static void dendp_model_text(const dendp_gguf *g, const char *key, char *dst, size_t cap) {
    const char *s;
    uint64_t len;
    dst[0] = 0;
    if (dendp_gguf_str(g, key, &s, &len) == DENDP_FOUND) {
        len = len < cap - 1 ? len : cap - 1;
        memcpy(dst, s, (size_t)len);
        dst[len] = 0;
    }
}

/* The form of conversations, if the file's template is one that we know. */
static void dendp_model_load_chat(dend_model *m, const dendp_gguf *g) {
    const char *s;
    uint64_t len;
    if (dendp_gguf_str(g, "tokenizer.chat_template", &s, &len) == DENDP_FOUND) {
        dendp_chat_recognise(&m->chat, s, (size_t)len);
    }
}

/* Reads the configuration, and measures what the weights will take. */
static dend_status dendp_model_measure(dend_model *m, const dendp_gguf *g, dend_error *err) {
    dendp_carver c;
    dend_status status = dendp_config_load(&m->config, g, err);
    if (status != DEND_OK) {
        return status;
    }
    if (m->has_tokenizer && m->tokenizer.n_vocab > m->config.n_vocab) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "the tokenizer has more tokens than the embedding has rows",
                          0);
    }
    memset(&c, 0, sizeof c);
    status = dendp_model_place(m, g, &c, err);
    m->memory_bytes = c.used;
    return status;
}

/* Weights: measures, allocates, places, packs. */
static dend_status dendp_model_load_weights(dend_model *m, const dendp_gguf *g, const dend_log *log,
                                            dend_error *err) {
    dendp_carver c;
    uint32_t i;
    dend_status status = dendp_model_measure(m, g, err);
    if (status != DEND_OK) {
        return status;
    }
    m->memory = dendp_alloc(&m->allocator, m->memory_bytes);
    if (!m->memory) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the weights", 0);
    }
    memset(&c, 0, sizeof c);
    c.base = (unsigned char *)m->memory;
    status = dendp_model_place(m, g, &c, err);
    for (i = 0; m->rope_freqs && status == DEND_OK && i < m->config.n_rot / 2; i++) {
        if (!dendp_finite(m->rope_freqs[i]) || !(m->rope_freqs[i] > 0.0f)) { /* they divide */
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "rope_freqs holds a number that is not positive", 0);
        }
    }
    if (status == DEND_OK && !m->file_layout) {
        status = dendp_model_pack(m, g, log, err);
    }
    for (i = 0; i < g->n_tensors; i++) {
        m->n_params += g->tensors[i].n_elems;
    }
    m->has_weights = status == DEND_OK;
    return status;
}

/* A hash of the hyper-parameters and of three rows of every matrix, as decoded:
 * the same whether the matrices are packed or not. Tells models apart, and does
 * not vouch for their files.  row [the widest matrix's columns] */
static uint64_t dendp_model_fingerprint(dend_model *m, float *row) {
    const dendp_config *c = &m->config;
    uint32_t words[12], i, layer, role;
    float numbers[13];
    dendp_check h;
    words[0] = c->n_vocab;
    words[1] = c->n_layers;
    words[2] = c->n_embd;
    words[3] = c->n_heads;
    words[4] = c->n_kv_heads;
    words[5] = c->head_dim;
    words[6] = c->n_rot;
    words[7] = c->n_ff;
    words[8] = c->tied_head;
    words[9] = c->tensors;
    words[10] = c->window;
    words[11] = c->n_ctx_orig;
    numbers[0] = c->norm_eps;
    numbers[1] = c->embd_scale;
    numbers[2] = c->score_width;
    for (i = 0; i < 2; i++) {
        const dendp_rope *rope = i ? &c->rope_local : &c->rope;
        numbers[3 + i * 5] = rope->base;
        numbers[4 + i * 5] = rope->scale;
        numbers[5 + i * 5] = rope->magnitude;
        numbers[6 + i * 5] = rope->yarn ? rope->low : 0.0f;
        numbers[7 + i * 5] = rope->yarn ? rope->high : 0.0f;
    }
    dendp_check_begin(&h);
    dendp_check_add(&h, m->architecture, strlen(m->architecture) + 1);
    dendp_check_add(&h, words, sizeof words);
    dendp_check_add(&h, numbers, sizeof numbers);
    dendp_check_add(&h, c->sliding, sizeof c->sliding);
    for (role = 0; role < DENDP_N_TENSOR_ROLES; role++) {
        const dendp_tensor_spec *spec = &dendp_tensor_specs[role];
        for (layer = 0; spec->rows != DENDP_EXTENT_ONE && layer < dendp_spec_count(spec, c); layer++) {
            const dendp_panels *matrix = dendp_model_matrix(m, spec->role, layer);
            dendp_check_add(&h, &matrix->type->id, sizeof matrix->type->id);
            for (i = 0; i < 3; i++) {
                dendp_panels_get_row(matrix, (uint32_t)((uint64_t)(matrix->n_rows - 1) * i / 2), row);
                dendp_check_add(&h, row, matrix->k * sizeof(float));
            }
        }
    }
    return dendp_check_end(&h);
}

/* Fills in the fingerprint of a model with weights. */
static dend_status dendp_model_mark(dend_model *m, dend_error *err) {
    const dendp_config *c = &m->config;
    uint64_t bytes =
        dendp_max_u32(dendp_max_u32(c->n_embd, c->n_ff), c->n_heads * c->head_dim) * (uint64_t)sizeof(float);
    float *row = (float *)dendp_alloc(&m->allocator, bytes);
    if (!row) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for a row of weights", 0);
    }
    m->fingerprint = dendp_model_fingerprint(m, row);
    dendp_free(&m->allocator, row, bytes);
    return DEND_OK;
}

/* The bytes of its files that the model holds; with mapped = true those that it has mapped, too. */
static uint64_t dendp_model_file_bytes(const dend_model *m, bool mapped) {
    uint64_t bytes = m->file.owned || mapped ? m->file.size : 0;
    uint32_t i;
    for (i = 0; i < m->n_shards; i++) {
        bytes += m->shards[i].owned || mapped ? m->shards[i].size : 0;
    }
    return bytes;
}

/* What the weights take of the model's own memory. */
static uint64_t dendp_model_bytes(const dend_model *m) {
    return m->memory_bytes + dendp_model_file_bytes(m, false);
}

/* All that the model has asked its allocator for and keeps. */
static uint64_t dendp_model_all_bytes(const dend_model *m) {
    return sizeof *m + m->tokenizer.block_bytes + m->n_shards * sizeof *m->shards + dendp_model_bytes(m);
}

/* Says what has been loaded, and what it lacks. */
static void dendp_model_log(const dend_model *m, const dend_log *log, uint64_t ns) {
    dendp_log_line line;
    if (dendp_log_begin(&line, log, "model: ")) {
        dendp_text_put_foreign(&line.text, m->architecture);
        dendp_text_put(&line.text, ", ");
        dendp_text_put_count(&line.text, m->config.n_layers, "layer", "layers");
        dendp_text_put(&line.text, ", ");
        dendp_text_put_number(&line.text, m->n_params / 1000000);
        dendp_text_put(&line.text, ".");
        dendp_text_put_number(&line.text, m->n_params / 100000 % 10);
        dendp_text_put(&line.text, " M parameters, ");
        dendp_text_put_bytes(&line.text, dendp_model_bytes(m));
        dendp_text_put(&line.text, " of its own, loaded in ");
        dendp_text_put_number(&line.text, ns / 1000000);
        dendp_text_put(&line.text, " ms");
        dendp_log_end(&line, log, DEND_LOG_INFO);
    }
    if (!m->has_tokenizer && dendp_log_begin(&line, log, "the model carries no tokenizer")) {
        dendp_log_end(&line, log, DEND_LOG_WARNING);
    }
}

#ifndef DEND_NO_FOLDERS
/* A file beside tokenizer.json. */
typedef struct dendp_model_text_file {
    const char *name;
    const char **text; /* where its text goes */
    size_t *n;
} dendp_model_text_file;

/* A template that stands in a JSON string. */
static dend_status dendp_model_json_chat(dend_model *m, const dendp_json *string, dend_error *err) {
    char *text = (char *)dendp_alloc(&m->allocator, string->len + 1);
    if (!text) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the chat template", 0);
    }
    if (dendp_json_copy(string, text, string->len + 1)) {
        dendp_chat_recognise(&m->chat, text, (size_t)string->len);
    }
    dendp_free(&m->allocator, text, string->len + 1);
    return DEND_OK;
}

/* The form of conversations of a folder: chat_template.jinja, or else chat_template in tokenizer_config.json, a
 * string or a list of {name, template} of which "default" counts. One that cannot be read is none. */
static dend_status dendp_model_folder_chat(dend_model *m, dendp_folder *f, const char *config,
                                           size_t n_config, dend_error *err) {
    dendp_file file;
    dendp_json j, value, name;
    dend_status status = DEND_OK;
    memset(&file, 0, sizeof file);
    if (f->dir) {
        status = dendp_folder_file(f, "chat_template.jinja", DENDP_HF_MAX_CONFIG, true, &file, err);
    }
    if (status == DEND_OK && file.size > 0) {
        dendp_chat_recognise(&m->chat, (const char *)file.data, (size_t)file.size);
    } else if (status == DEND_OK && n_config > 0) {
        dendp_json_open(&j, config, n_config, 0);
        if (dendp_json_next(&j, NULL) != DEND_OK || j.kind != DENDP_JSON_OBJECT ||
            dendp_json_member(&j, "chat_template", &value, NULL) != DEND_OK) {
            return DEND_OK;
        }
        if (value.kind == DENDP_JSON_STRING) {
            status = dendp_model_json_chat(m, &value, err);
        }
        while (value.kind != DENDP_JSON_STRING && value.kind != DENDP_JSON_END && /* a list of templates */
               dendp_json_next(&value, NULL) == DEND_OK && value.kind == DENDP_JSON_OBJECT) {
            if (dendp_json_member(&value, "name", &name, NULL) == DEND_OK && name.kind == DENDP_JSON_STRING &&
                dendp_json_is(&name, "default") &&
                dendp_json_member(&value, "template", &name, NULL) == DEND_OK &&
                name.kind == DENDP_JSON_STRING) {
                status = dendp_model_json_chat(m, &name, err);
                break;
            }
            if (dendp_json_skip(&value, NULL) != DEND_OK) {
                break;
            }
        }
    }
    dendp_file_close(&file);
    return status;
}

/* The tokenizer of a folder, or of tokenizer_json in memory. A folder need not have one. */
static dend_status dendp_model_folder_tokenizer(dend_model *m, dendp_folder *f, dend_error *err) {
    enum { N_FILES = 4 };
    const dend_model_desc *desc = f->desc;
    dendp_tok_json_files files;
    const dendp_model_text_file table[N_FILES] = {
        {"tokenizer.json", &files.tokenizer, &files.n_tokenizer},
        {"tokenizer_config.json", &files.config, &files.n_config},
        {"special_tokens_map.json", &files.special, &files.n_special},
        {"generation_config.json", &files.generation, &files.n_generation},
    };
    dendp_file opened[N_FILES];
    uint32_t i;
    dend_status status = DEND_OK;
    memset(&files, 0, sizeof files);
    memset(opened, 0, sizeof opened);
    files.tokenizer = desc->tokenizer_json;
    files.n_tokenizer = desc->tokenizer_json_size;
    files.model = (const char *)f->config.data;
    files.n_model = (size_t)f->config.size;
    for (i = 0; i < N_FILES && f->dir && status == DEND_OK; i++) {
        status = dendp_folder_file(f, table[i].name, DENDP_HF_MAX_INDEX, true, &opened[i], err);
        status = dendp_in_file(status, table[i].name, err);
        *table[i].text = (const char *)opened[i].data;
        *table[i].n = (size_t)opened[i].size;
    }
    if (status == DEND_OK && files.tokenizer) {
        status = dendp_tokenizer_load_json(&m->tokenizer, &files, &m->allocator, err);
        status = dendp_in_file(status, "a file of the tokenizer", err);
        m->has_tokenizer = status == DEND_OK;
        if (status == DEND_OK) {
            status = dendp_model_folder_chat(m, f, files.config, files.n_config, err);
        }
    } else if (status == DEND_OK && desc->vocab_only) {
        status = DENDP_FAIL(err, DEND_ERR_IO, "there is no tokenizer.json", 0);
    }
    for (i = 0; i < N_FILES; i++) {
        dendp_file_close(&opened[i]);
    }
    return status;
}
#endif

/* The catalogue of a description, and the tokenizer where there is one. */
static dend_status dendp_model_open(dend_model *m, dendp_gguf *g, const dend_model_desc *d, dend_error *err) {
    dend_status status = dendp_model_desc_check(d, err);
    if (status != DEND_OK) {
        return status;
    }
    if ((unsigned)d->quantise > DEND_WEIGHT_Q4_0) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "quantise is no type of weights", 0);
    }
    if (d->path && (d->config_json || d->tokenizer_json)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "config_json and tokenizer_json go with data or reader", 0);
    }
    if (!d->path && d->tokenizer_json && !d->config_json) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "tokenizer_json goes with config_json", 0);
    }
    if ((d->config_json_size && !d->config_json) || (d->tokenizer_json_size && !d->tokenizer_json)) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a size without its text", 0);
    }
#ifndef DEND_NO_FOLDERS
    if (dendp_folder_is(d)) {
        dendp_folder folder;
        status = dendp_folder_open(&folder, g, d, err);
        if (status == DEND_OK) {
            status = dendp_model_folder_tokenizer(m, &folder, err);
            dendp_folder_close(&folder);
        }
        return status;
    }
#else
    if (d->config_json || (d->path && dendp_path_is_folder(d->path))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                          "safetensors are left out of this build (DEND_NO_FOLDERS)", 0);
    }
#endif
    status = dendp_gguf_open(g, d, err);
    if (status == DEND_OK && (d->vocab_only || dendp_gguf_find(g, "tokenizer.ggml.model"))) {
        status = dendp_tokenizer_load(&m->tokenizer, g, &m->allocator, err);
        m->has_tokenizer = status == DEND_OK;
        dendp_model_load_chat(m, g);
    }
    return status;
}

/* A model of a description; with plan = true one that knows its sizes, and has no weights. */
static dend_status dendp_model_make(const dend_model_desc *desc, bool plan, dend_model **out,
                                    dend_error *err) {
    dend_model_desc d;
    dendp_gguf g;
    dend_model *m = NULL;
    uint64_t start = dendp_now_ns();
    dend_status status;
    if (!desc || !out) {
        return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "desc and out must be given", 0);
    }
    *out = NULL;
    memset(&g, 0, sizeof g);
    d = *desc;
    d.no_mmap = d.no_mmap && !plan;
    status = dendp_allocator_resolve(&d.allocator, err);
    if (status != DEND_OK) {
        return status;
    }
    m = (dend_model *)dendp_alloc(&d.allocator, sizeof *m);
    if (!m) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the model", 0);
    }
    memset(m, 0, sizeof *m);
    m->allocator = d.allocator;
    status = dendp_model_open(m, &g, &d, err);
    if (status == DEND_OK) {
        dendp_model_text(&g, "general.name", m->name, sizeof m->name);
        dendp_model_text(&g, "general.architecture", m->architecture, sizeof m->architecture);
    }
    if (status == DEND_OK && !d.vocab_only && d.quantise != DEND_WEIGHT_DEFAULT) {
        status =
            dendp_gguf_quantise(&g, d.quantise == DEND_WEIGHT_Q8_0 ? DENDP_TYPE_Q8_0 : DENDP_TYPE_Q4_0, err);
    }
    if (status == DEND_OK && !d.vocab_only) {
        m->file_layout = d.keep_file_layout;
        status = plan ? dendp_model_measure(m, &g, err) : dendp_model_load_weights(m, &g, &d.log, err);
    }
    if (status == DEND_OK && m->has_weights) {
        status = dendp_model_mark(m, err);
    }
    if (status == DEND_OK && m->file_layout &&
        dendp_gguf_in_memory(&g)) { /* files are the model's from now on */
        m->file = g.file;
        m->shards = g.shards;
        m->n_shards = g.n_shards;
        memset(&g.file, 0, sizeof g.file);
        g.shards = NULL;
        g.n_shards = 0;
    }
    dendp_gguf_close(&g);
    if (status != DEND_OK) {
        dend_model_free(m);
        return status;
    }
    if (!plan) {
        dendp_model_log(m, &d.log, dendp_now_ns() - start);
    }
    *out = m;
    return DEND_OK;
}

DEND_IMPL dend_status dend_model_load(const dend_model_desc *desc, dend_model **out, dend_error *err) {
    return dendp_model_make(desc, false, out, err);
}

DEND_IMPL void dend_model_get_info(const dend_model *model, dend_model_info *out) {
    const dendp_config *c;
    uint32_t layer = 0;
    if (!out) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (!model) {
        return;
    }
    c = &model->config;
    out->architecture = model->architecture;
    out->name = model->name;
    out->n_vocab = model->has_weights ? c->n_vocab : model->tokenizer.n_vocab;
    out->n_layers = c->n_layers;
    out->n_embd = c->n_embd;
    out->n_heads = c->n_heads;
    out->n_kv_heads = c->n_kv_heads;
    out->head_dim = c->head_dim;
    out->n_ff = c->n_ff;
    out->n_ctx_train = c->n_ctx_train;
    out->window = c->window;
    while (layer < c->n_layers) {
        out->n_window_layers += dendp_config_slides(c, layer++);
    }
    out->bos = model->has_tokenizer ? model->tokenizer.bos : -1;
    out->eos = model->has_tokenizer ? model->tokenizer.eos : -1;
    out->eot = model->has_tokenizer ? model->tokenizer.eot : -1;
    out->add_bos = model->has_tokenizer && model->tokenizer.add_bos;
    out->has_weights = model->has_weights;
    out->n_params = model->n_params;
    out->weight_bytes = dendp_model_bytes(model);
    out->file_layout = model->file_layout;
    out->fingerprint = model->fingerprint;
}

/* False also for a file whose tokenizer is named, and empty. */
static bool dendp_model_has_words(const dend_model *model) {
    return model->has_tokenizer && model->tokenizer.n_vocab > 0;
}

DEND_IMPL dend_status dend_tokenize(const dend_model *model, const char *text, size_t n_bytes, uint32_t flags,
                                    int32_t *out, size_t cap, size_t *n_out) {
    size_t n = 0;
    dend_status status;
    if (!model || (!text && n_bytes) || (!out && cap)) {
        return DEND_ERR_ARGUMENT;
    }
    n_bytes = n_bytes == SIZE_MAX ? strlen(text) : n_bytes;
    if (!model->has_tokenizer) {
        return DEND_ERR_UNSUPPORTED;
    }
    status = dendp_tokenizer_encode(&model->tokenizer, text, n_bytes, flags, out, cap, &n);
    if (n_out) {
        *n_out = n;
    }
    return status;
}

DEND_IMPL const char *dend_token_bytes(const dend_model *model, int32_t token, size_t *n_bytes) {
    if (n_bytes) {
        *n_bytes = 0;
    }
    return model && model->has_tokenizer ? dendp_tokenizer_bytes(&model->tokenizer, token, n_bytes) : NULL;
}

DEND_IMPL const char *dend_token_text(const dend_model *model, int32_t token, size_t *n_bytes) {
    if (n_bytes) {
        *n_bytes = 0;
    }
    return model && model->has_tokenizer ? dendp_tokenizer_text(&model->tokenizer, token, n_bytes) : NULL;
}

DEND_IMPL dend_status dend_detokenize(const dend_model *model, const int32_t *tokens, size_t n,
                                      uint32_t flags, char *out, size_t cap, size_t *n_out) {
    size_t needed = 0;
    dend_status status;
    if (!model) {
        return DEND_ERR_ARGUMENT;
    }
    if (!model->has_tokenizer) {
        return DEND_ERR_UNSUPPORTED;
    }
    status = dendp_tokenizer_decode(&model->tokenizer, tokens, n, flags, out, cap, &needed);
    if (n_out) {
        *n_out = needed;
    }
    return status;
}

DEND_IMPL bool dend_token_is_end(const dend_model *model, int32_t token) {
    return model && model->has_tokenizer && dendp_tokenizer_is_end(&model->tokenizer, token);
}

DEND_IMPL const char *dend_chat_family(const dend_model *model) {
    return model && model->chat.style ? model->chat.style->name : NULL;
}

DEND_IMPL dend_status dend_chat_format(const dend_model *model, const char *family,
                                       const dend_chat_message *messages, size_t n, uint32_t flags, char *out,
                                       size_t cap, size_t *n_out) {
    dendp_chat_writer w;
    dend_status status;
    if (!model || (!out && cap)) {
        return DEND_ERR_ARGUMENT;
    }
    if (!dendp_model_has_words(model)) {
        return DEND_ERR_UNSUPPORTED;
    }
    memset(&w, 0, sizeof w);
    w.out = out;
    w.cap = cap;
    status = dendp_chat_format(&model->chat, &model->tokenizer, family, messages, n, flags, &w);
    if (status != DEND_OK) {
        return status;
    }
    if (n_out) {
        *n_out = w.n;
    }
    return w.n > cap ? DEND_ERR_BUFFER : DEND_OK;
}

DEND_IMPL dend_status dend_chat_tokenize(const dend_model *model, const char *family,
                                         const dend_chat_message *messages, size_t n, uint32_t flags,
                                         int32_t *out, size_t cap, size_t *n_out) {
    dendp_chat_writer w;
    uint64_t bytes = 0;
    void *block = NULL;
    size_t n_tokens = 0;
    uint32_t add = flags & (DEND_CHAT_FOLLOWS | DEND_CHAT_AFTER_REPLY) ? 0 : DEND_TOKENIZE_ADD_BOS;
    dend_status status;
    if (!model || (!out && cap)) {
        return DEND_ERR_ARGUMENT;
    }
    if (!dendp_model_has_words(model)) {
        return DEND_ERR_UNSUPPORTED;
    }
    memset(&w, 0, sizeof w);
    status = dendp_chat_format(&model->chat, &model->tokenizer, family, messages, n, flags, &w);
    if (status == DEND_OK && w.n > 0) { /* measured: now the ranges, then the text */
        if (!dendp_mul(w.n_ranges, sizeof *w.ranges, &bytes) || !dendp_add(bytes, w.n, &bytes)) {
            return DEND_ERR_MEMORY;
        }
        block = dendp_alloc(&model->allocator, bytes);
        if (!block) {
            return DEND_ERR_MEMORY;
        }
        w.ranges = (dendp_tok_range *)block;
        w.cap_ranges = w.n_ranges;
        w.out = (char *)(w.ranges + w.n_ranges);
        w.cap = w.n;
        status = dendp_chat_format(&model->chat, &model->tokenizer, family, messages, n, flags, &w);
    }
    if (status == DEND_OK) {
        size_t n_bos = 0;
        const char *bos = dendp_tokenizer_text(&model->tokenizer, model->tokenizer.bos, &n_bos);
        if (bos && n_bos <= w.n && w.n_ranges > 0 && w.ranges[0].begin == 0 &&
            memcmp(w.out, bos, n_bos) == 0) {
            add = 0; /* the template has it */
        }
        status = dendp_tokenizer_encode_ranges(&model->tokenizer, w.out, w.n, w.ranges, w.n_ranges, add, out,
                                               cap, &n_tokens);
        if (n_out && (status == DEND_OK || status == DEND_ERR_BUFFER)) {
            *n_out = n_tokens;
        }
    }
    dendp_free(&model->allocator, block, bytes);
    return status;
}
