/* ==========================================================================
 * >>02.08 FOLDER CONFIG: what config.json says of a model, as keys of GGUF
 * ==========================================================================
 * The first half of room 02.07's work. Each thing that config.json says and
 * that changes the results ends in one of three ways: it becomes a key that
 * room 02.04 reads and checks; it must have the one value that the family has;
 * or it is refused with its reason. Computing on without it would give wrong
 * tokens and no error. What does not change results (dropout, dtype, names of
 * labels) is not looked at, and a key that nobody knows is not either: so
 * every way in which these families are known to be varied is in the tables.
 *
 *     sizes        integers, one key each (dendp_hf_sizes)
 *     layers       sliding_window, with layer_types, or a pattern, or all
 *     positions    rope_theta and rope_scaling; newer versions write both into
 *                  rope_parameters, and there one object for each kind of layer
 *
 * Positions that were scaled as Llama 3.1 does it become a tensor of divisors,
 * one for each pair of values that turns together, as GGUF's converter writes
 * it: pairs of short wavelength keep their frequency (1), long ones are slowed
 * down (factor), those between are mixed.
 *
 * A model that also sees keeps its text in text_config; of those only Gemma 3
 * is taken, as the text model that it contains.
 * Cost: a pass over config.json for each key, about 80.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

#define DENDP_HF_MOE "mixture-of-experts models are not supported"
#define DENDP_HF_MLA "multi-head latent attention is not supported"
#define DENDP_HF_RECURRENT "recurrent and hybrid models are not supported"
#define DENDP_HF_SEES "multimodal models are not supported"
#define DENDP_HF_ENCODER "encoder models are not supported"

/* Types of models that exist and differ in ways that have a name. */
static const dendp_refusal dendp_hf_refused_types[] = {
    {"bert", DENDP_HF_ENCODER},       {"deepseek_v2", DENDP_HF_MLA},
    {"deepseek_v3", DENDP_HF_MLA},    {"falcon_h1", DENDP_HF_RECURRENT},
    {"gemma3n", DENDP_HF_SEES},       {"gpt_oss", DENDP_HF_MOE},
    {"granitemoe", DENDP_HF_MOE},     {"idefics3", DENDP_HF_SEES},
    {"jamba", DENDP_HF_RECURRENT},    {"lfm2", DENDP_HF_RECURRENT},
    {"llama4", DENDP_HF_MOE},         {"llava", DENDP_HF_SEES},
    {"mamba", DENDP_HF_RECURRENT},    {"mamba2", DENDP_HF_RECURRENT},
    {"minicpm3", DENDP_HF_MLA},       {"mistral3", DENDP_HF_SEES},
    {"mixtral", DENDP_HF_MOE},        {"mllama", DENDP_HF_SEES},
    {"modernbert", DENDP_HF_ENCODER}, {"olmoe", DENDP_HF_MOE},
    {"phimoe", DENDP_HF_MOE},         {"qwen2_5_vl", DENDP_HF_SEES},
    {"qwen2_moe", DENDP_HF_MOE},      {"qwen2_vl", DENDP_HF_SEES},
    {"qwen3_moe", DENDP_HF_MOE},      {"qwen3_next", DENDP_HF_RECURRENT},
    {"qwen3_vl", DENDP_HF_SEES},      {"roberta", DENDP_HF_ENCODER},
    {"smolvlm", DENDP_HF_SEES},       {"t5", DENDP_HF_ENCODER},
};

/* Keys of config.json that must be absent, null, false, 0 or empty. */
static const dendp_refusal dendp_hf_refused[] = {
    {"quantization_config", "quantised safetensors (quantization_config) are not supported"},
    {"compression_config", "quantised safetensors (compression_config) are not supported"},
    {"num_experts", DENDP_HF_MOE},
    {"num_local_experts", DENDP_HF_MOE},
    {"n_routed_experts", DENDP_HF_MOE},
    {"kv_lora_rank", DENDP_HF_MLA},
    {"q_lora_rank", DENDP_HF_MLA},
    {"attn_logit_softcapping", "capped attention scores are not supported"},
    {"final_logit_softcapping", "capped logits are not supported"},
    {"clip_qkv", "clip_qkv is not supported"},
    {"embedding_multiplier", "embedding_multiplier is not supported"},
    {"residual_multiplier", "residual_multiplier is not supported"},
    {"attention_multiplier", "attention_multiplier is not supported"},
    {"logits_scaling", "logits_scaling is not supported"},
    {"use_qk_norm", "use_qk_norm is not supported"},
    {"use_mrope", "multimodal rope sections are not supported"},
    {"rope_interleaved", "rope_interleaved is not supported"},
    {"use_bidirectional_attention", "attention that is not causal is not supported"},
    {"is_encoder_decoder", DENDP_HF_ENCODER},
    {"add_cross_attention", DENDP_HF_ENCODER},
    {"alibi", "ALiBi positions are not supported"},
    {"no_rope_layers", "layers without positions are not supported"},
    {"auto_map", "models with code of their own (auto_map) are not supported"},
};

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
    for (i = 0; !f->family && i < sizeof dendp_hf_refused_types / sizeof dendp_hf_refused_types[0]; i++) {
        if (dendp_json_is(&type, dendp_hf_refused_types[i].name)) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_hf_refused_types[i].msg,
                              dendp_json_where(&type));
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
            status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, DENDP_HF_SEES, dendp_json_where(&name));
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

#undef DENDP_HF_MOE
#undef DENDP_HF_MLA
#undef DENDP_HF_RECURRENT
#undef DENDP_HF_SEES
#undef DENDP_HF_ENCODER

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
        status = dendp_folder_bool(f, "tie_word_embeddings", &f->tied, &where, err);
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

#endif /* DEND_NO_FOLDERS */
