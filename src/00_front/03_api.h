/* ==========================================================================
 * >>00.03 API: everything public
 * ==========================================================================
 * Conventions.  Every function that can fail returns a dend_status: 0 is
 * success, negative is an error after which nothing has changed (dend_step and
 * dend_next may have computed waiting tokens before it), positive is news
 * (DEND_PENDING, DEND_END). Sizes are size_t, counts uint32_t, tokens
 * int32_t. A NULL or zeroed description means defaults. Handles (dend_seq,
 * dend_request_id) are values; a handle used after its drop gives DEND_ERR_STALE.
 *
 * Threads.  A dend_model is immutable and may be shared by engines and
 * threads. An engine serves one caller at a time.
 * ======================================================================== */

/* --------------------------------------------------------------------------
 * Status, errors, memory
 * ------------------------------------------------------------------------ */

/* The one table of statuses: name, value, text. */
#define DEND_STATUS_TABLE(X)                                                                                 \
    X(DEND_OK, 0, "ok")                                                                                      \
    X(DEND_PENDING, 1, "work is left: call again")                                                           \
    X(DEND_END, 2, "the sequence has ended")                                                                 \
    X(DEND_ERR_ARGUMENT, -1, "invalid argument")                                                             \
    X(DEND_ERR_MEMORY, -2, "out of memory")                                                                  \
    X(DEND_ERR_IO, -3, "file cannot be read")                                                                \
    X(DEND_ERR_FORMAT, -4, "malformed file")                                                                 \
    X(DEND_ERR_UNSUPPORTED, -5, "valid, but not supported")                                                  \
    X(DEND_ERR_STALE, -6, "handle of a dropped sequence or a collected request")                             \
    X(DEND_ERR_NO_BLOCKS, -7, "out of KV blocks")                                                            \
    X(DEND_ERR_NO_SEQUENCES, -8, "out of sequence slots")                                                    \
    X(DEND_ERR_CONTEXT_FULL, -9, "the sequence would exceed its context")                                    \
    X(DEND_ERR_NO_LOGITS, -10, "no logits: step first, or enlarge the logits pool")                          \
    X(DEND_ERR_TOKEN, -11, "token id out of range")                                                          \
    X(DEND_ERR_WAITING, -12, "the sequence has tokens that no step has processed yet")                       \
    X(DEND_ERR_BUFFER, -13, "buffer too small")                                                              \
    X(DEND_ERR_THREADS, -14, "threads cannot be started")                                                    \
    X(DEND_ERR_QUOTA, -15, "the account has no tokens left")                                                 \
    X(DEND_ERR_CANCELLED, -16, "cancelled")                                                                  \
    X(DEND_ERR_DEADLINE, -17, "the deadline has passed")                                                     \
    X(DEND_ERR_NO_REQUESTS, -18, "out of request slots")                                                     \
    X(DEND_ERR_CALLBACK, -19, "a callback gave a value that is no number")                                   \
    X(DEND_ERR_NO_TOKENS, -20, "every token is banned")

typedef enum dend_status {
#define DEND_STATUS_ENUM(name, value, text) name = value,
    DEND_STATUS_TABLE(DEND_STATUS_ENUM)
#undef DEND_STATUS_ENUM
        DEND_STATUS_FORCE_INT_ = 0x7fffffff
} dend_status;

/* What went wrong, for calls that load or create. All strings are static. */
typedef struct dend_error {
    dend_status status;
    const char *msg;    /* static text, never NULL after a failure */
    uint64_t where;     /* byte offset in the file, where there is one, else 0 */
    uint32_t room_line; /* line of the check in its room, for bug reports */
    const char *file;   /* of a model that is a folder: the file that it is about, where known; else NULL */
} dend_error;

/* Text of a status: "ok", "out of KV blocks", ... Never NULL. */
DEND_API const char *dend_status_text(dend_status status);
/* Name of a status: "DEND_OK", ... Never NULL. */
DEND_API const char *dend_status_name(dend_status status);
/* "0.1.0" */
DEND_API const char *dend_version(void);

/* Memory comes from here. Zeroed = malloc/free. `align` is a power of two, at
 * most 4096; `free` is given the size that `alloc` was asked for. */
typedef struct dend_allocator {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *p, size_t size);
    void *user;
} dend_allocator;

/* Fixed-memory mode: an allocator that hands out pieces of one block of the
 * caller's and nothing else, for the descriptions of models, engines, schedulers
 * and searches. The block holds the allocator's own state too (128 bytes); it may
 * be reused or freed when all that was made from it is. Pieces are multiples of
 * 64 bytes; dend_plan_file, dend_plan and their kin say how large they are.
 * Returns: OK; ARGUMENT (NULL, or less than some 200 bytes).
 * Threads: any number at once.  Cost: of a request O(free pieces). */
DEND_API dend_status dend_fixed_memory(void *memory, size_t n_bytes, dend_allocator *out);
typedef struct dend_fixed_info {
    size_t n_bytes;        /* that can be handed out */
    size_t n_used, n_peak; /* handed out now, and at most so far */
    size_t n_largest_free; /* largest piece that is free */
} dend_fixed_info;
/* Fills in *out, with zeros for an allocator of another kind. */
DEND_API void dend_fixed_get_info(const dend_allocator *allocator, dend_fixed_info *out);

/* The caller's log: lines of text without an end of line, which hold only during
 * the call, about what was loaded or made and what is slower than it could be.
 * Zeroed = nobody listens. Called on the thread of the call that logs; never per
 * token, and never with anything that a status does not say. */
typedef enum dend_log_level { DEND_LOG_INFO = 0, DEND_LOG_WARNING } dend_log_level;
typedef struct dend_log {
    void (*write)(void *user, dend_log_level level, const char *text);
    void *user;
} dend_log;

/* Reads n bytes at `offset` into dst; true on success. Used for models that
 * lie neither in a file nor in memory. */
typedef struct dend_reader {
    bool (*read)(void *user, uint64_t offset, void *dst, size_t n);
    uint64_t size;
    void *user;
} dend_reader;

/* Takes n bytes; true on success. While an engine calls this, or a reader, none of the
 * calls on that engine works: they give STALE or ARGUMENT. */
typedef struct dend_writer {
    bool (*write)(void *user, const void *data, size_t n);
    void *user;
} dend_writer;

/* The caller's job system. Must run task(ctx, 0) ... task(ctx, n-1), in any
 * order and on any threads, and return when all have finished. A task needs
 * 160 KB of stack, and the default rounding mode. */
typedef struct dend_jobs {
    void (*run)(void *user, void (*task)(void *ctx, uint32_t index), void *ctx, uint32_t n_tasks);
    void *user;
    uint32_t n_workers; /* how many run at once; a hint for splitting, 0 = 1 */
} dend_jobs;

/* --------------------------------------------------------------------------
 * Model
 * ------------------------------------------------------------------------ */

typedef struct dend_model dend_model;

/* Types of weights that a load can make. */
typedef enum dend_weight_type {
    DEND_WEIGHT_DEFAULT = 0, /* as the file has them */
    DEND_WEIGHT_Q8_0,
    DEND_WEIGHT_Q4_0
} dend_weight_type;

/* Where a model comes from: exactly one of path, data, reader.read. */
typedef struct dend_model_desc {
    uint32_t canary_begin_; /* leave zero */
    /* A GGUF file; or a folder with config.json, tokenizer.json, and either
     * model.safetensors or model.safetensors.index.json and the files that it
     * names; or a *.safetensors file that has its config.json beside it. */
    const char *path;
    const void *data; /* bytes of a file; must outlive the call, and with keep_file_layout the model */
    size_t data_size;
    dend_reader reader;
    /* With data or reader: the text of config.json, which says that the bytes are
     * those of a single safetensors file and not of a GGUF file; and the text of
     * tokenizer.json, if a tokenizer is wanted. Both must outlive the call. */
    const char *config_json;
    size_t config_json_size;
    const char *tokenizer_json;
    size_t tokenizer_json_size;
    /* Matrices that are F32, F16 or BF16 (embedding and head too) become Q8_0 or
     * Q4_0, with the bits that the gguf package gives. UNSUPPORTED when one is
     * quantised already or its rows are no multiple of 32; norms and biases stay. */
    dend_weight_type quantise;
    bool no_mmap;    /* read the file instead of mapping it (a mapped file that shrinks raises SIGBUS) */
    bool vocab_only; /* load the tokenizer, no weights */
    /* For machines with little memory: matrices stay as the file has them, and
     * each matmul packs them anew. Results have the same bits. A single row takes
     * several times as long; the rows of a batch share the work. A file that is
     * mapped stays mapped while the model lives (see no_mmap), as pages that the
     * system may drop and read again; `data` is used in place; with no_mmap or a
     * reader the model holds one plain copy. Matrices that loading changes
     * (quantise; Q and K of Llama's folders) are copies of the model's own. */
    bool keep_file_layout;
    dend_allocator allocator;
    dend_log log;
    uint32_t canary_end_; /* leave zero */
} dend_model_desc;

/* Hyper-parameters and sizes of a loaded model. Strings live with the model. */
typedef struct dend_model_info {
    const char *architecture; /* "llama", "qwen2", ... */
    const char *name;         /* general.name, or "" */
    uint32_t n_vocab;         /* V */
    uint32_t n_layers;        /* L */
    uint32_t n_embd;          /* D */
    uint32_t n_heads;         /* H */
    uint32_t n_kv_heads;      /* G */
    uint32_t head_dim;        /* d */
    uint32_t n_ff;            /* F */
    uint32_t n_ctx_train;     /* context that it was trained for */
    uint32_t window;          /* tokens that sliding layers see, their own included; 0 = there are none */
    uint32_t n_window_layers; /* of the n_layers */
    int32_t bos, eos, eot;    /* -1 where the model has none */
    bool add_bos;             /* prompts begin with bos */
    bool has_weights;
    uint64_t n_params;
    /* Of the model's own memory. With keep_file_layout: norms and biases, and what
     * was read of the file, but neither a mapped file nor the caller's bytes. */
    uint64_t weight_bytes;
    bool file_layout; /* matrices are as the file has them: keep_file_layout */
    /* A hash of the hyper-parameters and of a sample of the weights: sessions are
     * bound to it. 0 without weights. It tells models apart and proves nothing. */
    uint64_t fingerprint;
} dend_model_info;

/* Loads and validates a model. A model that exists is valid.
 * Params: err may be NULL.
 * Returns: OK; ARGUMENT (the description contradicts itself); IO (a file is not
 *   there, or cannot be read); FORMAT (damaged, or contradicts itself);
 *   UNSUPPORTED (valid, and of a kind that is not run: err->msg names it); MEMORY.
 * Owns: *out, free with dend_model_free.  Cost: reads the file once, with
 * keep_file_layout a mapped one hardly at all. */
DEND_API dend_status dend_model_load(const dend_model_desc *desc, dend_model **out, dend_error *err);
/* NULL is fine. No engine may use the model any more. */
DEND_API void dend_model_free(dend_model *model);
/* Fills in *out. Its strings live with the model. */
DEND_API void dend_model_get_info(const dend_model *model, dend_model_info *out);

/* --------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------ */

enum {
    DEND_TOKENIZE_SPECIAL = 1, /* texts of special tokens in the input become those tokens */
    DEND_TOKENIZE_ADD_BOS = 2, /* begin with bos where the model wants that */
    DEND_TOKENIZE_ADD_EOS = 4  /* end with eos where the model wants that (few do) */
};

/* Splits text (any bytes; need not be valid UTF-8 nor end in 0) into tokens.
 * Params: n_bytes (size_t)-1 = strlen(text); out may be NULL when cap is 0; *n_out is always the number needed.
 * Returns: OK; BUFFER when cap is too small (out then holds nothing of use);
 *          MEMORY; UNSUPPORTED when the model carries no tokenizer.
 * Cost: O(n log n) for words of length n. Words over 256 bytes take scratch (up to 80 bytes a byte) from
 * the model's allocator for the time of the call.  Threads: any number at once. */
DEND_API dend_status dend_tokenize(const dend_model *model, const char *text, size_t n_bytes, uint32_t flags,
                                   int32_t *out, size_t cap, size_t *n_out);
/* The bytes of one token, not 0-terminated; they live with the model.
 * Control tokens (bos, eos, ...) have none: length 0. NULL for ids out of range.
 * n_bytes may be NULL (the bytes are followed by a 0 all the same). */
DEND_API const char *dend_token_bytes(const dend_model *model, int32_t token, size_t *n_bytes);
/* As dend_token_bytes, but with the text of control tokens ("<|im_end|>"). */
DEND_API const char *dend_token_text(const dend_model *model, int32_t token, size_t *n_bytes);
/* The text of tokens[n]: what dend_tokenize made tokens of. Bytes of control
 * tokens are left out, or with DEND_TOKENIZE_SPECIAL are their texts. Unlike the
 * bytes of the tokens one after the other it lacks the space that models with
 * SentencePiece vocabularies put in front of the text and behind special
 * tokens. What has no token, and a U+2581 with such a vocabulary, does not come back.
 * Params: out may be NULL when cap is 0; *n_out is always the number of bytes needed; no 0 is added.
 * Returns: OK; BUFFER (out then holds the first cap bytes); TOKEN; UNSUPPORTED
 *          when the model carries no tokenizer; ARGUMENT.  Cost: O(bytes). */
DEND_API dend_status dend_detokenize(const dend_model *model, const int32_t *tokens, size_t n, uint32_t flags,
                                     char *out, size_t cap, size_t *n_out);
/* True for tokens after which generation stops (eos, eot and their kin). */
DEND_API bool dend_token_is_end(const dend_model *model, int32_t token);

/* --------------------------------------------------------------------------
 * Chat
 *
 * Chat models were trained on conversations in one certain form. These families
 * of forms are known:
 *
 *     "chatml" "qwen" "qwen3" "llama2" "llama3" "llama3.1" "gemma"
 *     "mistral" (7B v0.1, v0.2) "mistral-v1" "mistral-v3" "mistral-tekken" "zephyr"
 *
 * A model's own is recognised from the template in its file, which is never
 * executed; it may differ from the family of that name in details that the
 * template says. Everywhere below, family NULL or "" means the model's own.
 * ------------------------------------------------------------------------ */

typedef enum dend_role {
    DEND_ROLE_SYSTEM = 0,
    DEND_ROLE_USER,
    DEND_ROLE_ASSISTANT,
    DEND_ROLE_TOOL /* what a tool answered */
} dend_role;

typedef struct dend_chat_message {
    dend_role role;
    const char *text; /* any bytes; NULL when n_bytes is 0 */
    size_t n_bytes;   /* (size_t)-1 = strlen(text) */
} dend_chat_message;

enum {
    DEND_CHAT_GENERATE = 1,   /* end where the assistant's reply begins */
    DEND_CHAT_FOLLOWS = 2,    /* the messages go on with a conversation: no bos, no default system message */
    DEND_CHAT_AFTER_REPLY = 4 /* so, and its last reply, which was generated, is ended first */
};

/* Name of the family that the model's template was recognised as; NULL when it was not, or has none. */
DEND_API const char *dend_chat_family(const dend_model *model);
/* The text of a conversation, byte for byte that of the template (but for dates, which are fixed).
 * Params: messages [n]; flags DEND_CHAT_*; out may be NULL when cap is 0; *n_out is always the number
 *         of bytes needed; no 0 is added.
 * Returns: OK; BUFFER (out then holds the first cap bytes);
 *   UNSUPPORTED: the model's template was not recognised, or the model has no tokenizer, or the family has
 *     no such role, or no system message there, or ends turns with an eos that the model lacks;
 *   ARGUMENT: no such family; roles that do not alternate where the family wants that; a system message
 *     without the user message that it becomes a part of; MEMORY: the sizes overflow.
 * Cost: O(bytes). To make tokens of it use dend_chat_tokenize, or texts of messages may become control tokens. */
DEND_API dend_status dend_chat_format(const dend_model *model, const char *family,
                                      const dend_chat_message *messages, size_t n, uint32_t flags, char *out,
                                      size_t cap, size_t *n_out);
/* The tokens of that text. Control tokens come of the template's own pieces only: where turns are divided by
 * control tokens, no message can end its own. (Forms whose divisions are plain text, as [INST] is in files of
 * Llama 2, cannot be kept from that.) Without DEND_CHAT_FOLLOWS and AFTER_REPLY they begin with bos if the model wants
 * that, whether or not the template does.
 * Returns: as dend_chat_format; MEMORY when there is no memory for the text, which the model's allocator
 *          gives for the time of the call.  Threads: any number at once. */
DEND_API dend_status dend_chat_tokenize(const dend_model *model, const char *family,
                                        const dend_chat_message *messages, size_t n, uint32_t flags,
                                        int32_t *out, size_t cap, size_t *n_out);

/* --------------------------------------------------------------------------
 * Engine
 * ------------------------------------------------------------------------ */

typedef struct dend_engine dend_engine;

/* A sequence by value: slot and generation. Zero is never valid. */
typedef struct dend_seq {
    uint32_t slot;
    uint32_t generation;
} dend_seq;

typedef enum dend_kv_type {
    DEND_KV_DEFAULT = 0, /* f16 */
    DEND_KV_F32,
    DEND_KV_F16,
    DEND_KV_Q8_0
} dend_kv_type;

typedef enum dend_isa {
    DEND_ISA_DEFAULT = 0, /* the best that this processor has */
    DEND_ISA_SCALAR,
    DEND_ISA_AVX2,
    DEND_ISA_AVX_VNNI, /* AVX2 with the dot products of AVX-VNNI */
    DEND_ISA_AVX512,   /* with VNNI */
    DEND_ISA_NEON      /* AArch64 with dot products */
} dend_isa;

/* What an append does that would make a sequence longer than n_ctx. */
typedef enum dend_context_policy {
    DEND_CONTEXT_DEFAULT = 0, /* STATUS */
    DEND_CONTEXT_STATUS,      /* DEND_ERR_CONTEXT_FULL; nothing has changed */
    /* The first n_sink tokens stay, and of the others the later half (fewer, when
     * what is appended needs the room). What stays gets new positions, so that all
     * of it but the sinks is computed again by the next step: a prompt of n_ctx / 2
     * tokens, once in n_ctx / 2 tokens. The sequence gets a new random stream, a
     * function of the old one, and mirostat's control begins anew. (Sinks: Xiao et al., arXiv 2309.17453; here without
     * its cache, hence exact: the logits are those of the shorter text.) The old
     * blocks stay until the new ones are there: it needs n_blocks for half a context
     * more than the sequences themselves take, or gives NO_BLOCKS. A search does not
     * slide: its nodes end where the context does. */
    DEND_CONTEXT_SLIDE,
    DEND_CONTEXT_CALLBACK /* on_context_full makes room */
} dend_context_policy;

typedef struct dend_engine_desc {
    uint32_t canary_begin_; /* leave zero */
    const dend_model *model;
    uint32_t n_ctx;    /* most tokens of one sequence; 0 = min(4096, what the model was trained for) */
    uint32_t n_seqs;   /* live sequences at most; 0 = 64 */
    uint32_t n_blocks; /* KV blocks; 0 = room for 2 * n_ctx tokens and one block more a sequence */
    uint32_t
        n_window_blocks; /* the same for layers with a sliding window, where the model has such; see below */
    uint32_t block_tokens; /* P, a multiple of 16; 0 = 16 */
    dend_kv_type kv_type;  /* how K and V are stored */
    uint32_t n_batch;      /* rows of one forward pass at most; 0 = 256 */
    uint32_t n_logits;     /* sequences that can hold logits at once; 0 = min(n_seqs, 64) */
    uint32_t n_tree_rows;  /* rows of all token trees of one call at most; 0 = 64 */
    uint32_t n_threads;    /* 0 = one a physical core that the process may use, within its cgroup's quota */
    dend_isa isa;          /* UNSUPPORTED where this processor lacks it */
    uint64_t seed;         /* root of all random streams */
    dend_context_policy context_policy;
    uint32_t n_sink; /* of SLIDE; 0 = 4; below n_ctx / 2 */
    /* Of CALLBACK: called by dend_seq_append and what appends with it, with the
     * number of tokens that do not fit; it may do anything with this and other
     * sequences and requests, but step. An append of its own that does not fit
     * gives CONTEXT_FULL. True = try again, once. Not asked for more tokens than
     * n_ctx, nor by a search, whose nodes end there. */
    bool (*on_context_full)(void *user, dend_engine *engine, dend_seq seq, size_t n_tokens);
    void *context_user;
    uint32_t release_budget; /* leaves (512 tokens) released by one drop or step; 0 = 64 */
    uint32_t n_prefixes; /* computed prefixes that are kept for reuse at most (dend_prefix_pin); 0 = none */
    bool lazy_memory;    /* create does not write to all memory: pages come at first use, see below */
    dend_jobs jobs;      /* the caller's job system instead of own threads */
    dend_allocator allocator;
    dend_log log;
    uint32_t canary_end_; /* leave zero */
} dend_engine_desc;
/* lazy_memory: the system gives a page when it is first written to, which can take milliseconds for a large one, in
 * the middle of a step. So create writes to all that it holds, unless this is set.
 * n_window_blocks: 0 or n_blocks keeps K and V of the whole text in every layer, so that sliding layers are never why
 * a call fails and sequences rewind to any length. With fewer, steps give up what lies behind the window: memory
 * for long texts shrinks to little more than that of the other layers, dend_seq_info.rewind_min rises with the
 * text, and appends of more tokens at once than the blocks hold beside the windows of all sequences give
 * NO_BLOCKS (dend_step between shorter appends). */

/* Bytes that an engine of this description will hold. */
typedef struct dend_plan_info {
    uint64_t weight_bytes;  /* of the model, which engines share */
    uint64_t model_bytes;   /* the same with its vocabulary: all that it keeps of its allocator's */
    uint64_t kv_bytes;      /* block pool */
    uint64_t table_bytes;   /* block tables, records, handles */
    uint64_t scratch_bytes; /* activations, logits, threads; panels of a model that keeps the file's layout */
    uint64_t total_bytes;   /* all but the weights: exactly what create asks the allocator for */
    uint64_t block_bytes;   /* of one block of every layer group */
    uint32_t n_blocks;
    uint32_t block_tokens;
} dend_plan_info;

/* Fills in every default of *desc, in place, and checks it: what create does
 * first.  Returns: OK; ARGUMENT, UNSUPPORTED (*desc is then unchanged). */
DEND_API dend_status dend_engine_resolve(dend_engine_desc *desc, dend_error *err);
/* What an engine of this description will hold, without creating it. The
 * description need not be resolved.  Returns: as dend_engine_resolve; MEMORY
 * when the sizes overflow. */
DEND_API dend_status dend_plan(const dend_engine_desc *desc, dend_plan_info *out, dend_error *err);
/* The same before the model is loaded: reads its description and vocabulary, and
 * no weights. Loading asks for some memory more for a time, for the file's
 * description; dend_model_load with a fixed allocator shows how much (n_peak), beside
 * which an engine that is made later may not fit into what was given back.
 * Params: engine NULL = defaults; its model must be NULL.
 * Returns: as dend_model_load and dend_plan; ARGUMENT with vocab_only. */
DEND_API dend_status dend_plan_file(const dend_model_desc *model, const dend_engine_desc *engine,
                                    dend_plan_info *out, dend_error *err);
/* Makes an engine in one allocation of dend_plan_info.total_bytes; running it
 * allocates nothing more.  Returns: OK; ARGUMENT, UNSUPPORTED, MEMORY, THREADS.
 * Owns: *out, free with dend_engine_free. The model must outlive the engine. */
DEND_API dend_status dend_engine_create(const dend_engine_desc *desc, dend_engine **out, dend_error *err);
/* Stops its threads and frees it; all its sequences are gone. NULL is fine. */
DEND_API void dend_engine_free(dend_engine *engine);

/* What is in use now. */
typedef struct dend_engine_stats {
    uint32_t n_blocks, n_blocks_free;               /* releases that are still deferred count as in use */
    uint32_t n_window_blocks, n_window_blocks_free; /* of sliding layers; 0 where the model has none */
    uint32_t n_seqs, n_seqs_free;
    uint32_t n_logits, n_logits_free;
    uint32_t n_waiting;       /* tokens that wait for a step */
    uint64_t n_forks, n_rows; /* since creation */
    uint64_t n_block_copies;  /* tails copied by the first append after a fork */
    const char *isa;          /* "scalar", "avx2", "avxvnni", "avx512", "neon" */
    uint32_t n_threads;
    uint32_t n_prefixes, n_prefixes_free, n_prefixes_pinned;
    /* Blocks that the kept prefixes are made of, those shared with sequences
     * included. They count as in use above; what nobody else names or has pinned
     * is given up as soon as blocks are wanted. */
    uint32_t n_prefix_blocks;
    uint64_t n_prefix_lookups,
        n_prefix_hits;        /* appends to an empty sequence; those that took something over */
    uint64_t n_prefix_tokens; /* taken over: not computed again */
    uint64_t n_prefix_evictions;
} dend_engine_stats;
DEND_API void dend_engine_get_stats(const dend_engine *engine, dend_engine_stats *out);
/* Says in a few lines of text what the engine runs on: kernels, types of
 * weights, cache, threads, memory. Whatever takes scalar code for want of a
 * fast kernel is named; the wording may change between versions.
 * Params: out may be NULL when cap is 0; with cap > 0 it is 0-terminated, and
 * cut where the text is longer.  Returns: the length of the whole text without
 * its 0; 0 for engine NULL.  Cost: some files of Linux are read, to count
 * processors; allocates nothing. */
DEND_API size_t dend_engine_report(const dend_engine *engine, char *out, size_t cap);

/* --------------------------------------------------------------------------
 * Sequences
 * ------------------------------------------------------------------------ */

enum { DEND_FORK_SAME_STREAM = 1 }; /* the child repeats the parent's random choices */

typedef struct dend_seq_info {
    uint32_t len_tokens;  /* including waiting ones */
    uint32_t n_waiting;   /* appended, not yet processed by a step */
    uint32_t n_blocks;    /* named by its table, shared ones included */
    uint32_t rewind_min;  /* shortest length that dend_seq_rewind accepts */
    uint64_t prefix_hash; /* of its tokens */
    uint64_t stream;      /* its random stream */
    uint32_t n_reused;    /* leading tokens that were taken over from a kept prefix */
    bool has_logits;
} dend_seq_info;

/* An empty sequence.  Returns: OK, NO_SEQUENCES.  Cost: O(1). */
DEND_API dend_status dend_seq_create(dend_engine *engine, dend_seq *out);
/* A child that shares everything with its parent, waiting tokens and logits
 * included. Returns: OK, STALE, NO_SEQUENCES.
 * Cost: O(1), whatever the length, depth and layer count; allocates nothing. */
DEND_API dend_status dend_seq_fork(dend_engine *engine, dend_seq parent, uint32_t flags, dend_seq *child);
/* Adds tokens. Their slots are reserved now; dend_step computes them. When the
 * context is full, dend_engine_desc.context_policy says what happens.
 * Returns: OK, STALE, TOKEN, CONTEXT_FULL, NO_BLOCKS. n may be 0.
 * Where the engine keeps prefixes (n_prefixes), an empty sequence takes over the
 * longest one that it knows of the tokens but the last, in whole blocks.
 * Cost: O(n); the first append after a fork copies at most P-1 slots and the
 * table nodes on one path. */
DEND_API dend_status dend_seq_append(dend_engine *engine, dend_seq seq, const int32_t *tokens, size_t n);
/* Tokenizes and appends. Texts of special tokens become those tokens; bos is
 * added when the sequence is empty and the model wants it. For untrusted text
 * use dend_tokenize without DEND_TOKENIZE_SPECIAL, and dend_seq_append.
 * Params: n_bytes (size_t)-1 = strlen(text); flags 0.
 * Returns: those of dend_tokenize and dend_seq_append; CONTEXT_FULL when the
 * text alone has more tokens than n_ctx. */
DEND_API dend_status dend_seq_append_text(dend_engine *engine, dend_seq seq, const char *text, size_t n_bytes,
                                          uint32_t flags);
/* Appends messages in the form of a chat family (dend_chat_tokenize), so that a conversation's KV is kept
 * from turn to turn:
 *
 *     dend_seq_append_chat(engine, seq, NULL, first, 2, DEND_CHAT_GENERATE);       system and user
 *     while (dend_next(engine, seq, &params, &token) == DEND_OK) ...               the reply
 *     dend_seq_append_chat(engine, seq, NULL, &next, 1, DEND_CHAT_GENERATE | DEND_CHAT_AFTER_REPLY);
 *
 * DEND_CHAT_FOLLOWS is implied when the sequence is not empty. A reply is to end as dend_next leaves it:
 * without its end token.
 * Returns: those of dend_chat_tokenize and dend_seq_append; CONTEXT_FULL when the text alone has more
 *          tokens than n_ctx. */
DEND_API dend_status dend_seq_append_chat(dend_engine *engine, dend_seq seq, const char *family,
                                          const dend_chat_message *messages, size_t n, uint32_t flags);
/* Cuts to len_tokens. Logits are gone unless the length is unchanged.
 * Returns: OK, STALE, ARGUMENT (longer than it is), UNSUPPORTED (below
 * rewind_min), NO_BLOCKS (no node for the table's copied path). */
DEND_API dend_status dend_seq_rewind(dend_engine *engine, dend_seq seq, uint32_t len_tokens);
/* Gives the sequence up; its handle is stale from now on.
 * Cost: O(release_budget); the rest is released by later calls. */
DEND_API dend_status dend_seq_drop(dend_engine *engine, dend_seq seq);
/* Fills in *out.  Returns: OK, STALE.  Cost: O(1). */
DEND_API dend_status dend_seq_get_info(const dend_engine *engine, dend_seq seq, dend_seq_info *out);
/* Copies tokens [from, from + n) to out. ARGUMENT when out of range. */
DEND_API dend_status dend_seq_tokens(const dend_engine *engine, dend_seq seq, uint32_t from, uint32_t n,
                                     int32_t *out);
/* Gives the sequence another random stream; its fork counter starts anew. */
DEND_API dend_status dend_seq_set_stream(dend_engine *engine, dend_seq seq, uint64_t stream);
/* A pointer of the caller's, kept with the handle; forks begin with NULL. */
DEND_API dend_status dend_seq_set_user(dend_engine *engine, dend_seq seq, void *user);
/* That pointer; NULL also for stale handles. */
DEND_API void *dend_seq_user(const dend_engine *engine, dend_seq seq);

/* --------------------------------------------------------------------------
 * Prefixes: what has been computed before is not computed again
 *
 * With dend_engine_desc.n_prefixes the engine remembers computed texts when a
 * prompt is through and when its sequence is dropped, and a new sequence that
 * begins alike starts from there. Results have the same bits. Nothing is
 * copied, and nothing fails for it: when blocks run short the least recently
 * used prefixes go. docs/sessions.md tells more.
 * Source: Zheng et al., arXiv 2312.07104, section 3.
 * ------------------------------------------------------------------------ */

/* Whether a sequence takes prefixes over when it is empty, and leaves its own
 * behind. Created ones do, forks do not.  Returns: OK, STALE. */
DEND_API dend_status dend_seq_set_reuse(dend_engine *engine, dend_seq seq, bool on);
/* Keeps what the sequence has computed, in whole blocks, until as many calls of
 * dend_prefix_unpin as of this one: a system prompt, say. The sequence may be
 * dropped. Pinned blocks are not given up, so they can be missed elsewhere.
 * Returns: OK; STALE; ARGUMENT (less than a block is computed, or the engine keeps
 * no prefixes); UNSUPPORTED (blocks are gone below a window); NO_BLOCKS (every
 * prefix is pinned, or no table node is left).
 * Params: n_tokens may be NULL; *n_tokens is the pinned length. */
DEND_API dend_status dend_prefix_pin(dend_engine *engine, dend_seq seq, uint32_t *n_tokens);
/* Undoes one pin of these tokens, rounded down to whole blocks.
 * Returns: OK; ARGUMENT when there is none. */
DEND_API dend_status dend_prefix_unpin(dend_engine *engine, const int32_t *tokens, size_t n);
/* How many of these tokens a new sequence would take over.  Returns: OK, ARGUMENT. */
DEND_API dend_status dend_prefix_lookup(const dend_engine *engine, const int32_t *tokens, size_t n,
                                        uint32_t *n_tokens);
/* Forgets every prefix that is not pinned. Blocks come back with later drops and
 * steps, or when they are wanted.  Cost: O(n_prefixes). */
DEND_API dend_status dend_prefix_clear(dend_engine *engine);

/* --------------------------------------------------------------------------
 * Sessions: sequences as bytes
 *
 * Saves sequences with their tokens, K and V, waiting tokens, random streams and
 * fork counters. What they share is written once and shared again afterwards.
 * Logits are not saved: the next step computes them, with the same bits, where
 * a sequence had or wanted them.
 * A session belongs to one model (dend_model_info.fingerprint), KV type and
 * block size, and to the byte order of the machine, but to no instruction set.
 * The same engine gives the same bytes. docs/sessions.md describes the format.
 * ------------------------------------------------------------------------ */

/* Writes sequences seqs[n], each at most once, with tags[n] to find them by;
 * NULL = their numbers from 0 on.
 * Params: n may be 0; n_bytes may be NULL, *n_bytes is the size; to NULL = only that.
 * Returns: OK, STALE, ARGUMENT, IO (the callback failed), UNSUPPORTED (a state of
 * a higher part is too large).
 * Cost: O(blocks of each sequence), and every shared block once; allocates nothing. */
DEND_API dend_status dend_save(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                               uint32_t n, const dend_writer *to, uint64_t *n_bytes);
/* The same into memory; BUFFER when cap is smaller than *n_bytes, nothing is written then. */
DEND_API dend_status dend_save_memory(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                                      uint32_t n, void *out, size_t cap, uint64_t *n_bytes);
/* The same into a file, whole or not at all: it is written to PATH.tmp, forced
 * to the disk and renamed. After a failure PATH is as it was and PATH.tmp is gone.
 * Returns: those of dend_save; IO also when the file cannot be written; ARGUMENT
 * for a path of more than 4,090 bytes. */
DEND_API dend_status dend_save_file(const dend_engine *engine, const dend_seq *seqs, const uint64_t *tags,
                                    uint32_t n, const char *path);
/* Brings all sequences of a session back as new ones. The reader is asked for
 * ascending offsets without gaps.
 * Params: out [cap], tags [cap] or NULL; *n is the number of sequences in the
 * session as soon as its header is good, whatever the status.
 * Returns: OK; FORMAT (damaged: err->where is the offset of the section), IO;
 *   UNSUPPORTED (another model, KV type, block size, version or byte order);
 *   BUFFER (cap is too small); CONTEXT_FULL, NO_BLOCKS, NO_SEQUENCES; ARGUMENT.
 * On error no sequence has changed; what out and tags hold is of no use; prefixes
 * that are not pinned may have been given up. */
DEND_API dend_status dend_restore(dend_engine *engine, const dend_reader *from, dend_seq *out, uint64_t *tags,
                                  uint32_t cap, uint32_t *n, dend_error *err);
DEND_API dend_status dend_restore_memory(dend_engine *engine, const void *data, size_t size, dend_seq *out,
                                         uint64_t *tags, uint32_t cap, uint32_t *n, dend_error *err);
DEND_API dend_status dend_restore_file(dend_engine *engine, const char *path, dend_seq *out, uint64_t *tags,
                                       uint32_t cap, uint32_t *n, dend_error *err);
/* dend_save and dend_restore of one sequence, whose logits come with the next step in any case. */
DEND_API dend_status dend_seq_save(const dend_engine *engine, dend_seq seq, const dend_writer *to);
DEND_API dend_status dend_seq_load(dend_engine *engine, const dend_reader *from, dend_seq *out);

/* --------------------------------------------------------------------------
 * Steps, logits, sampling
 * ------------------------------------------------------------------------ */

/* Processes waiting tokens of all sequences, batch by batch, until none is
 * left or budget_us microseconds have passed (0 = no limit). The last token of
 * each sequence leaves its logits.
 *   A batch that is not through when the time is up stays under way, and the next
 * step goes on with it. Between two steps everything may be called: what a
 * sequence loses (rewind, drop) is not computed to its end, blocks that the
 * batch still needs come free when it ends, forks share what is under way, and
 * results have the same bits as without interruption. dend_tree_eval ends the
 * batch first.
 * Returns: OK when nothing waits, PENDING when the budget ran out, NO_LOGITS
 * when all that still waits lacks a logits row, every row being held by other
 * sequences; CANCELLED. What was computed until then stays computed.
 * Cost: late by a task of some 100 us for each thread at most, beside the system's own delays. */
DEND_API dend_status dend_step(dend_engine *engine, uint64_t budget_us);
/* Interrupts the step that runs, or else the next one: dend_step, dend_next,
 * dend_tree_eval, dend_scheduler_step or dend_search_step returns CANCELLED, once.
 * Nothing is lost: the next step goes on. From any thread, while the engine lives. */
DEND_API void dend_cancel(dend_engine *engine);
/* Next-token logits [V] of a sequence; valid until it, or its last sharer,
 * changes. Returns: OK, STALE, WAITING, NO_LOGITS. */
DEND_API dend_status dend_seq_logits(const dend_engine *engine, dend_seq seq, const float **out);
/* Frees the sequence's logits row for others. */
DEND_API dend_status dend_seq_release_logits(dend_engine *engine, dend_seq seq);
/* Asks for logits again: the next step recomputes the last token's row. */
DEND_API dend_status dend_seq_want_logits(dend_engine *engine, dend_seq seq);

/* Strings that text must not contain, or ends at, compiled for one model. Immutable: engines and threads may
 * share it. */
typedef struct dend_text_rules dend_text_rules;

/* Strings are bytes up to a 0, of 1 to 4,096 bytes, and 1 MiB in all; they are copied. */
typedef struct dend_text_rules_desc {
    uint32_t canary_begin_;  /* leave zero */
    const dend_model *model; /* must outlive the rules */
    const char *const *banned;
    uint32_t n_banned; /* never come to stand in the text: see dend_sample_params.rules */
    const char *const *stops;
    uint32_t n_stops; /* end the text: dend_stop_feed, dend_request */
    const char *const *breakers;
    uint32_t n_breakers;      /* DRY does not look for repetitions across them */
    dend_allocator allocator; /* zeroed = malloc/free */
    uint32_t canary_end_;     /* leave zero */
} dend_text_rules_desc;

/* Compiles rules.  Returns: OK; ARGUMENT (an empty or missing string, or a limit); UNSUPPORTED when the model has
 * no tokenizer; MEMORY.  Owns: *out, free with dend_text_rules_free.
 * Cost: one allocation: some 30 bytes for each byte of the strings, and 4 for each token that a banned string may
 * end in; time O(bytes of the vocabulary), and with banned strings a sort of those tokens. */
DEND_API dend_status dend_text_rules_create(const dend_text_rules_desc *desc, dend_text_rules **out,
                                            dend_error *err);
/* Nothing may use the rules any more. NULL is fine. */
DEND_API void dend_text_rules_free(dend_text_rules *rules);

enum { DEND_STOP_UTF8 = 1 }; /* release whole UTF-8 characters only */

/* Where a text stands with regard to the stop strings. A value: zeroed at the beginning of the text, copied with
 * it when it forks. */
typedef struct dend_stop_state {
    uint64_t n_bytes;   /* of the text so far */
    uint64_t n_release; /* of them may be shown: no stop string can begin before; does not decrease */
    uint32_t node_;
    uint8_t char_left_, char_have_;
    bool stopped;
} dend_stop_state;

/* Adds n bytes to a text. The first stop string to be complete ends it; of several that end at the same byte, the
 * longest. It may lie across any number of calls.
 * Params: flags DEND_STOP_UTF8 or 0, the same in all calls. Bytes that are not UTF-8 are released singly.
 * Returns: OK; END when a stop string is complete, now or before: n_release is then the length of the text before
 * it, and further bytes are ignored; ARGUMENT. When the text ends in another way, all its n_bytes count.
 * Cost: O(n), whatever the number of strings. */
DEND_API dend_status dend_stop_feed(const dend_text_rules *rules, dend_stop_state *state, const char *bytes,
                                    size_t n, uint32_t flags);

/* Stages of choosing a token; docs/sampling.md has the formulas. Values do not change between versions. */
typedef enum dend_sample_stage {
    DEND_SAMPLE_END = 0,
    DEND_SAMPLE_BIAS,
    DEND_SAMPLE_PENALTIES,
    DEND_SAMPLE_DRY,
    DEND_SAMPLE_TOP_N_SIGMA,
    DEND_SAMPLE_TOP_K,
    DEND_SAMPLE_TYPICAL,
    DEND_SAMPLE_TOP_P,
    DEND_SAMPLE_MIN_P,
    DEND_SAMPLE_XTC,
    DEND_SAMPLE_MIROSTAT,
    DEND_SAMPLE_TEMPERATURE
} dend_sample_stage;

#define DEND_BAN (-1e30f) /* a bias of this or less bans the token */

typedef struct dend_logit_bias {
    int32_t token;
    float bias; /* added to the logit; minus infinity also bans */
} dend_logit_bias;

/* How to choose a token. Zeroed = greedy. Bans come first of all; then the stages in their order; the stages that
 * remove tokens act on the distribution at temperature 1, each on what the ones before have left; the temperature
 * then shapes what survives (unless `order` has it earlier). Ties go to the lower token id. At temperature 0 only
 * bans, bias, penalties and DRY count, and the best token is taken. */
typedef struct dend_sample_params {
    float temperature; /* 0 = greedy */
    uint32_t top_k;    /* 0 = off */
    float top_p;       /* 0 or >= 1 = off */
    float min_p;       /* 0 = off: else drop tokens below min_p * the best */
    uint64_t salt;     /* a new salt draws anew at the same position */

    float typical_p;       /* locally typical sampling (Meister et al., TACL 2023); 0 or >= 1 = off */
    float top_n_sigma;     /* keep logits within so many standard deviations of the best; 0 = off */
    float xtc_probability; /* exclude top choices: how often; 0 = off, at most 1 */
    float xtc_threshold;   /* all tokens as probable as this but the least of them go; 0 = 0.1, at most 1 */
    float mirostat_tau;    /* Mirostat v2 (Basu et al., ICLR 2021): surprise aimed at, bits; 0 = off */
    float mirostat_eta;    /* its learning rate; 0 = 0.1 */
    /* top_n_sigma: Tang et al., arXiv 2411.07641. XTC: p-e-w, text-generation-webui #6335. */

    /* On the tokens among the last penalty_last_n, prompt included. */
    float repeat_penalty;    /* divides a positive logit, multiplies another (CTRL: Keskar et al., arXiv
                                1909.05858, section 4.1); 0 or 1 = off */
    float frequency_penalty; /* subtracted for each time (OpenAI's API); may be negative; 0 = off */
    float presence_penalty;  /* subtracted once (OpenAI's API); may be negative; 0 = off */
    uint32_t penalty_last_n; /* 0 = 64, UINT32_MAX = all */

    /* DRY (p-e-w, text-generation-webui #5677): a token that would lengthen a repetition of L tokens, at least
     * dry_allowed_length, to L + 1 loses dry_multiplier * dry_base^(L - dry_allowed_length). */
    float dry_multiplier;        /* 0 = off */
    float dry_base;              /* 0 = 1.75, at least 1 */
    uint32_t dry_allowed_length; /* 0 = 2 */
    uint32_t dry_last_n;         /* tokens that it looks at; 0 = all */

    const dend_logit_bias *bias; /* [n_bias]; of equal tokens the biases add up */
    uint32_t n_bias;
    /* Of the engine's model, or NULL. With banned strings, a token is banned that would complete one in the bytes
     * of the sequence (control tokens have none), wherever the string began. Only the completing token is: the
     * beginning of a banned string may stand. Breakers serve DRY. */
    const dend_text_rules *rules;
    /* dend_sample_stage, 0 behind the last; all 0 = in the order of the enum. Each stage once; those that are on
     * must be there. */
    uint8_t order[16];
} dend_sample_params;

typedef struct dend_sampled {
    int32_t token;
    float logprob; /* under the model's own distribution: temperature 1, no filter, no penalty */
} dend_sampled;

/* Chooses a token by keyed Gumbel sampling: argmax of logit / temperature +
 * gumbel(stream, position, token), an exact draw that depends on nothing else
 * but what the filters look at: the sequence's tokens and, for mirostat, its
 * control: bits of surprise of the tokens that were drawn with mirostat and then
 * appended, to this sequence or to what it was forked from. It is the sequence's: it goes along
 * with forks, rewinds, saving and loading (a loaded sequence that is rewound by more than
 * 15 such tokens begins anew). tau and eta may change at any time.
 * Does not append the token.  Returns: OK, STALE, WAITING, NO_LOGITS; ARGUMENT (a parameter that is no finite
 * number or out of range, a bad order, rules of another model); TOKEN (a bias of a token that there is not);
 * NO_TOKENS: all are banned; UNSUPPORTED (DEND_NO_SAMPLERS). */
DEND_API dend_status dend_sample(dend_engine *engine, dend_seq seq, const dend_sample_params *params,
                                 dend_sampled *out);
/* The same on the caller's own logits [n], for parameters up to salt (others: ARGUMENT); scratch holds n
 * uint32_t. */
DEND_API dend_status dend_sample_logits(const float *logits, uint32_t n, const dend_sample_params *params,
                                        uint64_t stream, uint64_t position, uint32_t *scratch,
                                        dend_sampled *out);

/* What the filters look at beside logits. Zeroed = nothing. */
typedef struct dend_sample_past {
    const int32_t *tokens; /* [n_tokens] of the sequence, the newest last; what lies before no filter sees */
    uint32_t n_tokens;
    uint32_t n_surprises; /* mirostat: tokens drawn with it so far */
    double surprise;      /* and the sum of -logprob / ln 2 of them */
} dend_sample_past;

/* Bytes that dend_sample_after needs for n logits and n_tokens of the past. */
DEND_API size_t dend_sample_scratch(uint32_t n, uint32_t n_tokens);
/* dend_sample_logits with all parameters.  Params: past NULL = nothing; scratch holds
 * dend_sample_scratch(n, past->n_tokens) bytes, as malloc gives them.  Returns: OK, ARGUMENT, TOKEN, NO_TOKENS, UNSUPPORTED, as
 * dend_sample.  Cost: O(n) for each stage that is on, typical and top_p O(n log n) at worst; O(n_tokens). */
DEND_API dend_status dend_sample_after(const float *logits, uint32_t n, const dend_sample_params *params,
                                       uint64_t stream, uint64_t position, const dend_sample_past *past,
                                       void *scratch, dend_sampled *out);
/* dend_step, dend_sample, dend_seq_append: the next token of one sequence.
 * params NULL = greedy.  Returns: OK; END for an end token, which is reported
 * and not appended; errors of the three calls, after which what the step
 * computed stays computed, and the token, once sampled, can be sampled again. */
DEND_API dend_status dend_next(dend_engine *engine, dend_seq seq, const dend_sample_params *params,
                               int32_t *token);

/* --------------------------------------------------------------------------
 * Token trees: draft rows that see their ancestors and not their siblings
 * ------------------------------------------------------------------------ */

/* Row r holds tokens[r] and follows row parents[r] < r; -1 = the end of seq. */
typedef struct dend_tree {
    dend_seq seq;
    uint32_t n_rows;
    const int32_t *tokens;
    const int32_t *parents;
} dend_tree;

/* Runs all rows of all trees in one pass, beside the committed cache: no
 * sequence changes. Results hold until the next dend_tree_eval.
 * Returns: OK, STALE, WAITING, TOKEN, CONTEXT_FULL, ARGUMENT (bad parents, two
 * trees of one sequence, more than n_tree_rows rows). */
DEND_API dend_status dend_tree_eval(dend_engine *engine, const dend_tree *trees, uint32_t n_trees);
/* Logits [V] after row `row` of tree `tree` of the last dend_tree_eval; NULL when there is none. */
DEND_API const float *dend_tree_logits(const dend_engine *engine, uint32_t tree, uint32_t row);
/* Chooses the token behind row `row` of tree `tree` of the last dend_tree_eval: what dend_sample would choose if
 * the path to it had been appended, its tokens drawn with the same parameters. For mirostat's control a token of
 * the path counts if dend_sample, or this call, has drawn it behind its parent.
 * Returns: as dend_sample; ARGUMENT also when there is no such row, or its sequence has changed. */
DEND_API dend_status dend_tree_sample(dend_engine *engine, uint32_t tree, uint32_t row,
                                      const dend_sample_params *params, dend_sampled *out);
/* Appends the path from the root to `row`, its KV and logits, to the tree's
 * sequence: the same state as appending and stepping those tokens. Once a
 * tree, and only while its sequence is as it was.
 * Returns: OK, STALE, ARGUMENT, NO_BLOCKS. */
DEND_API dend_status dend_tree_accept(dend_engine *engine, uint32_t tree, uint32_t row);

/* --------------------------------------------------------------------------
 * Scheduler: many requests on one engine, in common batches
 *
 * A request is a sequence that is to be continued. The scheduler drives it to
 * its end; the caller keeps the sequence, may read and fork it at any time, and
 * drops it when it likes. Tokens are those of dend_next on the sequence alone,
 * bit for bit, whatever else runs, in which order, and with how much time.
 * ------------------------------------------------------------------------ */

typedef struct dend_scheduler dend_scheduler;

typedef struct dend_scheduler_desc {
    uint32_t canary_begin_; /* leave zero */
    dend_engine *engine;    /* must outlive the scheduler */
    uint32_t n_requests;    /* requests that are not collected yet, at most; 0 = 64 */
    uint32_t n_users;       /* accounts with a quota; 0 = 1 */
    /* Percent of a batch's rows that prompts may take from tokens that are being
     * generated, 1 to 100; 0 = 50. One row at least. */
    uint32_t prefill_share;
    dend_allocator allocator; /* zeroed = the engine's */
    uint32_t canary_end_;     /* leave zero */
} dend_scheduler_desc;

/* A request by value, of the scheduler that gave it: another one may have given
 * the same to somebody else. Zero is never valid. */
typedef struct dend_request_id {
    uint32_t slot;
    uint32_t generation;
} dend_request_id;

/* What is asked for. Zeroed but for seq: greedy, until the model ends it. */
typedef struct dend_request {
    dend_seq seq;              /* holds the prompt, at least one token */
    dend_sample_params params; /* copied when submitted; what it points to must live until the request ends.
                                  Stop strings of its rules end the request. */
    uint32_t max_tokens;  /* 0 = until the model ends it, or the context is full (where it slides: never) */
    int32_t priority;     /* -100 to 100, higher first */
    uint32_t user;        /* account, below n_users */
    uint64_t deadline_us; /* microseconds after submission; 0 = none */
    /* Called for each token, once appended; false ends the request with DEND_OK.
     * It may call anything but dend_scheduler_step and the two free functions. */
    bool (*on_token)(void *user_data, dend_request_id id, int32_t token);
    void *user_data;
} dend_request;

typedef enum dend_request_state {
    DEND_REQUEST_QUEUED = 0, /* no batch has served it yet */
    DEND_REQUEST_PREFILL,    /* its prompt is being computed */
    DEND_REQUEST_DECODE,     /* it has a first token */
    DEND_REQUEST_DONE
} dend_request_state;

typedef struct dend_request_info {
    dend_request_state state;
    /* PENDING until done. Then OK: max_tokens, or on_token said so; END: the
     * model ended it, or a stop string did; CONTEXT_FULL; NO_TOKENS; QUOTA; CANCELLED; DEADLINE; STALE: its
     * sequence was dropped; NO_BLOCKS; NO_LOGITS: its sequence was emptied. */
    dend_status status;
    dend_seq seq;
    uint32_t n_prompt;    /* tokens when submitted */
    uint32_t n_generated; /* tokens since, those of a stop string included */
    /* Bytes of the generated tokens that are text: what precedes a stop string, and until the request is done, what
     * no stop string can take back, in whole UTF-8 characters if there are rules. In on_token the token counts. */
    uint64_t n_text;
    bool stopped;            /* a stop string ended it */
    uint64_t queue_us;       /* from submission to the first batch that served it, or until now */
    uint64_t first_token_us; /* from submission to the first token; 0 = none yet */
    uint64_t total_us;       /* from submission to the end, or until now */
    float tokens_per_s;      /* from the first token to the last; 0 = fewer than two */
} dend_request_info;

/* Fills in every default of *desc, in place, and checks it.
 * Returns: OK; ARGUMENT (*desc is then unchanged). */
DEND_API dend_status dend_scheduler_resolve(dend_scheduler_desc *desc, dend_error *err);
/* Bytes that a scheduler of this description will hold: exactly what create
 * asks the allocator for.  Returns: as dend_scheduler_resolve; MEMORY when the size overflows. */
DEND_API dend_status dend_scheduler_plan(const dend_scheduler_desc *desc, uint64_t *n_bytes, dend_error *err);
/* Makes a scheduler in one allocation; running it allocates nothing more.
 * Returns: OK, ARGUMENT, MEMORY.  Owns: *out, free with dend_scheduler_free. */
DEND_API dend_status dend_scheduler_create(const dend_scheduler_desc *desc, dend_scheduler **out,
                                           dend_error *err);
/* Its requests are gone, their sequences stay as they are. NULL is fine. */
DEND_API void dend_scheduler_free(dend_scheduler *scheduler);

/* Queues a request; a copy of *request is kept. A sequence serves one live
 * request at a time. A request that ends gives up its sequence's logits, also
 * those from before it: dend_next computes them again, or dend_seq_want_logits
 * and dend_step.  Returns: OK, ARGUMENT, STALE (the sequence), NO_REQUESTS.  Cost: O(1). */
DEND_API dend_status dend_scheduler_submit(dend_scheduler *scheduler, const dend_request *request,
                                           dend_request_id *out);
/* Ends a request with DEND_ERR_CANCELLED; one that is done stays as it is.
 * Returns: OK, STALE.  Cost: O(1). */
DEND_API dend_status dend_scheduler_cancel(dend_scheduler *scheduler, dend_request_id id);
/* Frees the slot of a request that is done; its handle is stale from now on.
 * Returns: OK, STALE, ARGUMENT (not done).  Cost: O(1). */
DEND_API dend_status dend_scheduler_collect(dend_scheduler *scheduler, dend_request_id id);
/* Fills in *out.  Returns: OK, STALE.  Cost: O(1). */
DEND_API dend_status dend_scheduler_request_info(const dend_scheduler *scheduler, dend_request_id id,
                                                 dend_request_info *out);

/* Sets how many tokens the requests of an account may still generate;
 * UINT64_MAX = without limit, as all accounts begin. Call it regularly for a
 * rate. A request whose account has none left ends with DEND_ERR_QUOTA, before
 * anything more is computed for it.  Returns: OK, ARGUMENT.  Cost: O(1). */
DEND_API dend_status dend_scheduler_set_quota(dend_scheduler *scheduler, uint32_t user, uint64_t n_tokens);
/* What is left of it; 0 for accounts that there are not. */
DEND_API uint64_t dend_scheduler_quota(const dend_scheduler *scheduler, uint32_t user);

/* Runs batches for all requests until none is live or budget_us microseconds
 * have passed (0 = no limit). A batch that is not through then stays under way,
 * and the next call goes on with it, as dend_step does. Sequences without a
 * request are left alone, except that those which share waiting tokens with a
 * request's find them computed.
 * Returns: OK when no request is live; PENDING; CANCELLED; NO_LOGITS when every
 * logits row is held by sequences without a request: release one and call again.
 * A request that finds no KV block waits while others go on. When all wait, the
 * last in order ends with DEND_ERR_NO_BLOCKS and the call returns, so that the
 * caller can drop sequences.
 * Cost: beside the model, O(n log n) a batch for n live requests. */
DEND_API dend_status dend_scheduler_step(dend_scheduler *scheduler, uint64_t budget_us);

/* --------------------------------------------------------------------------
 * Search: a tree of steps behind one prompt
 *
 * A node is a step of text (a line, a clause, a token ...) behind its parent's;
 * the root is the prompt. Growing a node adds one child to it. A method decides
 * which node grows next; all children that are being written advance together,
 * one token a batch. The caller's judge looks at each finished step.
 * ------------------------------------------------------------------------ */

typedef struct dend_search dend_search;

#define DEND_NODE_NONE 0xffffffffu /* no node; node 0 is the root */

typedef enum dend_search_method {
    DEND_SEARCH_DEFAULT = 0,     /* MCTS */
    DEND_SEARCH_MCTS,            /* Monte Carlo tree search with UCT or PUCT */
    DEND_SEARCH_BEAM,            /* beam search over steps, by log-probability */
    DEND_SEARCH_TREE_OF_THOUGHT, /* the same by value or vote: breadth first */
    DEND_SEARCH_DEPTH_FIRST,     /* tree of thought, depth first with backtracking */
    DEND_SEARCH_BEST_OF_N        /* independent samples, the best or the most common of them */
} dend_search_method;

typedef enum dend_step_end {
    DEND_STEP_DEFAULT = 0, /* LINE */
    DEND_STEP_LINE,        /* a token with a newline ends a step */
    DEND_STEP_DELIMITER,   /* a token with one of the bytes in `delimiters` ends a step */
    DEND_STEP_TOKEN,       /* each token is a step */
    DEND_STEP_CALLBACK     /* step_ends decides */
} dend_step_end;

/* How the children of a node differ. */
typedef enum dend_propose {
    DEND_PROPOSE_DEFAULT = 0, /* LIKELIEST; SAMPLE for BEST_OF_N, which does not allow another */
    /* The first child is the greedy step. Each further one leaves a step that was
     * written before at the likeliest token that no child has taken, and goes on
     * greedily. All children differ, and only what differs is computed. */
    DEND_PROPOSE_LIKELIEST, /* at each place the 64 likeliest at most */
    DEND_PROPOSE_SAMPLE     /* each child has a random stream of its own; equal ones become one */
} dend_propose;

/* Where the value of a finished step comes from, unless the judge sets it. */
typedef enum dend_value {
    DEND_VALUE_DEFAULT = 0, /* LOGPROB */
    DEND_VALUE_LOGPROB,     /* e^(mean log-probability of the tokens since the prompt) */
    /* P(yes) / (P(yes) + P(no)) behind value_prompt; without one, at the place of
     * the token that ended the step: such tokens then are a judgement themselves,
     * and no child begins with a "no" that was not the likeliest. */
    DEND_VALUE_SELF,
    DEND_VALUE_ROLLOUT /* the step is continued to its end, and that one's value counts */
} dend_value;

typedef enum dend_node_state {
    DEND_NODE_OPEN = 0, /* may grow */
    DEND_NODE_GROWING,  /* its step is being written */
    DEND_NODE_SOLVED,   /* the judge said so */
    DEND_NODE_ENDED,    /* the model ended its text, or depth or context did */
    DEND_NODE_DEAD,     /* the judge said so */
    DEND_NODE_CLOSED,   /* nothing is left to grow below it */
    DEND_NODE_MERGED    /* the same state as `twin`, which grows in its place */
} dend_node_state;

typedef struct dend_node_info {
    dend_node_state state;
    uint32_t parent, first_child, next_sibling, twin; /* DEND_NODE_NONE where there is none */
    uint32_t n_children;
    uint32_t depth;      /* 0 = the root */
    uint32_t n_tokens;   /* of its step */
    uint32_t len_tokens; /* of its text, the prompt's included */
    uint32_t visits;     /* values that were backed up to it */
    uint32_t n_copies;   /* times that its step was sampled, 1 and more */
    uint32_t created;    /* batch in which it began */
    float logprob;       /* of its step: the sum over its tokens */
    float path_logprob;  /* of all steps since the root */
    float value;         /* of its own step */
    float mean;          /* of the values backed up to it */
    float next_logprob;  /* of the next child's first new token and what precedes it; 0 for the first
                             child and for samples; -FLT_MAX = it cannot grow now */
    uint64_t key;        /* equal keys are equal states */
    dend_seq seq;        /* of the search: fork it, do not change it; zero = given up, to be rebuilt */
} dend_node_info;

/* What a judge says of a step. */
typedef enum dend_verdict_kind {
    DEND_VERDICT_GO_ON = 0,
    DEND_VERDICT_DEAD,   /* leads nowhere */
    DEND_VERDICT_SOLVED, /* a result */
    DEND_VERDICT_STOP    /* end the search; the node stays open */
} dend_verdict_kind;

typedef struct dend_verdict {
    dend_verdict_kind kind;
    float value;  /* preset; best in [0, 1], the larger the better */
    uint64_t key; /* preset to a hash of all tokens; nodes that go on and have equal keys are merged;
                     of ended nodes: the answer that self-consistency counts */
} dend_verdict;

/* How the next child of a node is proposed. */
typedef struct dend_proposal {
    dend_propose kind;
    float temperature; /* of a sample */
} dend_proposal;

/* Replaces parts of the method; NULL members are the method's own. They may read
 * the search, and call dend_search_visit. */
typedef struct dend_search_policy {
    /* The node that grows by a child next; DEND_NODE_NONE = none until a child that is being written has
     * ended, or, when there is none, the end of the search. */
    uint32_t (*select)(void *user, dend_search *search);
    /* Changes *proposal, which the description has preset, for a child of node. */
    void (*expand)(void *user, dend_search *search, uint32_t node, dend_proposal *proposal);
    /* The value of a step that has just been written; value is what it would be. */
    float (*evaluate)(void *user, dend_search *search, uint32_t node, float value);
    /* Takes the value of a finished node up the tree. */
    void (*backup)(void *user, dend_search *search, uint32_t node, float value);
    void *user;
} dend_search_policy;

typedef struct dend_mcts_params {
    bool uct;      /* UCT (Kocsis and Szepesvari, ECML 2006) instead of PUCT (Rosin, AMAI 2011) */
    float explore; /* c of either; 0 = 1.0 */
    float fpu;     /* first-play urgency: what a child not grown yet has below its parent's mean; 0 = 0 */
    /* Progressive widening: at most ceil(widen * visits^widen_power) children, more only when nothing else below
     * the node can grow. widen 0 = off for PUCT, 1 for UCT; widen_power 0 = 0.5. */
    float widen;
    float widen_power;
    float virtual_loss; /* losses that each child being written counts as; 0 = 1 */
} dend_mcts_params;

typedef struct dend_beam_params {
    uint32_t width;       /* nodes of a level that go on; 0 = 4 */
    uint32_t n_children;  /* proposals a node; 0 = width */
    float length_penalty; /* alpha of Wu et al., arXiv 1609.08144, section 7; 0 = none */
    uint32_t n_groups;    /* diverse beam search (Vijayakumar et al., arXiv 1610.02424); 0 = 1 */
    float diversity;      /* what a step costs for each node of earlier groups with the same step */
    bool keep_going;      /* a result does not end the pass though it is better than all that is open */
    bool once;            /* one pass; else passes with twice the width follow while there is budget */
} dend_beam_params;

typedef struct dend_thought_params {
    uint32_t width;      /* breadth first: nodes of a level that go on; 0 = 5 */
    uint32_t n_children; /* proposals a node; 0 = 5 */
    float threshold;     /* depth first: nodes of less value wait until nothing else is left */
    /* Votes for n nodes of a level; more is better. NULL = their values decide. */
    void (*vote)(void *user, dend_search *search, const uint32_t *nodes, uint32_t n, float *votes);
    bool once; /* one pass; else wider passes follow while there is budget */
} dend_thought_params;

typedef struct dend_best_of_n_params {
    uint32_t n;    /* samples; 0 = as many as the budget allows */
    bool majority; /* the result is the most common answer (self-consistency: Wang et al., ICLR 2023) */
} dend_best_of_n_params;

/* Zeroed but for engine and prompt: MCTS over lines, for 1,024 tokens. */
typedef struct dend_search_desc {
    uint32_t canary_begin_; /* leave zero */
    dend_engine *engine;    /* must outlive the search */
    dend_seq prompt;        /* at least one token; is forked, and stays the caller's */
    dend_search_method method;

    dend_step_end step_end;
    const char *delimiters; /* 0-terminated; read when the search is made */
    bool (*step_ends)(void *user, const int32_t *tokens, uint32_t n); /* tokens of the step so far */
    uint32_t max_step_tokens; /* a longer step ends there; 0 = 64, at most 4,096 */
    uint32_t max_depth;       /* steps; 0 = 32, at most 65,535 */

    dend_propose propose;
    float temperature; /* of samples; 0 = 0.8 */
    float min_prob;    /* tokens of less probability start no child; 0 = 0.01 */
    uint32_t
        n_children; /* of a node, at most, for what methods select but BEST_OF_N; 0 = 32, at most 65,535 */

    dend_value value;
    const int32_t *value_prompt; /* copied */
    uint32_t n_value_prompt;     /* at most 1,024 */
    int32_t yes, no;             /* tokens */

    /* Looks at a step that has just been written: dend_search_text, _node. May be NULL. */
    void (*judge)(void *user, dend_search *search, uint32_t node, dend_verdict *verdict);
    void *user; /* of judge, step_ends, vote */

    dend_mcts_params mcts;
    dend_beam_params beam;
    dend_thought_params thought;
    dend_best_of_n_params best_of_n;
    dend_search_policy policy;

    uint64_t max_tokens;  /* generated, of all branches together; 0 = 1,024 */
    uint64_t max_time_us; /* in dend_search_step; 0 = no limit */
    uint32_t
        max_blocks; /* KV blocks that the search may take from the pool, a few passing ones aside; 0 = no limit */
    uint32_t n_nodes;  /* 0 = 4,096; at most 2^24 */
    uint32_t n_tokens; /* tokens that the tree can hold; 0 = the smaller of max_tokens and 6 n_nodes */
    uint32_t n_lanes;  /* children being written at once; 0 = 8, at most 256 */
    bool keep_going;   /* a solved node does not end the search */
    uint64_t seed;
    dend_allocator allocator; /* zeroed = the engine's */
    uint32_t canary_end_;     /* leave zero */
} dend_search_desc;

typedef enum dend_search_end {
    DEND_SEARCH_RUNNING = 0,
    DEND_SEARCH_SOLVED,
    DEND_SEARCH_EXHAUSTED, /* nothing is left to grow */
    DEND_SEARCH_TOKENS,    /* max_tokens */
    DEND_SEARCH_TIME,      /* max_time_us */
    DEND_SEARCH_NODES,     /* n_nodes or n_tokens */
    DEND_SEARCH_STOPPED    /* the judge said so */
} dend_search_end;

typedef struct dend_search_info {
    dend_search_end end;
    uint32_t best;    /* as dend_search_best */
    uint32_t n_nodes; /* in the tree, the root included */
    uint32_t n_slots; /* nodes are numbered below this; a few numbers may be free */
    uint32_t n_lanes; /* children being written */
    uint32_t n_solved, n_ended, n_dead, n_merged;
    uint32_t n_seqs;       /* sequences that nodes hold */
    uint32_t n_bad_values; /* that callbacks gave and were no numbers */
    uint32_t n_evicted;    /* sequences given up for want of blocks or slots */
    uint32_t n_forgotten;  /* proposals dropped for want of room */
    uint64_t n_tokens;     /* generated, in all branches, unfinished ones included: what max_tokens limits */
    uint64_t n_rebuilt;    /* tokens computed again for sequences that had been given up */
    uint64_t n_batches, n_forks;
    uint64_t time_us;   /* in dend_search_step */
    uint64_t model_us;  /* of it: in dend_step */
    uint64_t choose_us; /* of it: reading logits */
    uint64_t judge_us;  /* of it: in callbacks */
    uint64_t fork_ns;   /* of it: in forks alone */
} dend_search_info;

/* Fills in every default of *desc, in place, and checks it.
 * Returns: OK; ARGUMENT, STALE (the prompt), CONTEXT_FULL (it leaves no room); *desc is then unchanged. */
DEND_API dend_status dend_search_resolve(dend_search_desc *desc, dend_error *err);
/* Bytes that a search of this description will hold: exactly what create asks
 * the allocator for. Returns: as dend_search_resolve; MEMORY when they overflow. */
DEND_API dend_status dend_search_plan(const dend_search_desc *desc, uint64_t *n_bytes, dend_error *err);
/* Makes a search in one allocation; running it allocates nothing more.
 * Returns: OK; ARGUMENT, STALE, CONTEXT_FULL, MEMORY, NO_SEQUENCES.  Owns: *out, free with dend_search_free. */
DEND_API dend_status dend_search_create(const dend_search_desc *desc, dend_search **out, dend_error *err);
/* Gives its sequences back to the engine, and frees it. In a callback of its own
 * it does so when the callback's dend_search_step ends, which then returns
 * DEND_ERR_CANCELLED. NULL is fine. */
DEND_API void dend_search_free(dend_search *search);
/* Empties the tree and begins anew behind another prompt, with the same
 * description otherwise.  Returns: OK; STALE, ARGUMENT, CONTEXT_FULL, NO_SEQUENCES (nothing has changed). */
DEND_API dend_status dend_search_restart(dend_search *search, dend_seq prompt, uint64_t seed);
/* Grows the tree until the search ends or budget_us microseconds have passed (0
 * = no limit); one batch at least. Computes waiting tokens of other sequences too.
 * Returns: OK when the search has ended: dend_search_get_info says why; PENDING;
 *   NO_BLOCKS, NO_SEQUENCES, NO_LOGITS: not one child can advance, though all that
 *     nodes held for later was given up: free some and call again, or take the best so far;
 *   CALLBACK: a callback gave a value that is no number; its node counts as dead. Call again to go on;
 *   STALE: somebody dropped the root's sequence; CANCELLED; ARGUMENT (called from a callback of its own).
 * Deterministic for a seed, unless time or blocks run out. */
DEND_API dend_status dend_search_step(dend_search *search, uint64_t budget_us);
/* Fills in *out.  Cost: O(1), majority as dend_search_best. */
DEND_API void dend_search_get_info(const dend_search *search, dend_search_info *out);

/* The best node so far: a solved one, or else an ended one, or else an open one;
 * of these the one of most value, or of the most common answer, and of equals
 * the earliest. The root when there is nothing else. Cost: O(1), majority O(nodes^2). */
DEND_API uint32_t dend_search_best(const dend_search *search);
/* The child of a node that an agent would take: the one with the most visits, or
 * with the best mean; of equals the one of better mean or more visits, then the
 * earliest. Dead ones only when there is no other. DEND_NODE_NONE without children.
 * Cost: O(children). */
DEND_API uint32_t dend_search_best_child(const dend_search *search, uint32_t node, bool by_visits);
/* Fills in *out.  Returns: OK, ARGUMENT (no such node). */
DEND_API dend_status dend_search_node(const dend_search *search, uint32_t node, dend_node_info *out);
/* Copies the text of a node to out: all steps since the prompt, or its own only.
 * Params: cap bytes; with cap > 0 it is 0-terminated, and cut where it is longer.
 * Returns: the length of the whole text without its 0; 0 for nodes that there are not. */
DEND_API size_t dend_search_text(const dend_search *search, uint32_t node, char *out, size_t cap);
DEND_API size_t dend_search_step_text(const dend_search *search, uint32_t node, char *out, size_t cap);
/* Copies the tokens since the prompt.  Returns: their number, of which at most cap are copied. */
DEND_API size_t dend_search_tokens(const dend_search *search, uint32_t node, int32_t *out, size_t cap);
/* A new sequence of the caller's with a node's whole text, to go on from.
 * Returns: OK; ARGUMENT, STALE, NO_BLOCKS, NO_SEQUENCES. */
DEND_API dend_status dend_search_take(dend_search *search, uint32_t node, dend_seq *out);
/* For policies: one more value backed up to a node. Ignored where it is no number. */
DEND_API void dend_search_visit(dend_search *search, uint32_t node, float value);

typedef enum dend_export_format { DEND_EXPORT_JSON, DEND_EXPORT_DOT } dend_export_format;

/* Writes the tree: JSON (docs/search.md has the schema) or Graphviz DOT.
 * The writer must leave the search alone.  Returns: OK; ARGUMENT; IO when the writer fails. */
DEND_API dend_status dend_search_export(const dend_search *search, dend_export_format format,
                                        const dend_writer *writer);
