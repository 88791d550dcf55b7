/* ==========================================================================
 * >>02.15 JSON VOCABULARY: what a tokenizer.json says of its tokenizer
 * ==========================================================================
 * Models in safetensors come with the file of the library "tokenizers" (Hugging
 * Face), and small files beside it. The library builds a tokenizer of parts,
 *
 *     normalizer | pre_tokenizer | model | post_processor | decoder
 *
 * of which the families here use few. We read what the parts say and accept
 * what 02.10 and 02.13 do, so that the tokens are those of the library; all
 * else is refused with its reason.
 *
 *   byte-level BPE   model BPE; pre_tokenizer ByteLevel, alone, or behind Digits
 *                    (SmolLM2), or behind a Split whose expression is, letter
 *                    for letter, that of GPT-2, Qwen2 or Llama 3
 *   pieces           model BPE with byte_fallback; spaces to U+2581 by the
 *                    normalizer (Llama 2: behind a Prepend; Gemma) or by a
 *                    Metaspace that does not split (Mistral)
 *
 * Unigram, WordPiece and WordLevel models are refused: none of the families
 * has one. Pieces come with a list of merges here, made of their scores.
 *
 * ADDED TOKENS are special (control) or not (user-defined). One whose text the
 * normalizer would have made, with U+2581 in it, is an ordinary piece: the
 * library looks for added tokens before it normalises. Their options lstrip,
 * rstrip and single_word are refused.
 *
 * BOS is added if add_bos_token says so, or else if the post_processor's
 * template begins with a special token; EOS likewise. Which tokens they are is
 * in tokenizer_config.json, special_tokens_map.json, or as numbers in
 * generation_config.json and config.json; all eos ids there end a generation.
 *
 * NFC  The normalizer of Qwen composes characters (e + U+0301 to U+00E9). That
 * is left to whoever has the text: like llama.cpp, we take text as it is.
 *
 * The text is read twice, to count and to take; it stays in memory meanwhile,
 * and 24 bytes for each token. Ids must be dense, but for 65,536 holes.
 * Errors name the offset in the file at fault.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

/* Texts of the JSON files of a model's folder; all but the first may be NULL. */
typedef struct dendp_tok_json_files {
    const char *tokenizer; /* tokenizer.json */
    size_t n_tokenizer;
    const char *config; /* tokenizer_config.json */
    size_t n_config;
    const char *special; /* special_tokens_map.json */
    size_t n_special;
    const char *generation; /* generation_config.json */
    size_t n_generation;
    const char *model; /* config.json */
    size_t n_model;
} dendp_tok_json_files;

#define DENDP_TOK_MAX_HOLES 65536u

/* A token while it is read: its string in the text, not decoded. */
typedef struct dendp_tok_json_entry {
    uint64_t begin, end; /* end 0: a hole */
    uint32_t len;        /* decoded */
    unsigned char type;
    bool escaped;
} dendp_tok_json_entry;

typedef struct dendp_tok_json {
    dendp_json text;               /* a cursor of tokenizer.json, for its data */
    dendp_tok_json_entry *entries; /* [V] */
    uint32_t n_vocab;
    char *buffer[2]; /* [max_len + 1] */
    uint64_t max_len;
    dendp_json merges;
    /* bookmarks at the keys; those that are absent have kind END */
    dendp_json added, normalizer, pre, post, vocab, unk;
    uint64_t n_tokens, n_added, n_merges, n_bytes, max_id;
    bool byte_fallback, ignore_merges;
} dendp_tok_json;

/* -- reading ---------------------------------------------------------------------- */

/* Moves to the value behind a key and wants it to be of a kind. */
static dend_status dendp_tok_json_want(dendp_json *j, dendp_json_kind kind, const char *msg,
                                       dend_error *err) {
    dend_status status = dendp_json_next(j, err);
    if (status == DEND_OK && j->kind != kind)
        return DENDP_FAIL(err, DEND_ERR_FORMAT, msg, dendp_json_where(j));
    return status;
}

/* The same for a bool. */
static dend_status dendp_tok_json_bool(dendp_json *j, bool *out, dend_error *err) {
    dend_status status = dendp_json_next(j, err);
    if (status != DEND_OK) return status;
    if (j->kind != DENDP_JSON_TRUE && j->kind != DENDP_JSON_FALSE) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "true or false is wanted here", dendp_json_where(j));
    }
    *out = j->kind == DENDP_JSON_TRUE;
    return DEND_OK;
}

/* Finds a member of the object that a whole text is; *out then stands at its
 * value. Kind END where there is none. The rest of the text is checked too. */
static dend_status dendp_tok_json_member(const char *text, size_t n, const char *key, dendp_json *out,
                                         dend_error *err) {
    dendp_json j;
    dend_status status;
    memset(out, 0, sizeof *out);
    if (!text) return DEND_OK;
    dendp_json_open(&j, text, n, 0);
    status = dendp_tok_json_want(&j, DENDP_JSON_OBJECT, "this file is no JSON object", err);
    while (status == DEND_OK && (status = dendp_json_next(&j, err)) == DEND_OK && j.kind == DENDP_JSON_KEY) {
        if (out->kind == DENDP_JSON_END && dendp_json_is(&j, key)) {
            status = dendp_json_next(&j, err);
            *out = j;
        }
        if (status == DEND_OK) status = dendp_json_skip(&j, err);
    }
    if (status == DEND_OK) status = dendp_json_next(&j, err);
    return status;
}

/* Counts a token's text. */
static void dendp_tok_json_count(dendp_tok_json *f, const dendp_json *j) {
    f->n_bytes += j->len;
    if (j->len > f->max_len) f->max_len = j->len;
}

/* The vocabulary, from behind its key: counts, and with entries takes. */
static dend_status dendp_tok_json_vocab(dendp_tok_json *f, dendp_json *j, dend_error *err) {
    dend_status status = dendp_tok_json_want(j, DENDP_JSON_OBJECT, "vocab is no object", err);
    while (status == DEND_OK && (status = dendp_json_next(j, err)) == DEND_OK && j->kind == DENDP_JSON_KEY) {
        dendp_tok_json_entry e;
        uint64_t id;
        e.begin = j->begin;
        e.end = j->end;
        e.len = (uint32_t)j->len;
        e.escaped = j->escaped;
        e.type = DENDP_TOKEN_NORMAL;
        if (j->len > UINT32_MAX)
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "token of 4 GiB", dendp_json_where(j));
        dendp_tok_json_count(f, j);
        status = dendp_json_next(j, err);
        if (status != DEND_OK) break;
        if (!dendp_json_u64(j, &id) || id >= DENDP_TOK_MAX_VOCAB) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "token's id is no number below 2^24",
                              dendp_json_where(j));
        }
        if (!f->entries) {
            f->n_tokens++;
            f->max_id = id > f->max_id ? id : f->max_id;
        } else if (id >= f->n_vocab || f->entries[id].end) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "two tokens have one id", dendp_json_where(j));
        } else {
            f->entries[id] = e;
        }
    }
    return status;
}

/* Counts the merges and their lengths. */
static dend_status dendp_tok_json_count_merges(dendp_tok_json *f, dendp_json *j, dend_error *err) {
    uint32_t depth;
    dend_status status = dendp_tok_json_want(j, DENDP_JSON_ARRAY, "merges is no array", err);
    for (depth = j->depth; status == DEND_OK;) {
        status = dendp_json_next(j, err);
        if (status != DEND_OK || (j->kind == DENDP_JSON_ARRAY_END && j->depth < depth)) break;
        if (j->kind == DENDP_JSON_STRING && j->len > f->max_len) f->max_len = j->len;
        if (j->depth == depth && j->kind != DENDP_JSON_ARRAY)
            f->n_merges++; /* a string, or the end of a pair */
    }
    return status;
}

/* The member "model", from behind its key. */
static dend_status dendp_tok_json_model(dendp_tok_json *f, dendp_json *j, dend_error *err) {
    bool found = false;
    dend_status status = dendp_tok_json_want(j, DENDP_JSON_OBJECT, "model is no object", err);
    while (status == DEND_OK && (status = dendp_json_next(j, err)) == DEND_OK && j->kind == DENDP_JSON_KEY) {
        if (dendp_json_is(j, "type")) {
            status = dendp_tok_json_want(j, DENDP_JSON_STRING, "type is no string", err);
            if (status != DEND_OK) break;
            if (dendp_json_is(j, "Unigram")) {
                return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer model Unigram is not supported",
                                  dendp_json_where(j));
            }
            if (!dendp_json_is(j, "BPE")) {
                return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer model is not BPE",
                                  dendp_json_where(j));
            }
            found = true;
        } else if (dendp_json_is(j, "vocab")) {
            f->vocab = *j;
            status = dendp_json_next(j, err);
            if (status == DEND_OK && j->kind == DENDP_JSON_ARRAY) { /* pairs of text and score */
                return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer model Unigram is not supported",
                                  dendp_json_where(j));
            }
            *j = f->vocab;
            if (status == DEND_OK) status = dendp_tok_json_vocab(f, j, err);
        } else if (dendp_json_is(j, "merges")) {
            f->merges = *j;
            status = dendp_tok_json_count_merges(f, j, err);
        } else if (dendp_json_is(j, "byte_fallback")) {
            status = dendp_tok_json_bool(j, &f->byte_fallback, err);
        } else if (dendp_json_is(j, "ignore_merges")) {
            status = dendp_tok_json_bool(j, &f->ignore_merges, err);
        } else if (dendp_json_is(j, "unk_token")) {
            status = dendp_json_next(j, err);
            if (status == DEND_OK && j->kind == DENDP_JSON_STRING) {
                f->unk = *j;
                dendp_tok_json_count(f, j);
            }
        } else if (dendp_json_is(j, "dropout") || dendp_json_is(j, "continuing_subword_prefix") ||
                   dendp_json_is(j, "end_of_word_suffix")) {
            status = dendp_json_next(j, err);
            if (status == DEND_OK && j->kind != DENDP_JSON_NULL &&
                !(j->kind == DENDP_JSON_STRING && j->len == 0)) {
                return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "option of the tokenizer model is not supported",
                                  dendp_json_where(j));
            }
        } else {
            status = dendp_json_skip(j, err);
        }
    }
    if (status != DEND_OK) return status;
    if (f->vocab.kind == DENDP_JSON_END) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "model has no vocab", dendp_json_where(j));
    }
    if (f->merges.kind == DENDP_JSON_END) {
        return found
                   ? DENDP_FAIL(err, DEND_ERR_FORMAT, "model has no merges", dendp_json_where(j))
                   : DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "tokenizer model is not BPE", dendp_json_where(j));
    }
    return DEND_OK;
}

/* Added tokens, from behind their key: counts, and with entries takes. */
static dend_status dendp_tok_json_added(dendp_tok_json *f, dendp_json *j, dend_error *err) {
    dend_status status = dendp_tok_json_want(j, DENDP_JSON_ARRAY, "added_tokens is no array", err);
    while (status == DEND_OK && (status = dendp_json_next(j, err)) == DEND_OK &&
           j->kind == DENDP_JSON_OBJECT) {
        dendp_json content;
        uint64_t id = UINT64_MAX, where = dendp_json_where(j);
        bool special = false, option = false;
        memset(&content, 0, sizeof content);
        while ((status = dendp_json_next(j, err)) == DEND_OK && j->kind == DENDP_JSON_KEY) {
            if (dendp_json_is(j, "id")) {
                status = dendp_json_next(j, err);
                if (status == DEND_OK && !dendp_json_u64(j, &id)) id = UINT64_MAX;
            } else if (dendp_json_is(j, "content")) {
                status = dendp_tok_json_want(j, DENDP_JSON_STRING, "content is no string", err);
                content = *j;
            } else if (dendp_json_is(j, "special")) {
                status = dendp_tok_json_bool(j, &special, err);
            } else if (dendp_json_is(j, "lstrip") || dendp_json_is(j, "rstrip") ||
                       dendp_json_is(j, "single_word")) {
                status = dendp_tok_json_bool(j, &option, err);
                if (status == DEND_OK && option) {
                    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                                      "lstrip, rstrip and single_word of added tokens are not supported",
                                      dendp_json_where(j));
                }
            } else {
                status = dendp_json_skip(j, err);
            }
            if (status != DEND_OK) return status;
        }
        if (status != DEND_OK) return status;
        if (id >= DENDP_TOK_MAX_VOCAB || content.kind != DENDP_JSON_STRING || content.len > UINT32_MAX) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "added token without id or content", where);
        }
        if (!f->entries) {
            dendp_tok_json_count(f, &content);
            f->n_added++;
            f->max_id = id > f->max_id ? id : f->max_id;
        } else {
            dendp_tok_json_entry *e = &f->entries[id < f->n_vocab ? id : 0];
            if (id >= f->n_vocab || !dendp_json_copy(&content, f->buffer[0], f->max_len + 1)) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "added token without id or content", where);
            }
            if (e->end) {
                dendp_json old = f->text;
                old.begin = e->begin;
                old.end = e->end;
                old.len = e->len;
                old.escaped = e->escaped;
                if (!dendp_json_is(&old, f->buffer[0])) {
                    return DENDP_FAIL(err, DEND_ERR_FORMAT, "added token has the id of another one", where);
                }
            }
            e->begin = content.begin;
            e->end = content.end;
            e->len = (uint32_t)content.len;
            e->escaped = content.escaped;
            e->type = special ? DENDP_TOKEN_CONTROL : DENDP_TOKEN_USER;
            if (!special && f->byte_fallback && strstr(f->buffer[0], "\342\226\201"))
                e->type = DENDP_TOKEN_NORMAL;
        }
    }
    return status;
}

/* The whole of tokenizer.json, once: bookmarks and counts. */
static dend_status dendp_tok_json_scan(dendp_tok_json *f, const dendp_tok_json_files *files,
                                       dend_error *err) {
    dendp_json j;
    dend_status status;
    bool model = false;
    dendp_json_open(&j, files->tokenizer, files->n_tokenizer, 0);
    f->text = j;
    status = dendp_tok_json_want(&j, DENDP_JSON_OBJECT, "tokenizer.json is no JSON object", err);
    while (status == DEND_OK && (status = dendp_json_next(&j, err)) == DEND_OK && j.kind == DENDP_JSON_KEY) {
        dendp_json *mark = dendp_json_is(&j, "normalizer")       ? &f->normalizer
                           : dendp_json_is(&j, "pre_tokenizer")  ? &f->pre
                           : dendp_json_is(&j, "post_processor") ? &f->post
                                                                 : NULL;
        if (mark && mark->kind == DENDP_JSON_END) {
            status = dendp_json_next(&j, err);
            *mark = j;
            if (status == DEND_OK) status = dendp_json_skip(&j, err);
        } else if (dendp_json_is(&j, "added_tokens") && f->added.kind == DENDP_JSON_END) {
            f->added = j;
            status = dendp_tok_json_added(f, &j, err);
        } else if (dendp_json_is(&j, "model") && !model) {
            model = true;
            status = dendp_tok_json_model(f, &j, err);
        } else {
            status = dendp_json_skip(&j, err);
        }
    }
    if (status == DEND_OK) status = dendp_json_next(&j, err); /* nothing may follow */
    if (status != DEND_OK) return status;
    if (!model) return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokenizer.json has no model", 0);
    if (f->n_tokens == 0)
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "vocab is empty", dendp_json_where(&f->vocab));
    if (f->max_id >= f->n_tokens + f->n_added + DENDP_TOK_MAX_HOLES) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "ids of tokens leave more than 65,536 holes",
                          dendp_json_where(&f->vocab));
    }
    if (f->n_bytes > UINT32_MAX / 2 || f->n_merges > (1u << 30)) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "vocabulary of 4 GiB or more",
                          dendp_json_where(&f->vocab));
    }
    return DEND_OK;
}

/* -- parts ------------------------------------------------------------------------- */

/* One part of a normalizer or pre_tokenizer: the members that any of them has. Absent ones have kind END. */
typedef struct dendp_tok_part {
    uint64_t where;
    dendp_json type, string, regex, content, prepend, behavior, replacement, scheme;
    dendp_json invert, prefix, use_regex, digits, split;
} dendp_tok_part;

#define DENDP_TOK_MAX_PARTS 4u

/* Reads one part, of which j is at the beginning; *list is the array that a Sequence holds. */
static dend_status dendp_tok_json_part(dendp_json *j, dendp_tok_part *p, dendp_json *list, dend_error *err) {
    dend_status status = DEND_OK;
    memset(p, 0, sizeof *p);
    memset(list, 0, sizeof *list);
    p->where = dendp_json_where(j);
    if (j->kind != DENDP_JSON_OBJECT)
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "part of the tokenizer is no object", p->where);
    while (status == DEND_OK && (status = dendp_json_next(j, err)) == DEND_OK && j->kind == DENDP_JSON_KEY) {
        static const char *const names[] = {"type",        "content",           "prepend", "behavior",
                                            "replacement", "prepend_scheme",    "invert",  "add_prefix_space",
                                            "use_regex",   "individual_digits", "split"};
        dendp_json *const places[] = {&p->type,        &p->content, &p->prepend, &p->behavior,
                                      &p->replacement, &p->scheme,  &p->invert,  &p->prefix,
                                      &p->use_regex,   &p->digits,  &p->split};
        uint32_t i, at = 99;
        bool pattern = dendp_json_is(j, "pattern");
        bool is_list = dendp_json_is(j, "normalizers") || dendp_json_is(j, "pretokenizers");
        for (i = 0; i < sizeof names / sizeof names[0]; i++) at = dendp_json_is(j, names[i]) ? i : at;
        status = dendp_json_next(j, err);
        if (status != DEND_OK) break;
        if (at < 99) *places[at] = *j;
        if (is_list && j->kind == DENDP_JSON_ARRAY) *list = *j;
        if (pattern && j->kind == DENDP_JSON_OBJECT) {
            while ((status = dendp_json_next(j, err)) == DEND_OK && j->kind == DENDP_JSON_KEY) {
                dendp_json *to = dendp_json_is(j, "Regex") ? &p->regex : &p->string;
                status = dendp_json_next(j, err);
                if (status != DEND_OK) return status;
                *to = *j;
                status = dendp_json_skip(j, err);
                if (status != DEND_OK) return status;
            }
        } else {
            status = dendp_json_skip(j, err);
        }
    }
    return status;
}

/* The parts of a normalizer or pre_tokenizer, at whose value `at` stands; null has none. */
static dend_status dendp_tok_json_parts(dendp_json at, dendp_tok_part *parts, uint32_t *n, dend_error *err) {
    dendp_json list, none;
    dend_status status;
    *n = 0;
    if (at.kind == DENDP_JSON_END || at.kind == DENDP_JSON_NULL) return DEND_OK;
    status = dendp_tok_json_part(&at, &parts[0], &list, err);
    if (status != DEND_OK || list.kind != DENDP_JSON_ARRAY) {
        *n = 1;
        return status;
    }
    while ((status = dendp_json_next(&list, err)) == DEND_OK && list.kind != DENDP_JSON_ARRAY_END) {
        if (*n == DENDP_TOK_MAX_PARTS) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than four parts of a tokenizer",
                              dendp_json_where(&list));
        }
        status = dendp_tok_json_part(&list, &parts[*n], &none, err);
        if (status != DEND_OK) return status;
        ++*n;
    }
    return status;
}

static bool dendp_tok_json_says(const dendp_json *j, const char *text) {
    return j->kind == DENDP_JSON_STRING && dendp_json_is(j, text);
}

/* The expressions that 02.10 has scanners for. (U+017F: where an expression
 * folds case the library takes it for an s; we do not.) */
typedef struct dendp_tok_regex {
    const char *text;
    dendp_split_kind split;
} dendp_tok_regex;

static const dendp_tok_regex dendp_tok_regexes[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", DENDP_SPLIT_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     DENDP_SPLIT_QWEN2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     DENDP_SPLIT_LLAMA3},
};

/* Byte-level BPE: the split that the pre_tokenizer's parts make. */
static dend_status dendp_tok_json_split(dendp_tok_source *src, const dendp_tok_part *p, uint32_t n,
                                        dend_error *err) {
    const dendp_tok_part *last = n ? &p[n - 1] : NULL;
    uint32_t i;
    if (!last || n > 2 || !dendp_tok_json_says(&last->type, "ByteLevel")) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pre_tokenizer does not end with ByteLevel",
                          n ? p[0].where : 0);
    }
    if (last->prefix.kind == DENDP_JSON_TRUE) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "add_prefix_space of ByteLevel is not supported",
                          last->where);
    }
    if (n == 1) {
        if (last->use_regex.kind == DENDP_JSON_FALSE) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "ByteLevel without a split is not supported",
                              last->where);
        }
        src->split = DENDP_SPLIT_GPT2;
        return DEND_OK;
    }
    if (dendp_tok_json_says(&p->type, "Digits") && p->digits.kind == DENDP_JSON_TRUE &&
        last->use_regex.kind != DENDP_JSON_FALSE) {
        src->split = DENDP_SPLIT_SMOLLM;
        return DEND_OK;
    }
    if (!dendp_tok_json_says(&p->type, "Split") || !dendp_tok_json_says(&p->behavior, "Isolated") ||
        p->invert.kind == DENDP_JSON_TRUE || last->use_regex.kind != DENDP_JSON_FALSE) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pre_tokenizer is not supported", p->where);
    }
    for (i = 0; i < sizeof dendp_tok_regexes / sizeof dendp_tok_regexes[0]; i++) {
        if (dendp_tok_json_says(&p->regex, dendp_tok_regexes[i].text)) {
            src->split = dendp_tok_regexes[i].split;
            return DEND_OK;
        }
    }
    return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "expression of the pre_tokenizer is not supported",
                      p->where);
}

/* Pieces: the rule of the space in front. */
static dend_status dendp_tok_json_prefix(dendp_tok_source *src, const dendp_tok_part *norm, uint32_t n_norm,
                                         const dendp_tok_part *pre, uint32_t n_pre, dend_error *err) {
    static const char stand_in[] = "\342\226\201";
    const dendp_tok_part *replace = n_norm ? &norm[n_norm - 1] : NULL;
    uint64_t where = n_norm ? norm[0].where : n_pre ? pre[0].where : 0;
    if (n_norm == 0) {
        if (n_pre != 1 || !dendp_tok_json_says(&pre->type, "Metaspace") ||
            !dendp_tok_json_says(&pre->replacement, stand_in) || pre->split.kind != DENDP_JSON_FALSE) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pre_tokenizer is not supported", where);
        }
        src->prefix = dendp_tok_json_says(&pre->scheme, "first")    ? DENDP_PREFIX_FIRST_WORD
                      : dendp_tok_json_says(&pre->scheme, "always") ? DENDP_PREFIX_EACH_WORD
                                                                    : DENDP_PREFIX_NONE;
        if (src->prefix == DENDP_PREFIX_NONE && !dendp_tok_json_says(&pre->scheme, "never")) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "Metaspace without a prepend_scheme is not supported", where);
        }
        return DEND_OK;
    }
    if (n_norm > 2 || !dendp_tok_json_says(&replace->type, "Replace") ||
        !dendp_tok_json_says(&replace->string, " ") || !dendp_tok_json_says(&replace->content, stand_in) ||
        (n_norm == 2 &&
         (!dendp_tok_json_says(&norm->type, "Prepend") || !dendp_tok_json_says(&norm->prepend, stand_in)))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "normalizer is not supported", where);
    }
    /* a split at spaces, of which the normalizer has left none */
    if (n_pre > 1 || (n_pre == 1 && (!dendp_tok_json_says(&pre->type, "Split") ||
                                     !dendp_tok_json_says(&pre->string, " ")))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "pre_tokenizer is not supported", pre->where);
    }
    src->prefix = n_norm == 2 ? DENDP_PREFIX_EACH : DENDP_PREFIX_NONE;
    return DEND_OK;
}

static dend_status dendp_tok_json_kind(dendp_tok_source *src, const dendp_tok_json *f, dend_error *err) {
    dendp_tok_part norm[DENDP_TOK_MAX_PARTS], pre[DENDP_TOK_MAX_PARTS];
    uint32_t n_norm, n_pre;
    dend_status status = dendp_tok_json_parts(f->normalizer, norm, &n_norm, err);
    if (status == DEND_OK) status = dendp_tok_json_parts(f->pre, pre, &n_pre, err);
    if (status != DEND_OK) return status;
    if (f->byte_fallback) {
        src->spelling = DENDP_SPELL_PIECES;
        return dendp_tok_json_prefix(src, norm, n_norm, pre, n_pre, err);
    }
    if (n_norm > 1 || (n_norm == 1 && !dendp_tok_json_says(&norm->type, "NFC"))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "normalizer is not supported", norm->where);
    }
    src->spelling = DENDP_SPELL_BYTES;
    src->whole_words = f->ignore_merges;
    return dendp_tok_json_split(src, pre, n_pre, err);
}

/* -- special tokens ------------------------------------------------------------------ */

/* The id of the token with the text of a JSON string, or -1. */
static int32_t dendp_tok_json_id(dendp_tok_json *f, const dendp_json *s) {
    dendp_json j = f->text;
    uint32_t id;
    if (s->len > f->max_len || !dendp_json_copy(s, f->buffer[0], f->max_len + 1)) return -1;
    for (id = 0; id < f->n_vocab; id++) {
        const dendp_tok_json_entry *e = &f->entries[id];
        if (e->end == 0 || e->len != s->len) continue;
        j.begin = e->begin;
        j.end = e->end;
        j.len = e->len;
        j.escaped = e->escaped;
        if (dendp_json_is(&j, f->buffer[0])) return (int32_t)id;
    }
    return -1;
}

/* The token that a member names: "<s>", or {"content": "<s>"}; *out stays where there is none. */
static dend_status dendp_tok_json_named(dendp_tok_json *f, const char *text, size_t n, const char *key,
                                        int32_t *out, dend_error *err) {
    dendp_json j;
    dend_status status = dendp_tok_json_member(text, n, key, &j, err);
    if (status == DEND_OK && j.kind == DENDP_JSON_OBJECT) {
        while ((status = dendp_json_next(&j, err)) == DEND_OK && j.kind == DENDP_JSON_KEY) {
            bool content = dendp_json_is(&j, "content");
            if (content) {
                status = dendp_json_next(&j, err);
                break;
            }
            status = dendp_json_skip(&j, err);
            if (status != DEND_OK) break;
        }
    }
    if (status != DEND_OK || j.kind != DENDP_JSON_STRING || *out >= 0) return status;
    *out = dendp_tok_json_id(f, &j);
    if (*out < 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token is not in the vocabulary",
                          dendp_json_where(&j));
    }
    return DEND_OK;
}

/* Ids that a member gives: a number, or an array of numbers; all go to src->ends where `end`, the first to *out. */
static dend_status dendp_tok_json_numbers(dendp_tok_source *src, const char *text, size_t n, const char *key,
                                          bool end, int32_t *out, dend_error *err) {
    dendp_json j;
    dend_status status = dendp_tok_json_member(text, n, key, &j, err);
    bool array = j.kind == DENDP_JSON_ARRAY;
    if (status != DEND_OK || (j.kind != DENDP_JSON_NUMBER && !array)) return status;
    do {
        uint64_t id;
        if (array) {
            status = dendp_json_next(&j, err);
            if (status != DEND_OK || j.kind == DENDP_JSON_ARRAY_END) return status;
        }
        if (!dendp_json_u64(&j, &id) || id >= src->n_vocab) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token's id is outside the vocabulary",
                              dendp_json_where(&j));
        }
        if (*out < 0) *out = (int32_t)id;
        if (end && src->n_ends == DENDP_TOK_MAX_ENDS) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "too many eos tokens", dendp_json_where(&j));
        }
        if (end) src->ends[src->n_ends++] = (int32_t)id;
    } while (array);
    return DEND_OK;
}

/* Special tokens before and behind the text in the template "single" of the post_processor; -1: none. */
static dend_status dendp_tok_json_template(dendp_tok_json *f, int32_t *before, int32_t *behind,
                                           dend_error *err) {
    dendp_json j = f->post;
    uint32_t depth = j.depth, inner;
    bool text = false;
    dend_status status = DEND_OK;
    *before = *behind = -1;
    if (j.kind != DENDP_JSON_OBJECT) return DEND_OK;
    while (j.depth >= depth && !(j.kind == DENDP_JSON_KEY && dendp_json_is(&j, "single"))) {
        status = dendp_json_next(&j, err);
        if (status != DEND_OK || j.kind == DENDP_JSON_END) return status;
    }
    if (j.depth < depth) return DEND_OK;
    status = dendp_tok_json_want(&j, DENDP_JSON_ARRAY, "template is no array", err);
    for (inner = j.depth; status == DEND_OK && j.depth >= inner;) {
        status = dendp_json_next(&j, err);
        if (status != DEND_OK || j.kind != DENDP_JSON_KEY) continue;
        if (dendp_json_is(&j, "Sequence")) {
            text = true;
            status = dendp_json_skip(&j, err);
        } else if (dendp_json_is(&j, "SpecialToken")) {
            status = dendp_tok_json_want(&j, DENDP_JSON_OBJECT, "template's token is no object", err);
            while (status == DEND_OK && (status = dendp_json_next(&j, err)) == DEND_OK &&
                   j.kind == DENDP_JSON_KEY) {
                bool is_id = dendp_json_is(&j, "id");
                status = dendp_json_next(&j, err);
                if (status == DEND_OK && is_id && j.kind == DENDP_JSON_STRING) {
                    int32_t *to = text ? behind : before;
                    if (*to >= 0) {
                        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                                          "post_processor adds more than two tokens", dendp_json_where(&j));
                    }
                    *to = dendp_tok_json_id(f, &j);
                    if (*to < 0) {
                        return DENDP_FAIL(err, DEND_ERR_FORMAT, "special token is not in the vocabulary",
                                          dendp_json_where(&j));
                    }
                }
                if (status == DEND_OK) status = dendp_json_skip(&j, err);
            }
        }
    }
    return status;
}

static dend_status dendp_tok_json_ids(dendp_tok_source *src, dendp_tok_json *f,
                                      const dendp_tok_json_files *files, dend_error *err) {
    int32_t before, behind, eos = -1;
    dendp_json flag;
    dend_status status = dendp_tok_json_template(f, &before, &behind, err);
    if (f->unk.kind == DENDP_JSON_STRING) src->unk = dendp_tok_json_id(f, &f->unk);
    if (status == DEND_OK)
        status = dendp_tok_json_named(f, files->config, files->n_config, "bos_token", &src->bos, err);
    if (status == DEND_OK)
        status = dendp_tok_json_named(f, files->special, files->n_special, "bos_token", &src->bos, err);
    if (status == DEND_OK)
        status = dendp_tok_json_named(f, files->config, files->n_config, "eos_token", &src->eos, err);
    if (status == DEND_OK)
        status = dendp_tok_json_named(f, files->special, files->n_special, "eos_token", &src->eos, err);
    if (status == DEND_OK && src->eos >= 0) src->ends[src->n_ends++] = src->eos;
    if (status == DEND_OK) {
        status = dendp_tok_json_numbers(src, files->generation, files->n_generation, "eos_token_id", true,
                                        &eos, err);
    }
    if (status == DEND_OK)
        status = dendp_tok_json_numbers(src, files->model, files->n_model, "eos_token_id", true, &eos, err);
    if (status == DEND_OK) {
        status = dendp_tok_json_numbers(src, files->generation, files->n_generation, "bos_token_id", false,
                                        &src->bos, err);
    }
    if (status == DEND_OK)
        status =
            dendp_tok_json_numbers(src, files->model, files->n_model, "bos_token_id", false, &src->bos, err);
    if (src->eos < 0) src->eos = eos;
    src->add_bos = before >= 0;
    src->add_eos = behind >= 0;
    if (before >= 0 && src->bos < 0) src->bos = before;
    if (behind >= 0 && src->eos < 0) src->eos = behind;
    if (status == DEND_OK)
        status = dendp_tok_json_member(files->config, files->n_config, "add_bos_token", &flag, err);
    if (status == DEND_OK && (flag.kind == DENDP_JSON_TRUE || flag.kind == DENDP_JSON_FALSE)) {
        src->add_bos = flag.kind == DENDP_JSON_TRUE && src->bos >= 0;
        before = src->bos;
    }
    if (status == DEND_OK)
        status = dendp_tok_json_member(files->config, files->n_config, "add_eos_token", &flag, err);
    if (status == DEND_OK && (flag.kind == DENDP_JSON_TRUE || flag.kind == DENDP_JSON_FALSE)) {
        src->add_eos = flag.kind == DENDP_JSON_TRUE && src->eos >= 0;
        behind = src->eos;
    }
    if (status == DEND_OK && ((src->add_bos && before != src->bos) || (src->add_eos && behind != src->eos))) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "post_processor adds another token than bos and eos",
                          dendp_json_where(&f->post));
    }
    return status;
}

/* -- loading ----------------------------------------------------------------------- */

static bool dendp_tok_json_token(dendp_tok_source *src, dendp_tok_entry *out, dend_status *status,
                                 dend_error *err) {
    dendp_tok_json *f = (dendp_tok_json *)src->user;
    const dendp_tok_json_entry *e = &f->entries[src->n_given];
    dendp_json j = f->text;
    out->s = f->buffer[0];
    out->n = 0;
    out->type = DENDP_TOKEN_UNUSED;
    out->score = 0.0f;
    out->where = f->text.base + e->begin;
    if (e->end) {
        j.begin = e->begin;
        j.end = e->end;
        j.len = e->len;
        j.escaped = e->escaped;
        if (!dendp_json_copy(&j, f->buffer[0], f->max_len + 1)) {
            *status = DENDP_FAIL(err, DEND_ERR_FORMAT, "tokens are longer than was counted", out->where);
            return false;
        }
        out->n = e->len;
        out->type = e->type;
        if (out->type == DENDP_TOKEN_NORMAL && f->byte_fallback && dendp_spelled_byte(out->s, out->n) >= 0) {
            out->type = DENDP_TOKEN_BYTE;
        }
        if (f->byte_fallback && (int32_t)src->n_given == src->unk) out->type = DENDP_TOKEN_UNKNOWN;
    }
    src->n_given++;
    return true;
}

/* Merges: "left right" (older files), or ["left", "right"]. */
static bool dendp_tok_json_merge(dendp_tok_source *src, dendp_tok_pair *p, dend_status *status,
                                 dend_error *err) {
    dendp_tok_json *f = (dendp_tok_json *)src->user;
    dendp_json *j = &f->merges;
    *status = dendp_json_next(j, err);
    p->where = dendp_json_where(j);
    if (*status != DEND_OK || j->kind == DENDP_JSON_ARRAY_END) return false;
    if (j->kind == DENDP_JSON_ARRAY) {
        uint32_t i;
        for (i = 0; i < 2 && *status == DEND_OK; i++) {
            *status = dendp_json_next(j, err);
            if (*status != DEND_OK) return false;
            if (j->kind != DENDP_JSON_STRING || !dendp_json_copy(j, f->buffer[i], f->max_len + 1)) break;
            *(i ? &p->n_right : &p->n_left) = (size_t)j->len;
        }
        if (i == 2) *status = dendp_json_next(j, err);
        if (*status != DEND_OK) return false;
        if (i == 2 && j->kind == DENDP_JSON_ARRAY_END) {
            p->left = f->buffer[0];
            p->right = f->buffer[1];
            return true;
        }
    } else if (j->kind == DENDP_JSON_STRING && dendp_json_copy(j, f->buffer[0], f->max_len + 1)) {
        size_t n = (size_t)j->len;
        for (p->n_left = 1; p->n_left < n && f->buffer[0][p->n_left] != ' ';) p->n_left++;
        if (p->n_left + 1 < n) {
            p->left = f->buffer[0];
            p->right = p->left + p->n_left + 1;
            p->n_right = n - p->n_left - 1;
            return true;
        }
    }
    *status = DENDP_FAIL(err, DEND_ERR_FORMAT, "merge is not two texts", p->where);
    return false;
}

/* Loads and validates a vocabulary; nothing of the files is needed afterwards.
 * Params: the allocator is resolved, and is used by encode as well.
 * Returns: OK; FORMAT, UNSUPPORTED, MEMORY, and then *t holds nothing. */
static DENDP_UNUSED dend_status dendp_tokenizer_load_json(dendp_tokenizer *t,
                                                          const dendp_tok_json_files *files,
                                                          const dend_allocator *a, dend_error *err) {
    dendp_tok_json *f = (dendp_tok_json *)dendp_alloc(a, sizeof *f);
    dendp_tok_source src;
    dendp_carver c;
    dendp_json j;
    void *block = NULL;
    uint32_t pass;
    dend_status status;
    memset(t, 0, sizeof *t);
    t->allocator = *a;
    t->bos = t->eos = t->eot = t->unk = -1;
    if (!f) return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the vocabulary", 0);
    memset(f, 0, sizeof *f);
    memset(&src, 0, sizeof src);
    memset(&c, 0, sizeof c);
    status = dendp_tok_json_scan(f, files, err);
    if (status != DEND_OK) goto exit;
    f->n_vocab = (uint32_t)f->max_id + 1;
    for (pass = 0; pass < 2; pass++) {
        c.used = 0;
        f->entries = (dendp_tok_json_entry *)dendp_carve(&c, f->n_vocab, sizeof *f->entries);
        f->buffer[0] = (char *)dendp_carve(&c, f->max_len + 1, 1);
        f->buffer[1] = (char *)dendp_carve(&c, f->max_len + 1, 1);
        if (pass == 0) block = c.overflow ? NULL : dendp_alloc(a, c.used);
        c.base = (unsigned char *)block;
        if (!block) {
            status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the vocabulary", 0);
            goto exit;
        }
    }
    memset(f->entries, 0, f->n_vocab * sizeof *f->entries);
    j = f->vocab;
    status = dendp_tok_json_vocab(f, &j, err);
    j = f->added;
    if (status == DEND_OK && f->added.kind != DENDP_JSON_END) status = dendp_tok_json_added(f, &j, err);
    src.bos = src.eos = src.eot = src.unk = -1;
    src.n_vocab = f->n_vocab;
    src.text_bytes = f->n_bytes;
    src.n_merges = f->n_merges;
    src.n_specials = (uint32_t)f->n_added + 1;
    src.user = f;
    src.next_token = dendp_tok_json_token;
    src.next_merge = dendp_tok_json_merge;
    if (status == DEND_OK) status = dendp_tok_json_kind(&src, f, err);
    if (status == DEND_OK) status = dendp_tok_json_ids(&src, f, files, err);
    if (status == DEND_OK)
        status = dendp_tok_json_want(&f->merges, DENDP_JSON_ARRAY, "merges is no array", err);
    if (status == DEND_OK) status = dendp_tokenizer_build(t, &src, a, err);
exit:
    dendp_free(a, block, c.used);
    dendp_free(a, f, sizeof *f);
    return status;
}

#endif /* DEND_NO_FOLDERS */
