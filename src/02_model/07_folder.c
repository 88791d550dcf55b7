/* ==========================================================================
 * >>02.07 FOLDER: a Hugging Face model, told in GGUF's words
 * ==========================================================================
 * Models are published as folders:
 *
 *     config.json                     what the model is
 *     model.safetensors               its weights; or, in several files,
 *     model.safetensors.index.json      which of them holds which tensor
 *     tokenizer.json, ...             room 02.03 reads those
 *
 * This room makes of such a folder the catalogue that a GGUF file would give
 * (02.02): the same keys and names, shapes with the fast dimension first, and
 * conversions (02.05) where the two store different things. So everything that
 * is checked, refused and loaded is checked, refused and loaded once, and a
 * model gives the same bits from either container.
 *
 * Two tables hold the translation. dendp_hf_families says how Hugging Face's
 * families differ, and what their configurations leave out because it is a
 * default of their Python class. dendp_hf_names maps tensors. What changes the
 * results and has no translation is refused with its reason, as for GGUF:
 * computing on without it would give wrong tokens and no error.
 *
 * Positions that were scaled as Llama 3.1 does it become a tensor of divisors,
 * one for each pair of values that turns together, as GGUF's converter writes
 * it: pairs of short wavelength keep their frequency (1), long ones are slowed
 * down (factor), those between are mixed.
 *
 * Names of files in the index come from the file, so only plain names are
 * followed: nothing that leads out of the folder.
 *
 * config.json is never kept as a tree: each key is looked up by reading the
 * text (at most 1 MB) again, and one that stands there twice is refused.
 * Offsets in errors count in the file that dend_error.file names.
 * ======================================================================== */

#define DENDP_HF_MAX_CONFIG (1u << 20)
#define DENDP_HF_MAX_INDEX (64u << 20)
#define DENDP_HF_MAX_SHARDS 1024u
#define DENDP_HF_MAX_KVS 40u

/* Integers of config.json that become keys. */
typedef struct dendp_hf_size {
    const char *key, *suffix, *suffix2;
    const char *missing, *malformed;
} dendp_hf_size;

#define DENDP_HF_SIZE(key, suffix, suffix2)                                                                  \
    { key, suffix, suffix2, key " is missing", key " is no integer from 0 to 2^32 - 1" }

enum {
    DENDP_HF_LAYERS,
    DENDP_HF_EMBD,
    DENDP_HF_FF,
    DENDP_HF_CTX,
    DENDP_HF_HEADS,
    DENDP_HF_KV_HEADS,
    DENDP_HF_HEAD_DIM,
    DENDP_HF_VOCAB,
    DENDP_N_HF_SIZES
};

static const dendp_hf_size dendp_hf_sizes[DENDP_N_HF_SIZES] = {
    DENDP_HF_SIZE("num_hidden_layers", "block_count", NULL),
    DENDP_HF_SIZE("hidden_size", "embedding_length", NULL),
    DENDP_HF_SIZE("intermediate_size", "feed_forward_length", NULL),
    DENDP_HF_SIZE("max_position_embeddings", "context_length", NULL),
    DENDP_HF_SIZE("num_attention_heads", "attention.head_count", NULL),
    DENDP_HF_SIZE("num_key_value_heads", "attention.head_count_kv", NULL),
    DENDP_HF_SIZE("head_dim", "attention.key_length", "attention.value_length"),
    DENDP_HF_SIZE("vocab_size", "vocab_size", NULL),
};

#undef DENDP_HF_SIZE

#define DENDP_HF_ABSENT UINT32_MAX /* as a default: the key is left out, it follows from others */

typedef struct dendp_hf_family {
    const char *model_type, *architecture; /* of config.json */
    const char *arch;                      /* general.architecture */
    const char *act;                       /* the activation that it must have */
    bool reordered;                        /* GGUF has the rows of Q and K in another order */
    bool plus_one;                         /* norms store w and compute with 1 + w */
    bool post_norms;                       /* there are norms behind attention and FFN too */
    bool always_bias;                      /* q, k and v have a bias whatever attention_bias says */
    bool tied;                             /* default of tie_word_embeddings */
    float eps, theta;                      /* defaults; eps 0 = must be given */
    uint32_t window;                       /* default of sliding_window; 0 = none */
    bool window_is_asked;                  /* sliding_window counts only with use_sliding_window */
    uint32_t sizes[DENDP_N_HF_SIZES];      /* defaults; 0 = must be given */
} dendp_hf_family;

static const dendp_hf_family dendp_hf_families[] = {
    {"llama",
     "LlamaForCausalLM",
     "llama",
     "silu",
     true,
     false,
     false,
     false,
     false,
     0,
     10000,
     0,
     false,
     {0, 0, 0, 0, 0, DENDP_HF_ABSENT, DENDP_HF_ABSENT, 0}},
    {"mistral",
     "MistralForCausalLM",
     "llama",
     "silu",
     true,
     false,
     false,
     false,
     false,
     0,
     10000,
     0,
     false,
     {0, 0, 0, 0, 0, 0, DENDP_HF_ABSENT, 0}},
    {"qwen2",
     "Qwen2ForCausalLM",
     "qwen2",
     "silu",
     false,
     false,
     false,
     true,
     false,
     0,
     10000,
     0,
     true,
     {0, 0, 0, 0, 0, 0, DENDP_HF_ABSENT, 0}},
    {"qwen3",
     "Qwen3ForCausalLM",
     "qwen3",
     "silu",
     false,
     false,
     false,
     false,
     false,
     0,
     10000,
     0,
     true,
     {0, 0, 0, 0, 0, 0, 128, 0}},
    {"gemma3_text",
     "Gemma3ForCausalLM",
     "gemma3",
     "gelu_pytorch_tanh",
     false,
     true,
     true,
     false,
     true,
     1e-6f,
     1000000,
     4096,
     false,
     {0, 0, 0, 131072, 8, 4, 256, 262208}},
};

#define DENDP_N_HF_FAMILIES (sizeof dendp_hf_families / sizeof dendp_hf_families[0])

/* Keys of config.json that must be absent, null, false, 0 or empty. */
static const dendp_refusal dendp_hf_refused[] = {
    {"quantization_config", "quantised safetensors (quantization_config) are not supported"},
    {"compression_config", "quantised safetensors (compression_config) are not supported"},
    {"num_experts", "mixture-of-experts models are not supported"},
    {"num_local_experts", "mixture-of-experts models are not supported"},
    {"n_routed_experts", "mixture-of-experts models are not supported"},
    {"kv_lora_rank", "multi-head latent attention is not supported"},
    {"q_lora_rank", "multi-head latent attention is not supported"},
    {"attn_logit_softcapping", "capped attention scores are not supported"},
    {"final_logit_softcapping", "capped logits are not supported"},
    {"clip_qkv", "clip_qkv is not supported"},
    {"embedding_multiplier", "embedding_multiplier is not supported"},
    {"residual_multiplier", "residual_multiplier is not supported"},
    {"attention_multiplier", "attention_multiplier is not supported"},
    {"logits_scaling", "logits_scaling is not supported"},
    {"use_qk_norm", "use_qk_norm is not supported"},
    {"use_bidirectional_attention", "attention that is not causal is not supported"},
    {"is_encoder_decoder", "encoder models are not supported"},
    {"add_cross_attention", "encoder models are not supported"},
    {"alibi", "ALiBi positions are not supported"},
    {"no_rope_layers", "layers without positions are not supported"},
    {"auto_map", "models with code of their own (auto_map) are not supported"},
};

/* How a tensor is translated. */
enum {
    DENDP_HF_NORM = 1,       /* 1 is added where the family says so */
    DENDP_HF_Q_ROWS = 2,     /* rows are put in GGUF's order, head by head */
    DENDP_HF_K_ROWS = 4,     /* the same, by KV heads */
    DENDP_HF_ATTN_BIAS = 8,  /* needs attention_bias */
    DENDP_HF_FFN_BIAS = 16,  /* needs mlp_bias */
    DENDP_HF_IS_HEAD = 32,   /* dropped where the embedding is the head */
    DENDP_HF_POST_NORM = 64, /* in families with post norms only */
    DENDP_HF_NO_POST = 128   /* in the others only */
};

typedef struct dendp_hf_name {
    const char *hf, *gguf; /* %u stands for the layer; gguf NULL: of no use, dropped */
    uint32_t flags;
} dendp_hf_name;

#define DENDP_HF_BLOCK "model.layers.%u."

static const dendp_hf_name dendp_hf_names[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 0},
    {"model.norm.weight", "output_norm.weight", DENDP_HF_NORM},
    {"lm_head.weight", "output.weight", DENDP_HF_IS_HEAD},
    {DENDP_HF_BLOCK "input_layernorm.weight", "blk.%u.attn_norm.weight", DENDP_HF_NORM},
    {DENDP_HF_BLOCK "self_attn.q_proj.weight", "blk.%u.attn_q.weight", DENDP_HF_Q_ROWS},
    {DENDP_HF_BLOCK "self_attn.k_proj.weight", "blk.%u.attn_k.weight", DENDP_HF_K_ROWS},
    {DENDP_HF_BLOCK "self_attn.v_proj.weight", "blk.%u.attn_v.weight", 0},
    {DENDP_HF_BLOCK "self_attn.o_proj.weight", "blk.%u.attn_output.weight", 0},
    {DENDP_HF_BLOCK "self_attn.q_proj.bias", "blk.%u.attn_q.bias", DENDP_HF_ATTN_BIAS | DENDP_HF_Q_ROWS},
    {DENDP_HF_BLOCK "self_attn.k_proj.bias", "blk.%u.attn_k.bias", DENDP_HF_ATTN_BIAS | DENDP_HF_K_ROWS},
    {DENDP_HF_BLOCK "self_attn.v_proj.bias", "blk.%u.attn_v.bias", DENDP_HF_ATTN_BIAS},
    {DENDP_HF_BLOCK "self_attn.o_proj.bias", "blk.%u.attn_output.bias", DENDP_HF_ATTN_BIAS},
    {DENDP_HF_BLOCK "self_attn.q_norm.weight", "blk.%u.attn_q_norm.weight", DENDP_HF_NORM},
    {DENDP_HF_BLOCK "self_attn.k_norm.weight", "blk.%u.attn_k_norm.weight", DENDP_HF_NORM},
    {DENDP_HF_BLOCK "post_attention_layernorm.weight", "blk.%u.ffn_norm.weight",
     DENDP_HF_NORM | DENDP_HF_NO_POST},
    {DENDP_HF_BLOCK "post_attention_layernorm.weight", "blk.%u.post_attention_norm.weight",
     DENDP_HF_NORM | DENDP_HF_POST_NORM},
    {DENDP_HF_BLOCK "pre_feedforward_layernorm.weight", "blk.%u.ffn_norm.weight",
     DENDP_HF_NORM | DENDP_HF_POST_NORM},
    {DENDP_HF_BLOCK "post_feedforward_layernorm.weight", "blk.%u.post_ffw_norm.weight",
     DENDP_HF_NORM | DENDP_HF_POST_NORM},
    {DENDP_HF_BLOCK "mlp.gate_proj.weight", "blk.%u.ffn_gate.weight", 0},
    {DENDP_HF_BLOCK "mlp.up_proj.weight", "blk.%u.ffn_up.weight", 0},
    {DENDP_HF_BLOCK "mlp.down_proj.weight", "blk.%u.ffn_down.weight", 0},
    {DENDP_HF_BLOCK "mlp.gate_proj.bias", "blk.%u.ffn_gate.bias", DENDP_HF_FFN_BIAS},
    {DENDP_HF_BLOCK "mlp.up_proj.bias", "blk.%u.ffn_up.bias", DENDP_HF_FFN_BIAS},
    {DENDP_HF_BLOCK "mlp.down_proj.bias", "blk.%u.ffn_down.bias", DENDP_HF_FFN_BIAS},
    {DENDP_HF_BLOCK "self_attn.rotary_emb.inv_freq", NULL, 0}, /* follows from rope_theta */
};

#define DENDP_N_HF_NAMES (sizeof dendp_hf_names / sizeof dendp_hf_names[0])

/* Parts of names before "model." and "lm_head." of models that also see; what
 * stands before other names belongs to the part that sees, and is dropped. */
static const dendp_hf_name dendp_hf_prefixes[] = {
    {"language_model.", "", 0},       {"model.language_model.", "model.", 0},
    {"vision_tower.", NULL, 0},       {"multi_modal_projector.", NULL, 0},
    {"model.vision_tower.", NULL, 0}, {"model.multi_modal_projector.", NULL, 0},
};

#define DENDP_N_HF_PREFIXES (sizeof dendp_hf_prefixes / sizeof dendp_hf_prefixes[0])

/* A folder while it is read. */
typedef struct dendp_folder {
    const dend_model_desc *desc;
    dendp_gguf *g;
    const char *dir; /* with its slash, in the chain of g; NULL: the texts are in memory */
    dendp_file config;
    dendp_json top,
        text;    /* bookmarks at the braces of config.json's object and its text_config, or twice the same */
    bool nested; /* there is a text_config */
    const dendp_hf_family *family;
    uint64_t sizes[DENDP_N_HF_SIZES]; /* 0 where absent */
    bool tied, attn_bias, ffn_bias;
    uint64_t tied_where;
    float *rope_freqs; /* [n_rope_freqs], or NULL */
    uint32_t n_rope_freqs;
} dendp_folder;

/* -- files ------------------------------------------------------------------------ */

static bool dendp_ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Whether a description names a model in Hugging Face's form, not a GGUF file. */
static bool dendp_folder_is(const dend_model_desc *desc) {
    if (desc->path) {
        return dendp_ends_with(desc->path, ".safetensors") || dendp_path_is_folder(desc->path);
    }
    return desc->config_json != NULL;
}

/* dir + name, 0-terminated, in the chain; NULL when out of memory. */
static const char *dendp_folder_path(dendp_folder *f, const char *name) {
    size_t n = strlen(f->dir), m = strlen(name);
    char *path = (char *)dendp_chain_alloc(&f->g->chain, (uint64_t)n + m + 1);
    if (path) {
        memcpy(path, f->dir, n);
        memcpy(path + n, name, m + 1);
    }
    return path;
}

/* Marks an error with the file that its offset counts in; passes the status on. */
static dend_status dendp_in_file(dend_status status, const char *file, dend_error *err) {
    if (status != DEND_OK && err) {
        err->file = file;
    }
    return status;
}

/* Opens a file of the folder, of at most `most` bytes (0 = any); one that may be absent is then empty. */
static dend_status dendp_folder_file(dendp_folder *f, const char *name, uint64_t most, bool optional,
                                     dendp_file *out, dend_error *err) {
    const char *path = dendp_folder_path(f, name);
    dend_status status;
    memset(out, 0, sizeof *out);
    if (!path) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the path of a file", 0);
    }
    if (optional && !dendp_path_exists(path)) {
        return DEND_OK;
    }
    status = dendp_file_open(out, path, !f->desc->no_mmap, &f->desc->allocator, err);
    if (status == DEND_OK && most != 0 && out->size > most) {
        dendp_file_close(out);
        status =
            DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "JSON file is larger than the limit of this version", most);
    }
    return status;
}

/* f->dir: the folder itself, or the one that the file of weights lies in. */
static dend_status dendp_folder_dir(dendp_folder *f, dend_error *err) {
    const char *path = f->desc->path;
    size_t n = strlen(path);
    bool slash = true;
    char *dir;
    if (dendp_ends_with(path, ".safetensors") && !dendp_path_is_folder(path)) {
        while (n > 0 && path[n - 1] != '/' && !(path[n - 1] == '\\' && !DENDP_POSIX)) {
            n--;
        }
    } else {
        slash = n > 0 && path[n - 1] == '/';
    }
    dir = (char *)dendp_chain_alloc(&f->g->chain, (uint64_t)n + 2);
    if (!dir) {
        return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the path of a file", 0);
    }
    memcpy(dir, path, n);
    memcpy(dir + n, "/", 2);
    dir[n + (slash ? 0u : 1u)] = 0;
    f->dir = dir;
    return DEND_OK;
}

/* -- config.json: looking up ------------------------------------------------------- */

/* A key of the language model: of text_config where there is one, else of the
 * whole. Absent and null give kind END and NULL. */
static dend_status dendp_folder_get(const dendp_folder *f, const char *key, dendp_json *value,
                                    dend_error *err) {
    dend_status status = dendp_json_member(&f->text, key, value, err);
    if (status == DEND_OK && value->kind == DENDP_JSON_END && f->nested) {
        status = dendp_json_member(&f->top, key, value, err);
    }
    return status;
}

static bool dendp_json_given(const dendp_json *value) {
    return value->kind != DENDP_JSON_END && value->kind != DENDP_JSON_NULL;
}

/* A bool; absent leaves *out. */
static dend_status dendp_folder_bool(const dendp_folder *f, const char *key, bool *out, uint64_t *where,
                                     dend_error *err) {
    dendp_json v;
    dend_status status = dendp_folder_get(f, key, &v, err);
    if (status != DEND_OK || !dendp_json_given(&v)) {
        return status;
    }
    if (v.kind != DENDP_JSON_TRUE && v.kind != DENDP_JSON_FALSE) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "a switch of config.json is neither true nor false",
                          dendp_json_where(&v));
    }
    *out = v.kind == DENDP_JSON_TRUE;
    *where = dendp_json_where(&v);
    return status;
}

/* A number of `object`; absent leaves *out. *where is that of the value. */
static dend_status dendp_hf_number(const dendp_json *object, const char *key, double *out, uint64_t *where,
                                   dend_error *err) {
    dendp_json v;
    dend_status status = dendp_json_member(object, key, &v, err);
    if (status != DEND_OK || !dendp_json_given(&v)) {
        return status;
    }
    if (!dendp_json_f64(&v, out)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "no number where config.json must have one",
                          dendp_json_where(&v));
    }
    *where = dendp_json_where(&v);
    return status;
}

/* -- the keys of the catalogue ------------------------------------------------------ */

/* A new key "<arch>.<suffix>", or with arch NULL just the suffix; the value is
 * the caller's to fill in. NULL when out of memory. */
static dendp_gguf_kv *dendp_folder_kv(dendp_folder *f, const char *arch, const char *suffix, uint32_t type,
                                      uint64_t where) {
    dendp_gguf *g = f->g;
    size_t n = arch ? strlen(arch) + 1 : 0, m = strlen(suffix);
    char *key =
        g->n_kvs < DENDP_HF_MAX_KVS ? (char *)dendp_chain_alloc(&g->chain, (uint64_t)n + m + 1) : NULL;
    dendp_gguf_kv *kv = &g->kvs[g->n_kvs];
    if (!key) {
        return NULL;
    }
    if (arch) {
        memcpy(key, arch, n - 1);
        key[n - 1] = '.';
    }
    memcpy(key + n, suffix, m + 1);
    memset(kv, 0, sizeof *kv);
    kv->key = key;
    kv->key_len = (uint32_t)(n + m);
    kv->type = type;
    kv->offset = where;
    g->n_kvs++;
    return kv;
}

static dend_status dendp_folder_no_memory(dend_error *err) {
    return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the metadata", 0);
}

static dend_status dendp_folder_put_u64(dendp_folder *f, const char *suffix, uint64_t value, uint64_t where,
                                        dend_error *err) {
    dendp_gguf_kv *kv = dendp_folder_kv(f, f->family->arch, suffix, DENDP_GGUF_U64, where);
    if (!kv) {
        return dendp_folder_no_memory(err);
    }
    kv->bits = value;
    return DEND_OK;
}

static dend_status dendp_folder_put_f64(dendp_folder *f, const char *suffix, double value, uint64_t where,
                                        dend_error *err) {
    dendp_gguf_kv *kv = dendp_folder_kv(f, f->family->arch, suffix, DENDP_GGUF_F64, where);
    if (!kv) {
        return dendp_folder_no_memory(err);
    }
    memcpy(&kv->bits, &value, 8);
    return DEND_OK;
}

/* text must live with the catalogue. */
static dend_status dendp_folder_put_text(dendp_folder *f, const char *arch, const char *suffix,
                                         const char *text, uint64_t len, uint64_t where, dend_error *err) {
    dendp_gguf_kv *kv = dendp_folder_kv(f, arch, suffix, DENDP_GGUF_STRING, where);
    if (!kv) {
        return dendp_folder_no_memory(err);
    }
    kv->str = text;
    kv->str_len = len;
    return DEND_OK;
}

/* -- config.json: what the model is -------------------------------------------------- */

/* Finds the family by model_type, and holds architectures against it. */
static dend_status dendp_folder_family(dendp_folder *f, dend_error *err) {
    dendp_json type, list, name;
    size_t i;
    dend_status status = dendp_json_member(&f->text, "model_type", &type, err);
    if (status != DEND_OK) {
        return status;
    }
    if (type.kind != DENDP_JSON_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "model_type is missing or no string",
                          dendp_json_where(&type));
    }
    for (i = 0; i < DENDP_N_HF_FAMILIES && !f->family; i++) {
        f->family = dendp_json_is(&type, dendp_hf_families[i].model_type) ? &dendp_hf_families[i] : NULL;
    }
    for (i = 0; !f->family && i < sizeof dendp_refused_archs / sizeof dendp_refused_archs[0]; i++) {
        if (dendp_json_is(&type, dendp_refused_archs[i].name)) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_refused_archs[i].msg, dendp_json_where(&type));
        }
    }
    if (!f->family) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this model_type is not supported",
                          dendp_json_where(&type));
    }
    if (f->nested) { /* of the parts of a model that sees, the text is this */
        status = dendp_json_member(&f->top, "model_type", &name, err);
        if (status == DEND_OK && !(name.kind == DENDP_JSON_STRING && dendp_json_is(&name, "gemma3") &&
                                   strcmp(f->family->arch, "gemma3") == 0)) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "multimodal models are not supported",
                                dendp_json_where(&name));
        }
    }
    if (status == DEND_OK) {
        status = dendp_json_member(&f->top, "architectures", &list, err);
    }
    if (status != DEND_OK || !dendp_json_given(&list)) {
        return status;
    }
    name = list;
    if (list.kind == DENDP_JSON_ARRAY) {
        status = dendp_json_next(&name, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (list.kind != DENDP_JSON_ARRAY || name.kind != DENDP_JSON_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "architectures is no array of strings",
                          dendp_json_where(&list));
    }
    if (!dendp_json_is(&name, f->family->architecture) &&
        !(f->nested && dendp_json_is(&name, "Gemma3ForConditionalGeneration"))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                          "architectures names no language model of this model_type",
                          dendp_json_where(&name));
    }
    return DEND_OK;
}

/* Whether a value says no: absent, null, false, a zero, an empty list or object, an empty string. */
static dend_status dendp_json_says_no(const dendp_json *value, bool *no, dend_error *err) {
    dendp_json j = *value;
    double d = 1;
    dend_status status = DEND_OK;
    switch (value->kind) {
    case DENDP_JSON_NUMBER:
        *no = dendp_json_f64(value, &d) && d == 0;
        break;
    case DENDP_JSON_STRING:
        *no = value->len == 0;
        break;
    case DENDP_JSON_ARRAY:
    case DENDP_JSON_OBJECT:
        status = dendp_json_next(&j, err);
        *no = j.kind == DENDP_JSON_ARRAY_END || j.kind == DENDP_JSON_OBJECT_END;
        break;
    default:
        *no = value->kind != DENDP_JSON_TRUE;
        break;
    }
    return status;
}

/* A string that must be `want` unless it is absent. */
static dend_status dendp_folder_must_be(const dendp_folder *f, const char *key, const char *want,
                                        const char *msg, dend_error *err) {
    dendp_json v;
    dend_status status = dendp_folder_get(f, key, &v, err);
    if (status == DEND_OK && dendp_json_given(&v) &&
        !(v.kind == DENDP_JSON_STRING && dendp_json_is(&v, want))) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, msg, dendp_json_where(&v));
    }
    return status;
}

static dend_status dendp_folder_refusals(const dendp_folder *f, dend_error *err) {
    dend_status status = DEND_OK;
    bool causal = true;
    uint64_t where = 0;
    size_t i;
    for (i = 0; i < sizeof dendp_hf_refused / sizeof dendp_hf_refused[0] && status == DEND_OK; i++) {
        dendp_json v;
        bool no = true;
        status = dendp_folder_get(f, dendp_hf_refused[i].name, &v, err);
        if (status == DEND_OK) {
            status = dendp_json_says_no(&v, &no, err);
        }
        if (status == DEND_OK && !no) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_hf_refused[i].msg, dendp_json_where(&v));
        }
    }
    if (status == DEND_OK) {
        status = dendp_folder_bool(f, "is_causal", &causal, &where, err);
    }
    if (status == DEND_OK && !causal) {
        status =
            DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "attention that is not causal is not supported", where);
    }
    if (status == DEND_OK) {
        status =
            dendp_folder_must_be(f, "hidden_act", f->family->act, "this hidden_act is not supported", err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_must_be(f, "hidden_activation", f->family->act,
                                      "this hidden_activation is not supported", err);
    }
    return status;
}

/* Sizes, the norm's epsilon, and the switches that say which tensors there are. */
static dend_status dendp_folder_sizes(dendp_folder *f, dend_error *err) {
    dend_status status = DEND_OK;
    double eps = (double)f->family->eps;
    uint64_t where = 0;
    dendp_json v;
    size_t i;
    for (i = 0; i < DENDP_N_HF_SIZES && status == DEND_OK; i++) {
        const dendp_hf_size *size = &dendp_hf_sizes[i];
        uint64_t value = f->family->sizes[i];
        status = dendp_folder_get(f, size->key, &v, err);
        if (status != DEND_OK) {
            return status;
        }
        if (dendp_json_given(&v)) {
            if (!dendp_json_u64(&v, &value) || value > UINT32_MAX) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, size->malformed, dendp_json_where(&v));
            }
        } else if (value == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, size->missing, dendp_json_where(&v));
        } else if (value == DENDP_HF_ABSENT) {
            continue;
        }
        f->sizes[i] = value;
        status = dendp_folder_put_u64(f, size->suffix, value, dendp_json_where(&v), err);
        if (status == DEND_OK && size->suffix2) {
            status = dendp_folder_put_u64(f, size->suffix2, value, dendp_json_where(&v), err);
        }
    }
    if (status == DEND_OK) {
        status = dendp_folder_get(f, "rms_norm_eps", &v, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (dendp_json_given(&v) ? !dendp_json_f64(&v, &eps) : f->family->eps <= 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "rms_norm_eps is missing or no number", dendp_json_where(&v));
    }
    status = dendp_folder_put_f64(f, "attention.layer_norm_rms_epsilon", eps, dendp_json_where(&v), err);
    f->tied = f->family->tied;
    f->attn_bias = f->family->always_bias;
    if (status == DEND_OK) {
        status = dendp_folder_bool(f, "tie_word_embeddings", &f->tied, &f->tied_where, err);
    }
    if (status == DEND_OK && !f->family->always_bias) {
        status = dendp_folder_bool(f, "attention_bias", &f->attn_bias, &where, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_bool(f, "mlp_bias", &f->ffn_bias, &where, err);
    }
    return status;
}

/* Gemma states what scores are divided by the root of; GGUF does not, and each reader knows it. */
static dend_status dendp_folder_score_width(const dendp_folder *f, dend_error *err) {
    uint64_t heads = f->sizes[DENDP_HF_HEADS], width = f->sizes[DENDP_HF_HEAD_DIM], where = 0;
    double scalar = 256;
    dend_status status;
    if (strcmp(f->family->arch, "gemma3") != 0) {
        return DEND_OK;
    }
    status = dendp_hf_number(&f->text, "query_pre_attn_scalar", &scalar, &where, err);
    if (status == DEND_OK && f->sizes[DENDP_HF_LAYERS] == 62 && heads != 0) { /* the 27B */
        width = f->sizes[DENDP_HF_EMBD] / heads;
    }
    if (status == DEND_OK && scalar != (double)width) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this query_pre_attn_scalar is not supported", where);
    }
    return status;
}

/* Which layers slide, and how far those see. */
static dend_status dendp_folder_window(dendp_folder *f, dend_error *err) {
    dendp_json window, types, pattern;
    bool asked = !f->family->window_is_asked, some = false;
    uint64_t size = f->family->window, n = 0, where = 0, layers = f->sizes[DENDP_HF_LAYERS];
    unsigned char *slides = NULL;
    dendp_gguf_kv *kv;
    dend_status status = dendp_folder_bool(f, "use_sliding_window", &asked, &where, err);
    if (status == DEND_OK) {
        status = dendp_folder_get(f, "sliding_window", &window, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_get(f, "layer_types", &types, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_get(f, "sliding_window_pattern", &pattern, err);
    }
    if (status == DEND_OK && !dendp_json_given(&pattern)) { /* what newer versions write */
        status = dendp_folder_get(f, "_sliding_window_pattern", &pattern, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (dendp_json_given(&window) && (!dendp_json_u64(&window, &size) || size > UINT32_MAX)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "sliding_window is no integer from 0 to 2^32 - 1",
                          dendp_json_where(&window));
    }
    if (window.kind == DENDP_JSON_NULL || !asked || size == 0) {
        return DEND_OK;
    }
    where = dendp_json_where(&window);
    if (dendp_json_given(&types)) {
        if (types.kind != DENDP_JSON_ARRAY) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "layer_types is no array", dendp_json_where(&types));
        }
        slides = (unsigned char *)dendp_chain_alloc(&f->g->chain, layers < DENDP_MAX_LAYERS ? layers + 1 : 1);
        if (!slides) {
            return dendp_folder_no_memory(err);
        }
        while ((status = dendp_json_next(&types, err)) == DEND_OK && types.kind != DENDP_JSON_ARRAY_END) {
            bool sliding = types.kind == DENDP_JSON_STRING && dendp_json_is(&types, "sliding_attention");
            if (!sliding && !(types.kind == DENDP_JSON_STRING && dendp_json_is(&types, "full_attention"))) {
                return DENDP_FAIL(
                    err, DEND_ERR_UNSUPPORTED,
                    "layer_types other than full_attention and sliding_attention are not supported",
                    dendp_json_where(&types));
            }
            if (n == layers || n == DENDP_MAX_LAYERS) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "layer_types has not one value for each layer",
                                  dendp_json_where(&types));
            }
            slides[n++] = sliding ? 1 : 0;
            some = some || sliding;
        }
        if (status != DEND_OK) {
            return status;
        }
        if (n != layers) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "layer_types has not one value for each layer",
                              dendp_json_where(&types));
        }
        if (!some) {
            return DEND_OK;
        }
        kv = dendp_folder_kv(f, f->family->arch, "attention.sliding_window_pattern", DENDP_GGUF_ARRAY,
                             dendp_json_where(&types));
        if (!kv) {
            return dendp_folder_no_memory(err);
        }
        kv->elem_type = DENDP_GGUF_BOOL;
        kv->count = kv->elems_bytes = n;
        kv->elems = slides;
    } else if (dendp_json_given(&pattern)) {
        if (!dendp_json_u64(&pattern, &n) || n == 0 || n > UINT32_MAX) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "sliding_window_pattern is no integer from 1 to 2^32 - 1",
                              dendp_json_where(&pattern));
        }
        if (n == 1) { /* every layer is a first of one: none slides */
            return DEND_OK;
        }
        status =
            dendp_folder_put_u64(f, "attention.sliding_window_pattern", n, dendp_json_where(&pattern), err);
        if (status != DEND_OK) {
            return status;
        }
    }
    return dendp_folder_put_u64(f, "attention.sliding_window", size, where, err);
}

/* -- config.json: positions ------------------------------------------------------------ */

/* What is said of the positions of some layers. */
typedef struct dendp_hf_rope {
    dendp_json object; /* of rope_parameters or rope_scaling; kind OBJECT, else there is none */
    dendp_json type;   /* rope_type: kind STRING, else not said */
    double theta, factor;
    uint64_t theta_where, factor_where;
} dendp_hf_rope;

/* Reads what all kinds of scaling have in common. */
static dend_status dendp_hf_rope_read(dendp_hf_rope *rope, dend_error *err) {
    dend_status status = DEND_OK;
    double partial = 1;
    uint64_t where = 0;
    rope->type.kind = DENDP_JSON_END;
    rope->factor = 0;
    if (rope->object.kind != DENDP_JSON_OBJECT) {
        return DEND_OK;
    }
    status = dendp_json_member(&rope->object, "rope_type", &rope->type, err);
    if (status == DEND_OK && !dendp_json_given(&rope->type)) { /* what older versions write */
        status = dendp_json_member(&rope->object, "type", &rope->type, err);
    }
    if (status == DEND_OK && dendp_json_given(&rope->type) && rope->type.kind != DENDP_JSON_STRING) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "rope_type is no string", dendp_json_where(&rope->type));
    }
    if (status == DEND_OK) {
        status = dendp_hf_number(&rope->object, "rope_theta", &rope->theta, &rope->theta_where, err);
    }
    if (status == DEND_OK) {
        rope->factor_where = dendp_json_where(&rope->object);
        status = dendp_hf_number(&rope->object, "factor", &rope->factor, &rope->factor_where, err);
    }
    if (status == DEND_OK) {
        status = dendp_hf_number(&rope->object, "partial_rotary_factor", &partial, &where, err);
    }
    if (status == DEND_OK && partial != 1) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "partial_rotary_factor is not supported", where);
    }
    return status;
}

static bool dendp_hf_rope_is(const dendp_hf_rope *rope, const char *type) {
    return rope->type.kind == DENDP_JSON_STRING && dendp_json_is(&rope->type, type);
}

/* The divisors of Llama 3.1's scaling, in single precision as the converter
 * computes them. They differ from 1 and `factor` only where both are mixed. */
static dend_status dendp_folder_llama3(dendp_folder *f, const dendp_hf_rope *rope, dend_error *err) {
    double low = 0, high = 0, original = 0;
    uint64_t where = dendp_json_where(&rope->object), heads = f->sizes[DENDP_HF_HEADS];
    uint64_t width = f->sizes[DENDP_HF_HEAD_DIM], i;
    dend_status status = dendp_hf_number(&rope->object, "low_freq_factor", &low, &where, err);
    if (status == DEND_OK) {
        status = dendp_hf_number(&rope->object, "high_freq_factor", &high, &where, err);
    }
    if (status == DEND_OK) {
        status = dendp_hf_number(&rope->object, "original_max_position_embeddings", &original, &where, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (!(rope->factor >= 1e-3) || !(rope->factor <= 1e6) || !(low > 0) || !(high > low) || !(high <= 1e6) ||
        !(original >= 1) || !(original <= 1e12) || !(rope->theta >= 1) || !(rope->theta <= 1e12)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT,
                          "rope scaling llama3 lacks a number, or has one that makes no sense", where);
    }
    if (width == 0 && heads != 0) {
        width = f->sizes[DENDP_HF_EMBD] / heads;
    }
    if (width == 0 || width > DENDP_MAX_HEAD_DIM) {
        return DEND_OK; /* refused for that, later */
    }
    f->n_rope_freqs = (uint32_t)(width / 2);
    f->rope_freqs = (float *)dendp_chain_alloc(&f->g->chain, (width / 2 + 1) * sizeof(float));
    if (!f->rope_freqs) {
        return dendp_folder_no_memory(err);
    }
    for (i = 0; i < width / 2; i++) {
        float frequency = 1.0f / (float)pow(rope->theta, (double)((float)(2 * i) / (float)width));
        float length = 6.283185307179586f / frequency;
        if (length < (float)(original / high)) {
            f->rope_freqs[i] = 1.0f;
        } else if (length > (float)(original / low)) {
            f->rope_freqs[i] = (float)rope->factor;
        } else {
            float smooth = ((float)original / length - (float)low) / (float)(high - low);
            f->rope_freqs[i] = 1.0f / ((1.0f - smooth) / (float)rope->factor + smooth);
        }
    }
    return DEND_OK;
}

/* One number of YaRN: absent stays absent. */
static dend_status dendp_folder_copy_number(dendp_folder *f, const dendp_json *object, const char *key,
                                            const char *suffix, dend_error *err) {
    double value = 0;
    uint64_t where = 0;
    dend_status status = dendp_hf_number(object, key, &value, &where, err);
    return status == DEND_OK && where != 0 ? dendp_folder_put_f64(f, suffix, value, where, err) : status;
}

static dend_status dendp_folder_yarn(dendp_folder *f, const dendp_hf_rope *rope, dend_error *err) {
    static const char *const refused[] = {"mscale", "mscale_all_dim"};
    dendp_json v;
    uint64_t original = f->sizes[DENDP_HF_CTX];
    size_t i;
    dend_status status = dendp_json_member(&rope->object, "original_max_position_embeddings", &v, err);
    if (status == DEND_OK && dendp_json_given(&v) && !dendp_json_u64(&v, &original)) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "original_max_position_embeddings is no integer",
                            dendp_json_where(&v));
    }
    if (status == DEND_OK) {
        status = dendp_folder_put_u64(f, "rope.scaling.original_context_length", original,
                                      dendp_json_where(&v), err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_copy_number(f, &rope->object, "attention_factor",
                                          "rope.scaling.yarn_attn_factor", err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_copy_number(f, &rope->object, "beta_fast", "rope.scaling.yarn_beta_fast", err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_copy_number(f, &rope->object, "beta_slow", "rope.scaling.yarn_beta_slow", err);
    }
    for (i = 0; i < 2 && status == DEND_OK; i++) {
        status = dendp_json_member(&rope->object, refused[i], &v, err);
        if (status == DEND_OK && dendp_json_given(&v)) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "rope scaling yarn with mscale is not supported",
                                dendp_json_where(&v));
        }
    }
    if (status == DEND_OK) {
        status = dendp_json_member(&rope->object, "truncate", &v, err);
    }
    if (status == DEND_OK && v.kind == DENDP_JSON_FALSE) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                            "rope scaling yarn without truncation is not supported", dendp_json_where(&v));
    }
    return status;
}

/* The scaling of layers that see everything. */
static dend_status dendp_folder_scaling(dendp_folder *f, const dendp_hf_rope *rope, dend_error *err) {
    bool linear = dendp_hf_rope_is(rope, "linear"), yarn = dendp_hf_rope_is(rope, "yarn");
    dend_status status;
    if (!dendp_json_given(&rope->type) || dendp_hf_rope_is(rope, "default")) {
        return DEND_OK;
    }
    if (dendp_hf_rope_is(rope, "llama3") && f->family->reordered) {
        return dendp_folder_llama3(f, rope, err);
    }
    if (!linear && !yarn) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this rope scaling is not supported",
                          dendp_json_where(&rope->type));
    }
    if (!(rope->factor > 0)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "rope scaling has no positive factor", rope->factor_where);
    }
    status = dendp_folder_put_text(f, f->family->arch, "rope.scaling.type", linear ? "linear" : "yarn",
                                   linear ? 6 : 4, dendp_json_where(&rope->type), err);
    if (status == DEND_OK) {
        status = dendp_folder_put_f64(f, "rope.scaling.factor", rope->factor, rope->factor_where, err);
    }
    return status == DEND_OK && yarn ? dendp_folder_yarn(f, rope, err) : status;
}

/* Positions: rope_theta and rope_scaling, or what newer versions write in their
 * place, rope_parameters, where kinds of layers may differ. */
static dend_status dendp_folder_rope(dendp_folder *f, dend_error *err) {
    dendp_hf_rope full, local;
    dendp_json params, v;
    double partial = 1;
    uint64_t where = 0;
    dend_status status = dendp_folder_get(f, "rope_parameters", &params, err);
    if (status == DEND_OK && !dendp_json_given(&params)) {
        status = dendp_folder_get(f, "rope_scaling", &params, err);
    }
    if (status == DEND_OK && dendp_json_given(&params) && params.kind != DENDP_JSON_OBJECT) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "rope_scaling is no object", dendp_json_where(&params));
    }
    if (status != DEND_OK) {
        return status;
    }
    memset(&full, 0, sizeof full);
    memset(&local, 0, sizeof local);
    full.object = params;
    full.theta = (double)f->family->theta;
    local.object.kind = DENDP_JSON_END;
    if (params.kind == DENDP_JSON_OBJECT) {
        status = dendp_json_member(&params, "full_attention", &v, err);
        if (status == DEND_OK && v.kind == DENDP_JSON_OBJECT) {
            full.object = v;
            status = dendp_json_member(&params, "sliding_attention", &local.object, err);
        }
    }
    if (status == DEND_OK) {
        status = dendp_hf_number(&f->text, "rope_theta", &full.theta, &full.theta_where, err);
    }
    if (status == DEND_OK) {
        status = dendp_hf_number(&f->text, "partial_rotary_factor", &partial, &where, err);
    }
    if (status == DEND_OK && partial != 1) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "partial_rotary_factor is not supported", where);
    }
    if (status == DEND_OK) {
        status = dendp_hf_rope_read(&full, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_put_f64(f, "rope.freq_base", full.theta, full.theta_where, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_scaling(f, &full, err);
    }
    if (status != DEND_OK || f->family->window == 0) {
        return status;
    }
    local.theta = 10000; /* sliding layers of their own */
    local.theta_where = 0;
    status = dendp_hf_number(&f->text, "rope_local_base_freq", &local.theta, &local.theta_where, err);
    if (status == DEND_OK) {
        status = dendp_hf_rope_read(&local, err);
    }
    if (status == DEND_OK && dendp_json_given(&local.type) && !dendp_hf_rope_is(&local, "default")) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "rope scaling of sliding layers is not supported",
                            dendp_json_where(&local.type));
    }
    return status == DEND_OK
               ? dendp_folder_put_f64(f, "rope.freq_base_swa", local.theta, local.theta_where, err)
               : status;
}

/* All of config.json. */
static dend_status dendp_folder_read_config(dendp_folder *f, dend_error *err) {
    dendp_gguf *g = f->g;
    dendp_json j, v;
    dend_status status;
    g->kvs = (dendp_gguf_kv *)dendp_chain_alloc(&g->chain, DENDP_HF_MAX_KVS * sizeof *g->kvs);
    if (!g->kvs) {
        return dendp_folder_no_memory(err);
    }
    dendp_json_open(&j, f->config.data, f->config.size, 0);
    status = dendp_json_next(&j, err);
    if (status == DEND_OK && j.kind != DENDP_JSON_OBJECT) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "config.json is no JSON object", dendp_json_where(&j));
    }
    f->top = f->text = j;
    if (status == DEND_OK) { /* all of it is JSON, up to the end */
        status = dendp_json_skip(&j, err);
    }
    if (status == DEND_OK) {
        status = dendp_json_next(&j, err);
    }
    if (status == DEND_OK) {
        status = dendp_json_member(&f->top, "text_config", &v, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (v.kind == DENDP_JSON_OBJECT) {
        f->text = v;
        f->nested = true;
    }
    status = dendp_folder_family(f, err);
    if (status == DEND_OK) {
        status = dendp_folder_put_text(f, NULL, "general.architecture", f->family->arch,
                                       strlen(f->family->arch), 0, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_refusals(f, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_sizes(f, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_score_width(f, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_window(f, err);
    }
    if (status == DEND_OK) {
        status = dendp_folder_rope(f, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    g->kv_order = dendp_gguf_sorted(g, g->n_kvs, dendp_gguf_compare_keys, g->kvs);
    return g->kv_order ? DEND_OK : dendp_folder_no_memory(err);
}
