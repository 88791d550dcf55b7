/* Rooms 02.05 to 02.09: folders of safetensors against the GGUF files of the
 * same weights and the logits of transformers (tools/goldens/hf_folders.py),
 * and what is refused, with the place that is at fault. */

#include "../fuzz/fuzz_safetensors.c"

#include <sys/stat.h>
#include <unistd.h>

/* -- the same bits as the GGUF file ------------------------------------------------- */

typedef struct st_rows {
    float *logits; /* [n][n_vocab] */
    uint32_t n_vocab;
} st_rows;

static void st_visit(void *ctx, uint32_t pos, const float *logits) {
    st_rows *rows = (st_rows *)ctx;
    memcpy(rows->logits + (size_t)pos * rows->n_vocab, logits, rows->n_vocab * sizeof *logits);
}

/* Logits of every position, of a model with f32 KV. */
static void st_logits(const dend_model *model, dend_isa isa, const int32_t *tokens, uint32_t n,
                      st_rows *rows) {
    dend_engine_desc ed;
    dend_engine *engine;
    dend_seq seq;
    memset(&ed, 0, sizeof ed);
    ed.model = model;
    ed.isa = isa;
    ed.kv_type = DEND_KV_F32;
    ed.n_ctx = 64;
    ed.n_threads = 1;
    ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
    ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
    golden_chain(engine, seq, tokens, n, st_visit, rows);
    dend_engine_free(engine);
}

static dend_model *st_load(const dend_model_desc *desc) {
    dend_error err;
    dend_model *model = NULL;
    memset(&err, 0, sizeof err);
    if (dend_model_load(desc, &model, &err) != DEND_OK) {
        fail_msg("%s: %s (%s, byte %u)", desc->path ? desc->path : "memory", err.msg,
                 err.file ? err.file : "", (unsigned)err.where);
    }
    return model;
}

static bool st_read(void *user, uint64_t offset, void *dst, size_t n) {
    memcpy(dst, (const unsigned char *)user + offset, n);
    return true;
}

#define ST_N_TOKENS 40u
#define ST_VOCAB 40u

/* Loads `desc` and the GGUF file `gguf`, runs both, and compares: the bits with
 * each other, and the values with transformers' where there are any. */
static void st_compare(const dend_model_desc *desc, const char *gguf, const char *logits, double atol) {
    static float ours[ST_N_TOKENS * ST_VOCAB], theirs[ST_N_TOKENS * ST_VOCAB];
    st_rows a, b;
    int32_t tokens[ST_N_TOKENS];
    float *expected;
    dend_model_desc gd;
    dend_model *model = st_load(desc), *other;
    dend_model_info info, other_info;
    dend_isa isa;
    golden_reader g = golden_open(logits, "DTM1");
    assert_int_equal(golden_u32(&g), ST_N_TOKENS);
    golden_take(&g, tokens, sizeof tokens);
    assert_int_equal(golden_u32(&g), ST_VOCAB);
    expected = (float *)(void *)(g.data + g.at);
    memset(&gd, 0, sizeof gd);
    gd.path = gguf;
    other = st_load(&gd);
    dend_model_get_info(model, &info);
    dend_model_get_info(other, &other_info);
    assert_string_equal(info.architecture, other_info.architecture);
    assert_int_equal(info.n_params, other_info.n_params);
    assert_int_equal(info.n_ctx_train, other_info.n_ctx_train);
    assert_int_equal(info.n_vocab, ST_VOCAB);
    a.logits = ours;
    b.logits = theirs;
    a.n_vocab = b.n_vocab = ST_VOCAB;
    for (isa = DEND_ISA_SCALAR; isa <= DEND_ISA_NEON; isa = (dend_isa)(isa + 1)) {
        uint32_t i;
        if (!dendp_kernels_get(isa)) {
            continue;
        }
        st_logits(model, isa, tokens, ST_N_TOKENS, &a);
        st_logits(other, isa, tokens, ST_N_TOKENS, &b);
        assert_memory_equal(ours, theirs, sizeof ours);
        for (i = 0; i < ST_N_TOKENS * ST_VOCAB && atol > 0; i++) {
            ASSERT_NEAR(expected[i], ours[i], atol, 1e-4);
        }
    }
    dend_model_free(model);
    dend_model_free(other);
    free(g.data);
}

/* The folder of a model, by path and with its file layout, beside its GGUF file. The tolerance is that of the
 * tiny models with float weights: single-precision rounding on both sides. */
static void st_folder(const char *name, const char *gguf_of) {
    char path[128], gguf[128], logits[128];
    dend_model_desc desc;
    int way;
    snprintf(path, sizeof path, "tests/golden/hf_%s", name);
    snprintf(gguf, sizeof gguf, "tests/golden/hf_%s/model.gguf", gguf_of);
    snprintf(logits, sizeof logits, "tests/golden/hf_%s/logits.bin", gguf_of);
    for (way = 0; way < 4; way++) {
        memset(&desc, 0, sizeof desc);
        desc.path = path;
        desc.keep_file_layout = (way & 1) != 0;
        desc.no_mmap = (way & 2) != 0;
        st_compare(&desc, gguf, logits, 2e-4);
    }
}

static void st_llama(void **state) {
    (void)state;
    st_folder("llama", "llama");
}

static void st_llama_biases(void **state) {
    (void)state;
    st_folder("llama_biases", "llama_biases");
}

static void st_mistral(void **state) {
    (void)state;
    st_folder("mistral", "mistral");
}

static void st_qwen2(void **state) {
    (void)state;
    st_folder("qwen2", "qwen2");
}

static void st_qwen3(void **state) {
    (void)state;
    st_folder("qwen3", "qwen3");
}

static void st_gemma3(void **state) {
    (void)state;
    st_folder("gemma3", "gemma3");
}

/* The text of a model that also sees: what sees is dropped, defaults of the class are filled in. */
static void st_gemma3_nested(void **state) {
    (void)state;
    st_folder("gemma3_nested", "gemma3");
}

/* From memory, through a reader, and by the path of the file itself. */
static void st_sources(void **state) {
    dend_model_desc desc;
    size_t n_config, n_weights;
    unsigned char *config = test_read_file("tests/golden/hf_llama/config.json", &n_config);
    unsigned char *weights = test_read_file("tests/golden/hf_llama/model.safetensors", &n_weights);
    int way;
    (void)state;
    assert_non_null(config);
    assert_non_null(weights);
    for (way = 0; way < 6; way++) {
        memset(&desc, 0, sizeof desc);
        desc.keep_file_layout = way & 1;
        if (way < 2) {
            desc.path = "tests/golden/hf_llama/model.safetensors";
        } else {
            desc.config_json = (const char *)config;
            desc.config_json_size = n_config;
            if (way < 4) {
                desc.data = weights;
                desc.data_size = n_weights;
            } else {
                desc.reader.read = st_read;
                desc.reader.user = weights;
                desc.reader.size = n_weights;
            }
        }
        st_compare(&desc, "tests/golden/hf_llama/model.gguf", "tests/golden/hf_llama/logits.bin", 2e-4);
    }
    free(config);
    free(weights);
}

/* Data of odd alignment: the head is one space longer. */
static void st_misaligned(void **state) {
    dend_model_desc desc;
    size_t n_config, n;
    unsigned char *config = test_read_file("tests/golden/hf_llama/config.json", &n_config), *moved;
    unsigned char *weights = test_read_file("tests/golden/hf_llama/model.safetensors", &n);
    uint64_t n_head, i;
    (void)state;
    assert_non_null(config);
    assert_non_null(weights);
    n_head = dendp_load64(weights);
    moved = (unsigned char *)malloc(n + 1);
    assert_non_null(moved);
    memcpy(moved, weights, 8 + n_head);
    moved[8 + n_head] = ' ';
    memcpy(moved + 9 + n_head, weights + 8 + n_head, n - 8 - n_head);
    for (i = 0; i < 8; i++) {
        moved[i] = (unsigned char)((n_head + 1) >> 8 * i);
    }
    memset(&desc, 0, sizeof desc);
    desc.config_json = (const char *)config;
    desc.config_json_size = n_config;
    desc.data = moved;
    desc.data_size = n + 1;
    for (i = 0; i < 2; i++) {
        desc.keep_file_layout = i != 0;
        st_compare(&desc, "tests/golden/hf_llama/model.gguf", "tests/golden/hf_llama/logits.bin", 2e-4);
    }
    free(config);
    free(weights);
    free(moved);
}

/* Quantised at load, from F32 and BF16 folders and from GGUF files: the bits of the GGUF file that the gguf
 * package quantised. */
static void st_quantised(void **state) {
    static const char *const names[] = {"llama", "qwen2"};
    static const char *const types[] = {"q8_0", "q4_0"};
    size_t i, k;
    int way;
    (void)state;
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 2; k++) {
            for (way = 0; way < 4; way++) {
                char path[128], gguf[128], logits[128];
                dend_model_desc desc;
                snprintf(path, sizeof path, "tests/golden/hf_%s%s", names[i], way & 1 ? "/model.gguf" : "");
                snprintf(gguf, sizeof gguf, "tests/golden/hf_%s/%s.gguf", names[i], types[k]);
                snprintf(logits, sizeof logits, "tests/golden/hf_%s/logits.bin", names[i]);
                memset(&desc, 0, sizeof desc);
                desc.path = path;
                desc.quantise = k ? DEND_WEIGHT_Q4_0 : DEND_WEIGHT_Q8_0;
                desc.keep_file_layout = (way & 2) != 0;
                st_compare(&desc, gguf, logits, 0);
            }
        }
    }
}

static void st_quantise_refusals(void **state) {
    dend_model_desc desc;
    dend_model *model = NULL;
    dend_error err;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.path = "tests/golden/hf_llama/q8_0.gguf";
    desc.quantise = DEND_WEIGHT_Q4_0;
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "a matrix that is quantised already cannot be quantised");
    desc.path = "tests/golden/hf_llama_biases"; /* rows of 48: H * d */
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "a matrix whose rows are no multiple of 32 cannot be quantised");
    desc.quantise = (dend_weight_type)3;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err));
    desc.quantise = (dend_weight_type)-1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err));
}

/* tests/golden/quant_encode.bin: blocks beside the gguf package's, bit for bit. */
static void st_encode(void **state) {
    golden_reader g = golden_open("tests/golden/quant_encode.bin", "DQE1");
    uint32_t n = golden_u32(&g), i;
    float values[32];
    const unsigned char *q8 = g.data + 8 + 128 * (size_t)n, *q4 = q8 + 34 * (size_t)n;
    (void)state;
    assert_int_equal(g.size, 8 + (128 + 34 + 18) * (size_t)n);
    for (i = 0; i < n; i++) {
        unsigned char out[34];
        memcpy(values, g.data + 8 + 128 * (size_t)i, sizeof values);
        dendp_encode_q8_0(values, 1, out);
        assert_memory_equal(out, q8 + 34 * (size_t)i, 34);
        dendp_encode_q4_0(values, 1, out);
        assert_memory_equal(out, q4 + 18 * (size_t)i, 18);
    }
    free(g.data);
}

/* No value makes the encoders do anything but write their bytes. */
static void st_encode_any_bits(void **state) {
    static const uint32_t odd[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f7fffffu,
                                   1,           0x80000001u, 0x00800000u};
    test_rng rng = {5};
    int i, j;
    (void)state;
    for (i = 0; i < 5000; i++) {
        float values[32];
        unsigned char out[35];
        for (j = 0; j < 32; j++) {
            uint32_t bits = test_below(&rng, 8) ? (uint32_t)test_next(&rng) : odd[test_below(&rng, 7)];
            memcpy(&values[j], &bits, 4);
        }
        out[34] = out[18] = 77;
        dendp_encode_q4_0(values, 1, out);
        assert_int_equal(out[18], 77);
        dendp_encode_q8_0(values, 1, out);
        assert_int_equal(out[34], 77);
    }
}

/* -- editing good files ---------------------------------------------------------------- */

/* A text under edit. */
typedef struct st_text {
    char *data;
    size_t n;
} st_text;

static st_text st_text_of(const char *data, size_t n) {
    st_text t;
    t.data = (char *)malloc(n + 1);
    assert_non_null(t.data);
    memcpy(t.data, data, n);
    t.data[n] = 0;
    t.n = n;
    return t;
}

/* Replaces the first `from`, which must be there; NULL: nothing. */
static void st_edit(st_text *t, const char *from, const char *to) {
    char *at = from ? strstr(t->data, from) : NULL;
    size_t before, n;
    char *out;
    if (!from) {
        return;
    }
    if (!at) {
        fail_msg("the template has no %s", from);
    }
    before = (size_t)(at - t->data);
    n = t->n - strlen(from) + strlen(to);
    out = (char *)malloc(n + 1);
    assert_non_null(out);
    memcpy(out, t->data, before);
    memcpy(out + before, to, strlen(to));
    memcpy(out + before + strlen(to), at + strlen(from), t->n - before - strlen(from));
    out[n] = 0;
    free(t->data);
    t->data = out;
    t->n = n;
}

/* A case: the text with `from` replaced by `to` fails with `status` and `msg`, at the first `at` of the edited text
 * and `plus` bytes on. at NULL: at byte `plus`; with an @ before it: in the head of the weights. */
typedef struct st_case {
    const char *from, *to;
    dend_status status;
    const char *at;
    uint64_t plus;
    const char *msg;
} st_case;

static void st_expect(const st_case *c, const st_text *text, const st_text *head, const dend_model_desc *desc,
                      const char *file) {
    dend_error err;
    dend_model *model = NULL;
    bool in_head = c->at && c->at[0] == '@';
    const char *start = in_head ? head->data : text ? text->data : "";
    const char *at = c->at ? strstr(start, c->at + (in_head ? 1 : 0)) : NULL;
    uint64_t where = c->plus + (at ? (in_head ? 8u : 0u) + (uint64_t)(at - start) : 0);
    dend_status status;
    memset(&err, 0, sizeof err);
    status = dend_model_load(desc, &model, &err);
    if (c->at && !at) {
        fail_msg("%s -> %s: no %s", c->from ? c->from : "", c->to ? c->to : "", c->at);
    }
    if (status == DEND_OK) {
        dend_model_free(model);
        fail_msg("%s -> %s: loaded", c->from ? c->from : "", c->to ? c->to : "");
    }
    if (status != c->status || err.where != where || strcmp(err.msg, c->msg) != 0) {
        fail_msg("%s -> %s: %s at %u: %s\nexpected %s at %u: %s", c->from ? c->from : "", c->to ? c->to : "",
                 dend_status_name(status), (unsigned)err.where, err.msg, dend_status_name(c->status),
                 (unsigned)where, c->msg);
    }
    if (file) {
        assert_non_null(err.file);
        assert_string_equal(err.file, file);
    }
}

/* One of the fuzz target's seeds: the smallest models. */
typedef struct st_seed {
    unsigned char *file;
    st_text config, head;
    const unsigned char *data; /* tensor data */
    size_t n_data;
} st_seed;

static st_seed st_seed_open(const char *name) {
    st_seed s;
    char path[128];
    size_t size, n_config, n_head;
    snprintf(path, sizeof path, "fuzz/corpus/safetensors/%s", name);
    s.file = test_read_file(path, &size);
    assert_non_null(s.file);
    n_config = dendp_load32(s.file);
    n_head = (size_t)dendp_load64(s.file + 4 + n_config);
    s.config = st_text_of((const char *)s.file + 4, n_config);
    s.head = st_text_of((const char *)s.file + 4 + n_config + 8, n_head);
    s.data = s.file + 4 + n_config + 8 + n_head;
    s.n_data = size - (4 + n_config + 8 + n_head);
    return s;
}

static void st_seed_close(st_seed *s) {
    free(s->file);
    free(s->config.data);
    free(s->head.data);
}

/* The weights as a file: malloc. */
static unsigned char *st_seed_weights(const st_seed *s, size_t *n) {
    unsigned char *out;
    size_t i;
    *n = 8 + s->head.n + s->n_data;
    out = (unsigned char *)malloc(*n);
    assert_non_null(out);
    for (i = 0; i < 8; i++) {
        out[i] = (unsigned char)((uint64_t)s->head.n >> 8 * i);
    }
    memcpy(out + 8, s->head.data, s->head.n);
    memcpy(out + 8 + s->head.n, s->data, s->n_data);
    return out;
}

static dend_model_desc st_seed_desc(const st_seed *s, const unsigned char *weights, size_t n) {
    dend_model_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.config_json = s->config.data;
    desc.config_json_size = s->config.n;
    desc.data = weights;
    desc.data_size = n;
    return desc;
}

/* -- config.json ------------------------------------------------------------------------- */

static void st_configs(const char *seed, const st_case *cases, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) {
        st_seed s = st_seed_open(seed);
        size_t n_weights;
        unsigned char *weights = st_seed_weights(&s, &n_weights);
        dend_model_desc desc;
        st_edit(&s.config, cases[i].from, cases[i].to);
        desc = st_seed_desc(&s, weights, n_weights);
        if (cases[i].status == DEND_OK) {
            dend_model_free(st_load(&desc));
        } else {
            st_expect(&cases[i], &s.config, &s.head, &desc, NULL);
        }
        free(weights);
        st_seed_close(&s);
    }
}

#define ST_FORMAT DEND_ERR_FORMAT
#define ST_UNSUP DEND_ERR_UNSUPPORTED

static void st_bad_configs(void **state) {
    static const st_case llama[] = {
        {NULL, NULL, DEND_OK, NULL, 0, NULL}, /* the template itself is good */
        {"{", "[", ST_FORMAT, "[", 0, "config.json is no JSON object"},
        {"}\n", "", ST_FORMAT, "\"vocab_size\": 3\n", 16, "JSON text ends too early"},
        {"\"vocab_size\": 3", "\"vocab_size\": 3,", ST_FORMAT, "\"vocab_size\": 3,\n", 17,
         "no key where one must be in a JSON object"},
        {"\"vocab_size\": 3", "\"vocab_size\": 03", ST_FORMAT, "\"vocab_size\": 03", 15,
         "no comma where one must be in a JSON text"},
        {"{", "{\"x\": \"\xff\",", ST_FORMAT, "\xff", 0, "invalid UTF-8 in a JSON string"},
        {"{", "{\"hidden_size\": 4, ", ST_FORMAT, "\"hidden_size\": 4,\n", 0, "duplicate key"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"bloom\"", ST_UNSUP, "\"bloom\"", 0,
         "this model_type is not supported"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"qwen3_moe\"", ST_UNSUP, "\"qwen3_moe\"", 0,
         "mixture-of-experts models are not supported"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"deepseek_v3\"", ST_UNSUP, "\"deepseek_v3\"", 0,
         "multi-head latent attention is not supported"},
        {"{", "{\"text_config\": {\"model_type\": \"llama\"},", ST_UNSUP, "\"llama\",\n", 0,
         "multimodal models are not supported"},
        {"{", "{\"rope_interleaved\": true,", ST_UNSUP, "true,", 0, "rope_interleaved is not supported"},
        {"\"model_type\": \"llama\"", "\"model_type\": 7", ST_FORMAT, "7,\n", 0,
         "model_type is missing or no string"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"mamba\"", ST_UNSUP, "\"mamba\"", 0,
         "recurrent and hybrid models are not supported"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"", ST_UNSUP, "\"LlamaForCausalLM\"", 0,
         "architectures names no language model of this model_type"},
        {"LlamaForCausalLM", "LlamaForSequenceClassification", ST_UNSUP, "\"LlamaForSequence", 0,
         "architectures names no language model of this model_type"},
        {"[\n    \"LlamaForCausalLM\"\n  ]", "\"x\"", ST_FORMAT, "\"x\"", 0,
         "architectures is no array of strings"},
        {"[\n    \"LlamaForCausalLM\"\n  ]", "[]", ST_FORMAT, "[]", 0,
         "architectures is no array of strings"},
        {"[\n    \"LlamaForCausalLM\"\n  ]", "null", DEND_OK, NULL, 0, NULL},
        {"\"hidden_size\": 4", "\"hidden_width\": 4", ST_FORMAT, "{", 0, "hidden_size is missing"},
        {"\"hidden_size\": 4", "\"hidden_size\": null", ST_FORMAT, "null", 0, "hidden_size is missing"},
        {"\"hidden_size\": 4", "\"hidden_size\": -4", ST_FORMAT, "-4", 0,
         "hidden_size is no integer from 0 to 2^32 - 1"},
        {"\"hidden_size\": 4", "\"hidden_size\": 4.0", ST_FORMAT, "4.0", 0,
         "hidden_size is no integer from 0 to 2^32 - 1"},
        {"\"hidden_size\": 4", "\"hidden_size\": \"4\"", ST_FORMAT, "\"4\"", 0,
         "hidden_size is no integer from 0 to 2^32 - 1"},
        {"\"hidden_size\": 4", "\"hidden_size\": 4294967296", ST_FORMAT, "4294967296", 0,
         "hidden_size is no integer from 0 to 2^32 - 1"},
        {"\"hidden_size\": 4", "\"hidden_size\": 18446744073709551620", ST_FORMAT, "184467", 0,
         "hidden_size is no integer from 0 to 2^32 - 1"},
        {"\"hidden_size\": 4", "\"hidden_size\": 0", ST_FORMAT, "\"hidden_size\"", 15,
         "embedding_length is no positive integer"},
        {"\"hidden_size\": 4", "\"hidden_size\": 4294967295", ST_UNSUP, "4294967295", 0,
         "embedding_length is above the limit of this version"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 4294967295", ST_UNSUP, "4294967295", 0,
         "block_count is above the limit of this version"},
        {"\"num_attention_heads\": 1", "\"num_attention_heads\": 0", ST_FORMAT,
         "@\"model.layers.0.self_attn.q_proj.weight\"", 0,
         "rows of Q or K are no whole number of heads of even width"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", ST_FORMAT,
         "@\"model.layers.0.self_attn.k_proj.weight\"", 0,
         "rows of Q or K are no whole number of heads of even width"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"small\"", ST_FORMAT, "\"small\"", 0,
         "rms_norm_eps is missing or no number"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 2", ST_FORMAT, "\"rms_norm_eps\"", 16,
         "attention.layer_norm_rms_epsilon is no number from 10^-20 to 1"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e999", ST_FORMAT, "1e999", 0,
         "rms_norm_eps is missing or no number"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", ST_UNSUP, "\"gelu\"", 0,
         "this hidden_act is not supported"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0", ST_FORMAT, "\"tie_word_embeddings\"",
         23, "a switch of config.json is neither true nor false"},
        {"\"attention_bias\": false", "\"attention_bias\": \"no\"", ST_FORMAT, "\"no\"", 0,
         "a switch of config.json is neither true nor false"},
        {"{", "{\"quantization_config\": {\"quant_method\": \"gptq\"},", ST_UNSUP, "{\"quant_method\"", 0,
         "quantised safetensors (quantization_config) are not supported"},
        {"{", "{\"num_local_experts\": 8,", ST_UNSUP, "8,", 0, "mixture-of-experts models are not supported"},
        {"{", "{\"kv_lora_rank\": 512,", ST_UNSUP, "512,", 0, "multi-head latent attention is not supported"},
        {"{", "{\"auto_map\": {\"AutoModel\": \"x.Y\"},", ST_UNSUP, "{\"AutoModel\"", 0,
         "models with code of their own (auto_map) are not supported"},
        {"{", "{\"final_logit_softcapping\": 30.0,", ST_UNSUP, "30.0", 0, "capped logits are not supported"},
        {"{", "{\"is_causal\": false,", ST_UNSUP, "false,", 0,
         "attention that is not causal is not supported"},
        {"{", "{\"partial_rotary_factor\": 0.5,", ST_UNSUP, "0.5", 0,
         "partial_rotary_factor is not supported"},
        /* what says no refuses nothing */
        {"{", "{\"quantization_config\": null, \"auto_map\": {}, \"num_experts\": 0, \"q_lora_rank\": null,",
         DEND_OK, NULL, 0, NULL},
        {"{",
         "{\"id2label\": {\"0\": [1, {}, \"\\u00e9\"]}, \"is_encoder_decoder\": false, \"clip_qkv\": 0.0,",
         DEND_OK, NULL, 0, NULL},
        {"\"attention_bias\": false", "\"attention_bias\": true", DEND_OK, NULL, 0, NULL},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": null", DEND_OK, NULL, 0, NULL},
        /* positions */
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"longrope\"", ST_UNSUP, "\"longrope\"", 0,
         "this rope scaling is not supported"},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"dynamic\"", ST_UNSUP, "\"dynamic\"", 0,
         "this rope scaling is not supported"},
        {"\"rope_type\": \"llama3\"", "\"type\": \"mrope\"", ST_UNSUP, "\"mrope\"", 0,
         "this rope scaling is not supported"},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": 3", ST_FORMAT, "\"rope_type\": 3", 13,
         "rope_type is no string"},
        {"\"low_freq_factor\": 1.0", "\"low_freq_factor\": 4.0", ST_FORMAT, "16,\n", 0,
         "rope scaling llama3 lacks a number, or has one that makes no sense"},
        {"\"factor\": 8.0", "\"factors\": 8.0", ST_FORMAT, "16,\n", 0,
         "rope scaling llama3 lacks a number, or has one that makes no sense"},
        {"\"factor\": 8.0", "\"factor\": [8.0]", ST_FORMAT, "[8.0]", 0,
         "no number where config.json must have one"},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"linear\"", DEND_OK, NULL, 0, NULL},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"", DEND_OK, NULL, 0, NULL},
        {"\"rope_type\": \"llama3\"", "\"mscale\": 1.0, \"rope_type\": \"yarn\"", ST_UNSUP,
         "1.0, \"rope_type\"", 0, "rope scaling yarn with mscale is not supported"},
        {"\"rope_type\": \"llama3\"", "\"truncate\": false, \"rope_type\": \"yarn\"", ST_UNSUP,
         "false, \"rope_type\"", 0, "rope scaling yarn without truncation is not supported"},
        {"\"rope_theta\": 500000.0", "\"rope_theta\": 0.5", ST_FORMAT, "16,\n", 0,
         "rope scaling llama3 lacks a number, or has one that makes no sense"},
        {"\"rope_scaling\": {", "\"rope_scaling\": 1, \"x\": {", ST_FORMAT, "1, \"x\"", 0,
         "rope_scaling is no object"},
        {"\"rope_scaling\": {", "\"rope_scaling\": null, \"x\": {", DEND_OK, NULL, 0, NULL},
        /* sizes that disagree with the tensors: the offset is that of the tensor's key in the head */
        {"\"vocab_size\": 3", "\"vocab_size\": 4", ST_FORMAT, "@\"model.embed_tokens.weight\"", 0,
         "token_embd.weight has the wrong shape"},
        {"\"intermediate_size\": 4", "\"intermediate_size\": 5", ST_FORMAT,
         "@\"model.layers.0.mlp.gate_proj.weight\"", 0, "blk.%u.ffn_gate.weight has the wrong shape"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", ST_FORMAT, NULL, 0,
         "blk.%u.attn_norm.weight is missing"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", DEND_OK, NULL, 0, NULL},
    };
    static const st_case qwen2[] = {
        {NULL, NULL, DEND_OK, NULL, 0, NULL},
        {"\"num_key_value_heads\": 1", "\"num_key_value_head\": 1", ST_FORMAT, "{", 0,
         "num_key_value_heads is missing"},
        {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", ST_FORMAT, NULL, 0,
         "lm_head.weight is missing, and tie_word_embeddings is false"},
        {"\"use_sliding_window\": false", "\"use_sliding_window\": true", DEND_OK, NULL, 0,
         NULL},                                                                        /* window null */
        {"\"sliding_window\": null", "\"sliding_window\": 7", DEND_OK, NULL, 0, NULL}, /* and not asked for */
        {"\"layer_types\"", "\"use_sliding_window\": true, \"sliding_window\": 9, \"layer_types\"", ST_FORMAT,
         "\"use_sliding_window\": false", 0, "duplicate key"},
    };
    static const st_case gemma3[] = {
        {NULL, NULL, DEND_OK, NULL, 0, NULL},
        {"\"hidden_activation\": \"gelu_pytorch_tanh\"", "\"hidden_activation\": \"gelu\"", ST_UNSUP,
         "\"gelu\"", 0, "this hidden_activation is not supported"},
        {"\"query_pre_attn_scalar\": 4", "\"query_pre_attn_scalar\": 5", ST_UNSUP,
         "\"query_pre_attn_scalar\"", 25, "this query_pre_attn_scalar is not supported"},
        {"\"full_attention\"", "\"linear_attention\"", ST_UNSUP, "\"linear_attention\"", 0,
         "layer_types other than full_attention and sliding_attention are not supported"},
        {"\"full_attention\"", "\"full_attention\", \"full_attention\"", ST_FORMAT, "\"full_attention\"\n", 0,
         "layer_types has not one value for each layer"},
        {"\"full_attention\"", "", ST_FORMAT, "\"layer_types\": [", 24,
         "layer_types has not one value for each layer"},
        {"\"full_attention\"", "\"sliding_attention\"", DEND_OK, NULL, 0, NULL},
        {"\"sliding_window\": 9", "\"sliding_window\": -9", ST_FORMAT, "-9", 0,
         "sliding_window is no integer from 0 to 2^32 - 1"},
        {"\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true", ST_UNSUP,
         "\"use_bidirectional_attention\"", 31, "attention that is not causal is not supported"},
        {"\"attn_logit_softcapping\": null", "\"attn_logit_softcapping\": 50", ST_UNSUP, "50", 0,
         "capped attention scores are not supported"},
        {"\"rope_local_base_freq\": 10000.0", "\"rope_local_base_freq\": \"x\"", ST_FORMAT, "\"x\"", 0,
         "no number where config.json must have one"},
    };
    (void)state;
    st_configs("llama", llama, sizeof llama / sizeof llama[0]);
    st_configs("qwen2", qwen2, sizeof qwen2 / sizeof qwen2[0]);
    st_configs("gemma3", gemma3, sizeof gemma3 / sizeof gemma3[0]);
}

/* A folder of JSON that is nested 100,000 deep is refused at its 65th bracket. */
static void st_deep_config(void **state) {
    st_seed s = st_seed_open("llama");
    size_t n_weights, n = 100000, i;
    unsigned char *weights = st_seed_weights(&s, &n_weights);
    char *text = (char *)malloc(2 * n + 64);
    dend_model_desc desc;
    dend_model *model = NULL;
    dend_error err;
    (void)state;
    assert_non_null(text);
    memcpy(text, "{\"x\": ", 6);
    for (i = 0; i < n; i++) {
        text[6 + i] = '[';
        text[6 + n + i] = ']';
    }
    text[6 + 2 * n] = '}';
    desc = st_seed_desc(&s, weights, n_weights);
    desc.config_json = text;
    desc.config_json_size = 7 + 2 * n;
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
    assert_int_equal(err.where, 6 + 63);
    assert_string_equal(err.msg, "JSON text is nested more than 64 deep");
    assert_string_equal(err.file, "config.json");
    desc.config_json_size = DENDP_HF_MAX_CONFIG + 1;
    ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "JSON file is larger than the limit of this version");
    free(text);
    free(weights);
    st_seed_close(&s);
}

/* What newer versions of transformers write means the same: rope_parameters, and per kind of layer. */
static void st_new_style(void **state) {
    static const struct {
        const char *name, *from, *to;
    } cases[] = {
        {"llama", "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0,"},
        {"llama", "\"rope_type\"", "\"type\""},
        {"gemma3",
         "\"rope_scaling\": {\n    \"factor\": 8.0,\n    \"rope_type\": \"linear\"\n  },\n  \"rope_theta\": "
         "1000000.0",
         "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 10000, \"rope_type\": \"default\"},"
         "\"full_attention\": {\"rope_theta\": 1000000, \"rope_type\": \"linear\", \"factor\": 8}}"},
        {"gemma3",
         "\"layer_types\": [\n    \"sliding_attention\",\n    \"sliding_attention\",\n    "
         "\"full_attention\"\n  ]",
         "\"sliding_window_pattern\": 3"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128], gguf[128], logits[128];
        size_t n_config, n_weights;
        unsigned char *config, *weights;
        dend_model_desc desc;
        st_text text;
        snprintf(path, sizeof path, "tests/golden/hf_%s/config.json", cases[i].name);
        config = test_read_file(path, &n_config);
        snprintf(path, sizeof path, "tests/golden/hf_%s/model.safetensors", cases[i].name);
        weights = test_read_file(path, &n_weights);
        assert_non_null(config);
        assert_non_null(weights);
        text = st_text_of((const char *)config, n_config);
        st_edit(&text, cases[i].from, cases[i].to);
        memset(&desc, 0, sizeof desc);
        desc.config_json = text.data;
        desc.config_json_size = text.n;
        desc.data = weights;
        desc.data_size = n_weights;
        snprintf(gguf, sizeof gguf, "tests/golden/hf_%s/model.gguf", cases[i].name);
        snprintf(logits, sizeof logits, "tests/golden/hf_%s/logits.bin", cases[i].name);
        st_compare(&desc, gguf, logits, 2e-4);
        free(text.data);
        free(config);
        free(weights);
    }
}

/* -- the head of a safetensors file ------------------------------------------------------- */

#define ST_DATA_END UINT64_MAX /* the end of what tensors cover in the edited file */
#define ST_NORM "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":["

static void st_bad_heads(void **state) {
    static const st_case cases[] = {
        {NULL, NULL, DEND_OK, NULL, 0, NULL},
        {"{\"__metadata__\"", " {\"__metadata__\"", ST_FORMAT, NULL, 8,
         "head of a safetensors file is no JSON object"},
        {"{\"__metadata__\"", "[\"__metadata__\"", ST_FORMAT, NULL, 8,
         "head of a safetensors file is no JSON object"},
        {"}}", "}", ST_FORMAT, "@", 0, ""}, /* place and message below */
        {"{\"format\":\"pt\"}", "{\"format\":1}", ST_FORMAT, "@1}", 0,
         "__metadata__ holds something other than strings"},
        {"{\"format\":\"pt\"}", "[]", ST_FORMAT, "@[]", 0, "__metadata__ is no object"},
        {"{\"format\":\"pt\"}", "{},\"__metadata__\":{}", ST_FORMAT, "@\"__metadata__\":{}", 18,
         "duplicate key"},
        {"\"model.norm.weight\"", "\"model.norm.weight\":1,\"x\"", ST_FORMAT, "@1,\"x\"", 0,
         "a tensor's record is no object"},
        {"\"model.norm.weight\"", "\"\"", ST_FORMAT, "@\"\"", 0,
         "name of a tensor is empty or longer than 256 bytes"},
        {"\"model.norm.weight\"", "\"model.norm\\u0000weight\"", ST_FORMAT, "@\"model.norm\\u0000weight\"", 0,
         "zero byte in a key or tensor name"},
        {"\"model.norm.weight\"", "\"model.normal.weight\"", ST_UNSUP, "@\"model.normal.weight\"", 0,
         "the file has a tensor that this family does not use"},
        {"\"model.norm.weight\"", "\"model.embed_tokens.weight\"", ST_FORMAT,
         "@\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[4]", 0, "duplicate tensor name"},
        {"model.layers.0.input", "model.layers.00.input", ST_UNSUP, "@\"model.layers.00.input", 0,
         "the file has a tensor that this family does not use"},
        {"model.layers.0.input", "model.layers.7.input", ST_FORMAT, NULL, 0,
         "blk.%u.attn_norm.weight is missing"},
        {"model.layers.0.input", "model.layers.0000000000000000000000000001.input", ST_UNSUP,
         "@\"model.layers.000", 0, "the file has a tensor that this family does not use"},
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias", ST_FORMAT,
         "@\"model.layers.0.self_attn.q_proj.bias\"", 0,
         "there is a bias, and config.json says that there is none"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[", ST_UNSUP,
         "@\"F33\"", 0, "unknown dtype of a tensor"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":32,\"shape\":[4],\"data_offsets\":[", ST_FORMAT, "@32,",
         0, "dtype of a tensor is no string"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"I32\",\"shape\":[4],\"data_offsets\":[", ST_UNSUP,
         "@\"model.norm.weight\"", 0, "weights that are neither F32, F16 nor BF16 are not supported"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[", ST_FORMAT,
         "@[832,848]", 0, "data_offsets of a tensor do not span its shape"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[", ST_FORMAT,
         "@\"model.norm.weight\"", 0, "output_norm.weight has the wrong shape"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[", ST_FORMAT,
         "@4,\"data", 0, "shape of a tensor is no array"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[", ST_FORMAT,
         "@-4]", 0, "dimension of a tensor is no integer below 2^48"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[", ST_FORMAT,
         "@4.0]", 0, "dimension of a tensor is no integer below 2^48"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[281474976710656],\"data_offsets\":[",
         ST_FORMAT, "@281474976710656]", 0, "dimension of a tensor is no integer below 2^48"},
        {ST_NORM,
         "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[281474976710655,65537],\"data_offsets\":[",
         ST_FORMAT, "@65537]", 0, "product of dimensions overflows"},
        {ST_NORM,
         "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[281474976710655,32768],\"data_offsets\":[",
         ST_FORMAT, "@\"model.norm.weight\"", 0, "product of dimensions overflows"},
        {ST_NORM,
         "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[",
         ST_FORMAT, "@4294967296]", 0, "product of dimensions overflows"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[", ST_FORMAT,
         "@[832,848]", 0, "data_offsets of a tensor do not span its shape"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[",
         ST_UNSUP, "@4],\"data_offsets\":[832", 0, "tensor of more than eight dimensions"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1,1,4],\"data_offsets\":[", ST_FORMAT,
         "@\"model.norm.weight\"", 0, "weights without elements, or of more than two dimensions"},
        {ST_NORM,
         "\"model.norm.weight\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[",
         ST_FORMAT, "@\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[832", 0,
         "unknown or repeated key in a tensor's record"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shapes\":[4],\"data_offsets\":[", ST_FORMAT,
         "@\"shapes\"", 0, "unknown or repeated key in a tensor's record"},
        {ST_NORM, "\"model.norm.weight\":{\"dtype\":\"F32\",\"data_offsets\":[", ST_FORMAT, "@", 0, ""},
        {"[832,848]", "[832,848,340]", ST_FORMAT, "@340]", 0,
         "data_offsets of a tensor are not two integers"},
        {"[832,848]", "[832]", ST_FORMAT, "@[832]", 4, "data_offsets of a tensor are not two integers"},
        {"[832,848]", "[\"832\",848]", ST_FORMAT, "@\"832\"", 0,
         "data_offsets of a tensor are not two integers"},
        {"[832,848]", "832", ST_FORMAT, "@832}", 0, "data_offsets of a tensor are not two integers"},
        {"[832,848]", "[-16,0]", ST_FORMAT, "@-16", 0, "data_offsets of a tensor are not two integers"},
        {"[832,848]", "[848,832]", ST_FORMAT, "@[848,832]", 0, "tensor data lies outside the file"},
        {"[832,848]", "[833,849]", ST_FORMAT, "@[833,849]", 0, "tensor data lies outside the file"},
        {"[832,848]", "[18446744073709551600,18446744073709551615]", ST_FORMAT, "@[18446744073709551600", 0,
         "tensor data lies outside the file"},
        {"[832,848]", "[18446744073709551616,18446744073709551632]", ST_FORMAT, "@18446744073709551616", 0,
         "data_offsets of a tensor are not two integers"},
        {"[832,848]", "[816,832]", ST_FORMAT, "@[816,832]", 0, "tensors overlap"},
        {"[832,848]", "[824,840]", ST_FORMAT, "@[824,840]", 0, "tensors overlap"},
        {"[832,848]", "[0,16]", ST_FORMAT, "@[0,48]", 0, "tensors overlap"},
        {ST_NORM "832,848]",
         "\"model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[840,848]", ST_FORMAT,
         "@[840,848]", 0, "bytes between tensors belong to none"},
        {ST_NORM "832,848]",
         "\"model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[832,840]", ST_FORMAT, NULL,
         ST_DATA_END, "bytes behind the last tensor belong to none"},
        /* what is of no use is dropped, of any type and size */
        {"\"model.norm.weight\"",
         "\"model.layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"I64\",\"shape\":[0,3],"
         "\"data_offsets\":[0,0]},\"model.norm.weight\"",
         DEND_OK, NULL, 0, NULL},
        {"\"model.norm.weight\"",
         "\"x\":{\"dtype\":\"BOOL\",\"shape\":[0],\"data_offsets\":[848,848]},\"model.norm.weight\"",
         ST_UNSUP, "@\"x\"", 0, "the file has a tensor that this family does not use"},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        st_seed s = st_seed_open("llama");
        st_case c = cases[i];
        size_t n;
        unsigned char *weights;
        dend_model_desc desc;
        st_edit(&s.head, c.from, c.to);
        if (c.msg && c.msg[0] == 0) { /* a place that only the edited text knows */
            c.at = NULL;
            if (strcmp(c.from, "}}") == 0) {
                c.msg = "JSON text ends too early";
                c.plus = 8 + s.head.n;
            } else {
                c.msg = "a tensor's record lacks dtype, shape or data_offsets";
                c.plus =
                    8 + (uint64_t)(strstr(strstr(s.head.data, "\"model.norm.weight\""), "}") - s.head.data);
            }
        }
        if (c.plus == ST_DATA_END) {
            c.plus = 8 + s.head.n + 840;
        }
        weights = st_seed_weights(&s, &n);
        desc = st_seed_desc(&s, weights, n);
        if (c.status == DEND_OK) {
            dend_model_free(st_load(&desc));
        } else {
            st_expect(&c, NULL, &s.head, &desc, NULL);
        }
        free(weights);
        st_seed_close(&s);
    }
}

/* The eight bytes before the head. */
static void st_bad_lengths(void **state) {
    static const struct {
        uint64_t n_head, size; /* size 0: that of the file */
        dend_status status;
        uint64_t where;
        const char *msg;
    } cases[] = {
        {0, 0, DEND_ERR_FORMAT, 0, "head of a safetensors file is empty"},
        {1, 0, DEND_ERR_FORMAT, 9, "JSON text ends too early"},
        {(uint64_t)1 << 63, 0, DEND_ERR_FORMAT, 0, "head of a safetensors file is longer than the file"},
        {UINT64_MAX, 0, DEND_ERR_FORMAT, 0, "head of a safetensors file is longer than the file"},
        {UINT64_MAX - 7, 0, DEND_ERR_FORMAT, 0, "head of a safetensors file is longer than the file"},
        {100000001, (uint64_t)1 << 40, DEND_ERR_UNSUPPORTED, 0,
         "head of a safetensors file is longer than 100 MB"},
    };
    st_seed s = st_seed_open("llama");
    size_t n, i, k;
    unsigned char *weights = st_seed_weights(&s, &n);
    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dend_model_desc desc = st_seed_desc(&s, NULL, 0);
        st_case c = {NULL, NULL, cases[i].status, NULL, cases[i].where, cases[i].msg};
        for (k = 0; k < 8; k++) {
            weights[k] = (unsigned char)(cases[i].n_head >> 8 * k);
        }
        desc.reader.read = st_read;
        desc.reader.user = weights;
        desc.reader.size = cases[i].size ? cases[i].size : n;
        st_expect(&c, NULL, NULL, &desc, "model.safetensors");
        if (!cases[i].size) {
            memset(&desc.reader, 0, sizeof desc.reader);
            desc.data = weights;
            desc.data_size = n;
            st_expect(&c, NULL, NULL, &desc, "model.safetensors");
        }
    }
    free(weights);
    st_seed_close(&s);
}

/* A file cut at each byte, and a head whose length says less than it is. */
static void st_cut(void **state) {
    st_seed s = st_seed_open("llama");
    size_t n, i, k;
    unsigned char *weights = st_seed_weights(&s, &n), *copy;
    dend_model_desc desc;
    (void)state;
    for (i = 1; i < n; i++) {
        dend_error err;
        dend_model *model = NULL;
        copy = (unsigned char *)malloc(i); /* so that a sanitizer sees the end */
        assert_non_null(copy);
        memcpy(copy, weights, i);
        desc = st_seed_desc(&s, copy, i);
        ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err));
        assert_null(model);
        assert_true(err.where <= i);
        assert_string_equal(err.msg, i < 8              ? "file is too short for a safetensors file"
                                     : i < 8 + s.head.n ? "head of a safetensors file is longer than the file"
                                                        : "tensor data lies outside the file");
        free(copy);
    }
    for (i = 1; i < s.head.n; i++) {
        size_t brace = s.head.n;
        st_case c = {NULL, NULL, DEND_ERR_FORMAT, NULL, 8 + i, "JSON text ends too early"};
        while (s.head.data[brace - 1] == ' ') brace--;
        for (k = 0; k < 8; k++) {
            weights[k] = (unsigned char)((uint64_t)i >> 8 * k);
        }
        desc = st_seed_desc(&s, weights, n);
        if (i >=
            brace) { /* only spaces are cut off: then the data begins too early, and has bytes too many */
            c.plus = 8 + i + s.n_data;
            c.msg = "bytes behind the last tensor belong to none";
        }
        st_expect(&c, NULL, NULL, &desc, NULL);
    }
    free(weights);
    st_seed_close(&s);
}

/* config.json cut at each byte. */
static void st_config_cut(void **state) {
    st_seed s = st_seed_open("gemma3");
    size_t n, i;
    unsigned char *weights = st_seed_weights(&s, &n);
    (void)state;
    for (i = 0; i + 2 < s.config.n; i++) { /* the last two are a brace and the end of its line */
        dend_model_desc desc = st_seed_desc(&s, weights, n);
        st_case c = {NULL, NULL, DEND_ERR_FORMAT, NULL, i, "JSON text ends too early"};
        char *copy = (char *)malloc(i ? i : 1);
        assert_non_null(copy);
        memcpy(copy, s.config.data, i);
        desc.config_json = copy;
        desc.config_json_size = i;
        st_expect(&c, NULL, NULL, &desc, "config.json");
        free(copy);
    }
    free(weights);
    st_seed_close(&s);
}

/* -- folders ------------------------------------------------------------------------------- */

/* A folder of our own, in the place for temporary files. */
static void st_folder_make(char *dir, size_t cap) {
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, cap, "%s/dendrite-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static void st_put(const char *dir, const char *name, const void *data, size_t n) {
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void st_remove(const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)remove(path);
}

static const char *const st_parts[] = {"config.json", "model-00001-of-00004.safetensors",
                                       "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                                       "model-00004-of-00004.safetensors"};

static void st_bad_indices(void **state) {
    static const char name[] = "model.safetensors.index.json";
    static const st_case cases[] = {
        {NULL, NULL, DEND_OK, NULL, 0, NULL},
        {"{", "[", ST_FORMAT, "[", 0, "index of safetensors is no JSON object"},
        {"\"weight_map\"", "\"weights_map\"", ST_FORMAT, "{", 0, "weight_map is missing or no object"},
        {"\"weight_map\": {", "\"weight_map\": 1, \"x\": {", ST_FORMAT, "1, \"x\"", 0,
         "weight_map is missing or no object"},
        {"\"weight_map\": {", "\"weight_map\": {}, \"x\": {", ST_FORMAT, "{}", 0, "weight_map is empty"},
        {"\"model-00001-of-00004.safetensors\"", "1", ST_FORMAT, "1,", 0,
         "weight_map names no file for a tensor"},
        {"model-00001-of", "../model-00001-of", ST_FORMAT, "\"../model", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of", "/tmp/model-00001-of", ST_FORMAT, "\"/tmp", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of", "..\\\\model-00001-of", ST_FORMAT, "\"..\\\\model", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of", "C:model-00001-of", ST_FORMAT, "\"C:model", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of", "\\u002e\\u002e\\u002fmodel-00001-of", ST_FORMAT, "\"\\u002e", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of-00004.safetensors", "config.json", ST_FORMAT, "\"config.json\"", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of-00004.safetensors", "", ST_FORMAT, "\"\"", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of-00004.safetensors", "model\\u0000.safetensors", ST_FORMAT, "\"model\\u0000", 0,
         "weight_map names a file that is no *.safetensors in the folder"},
        {"model-00001-of", "model-00009-of", DEND_ERR_IO, "\"model-00009-of", 0,
         "a file that weight_map names is not there"},
        {"model-00001-of-00004", "model-00002-of-00004", ST_FORMAT, "\"model.", 0,
         "a tensor of weight_map is not in the file that it names"},
        {"\"model.norm.weight\"", "\"model.normal.weight\"", ST_FORMAT, "\"model.normal.weight\"", 0,
         "a tensor of weight_map is not in the file that it names"},
    };
    char dir[256];
    size_t n_index, i;
    unsigned char *index = test_read_file("tests/golden/hf_qwen2/model.safetensors.index.json", &n_index);
    (void)state;
    assert_non_null(index);
    st_folder_make(dir, sizeof dir);
    for (i = 0; i < 5; i++) {
        char path[128];
        size_t n;
        unsigned char *data;
        snprintf(path, sizeof path, "tests/golden/hf_qwen2/%s", st_parts[i]);
        data = test_read_file(path, &n);
        assert_non_null(data);
        st_put(dir, st_parts[i], data, n);
        free(data);
    }
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        st_text text = st_text_of((const char *)index, n_index);
        dend_model_desc desc;
        st_edit(&text, cases[i].from, cases[i].to);
        st_put(dir, name, text.data, text.n);
        memset(&desc, 0, sizeof desc);
        desc.path = dir;
        if (cases[i].status == DEND_OK) {
            dend_model_free(st_load(&desc));
        } else {
            st_expect(&cases[i], &text, NULL, &desc, name);
        }
        free(text.data);
    }
    { /* a tensor in two files; a folder without weights, and without a configuration */
        dend_model_desc desc;
        dend_model *model = NULL;
        dend_error err;
        size_t n;
        unsigned char *data = test_read_file("tests/golden/hf_qwen2/model-00001-of-00004.safetensors", &n);
        assert_non_null(data);
        st_put(dir, name, index, n_index);
        st_put(dir, st_parts[2], data, n);
        free(data);
        memset(&desc, 0, sizeof desc);
        desc.path = dir;
        ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err));
        assert_string_equal(err.msg, "two files of weights hold one tensor");
        st_put(dir, st_parts[2], "", 0);
        ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err));
        assert_string_equal(err.msg, "file is empty");
        st_remove(dir, name);
        ASSERT_STATUS(DEND_ERR_IO, dend_model_load(&desc, &model, &err));
        assert_string_equal(err.msg, "the folder has neither model.safetensors nor an index of several");
        st_remove(dir, st_parts[0]);
        ASSERT_STATUS(DEND_ERR_IO, dend_model_load(&desc, &model, &err));
        assert_string_equal(err.msg, "file cannot be opened");
        assert_string_equal(err.file, "config.json");
    }
    for (i = 0; i < 5; i++) {
        st_remove(dir, st_parts[i]);
    }
    assert_int_equal(rmdir(dir), 0);
    free(index);
}

/* An index that makes each tensor look through a thousand names of files is given up early, the earlier the longer
 * it takes to read a name. */
static void st_index_in_no_order(void **state) {
    static const char name[] = "model.safetensors.index.json";
    static const char escapes[] = "\\u0061\\u0061\\u0061\\u0061\\u0061\\u0061\\u0061\\u0061\\u0061\\u0061";
    enum { SHARDS = 1000, TENSORS = 100000 };
    size_t cap = (size_t)TENSORS * 112 + 64, n_config;
    char dir[256], *text = (char *)malloc(cap);
    unsigned char *config = test_read_file("tests/golden/hf_qwen2/config.json", &n_config);
    dend_model_desc desc;
    dend_model *model = NULL;
    dend_error err;
    uint32_t i, pass;
    (void)state;
    assert_non_null(text);
    assert_non_null(config);
    st_folder_make(dir, sizeof dir);
    st_put(dir, "config.json", config, n_config);
    for (pass = 0; pass < 2; pass++) {
        size_t n = (size_t)snprintf(text, cap, "{\"weight_map\": {"), too_much = 0;
        uint64_t looked = 0, size = (pass ? sizeof escapes - 1 : 0) + sizeof "\"0000.safetensors\"" - 1;
        for (i = 0; i < TENSORS; i++) { /* backwards, so that each name is the last to be looked at */
            uint32_t shard = i < SHARDS ? i : SHARDS - 1 - i % SHARDS;
            looked += size * (i < SHARDS ? i : SHARDS - 1);
            too_much = looked > DENDP_HF_MAX_LOOKED && too_much == 0 ? n : too_much;
            n += (size_t)snprintf(text + n, cap - n, "%s\"t%u\": \"%s%04u.safetensors\"", i ? ", " : "", i,
                                  pass ? escapes : "", shard);
        }
        n += (size_t)snprintf(text + n, cap - n, "}}");
        assert_true(n + 1 < cap);
        st_put(dir, name, text, n);
        memset(&desc, 0, sizeof desc);
        desc.path = dir;
        ASSERT_STATUS(DEND_ERR_UNSUPPORTED, dend_model_load(&desc, &model, &err));
        assert_string_equal(err.msg, "weight_map is too large, and in no order");
        assert_string_equal(err.file, name);
        assert_true(too_much > 0);
        assert_in_range(err.where, too_much > n / 20 ? too_much - n / 20 : 1, too_much + n / 20);
    }
    st_remove(dir, "config.json");
    st_remove(dir, name);
    assert_int_equal(rmdir(dir), 0);
    free(config);
    free(text);
}

/* A folder with a tokenizer: its tokens, a model that takes them, and what is refused. */
static void st_tokenizer(void **state) {
    static const char text[] = "the cat and the dog, 12 hens";
    st_seed s = st_seed_open("llama");
    char dir[256], shape[64], more[256];
    size_t n_tokenizer, n_weights, n = 0, again = 0, i;
    unsigned char *tokenizer = test_read_file("tests/golden/tokjson_smollm.json", &n_tokenizer), *weights;
    int32_t tokens[64], other[64];
    dend_model_desc desc;
    dend_model *model;
    dend_model_info info;
    dend_error err;
    (void)state;
    assert_non_null(tokenizer);
    st_folder_make(dir, sizeof dir);
    memset(&desc, 0, sizeof desc);
    desc.path = dir;
    desc.vocab_only = true;
    st_put(dir, "config.json", s.config.data, s.config.n);
    ASSERT_STATUS(DEND_ERR_IO, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "there is no tokenizer.json");
    st_put(dir, "tokenizer.json", tokenizer, n_tokenizer);
    model = st_load(&desc);
    dend_model_get_info(model, &info);
    assert_false(info.has_weights);
    ASSERT_STATUS(DEND_OK, dend_tokenize(model, text, sizeof text - 1, 0, tokens, 64, &n));
    assert_true(n > 4 && n < sizeof text - 1);
    dend_model_free(model);
    st_put(dir, "tokenizer.json", tokenizer, n_tokenizer - 2);
    ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "JSON text ends too early");
    assert_string_equal(err.file, "a file of the tokenizer");
    /* as many rows as there are tokens, behind the rest of the data */
    weights = st_seed_weights(&s, &n_weights);
    st_put(dir, "model.safetensors", weights, n_weights);
    st_put(dir, "tokenizer.json", tokenizer, n_tokenizer);
    desc.vocab_only = false;
    ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err));
    assert_string_equal(err.msg, "the tokenizer has more tokens than the embedding has rows");
    free(weights);
    snprintf(shape, sizeof shape, "\"vocab_size\": %u", (unsigned)info.n_vocab);
    st_edit(&s.config, "\"vocab_size\": 3", shape);
    st_edit(&s.config, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    st_edit(&s.head, "model.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq");
    snprintf(more, sizeof more,
             "[832,848]},\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[%u,4],\"data_offsets\":["
             "848,%u]}",
             (unsigned)info.n_vocab, (unsigned)(848 + 16 * info.n_vocab));
    st_edit(&s.head, "[832,848]}", more);
    weights = st_seed_weights(&s, &n_weights);
    weights = (unsigned char *)realloc(weights, n_weights + 16 * info.n_vocab);
    assert_non_null(weights);
    for (i = 0; i < 4 * info.n_vocab; i++) {
        float value = (float)(i % 13) / 13.0f - 0.5f;
        memcpy(weights + n_weights + 4 * i, &value, 4);
    }
    n_weights += 16 * info.n_vocab;
    st_put(dir, "config.json", s.config.data, s.config.n);
    st_put(dir, "model.safetensors", weights, n_weights);
    for (i = 0; i < 2; i++) { /* the folder, and the same from memory */
        dend_engine_desc ed;
        dend_engine *engine;
        dend_seq seq;
        int32_t next;
        if (i) {
            desc = st_seed_desc(&s, weights, n_weights);
            desc.tokenizer_json = (const char *)tokenizer;
            desc.tokenizer_json_size = n_tokenizer;
        }
        model = st_load(&desc);
        ASSERT_STATUS(DEND_OK, dend_tokenize(model, text, sizeof text - 1, 0, other, 64, &again));
        assert_int_equal(again, n);
        assert_memory_equal(other, tokens, n * sizeof tokens[0]);
        memset(&ed, 0, sizeof ed);
        ed.model = model;
        ASSERT_STATUS(DEND_OK, dend_engine_create(&ed, &engine, NULL));
        ASSERT_STATUS(DEND_OK, dend_seq_create(engine, &seq));
        ASSERT_STATUS(DEND_OK, dend_seq_append_text(engine, seq, text, sizeof text - 1, 0));
        ASSERT_STATUS(DEND_OK, dend_next(engine, seq, NULL, &next));
        assert_true(next >= 0 && (uint32_t)next < info.n_vocab);
        dend_engine_free(engine);
        dend_model_free(model);
    }
    st_remove(dir, "config.json");
    st_remove(dir, "tokenizer.json");
    st_remove(dir, "model.safetensors");
    assert_int_equal(rmdir(dir), 0);
    free(weights);
    free(tokenizer);
    st_seed_close(&s);
}

/* The chat template of a folder: in a file of its own, or in tokenizer_config.json, alone or in a list. */
static void st_chat_templates(void **state) {
#define ST_CHATML                                                                                            \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "        \
    "'<|im_end|>' + '\\n'}}{% endfor %}"
    static const struct {
        const char *config, *file, *family;
    } cases[] = {
        {NULL, NULL, NULL},
        {"{}", NULL, NULL},
        {"{\"chat_template\": 5}", NULL, NULL},
        {"{\"chat_template\": []}", NULL, NULL},
        {"{\"chat_template\": [7, {\"name\": \"default\", \"template\": \"" ST_CHATML "\"}]}", NULL, NULL},
        {"{\"chat_template\": \"" ST_CHATML "\"}", NULL, "chatml"},
        {"{\"chat_template\": \"what nobody knows\"}", NULL, NULL},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"template\": \"" ST_CHATML
         "\", \"name\": \"default\"}]}",
         NULL, "chatml"},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"" ST_CHATML "\"}]}", NULL, NULL},
        {"{\"chat_template\": \"what nobody knows\"}", ST_CHATML, "chatml"},
        {NULL, ST_CHATML, "chatml"},
    };
    char dir[256];
    size_t n_tokenizer, i, n_allocs = 0;
    unsigned char *tokenizer = test_read_file("tests/golden/tokjson_smollm.json", &n_tokenizer);
    st_seed s = st_seed_open("llama");
    (void)state;
    assert_non_null(tokenizer);
    st_folder_make(dir, sizeof dir);
    st_put(dir, "config.json", s.config.data, s.config.n);
    st_put(dir, "tokenizer.json", tokenizer, n_tokenizer);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dend_model_desc desc;
        dend_model *model = NULL;
        test_heap heap;
        dend_status status = DEND_ERR_MEMORY;
        uint64_t nth;
        if (cases[i].config) {
            st_put(dir, "tokenizer_config.json", cases[i].config, strlen(cases[i].config));
        }
        if (cases[i].file) {
            st_put(dir, "chat_template.jinja", cases[i].file, strlen(cases[i].file));
        }
        memset(&desc, 0, sizeof desc);
        desc.path = dir;
        desc.vocab_only = true;
        desc.allocator = test_heap_allocator(&heap);
        for (nth = 1; status != DEND_OK; nth++) { /* and memory that runs out at any place */
            heap.n_allocs = 0;
            heap.fail_at = nth;
            status = dend_model_load(&desc, &model, NULL);
            assert_true(status == DEND_OK || status == DEND_ERR_MEMORY);
            assert_true(status == DEND_OK || heap.n_live_bytes == 0);
        }
        n_allocs += (size_t)nth;
        if (cases[i].family) {
            assert_non_null(dend_chat_family(model));
            assert_string_equal(dend_chat_family(model), cases[i].family);
        } else {
            assert_null(dend_chat_family(model));
        }
        dend_model_free(model);
        assert_int_equal(heap.n_live_bytes, 0);
        if (cases[i].config) {
            st_remove(dir, "tokenizer_config.json");
        }
        if (cases[i].file) {
            st_remove(dir, "chat_template.jinja");
        }
    }
    assert_true(n_allocs > 4 * sizeof cases / sizeof cases[0]);
    st_remove(dir, "config.json");
    st_remove(dir, "tokenizer.json");
    assert_int_equal(rmdir(dir), 0);
    free(tokenizer);
    st_seed_close(&s);
#undef ST_CHATML
}

/* What contradicts itself in the description. */
static void st_descriptions(void **state) {
    st_seed s = st_seed_open("llama");
    size_t n;
    unsigned char *weights = st_seed_weights(&s, &n);
    dend_model *model = NULL;
    dend_model_desc desc = st_seed_desc(&s, weights, n);
    dend_error err;
    (void)state;
    desc.path = "tests/golden/hf_llama";
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err)); /* two sources */
    desc.data = NULL;
    desc.data_size = 0;
    ASSERT_STATUS(DEND_ERR_ARGUMENT,
                  dend_model_load(&desc, &model, &err)); /* a path has its own config.json */
    desc = st_seed_desc(&s, weights, n);
    desc.config_json = NULL;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err)); /* a size without a text */
    desc.config_json_size = 0;
    ASSERT_STATUS(DEND_ERR_FORMAT, dend_model_load(&desc, &model, &err)); /* then it must be GGUF */
    assert_string_equal(err.msg, "not a GGUF file");
    desc.tokenizer_json = "{}";
    desc.tokenizer_json_size = 2;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err));
    desc = st_seed_desc(&s, weights, n);
    desc.canary_end_ = 1;
    ASSERT_STATUS(DEND_ERR_ARGUMENT, dend_model_load(&desc, &model, &err));
    assert_null(model);
    free(weights);
    st_seed_close(&s);
}

/* The n-th allocation fails, n = 1, 2, ... until loading succeeds: nothing is left behind. */
static void st_no_memory(void **state) {
    st_seed s = st_seed_open("llama");
    size_t n;
    unsigned char *weights = st_seed_weights(&s, &n);
    int way;
    (void)state;
    for (way = 0; way < 5; way++) {
        uint64_t fail_at;
        for (fail_at = 1;; fail_at++) {
            test_heap heap;
            dend_model_desc desc;
            dend_model *model = NULL;
            dend_error err;
            dend_status status;
            if (way < 3) {
                memset(&desc, 0, sizeof desc);
                desc.path = "tests/golden/hf_qwen2";
                desc.no_mmap = way > 0;
                desc.keep_file_layout = way == 2;
                desc.quantise = way == 0 ? DEND_WEIGHT_Q4_0 : DEND_WEIGHT_DEFAULT;
            } else {
                desc = st_seed_desc(&s, weights, n);
                if (way == 4) {
                    desc.data = NULL;
                    desc.data_size = 0;
                    desc.reader.read = st_read;
                    desc.reader.user = weights;
                    desc.reader.size = n;
                }
            }
            desc.allocator = test_heap_allocator(&heap);
            heap.fail_at = fail_at;
            status = dend_model_load(&desc, &model, &err);
            if (status == DEND_OK) {
                dend_model_free(model);
            } else {
                assert_int_equal(status, DEND_ERR_MEMORY);
                assert_null(model);
            }
            assert_int_equal(heap.n_live_bytes, 0);
            assert_int_equal(heap.n_allocs - heap.n_frees,
                             status == DEND_OK ? 0 : 1); /* the one that failed */
            if (status == DEND_OK && heap.n_allocs < fail_at) {
                assert_true(fail_at > 4);
                break;
            }
        }
    }
    free(weights);
    st_seed_close(&s);
}

/* A reader that fails at the n-th call gives IO and leaves nothing. */
typedef struct st_bad_reader {
    const unsigned char *data;
    uint64_t n_calls, fail_at;
} st_bad_reader;

static bool st_bad_read(void *user, uint64_t offset, void *dst, size_t n) {
    st_bad_reader *r = (st_bad_reader *)user;
    memcpy(dst, r->data + offset, n);
    return ++r->n_calls != r->fail_at;
}

static void st_reader_fails(void **state) {
    st_seed s = st_seed_open("qwen2");
    size_t n;
    unsigned char *weights = st_seed_weights(&s, &n);
    int layout;
    (void)state;
    for (layout = 0; layout < 2; layout++) {
        st_bad_reader r;
        dend_status status = DEND_ERR_IO;
        r.data = weights;
        for (r.fail_at = 1; status != DEND_OK; r.fail_at++) {
            test_heap heap;
            dend_model *model = NULL;
            dend_model_desc desc = st_seed_desc(&s, NULL, 0);
            desc.reader.read = st_bad_read;
            desc.reader.user = &r;
            desc.reader.size = n;
            desc.keep_file_layout = layout != 0;
            desc.allocator = test_heap_allocator(&heap);
            r.n_calls = 0;
            status = dend_model_load(&desc, &model, NULL);
            dend_model_free(model);
            assert_int_equal(status, r.n_calls < r.fail_at ? DEND_OK : DEND_ERR_IO);
            assert_int_equal(heap.n_live_bytes, 0);
        }
        assert_true(r.fail_at > 10);
    }
    free(weights);
    st_seed_close(&s);
}

/* Changed bytes of good models, through the checks of the fuzz target. */
static void st_mutations(void **state) {
    static const char *const names[] = {"llama", "qwen2", "gemma3"};
    test_rng rng = {9};
    size_t i;
    int round, k;
    (void)state;
    for (i = 0; i < 3; i++) {
        st_seed s = st_seed_open(names[i]);
        size_t n = 4 + s.config.n + 8 + s.head.n + s.n_data, text = n - s.n_data;
        unsigned char *copy = (unsigned char *)malloc(n);
        assert_non_null(copy);
        assert_null(fuzz_safetensors_one(s.file, n));
        for (round = 0; round < 1500; round++) {
            const char *wrong;
            memcpy(copy, s.file, n);
            for (k = 0; k <= round % 2; k++) {
                uint32_t at = test_below(&rng, (uint32_t)text);
                copy[at] =
                    round % 3 ? copy[test_below(&rng, (uint32_t)text)] : (unsigned char)test_next(&rng);
            }
            wrong = fuzz_safetensors_one(copy, n);
            if (wrong) {
                fail_msg("%s, round %d: %s", names[i], round, wrong);
            }
        }
        free(copy);
        st_seed_close(&s);
    }
}

static const struct CMUnitTest tests_model_safetensors[] = {
    cmocka_unit_test(st_llama),         cmocka_unit_test(st_llama_biases),
    cmocka_unit_test(st_mistral),       cmocka_unit_test(st_qwen2),
    cmocka_unit_test(st_qwen3),         cmocka_unit_test(st_gemma3),
    cmocka_unit_test(st_gemma3_nested), cmocka_unit_test(st_sources),
    cmocka_unit_test(st_misaligned),    cmocka_unit_test(st_new_style),
    cmocka_unit_test(st_quantised),     cmocka_unit_test(st_quantise_refusals),
    cmocka_unit_test(st_encode),        cmocka_unit_test(st_encode_any_bits),
    cmocka_unit_test(st_bad_configs),   cmocka_unit_test(st_deep_config),
    cmocka_unit_test(st_bad_heads),     cmocka_unit_test(st_bad_lengths),
    cmocka_unit_test(st_cut),           cmocka_unit_test(st_config_cut),
    cmocka_unit_test(st_bad_indices),   cmocka_unit_test(st_index_in_no_order),
    cmocka_unit_test(st_tokenizer),     cmocka_unit_test(st_chat_templates),
    cmocka_unit_test(st_descriptions),  cmocka_unit_test(st_no_memory),
    cmocka_unit_test(st_reader_fails),  cmocka_unit_test(st_mutations),
};
