/* Room 02.04: hyper-parameters and the tensor check, on models built here and bent in one place each. */

/* A model and the one thing that is odd about it. Zeroed parts of `odd` mean nothing odd. */
typedef struct config_case {
    const char *arch;
    uint32_t V, L, D, H, G, d, F;
    bool bias, other_biases, qk_norms, post_norms, head, rope_freqs, no_tensors;
    const char *no_key; /* left out */
    /* a key more, or another value of one that exists; '*' at the start stands for "<arch>." */
    const char *key, *key2, *key3;
    uint32_t type, type2, type3;
    uint64_t bits, bits2, bits3;
    const char *text, *text2;
    const char *no_tensor, *extra_tensor;
    /* a tensor with dims[i] changed, or of another type */
    const char *bent;
    int64_t plus[4];
    uint32_t bent_type;
    uint32_t vector_type;
    uint32_t n_tokens;           /* of tokenizer.ggml.tokens; 0 = the key is absent */
    uint32_t n_elems, elem_type; /* of an array: element i is byte i of bits; 0 = one u32 */
} config_case;

#define CONFIG_FILE_BYTES (1u << 20)

static config_case config_default(const char *arch) {
    config_case c;
    memset(&c, 0, sizeof c);
    c.arch = arch;
    c.V = 5;
    c.L = 2;
    c.D = 12;
    c.H = 3;
    c.G = 1;
    c.d = 4;
    c.F = 6;
    c.bias = strcmp(arch, "qwen2") == 0;
    c.post_norms = strcmp(arch, "gemma3") == 0;
    c.qk_norms = c.post_norms || strcmp(arch, "qwen3") == 0;
    c.bent_type = UINT32_MAX;
    return c;
}

typedef struct config_file {
    unsigned char *data, *p;
    uint64_t n_tensors, n_kvs, n_data;
} config_file;

static void config_put(config_file *f, uint64_t v, int n_bytes) {
    int i;
    for (i = 0; i < n_bytes; i++) {
        *f->p++ = (unsigned char)(v >> (8 * i));
    }
}

static void config_put_text(config_file *f, const char *s) {
    config_put(f, strlen(s), 8);
    memcpy(f->p, s, strlen(s));
    f->p += strlen(s);
}

static void config_expand(char *out, size_t cap, const char *arch, const char *key) {
    snprintf(out, cap, "%s%s%s", key[0] == '*' ? arch : "", key[0] == '*' ? "." : "", key + (key[0] == '*'));
}

/* type STRING takes text; ARRAY becomes an array of one u32. */
static void config_put_kv(config_file *f, const config_case *c, const char *key, uint32_t type, uint64_t bits,
                          const char *text) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char name[128];
    config_expand(name, sizeof name, c->arch, key);
    config_put_text(f, name);
    config_put(f, type, 4);
    if (type == DENDP_GGUF_STRING) {
        config_put_text(f, text);
    } else if (type == DENDP_GGUF_ARRAY && c->n_elems) {
        uint32_t i;
        config_put(f, c->elem_type, 4);
        config_put(f, c->n_elems, 8);
        for (i = 0; i < c->n_elems; i++) {
            config_put(f, bits >> (8 * i) & 0xff, sizes[c->elem_type]);
        }
    } else if (type == DENDP_GGUF_ARRAY) {
        config_put(f, DENDP_GGUF_U32, 4);
        config_put(f, 1, 8);
        config_put(f, bits, 4);
    } else {
        config_put(f, bits, sizes[type]);
    }
    f->n_kvs++;
}

/* A key of the plain model, unless the case leaves it out or sets it itself. */
static void config_base_kv(config_file *f, const config_case *c, const char *key, uint32_t type,
                           uint64_t bits, const char *text) {
    if ((c->no_key && strcmp(c->no_key, key) == 0) || (c->key && strcmp(c->key, key) == 0) ||
        (c->key2 && strcmp(c->key2, key) == 0)) {
        return;
    }
    config_put_kv(f, c, key, type, bits, text);
}

static void config_put_tensor(config_file *f, const config_case *c, const char *name, uint64_t cols,
                              uint64_t rows) {
    uint64_t dims[4], n = 1, bytes;
    uint32_t type = rows == 1 ? c->vector_type : DENDP_TYPE_F16, n_dims = rows == 1 ? 1 : 2, i;
    if (c->no_tensor && strcmp(c->no_tensor, name) == 0) {
        return;
    }
    dims[0] = cols;
    dims[1] = rows;
    dims[2] = dims[3] = 1;
    if (c->bent && strcmp(c->bent, name) == 0) {
        for (i = 0; i < 4; i++) {
            dims[i] += (uint64_t)c->plus[i];
            n_dims = c->plus[i] && i >= n_dims ? i + 1 : n_dims;
        }
        type = c->bent_type != UINT32_MAX ? c->bent_type : type;
    }
    config_put_text(f, name);
    config_put(f, n_dims, 4);
    for (i = 0; i < n_dims; i++) {
        config_put(f, dims[i], 8);
        n *= dims[i];
    }
    config_put(f, type, 4);
    config_put(f, f->n_data, 8);
    bytes = n * dendp_type_find(type)->block_bytes / dendp_type_find(type)->block_elems;
    f->n_data += (bytes + 31) & ~(uint64_t)31;
    f->n_tensors++;
}

/* The bytes of a case's file (malloc). */
static unsigned char *config_build(const config_case *c, size_t *size) {
    static const char *const per_layer[] = {"attn_norm.weight",
                                            "attn_q.weight",
                                            "attn_k.weight",
                                            "attn_v.weight",
                                            "attn_output.weight",
                                            "ffn_norm.weight",
                                            "ffn_gate.weight",
                                            "ffn_up.weight",
                                            "ffn_down.weight",
                                            "attn_q.bias",
                                            "attn_k.bias",
                                            "attn_v.bias",
                                            "attn_output.bias",
                                            "ffn_gate.bias",
                                            "ffn_up.bias",
                                            "ffn_down.bias",
                                            "attn_q_norm.weight",
                                            "attn_k_norm.weight",
                                            "post_attention_norm.weight",
                                            "post_ffw_norm.weight"};
    config_file f;
    char name[64];
    uint32_t i, layer;
    memset(&f, 0, sizeof f);
    f.data = f.p = (unsigned char *)calloc(1, CONFIG_FILE_BYTES);
    assert_non_null(f.data);
    memcpy(f.p, "GGUF\3\0\0\0", 8);
    f.p += 24; /* the counts come last */
    config_base_kv(&f, c, "general.architecture", DENDP_GGUF_STRING, 0, c->arch);
    config_base_kv(&f, c, "*block_count", DENDP_GGUF_U32, c->L, NULL);
    config_base_kv(&f, c, "*context_length", DENDP_GGUF_U32, 2048, NULL);
    config_base_kv(&f, c, "*embedding_length", DENDP_GGUF_U32, c->D, NULL);
    config_base_kv(&f, c, "*feed_forward_length", DENDP_GGUF_U32, c->F, NULL);
    config_base_kv(&f, c, "*attention.head_count", DENDP_GGUF_U32, c->H, NULL);
    config_base_kv(&f, c, "*attention.head_count_kv", DENDP_GGUF_U32, c->G, NULL);
    config_base_kv(&f, c, "*attention.layer_norm_rms_epsilon", DENDP_GGUF_F32, dendp_f32_bits(1e-5f), NULL);
    if (c->key) {
        config_put_kv(&f, c, c->key, c->type, c->bits, c->text);
    }
    if (c->key2) {
        config_put_kv(&f, c, c->key2, c->type2, c->bits2, c->text2);
    }
    if (c->key3) {
        config_put_kv(&f, c, c->key3, c->type3, c->bits3, NULL);
    }
    if (c->n_tokens) {
        config_put_text(&f, "tokenizer.ggml.tokens");
        config_put(&f, DENDP_GGUF_ARRAY, 4);
        config_put(&f, DENDP_GGUF_STRING, 4);
        config_put(&f, c->n_tokens, 8);
        for (i = 0; i < c->n_tokens; i++) {
            config_put_text(&f, "t");
        }
        f.n_kvs++;
    }
    if (!c->no_tensors) {
        config_put_tensor(&f, c, "token_embd.weight", c->D, c->V);
        for (layer = 0; layer < c->L; layer++) {
            for (i = 0; i < sizeof per_layer / sizeof per_layer[0]; i++) {
                uint64_t q = c->H * c->d, kv = c->G * c->d, D = c->D, F = c->F, d = c->d;
                const uint64_t cols[] = {D, D, D, D, q, D, D, D, F, q, kv, kv, D, F, F, D, d, d, D, D};
                const uint64_t rows[] = {1, q, kv, kv, D, 1, F, F, D, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
                if ((i >= 9 && i < 12 && !c->bias) || (i >= 12 && i < 16 && !c->other_biases) ||
                    (i >= 16 && i < 18 && !c->qk_norms) || (i >= 18 && !c->post_norms)) {
                    continue;
                }
                snprintf(name, sizeof name, "blk.%u.%s", (unsigned)layer, per_layer[i]);
                config_put_tensor(&f, c, name, cols[i], rows[i]);
            }
        }
        if (c->extra_tensor) {
            config_put_tensor(&f, c, c->extra_tensor, c->D, 1);
        }
        if (c->rope_freqs) {
            config_put_tensor(&f, c, "rope_freqs.weight", c->d / 2, 1);
        }
        config_put_tensor(&f, c, "output_norm.weight", c->D, 1);
        if (c->head) {
            config_put_tensor(&f, c, "output.weight", c->D, c->V);
        }
    }
    *size = (((size_t)(f.p - f.data) + 31) & ~(size_t)31) + (size_t)f.n_data;
    assert_true(*size <= CONFIG_FILE_BYTES);
    f.p = f.data + 8;
    config_put(&f, f.n_tensors, 8);
    config_put(&f, f.n_kvs, 8);
    return f.data;
}

/* Loads a case; `where` is given back as the name of the key or tensor that stands there. */
static dend_status config_load(const config_case *c, dendp_config *config, dend_error *err, char *culprit,
                               size_t cap) {
    test_heap heap;
    dend_model_desc desc;
    dendp_gguf g;
    dend_status status;
    uint32_t i;
    size_t size;
    unsigned char *file = config_build(c, &size);
    memset(&desc, 0, sizeof desc);
    memset(err, 0, sizeof *err);
    desc.data = file;
    desc.data_size = size;
    desc.allocator = test_heap_allocator(&heap);
    ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, err));
    memset(config, 0xa5, sizeof *config);
    status = c->no_tensors ? dendp_config_read(config, &g, err) : dendp_config_load(config, &g, err);
    snprintf(culprit, cap, "%s", err->where ? "?" : "");
    for (i = 0; i < g.n_kvs; i++) {
        if (err->where == g.kvs[i].offset) {
            snprintf(culprit, cap, "%s", g.kvs[i].key);
        }
    }
    for (i = 0; i < g.n_tensors; i++) {
        if (err->where == g.tensors[i].where) {
            snprintf(culprit, cap, "%s", g.tensors[i].name);
        }
    }
    dendp_gguf_close(&g);
    free(file);
    return status;
}

static dendp_config config_accept_at(const config_case *c, int line) {
    dendp_config config;
    dend_error err;
    char culprit[128];
    dend_status status = config_load(c, &config, &err, culprit, sizeof culprit);
    if (status != DEND_OK) {
        fail_msg("line %d: refused: %s (%s)", line, err.msg, culprit);
    }
    return config;
}

static void config_refuse_at(const config_case *c, dend_status expected, const char *text, const char *where,
                             int line) {
    dendp_config config;
    dend_error err;
    char culprit[128], name[128];
    dend_status status = config_load(c, &config, &err, culprit, sizeof culprit);
    config_expand(name, sizeof name, c->arch, where);
    if (status != expected || !err.msg || !strstr(err.msg, text) || strcmp(culprit, name) != 0) {
        fail_msg("line %d: %s with \"%s\" at \"%s\" expected, got %s: %s at \"%s\"", line,
                 dend_status_name(expected), text, name, dend_status_name(status), err.msg ? err.msg : "",
                 culprit);
    }
    assert_int_equal(err.status, status);
}

#define CONFIG_ACCEPT(c) config_accept_at(&(c), __LINE__)
#define CONFIG_REFUSE(c, status, text, where) config_refuse_at(&(c), status, text, where, __LINE__)

/* One key added or replaced, and nothing else. */
static config_case config_with(const char *arch, const char *key, uint32_t type, uint64_t bits,
                               const char *text) {
    config_case c = config_default(arch);
    c.key = key;
    c.type = type;
    c.bits = bits;
    c.text = text;
    return c;
}

static void config_plain_models(void **state) {
    config_case c = config_default("llama");
    dendp_config config = CONFIG_ACCEPT(c);
    (void)state;
    assert_string_equal(config.family->arch, "llama");
    assert_int_equal(config.family->rope, DENDP_ROPE_INTERLEAVED);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN);
    assert_int_equal(config.n_vocab, 5);
    assert_int_equal(config.n_layers, 2);
    assert_int_equal(config.n_embd, 12);
    assert_int_equal(config.n_heads, 3);
    assert_int_equal(config.n_kv_heads, 1);
    assert_int_equal(config.head_dim, 4);
    assert_int_equal(config.n_rot, 4);
    assert_int_equal(config.n_ff, 6);
    assert_int_equal(config.n_ctx_train, 2048);
    assert_true(config.norm_eps == 1e-5f);
    assert_true(config.rope.base == 10000.0f);
    assert_true(config.rope.scale == 1.0f && config.rope.magnitude == 1.0f && !config.rope.yarn);
    assert_true(config.embd_scale == 1.0f && config.score_width == 4.0f);
    assert_int_equal(config.window, 0);
    assert_true(config.tied_head);
    assert_false(config.has_rope_freqs);
    c = config_default("qwen2");
    c.head = true;
    config = CONFIG_ACCEPT(c);
    assert_string_equal(config.family->arch, "qwen2");
    assert_int_equal(config.family->rope, DENDP_ROPE_HALVES);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN | DENDP_HAS_QKV_BIASES | DENDP_HAS_OWN_HEAD);
    assert_false(config.tied_head);
    c = config_default("llama");
    c.rope_freqs = true;
    config = CONFIG_ACCEPT(c);
    assert_true(config.has_rope_freqs);
    c = config_default("llama"); /* with biases, all or some */
    c.bias = true;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN | DENDP_HAS_QKV_BIASES);
    c.other_biases = true;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN | DENDP_HAS_QKV_BIASES | DENDP_HAS_OTHER_BIASES);
    c = config_default("mistral");
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.family->rope, DENDP_ROPE_INTERLEAVED);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN);
    c = config_default("qwen3");
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.family->rope, DENDP_ROPE_HALVES);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN | DENDP_HAS_QK_NORMS);
    assert_false(config.family->gelu);
    c = config_default("gemma3");
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.family->rope, DENDP_ROPE_HALVES);
    assert_int_equal(config.tensors, DENDP_HAS_PLAIN | DENDP_HAS_QK_NORMS | DENDP_HAS_POST_NORMS);
    assert_true(config.family->gelu);
    assert_true(config.embd_scale == sqrtf(12.0f) && config.score_width == 4.0f);
    c.L = 62; /* the 27B */
    c.d = 6;
    c.key = "*attention.key_length";
    c.key2 = "*attention.value_length";
    c.type = c.type2 = DENDP_GGUF_U32;
    c.bits = c.bits2 = 6;
    config = CONFIG_ACCEPT(c);
    assert_true(config.head_dim == 6 && config.score_width == 4.0f);
    c.L = 61;
    assert_true(CONFIG_ACCEPT(c).score_width == 6.0f);
    c = config_default("llama");
    c.vector_type = DENDP_TYPE_F16;
    CONFIG_ACCEPT(c);
}

/* Defaults, and the values that override them, of several integer types. */
static void config_optional_keys(void **state) {
    config_case c;
    dendp_config config;
    (void)state;
    c = config_default("llama");
    c.no_key = "*attention.head_count_kv";
    c.G = 3;
    assert_int_equal(CONFIG_ACCEPT(c).n_kv_heads, 3);
    c = config_with("llama", "*attention.head_count_kv", DENDP_GGUF_U64, 3, NULL);
    c.G = 3;
    assert_int_equal(CONFIG_ACCEPT(c).n_kv_heads, 3);
    /* heads wider than D / H */
    c = config_with("llama", "*attention.key_length", DENDP_GGUF_U16, 6, NULL);
    c.key2 = "*attention.value_length";
    c.type2 = DENDP_GGUF_I32;
    c.bits2 = 6;
    c.d = 6;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.head_dim, 6);
    assert_int_equal(config.n_rot, 6);
    /* where D / H is no integer, that is the only way */
    c.H = 5;
    assert_int_equal(CONFIG_ACCEPT(c).n_heads, 5);
    c = config_with("llama", "*rope.dimension_count", DENDP_GGUF_U8, 2, NULL);
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.n_rot, 2);
    assert_int_equal(config.head_dim, 4);
    c = config_with("llama", "*rope.freq_base", DENDP_GGUF_F32, dendp_f32_bits(500000.0f), NULL);
    assert_true(CONFIG_ACCEPT(c).rope.base == 500000.0f);
    c = config_with("llama", "*attention.layer_norm_rms_epsilon", DENDP_GGUF_F64, 0x3eb0c6f7a0b5ed8du, NULL);
    assert_true(CONFIG_ACCEPT(c).norm_eps == 1e-6f);
    c = config_with("llama", "general.type", DENDP_GGUF_STRING, 0, "model");
    c.key2 = "split.count";
    c.type2 = DENDP_GGUF_U16;
    c.bits2 = 1;
    CONFIG_ACCEPT(c);
}

/* V: the key, else the embedding, else the list of tokens. */
static void config_vocab(void **state) {
    config_case c = config_with("llama", "*vocab_size", DENDP_GGUF_U32, 5, NULL);
    (void)state;
    assert_int_equal(CONFIG_ACCEPT(c).n_vocab, 5);
    c.n_tokens = 5;
    assert_int_equal(CONFIG_ACCEPT(c).n_vocab, 5);
    c.n_tokens = 3; /* padding rows at the end of the embedding */
    assert_int_equal(CONFIG_ACCEPT(c).n_vocab, 5);
    c.n_tokens = 6;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "more tokens", "tokenizer.ggml.tokens");
    c = config_with("llama", "*vocab_size", DENDP_GGUF_U32, 6, NULL);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "token_embd.weight has the wrong shape", "token_embd.weight");
    c = config_default("llama");
    c.n_tokens = 4;
    assert_int_equal(CONFIG_ACCEPT(c).n_vocab, 5);
    c.no_tensors = true;
    assert_int_equal(CONFIG_ACCEPT(c).n_vocab, 4);
    c.n_tokens = 0;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "vocab_size is missing", "");
    c = config_with("llama", "tokenizer.ggml.tokens", DENDP_GGUF_U32, 1, NULL);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "no array of strings", "tokenizer.ggml.tokens");
}

/* More tokens than V may be, without building so large a file: the opened one is told so. */
static void config_vocab_limit(void **state) {
    config_case c = config_default("llama");
    uint64_t more;
    (void)state;
    c.no_tensors = true;
    c.n_tokens = 1;
    for (more = 0; more < 2; more++) {
        size_t size;
        unsigned char *file = config_build(&c, &size);
        test_heap heap;
        dend_model_desc desc;
        dend_error err;
        dendp_gguf g;
        dendp_config config;
        memset(&desc, 0, sizeof desc);
        desc.data = file;
        desc.data_size = size;
        desc.allocator = test_heap_allocator(&heap);
        ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, &err));
        assert_string_equal(g.kvs[g.n_kvs - 1].key, "tokenizer.ggml.tokens");
        g.kvs[g.n_kvs - 1].count = ((uint64_t)1 << 24) + more;
        ASSERT_STATUS(more ? DEND_ERR_UNSUPPORTED : DEND_OK, dendp_config_read(&config, &g, &err));
        dendp_gguf_close(&g);
        free(file);
    }
}

static void config_required_keys(void **state) {
    static const char *const keys[] = {"*block_count",          "*embedding_length",
                                       "*feed_forward_length",  "*context_length",
                                       "*attention.head_count", "*attention.layer_norm_rms_epsilon"};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        config_case c = config_default("llama");
        c.no_key = keys[i];
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is missing", "");
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, keys[i] + 1, "");
    }
}

/* Zero, negative, above the limit, of the wrong type, different in each layer: for every integer key. */
static void config_integer_keys(void **state) {
    static const struct {
        const char *key;
        uint64_t most;
    } keys[] = {{"*block_count", 1024},
                {"*embedding_length", 65536},
                {"*feed_forward_length", 1 << 20},
                {"*context_length", 1 << 30},
                {"*attention.head_count", 1024},
                {"*attention.head_count_kv", 1024},
                {"*attention.key_length", 512},
                {"*rope.dimension_count", 512},
                {"*vocab_size", 1 << 24},
                {"*rope.scaling.original_context_length", 1 << 30}};
    size_t i;
    (void)state;
    assert_int_equal(sizeof keys / sizeof keys[0], DENDP_N_HYPERS);
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        config_case c = config_with("llama", keys[i].key, DENDP_GGUF_U32, 0, "1");
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, keys[i].key + 1, keys[i].key);
        c.bits = keys[i].most + 1;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "above the limit", keys[i].key);
        c.type = DENDP_GGUF_U64;
        c.bits = ((uint64_t)1 << 32) + 2; /* 2 in its low half */
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "above the limit", keys[i].key);
        c.bits = UINT64_MAX; /* unsigned: large, not negative */
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "above the limit", keys[i].key);
        c.type = DENDP_GGUF_I64;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        c.type = DENDP_GGUF_I8;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        c.type = DENDP_GGUF_F32;
        c.bits = dendp_f32_bits(4.0f);
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        c.type = DENDP_GGUF_BOOL;
        c.bits = 1;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        c.type = DENDP_GGUF_STRING;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no positive integer", keys[i].key);
        c.type = DENDP_GGUF_ARRAY;
        c.bits = 4;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "differ between layers", keys[i].key);
    }
}

/* The limits themselves are allowed. (No tensors: they would be large.) */
static void config_largest(void **state) {
    config_case c = config_with("llama", "*vocab_size", DENDP_GGUF_U32, 1u << 24, NULL);
    dendp_config config;
    (void)state;
    c.no_tensors = true;
    c.L = 1024;
    c.D = 65536;
    c.F = 1u << 20;
    c.H = 1024;
    c.G = 1024;
    c.key2 = "*context_length";
    c.type2 = DENDP_GGUF_U32;
    c.bits2 = 1u << 30;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.n_vocab, 1 << 24);
    assert_int_equal(config.n_ctx_train, 1 << 30);
    assert_int_equal(dendp_config_extent(&config, DENDP_EXTENT_Q), 65536);
    c.H = 128;
    c.G = 128;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.head_dim, 512);
    c.H = c.G = 64;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "head width", "*attention.head_count");
}

static void config_heads(void **state) {
    config_case c = config_default("llama");
    (void)state;
    c.G = 2;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "no multiple of head_count_kv", "*attention.head_count");
    c.G = 6; /* more KV heads than query heads */
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "no multiple of head_count_kv", "*attention.head_count");
    c = config_default("llama");
    c.H = 5;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "embedding_length is no multiple", "*attention.head_count");
    c = config_default("llama");
    c.D = 9; /* heads of 3 */
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "head width is odd", "*attention.head_count");
    c = config_with("llama", "*attention.key_length", DENDP_GGUF_U32, 6, NULL);
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "differs from value_length", "*attention.head_count");
    c.key2 = "*attention.value_length";
    c.type2 = DENDP_GGUF_U32;
    c.bits2 = 4;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "differs from value_length", "*attention.value_length");
    c.bits2 = 0;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "differs from value_length", "*attention.value_length");
    c.bits2 = ((uint64_t)1 << 32) + 6;
    c.type2 = DENDP_GGUF_U64;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "differs from value_length", "*attention.value_length");
    c = config_with("llama", "*rope.dimension_count", DENDP_GGUF_U32, 3, NULL);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "odd or wider", "*rope.dimension_count");
    c.bits = 6;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "odd or wider", "*rope.dimension_count");
}

static void config_floats(void **state) {
    static const struct {
        const char *key;
        float good[2], bad[4];
    } keys[] = {{"*rope.freq_base", {1.0f, 1e12f}, {0.5f, 0.0f, -10000.0f, 2e12f}},
                {"*attention.layer_norm_rms_epsilon", {1e-20f, 1.0f}, {0.0f, -1e-5f, 1e-21f, 1.5f}},
                {"*rope.scaling.factor", {0.001f, 1e6f}, {0.0f, -2.0f, 1e-4f, 2e6f}}};
    static const uint32_t never[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u};
    size_t i, k;
    (void)state;
    for (i = 0; i < 3; i++) {
        config_case c = config_with("llama", keys[i].key, DENDP_GGUF_F32, 0, "1");
        for (k = 0; k < 2; k++) {
            c.bits = dendp_f32_bits(keys[i].good[k]);
            CONFIG_ACCEPT(c);
        }
        for (k = 0; k < 4; k++) {
            c.bits = dendp_f32_bits(keys[i].bad[k]);
            CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no number from", keys[i].key);
            c.bits = never[k];
            CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no number from", keys[i].key);
        }
        c.type = DENDP_GGUF_U32;
        c.bits = 1;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no number from", keys[i].key);
        c.type = DENDP_GGUF_STRING;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no number from", keys[i].key);
    }
}

static void config_rope_scaling(void **state) {
    config_case c = config_with("llama", "*rope.scaling.type", DENDP_GGUF_STRING, 0, "linear");
    (void)state;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "factor is missing", "*rope.scaling.type");
    c.key2 = "*rope.scaling.factor";
    c.type2 = DENDP_GGUF_F32;
    c.bits2 = dendp_f32_bits(4.0f);
    assert_true(CONFIG_ACCEPT(c).rope.scale == 0.25f);
    c.text = "none";
    assert_true(CONFIG_ACCEPT(c).rope.scale == 1.0f);
    c.text = "yarn";
    assert_true(CONFIG_ACCEPT(c).rope.yarn);
    c.text = "longrope";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "longrope", "*rope.scaling.type");
    c.text = "linear2";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "this rope scaling", "*rope.scaling.type");
    c.text = "";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "this rope scaling", "*rope.scaling.type");
    c.type = DENDP_GGUF_U32;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "is no string", "*rope.scaling.type");
    /* from before there were types */
    c = config_with("llama", "*rope.scaling.factor", DENDP_GGUF_F32, dendp_f32_bits(2.0f), NULL);
    assert_true(CONFIG_ACCEPT(c).rope.scale == 0.5f);
    c = config_with("llama", "*rope.scale_linear", DENDP_GGUF_F32, dendp_f32_bits(8.0f), NULL);
    assert_true(CONFIG_ACCEPT(c).rope.scale == 0.125f);
}

/* The pairs between which YaRN mixes, and how it scales what it rotates. */
static void config_yarn(void **state) {
    config_case c = config_with("qwen3", "*rope.scaling.type", DENDP_GGUF_STRING, 0, "yarn");
    dendp_config config;
    (void)state;
    c.d = 64;
    c.D = 192;
    c.key2 = "*rope.scaling.factor";
    c.type2 = DENDP_GGUF_F32;
    c.bits2 = dendp_f32_bits(4.0f);
    config = CONFIG_ACCEPT(c); /* 64 ln(2048 / (32 * 2 pi)) / (2 ln 10000) = 8.06; of 1 turn: 20.1 */
    assert_true(config.rope.yarn && config.rope.scale == 0.25f);
    assert_true(config.rope.low == 8.0f && config.rope.high == 21.0f);
    ASSERT_NEAR(0.1 * log(4.0) + 1, config.rope.magnitude, 1e-6, 0);
    assert_memory_equal(&config.rope, &config.rope_local, sizeof config.rope);
    c.bits2 = dendp_f32_bits(0.5f); /* shorter: no warmer */
    assert_true(CONFIG_ACCEPT(c).rope.magnitude == 1.0f);
    c.bits2 = dendp_f32_bits(4.0f);
    c.key3 = "*rope.scaling.original_context_length";
    c.type3 = DENDP_GGUF_U32;
    c.bits3 = 512;
    config = CONFIG_ACCEPT(c); /* 64 ln(512 / (32 * 2 pi)) / (2 ln 10000) = 3.2; of 1 turn: 15.3 */
    assert_true(config.rope.low == 3.0f && config.rope.high == 16.0f);
    c.bits3 = 1; /* below all pairs */
    config = CONFIG_ACCEPT(c);
    assert_true(config.rope.low == 0.0f && config.rope.high == -6.0f);
    c.type3 = DENDP_GGUF_F32;
    c.key3 = "*rope.scaling.yarn_beta_fast";
    c.bits3 = dendp_f32_bits(8.0f);
    assert_true(CONFIG_ACCEPT(c).rope.low == 12.0f);
    c.key3 = "*rope.scaling.yarn_beta_slow";
    c.bits3 =
        dendp_f32_bits(0.001f); /* beyond the last pair, of which 63 would be one if they were not pairs */
    assert_true(CONFIG_ACCEPT(c).rope.high == 45.0f);
    c.bits3 = dendp_f32_bits(0.0f);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "beta_slow is no number", "*rope.scaling.yarn_beta_slow");
    c.key3 = "*rope.scaling.yarn_beta_fast";
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "beta_fast is no number", "*rope.scaling.yarn_beta_fast");
    c.key3 = "*rope.scaling.yarn_attn_factor"; /* takes the place of the paper's */
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "yarn_attn_factor is no number", "*rope.scaling.yarn_attn_factor");
    c.bits3 = dendp_f32_bits(1.5f);
    assert_true(CONFIG_ACCEPT(c).rope.magnitude == 1.5f);
    c.key3 = "*rope.scaling.attn_factor"; /* multiplies it */
    ASSERT_NEAR(1.5 * (0.1 * log(4.0) + 1), CONFIG_ACCEPT(c).rope.magnitude, 1e-6, 0);
    c.text = "linear";
    assert_true(CONFIG_ACCEPT(c).rope.magnitude == 1.5f);
    c.text = "yarn";
    c.key3 = "*rope.scaling.yarn_ext_factor";
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "ext_factor other than 1", "*rope.scaling.yarn_ext_factor");
    c.bits3 = dendp_f32_bits(1.0f);
    CONFIG_ACCEPT(c);
    c.key3 = "*rope.freq_base";
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "freq_base above 1", "*rope.freq_base");
    c.key3 = NULL;
    c.key2 = NULL;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "factor is missing", "*rope.scaling.type");
    c = config_with("gemma3", "*rope.scaling.type", DENDP_GGUF_STRING, 0, "yarn");
    c.key2 = "*rope.scaling.factor";
    c.type2 = DENDP_GGUF_F32;
    c.bits2 = dendp_f32_bits(4.0f);
    CONFIG_ACCEPT(c); /* without sliding layers */
    c.key3 = "*attention.sliding_window";
    c.type3 = DENDP_GGUF_U32;
    c.bits3 = 8;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "by magnitude", "*rope.scaling.type");
}

/* Which layers slide. */
static void config_windows(void **state) {
    static const char *const archs[] = {"llama", "mistral", "gemma3"};
    config_case c = config_with("gemma3", "*attention.sliding_window", DENDP_GGUF_U32, 512, NULL);
    dendp_config config;
    uint32_t i, layer;
    (void)state;
    c.L = 13;
    config = CONFIG_ACCEPT(c);
    assert_int_equal(config.window, 512);
    for (layer = 0; layer < c.L; layer++) {
        assert_int_equal(dendp_config_slides(&config, layer), layer % 6 != 5);
    }
    assert_true(config.rope_local.base == 10000.0f && dendp_config_two_ropes(&config) == false);
    c.key2 = "*rope.freq_base";
    c.type2 = DENDP_GGUF_F32;
    c.bits2 = dendp_f32_bits(1e6f);
    config = CONFIG_ACCEPT(c);
    assert_true(config.rope.base == 1e6f && config.rope_local.base == 10000.0f);
    assert_true(dendp_config_two_ropes(&config));
    c.key2 = "*rope.scaling.factor"; /* of the others alone */
    c.bits2 = dendp_f32_bits(8.0f);
    config = CONFIG_ACCEPT(c);
    assert_true(config.rope.scale == 0.125f && config.rope_local.scale == 1.0f);
    c.key2 = "*rope.freq_base_swa";
    c.bits2 = dendp_f32_bits(20000.0f);
    assert_true(CONFIG_ACCEPT(c).rope_local.base == 20000.0f);
    c.bits2 = dendp_f32_bits(0.5f);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "freq_base_swa is no number", "*rope.freq_base_swa");
    c.key2 = "*rope.scaling.attn_factor";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "by magnitude", "*rope.scaling.attn_factor");
    c.bits2 = dendp_f32_bits(1.0f);
    CONFIG_ACCEPT(c);
    for (i = 0; i < 3; i++) {
        c = config_with(archs[i], "*attention.sliding_window", DENDP_GGUF_U32, 7, NULL);
        c.L = 5;
        c.key2 = "*attention.sliding_window_pattern";
        c.type2 = DENDP_GGUF_U32;
        for (c.bits2 = 0; c.bits2 < 8; c.bits2++) {
            config = CONFIG_ACCEPT(c);
            for (layer = 0; layer < c.L; layer++) {
                uint32_t n = (uint32_t)c.bits2;
                assert_int_equal(dendp_config_slides(&config, layer), n == 0 || (layer + 1) % n != 0);
            }
        }
        c.type2 = DENDP_GGUF_ARRAY;
        c.n_elems = 5;
        c.elem_type = DENDP_GGUF_BOOL;
        c.bits2 = 0x0101000100u;
        config = CONFIG_ACCEPT(c);
        assert_int_equal(config.sliding[0], 0x1a);
        c.elem_type = DENDP_GGUF_I32;
        assert_int_equal(CONFIG_ACCEPT(c).sliding[0], 0x1a);
        c.bits2 = 0x0201000100u;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "other than 0 and 1", "*attention.sliding_window_pattern");
        c.elem_type = DENDP_GGUF_F32;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "other than 0 and 1", "*attention.sliding_window_pattern");
        c.elem_type = DENDP_GGUF_BOOL;
        c.n_elems = 4;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "one value for each layer", "*attention.sliding_window_pattern");
        c.type2 = DENDP_GGUF_F32;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "neither integer nor array", "*attention.sliding_window_pattern");
        c.key2 = NULL;
        c.n_elems = 0;
        c.type = DENDP_GGUF_I32; /* without the pattern */
        config = CONFIG_ACCEPT(c);
        assert_int_equal(config.sliding[0], 0x1f);
        assert_int_equal(config.window, 7);
        c.bits = 0;
        config = CONFIG_ACCEPT(c);
        assert_int_equal(config.sliding[0], 0);
        assert_int_equal(config.window, 0);
        c.bits = 0xffffffffu; /* -1 */
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "sliding_window is no integer", "*attention.sliding_window");
        c.type = DENDP_GGUF_F32;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "sliding_window is no integer", "*attention.sliding_window");
        c.type = DENDP_GGUF_STRING;
        c.text = "7";
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "sliding_window is no integer", "*attention.sliding_window");
        c.type = DENDP_GGUF_ARRAY;
        CONFIG_REFUSE(c, DEND_ERR_FORMAT, "sliding_window is no integer", "*attention.sliding_window");
    }
    /* families that know no such layers */
    c = config_with("qwen2", "*attention.sliding_window", DENDP_GGUF_U32, 2047, NULL);
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "sliding", "*attention.sliding_window");
    c.arch = "qwen3";
    c.bias = false;
    c.qk_norms = true;
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "sliding", "*attention.sliding_window");
    c.bits = 2048; /* the trained context: hides nothing */
    assert_int_equal(CONFIG_ACCEPT(c).window, 0);
    c.bits = 0;
    CONFIG_ACCEPT(c);
}

static void config_refused_by_name(void **state) {
    static const struct {
        const char *arch, *text;
    } archs[] = {{"qwen2moe", "mixture-of-experts"},
                 {"qwen3moe", "mixture-of-experts"},
                 {"gpt-oss", "mixture-of-experts"},
                 {"deepseek2", "multi-head latent"},
                 {"minicpm3", "multi-head latent"},
                 {"mamba", "recurrent"},
                 {"jamba", "recurrent"},
                 {"rwkv7", "recurrent"},
                 {"falcon-h1", "recurrent"},
                 {"qwen2vl", "multimodal"},
                 {"clip", "multimodal"},
                 {"bert", "encoder"},
                 {"t5", "encoder"},
                 {"gpt2", "this architecture"},
                 {"", "this architecture"},
                 {"llam", "this architecture"},
                 {"llama2", "this architecture"},
                 {"LLAMA", "this architecture"}};
    static const struct {
        const char *key, *text;
    } keys[] = {{"*expert_count", "mixture-of-experts"},
                {"*attention.kv_lora_rank", "multi-head latent"},
                {"*attention.q_lora_rank", "multi-head latent"},
                {"*ssm.state_size", "recurrent"},
                {"*ssm.inner_size", "recurrent"},
                {"*attention.clamp_kqv", "clamp_kqv"},
                {"*attention.max_alibi_bias", "ALiBi"},
                {"*attention.scale", "attention.scale"},
                {"*attn_logit_softcapping", "capped attention"},
                {"*final_logit_softcapping", "capped logits"},
                {"*embedding_scale", "embedding_scale"},
                {"*residual_scale", "residual_scale"},
                {"*logit_scale", "logit_scale"},
                {"*use_parallel_residual", "parallel"},
                {"*rope.dimension_sections", "sections"},
                {"*rope.scaling.alpha", "scaling.alpha"},
                {"*rope.scaling.yarn_log_multiplier", "yarn_log_multiplier"},
                {"*attention.temperature_scale", "scaled by position"}};
    config_case c;
    size_t i;
    (void)state;
    for (i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        c = config_default("llama");
        c.key = "general.architecture";
        c.type = DENDP_GGUF_STRING;
        c.text = archs[i].arch;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, archs[i].text, "general.architecture");
    }
    assert_int_equal(sizeof keys / sizeof keys[0], sizeof dendp_refused_keys / sizeof dendp_refused_keys[0]);
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        c = config_with("qwen2", keys[i].key, DENDP_GGUF_U32, 8, "x");
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, keys[i].text, keys[i].key);
        c.type = DENDP_GGUF_F32;
        c.bits = dendp_f32_bits(0.5f);
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, keys[i].text, keys[i].key);
        c.type = DENDP_GGUF_ARRAY;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, keys[i].text, keys[i].key);
        c.type = DENDP_GGUF_STRING;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, keys[i].text, keys[i].key);
        c.type = DENDP_GGUF_U32;
        c.bits = 0;
        CONFIG_ACCEPT(c);
    }
    c = config_default("llama");
    c.no_key = "general.architecture";
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "general.architecture", "");
    c = config_with("llama", "general.architecture", DENDP_GGUF_U32, 1, NULL);
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "general.architecture", "general.architecture");
    c = config_with("llama", "general.type", DENDP_GGUF_STRING, 0, "adapter");
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "general.type", "general.type");
    c = config_with("llama", "split.count", DENDP_GGUF_U16, 2, NULL);
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "split", "split.count");
    c = config_with("llama", "*attention.causal", DENDP_GGUF_BOOL, 0, NULL);
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "causal", "*attention.causal");
    c.bits = 1;
    CONFIG_ACCEPT(c);
}

/* Each tensor in turn missing, too wide, too high, too deep; and of a wrong type where that matters. */
static void config_tensors(void **state) {
    static const char *const tensors[] = {"token_embd.weight",
                                          "output_norm.weight",
                                          "output.weight",
                                          "rope_freqs.weight",
                                          "blk.%u.attn_norm.weight",
                                          "blk.%u.attn_q.weight",
                                          "blk.%u.attn_k.weight",
                                          "blk.%u.attn_v.weight",
                                          "blk.%u.attn_output.weight",
                                          "blk.%u.attn_q.bias",
                                          "blk.%u.attn_k.bias",
                                          "blk.%u.attn_v.bias",
                                          "blk.%u.attn_output.bias",
                                          "blk.%u.attn_q_norm.weight",
                                          "blk.%u.attn_k_norm.weight",
                                          "blk.%u.post_attention_norm.weight",
                                          "blk.%u.ffn_norm.weight",
                                          "blk.%u.ffn_gate.weight",
                                          "blk.%u.ffn_up.weight",
                                          "blk.%u.ffn_down.weight",
                                          "blk.%u.ffn_gate.bias",
                                          "blk.%u.ffn_up.bias",
                                          "blk.%u.ffn_down.bias",
                                          "blk.%u.post_ffw_norm.weight"};
    size_t i, k;
    uint32_t axis;
    (void)state;
    assert_int_equal(sizeof tensors / sizeof tensors[0], DENDP_N_TENSOR_ROLES);
    for (i = 0; i < DENDP_N_TENSOR_ROLES; i++) {
        assert_int_equal(dendp_tensor_specs[i].role, i);
        assert_string_equal(dendp_tensor_specs[i].name, tensors[i]);
    }
    for (k = 0; k < DENDP_N_FAMILIES; k++) {
        const dendp_family *family = &dendp_families[k];
        assert_int_equal(family->needs & family->allows, 0);
        for (i = 0; i < DENDP_N_TENSOR_ROLES; i++) {
            char name[64];
            bool is_vector =
                strstr(tensors[i], "norm") || strstr(tensors[i], "bias") || strstr(tensors[i], "freqs");
            bool optional = family->allows >> i & 1u;
            config_case c = config_default(family->arch);
            if (!optional && !(family->needs >> i & 1u)) {
                continue;
            }
            c.head = true;
            c.rope_freqs = (family->allows & DENDP_HAS_ROPE_FREQS) != 0;
            c.bias = ((family->needs | family->allows) & DENDP_HAS_QKV_BIASES) != 0;
            c.other_biases = (family->allows & DENDP_HAS_OTHER_BIASES) != 0;
            assert_int_equal(CONFIG_ACCEPT(c).tensors, family->needs | family->allows);
            assert_true(dendp_config_tensor_name(name, sizeof name, tensors[i], 1));
            c.no_tensor = name;
            if (optional && i < DENDP_TENSOR_ATTN_NORM) {
                dendp_config config = CONFIG_ACCEPT(c);
                assert_int_equal(config.tied_head, i == DENDP_TENSOR_HEAD);
                assert_int_equal(config.has_rope_freqs, c.rope_freqs && i != DENDP_TENSOR_ROPE_FREQS);
            } else if (i == DENDP_TENSOR_EMBD) {
                /* its rows are also where V comes from */
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, "vocab_size is missing", "");
                c.n_tokens = 5;
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, "token_embd.weight is missing", "");
                c.n_tokens = 0;
            } else { /* one that the first layer has too */
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, " is missing", "");
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, tensors[i], "");
            }
            c.no_tensor = NULL;
            c.bent = name;
            for (axis = 0; axis < 4; axis++) {
                const char *culprit = name, *text = tensors[i];
                memset(c.plus, 0, sizeof c.plus);
                c.plus[axis] = 1;
                if (i == DENDP_TENSOR_EMBD && axis == 1) { /* V is one more, so the head is too short */
                    culprit = text = "output.weight";
                }
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, " has the wrong shape", culprit);
                CONFIG_REFUSE(c, DEND_ERR_FORMAT, text, culprit);
            }
            memset(c.plus, 0, sizeof c.plus);
            c.bent_type = DENDP_TYPE_BF16;
            if (is_vector) {
                CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "neither F32 nor F16", name);
                c.bent_type = DENDP_TYPE_F16;
            }
            CONFIG_ACCEPT(c);
        }
    }
}

/* What the family does not use is refused, under its name. */
static void config_extra_tensors(void **state) {
    static const char *const extras[] = {"blk.0.attn_output.bias",
                                         "output.bias",
                                         "blk.2.attn_q.weight",
                                         "blk.00.attn_q.weight",
                                         "blk.01.attn_q.weight",
                                         "blk..attn_q.weight",
                                         "blk.0.attn_q.weigh",
                                         "blk.0.attn_q.weights",
                                         "blk.0x.attn_q.weight",
                                         "blk.-1.attn_q.weight",
                                         "blk.4294967296.attn_q.weight",
                                         "blk.%u.attn_q.weight",
                                         "blk.0.attn_q_norm.weight",
                                         "token_types.weight",
                                         "blk",
                                         "b",
                                         "token_embd.weight2"};
    config_case c;
    size_t i;
    (void)state;
    for (i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        c = config_default("qwen2");
        c.extra_tensor = extras[i];
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "does not use", extras[i]);
        c.arch = "mistral";
        c.bias = false;
        CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "does not use", extras[i]);
    }
    /* what is used is told from it: layers of one and two digits, and all other tensors */
    c = config_default("qwen2");
    c.L = 12;
    c.head = true;
    c.rope_freqs = true;
    c.extra_tensor = "blk.12.attn_q.weight";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "does not use", "blk.12.attn_q.weight");
    /* a bias in one layer alone; and a family that needs one */
    c = config_default("llama");
    c.extra_tensor = "blk.1.attn_q.bias";
    CONFIG_REFUSE(c, DEND_ERR_UNSUPPORTED, "does not use", "blk.1.attn_q.bias");
    c = config_default("qwen2");
    c.bias = false;
    CONFIG_REFUSE(c, DEND_ERR_FORMAT, "attn_q.bias is missing", "");
}

static void config_tensor_names(void **state) {
    char name[24];
    (void)state;
    assert_true(dendp_config_tensor_name(name, sizeof name, "blk.%u.x", 0));
    assert_string_equal(name, "blk.0.x");
    assert_true(dendp_config_tensor_name(name, sizeof name, "blk.%u.x", 1023));
    assert_string_equal(name, "blk.1023.x");
    assert_true(dendp_config_tensor_name(name, sizeof name, "blk.%u.x", UINT32_MAX));
    assert_string_equal(name, "blk.4294967295.x");
    assert_true(dendp_config_tensor_name(name, sizeof name, "%u%u", 10));
    assert_string_equal(name, "1010");
    assert_true(dendp_config_tensor_name(name, sizeof name, "100%", 7));
    assert_string_equal(name, "100%");
    assert_true(dendp_config_tensor_name(name, 8, "blk.%u.x", 5));
    assert_false(dendp_config_tensor_name(name, 7, "blk.%u.x", 5));
    assert_false(dendp_config_tensor_name(name, 8, "blk.%u.x", 10));
    assert_false(dendp_config_tensor_name(name, 5, "blk.%u", 10));
    /* nothing is written behind the end */
    memset(name, 'z', sizeof name);
    assert_false(dendp_config_tensor_name(name, 7, "blk.%u.x", 5));
    assert_false(dendp_config_tensor_name(name, 5, "blk.%u", 1234567890));
    assert_false(dendp_config_tensor_name(name, 4, "long.name", 1));
    assert_int_equal(name[7], 'z');
    assert_int_equal(name[8], 'z');
    assert_true(dendp_config_tensor_name(name, 1, "", 10));
    assert_false(dendp_config_tensor_name(name, 0, "", 10));
}

/* The goldens that other tools wrote. */
static void config_golden_models(void **state) {
    static const struct {
        const char *path, *arch;
        uint32_t V, L, D, H, G, d, F;
        bool tied;
        float eps, base;
    } models[] = {
        {"tests/golden/tiny_llama_f32.gguf", "llama", 284, 2, 32, 4, 2, 8, 56, true, 1e-5f, 10000.0f},
        {"tests/golden/tiny_qwen2_q8_q5.gguf", "qwen2", 284, 2, 64, 4, 2, 16, 96, false, 1e-6f, 1e6f},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof models / sizeof models[0]; i++) {
        test_heap heap;
        dend_model_desc desc;
        dendp_gguf g;
        dendp_config c;
        memset(&desc, 0, sizeof desc);
        desc.path = models[i].path;
        desc.allocator = test_heap_allocator(&heap);
        ASSERT_STATUS(DEND_OK, dendp_gguf_open(&g, &desc, NULL));
        ASSERT_STATUS(DEND_OK, dendp_config_load(&c, &g, NULL));
        assert_string_equal(c.family->arch, models[i].arch);
        assert_int_equal(c.n_vocab, models[i].V);
        assert_int_equal(c.n_layers, models[i].L);
        assert_int_equal(c.n_embd, models[i].D);
        assert_int_equal(c.n_heads, models[i].H);
        assert_int_equal(c.n_kv_heads, models[i].G);
        assert_int_equal(c.head_dim, models[i].d);
        assert_int_equal(c.n_rot, models[i].d);
        assert_int_equal(c.n_ff, models[i].F);
        assert_int_equal(c.n_ctx_train, 64);
        assert_int_equal(c.tied_head, models[i].tied);
        assert_true(c.norm_eps == models[i].eps);
        assert_true(c.rope.base == models[i].base);
        dendp_gguf_close(&g);
        assert_int_equal(heap.n_live_bytes, 0);
    }
}

static const struct CMUnitTest tests_model_config[] = {
    cmocka_unit_test(config_plain_models),
    cmocka_unit_test(config_optional_keys),
    cmocka_unit_test(config_vocab),
    cmocka_unit_test(config_vocab_limit),
    cmocka_unit_test(config_required_keys),
    cmocka_unit_test(config_integer_keys),
    cmocka_unit_test(config_largest),
    cmocka_unit_test(config_heads),
    cmocka_unit_test(config_floats),
    cmocka_unit_test(config_rope_scaling),
    cmocka_unit_test(config_refused_by_name),
    cmocka_unit_test(config_tensors),
    cmocka_unit_test(config_extra_tensors),
    cmocka_unit_test(config_tensor_names),
    cmocka_unit_test(config_yarn),
    cmocka_unit_test(config_windows),
    cmocka_unit_test(config_golden_models),
};
