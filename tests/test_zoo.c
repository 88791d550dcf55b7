/* Bad input, all formats together: every file of every zoo with the status,
 * the byte offset and a part of the message that it must give; each byte at
 * which a tiny model can end; integers of public descriptions at the ends of
 * their types; weights that are no numbers. Whatever comes, the answer is a
 * status, memory goes back, and no more than 1 GiB is asked for at once.
 *
 * A format joins by a line in zoo_formats. Its manifest has a line a file:
 *
 *     FILE STATUS OFFSET PART OF THE MESSAGE
 *
 * Lines with # are comments. Files that must load have DEND_OK. */

#define ZOO_MOST ((size_t)1 << 30) /* of one allocation */

/* Counts, refuses what is absurd, and fails the n-th when asked. */
typedef struct zoo_heap {
    test_heap heap;
    uint64_t n_refused;
} zoo_heap;

static void *zoo_alloc(void *user, size_t size, size_t align) {
    zoo_heap *z = (zoo_heap *)user;
    if (size > ZOO_MOST) {
        z->n_refused++;
        return NULL;
    }
    return test_heap_alloc(&z->heap, size, align);
}

static void zoo_free(void *user, void *p, size_t size) {
    test_heap_free(&((zoo_heap *)user)->heap, p, size);
}

static dend_allocator zoo_allocator(zoo_heap *z) {
    dend_allocator a;
    memset(z, 0, sizeof *z);
    a.alloc = zoo_alloc;
    a.free = zoo_free;
    a.user = z;
    return a;
}

/* Ways to hand a file over. */
enum { ZOO_MAPPED, ZOO_READ, ZOO_DATA, ZOO_N_WAYS };

/* Loads `path`, or its bytes, whole, and gives it back. One for each format that loads in its own way. */
typedef dend_status (*zoo_load)(const char *path, const unsigned char *data, size_t size, int way,
                                const dend_allocator *a, dend_error *err);

static dend_status zoo_load_model(const char *path, const unsigned char *data, size_t size, int way,
                                  const dend_allocator *a, dend_error *err) {
    dend_model_desc d;
    dend_model *model = NULL;
    dend_status status;
    memset(&d, 0, sizeof d);
    d.allocator = *a;
    if (way == ZOO_DATA) {
        d.data = data;
        d.data_size = size;
    } else {
        d.path = path;
        d.no_mmap = way == ZOO_READ;
    }
    status = dend_model_load(&d, &model, err);
    assert_true((status == DEND_OK) == (model != NULL));
    dend_model_free(model);
    return status;
}

typedef struct zoo_format {
    const char *name, *folder;
    zoo_load load;
    bool
        container; /* the manifest says what opening the container gives; loading a model then gives no more */
} zoo_format;

static const zoo_format zoo_formats[] = {
    {"GGUF container", "tests/golden/bad_gguf", zoo_load_model, true},
    {"GGUF model", "tests/golden/bad_model", zoo_load_model, false},
};

/* Each file of each zoo, in all ways. */
static void test_zoo_files(void **state) {
    uint32_t f, n_all = 0, n_wrong = 0;
    (void)state;
    for (f = 0; f < sizeof zoo_formats / sizeof zoo_formats[0]; f++) {
        const zoo_format *format = &zoo_formats[f];
        char path[320], line[320];
        FILE *manifest;
        uint32_t n_bad = 0, n_good = 0;
        snprintf(path, sizeof path, "%s/manifest.txt", format->folder);
        manifest = fopen(path, "r");
        assert_non_null(manifest);
        while (fgets(line, sizeof line, manifest)) {
            char file[128], name[64], part[128];
            unsigned long long where;
            unsigned char *data;
            size_t size;
            int way;
            bool good;
            if (line[0] == '#') {
                continue;
            }
            assert_int_equal(sscanf(line, "%127s %63s %llu %127[^\n]", file, name, &where, part), 4);
            snprintf(path, sizeof path, "%s/%s", format->folder, file);
            data = test_read_file(path, &size);
            assert_non_null(data);
            good = strcmp(name, "DEND_OK") == 0;
            for (way = 0; way < ZOO_N_WAYS; way++) {
                zoo_heap z;
                dend_allocator a = zoo_allocator(&z);
                dend_error err;
                dend_status status;
                memset(&err, 0, sizeof err);
                if (way == ZOO_DATA && size == 0) {
                    continue; /* no bytes are no data: an argument that is missing */
                }
                status = format->load(path, data, size, way, &a, &err);
                if (good && format->container) { /* a container without a model in it */
                    assert_true(status < 0 && err.msg != NULL);
                } else if (strcmp(dend_status_name(status), name) != 0 || (!good && err.where != where) ||
                           (!good && !format->container && !strstr(err.msg, part))) {
                    n_wrong++;
                    print_error("%s (way %d): %s at %llu with \"%s\" expected, got %s at %llu: %s\n", path,
                                way, name, where, part, dend_status_name(status),
                                (unsigned long long)err.where, err.msg ? err.msg : "");
                }
                assert_int_equal(z.heap.n_live_bytes, 0);
                assert_int_equal(z.n_refused, 0);
            }
            n_good += good;
            n_bad += !good;
            free(data);
        }
        fclose(manifest);
        print_message("zoo, %s: %u bad and %u good files\n", format->name, n_bad, n_good);
        assert_true(n_bad >= 10);
        n_all += n_bad;
    }
    print_message("zoo: %u bad files in all\n", n_all);
    assert_int_equal(n_wrong, 0);
    assert_true(n_all >= 120);
}

/* A tiny model cut off at each of its bytes, and a model with each byte of its head changed: a status, and what loads
 * runs a token. */
static void zoo_run(const dend_model *model) {
    dend_engine_desc d;
    dend_engine *engine = NULL;
    dend_seq seq;
    dend_sampled got;
    const int32_t token = 0;
    memset(&d, 0, sizeof d);
    d.model = model;
    d.n_ctx = 32;
    d.n_seqs = 1;
    d.n_batch = 1;
    d.n_tree_rows = 1;
    d.n_threads = 1;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &engine, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
    ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, &token, 1));
    ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
    ASSERT_STATUS(DEND_OK, dend_sample(engine, seq, NULL, &got));
    assert_true(got.token >= 0);
    dend_engine_free(engine);
}

static void zoo_try(const unsigned char *data, size_t size, uint32_t *n_loaded) {
    zoo_heap z;
    dend_model_desc d;
    dend_model *model = NULL;
    dend_error err;
    dend_status status;
    memset(&d, 0, sizeof d);
    memset(&err, 0, sizeof err);
    d.allocator = zoo_allocator(&z);
    d.data = data;
    d.data_size = size;
    status = dend_model_load(&d, &model, &err);
    if (status == DEND_OK) {
        zoo_run(model);
        dend_model_free(model);
        (*n_loaded)++;
    } else {
        assert_null(model);
        assert_non_null(err.msg);
        assert_true(err.where <= size);
    }
    assert_int_equal(z.heap.n_live_bytes, 0);
}

static void test_zoo_truncation(void **state) {
    size_t size, n;
    unsigned char *data = test_read_file("tests/golden/bad_model/good_model.gguf", &size);
    uint32_t n_loaded = 0;
    (void)state;
    assert_non_null(data);
    for (n = 1; n <= size; n++) {
        unsigned char *part =
            (unsigned char *)malloc(n); /* of this length, so that a sanitizer sees its end */
        assert_non_null(part);
        memcpy(part, data, n);
        zoo_try(part, n, &n_loaded);
        free(part);
    }
    assert_int_equal(n_loaded, 1); /* the whole one */
    free(data);
}

/* Every byte of a model changed, in four ways; the flips in its numbers load, and run. */
static void test_zoo_flips(void **state) {
    static const unsigned char with[4] = {0x01, 0x80, 0xff, 0x10};
    size_t size, at;
    unsigned char *data = test_read_file("tests/golden/bad_model/good_model.gguf", &size);
    uint32_t n_loaded = 0, i;
    (void)state;
    assert_non_null(data);
    for (at = 0; at < size; at++) {
        for (i = 0; i < 4; i++) {
            data[at] ^= with[i];
            zoo_try(data, size, &n_loaded);
            data[at] ^= with[i];
        }
    }
    print_message("flips: %u of %u load\n", n_loaded, (unsigned)(4 * size));
    assert_true(n_loaded > 100 && n_loaded < 4 * size);
    free(data);
}

/* Weights of all kinds of bits: NaN, infinities, subnormals, in scales and in values. A token is chosen, and the same
 * one alone and beside another sequence. */
static void test_zoo_weights(void **state) {
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x8000};
    static const char *const paths[] = {"tests/golden/bad_model/good_model.gguf",
                                        "tests/golden/tiny_qwen2_q8_q5.gguf"};
    uint32_t p, h, round, n_loaded = 0;
    (void)state;
    for (p = 0; p < 2; p++) {
        size_t size, at;
        unsigned char *data = test_read_file(paths[p], &size);
        assert_non_null(data);
        for (h = 0; h < sizeof halves / sizeof halves[0]; h++) {
            for (round = 0; round < (p ? 2u : 8u); round++) { /* the last 300 bytes, or more, of the data */
                unsigned char *bad = (unsigned char *)malloc(size);
                test_rng rng;
                assert_non_null(bad);
                memcpy(bad, data, size);
                rng.state = 1 + h * 100 + round;
                for (at = size - (p ? 4000 : 300) * (round + 1) / (p ? 2 : 8); at + 1 < size;
                     at += 2 * (1 + test_below(&rng, 40))) {
                    bad[at] = (unsigned char)halves[h];
                    bad[at + 1] = (unsigned char)(halves[h] >> 8);
                }
                zoo_try(bad, size, &n_loaded);
                free(bad);
            }
        }
        free(data);
    }
    print_message("weights: %u models ran\n", n_loaded);
    assert_true(n_loaded >= 80);
}

/* -- integers at the ends of their types ------------------------------------- */

static const uint64_t zoo_ends[] = {0,          1,          2,           15,         16,        17,
                                    255,        256,        65535,       65536,      1u << 24,  0x7ffffffe,
                                    0x7fffffff, 0x80000000, 0x80000001u, 0xfffffffe, 0xffffffff};
#define ZOO_N_ENDS (sizeof zoo_ends / sizeof zoo_ends[0])

typedef struct zoo_field {
    const char *name;
    size_t offset;
} zoo_field;

#define ZOO_FIELD(type, field)                                                                               \
    { #field, offsetof(type, field) }

/* Sets a 32-bit field. */
static void zoo_set(void *desc, const zoo_field *field, uint64_t value) {
    uint32_t v = (uint32_t)value;
    memcpy((unsigned char *)desc + field->offset, &v, sizeof v);
}

static dend_model *zoo_model(void) {
    dend_model_desc d;
    dend_model *model = NULL;
    memset(&d, 0, sizeof d);
    d.path = "tests/golden/tiny_llama_f32.gguf";
    ASSERT_STATUS(DEND_OK, dend_model_load(&d, &model, NULL));
    return model;
}

/* Each field of an engine's description at each value: planned and made, or refused by both; what is made works. */
static void test_zoo_engine_fields(void **state) {
    static const zoo_field fields[] = {
        ZOO_FIELD(dend_engine_desc, canary_begin_),  ZOO_FIELD(dend_engine_desc, n_ctx),
        ZOO_FIELD(dend_engine_desc, n_seqs),         ZOO_FIELD(dend_engine_desc, n_blocks),
        ZOO_FIELD(dend_engine_desc, block_tokens),   ZOO_FIELD(dend_engine_desc, kv_type),
        ZOO_FIELD(dend_engine_desc, n_batch),        ZOO_FIELD(dend_engine_desc, n_logits),
        ZOO_FIELD(dend_engine_desc, n_tree_rows),    ZOO_FIELD(dend_engine_desc, isa),
        ZOO_FIELD(dend_engine_desc, release_budget), ZOO_FIELD(dend_engine_desc, jobs.n_workers),
        ZOO_FIELD(dend_engine_desc, canary_end_),
    };
    dend_model *model = zoo_model();
    uint32_t f, v, n_made = 0, n_refused = 0;
    (void)state;
    for (f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (v = 0; v < ZOO_N_ENDS; v++) {
            zoo_heap z;
            dend_engine_desc d, copy;
            dend_plan_info plan;
            dend_engine *engine = NULL;
            dend_status planned, made;
            memset(&d, 0, sizeof d);
            d.model = model;
            d.n_ctx = 64;
            d.n_seqs = 2;
            d.n_batch = 4;
            d.n_threads = 1;
            d.allocator = zoo_allocator(&z);
            zoo_set(&d, &fields[f], zoo_ends[v]);
            copy = d;
            planned = dend_plan(&d, &plan, NULL);
            assert_true(planned == DEND_OK || planned == DEND_ERR_ARGUMENT ||
                        planned == DEND_ERR_UNSUPPORTED || planned == DEND_ERR_MEMORY);
            if (planned == DEND_OK && plan.total_bytes > ((uint64_t)64 << 20)) {
                continue; /* a wish that a larger machine could grant; the pages of it would take a while here */
            }
            made = dend_engine_create(&d, &engine, NULL);
            assert_memory_equal(&d, &copy, sizeof d);
            if (made != planned) {
                fail_msg("%s = %llu: planned %s, created %s", fields[f].name, (unsigned long long)zoo_ends[v],
                         dend_status_name(planned), dend_status_name(made));
            }
            if (made == DEND_OK) {
                dend_seq seq;
                const int32_t token = 1;
                ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
                ASSERT_STATUS(DEND_OK, dend_seq_append(engine, seq, &token, 1));
                ASSERT_STATUS(DEND_OK, dend_step(engine, 0));
                dend_engine_free(engine);
                n_made++;
            } else {
                assert_null(engine);
                n_refused++;
            }
            assert_int_equal(z.heap.n_live_bytes, 0);
        }
    }
    print_message("engine fields: %u made, %u refused\n", n_made, n_refused);
    assert_true(n_made > 50 && n_refused > 50);
    dend_model_free(model);
}

typedef struct zoo_world {
    dend_model *model;
    dend_engine *engine;
    dend_seq seq;
} zoo_world;

static void zoo_open(zoo_world *w) {
    static const int32_t prompt[] = {1, 5, 9};
    dend_engine_desc d;
    w->model = zoo_model();
    memset(&d, 0, sizeof d);
    d.model = w->model;
    d.n_ctx = 64;
    d.n_seqs = 16;
    d.n_batch = 8;
    d.n_threads = 1;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&d, &w->engine, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(w->engine, &w->seq));
    ASSERT_STATUS(DEND_OK, dend_seq_append(w->engine, w->seq, prompt, 3));
    ASSERT_STATUS(DEND_OK, dend_step(w->engine, 0));
}

static void zoo_close(zoo_world *w) {
    dend_engine_free(w->engine);
    dend_model_free(w->model);
}

/* A scheduler's description and a request's, each 32-bit field at each value. */
static void test_zoo_scheduler_fields(void **state) {
    static const zoo_field fields[] = {
        ZOO_FIELD(dend_scheduler_desc, canary_begin_), ZOO_FIELD(dend_scheduler_desc, n_requests),
        ZOO_FIELD(dend_scheduler_desc, n_users),       ZOO_FIELD(dend_scheduler_desc, prefill_share),
        ZOO_FIELD(dend_scheduler_desc, canary_end_),
    };
    static const zoo_field asked[] = {
        ZOO_FIELD(dend_request, seq.slot),
        ZOO_FIELD(dend_request, seq.generation),
        ZOO_FIELD(dend_request, params.temperature),
        ZOO_FIELD(dend_request, params.top_k),
        ZOO_FIELD(dend_request, params.top_p),
        ZOO_FIELD(dend_request, params.min_p),
        ZOO_FIELD(dend_request, max_tokens),
        ZOO_FIELD(dend_request, priority),
        ZOO_FIELD(dend_request, user),
    };
    zoo_world w;
    dend_scheduler *scheduler = NULL;
    dend_scheduler_desc d;
    uint32_t f, v, n_made = 0, n_refused = 0, n_done = 0;
    (void)state;
    zoo_open(&w);
    for (f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (v = 0; v < ZOO_N_ENDS; v++) {
            zoo_heap z;
            uint64_t n_bytes = 0;
            dend_status planned, made;
            memset(&d, 0, sizeof d);
            d.engine = w.engine;
            d.allocator = zoo_allocator(&z);
            zoo_set(&d, &fields[f], zoo_ends[v]);
            planned = dend_scheduler_plan(&d, &n_bytes, NULL);
            if (planned == DEND_OK && n_bytes > ((uint64_t)64 << 20)) {
                continue;
            }
            scheduler = NULL;
            made = dend_scheduler_create(&d, &scheduler, NULL);
            assert_int_equal(made, planned);
            assert_true((made == DEND_OK) == (scheduler != NULL));
            n_made += made == DEND_OK;
            n_refused += made != DEND_OK;
            dend_scheduler_free(scheduler);
            assert_int_equal(z.heap.n_live_bytes, 0);
        }
    }
    assert_true(n_made > 10 && n_refused > 10);
    memset(&d, 0, sizeof d);
    d.engine = w.engine;
    ASSERT_STATUS(DEND_OK, dend_scheduler_create(&d, &scheduler, NULL));
    for (f = 0; f < sizeof asked / sizeof asked[0]; f++) {
        for (v = 0; v < ZOO_N_ENDS; v++) {
            dend_request r;
            dend_request_id id;
            dend_seq branch;
            dend_status status;
            ASSERT_STATUS(DEND_OK, dend_seq_fork(w.engine, w.seq, 0, &branch));
            memset(&r, 0, sizeof r);
            r.seq = branch;
            r.max_tokens = 2;
            zoo_set(&r, &asked[f], zoo_ends[v]);
            status = dend_scheduler_submit(scheduler, &r, &id);
            if (status == DEND_OK) {
                uint32_t turns = 0;
                while (dend_scheduler_step(scheduler, 0) == DEND_PENDING && turns < 100) {
                    turns++;
                }
                assert_true(turns < 100);
                ASSERT_STATUS(DEND_OK, dend_scheduler_collect(scheduler, id));
                n_done++;
            } else {
                assert_true(status == DEND_ERR_ARGUMENT || status == DEND_ERR_STALE);
            }
            (void)dend_seq_drop(w.engine, branch);
        }
    }
    assert_true(n_done > 30);
    dend_scheduler_free(scheduler);
    zoo_close(&w);
}

/* A search's description; what is made runs for eight tokens. */
static void test_zoo_search_fields(void **state) {
    static const zoo_field fields[] = {
        ZOO_FIELD(dend_search_desc, canary_begin_),
        ZOO_FIELD(dend_search_desc, prompt.slot),
        ZOO_FIELD(dend_search_desc, prompt.generation),
        ZOO_FIELD(dend_search_desc, method),
        ZOO_FIELD(dend_search_desc, step_end),
        ZOO_FIELD(dend_search_desc, max_step_tokens),
        ZOO_FIELD(dend_search_desc, max_depth),
        ZOO_FIELD(dend_search_desc, propose),
        ZOO_FIELD(dend_search_desc, temperature),
        ZOO_FIELD(dend_search_desc, min_prob),
        ZOO_FIELD(dend_search_desc, n_children),
        ZOO_FIELD(dend_search_desc, value),
        ZOO_FIELD(dend_search_desc, n_value_prompt),
        ZOO_FIELD(dend_search_desc, yes),
        ZOO_FIELD(dend_search_desc, no),
        ZOO_FIELD(dend_search_desc, mcts.explore),
        ZOO_FIELD(dend_search_desc, mcts.fpu),
        ZOO_FIELD(dend_search_desc, mcts.widen),
        ZOO_FIELD(dend_search_desc, mcts.widen_power),
        ZOO_FIELD(dend_search_desc, mcts.virtual_loss),
        ZOO_FIELD(dend_search_desc, beam.width),
        ZOO_FIELD(dend_search_desc, beam.n_children),
        ZOO_FIELD(dend_search_desc, beam.length_penalty),
        ZOO_FIELD(dend_search_desc, beam.n_groups),
        ZOO_FIELD(dend_search_desc, beam.diversity),
        ZOO_FIELD(dend_search_desc, thought.width),
        ZOO_FIELD(dend_search_desc, thought.n_children),
        ZOO_FIELD(dend_search_desc, thought.threshold),
        ZOO_FIELD(dend_search_desc, best_of_n.n),
        ZOO_FIELD(dend_search_desc, max_tokens),
        ZOO_FIELD(dend_search_desc, max_blocks),
        ZOO_FIELD(dend_search_desc, n_nodes),
        ZOO_FIELD(dend_search_desc, n_tokens),
        ZOO_FIELD(dend_search_desc, n_lanes),
        ZOO_FIELD(dend_search_desc, canary_end_),
    };
    static const dend_search_method methods[] = {DEND_SEARCH_MCTS, DEND_SEARCH_BEAM,
                                                 DEND_SEARCH_TREE_OF_THOUGHT, DEND_SEARCH_DEPTH_FIRST,
                                                 DEND_SEARCH_BEST_OF_N};
    zoo_world w;
    uint32_t f, v, m, n_made = 0, n_refused = 0;
    (void)state;
    zoo_open(&w);
    for (f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (v = 0; v < ZOO_N_ENDS; v++) {
            for (m = f + v; m < f + v + 2; m++) {
                zoo_heap z;
                dend_search_desc d;
                dend_search *search = NULL;
                uint64_t n_bytes = 0;
                dend_status planned, made;
                memset(&d, 0, sizeof d);
                d.engine = w.engine;
                d.prompt = w.seq;
                d.method = methods[m % 5];
                d.step_end = DEND_STEP_TOKEN;
                d.max_tokens = 8;
                d.n_nodes = 64;
                d.allocator = zoo_allocator(&z);
                zoo_set(&d, &fields[f], zoo_ends[v]);
                planned = dend_search_plan(&d, &n_bytes, NULL);
                if (planned == DEND_OK && n_bytes > ((uint64_t)64 << 20)) {
                    continue;
                }
                made = dend_search_create(&d, &search, NULL);
                if (made != planned) {
                    fail_msg("%s = %llu: planned %s, created %s", fields[f].name,
                             (unsigned long long)zoo_ends[v], dend_status_name(planned),
                             dend_status_name(made));
                }
                if (made == DEND_OK) {
                    uint32_t turns = 0;
                    dend_search_info info;
                    do {
                        (void)dend_search_step(search, 1);
                        dend_search_get_info(search, &info);
                    } while (info.end == DEND_SEARCH_RUNNING && ++turns < 40);
                    n_made++;
                } else {
                    assert_null(search);
                    n_refused++;
                }
                dend_search_free(search);
                assert_int_equal(z.heap.n_live_bytes, 0);
            }
        }
    }
    print_message("search fields: %u made, %u refused\n", n_made, n_refused);
    assert_true(n_made > 200 && n_refused > 100);
    zoo_close(&w);
}

/* Parameters of sampling, bits of all kinds: a token of the vocabulary, or ARGUMENT. */
static void test_zoo_sample_fields(void **state) {
    static const uint64_t more[] = {0x3f800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f7fffff,
                                    0x00000001, 0x80000000, 0x00800000, 0x3f7fffff, 0x3f800001};
    dend_sampled got;
    zoo_world w;
    uint32_t word, v, n_ok = 0, n_refused = 0;
    dend_model_info info;
    (void)state;
    zoo_open(&w);
    dend_model_get_info(w.model, &info);
    for (word = 0; word + 4 <= sizeof(dend_sample_params); word += 4) {
        if (word >= offsetof(dend_sample_params, salt)) {
            break; /* what follows is of 64 bits or pointers */
        }
        for (v = 0; v < ZOO_N_ENDS + sizeof more / sizeof more[0]; v++) {
            const zoo_field field = {"word", word};
            dend_sample_params p;
            dend_status status;
            memset(&p, 0, sizeof p);
            p.temperature = 1.0f;
            zoo_set(&p, &field, v < ZOO_N_ENDS ? zoo_ends[v] : more[v - ZOO_N_ENDS]);
            status = dend_sample(w.engine, w.seq, &p, &got);
            if (status == DEND_OK) {
                assert_true(got.token >= 0 && (uint32_t)got.token < info.n_vocab);
                n_ok++;
            } else {
                ASSERT_STATUS(DEND_ERR_ARGUMENT, status);
                n_refused++;
            }
        }
    }
    assert_true(n_ok > 40 && n_refused > 10);
    zoo_close(&w);
}

/* -- a file that changes after it was loaded ---------------------------------- */

/* With no_mmap nothing of the file is needed once it is loaded: it may shrink to nothing. */
static void test_zoo_shrinking_file(void **state) {
    const char *path = "build/zoo_shrinks.gguf";
    size_t size;
    unsigned char *data = test_read_file("tests/golden/tiny_llama_f16.gguf", &size);
    uint32_t layout;
    (void)state;
    assert_non_null(data);
    for (layout = 0; layout < 2; layout++) {
        FILE *f = fopen(path, "wb");
        dend_model_desc d;
        dend_model *model = NULL;
        assert_non_null(f);
        assert_int_equal(fwrite(data, 1, size, f), size);
        fclose(f);
        memset(&d, 0, sizeof d);
        d.path = path;
        d.no_mmap = true;
        d.keep_file_layout = layout == 1; /* which would read the file as it runs, if it were mapped */
        ASSERT_STATUS(DEND_OK, dend_model_load(&d, &model, NULL));
        f = fopen(path, "wb"); /* now it is empty */
        assert_non_null(f);
        fclose(f);
        zoo_run(model);
        dend_model_free(model);
    }
    remove(path);
    free(data);
}

static const struct CMUnitTest tests_zoo[] = {
    cmocka_unit_test(test_zoo_files),          cmocka_unit_test(test_zoo_truncation),
    cmocka_unit_test(test_zoo_flips),          cmocka_unit_test(test_zoo_weights),
    cmocka_unit_test(test_zoo_engine_fields),  cmocka_unit_test(test_zoo_scheduler_fields),
    cmocka_unit_test(test_zoo_search_fields),  cmocka_unit_test(test_zoo_sample_fields),
    cmocka_unit_test(test_zoo_shrinking_file),
};
