/* ==========================================================================
 * >>02.07 FOLDER: a Hugging Face model, told in GGUF's words
 * ==========================================================================
 * Models are published as folders:
 *
 *     config.json                     what the model is
 *     model.safetensors               its weights; or, in several files,
 *     model.safetensors.index.json      which of them holds which tensor
 *     tokenizer.json, ...             room 02.15 reads those
 *
 * This room and the next two make of such a folder the catalogue that a GGUF
 * file would give (02.02): the same keys and names, shapes with the fast
 * dimension first, and conversions (02.05) where the two store different
 * things. So everything that is checked, refused and loaded is checked, refused
 * and loaded once, and a model gives the same bits from either container.
 *
 * Two tables here hold the translation. dendp_hf_families says how Hugging
 * Face's families differ, and what their configurations leave out because it is
 * a default of their Python class. dendp_hf_names maps tensors. The rest of
 * this room finds files and keys; room 02.08 reads config.json, 02.09 weights.
 *
 * config.json is never kept as a tree: each key is looked up by reading the
 * text (at most 1 MB) again, and one that stands there twice is refused.
 * Offsets in errors count in the file that dend_error.file names.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

#define DENDP_HF_MAX_CONFIG (1u << 20)
#define DENDP_HF_MAX_INDEX (64u << 20)
#define DENDP_HF_MAX_SHARDS 1024u
#define DENDP_HF_MAX_LOOKED (1u << 28) /* 32,768 tensors in any order, in 256 files with names of 60 bytes */
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

/* clang-format off */
static const dendp_hf_family dendp_hf_families[] = {
    /* reordered, plus_one, post_norms, always_bias, tied; eps, theta; window, window_is_asked; sizes */
    {"llama", "LlamaForCausalLM", "llama", "silu",
     true, false, false, false, false, 0, 10000, 0, false,
     {0, 0, 0, 0, 0, DENDP_HF_ABSENT, DENDP_HF_ABSENT, 0}},
    {"mistral", "MistralForCausalLM", "llama", "silu",
     true, false, false, false, false, 0, 10000, 0, false,
     {0, 0, 0, 0, 0, 0, DENDP_HF_ABSENT, 0}},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", "silu",
     false, false, false, true, false, 0, 10000, 0, true,
     {0, 0, 0, 0, 0, 0, DENDP_HF_ABSENT, 0}},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", "silu",
     false, false, false, false, false, 0, 10000, 0, true,
     {0, 0, 0, 0, 0, 0, 128, 0}},
    {"gemma3_text", "Gemma3ForCausalLM", "gemma3", "gelu_pytorch_tanh",
     false, true, true, false, true, 1e-6f, 1000000, 4096, false,
     {0, 0, 0, 131072, 8, 4, 256, 262208}},
};
/* clang-format on */

#define DENDP_N_HF_FAMILIES (sizeof dendp_hf_families / sizeof dendp_hf_families[0])

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

#endif /* DEND_NO_FOLDERS */
