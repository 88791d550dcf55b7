/* ==========================================================================
 * >>02.09 FOLDER WEIGHTS: from safetensors to the tensors of the catalogue
 * ==========================================================================
 * The second half of room 02.07's work. The weights of a folder lie in one file,
 * model.safetensors, or in several, which an index lists:
 *
 *     {"metadata": {"total_size": 1234},
 *      "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors", ...}}
 *
 * Names of files come from a file, so only plain names are followed, none that
 * leads out of the folder. Each file that the index names is opened once, and
 * validated whole (02.06). Each tensor that it promises must be in the file that
 * it says. What a file holds beyond that is taken as it is; two files with one
 * tensor are refused.
 *
 * Then each tensor is translated by the table dendp_hf_names: it gets GGUF's
 * name, its dimensions in GGUF's order, and where GGUF stores something else a
 * conversion (02.05). Dropped are frequencies (they follow from rope_theta),
 * the parts of a model that see, and a head where config.json says that the
 * embedding is the head. Every other tensor without translation is an error:
 * the model would not be what its weights say.
 *
 * A single file of weights may also come from memory or from a reader, with
 * the text of config.json beside it (dend_model_desc.config_json).
 *
 * The catalogue then owns all files; dendp_gguf_close releases everything.
 * Cost: O(bytes of heads and index + n log n) for n tensors.
 * ======================================================================== */
#ifndef DEND_NO_FOLDERS

/* The tensors of all files, before translation. */
typedef struct dendp_hf_weights {
    dendp_st_tensor **shards; /* [n_shards] */
    uint32_t *n;              /* [n_shards] */
    uint32_t n_shards;
} dendp_hf_weights;

/* -- the index --------------------------------------------------------------------- */

/* A plain name: no folder in front, no way up, nothing that another system takes for either. */
static bool dendp_hf_plain_name(const char *name, uint64_t len) {
    uint64_t i;
    for (i = 0; i < len; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == '/' || name[i] == '\\' || name[i] == ':') {
            return false;
        }
    }
    return len > 0 && name[0] != '.' && dendp_ends_with(name, ".safetensors");
}

/* The bookmark of weight_map. */
static dend_status dendp_hf_index_map(const dendp_file *index, dendp_json *map, dend_error *err) {
    dendp_json j, top;
    dend_status status;
    dendp_json_open(&j, index->data, index->size, 0);
    status = dendp_json_next(&j, err);
    top = j;
    if (status == DEND_OK && j.kind != DENDP_JSON_OBJECT) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "index of safetensors is no JSON object", 0);
    }
    if (status == DEND_OK) {
        status = dendp_json_skip(&j, err);
    }
    if (status == DEND_OK) {
        status = dendp_json_next(&j, err);
    }
    if (status == DEND_OK) {
        status = dendp_json_member(&top, "weight_map", map, err);
    }
    if (status == DEND_OK && map->kind != DENDP_JSON_OBJECT) {
        status =
            DENDP_FAIL(err, DEND_ERR_FORMAT, "weight_map is missing or no object", dendp_json_where(map));
    }
    return status;
}

/* Names of the files that the map leads to, each once, in the order of the text:
 * names [DENDP_HF_MAX_SHARDS]. *where: of the value that named each first. */
static dend_status dendp_hf_index_files(dendp_folder *f, const dendp_json *map, const char **names,
                                        uint64_t *where, uint32_t *n_out, dend_error *err) {
    dendp_json j = *map;
    uint32_t n = 0, i, last = 0;
    uint64_t looked = 0; /* bytes of names: a text that means harm makes each tensor look at all of them */
    bool more = true;
    dend_status status = DEND_OK;
    while (status == DEND_OK && (status = dendp_json_next_key(&j, &more, err)) == DEND_OK && more) {
        status = dendp_json_next(&j, err);
        if (status != DEND_OK) {
            return status;
        }
        if (j.kind != DENDP_JSON_STRING) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "weight_map names no file for a tensor",
                              dendp_json_where(&j));
        }
        for (i = last; i < n && !dendp_json_is(&j, names[i]); i++) { /* mostly the one before */
            looked += j.end - j.begin;
        }
        for (i = i < n ? i : 0; i < n && !dendp_json_is(&j, names[i]); i++) {
            looked += j.end - j.begin;
        }
        if (looked > DENDP_HF_MAX_LOOKED) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "weight_map is too large, and in no order",
                              dendp_json_where(&j));
        }
        if (i == n) {
            if (n == DENDP_HF_MAX_SHARDS) {
                return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 1,024 files of weights",
                                  dendp_json_where(&j));
            }
            status = dendp_json_text(&j, &f->g->chain, &names[n], err);
            if (status != DEND_OK) {
                return status;
            }
            where[n] = dendp_json_where(&j);
            if (!dendp_hf_plain_name(names[n], j.len)) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT,
                                  "weight_map names a file that is no *.safetensors in the folder", where[n]);
            }
            n++;
        }
        last = i;
    }
    if (status == DEND_OK && n == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "weight_map is empty", dendp_json_where(map));
    }
    *n_out = n;
    return status;
}

/* All raw tensors in one array, sorted by name; names must be unique across files. */
static dend_status dendp_hf_gather(dendp_folder *f, const dendp_hf_weights *w, dendp_st_tensor **out,
                                   uint32_t **order_out, uint32_t *n_out, dend_error *err) {
    dendp_gguf *g = f->g;
    dendp_st_tensor *all;
    uint32_t *order;
    uint64_t total = 0;
    uint32_t i, n = 0;
    for (i = 0; i < w->n_shards; i++) {
        total += w->n[i];
    }
    if (total > DENDP_GGUF_MAX_COUNT) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "more than 2^20 tensors", 0);
    }
    all = (dendp_st_tensor *)dendp_chain_alloc(&g->chain, total * sizeof *all);
    if (!all) {
        return dendp_folder_no_memory(err);
    }
    for (i = 0; i < w->n_shards; i++) {
        memcpy(all + n, w->shards[i], (size_t)w->n[i] * sizeof *all);
        n += w->n[i];
    }
    order = dendp_gguf_sorted(g, n, dendp_st_compare_names, all);
    if (!order) {
        return dendp_folder_no_memory(err);
    }
    for (i = 1; i < n; i++) {
        const dendp_st_tensor *a = &all[order[i - 1]], *b = &all[order[i]];
        if (dendp_compare_bytes(a->name, a->name_len, b->name, b->name_len) == 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "two files of weights hold one tensor", b->where);
        }
    }
    *out = all;
    *order_out = order;
    *n_out = n;
    return DEND_OK;
}

/* Each tensor of the map is in the file that it names. */
static dend_status dendp_hf_index_check(const dendp_json *map, const char *const *names,
                                        const dendp_st_tensor *all, const uint32_t *order, uint32_t n,
                                        dend_error *err) {
    dendp_json j = *map;
    bool more = true;
    dend_status status;
    while ((status = dendp_json_next_key(&j, &more, err)) == DEND_OK && more) {
        char name[DENDP_ST_MAX_NAME + 1];
        uint32_t low = 0, high = n;
        uint64_t where = dendp_json_where(&j), len = j.len;
        const dendp_st_tensor *found = NULL;
        if (!dendp_json_copy(&j, name, sizeof name)) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "name of a tensor is empty or longer than 256 bytes",
                              where);
        }
        while (low < high && !found) {
            uint32_t mid = low + (high - low) / 2;
            int d = dendp_compare_bytes(name, len, all[order[mid]].name, all[order[mid]].name_len);
            found = d == 0 ? &all[order[mid]] : NULL;
            low = d > 0 ? mid + 1 : low;
            high = d < 0 ? mid : high;
        }
        status = dendp_json_next(&j, err);
        if (status != DEND_OK) {
            return status;
        }
        if (!found || !dendp_json_is(&j, names[found->shard])) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "a tensor of weight_map is not in the file that it names",
                              where);
        }
    }
    return status;
}

/* -- translation --------------------------------------------------------------------- */

/* True when `name` is the pattern with a layer in the place of %u, without leading zeros. */
static bool dendp_hf_match(const char *pattern, const char *name, uint32_t *layer) {
    *layer = 0;
    for (; *pattern && *name; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'u') {
            uint32_t n_digits = 0;
            pattern++;
            while (*name >= '0' && *name <= '9' && n_digits < 9) {
                if (n_digits == 1 && *layer == 0) {
                    return false;
                }
                *layer = *layer * 10 + (uint32_t)(*name++ - '0');
                n_digits++;
            }
            if (n_digits == 0) {
                return false;
            }
        } else if (*pattern != *name++) {
            return false;
        }
    }
    return *pattern == *name;
}

/* The entry for a name, or NULL; *dropped when the tensor is of no use. */
static const dendp_hf_name *dendp_hf_name_find(const dendp_folder *f, const dendp_st_tensor *t,
                                               uint32_t *layer, bool *dropped) {
    const char *name = t->name;
    char buf[DENDP_ST_MAX_NAME + 8];
    size_t i;
    *dropped = false;
    for (i = 0; i < DENDP_N_HF_PREFIXES && f->nested; i++) {
        const dendp_hf_name *prefix = &dendp_hf_prefixes[i];
        size_t n = strlen(prefix->hf), m = prefix->gguf ? strlen(prefix->gguf) : 0;
        if (strncmp(name, prefix->hf, n) == 0) {
            if (!prefix->gguf) {
                *dropped = true;
                return NULL;
            }
            memcpy(buf, prefix->gguf, m);
            memcpy(buf + m, name + n, t->name_len - n + 1);
            name = buf;
            break;
        }
    }
    for (i = 0; i < DENDP_N_HF_NAMES; i++) {
        const dendp_hf_name *entry = &dendp_hf_names[i];
        if ((entry->flags & DENDP_HF_POST_NORM && !f->family->post_norms) ||
            (entry->flags & DENDP_HF_NO_POST && f->family->post_norms)) {
            continue;
        }
        if (dendp_hf_match(entry->hf, name, layer)) {
            *dropped = !entry->gguf || (entry->flags & DENDP_HF_IS_HEAD && f->tied);
            return entry;
        }
    }
    return NULL;
}

/* What GGUF stores otherwise. */
static dend_status dendp_folder_convert(dendp_folder *f, dendp_gguf_tensor *t, uint32_t flags,
                                        dend_error *err) {
    bool plus_one = (flags & DENDP_HF_NORM) && f->family->plus_one;
    bool reorder = (flags & (DENDP_HF_Q_ROWS | DENDP_HF_K_ROWS)) && f->family->reordered;
    bool vector = t->n_dims < 2;
    uint64_t heads =
        f->sizes[flags & DENDP_HF_K_ROWS && f->sizes[DENDP_HF_KV_HEADS] ? DENDP_HF_KV_HEADS : DENDP_HF_HEADS];
    dendp_convert *convert;
    if (!plus_one && !reorder && !(vector && t->type->id == DENDP_TYPE_BF16)) {
        return DEND_OK;
    }
    convert = dendp_gguf_convert(f->g, t);
    if (!convert) {
        return dendp_folder_no_memory(err);
    }
    convert->plus_one = plus_one;
    if (vector && (plus_one || t->type->id == DENDP_TYPE_BF16)) {
        t->type = dendp_type_find(DENDP_TYPE_F32);
        t->n_bytes = t->n_elems * 4;
    }
    if (reorder) {
        if (vector) { /* of rows of one value each */
            convert->n_rows = t->n_elems;
            convert->n_cols = 1;
        }
        if (heads == 0 || heads > UINT32_MAX || convert->n_rows % heads != 0 ||
            convert->n_rows / heads % 2 != 0) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT,
                              "rows of Q or K are no whole number of heads of even width", t->where);
        }
        convert->n_heads = (uint32_t)heads;
    }
    return DEND_OK;
}

/* One tensor under its name in GGUF. */
static dend_status dendp_folder_tensor(dendp_folder *f, const dendp_st_tensor *from,
                                       const dendp_hf_name *entry, uint32_t layer, dendp_gguf_tensor *t,
                                       dend_error *err) {
    char name[DENDP_GGUF_MAX_NAME + 1];
    char *copy;
    uint32_t i;
    memset(t, 0, sizeof *t);
    t->where = from->where;
    if (!from->type) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                          "weights that are neither F32, F16 nor BF16 are not supported", from->where);
    }
    if (from->n_dims > 2 || from->n_elems == 0) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "weights without elements, or of more than two dimensions",
                          from->where);
    }
    if (((entry->flags & DENDP_HF_ATTN_BIAS) && !f->attn_bias) ||
        ((entry->flags & DENDP_HF_FFN_BIAS) && !f->ffn_bias)) {
        return DENDP_FAIL(err, DEND_ERR_FORMAT, "there is a bias, and config.json says that there is none",
                          from->where);
    }
    if (!dendp_config_tensor_name(name, sizeof name, entry->gguf, layer)) {
        return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "the file has a tensor that this family does not use",
                          from->where);
    }
    t->name_len = (uint32_t)strlen(name);
    copy = (char *)dendp_chain_alloc(&f->g->chain, (uint64_t)t->name_len + 1);
    if (!copy) {
        return dendp_folder_no_memory(err);
    }
    memcpy(copy, name, (size_t)t->name_len + 1);
    t->name = copy;
    t->n_dims = from->n_dims ? from->n_dims : 1;
    for (i = 0; i < 4; i++) {
        t->dims[i] = i < from->n_dims ? from->dims[from->n_dims - 1 - i] : 1;
    }
    t->type = from->type;
    t->shard = from->shard;
    t->offset = from->begin;
    t->n_bytes = from->end - from->begin;
    t->n_elems = from->n_elems;
    return dendp_folder_convert(f, t, entry->flags, err);
}

/* The catalogue's tensors and their index. */
static dend_status dendp_folder_translate(dendp_folder *f, const dendp_st_tensor *all, uint32_t n,
                                          dend_error *err) {
    dendp_gguf *g = f->g;
    bool head = false;
    uint32_t i;
    dend_status status = DEND_OK;
    g->tensors = (dendp_gguf_tensor *)dendp_chain_alloc(&g->chain, ((uint64_t)n + 1) * sizeof *g->tensors);
    if (!g->tensors) {
        return dendp_folder_no_memory(err);
    }
    for (i = 0; i < n && status == DEND_OK; i++) {
        bool dropped;
        uint32_t layer;
        const dendp_hf_name *entry = dendp_hf_name_find(f, &all[i], &layer, &dropped);
        if (dropped) {
            continue;
        }
        if (!entry) {
            return DENDP_FAIL(err, DEND_ERR_UNSUPPORTED,
                              "the file has a tensor that this family does not use", all[i].where);
        }
        head = head || (entry->flags & DENDP_HF_IS_HEAD);
        status = dendp_folder_tensor(f, &all[i], entry, layer, &g->tensors[g->n_tensors++], err);
    }
    if (status == DEND_OK && !head && !f->tied) {
        status = DENDP_FAIL(err, DEND_ERR_FORMAT,
                            "lm_head.weight is missing, and tie_word_embeddings is false", 0);
    }
    if (status == DEND_OK && f->rope_freqs) {
        dendp_gguf_tensor *t = &g->tensors[g->n_tensors++];
        memset(t, 0, sizeof *t);
        t->name = dendp_tensor_specs[DENDP_TENSOR_ROPE_FREQS].name;
        t->name_len = (uint32_t)strlen(t->name);
        t->n_dims = 1;
        t->dims[0] = t->n_elems = f->n_rope_freqs;
        t->dims[1] = t->dims[2] = t->dims[3] = 1;
        t->type = dendp_type_find(DENDP_TYPE_F32);
        t->n_bytes = t->n_elems * 4;
        t->memory = (const unsigned char *)f->rope_freqs;
    }
    if (status == DEND_OK) {
        g->tensor_order = dendp_gguf_sorted(g, g->n_tensors, dendp_gguf_compare_names, g->tensors);
        status = g->tensor_order ? DEND_OK : dendp_folder_no_memory(err);
    }
    for (i = 1; status == DEND_OK && i < g->n_tensors; i++) { /* two prefixes may lead to one name */
        const dendp_gguf_tensor *a = &g->tensors[g->tensor_order[i - 1]],
                                *b = &g->tensors[g->tensor_order[i]];
        if (dendp_compare_bytes(a->name, a->name_len, b->name, b->name_len) == 0) {
            status = DENDP_FAIL(err, DEND_ERR_FORMAT, "duplicate tensor name", b->where);
        }
    }
    return status;
}

/* -- opening ------------------------------------------------------------------------- */

/* Room for the records of n files. */
static dend_status dendp_hf_weights_make(dendp_folder *f, dendp_hf_weights *w, uint32_t n, dend_error *err) {
    w->n_shards = n;
    w->shards = (dendp_st_tensor **)dendp_chain_alloc(&f->g->chain, (uint64_t)n * sizeof *w->shards);
    w->n = (uint32_t *)dendp_chain_alloc(&f->g->chain, (uint64_t)n * sizeof *w->n);
    return w->shards && w->n ? DEND_OK : dendp_folder_no_memory(err);
}

/* The only file of weights, from wherever the description says; `name` in the folder, or NULL: the path itself. */
static dend_status dendp_folder_open_single(dendp_folder *f, const char *name, dend_error *err) {
    const dend_model_desc *desc = f->desc;
    dendp_gguf *g = f->g;
    dendp_hf_weights w;
    dendp_st_tensor *all = NULL;
    uint32_t *order, n = 0;
    dend_status status;
    if (name) {
        status = dendp_folder_file(f, name, 0, false, &g->file, err);
    } else {
        status = dendp_model_source(&g->file, desc, err);
    }
    if (status == DEND_OK) {
        status = dendp_hf_weights_make(f, &w, 1, err);
    }
    if (status == DEND_OK) {
        status = dendp_st_open(g, &g->file, 0, &w.shards[0], &w.n[0], err);
    }
    if (status == DEND_OK) {
        status = dendp_hf_gather(f, &w, &all, &order, &n, err);
    }
    return status == DEND_OK ? dendp_folder_translate(f, all, n, err) : status;
}

/* The files that an index names. */
static dend_status dendp_folder_open_index(dendp_folder *f, const dendp_file *index, dend_error *err) {
    static const char in_index[] = "model.safetensors.index.json", in_shard[] = "a file of weights";
    dendp_gguf *g = f->g;
    dendp_hf_weights w;
    dendp_st_tensor *all = NULL;
    const char **names = (const char **)dendp_chain_alloc(&g->chain, DENDP_HF_MAX_SHARDS * sizeof *names);
    uint64_t *where = (uint64_t *)dendp_chain_alloc(&g->chain, DENDP_HF_MAX_SHARDS * sizeof *where);
    uint32_t *order = NULL, n = 0, n_files = 0, i;
    dendp_json map;
    dend_status status;
    if (!names || !where) {
        return dendp_folder_no_memory(err);
    }
    status = dendp_hf_index_map(index, &map, err);
    if (status == DEND_OK) {
        status = dendp_hf_index_files(f, &map, names, where, &n_files, err);
    }
    if (status != DEND_OK) {
        return dendp_in_file(status, in_index, err);
    }
    status = dendp_hf_weights_make(f, &w, n_files, err);
    if (status == DEND_OK && n_files > 1) {
        uint64_t bytes = (uint64_t)(n_files - 1) * sizeof *g->shards;
        g->shards = (dendp_file *)dendp_alloc(&g->chain.allocator, bytes);
        if (!g->shards) {
            return dendp_folder_no_memory(err);
        }
        memset(g->shards, 0, (size_t)bytes);
        g->n_shards = n_files - 1;
    }
    for (i = 0; i < n_files && status == DEND_OK; i++) {
        dendp_file *file = i ? &g->shards[i - 1] : &g->file;
        const char *path = dendp_folder_path(f, names[i]);
        if (!path) {
            return dendp_folder_no_memory(err);
        }
        if (!dendp_path_exists(path)) {
            status = DENDP_FAIL(err, DEND_ERR_IO, "a file that weight_map names is not there", where[i]);
            return dendp_in_file(status, in_index, err);
        }
        status = dendp_folder_file(f, names[i], 0, false, file, err);
        if (status == DEND_OK) {
            status = dendp_st_open(g, file, i, &w.shards[i], &w.n[i], err);
        }
    }
    if (status == DEND_OK) {
        status = dendp_hf_gather(f, &w, &all, &order, &n, err);
    }
    if (status != DEND_OK) {
        return dendp_in_file(status, in_shard, err);
    }
    status = dendp_hf_index_check(&map, names, all, order, n, err);
    if (status != DEND_OK) {
        return dendp_in_file(status, in_index, err);
    }
    return dendp_in_file(dendp_folder_translate(f, all, n, err), in_shard, err);
}

/* Weights, one file or several. */
static dend_status dendp_folder_open_weights(dendp_folder *f, dend_error *err) {
    static const char single[] = "model.safetensors";
    const dend_model_desc *desc = f->desc;
    const char *path;
    dendp_file index;
    dend_status status;
    if (!f->dir || !dendp_path_is_folder(desc->path)) {
        return dendp_in_file(dendp_folder_open_single(f, NULL, err), f->dir ? NULL : single, err);
    }
    path = dendp_folder_path(f, single);
    if (!path) {
        return dendp_folder_no_memory(err);
    }
    if (dendp_path_exists(path)) {
        return dendp_in_file(dendp_folder_open_single(f, single, err), single, err);
    }
    status = dendp_folder_file(f, "model.safetensors.index.json", DENDP_HF_MAX_INDEX, true, &index, err);
    if (status == DEND_OK && !index.data) {
        status = DENDP_FAIL(err, DEND_ERR_IO,
                            "the folder has neither model.safetensors nor an index of several", 0);
    }
    if (status == DEND_OK) {
        status = dendp_folder_open_index(f, &index, err);
        dendp_file_close(&index);
    }
    return status;
}

/* Makes the catalogue of a folder, or of weights and config_json in memory. The
 * description's allocator must be resolved.
 * Returns: OK; ARGUMENT, IO, FORMAT, UNSUPPORTED, MEMORY, and then nothing is
 * held. Owns: *g, which dendp_gguf_close releases, and *f, for dendp_folder_close. */
static dend_status dendp_folder_open(dendp_folder *f, dendp_gguf *g, const dend_model_desc *desc,
                                     dend_error *err) {
    static const char config[] = "config.json";
    dend_status status = DEND_OK;
    memset(f, 0, sizeof *f);
    memset(g, 0, sizeof *g);
    g->chain.allocator = desc->allocator;
    f->desc = desc;
    f->g = g;
    if (desc->path) {
        status = dendp_folder_dir(f, err);
        if (status == DEND_OK) {
            status = dendp_in_file(dendp_folder_file(f, config, DENDP_HF_MAX_CONFIG, false, &f->config, err),
                                   config, err);
        }
    } else if (desc->config_json_size > DENDP_HF_MAX_CONFIG) {
        status = DENDP_FAIL(err, DEND_ERR_UNSUPPORTED, "JSON file is larger than the limit of this version",
                            DENDP_HF_MAX_CONFIG);
        status = dendp_in_file(status, config, err);
    } else {
        f->config.data = (const unsigned char *)desc->config_json;
        f->config.size = desc->config_json_size;
    }
    if (status == DEND_OK) {
        status = dendp_in_file(dendp_folder_read_config(f, err), config, err);
    }
    if (status == DEND_OK && !desc->vocab_only) {
        status = dendp_folder_open_weights(f, err);
    }
    if (status != DEND_OK) {
        dendp_file_close(&f->config);
        dendp_gguf_close(g);
    }
    return status;
}

static void dendp_folder_close(dendp_folder *f) {
    dendp_file_close(&f->config);
}

#endif /* DEND_NO_FOLDERS */
