/* ==========================================================================
 * >>02.04 MODEL CONFIG: which family a model is of, its sizes, the tensors it must have
 * ==========================================================================
 * A GGUF file says what it is by general.architecture and describes itself by
 * keys that begin with that word ("llama.block_count"). This room turns them
 * into one dendp_config, and compares the tensors with what the family needs,
 * so that every later room may take shapes and presence for granted.
 *
 * A family is a row of dendp_families: the pre-norm transformer
 *
 *     x  = embed(token) [* sqrt(D)]
 *     x += [norm] O attention(rope([norm] Q norm(x)), rope([norm] K norm(x)), V norm(x))
 *     x += [norm] down(act(gate norm(x)) * up norm(x))
 *
 * and what varies in it. What stands in brackets is there when its tensor is,
 * or its flag; a bias may stand behind each matrix; act is SiLU or GELU. A new
 * family adds a row here, a flag where it differs in a new way, and its tensors
 * to dendp_tensor_specs; rooms that read a flag never ask for a name.
 * SLIDING layers see only a window: q sees k when q - k < window.
 *
 * Rotary embedding turns pairs of a head's values by position * frequency,
 * which is base^(-2i/n) of pair i, scaled as the file says (dendp_rope). Sliding
 * layers may have frequencies of their own. Which two values make a pair:
 *
 *     INTERLEAVED  (0, 1) (2, 3) ...    llama: converters reorder the rows of
 *                                       Q and K so that this gives the same
 *     HALVES       (0, n/2) (1, n/2+1)  qwen and gemma, as the original models do it
 *
 * A file that asks for anything that the formulas above lack is refused with
 * its reason: computing on without it would give wrong tokens and no error.
 * Hence three checks against silence: architectures that are known but differ
 * are listed with the reason; keys that change the results are listed too and
 * must be absent or 0; and a tensor that the family does not use (a bias, say)
 * is an error.
 *
 * The limits keep every product of two sizes below 2^36, so later rooms may
 * multiply two of them in 64 bits without looking.
 * Cost: O(n log n) for n tensors.
 * ======================================================================== */

#define DENDP_MAX_LAYERS 1024u
#define DENDP_MAX_EMBD 65536u
#define DENDP_MAX_HEADS 1024u
#define DENDP_MAX_HEAD_DIM 512u
#define DENDP_MAX_FF (1u << 20)
#define DENDP_MAX_VOCAB (1u << 24)
#define DENDP_MAX_CTX_TRAIN (1u << 30)

typedef enum dendp_rope_kind { DENDP_ROPE_INTERLEAVED, DENDP_ROPE_HALVES } dendp_rope_kind;

/* -- the tensors of a model ---------------------------------------------------- */

typedef enum dendp_tensor_role {
    DENDP_TENSOR_EMBD = 0,
    DENDP_TENSOR_OUT_NORM,
    DENDP_TENSOR_HEAD,
    DENDP_TENSOR_ROPE_FREQS,
    DENDP_TENSOR_ATTN_NORM, /* this and those that follow: one a layer */
    DENDP_TENSOR_Q,
    DENDP_TENSOR_K,
    DENDP_TENSOR_V,
    DENDP_TENSOR_O,
    DENDP_TENSOR_Q_BIAS,
    DENDP_TENSOR_K_BIAS,
    DENDP_TENSOR_V_BIAS,
    DENDP_TENSOR_O_BIAS,
    DENDP_TENSOR_Q_NORM,
    DENDP_TENSOR_K_NORM,
    DENDP_TENSOR_ATTN_POST_NORM,
    DENDP_TENSOR_FFN_NORM,
    DENDP_TENSOR_GATE,
    DENDP_TENSOR_UP,
    DENDP_TENSOR_DOWN,
    DENDP_TENSOR_GATE_BIAS,
    DENDP_TENSOR_UP_BIAS,
    DENDP_TENSOR_DOWN_BIAS,
    DENDP_TENSOR_FFN_POST_NORM,
    DENDP_N_TENSOR_ROLES
} dendp_tensor_role;

/* Sets of roles. */
#define DENDP_HAS(role) ((uint32_t)1 << DENDP_TENSOR_##role)
#define DENDP_HAS_PLAIN                                                                                      \
    (DENDP_HAS(EMBD) | DENDP_HAS(OUT_NORM) | DENDP_HAS(ATTN_NORM) | DENDP_HAS(Q) | DENDP_HAS(K) |            \
     DENDP_HAS(V) | DENDP_HAS(O) | DENDP_HAS(FFN_NORM) | DENDP_HAS(GATE) | DENDP_HAS(UP) | DENDP_HAS(DOWN))
#define DENDP_HAS_QKV_BIASES (DENDP_HAS(Q_BIAS) | DENDP_HAS(K_BIAS) | DENDP_HAS(V_BIAS))
#define DENDP_HAS_OTHER_BIASES                                                                               \
    (DENDP_HAS(O_BIAS) | DENDP_HAS(GATE_BIAS) | DENDP_HAS(UP_BIAS) | DENDP_HAS(DOWN_BIAS))
#define DENDP_HAS_QK_NORMS (DENDP_HAS(Q_NORM) | DENDP_HAS(K_NORM))
#define DENDP_HAS_POST_NORMS (DENDP_HAS(ATTN_POST_NORM) | DENDP_HAS(FFN_POST_NORM))
#define DENDP_HAS_OWN_HEAD DENDP_HAS(HEAD)
#define DENDP_HAS_ROPE_FREQS DENDP_HAS(ROPE_FREQS)

/* Which layers slide when the file states a window and no pattern: none, for want of such layers; all; or all but
 * every n-th. */
#define DENDP_SLIDES_NEVER (-1)
#define DENDP_SLIDES_ALWAYS 0

typedef struct dendp_family {
    const char *arch; /* general.architecture */
    dendp_rope_kind rope;
    uint32_t needs, allows; /* sets of roles: each model has these tensors, and may have those */
    int32_t slides;         /* DENDP_SLIDES_*, or n */
    float local_rope_base;  /* of sliding layers, where the file says nothing; 0 = that of the others */
    uint32_t wide_layers;   /* in models of so many layers scores are scaled by D/H, not by d; 0 = in none */
    bool gelu;              /* act is GELU, not SiLU */
    bool scaled_embd;       /* by sqrt(D) */
} dendp_family;

static const dendp_family dendp_families[] = {
    /* TinyLlama, SmolLM2, Llama 1 to 3, and Mistral, which converters call llama too */
    {"llama", DENDP_ROPE_INTERLEAVED, DENDP_HAS_PLAIN,
     DENDP_HAS_OWN_HEAD | DENDP_HAS_ROPE_FREQS | DENDP_HAS_QKV_BIASES | DENDP_HAS_OTHER_BIASES,
     DENDP_SLIDES_ALWAYS, 0, 0, false, false},
    {"mistral", DENDP_ROPE_INTERLEAVED, DENDP_HAS_PLAIN, DENDP_HAS_OWN_HEAD | DENDP_HAS_ROPE_FREQS,
     DENDP_SLIDES_ALWAYS, 0, 0, false, false},
    /* Qwen2, Qwen2.5 */
    {"qwen2", DENDP_ROPE_HALVES, DENDP_HAS_PLAIN | DENDP_HAS_QKV_BIASES,
     DENDP_HAS_OWN_HEAD | DENDP_HAS_ROPE_FREQS, DENDP_SLIDES_NEVER, 0, 0, false, false},
    {"qwen3", DENDP_ROPE_HALVES, DENDP_HAS_PLAIN | DENDP_HAS_QK_NORMS,
     DENDP_HAS_OWN_HEAD | DENDP_HAS_ROPE_FREQS, DENDP_SLIDES_NEVER, 0, 0, false, false},
    /* the text of Gemma 3; its 27B is the one with 62 layers */
    {"gemma3", DENDP_ROPE_HALVES, DENDP_HAS_PLAIN | DENDP_HAS_QK_NORMS | DENDP_HAS_POST_NORMS,
     DENDP_HAS_OWN_HEAD, 6, 10000, 62, true, true},
};

#define DENDP_N_FAMILIES (sizeof dendp_families / sizeof dendp_families[0])

/* The frequencies of some layers.
 * LINEAR  (Chen et al., "Extending context window of large language models via
 *         positional interpolation", 2023): all frequencies times `scale`.
 * YARN    (Peng et al., "YaRN: efficient context window extension of large
 *         language models", 2023): pairs up to `low` turn fast and keep their
 *         frequency, those from `high` on turn slowly and are scaled, and
 *         those between are mixed. The rotated part is multiplied by `magnitude`. */
typedef struct dendp_rope {
    float base;
    float scale;     /* 1 = none */
    float magnitude; /* cos and sin are multiplied by it: 1 = none */
    bool yarn;
    float low, high; /* with yarn */
} dendp_rope;

typedef struct dendp_config {
    const dendp_family *family;
    uint32_t tensors;     /* set of roles that the model has */
    uint32_t n_vocab;     /* V */
    uint32_t n_layers;    /* L */
    uint32_t n_embd;      /* D */
    uint32_t n_heads;     /* H, a multiple of G */
    uint32_t n_kv_heads;  /* G */
    uint32_t head_dim;    /* d, even; H * d need not be D */
    uint32_t n_rot;       /* values of a head that rope turns: even, at most d, the first ones */
    uint32_t n_ff;        /* F */
    uint32_t n_ctx_train; /* tokens */
    uint32_t
        n_ctx_orig; /* tokens that it was trained for before its positions were scaled; 0 = n_ctx_train */
    float norm_eps;
    float embd_scale;                        /* rows of the embedding are multiplied by it: 1 = none */
    float score_width;                       /* scores are divided by its root */
    dendp_rope rope;                         /* of layers that see everything */
    dendp_rope rope_local;                   /* of sliding layers */
    bool tied_head;                          /* there is no output.weight: the embedding is the head */
    bool has_rope_freqs;                     /* rope_freqs.weight divides the frequency of each pair */
    uint32_t window;                         /* of sliding layers, in tokens; 0 = there are none */
    uint32_t sliding[DENDP_MAX_LAYERS / 32]; /* a bit for each layer */
} dendp_config;

/* Whether a layer sees no further than the window. */
static bool dendp_config_slides(const dendp_config *c, uint32_t layer) {
    return c->sliding[layer / 32] >> (layer % 32) & 1u;
}

/* A size by name; dendp_config_extent gives the number. */
typedef enum dendp_extent {
    DENDP_EXTENT_ONE, /* as rows: the tensor is a vector */
    DENDP_EXTENT_EMBD,
    DENDP_EXTENT_VOCAB,
    DENDP_EXTENT_FF,
    DENDP_EXTENT_Q,        /* H * d */
    DENDP_EXTENT_KV,       /* G * d */
    DENDP_EXTENT_HEAD,     /* d */
    DENDP_EXTENT_ROT_PAIRS /* n_rot / 2 */
} dendp_extent;

typedef struct dendp_tensor_spec {
    dendp_tensor_role role;          /* = its index in the table */
    const char *name;                /* %u stands for the layer */
    dendp_extent rows;               /* dims[1]: outputs */
    dendp_extent cols;               /* dims[0]: inputs, contiguous */
    const char *missing, *misshapen; /* the errors */
} dendp_tensor_spec;

#define DENDP_SPEC(role, name, rows, cols)                                                                   \
    {                                                                                                        \
        DENDP_TENSOR_##role, name, DENDP_EXTENT_##rows, DENDP_EXTENT_##cols, name " is missing",             \
            name " has the wrong shape"                                                                      \
    }

/* The one list of tensors: the check below and the loader walk it. */
static const dendp_tensor_spec dendp_tensor_specs[DENDP_N_TENSOR_ROLES] = {
    /* role, name, rows, columns */
    DENDP_SPEC(EMBD, "token_embd.weight", VOCAB, EMBD),
    DENDP_SPEC(OUT_NORM, "output_norm.weight", ONE, EMBD),
    DENDP_SPEC(HEAD, "output.weight", VOCAB, EMBD),
    DENDP_SPEC(ROPE_FREQS, "rope_freqs.weight", ONE, ROT_PAIRS),
    DENDP_SPEC(ATTN_NORM, "blk.%u.attn_norm.weight", ONE, EMBD),
    DENDP_SPEC(Q, "blk.%u.attn_q.weight", Q, EMBD),
    DENDP_SPEC(K, "blk.%u.attn_k.weight", KV, EMBD),
    DENDP_SPEC(V, "blk.%u.attn_v.weight", KV, EMBD),
    DENDP_SPEC(O, "blk.%u.attn_output.weight", EMBD, Q),
    DENDP_SPEC(Q_BIAS, "blk.%u.attn_q.bias", ONE, Q),
    DENDP_SPEC(K_BIAS, "blk.%u.attn_k.bias", ONE, KV),
    DENDP_SPEC(V_BIAS, "blk.%u.attn_v.bias", ONE, KV),
    DENDP_SPEC(O_BIAS, "blk.%u.attn_output.bias", ONE, EMBD),
    DENDP_SPEC(Q_NORM, "blk.%u.attn_q_norm.weight", ONE, HEAD),
    DENDP_SPEC(K_NORM, "blk.%u.attn_k_norm.weight", ONE, HEAD),
    DENDP_SPEC(ATTN_POST_NORM, "blk.%u.post_attention_norm.weight", ONE, EMBD),
    DENDP_SPEC(FFN_NORM, "blk.%u.ffn_norm.weight", ONE, EMBD),
    DENDP_SPEC(GATE, "blk.%u.ffn_gate.weight", FF, EMBD),
    DENDP_SPEC(UP, "blk.%u.ffn_up.weight", FF, EMBD),
    DENDP_SPEC(DOWN, "blk.%u.ffn_down.weight", EMBD, FF),
    DENDP_SPEC(GATE_BIAS, "blk.%u.ffn_gate.bias", ONE, FF),
    DENDP_SPEC(UP_BIAS, "blk.%u.ffn_up.bias", ONE, FF),
    DENDP_SPEC(DOWN_BIAS, "blk.%u.ffn_down.bias", ONE, EMBD),
    DENDP_SPEC(FFN_POST_NORM, "blk.%u.post_ffw_norm.weight", ONE, EMBD),
};

#undef DENDP_SPEC

static bool dendp_spec_per_layer(const dendp_tensor_spec *spec) {
    return spec->role >= DENDP_TENSOR_ATTN_NORM;
}

/* How many tensors of this role a model has: 0, 1 or L. */
static uint32_t dendp_spec_count(const dendp_tensor_spec *spec, const dendp_config *c) {
    bool exists = c->tensors >> spec->role & 1u;
    return !exists ? 0 : dendp_spec_per_layer(spec) ? c->n_layers : 1;
}

static uint32_t dendp_config_extent(const dendp_config *c, dendp_extent extent) {
    switch (extent) {
    case DENDP_EXTENT_ONE:
        break;
    case DENDP_EXTENT_EMBD:
        return c->n_embd;
    case DENDP_EXTENT_VOCAB:
        return c->n_vocab;
    case DENDP_EXTENT_FF:
        return c->n_ff;
    case DENDP_EXTENT_Q:
        return c->n_heads * c->head_dim;
    case DENDP_EXTENT_KV:
        return c->n_kv_heads * c->head_dim;
    case DENDP_EXTENT_HEAD:
        return c->head_dim;
    case DENDP_EXTENT_ROT_PAIRS:
        return c->n_rot / 2;
    }
    return 1;
}

/* Writes `format` with %u replaced by the layer, 0-terminated; false when it does not fit. */
static bool dendp_config_tensor_name(char *buf, size_t cap, const char *format, uint32_t layer) {
    char digits[10];
    size_t n = 0, n_digits = 0;
    for (; *format; format++) {
        if (format[0] == '%' && format[1] == 'u') {
            uint32_t rest = layer;
            format++;
            do {
                digits[n_digits++] = (char)('0' + rest % 10);
                rest /= 10;
            } while (rest != 0);
            while (n_digits > 0) {
                if (n + 1 >= cap) {
                    return false;
                }
                buf[n++] = digits[--n_digits];
            }
        } else {
            if (n + 1 >= cap) {
                return false;
            }
            buf[n++] = *format;
        }
    }
    if (n >= cap) {
        return false;
    }
    buf[n] = 0;
    return true;
}

/* The tensor of a role and layer (0 for those that are not of a layer), or NULL. */
static const dendp_gguf_tensor *dendp_config_tensor(const dendp_gguf *g, const dendp_tensor_spec *spec,
                                                    uint32_t layer) {
    char name[DENDP_GGUF_MAX_NAME + 1];
    return dendp_config_tensor_name(name, sizeof name, spec->name, layer) ? dendp_gguf_tensor_find(g, name)
                                                                          : NULL;
}

/* True when `name` is the spec's name with a layer below n_layers, written without leading zeros. */
static bool dendp_spec_matches(const dendp_tensor_spec *spec, const char *name, uint32_t n_layers) {
    const char *f = spec->name;
    for (; *f && *name; f++) {
        if (f[0] == '%' && f[1] == 'u') {
            uint32_t layer = 0, n_digits = 0;
            f++;
            while (*name >= '0' && *name <= '9' && n_digits < 9) {
                if (n_digits == 1 && layer == 0) {
                    return false;
                }
                layer = layer * 10 + (uint32_t)(*name++ - '0');
                n_digits++;
            }
            if (n_digits == 0 || layer >= n_layers) {
                return false;
            }
        } else if (*f != *name++) {
            return false;
        }
    }
    return *f == *name;
}

/* Whether sliding layers rotate by other frequencies than the rest. */
static bool dendp_config_two_ropes(const dendp_config *c) {
    return c->window != 0 && (c->rope_local.base != c->rope.base || c->rope_local.scale != c->rope.scale);
}

/* -- what is refused, with the reason ------------------------------------------- */

typedef struct dendp_refusal {
    const char *name, *msg;
} dendp_refusal;

#define DENDP_MOE "mixture-of-experts models are not supported"
#define DENDP_MLA "multi-head latent attention is not supported"
#define DENDP_RECURRENT "recurrent and hybrid models are not supported"
#define DENDP_MULTIMODAL "multimodal models are not supported"
#define DENDP_ENCODER "encoder models are not supported"

/* Architectures that exist and differ in ways that have a name. */
static const dendp_refusal dendp_refused_archs[] = {
    {"arctic", DENDP_MOE},           {"bailingmoe", DENDP_MOE},     {"bert", DENDP_ENCODER},
    {"clip", DENDP_MULTIMODAL},      {"dbrx", DENDP_MOE},           {"deepseek", DENDP_MOE},
    {"deepseek2", DENDP_MLA},        {"ernie4_5-moe", DENDP_MOE},   {"falcon-h1", DENDP_RECURRENT},
    {"glm4moe", DENDP_MOE},          {"gpt-oss", DENDP_MOE},        {"granitehybrid", DENDP_RECURRENT},
    {"granitemoe", DENDP_MOE},       {"grok", DENDP_MOE},           {"jamba", DENDP_RECURRENT},
    {"lfm2", DENDP_RECURRENT},       {"llama4", DENDP_MOE},         {"mamba", DENDP_RECURRENT},
    {"mamba2", DENDP_RECURRENT},     {"minicpm3", DENDP_MLA},       {"modern-bert", DENDP_ENCODER},
    {"nemotron_h", DENDP_RECURRENT}, {"nomic-bert", DENDP_ENCODER}, {"olmoe", DENDP_MOE},
    {"phimoe", DENDP_MOE},           {"plamo2", DENDP_RECURRENT},   {"plm", DENDP_MLA},
    {"qwen2moe", DENDP_MOE},         {"qwen2vl", DENDP_MULTIMODAL}, {"qwen3moe", DENDP_MOE},
    {"qwen3next", DENDP_RECURRENT},  {"qwen3vl", DENDP_MULTIMODAL}, {"rwkv6", DENDP_RECURRENT},
    {"rwkv7", DENDP_RECURRENT},      {"t5", DENDP_ENCODER},         {"t5encoder", DENDP_ENCODER},
};

/* Keys behind "<arch>." that change the results unless they are absent or 0. */
static const dendp_refusal dendp_refused_keys[] = {
    {"expert_count", DENDP_MOE},
    {"attention.kv_lora_rank", DENDP_MLA},
    {"attention.q_lora_rank", DENDP_MLA},
    {"ssm.state_size", DENDP_RECURRENT},
    {"ssm.inner_size", DENDP_RECURRENT},
    {"attention.clamp_kqv", "attention.clamp_kqv is not supported"},
    {"attention.max_alibi_bias", "ALiBi positions are not supported"},
    {"attention.scale", "attention.scale is not supported"},
    {"attn_logit_softcapping", "capped attention scores are not supported"},
    {"final_logit_softcapping", "capped logits are not supported"},
    {"embedding_scale", "embedding_scale is not supported"},
    {"residual_scale", "residual_scale is not supported"},
    {"logit_scale", "logit_scale is not supported"},
    {"use_parallel_residual", "parallel residuals are not supported"},
    {"rope.dimension_sections", "multimodal rope sections are not supported"},
    {"rope.scaling.alpha", "rope.scaling.alpha is not supported"},
    {"rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_log_multiplier is not supported"},
    {"attention.temperature_scale", "attention scores scaled by position are not supported"},
};

#undef DENDP_MOE
#undef DENDP_MLA
#undef DENDP_RECURRENT
#undef DENDP_MULTIMODAL
#undef DENDP_ENCODER

/* -- hyper-parameters ------------------------------------------------------------ */

/* The key "<arch>.<suffix>", or NULL. Both parts come from the tables of this room, hence fit. */
static const dendp_gguf_kv *dendp_config_kv(const dendp_gguf *g, const dendp_config *c, const char *suffix) {
    char key[96];
    size_t n = strlen(c->family->arch), m = strlen(suffix);
    if (n + 1 + m >= sizeof key) {
        return NULL;
    }
    memcpy(key, c->family->arch, n);
    key[n] = '.';
    memcpy(key + n + 1, suffix, m + 1);
    return dendp_gguf_find(g, key);
}

/* An integer hyper-parameter, and where it goes. */
typedef struct dendp_hyper {
    const char *suffix;
    size_t field; /* offset in dendp_config */
    uint32_t most;
    bool required;
    const char *missing, *malformed, *too_large; /* the errors */
} dendp_hyper;

#define DENDP_HYPER(suffix, field, most, required)                                                           \
    {                                                                                                        \
        suffix, offsetof(dendp_config, field), most, required, suffix " is missing",                         \
            suffix " is no positive integer", suffix " is above the limit of this version"                   \
    }

static const dendp_hyper dendp_hypers[] = {
    DENDP_HYPER("block_count", n_layers, DENDP_MAX_LAYERS, true),
    DENDP_HYPER("embedding_length", n_embd, DENDP_MAX_EMBD, true),
    DENDP_HYPER("feed_forward_length", n_ff, DENDP_MAX_FF, true),
    DENDP_HYPER("context_length", n_ctx_train, DENDP_MAX_CTX_TRAIN, true),
    DENDP_HYPER("attention.head_count", n_heads, DENDP_MAX_HEADS, true),
    DENDP_HYPER("attention.head_count_kv", n_kv_heads, DENDP_MAX_HEADS, false),
    DENDP_HYPER("attention.key_length", head_dim, DENDP_MAX_HEAD_DIM, false),
    DENDP_HYPER("rope.dimension_count", n_rot, DENDP_MAX_HEAD_DIM, false),
    DENDP_HYPER("rope.scaling.original_context_length", n_ctx_orig, DENDP_MAX_CTX_TRAIN, false),
    DENDP_HYPER("vocab_size", n_vocab, DENDP_MAX_VOCAB, false),
};

#undef DENDP_HYPER

#define DENDP_N_HYPERS (sizeof dendp_hypers / sizeof dendp_hypers[0])

/* An integer from 1 to most, of any integer type; absent leaves *out as it is. */
static dend_status dendp_hyper_read(const dendp_gguf_kv *kv, const dendp_hyper *h, uint32_t *out,
                                    dend_error *err) {
    if (!kv) {
        return h->required ? DENDP_FAIL(err, DEND_ERR_FORMAT, h->missing, 0) : DEND_OK;
    }
    switch (kv->type) {
    case DENDP_GGUF_ARRAY:
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "sizes that differ between layers are not supported",
                          kv->offset);
    case DENDP_GGUF_F32:
    case DENDP_GGUF_F64:
    case DENDP_GGUF_BOOL:
    case DENDP_GGUF_STRING:
        return DENDP_FAIL(err, DEND_ERR_FORMAT, h->malformed, kv->offset);
    case DENDP_GGUF_I8:
    case DENDP_GGUF_I16:
    case DENDP_GGUF_I32:
    case DENDP_GGUF_I64:
        if (kv->bits >> 63) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, h->malformed, kv->offset);
        }
        break;
    default:
        break;
    }
    if (kv->bits == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, h->malformed, kv->offset);
    }
    if (kv->bits > h->most) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, h->too_large, kv->offset);
    }
    *out = (uint32_t)kv->bits;
    return DEND_OK;
}

/* A float in [least, most]; absent leaves *out as it is. Wrong type, NaN and infinity are malformed. */
static dend_status dendp_config_float(const dendp_gguf *g, const dendp_gguf_kv *kv, float least, float most,
                                      const char *malformed, float *out, dend_error *err) {
    float f = 0;
    if (!kv) {
        return DEND_OK;
    }
    if (dendp_gguf_f32(g, kv->key, &f) != DENDP_FOUND || f < least || f > most) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, malformed, kv->offset);
    }
    *out = f;
    return DEND_OK;
}

static bool dendp_text_is(const char *s, uint64_t len, const char *text) {
    return len == strlen(text) && memcmp(s, text, (size_t)len) == 0;
}

/* Finds the family, or says why there is none. */
static dend_status dendp_config_family(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, "general.type");
    const char *arch = NULL;
    uint64_t len = 0;
    uint32_t n_splits = 0;
    size_t i;
    if (kv && (kv->type != DENDP_GGUF_STRING || !dendp_text_is(kv->str, kv->str_len, "model"))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                          "general.type says that this is not a model (an adapter?)", kv->offset);
    }
    if (dendp_gguf_u32(g, "split.count", &n_splits) == DENDP_FOUND && n_splits > 1) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "models split over several files are not supported",
                          dendp_gguf_find(g, "split.count")->offset);
    }
    if (dendp_gguf_str(g, "general.architecture", &arch, &len) != DENDP_FOUND) {
        kv = dendp_gguf_find(g, "general.architecture");
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "general.architecture is missing or no string",
                          kv ? kv->offset : 0);
    }
    for (i = 0; i < DENDP_N_FAMILIES; i++) {
        if (dendp_text_is(arch, len, dendp_families[i].arch)) {
            c->family = &dendp_families[i];
            return DEND_OK;
        }
    }
    kv = dendp_gguf_find(g, "general.architecture");
    for (i = 0; i < sizeof dendp_refused_archs / sizeof dendp_refused_archs[0]; i++) {
        if (dendp_text_is(arch, len, dendp_refused_archs[i].name)) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_refused_archs[i].msg, kv->offset);
        }
    }
    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this architecture is not supported", kv->offset);
}

/* Keys that would change the results in ways that the family does not compute. */
static dend_status dendp_config_refusals(const dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *kv;
    size_t i;
    for (i = 0; i < sizeof dendp_refused_keys / sizeof dendp_refused_keys[0]; i++) {
        kv = dendp_config_kv(g, c, dendp_refused_keys[i].name);
        if (kv && (kv->type == DENDP_GGUF_STRING || kv->type == DENDP_GGUF_ARRAY || kv->bits != 0)) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_refused_keys[i].msg, kv->offset);
        }
    }
    kv = dendp_config_kv(g, c, "attention.causal");
    if (kv && (kv->type != DENDP_GGUF_BOOL || kv->bits != 1)) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "attention that is not causal is not supported",
                          kv->offset);
    }
    return DEND_OK;
}

/* Element i of an array of integers or bools; UINT64_MAX for other arrays. */
static uint64_t dendp_config_element(const dendp_gguf_kv *kv, uint64_t i) {
    uint32_t type = kv->elem_type;
    bool integer = type != DENDP_GGUF_STRING && type != DENDP_GGUF_F32 && type != DENDP_GGUF_F64;
    return integer ? dendp_gguf_scalar(type, kv->elems + i * dendp_gguf_value_bytes[type]) : UINT64_MAX;
}

/* An integer of a scalar key, DENDP_MAX_CTX_TRAIN at most. */
static bool dendp_config_count(const dendp_gguf_kv *kv, uint32_t *out) {
    bool fits = kv->type != DENDP_GGUF_STRING && kv->type != DENDP_GGUF_ARRAY && kv->type != DENDP_GGUF_F32 &&
                kv->type != DENDP_GGUF_F64 && kv->type != DENDP_GGUF_BOOL && kv->bits <= DENDP_MAX_CTX_TRAIN;
    *out = fits ? (uint32_t)kv->bits : 0;
    return fits;
}

/* The window, and which layers slide: a number n, all but every n-th (0: all),
 * or a value for each layer; without the key as the family does it. */
static dend_status dendp_config_window(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *window = dendp_config_kv(g, c, "attention.sliding_window");
    const dendp_gguf_kv *pattern = dendp_config_kv(g, c, "attention.sliding_window_pattern");
    uint32_t n = c->family->slides > 0 ? (uint32_t)c->family->slides : 0, layer;
    if (!window) {
        return DEND_OK;
    }
    if (!dendp_config_count(window, &c->window)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "attention.sliding_window is no integer from 0 to 2^30",
                          window->offset);
    }
    if (c->family->slides == DENDP_SLIDES_NEVER) { /* one that the trained context fits into hides nothing */
        if (c->window != 0 && c->window < c->n_ctx_train) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "sliding-window attention is not supported for this family", window->offset);
        }
        c->window = 0;
    }
    if (c->window == 0) {
        return DEND_OK;
    }
    if (pattern && pattern->type != DENDP_GGUF_ARRAY && !dendp_config_count(pattern, &n)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT,
                          "attention.sliding_window_pattern is neither integer nor array", pattern->offset);
    }
    if (pattern && pattern->type == DENDP_GGUF_ARRAY && pattern->count != c->n_layers) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT,
                          "attention.sliding_window_pattern has not one value for each layer",
                          pattern->offset);
    }
    for (layer = 0; layer < c->n_layers; layer++) {
        uint64_t slides = n == 0 || layer % n != n - 1;
        if (pattern && pattern->type == DENDP_GGUF_ARRAY) {
            slides = dendp_config_element(pattern, layer);
        }
        if (slides > 1) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              "attention.sliding_window_pattern has a value other than 0 and 1",
                              pattern->offset);
        }
        c->sliding[layer / 32] |= (uint32_t)slides << (layer % 32);
    }
    return DEND_OK;
}

/* The number of a pair that turns `turns` times over n_ctx_orig positions. */
static double dendp_yarn_pair(const dendp_config *c, float turns) {
    double length = (double)(c->n_ctx_orig ? c->n_ctx_orig : c->n_ctx_train);
    return (double)c->n_rot * log(length / ((double)turns * 6.283185307179586)) /
           (2.0 * log((double)c->rope.base));
}

/* YaRN: where its ramp stands, and its magnitude. The original converter's
 * attention factor stands in for the paper's 0.1 ln(factor) + 1. */
static dend_status dendp_config_yarn(dendp_config *c, const dendp_gguf *g, float factor, dend_error *err) {
    const dendp_gguf_kv *ext = dendp_config_kv(g, c, "rope.scaling.yarn_ext_factor");
    float fast = 32, slow = 1, one = 1, magnitude = factor > 1 ? 0.1f * (float)log((double)factor) + 1 : 1;
    dend_status status = dendp_config_float(
        g, ext, 1.0f, 1.0f, "rope.scaling.yarn_ext_factor other than 1 is not supported", &one, err);
    if (status == DEND_OK) {
        status =
            dendp_config_float(g, dendp_config_kv(g, c, "rope.scaling.yarn_beta_fast"), 1e-3f, 1e6f,
                               "rope.scaling.yarn_beta_fast is no number from 0.001 to 10^6", &fast, err);
    }
    if (status == DEND_OK) {
        status =
            dendp_config_float(g, dendp_config_kv(g, c, "rope.scaling.yarn_beta_slow"), 1e-3f, 1e6f,
                               "rope.scaling.yarn_beta_slow is no number from 0.001 to 10^6", &slow, err);
    }
    if (status == DEND_OK) {
        status = dendp_config_float(g, dendp_config_kv(g, c, "rope.scaling.yarn_attn_factor"), 1e-3f, 1e3f,
                                    "rope.scaling.yarn_attn_factor is no number from 0.001 to 1000",
                                    &magnitude, err);
    }
    if (status == DEND_OK && !(c->rope.base > 1.0f)) {
        const dendp_gguf_kv *base = dendp_config_kv(g, c, "rope.freq_base");
        status = DENDP_FAIL(err, DEND_ERR_FORMAT, "rope scaling yarn needs a rope.freq_base above 1",
                            base ? base->offset : 0);
    }
    if (status == DEND_OK) {
        double low = floor(dendp_yarn_pair(c, fast)), high = ceil(dendp_yarn_pair(c, slow));
        c->rope.yarn = true;
        c->rope.low = (float)(low > 0 ? low : 0);
        c->rope.high = (float)(high < (double)c->n_rot - 1 ? high : (double)c->n_rot - 1);
        c->rope.magnitude *= magnitude;
    }
    return status;
}

/* Scaling of positions: none, linear or YaRN. Files from before
 * rope.scaling.type say only rope.scale_linear. Layers with a base of their own
 * are not scaled. */
static dend_status dendp_config_rope(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *type = dendp_config_kv(g, c, "rope.scaling.type");
    const dendp_gguf_kv *factor = dendp_config_kv(g, c, "rope.scaling.factor");
    const dendp_gguf_kv *attn = dendp_config_kv(g, c, "rope.scaling.attn_factor");
    float f = 1;
    bool none = false, yarn = false;
    dend_status status;
    c->rope.base = 10000;
    c->rope.scale = c->rope.magnitude = 1;
    status = dendp_config_float(g, dendp_config_kv(g, c, "rope.freq_base"), 1.0f, 1e12f,
                                "rope.freq_base is no number from 1 to 10^12", &c->rope.base, err);
    if (status == DEND_OK) {
        status = dendp_config_float(g, attn, 1e-3f, 1e3f,
                                    "rope.scaling.attn_factor is no number from 0.001 to 1000",
                                    &c->rope.magnitude, err);
    }
    if (status != DEND_OK) {
        return status;
    }
    if (type) {
        if (type->type != DENDP_GGUF_STRING) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "rope.scaling.type is no string", type->offset);
        }
        none = dendp_text_is(type->str, type->str_len, "none");
        yarn = dendp_text_is(type->str, type->str_len, "yarn");
        if (dendp_text_is(type->str, type->str_len, "longrope")) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "rope scaling longrope is not supported",
                              type->offset);
        }
        if (!none && !yarn && !dendp_text_is(type->str, type->str_len, "linear")) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "this rope scaling is not supported", type->offset);
        }
        if (!none && !factor) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "rope.scaling.factor is missing", type->offset);
        }
    }
    if (!factor) {
        factor = dendp_config_kv(g, c, "rope.scale_linear");
    }
    if (!none) {
        status = dendp_config_float(g, factor, 1e-3f, 1e6f,
                                    "rope.scaling.factor is no number from 0.001 to 10^6", &f, err);
        c->rope.scale = 1.0f / f;
    }
    if (status == DEND_OK && yarn) {
        status = dendp_config_yarn(c, g, f, err);
    }
    c->rope_local = c->rope;
    if (status == DEND_OK && c->window != 0 && c->family->local_rope_base > 0) {
        c->rope_local.base = c->family->local_rope_base;
        c->rope_local.scale = 1;
        status =
            dendp_config_float(g, dendp_config_kv(g, c, "rope.freq_base_swa"), 1.0f, 1e12f,
                               "rope.freq_base_swa is no number from 1 to 10^12", &c->rope_local.base, err);
        if (status == DEND_OK && (yarn || c->rope.magnitude != 1.0f)) {
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                                "rope scaling by magnitude is not supported for this family",
                                yarn   ? type->offset
                                : attn ? attn->offset
                                       : 0);
        }
    }
    return status;
}

/* The number of tokens: the key, else the rows of the embedding, else the list of tokens. */
static dend_status dendp_config_vocab(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_tensor *embd = dendp_gguf_tensor_find(g, dendp_tensor_specs[DENDP_TENSOR_EMBD].name);
    const dendp_gguf_kv *tokens = NULL;
    uint64_t n = c->n_vocab;
    dendp_found found = dendp_gguf_array(g, "tokenizer.ggml.tokens", DENDP_GGUF_STRING, &tokens);
    if (found == DENDP_WRONG_TYPE) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is no array of strings",
                          dendp_gguf_find(g, "tokenizer.ggml.tokens")->offset);
    }
    if (n == 0 && embd) {
        n = embd->dims[1];
    } else if (n == 0 && tokens) {
        n = tokens->count;
    }
    if (n == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "vocab_size is missing, and so are the tokens", 0);
    }
    if (n > DENDP_MAX_VOCAB) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "vocab_size is above the limit of this version",
                          embd     ? embd->where
                          : tokens ? tokens->offset
                                   : 0);
    }
    if (tokens && tokens->count > n) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "more tokens in the vocabulary than vocab_size says",
                          tokens->offset);
    }
    c->n_vocab = (uint32_t)n;
    return DEND_OK;
}

/* Heads: what is absent follows from the rest, and all must agree. */
static dend_status dendp_config_heads(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *kv = dendp_config_kv(g, c, "attention.head_count");
    const dendp_gguf_kv *values = dendp_config_kv(g, c, "attention.value_length");
    uint64_t where = kv ? kv->offset : 0, value_length;
    if (c->n_kv_heads == 0) {
        c->n_kv_heads = c->n_heads;
    }
    if (c->n_heads % c->n_kv_heads != 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "attention.head_count is no multiple of head_count_kv",
                          where);
    }
    if ((c->head_dim == 0 || !values) && c->n_embd % c->n_heads != 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "embedding_length is no multiple of attention.head_count",
                          where);
    }
    if (c->head_dim == 0) {
        c->head_dim = c->n_embd / c->n_heads;
    }
    value_length = values ? values->bits : c->n_embd / c->n_heads;
    if (value_length != c->head_dim) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "attention.key_length differs from value_length",
                          values ? values->offset : where);
    }
    if (c->head_dim > DENDP_MAX_HEAD_DIM || c->head_dim % 2 != 0) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "head width is odd or above 512", where);
    }
    if (c->n_rot == 0) {
        c->n_rot = c->head_dim;
    }
    if (c->n_rot > c->head_dim || c->n_rot % 2 != 0) {
        kv = dendp_config_kv(g, c, "rope.dimension_count");
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "rope.dimension_count is odd or wider than a head",
                          kv ? kv->offset : 0);
    }
    c->embd_scale = c->family->scaled_embd ? sqrtf((float)c->n_embd) : 1.0f;
    c->score_width =
        c->n_layers == c->family->wide_layers ? (float)c->n_embd / (float)c->n_heads : (float)c->head_dim;
    return DEND_OK;
}

/* Which tensors the model has: what its family needs, and what it allows and its first layer has. */
static void dendp_config_presence(dendp_config *c, const dendp_gguf *g) {
    uint32_t role;
    c->tensors = c->family->needs;
    for (role = 0; role < DENDP_N_TENSOR_ROLES; role++) {
        if ((c->family->allows >> role & 1u) && dendp_config_tensor(g, &dendp_tensor_specs[role], 0)) {
            c->tensors |= (uint32_t)1 << role;
        }
    }
    c->tied_head = !(c->tensors & DENDP_HAS_OWN_HEAD);
    c->has_rope_freqs = (c->tensors & DENDP_HAS_ROPE_FREQS) != 0;
}

/* Reads the hyper-parameters, and does not look at the tensors' shapes: enough
 * for a model of which only the vocabulary is wanted. On failure *c is of no use. */
static dend_status dendp_config_read(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *eps;
    size_t i;
    dend_status status;
    memset(c, 0, sizeof *c);
    status = dendp_config_family(c, g, err);
    for (i = 0; status == DEND_OK && i < DENDP_N_HYPERS; i++) {
        const dendp_hyper *h = &dendp_hypers[i];
        uint32_t value = 0;
        status = dendp_hyper_read(dendp_config_kv(g, c, h->suffix), h, &value, err);
        memcpy((unsigned char *)c + h->field, &value, sizeof value);
    }
    if (status == DEND_OK) {
        status = dendp_config_refusals(c, g, err);
    }
    if (status == DEND_OK) {
        status = dendp_config_window(c, g, err);
    }
    if (status == DEND_OK) {
        status = dendp_config_heads(c, g, err);
    }
    if (status == DEND_OK) {
        status = dendp_config_rope(c, g, err);
    }
    if (status == DEND_OK) {
        eps = dendp_config_kv(g, c, "attention.layer_norm_rms_epsilon");
        status = !eps ? DENDP_FAIL(err, DEND_ERR_FORMAT, "attention.layer_norm_rms_epsilon is missing", 0)
                      : dendp_config_float(g, eps, 1e-20f, 1.0f,
                                           "attention.layer_norm_rms_epsilon is no number from 10^-20 to 1",
                                           &c->norm_eps, err);
    }
    if (status == DEND_OK) {
        status = dendp_config_vocab(c, g, err);
    }
    if (status == DEND_OK) {
        dendp_config_presence(c, g);
    }
    return status;
}

/* -- the tensor check -------------------------------------------------------------- */

/* One tensor against its spec: [rows][cols]; vectors must be F32 or F16. */
static dend_status dendp_config_check_tensor(const dendp_config *c, const dendp_tensor_spec *spec,
                                             const dendp_gguf_tensor *t, dend_error *err) {
    if (!t) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, spec->missing, 0);
    }
    if (t->dims[0] != dendp_config_extent(c, spec->cols) ||
        t->dims[1] != dendp_config_extent(c, spec->rows) || t->dims[2] != 1 || t->dims[3] != 1) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, spec->misshapen, t->where);
    }
    if (spec->rows == DENDP_EXTENT_ONE && t->type->id != DENDP_TYPE_F32 && t->type->id != DENDP_TYPE_F16) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "a norm or bias is neither F32 nor F16", t->where);
    }
    return DEND_OK;
}

/* Every tensor of the family is there with its shape, and no other tensor is. */
static dend_status dendp_config_check(const dendp_config *c, const dendp_gguf *g, dend_error *err) {
    uint64_t n_expected = 0;
    uint32_t i, role, layer;
    for (role = 0; role < DENDP_N_TENSOR_ROLES; role++) {
        const dendp_tensor_spec *spec = &dendp_tensor_specs[role];
        uint32_t count = dendp_spec_count(spec, c);
        n_expected += count;
        for (layer = 0; layer < count; layer++) {
            dend_status status = dendp_config_check_tensor(c, spec, dendp_config_tensor(g, spec, layer), err);
            if (status != DEND_OK) {
                return status;
            }
        }
    }
    /* All expected ones were found and names are unique, so equal counts mean equal sets. */
    for (i = 0; n_expected != g->n_tensors && i < g->n_tensors; i++) {
        const dendp_gguf_tensor *t = &g->tensors[i];
        bool known = false;
        for (role = 0; !known && role < DENDP_N_TENSOR_ROLES; role++) {
            const dendp_tensor_spec *spec = &dendp_tensor_specs[role];
            uint32_t count = dendp_spec_count(spec, c);
            known = count != 0 && dendp_spec_matches(spec, t->name, count);
        }
        if (!known) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "the file has a tensor that this family does not use", t->where);
        }
    }
    return DEND_OK;
}

/* Hyper-parameters and tensors of a whole model.
 * Returns: OK; FORMAT where the file contradicts itself or lacks something;
 * UNSUPPORTED, with the reason, where it is of a kind that we do not run. */
static dend_status dendp_config_load(dendp_config *c, const dendp_gguf *g, dend_error *err) {
    dend_status status = dendp_config_read(c, g, err);
    return status == DEND_OK ? dendp_config_check(c, g, err) : status;
}
