/* ==========================================================================
 * >>02.14 GGUF VOCABULARY: what a GGUF file says of its tokenizer
 * ==========================================================================
 * The keys tokenizer.ggml.*, and what this room makes of them:
 *
 *     model               "gpt2": byte-level BPE; "llama": pieces (SentencePiece);
 *                         "none", "no_vocab": a file without a tokenizer
 *     pre                 gpt2: the family of the splits (02.10)
 *     tokens, token_type  texts and types; without types all are normal
 *     merges              gpt2: "left right", the earlier the better
 *     scores              llama: one for each token, the higher the better
 *     bos_token_id, ...   special tokens; those that end a generation
 *     add_bos_token, add_eos_token
 *     add_space_prefix    llama: a space in front of the text; true where absent
 *
 * The other kinds (t5: Unigram; bert: WordPiece; rwkv) are refused by name, as
 * are pieces whose text would have to be normalised first.
 *
 * Where a file of pieces does not give the ids of bos, eos and the unknown
 * token, they are 1, 2 and 0, as SentencePiece numbers them, if the file calls
 * the tokens with those ids control and unknown ones. Bos is then added unless
 * the file says otherwise, as in the reference.
 *
 * An error names the offset of the value at fault: of an array's element, that
 * of the element.
 * ======================================================================== */

/* Offset in the file of the elements of an array: behind their type and count. */
static uint64_t dendp_tok_elems_where(const dendp_gguf_kv *kv) {
    return kv->offset + 12;
}

/* A bool of the metadata; *out stays where it is absent. */
static dend_status dendp_tok_gguf_bool(const dendp_gguf *g, const char *key, bool *out, dend_error *err) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    if (!kv) return DEND_OK;
    if (kv->type != DENDP_GGUF_BOOL) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "key of the tokenizer is no bool", kv->offset);
    }
    *out = kv->bits != 0;
    return DEND_OK;
}

/* The kinds of tokenizers that are refused. */
static const char *const dendp_tok_refused[][2] = {
    {"t5", "tokenizer of Unigram models (t5) is not supported"},
    {"bert", "WordPiece vocabularies (bert) are not supported"},
    {"rwkv", "vocabularies of rwkv are not supported"},
    {"plamo2", "vocabularies of plamo2 are not supported"},
};

/* The kind and the split. *found is false where the file has no tokenizer. */
static dend_status dendp_tok_gguf_names(dendp_tok_source *src, const dendp_gguf *g, bool *found,
                                        dend_error *err) {
    const dendp_gguf_kv *model = dendp_gguf_find(g, "tokenizer.ggml.model");
    const dendp_gguf_kv *pre = dendp_gguf_find(g, "tokenizer.ggml.pre");
    uint32_t i;
    *found = false;
    if (!model) return DEND_OK;
    if (model->type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.model is no string", model->offset);
    }
    if (strcmp(model->str, "none") == 0 || strcmp(model->str, "no_vocab") == 0) return DEND_OK;
    for (i = 0; i < sizeof dendp_tok_refused / sizeof dendp_tok_refused[0]; i++) {
        if (strcmp(model->str, dendp_tok_refused[i][0]) == 0) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, dendp_tok_refused[i][1], model->offset);
        }
    }
    if (strcmp(model->str, "llama") == 0) {
        const dendp_gguf_kv *map = dendp_gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
        bool squeeze = false, space = true;
        dend_status status = dendp_tok_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &squeeze, err);
        if (status == DEND_OK)
            status = dendp_tok_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &space, err);
        if (status != DEND_OK) return status;
        if (squeeze) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pieces that drop extra spaces are not supported",
                              dendp_gguf_find(g, "tokenizer.ggml.remove_extra_whitespaces")->offset);
        }
        if (map && (map->type != DENDP_GGUF_ARRAY || map->count > 0)) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pieces of normalised text are not supported",
                              map->offset);
        }
        src->spelling = DENDP_SPELL_PIECES;
        src->by_score = true;
        src->prefix = space ? DENDP_PREFIX_EACH : DENDP_PREFIX_NONE;
        src->add_bos = true;
        *found = true;
        return DEND_OK;
    }
    if (strcmp(model->str, "gpt2") != 0) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.model is none of: gpt2, llama",
                          model->offset);
    }
    if (!pre) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.pre is missing", model->offset);
    }
    if (pre->type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.pre is no string", pre->offset);
    }
    for (i = 0; i < sizeof dendp_pres / sizeof dendp_pres[0]; i++) {
        if (strcmp(pre->str, dendp_pres[i].name) == 0) {
            src->spelling = DENDP_SPELL_BYTES;
            src->split = dendp_pres[i].split;
            src->whole_words = dendp_pres[i].whole_words;
            src->add_bos = dendp_pres[i].add_bos;
            *found = true;
            return DEND_OK;
        }
    }
    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer.ggml.pre names a split that is not supported",
                      pre->offset);
}

static uint32_t dendp_tok_gguf_type(const dendp_tok_source *src, uint64_t id) {
    const dendp_gguf_kv *types = (const dendp_gguf_kv *)src->types;
    return types ? dendp_load32(types->elems + 4 * id) : (uint32_t)DENDP_TOKEN_NORMAL;
}

static bool dendp_tok_gguf_token(dendp_tok_source *src, dendp_tok_entry *e, dend_status *status,
                                 dend_error *err) {
    const dendp_gguf_kv *tokens = (const dendp_gguf_kv *)src->tokens;
    const dendp_gguf_kv *scores = (const dendp_gguf_kv *)src->scores;
    uint64_t len;
    (void)status;
    (void)err;
    e->where = dendp_tok_elems_where(tokens) + src->cursor;
    if (!dendp_gguf_next_string(tokens, &src->cursor, &e->s, &len)) return false;
    e->n = (size_t)len;
    e->type = dendp_tok_gguf_type(src, src->n_given);
    e->score = scores ? dendp_bits_f32(dendp_load32(scores->elems + 4 * src->n_given)) : 0.0f;
    src->n_given++;
    if (src->n_given == src->n_vocab) src->cursor = 0; /* of the merges from now on */
    return true;
}

static bool dendp_tok_gguf_merge(dendp_tok_source *src, dendp_tok_pair *p, dend_status *status,
                                 dend_error *err) {
    const dendp_gguf_kv *merges = (const dendp_gguf_kv *)src->merges;
    uint64_t len;
    const char *s;
    p->where = dendp_tok_elems_where(merges) + src->cursor;
    if (!dendp_gguf_next_string(merges, &src->cursor, &s, &len)) return false;
    for (p->n_left = 1;
         p->n_left < len && s[p->n_left] != ' ';) { /* one at 0 would belong to the left half */
        p->n_left++;
    }
    if (p->n_left + 1 >= len) {
        *status = DENDP_FAIL(err, DEND_ERR_FORMAT, "merge is not two texts with a space between", p->where);
        return false;
    }
    p->left = s;
    p->right = s + p->n_left + 1;
    p->n_right = (size_t)len - p->n_left - 1;
    return true;
}

/* The arrays and their lengths. */
static dend_status dendp_tok_gguf_arrays(dendp_tok_source *src, const dendp_gguf *g, dend_error *err) {
    const dendp_gguf_kv *model = dendp_gguf_find(g, "tokenizer.ggml.model");
    const dendp_gguf_kv *types = dendp_gguf_find(g, "tokenizer.ggml.token_type");
    const dendp_gguf_kv *tokens = dendp_gguf_find(g, "tokenizer.ggml.tokens");
    const dendp_gguf_kv *merges = src->by_score ? NULL : dendp_gguf_find(g, "tokenizer.ggml.merges");
    const dendp_gguf_kv *scores = src->by_score ? dendp_gguf_find(g, "tokenizer.ggml.scores") : NULL;
    uint64_t i;
    if (!tokens) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is missing", model->offset);
    }
    if (!merges && !src->by_score) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.merges is missing", model->offset);
    }
    if (!scores && src->by_score) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.scores is missing", model->offset);
    }
    if (tokens->type != DENDP_GGUF_ARRAY || tokens->elem_type != DENDP_GGUF_STRING) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is no array of strings",
                          tokens->offset);
    }
    if (merges && (merges->type != DENDP_GGUF_ARRAY || merges->elem_type != DENDP_GGUF_STRING)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.merges is no array of strings",
                          merges->offset);
    }
    if (tokens->count == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.tokens is empty", tokens->offset);
    }
    if (tokens->count > DENDP_TOK_MAX_VOCAB) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^24 tokens", tokens->offset);
    }
    if (tokens->elems_bytes > UINT32_MAX || (merges && merges->count > (1u << 30))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "vocabulary of 4 GiB or more", tokens->offset);
    }
    src->n_vocab = (uint32_t)tokens->count;
    src->text_bytes = tokens->elems_bytes - 8 * (uint64_t)src->n_vocab; /* the rest are their lengths */
    src->n_merges = merges ? merges->count : 0;
    if (scores) {
        if (scores->type != DENDP_GGUF_ARRAY || scores->elem_type != DENDP_GGUF_F32) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.scores is no array of 32-bit floats",
                              scores->offset);
        }
        if (scores->count != src->n_vocab) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.scores is not as long as the tokens",
                              scores->offset);
        }
    }
    if (types) {
        if (types->type != DENDP_GGUF_ARRAY ||
            (types->elem_type != DENDP_GGUF_I32 && types->elem_type != DENDP_GGUF_U32)) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              "tokenizer.ggml.token_type is no array of 32-bit integers", types->offset);
        }
        if (types->count != src->n_vocab) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.token_type is not as long as the tokens",
                              types->offset);
        }
        for (i = 0; i < types->count; i++) {
            uint32_t type = dendp_load32(types->elems + 4 * i);
            if (type > 6) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "unknown token type",
                                  dendp_tok_elems_where(types) + 4 * i);
            }
            if (type >= DENDP_TOKEN_UNKNOWN && type <= DENDP_TOKEN_USER) src->n_specials++;
        }
    }
    src->tokens = tokens;
    src->types = types;
    src->scores = scores;
    src->merges = merges;
    src->next_token = dendp_tok_gguf_token;
    src->next_merge = dendp_tok_gguf_merge;
    return DEND_OK;
}

/* A token id of the metadata; where it is absent, `otherwise` if that token has
 * the type, else -1, as where the file says so itself. */
static dend_status dendp_tok_gguf_id(const dendp_tok_source *src, const dendp_gguf *g, const char *key,
                                     uint32_t otherwise, uint32_t type, int32_t *out, dend_error *err) {
    const dendp_gguf_kv *kv = dendp_gguf_find(g, key);
    *out = -1;
    if (!kv) {
        if (otherwise < src->n_vocab && dendp_tok_gguf_type(src, otherwise) == type)
            *out = (int32_t)otherwise;
        return DEND_OK;
    }
    if (!dendp_gguf_is_integer(kv)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token's id is no integer", kv->offset);
    }
    if (kv->bits == UINT64_MAX || (kv->type == DENDP_GGUF_U32 && kv->bits == UINT32_MAX)) return DEND_OK;
    if (kv->bits >= src->n_vocab) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token's id is outside the vocabulary", kv->offset);
    }
    *out = (int32_t)kv->bits;
    return DEND_OK;
}

/* bos, eos, eot, unk, what else ends a generation, and whether bos and eos are added. */
static dend_status dendp_tok_gguf_ids(dendp_tok_source *src, const dendp_gguf *g, dend_error *err) {
    static const char *const ends[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    bool pieces = src->spelling == DENDP_SPELL_PIECES;
    uint32_t none = UINT32_MAX, i;
    dend_status status = dendp_tok_gguf_id(src, g, "tokenizer.ggml.bos_token_id", pieces ? 1 : none,
                                           DENDP_TOKEN_CONTROL, &src->bos, err);
    if (status == DEND_OK) {
        status = dendp_tok_gguf_id(src, g, "tokenizer.ggml.unknown_token_id", pieces ? 0 : none,
                                   DENDP_TOKEN_UNKNOWN, &src->unk, err);
    }
    for (i = 0; i < sizeof ends / sizeof ends[0] && status == DEND_OK; i++) {
        int32_t id;
        status =
            dendp_tok_gguf_id(src, g, ends[i], pieces && i == 0 ? 2 : none, DENDP_TOKEN_CONTROL, &id, err);
        if (status != DEND_OK) break;
        if (id >= 0) src->ends[src->n_ends++] = id;
        if (i == 0) src->eos = id;
        if (i == 1) src->eot = id;
    }
    if (status == DEND_OK)
        status = dendp_tok_gguf_bool(g, "tokenizer.ggml.add_bos_token", &src->add_bos, err);
    if (status == DEND_OK)
        status = dendp_tok_gguf_bool(g, "tokenizer.ggml.add_eos_token", &src->add_eos, err);
    if (status != DEND_OK) return status;
    if (src->add_bos && src->bos < 0 && dendp_gguf_find(g, "tokenizer.ggml.add_bos_token")) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.add_bos_token without bos_token_id",
                          dendp_gguf_find(g, "tokenizer.ggml.add_bos_token")->offset);
    }
    if (src->add_eos && src->eos < 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.ggml.add_eos_token without eos_token_id",
                          dendp_gguf_find(g, "tokenizer.ggml.add_eos_token")->offset);
    }
    src->add_bos = src->add_bos && src->bos >= 0;
    return DEND_OK;
}

/* Loads and validates a vocabulary; nothing of g is needed afterwards. A file
 * without one gives a tokenizer with n_vocab 0, of which encode says UNSUPPORTED.
 * Params: the allocator is resolved, and is used by encode as well.
 * Returns: OK; FORMAT, UNSUPPORTED, MEMORY, and then *t holds nothing. */
static dend_status dendp_tokenizer_load(dendp_tokenizer *t, const dendp_gguf *g, const dend_allocator *a,
                                        dend_error *err) {
    dendp_tok_source src;
    bool found;
    dend_status status;
    memset(t, 0, sizeof *t);
    t->allocator = *a;
    t->bos = t->eos = t->eot = t->unk = -1;
    memset(&src, 0, sizeof src);
    status = dendp_tok_gguf_names(&src, g, &found, err);
    if (status == DEND_OK && !found) return DEND_OK;
    if (status == DEND_OK) status = dendp_tok_gguf_arrays(&src, g, err);
    if (status == DEND_OK) status = dendp_tok_gguf_ids(&src, g, err);
    return status == DEND_OK ? dendp_tokenizer_build(t, &src, a, err) : status;
}
