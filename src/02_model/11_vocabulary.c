/* ==========================================================================
 * >>02.11 VOCABULARY: which bytes each token stands for, and what finds it
 * ==========================================================================
 * A model reads and writes token ids. The vocabulary says which bytes each of
 * them stands for. It comes from a GGUF file (02.14) or from a tokenizer.json
 * (02.15), each of which describes itself by a dendp_tok_source; this room
 * makes one block of memory of either, and holds no more of the file.
 *
 * SPELLING  In both kinds of files an ordinary token is text in which some
 * bytes have a printable stand-in. We turn all of it into bytes while loading.
 *
 *   BYTES   (byte-level BPE) bytes that print stand for themselves, the other
 *           68 take U+0100 and up, so that a space is U+0120.
 *   PIECES  (SentencePiece) a space is U+2581; a byte that no piece covers has
 *           a token of its own, written <0x0A>.
 *
 * Special tokens are written as they are in both.
 *
 * KINDS OF TOKENS  PLAIN ones come of ordinary text, by merging alone. USER
 * ones (user-defined) are found in any text by their own text. CONTROL ones
 * (<|im_end|>, <s>, ...) only when the caller asks for them, and no other way
 * leads to them: what a user types never becomes a token that the file calls a
 * control token. SILENT ones have a text but no bytes.
 *
 * LOOK-UPS  by hash, open addressing, capacities powers of two and at most half
 * full: of a token by its text, and of a merge by its two tokens. A file that
 * means harm can make all of them want one place; so nothing lies further than
 * 512 places from where its hash would have it, no look-up looks further, and
 * what would is refused. (By chance none comes near that: of 2^24 random keys in
 * a table that is half full the furthest lay 53 places away.) Special tokens also
 * lie in a list sorted by their bytes, for the longest with which a text begins.
 *
 * Merges that name unknown tokens are refused; so are two tokens of one text.
 * A byte is a token only if that token's bytes are the byte, and a merge counts
 * only if the bytes of what it makes are those of its halves.
 *
 * A source may give other bytes when it is read twice (a mapped file that is
 * written to), so nothing here trusts a count that was taken before.
 * Cost: O(bytes of the vocabulary); memory at most about 6 times that.
 * ========================================================================== */

/* -- the byte alphabet ----------------------------------------------------------- */

/* The stand-in of a byte. The 68 bytes that do not print are 0-0x20, 0x7f-0xa0 and 0xad. */
static DENDP_UNUSED uint32_t dendp_alphabet_of(uint32_t byte) {
    if (byte <= 0x20) return byte + 0x100;
    if (byte >= 0x7f && byte <= 0xa0) return byte - 0x7f + 0x121;
    return byte == 0xad ? 0x143 : byte;
}

/* The byte for which the first character of s[n] stands, and the character's
 * length; -1 when it is none of the alphabet. */
static int dendp_alphabet_next(const char *s, size_t n, size_t *len) {
    uint32_t b = n ? (unsigned char)s[0] : 0, c;
    *len = 1;
    if (b < 0x80) return b > 0x20 && b < 0x7f ? (int)b : -1;
    if (n < 2 || b < 0xc2 || b > 0xc5 || ((unsigned char)s[1] & 0xc0) != 0x80) return -1;
    *len = 2;
    c = (b & 0x1f) << 6 | ((unsigned char)s[1] & 0x3fu);
    if (c <= 0xff) return c > 0xa0 && c != 0xad ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c <= 0x142) return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

/* -- spelling: what a file writes for a byte ----------------------------------------- */

typedef enum dendp_spelling { DENDP_SPELL_BYTES, DENDP_SPELL_PIECES } dendp_spelling;

/* The byte for which the next character of s[n] stands, and the character's
 * length (of pieces: byte by byte); -1 when it stands for none. */
static int dendp_spelled_next(dendp_spelling spelling, const char *s, size_t n, size_t *len) {
    if (spelling == DENDP_SPELL_BYTES) return dendp_alphabet_next(s, n, len);
    *len = 1;
    if (n == 0 || s[0] == ' ') return -1;
    if (n < 3 || memcmp(s, "\342\226\201", 3) != 0) return (unsigned char)s[0];
    *len = 3; /* U+2581 */
    return ' ';
}

/* The byte of a text like <0x0A>, or -1. */
static int dendp_spelled_byte(const char *s, size_t n) {
    static const char digits[] = "0123456789ABCDEF";
    const char *hi, *lo;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || !s[3] || !s[4]) return -1;
    hi = strchr(digits, s[3]);
    lo = strchr(digits, s[4]);
    return hi && lo ? (int)((hi - digits) * 16 + (lo - digits)) : -1;
}

/* -- the vocabulary ------------------------------------------------------------- */

#define DENDP_TOK_NONE 0xffffffffu /* no token; no rank */
#define DENDP_TOK_MAX_VOCAB (1u << 24)

/* Flags of a token. */
enum {
    DENDP_TOK_PLAIN = 1,   /* its text stands for its bytes as spelled, and ordinary text may become it */
    DENDP_TOK_MADE = 2,    /* the token of a byte, or of a merge */
    DENDP_TOK_SILENT = 4,  /* has text, but no bytes */
    DENDP_TOK_CONTROL = 8, /* found in text by its own text, when the caller wants that */
    DENDP_TOK_USER = 16,   /* found in text by its own text, always */
    DENDP_TOK_END = 32,    /* generation stops here */
    DENDP_TOK_BYTE = 64    /* <0x0A>: a byte that no piece covers */
};

/* Where a space is put in front of text, as if the text had begun with it. */
typedef enum dendp_tok_prefix {
    DENDP_PREFIX_NONE,
    DENDP_PREFIX_EACH,      /* at the beginning and behind each special token */
    DENDP_PREFIX_EACH_WORD, /* there, but not before a space */
    DENDP_PREFIX_FIRST_WORD /* at the beginning only, and not before a space */
} dendp_tok_prefix;

/* A slot of the table of texts: more bits of the hash, so that most others are told apart here; id NONE is empty. */
typedef struct dendp_tok_slot {
    uint32_t tag, id;
} dendp_tok_slot;

/* A slot of the table of merges; rank NONE is empty. */
typedef struct dendp_merge {
    uint32_t left, right, rank, made;
} dendp_merge;

/* All arrays are pieces of one block. n_vocab 0: the file has no tokenizer. */
typedef struct dendp_tokenizer {
    dend_allocator allocator;
    uint32_t n_vocab;           /* V */
    int32_t bos, eos, eot, unk; /* -1 where there is none */
    bool add_bos, add_eos;
    bool whole_words;
    bool by_score; /* pairs merge by the score of what they make, not by a list of merges */
    dendp_spelling spelling;
    dendp_split_kind split;  /* of byte-level BPE */
    dendp_tok_prefix prefix; /* of pieces */
    void *block;
    uint64_t block_bytes;
    char *bytes;           /* each token's bytes, or text where it is silent, and a 0 behind it */
    uint32_t *offsets;     /* [V + 1] where a token's begin in there */
    unsigned char *flags;  /* [V] */
    dendp_tok_slot *table; /* text to token, by hash */
    uint32_t table_mask;
    uint32_t merge_mask, merge_shift;
    dendp_merge *merges; /* (left, right) to rank and token, by hash; unless by_score */
    uint32_t *ranks;     /* [V] with by_score: the higher the score, the lower */
    uint32_t max_plain;  /* bytes of the longest PLAIN token */
    uint32_t *joins;     /* of pieces: [256][8] set of bytes that follow a byte inside of a PLAIN token */
    uint32_t *specials;  /* control and user-defined tokens in the order of their texts' bytes */
    uint32_t n_specials;
    uint32_t first[257]; /* where those with a first byte begin in there */
    uint32_t
        *starts[2]; /* [2048] set of first two bytes, the second one low: of user-defined tokens, of all */
    uint32_t byte_ids[256]; /* token of each byte, or NONE */
} dendp_tokenizer;

static const char *dendp_tok_at(const dendp_tokenizer *t, uint32_t id, size_t *n) {
    *n = t->offsets[id + 1] - t->offsets[id] - 1;
    return t->bytes + t->offsets[id];
}

#define DENDP_TOK_WAY 512u /* places that a look-up looks at */

/* FNV-1a (Fowler, Noll, Vo), which can go on from where it stopped. */
#define DENDP_TOK_HASH 0xcbf29ce484222325u

static uint64_t dendp_tok_hash(uint64_t h, const char *s, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* The PLAIN token whose bytes are s[n] and have that hash, or NONE. */
static uint32_t dendp_tok_plain(const dendp_tokenizer *t, uint64_t hash, const void *s, size_t n) {
    uint64_t mixed = dendp_mix64(hash);
    uint32_t slot = (uint32_t)mixed, tag = (uint32_t)(mixed >> 32), way;
    for (way = 0; way < DENDP_TOK_WAY; way++, slot++) {
        dendp_tok_slot e = t->table[slot &= t->table_mask];
        const char *bytes;
        size_t len;
        if (e.id == DENDP_TOK_NONE) break;
        if (e.tag != tag) continue;
        bytes = dendp_tok_at(t, e.id, &len);
        if (len == n && (t->flags[e.id] & DENDP_TOK_PLAIN) && memcmp(bytes, s, n) == 0) return e.id;
    }
    return DENDP_TOK_NONE;
}

/* The token of ordinary text that s[n] is, or NONE. */
static uint32_t dendp_tok_word(const dendp_tokenizer *t, const unsigned char *s, size_t n) {
    return dendp_tok_plain(t, dendp_tok_hash(DENDP_TOK_HASH, (const char *)s, n), s, n);
}

/* Whether a token's text goes on with s[n] in the file's spelling; *k counts the bytes seen so far. */
static bool dendp_tok_matches(const dendp_tokenizer *t, uint32_t id, const char *s, size_t n, size_t *k) {
    size_t len, step, at;
    const char *bytes = dendp_tok_at(t, id, &len);
    if (!(t->flags[id] & DENDP_TOK_PLAIN)) {
        at = *k;
        *k += n;
        return n <= len && at <= len - n && memcmp(bytes + at, s, n) == 0;
    }
    for (at = 0; at < n; at += step) {
        int b = dendp_spelled_next(t->spelling, s + at, n - at, &step);
        if (b < 0 || *k >= len || (unsigned char)bytes[*k] != (unsigned)b) return false;
        ++*k;
    }
    return true;
}

/* The hash of a text: of the bytes for which it stands, or of itself where it stands for none. */
static bool dendp_tok_hash_spelled(const dendp_tokenizer *t, const char *s, size_t n, uint64_t *h) {
    size_t at, step;
    for (at = 0; at < n; at += step) {
        int b = dendp_spelled_next(t->spelling, s + at, n - at, &step);
        if (b < 0) return false;
        *h = (*h ^ (unsigned)b) * 0x100000001b3u;
    }
    return true;
}

/* The token whose text in the file is a[na] followed by b[nb], or NONE. */
static uint32_t dendp_tok_find2(const dendp_tokenizer *t, const char *a, size_t na, const char *b,
                                size_t nb) {
    uint32_t plain, byte = DENDP_TOK_NONE;
    if (t->spelling == DENDP_SPELL_PIECES && nb == 0 && dendp_spelled_byte(a, na) >= 0) {
        byte = t->byte_ids[dendp_spelled_byte(a, na)];
        if (byte != DENDP_TOK_NONE && (t->flags[byte] & DENDP_TOK_BYTE)) return byte;
    }
    for (plain = 2; plain-- > 0;) { /* as a plain token's, then as any other's */
        uint64_t h = DENDP_TOK_HASH;
        uint32_t slot, tag, way;
        if (plain) {
            if (!dendp_tok_hash_spelled(t, a, na, &h) || !dendp_tok_hash_spelled(t, b, nb, &h)) continue;
        } else {
            h = dendp_tok_hash(dendp_tok_hash(h, a, na), b, nb);
        }
        h = dendp_mix64(h);
        tag = (uint32_t)(h >> 32);
        for (slot = (uint32_t)h, way = 0; way < DENDP_TOK_WAY; way++, slot++) {
            uint32_t id = t->table[slot &= t->table_mask].id;
            size_t k = 0, len;
            if (id == DENDP_TOK_NONE) break;
            if (t->table[slot].tag != tag || (t->flags[id] & DENDP_TOK_PLAIN) != plain ||
                !dendp_tok_matches(t, id, a, na, &k) || !dendp_tok_matches(t, id, b, nb, &k)) {
                continue;
            }
            dendp_tok_at(t, id, &len);
            if (k == len) return id;
        }
    }
    return DENDP_TOK_NONE;
}

static uint32_t dendp_tok_find(const dendp_tokenizer *t, const char *s, size_t n) {
    return dendp_tok_find2(t, s, n, s, 0);
}

/* Where the search for a pair begins. */
static uint32_t dendp_tok_merge_home(const dendp_tokenizer *t, uint32_t left, uint32_t right) {
    return (uint32_t)(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> t->merge_shift);
}

/* The slot of a pair, or one whose rank is NONE, for it to be put; NULL where there is neither. */
static dendp_merge *dendp_tok_merge(const dendp_tokenizer *t, uint32_t left, uint32_t right) {
    uint32_t slot = dendp_tok_merge_home(t, left, right), way;
    for (way = 0; way < DENDP_TOK_WAY; way++, slot++) {
        dendp_merge *m = &t->merges[slot &= t->merge_mask];
        if ((m->left == left && m->right == right) || m->rank == DENDP_TOK_NONE) return m;
    }
    return NULL;
}

/* -- sources ---------------------------------------------------------------------- */

/* Types of tokens, with the numbers of GGUF. */
enum {
    DENDP_TOKEN_UNDEFINED = 0,
    DENDP_TOKEN_NORMAL = 1,
    DENDP_TOKEN_UNKNOWN = 2,
    DENDP_TOKEN_CONTROL = 3,
    DENDP_TOKEN_USER = 4,
    DENDP_TOKEN_UNUSED = 5,
    DENDP_TOKEN_BYTE = 6
};

typedef struct dendp_tok_entry {
    const char *s; /* as the file spells it */
    size_t n;
    uint32_t type; /* DENDP_TOKEN_* */
    float score;
    uint64_t where; /* offset in the file, for errors */
} dendp_tok_entry;

typedef struct dendp_tok_pair {
    const char *left, *right;
    size_t n_left, n_right;
    uint64_t where;
} dendp_tok_pair;

#define DENDP_TOK_MAX_ENDS 16u

/* What a file says of its vocabulary. All ids are checked by whoever fills it in. */
typedef struct dendp_tok_source {
    dendp_spelling spelling;
    dendp_split_kind split;
    dendp_tok_prefix prefix;
    bool whole_words, by_score;
    bool add_bos, add_eos;      /* and the file has such a token */
    uint32_t n_vocab;           /* 1 to MAX_VOCAB */
    uint64_t text_bytes;        /* of all tokens as spelled, at most; below 2^32 - 2^25 */
    uint64_t n_merges;          /* at most 2^30 */
    uint32_t n_specials;        /* tokens that are unknown, control or user-defined, at most */
    int32_t bos, eos, eot, unk; /* -1: none */
    int32_t ends[DENDP_TOK_MAX_ENDS];
    uint32_t n_ends;
    /* Gives token 0, 1, ...; merge 0, 1, ... false: there is none, and where *status is no longer OK, why. */
    bool (*next_token)(struct dendp_tok_source *src, dendp_tok_entry *out, dend_status *status,
                       dend_error *err);
    bool (*next_merge)(struct dendp_tok_source *src, dendp_tok_pair *out, dend_status *status,
                       dend_error *err);
    const void *tokens, *types, *scores, *merges; /* of the two functions, as are these: */
    void *user;
    uint64_t cursor, n_given;
} dendp_tok_source;

/* -- loading --------------------------------------------------------------------- */

/* Texts that mark a token as the end of generation (END), as the end of a turn
 * where the file names none (EOT, the first of the list that there is), or
 * just as a control token: files do not say such things reliably. */
enum { DENDP_KIN_CONTROL = 0, DENDP_KIN_END = 1, DENDP_KIN_EOT = 3 };

typedef struct dendp_kin {
    const char *text;
    uint32_t what;
} dendp_kin;

static const dendp_kin dendp_kins[] = {
    {"<|eot_id|>", DENDP_KIN_EOT},
    {"<|im_end|>", DENDP_KIN_EOT},
    {"<|end|>", DENDP_KIN_EOT},
    {"<end_of_turn>", DENDP_KIN_EOT},
    {"<end_of_utterance>", DENDP_KIN_EOT},
    {"<|endoftext|>", DENDP_KIN_EOT},
    {"<|end_of_text|>", DENDP_KIN_EOT},
    {"<EOT>", DENDP_KIN_EOT},
    {"_<EOT>", DENDP_KIN_EOT},
    {"[EOT]", DENDP_KIN_EOT},
    {"<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", DENDP_KIN_EOT}, /* DeepSeek */
    {"</s>", DENDP_KIN_END},
    {"<eos>", DENDP_KIN_END},
    {"[EOS]", DENDP_KIN_END},
    {"<|eom_id|>", DENDP_KIN_END},
    /* of fill-in-the-middle models: padding, and where the next file or repository begins */
    {"<|fim_pad|>", DENDP_KIN_END},
    {"<fim-pad>", DENDP_KIN_END},
    {"<fim_pad>", DENDP_KIN_END},
    {"<PAD>", DENDP_KIN_END},
    {"[PAD]", DENDP_KIN_END},
    {"<|fim_repo|>", DENDP_KIN_END},
    {"<|repo_name|>", DENDP_KIN_END},
    {"<fim-repo>", DENDP_KIN_END},
    {"<REPO>", DENDP_KIN_END},
    {"<reponame>", DENDP_KIN_END},
    {"<|file_sep|>", DENDP_KIN_END},
    {"<|fim_prefix|>", DENDP_KIN_CONTROL},
    {"<fim-prefix>", DENDP_KIN_CONTROL},
    {"<fim_prefix>", DENDP_KIN_CONTROL},
    {"<|fim_suffix|>", DENDP_KIN_CONTROL},
    {"<fim-suffix>", DENDP_KIN_CONTROL},
    {"<fim_suffix>", DENDP_KIN_CONTROL},
    {"<|fim_middle|>", DENDP_KIN_CONTROL},
    {"<fim-middle>", DENDP_KIN_CONTROL},
    {"<fim_middle>", DENDP_KIN_CONTROL},
};
#define DENDP_N_KINS (uint32_t)(sizeof dendp_kins / sizeof dendp_kins[0])

/* Smallest power of two that is at least 2n + 2, so that a search always meets an empty slot. */
static uint64_t dendp_tok_capacity(uint64_t n) {
    uint64_t c = 2;
    while (c < 2 * n + 2) c *= 2;
    return c;
}

/* Measures, or places, all arrays. */
static void dendp_tok_layout(dendp_tokenizer *t, const dendp_tok_source *src, dendp_carver *c) {
    uint64_t n_table = dendp_tok_capacity(t->n_vocab), n_merges = dendp_tok_capacity(src->n_merges);
    t->table_mask = (uint32_t)(n_table - 1);
    t->merge_mask = (uint32_t)(n_merges - 1);
    for (t->merge_shift = 64; n_merges > (uint64_t)1 << (64 - t->merge_shift);) t->merge_shift--;
    t->merges = (dendp_merge *)dendp_carve(c, n_merges, sizeof *t->merges);
    t->table = (dendp_tok_slot *)dendp_carve(c, n_table, sizeof *t->table);
    t->starts[0] = (uint32_t *)dendp_carve(c, 2 * 2048, sizeof *t->starts[0]);
    t->starts[1] = t->starts[0] ? t->starts[0] + 2048 : NULL;
    t->offsets = (uint32_t *)dendp_carve(c, (uint64_t)t->n_vocab + 1, sizeof *t->offsets);
    t->specials = (uint32_t *)dendp_carve(c, (uint64_t)src->n_specials + DENDP_N_KINS, sizeof *t->specials);
    t->ranks = (uint32_t *)dendp_carve(c, t->by_score ? t->n_vocab : 0, sizeof *t->ranks);
    t->joins = (uint32_t *)dendp_carve(c, t->spelling == DENDP_SPELL_PIECES ? 256 * 8 : 0, sizeof *t->joins);
    t->flags = (unsigned char *)dendp_carve(c, t->n_vocab, 1);
    t->bytes = (char *)dendp_carve(c, src->text_bytes + t->n_vocab, 1);
}

/* Writes the bytes for which a text stands to out, and their number; false when a character stands for none. */
static bool dendp_tok_decode(dendp_spelling spelling, const char *s, size_t n, char *out, size_t *n_out) {
    size_t at, step;
    *n_out = 0;
    for (at = 0; at < n; at += step) {
        int b = dendp_spelled_next(spelling, s + at, n - at, &step);
        if (b < 0) return false;
        out[(*n_out)++] = (char)b;
    }
    return n > 0;
}

/* The rank of a score: the order of floats turned round. No number has rank NONE. */
static uint32_t dendp_tok_rank(float score) {
    uint32_t bits = dendp_f32_bits(score + 0.0f); /* -0 is 0 */
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

/* Tokens: bytes, flags, ranks, and the table of texts. */
static dend_status dendp_tok_load_tokens(dendp_tokenizer *t, dendp_tok_source *src, dend_error *err) {
    dend_status status = DEND_OK;
    uint64_t cap = src->text_bytes + t->n_vocab, at = 0;
    uint32_t id;
    for (id = 0; id < t->n_vocab; id++) {
        dendp_tok_entry e;
        unsigned char flags = 0;
        char *bytes = t->bytes + at;
        size_t n;
        uint32_t slot, way;
        uint64_t h;
        if (!src->next_token(src, &e, &status, err)) {
            return status != DEND_OK ? status
                                     : DENDP_FAIL(err, DEND_ERR_FORMAT, "fewer tokens than were counted", 0);
        }
        if (e.n >= cap - at) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokens are longer than was counted", e.where);
        }
        t->offsets[id] = (uint32_t)at;
        n = e.n;
        switch (e.type) {
        case DENDP_TOKEN_NORMAL:
            if (dendp_tok_decode(t->spelling, e.s, e.n, bytes, &n)) {
                flags = DENDP_TOK_PLAIN;
            } else {
                n = e.n;
            }
            break;
        case DENDP_TOKEN_UNKNOWN:
        case DENDP_TOKEN_CONTROL:
            flags = DENDP_TOK_SILENT | DENDP_TOK_CONTROL;
            break;
        case DENDP_TOKEN_USER: /* always cut out of the text, so that no merge ever sees one */
            flags = DENDP_TOK_USER;
            break;
        case DENDP_TOKEN_BYTE: /* only pieces have them; elsewhere it is a text like <0x0A> */
            if (t->spelling == DENDP_SPELL_PIECES) {
                int byte = dendp_spelled_byte(e.s, e.n);
                if (byte < 0)
                    return DENDP_FAIL(err, DEND_ERR_FORMAT, "byte token is not like <0x0A>", e.where);
                if (t->byte_ids[byte] != DENDP_TOK_NONE) {
                    return DENDP_FAIL(err, DEND_ERR_FORMAT, "two tokens have one text", e.where);
                }
                t->byte_ids[byte] = id;
                flags = DENDP_TOK_BYTE;
                bytes[0] = (char)byte;
                n = 1;
            }
            break;
        default: /* unused, undefined */
            flags = DENDP_TOK_SILENT;
            break;
        }
        if (!(flags & (DENDP_TOK_PLAIN | DENDP_TOK_BYTE))) memcpy(bytes, e.s, n);
        bytes[n] = 0;
        at += n + 1;
        t->offsets[id + 1] = (uint32_t)at;
        t->flags[id] = flags;
        if (t->by_score) {
            if (!dendp_finite(e.score)) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "score is no finite number", e.where);
            }
            t->ranks[id] = dendp_tok_rank(e.score);
        }
        if (flags & DENDP_TOK_PLAIN) {
            const unsigned char *b = (const unsigned char *)bytes;
            size_t i;
            if (n > t->max_plain) t->max_plain = (uint32_t)n;
            for (i = 1; t->joins && i < n; i++) t->joins[b[i - 1] * 8 + (b[i] >> 5)] |= 1u << (b[i] & 31u);
        }
        if (n == 0 || (flags & DENDP_TOK_BYTE)) continue;
        h = dendp_tok_hash(DENDP_TOK_HASH, bytes, n);
        if ((flags & DENDP_TOK_PLAIN ? dendp_tok_plain(t, h, bytes, n) : dendp_tok_find(t, e.s, e.n)) !=
            DENDP_TOK_NONE) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "two tokens have one text", e.where);
        }
        h = dendp_mix64(h);
        for (slot = (uint32_t)h & t->table_mask, way = 0; t->table[slot].id != DENDP_TOK_NONE; way++) {
            slot = (slot + 1) & t->table_mask;
            if (way + 1 == DENDP_TOK_WAY) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "tokens are made to collide", e.where);
            }
        }
        t->table[slot].tag = (uint32_t)(h >> 32);
        t->table[slot].id = id;
    }
    return DEND_OK;
}

/* The tokens of the 256 bytes: pieces have found theirs. */
static void dendp_tok_load_bytes(dendp_tokenizer *t) {
    uint32_t b;
    for (b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        if (t->spelling == DENDP_SPELL_BYTES) t->byte_ids[b] = dendp_tok_word(t, &byte, 1);
        if (t->byte_ids[b] != DENDP_TOK_NONE) t->flags[t->byte_ids[b]] |= DENDP_TOK_MADE;
    }
}

/* Merges, the earlier the lower the rank; the first of equal ones counts. By
 * score every plain token may be made. */
static dend_status dendp_tok_load_merges(dendp_tokenizer *t, dendp_tok_source *src, dend_error *err) {
    dend_status status = DEND_OK;
    uint32_t rank, id;
    dendp_tok_pair p;
    for (rank = 0; rank < src->n_merges && src->next_merge(src, &p, &status, err); rank++) {
        uint32_t left = DENDP_TOK_NONE, right = DENDP_TOK_NONE, made = DENDP_TOK_NONE;
        char bytes[256];
        size_t n, n2;
        if (p.n_left < 128 && p.n_right < 128 && dendp_tok_decode(t->spelling, p.left, p.n_left, bytes, &n) &&
            dendp_tok_decode(t->spelling, p.right, p.n_right, bytes + n, &n2)) {
            uint64_t h = dendp_tok_hash(DENDP_TOK_HASH, bytes, n);
            left = dendp_tok_plain(t, h, bytes, n);
            right = dendp_tok_plain(t, dendp_tok_hash(DENDP_TOK_HASH, bytes + n, n2), bytes + n, n2);
            made = dendp_tok_plain(t, dendp_tok_hash(h, bytes + n, n2), bytes, n + n2);
        }
        if (left == DENDP_TOK_NONE) left = dendp_tok_find(t, p.left, p.n_left);
        if (right == DENDP_TOK_NONE) right = dendp_tok_find(t, p.right, p.n_right);
        if (made == DENDP_TOK_NONE) made = dendp_tok_find2(t, p.left, p.n_left, p.right, p.n_right);
        if (left == DENDP_TOK_NONE || right == DENDP_TOK_NONE || made == DENDP_TOK_NONE) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "merge of texts that are no tokens", p.where);
        }
        if (t->flags[left] & t->flags[right] & t->flags[made] & DENDP_TOK_PLAIN) {
            dendp_merge *m = dendp_tok_merge(t, left, right);
            if (!m) {
                return DENDP_FAIL(err, DEND_ERR_FORMAT, "merges are made to collide", p.where);
            }
            if (m->rank == DENDP_TOK_NONE) {
                m->left = left;
                m->right = right;
                m->rank = rank;
                m->made = made;
                t->flags[made] |= DENDP_TOK_MADE;
            }
        }
    }
    for (id = 0; t->by_score && id < t->n_vocab; id++) {
        if (t->flags[id] & DENDP_TOK_PLAIN) t->flags[id] |= DENDP_TOK_MADE;
    }
    return status;
}

/* What ends a generation, and what is a control token whatever the file says. */
static void dendp_tok_load_kins(dendp_tokenizer *t, const dendp_tok_source *src) {
    uint32_t i;
    for (i = 0; i < src->n_ends; i++) t->flags[src->ends[i]] |= DENDP_TOK_END;
    for (i = 0; i < DENDP_N_KINS; i++) {
        uint32_t id = dendp_tok_find(t, dendp_kins[i].text, strlen(dendp_kins[i].text));
        if (id == DENDP_TOK_NONE) continue;
        if (t->flags[id] & DENDP_TOK_MADE) { /* a word as well (</s> of Qwen2): it keeps its bytes */
            t->flags[id] |= DENDP_TOK_CONTROL;
        } else {
            t->flags[id] = DENDP_TOK_SILENT | DENDP_TOK_CONTROL | (t->flags[id] & DENDP_TOK_END);
        }
        if (dendp_kins[i].what & DENDP_KIN_END) t->flags[id] |= DENDP_TOK_END;
        if (dendp_kins[i].what == DENDP_KIN_EOT && t->eot < 0) t->eot = (int32_t)id;
    }
}

static int dendp_tok_compare(const void *ctx, uint32_t a, uint32_t b) {
    const dendp_tokenizer *t = (const dendp_tokenizer *)ctx;
    size_t na, nb;
    const char *sa = dendp_tok_at(t, a, &na), *sb = dendp_tok_at(t, b, &nb);
    return dendp_compare_bytes(sa, na, sb, nb);
}

/* The sorted list of special tokens, and the sets of their first bytes. */
static dend_status dendp_tok_load_specials(dendp_tokenizer *t, const dendp_tok_source *src, dend_error *err) {
    uint32_t id, cap = src->n_specials + DENDP_N_KINS, i, b, second;
    for (id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *s = dendp_tok_at(t, id, &n);
        if (n == 0 || !(t->flags[id] & (DENDP_TOK_CONTROL | DENDP_TOK_USER))) continue;
        if (t->n_specials == cap) {
            return DENDP_FAIL(err, DEND_ERR_FORMAT, "more special tokens than were counted", 0);
        }
        t->specials[t->n_specials++] = id;
        for (second = 0; second < 256; second++) { /* one byte alone may have any behind it */
            uint32_t two = (uint32_t)(unsigned char)s[0] << 8 | second;
            if (n > 1 && second != (unsigned char)s[1]) continue;
            t->starts[1][two >> 5] |= 1u << (two & 31u);
            if (t->flags[id] & DENDP_TOK_USER) t->starts[0][two >> 5] |= 1u << (two & 31u);
        }
    }
    dendp_heap_sort(t->specials, t->n_specials, dendp_tok_compare, t);
    for (i = b = 0; b < 257; b++) {
        while (i < t->n_specials && (unsigned char)t->bytes[t->offsets[t->specials[i]]] < b) i++;
        t->first[b] = i;
    }
    return DEND_OK;
}

static void dendp_tokenizer_free(dendp_tokenizer *t) {
    dendp_free(&t->allocator, t->block, t->block_bytes);
    memset(t, 0, sizeof *t);
}

/* Makes a vocabulary of a source, of which nothing is needed afterwards.
 * Params: the allocator is resolved, and is used by encode as well.
 * Returns: OK; FORMAT, MEMORY, and then *t holds nothing. */
static dend_status dendp_tokenizer_build(dendp_tokenizer *t, dendp_tok_source *src, const dend_allocator *a,
                                         dend_error *err) {
    dendp_carver carver;
    dend_status status = DEND_OK;
    memset(t, 0, sizeof *t);
    memset(&carver, 0, sizeof carver);
    t->allocator = *a;
    t->n_vocab = src->n_vocab;
    t->bos = src->bos;
    t->eos = src->eos;
    t->eot = src->eot;
    t->unk = src->unk;
    t->add_bos = src->add_bos;
    t->add_eos = src->add_eos;
    t->spelling = src->spelling;
    t->split = src->split;
    t->prefix = src->prefix;
    t->whole_words = src->whole_words;
    t->by_score = src->by_score;
    memset(t->byte_ids, 0xff, sizeof t->byte_ids);
    dendp_tok_layout(t, src, &carver);
    t->block_bytes = carver.used;
    t->block = carver.overflow ? NULL : dendp_alloc(a, carver.used);
    if (!t->block) status = DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the vocabulary", 0);
    if (status == DEND_OK) {
        carver.base = (unsigned char *)t->block;
        carver.used = 0;
        dendp_tok_layout(t, src, &carver);
        if (t->spelling != DENDP_SPELL_PIECES) t->joins = NULL;
        if (t->joins) memset(t->joins, 0, 256 * 8 * sizeof *t->joins);
        memset(t->starts[0], 0, 2 * 2048 * sizeof *t->starts[0]);
        memset(t->table, 0xff, ((size_t)t->table_mask + 1) * sizeof *t->table);
        memset(t->merges, 0xff, ((size_t)t->merge_mask + 1) * sizeof *t->merges);
        status = dendp_tok_load_tokens(t, src, err);
    }
    if (status == DEND_OK) {
        dendp_tok_load_bytes(t);
        status = dendp_tok_load_merges(t, src, err);
    }
    if (status == DEND_OK) {
        dendp_tok_load_kins(t, src);
        status = dendp_tok_load_specials(t, src, err);
    }
    if (status != DEND_OK) dendp_tokenizer_free(t);
    return status;
}

/* -- special tokens in text -------------------------------------------------------- */

/* The longest special token with which s[n] begins, or NONE. [lo, hi) of the
 * sorted list are those that begin with the k bytes seen so far. */
static uint32_t dendp_tok_special(const dendp_tokenizer *t, const unsigned char *s, size_t n,
                                  uint32_t which) {
    uint32_t lo = n ? t->first[s[0]] : 0, hi = n ? t->first[s[0] + 1] : 0, found = DENDP_TOK_NONE;
    size_t k;
    for (k = 1; lo < hi; k++) {
        uint32_t first = lo, last = hi, end = hi;
        if (t->offsets[t->specials[lo] + 1] - t->offsets[t->specials[lo]] - 1 == k) {
            if (t->flags[t->specials[lo]] & which) found = t->specials[lo];
            first = ++lo; /* texts are unique: the others are longer */
        }
        if (k == n) break;
        while (first < last) { /* the first whose byte k is s[k] or more */
            uint32_t mid = first + (last - first) / 2;
            if ((unsigned char)t->bytes[t->offsets[t->specials[mid]] + k] < s[k]) {
                first = mid + 1;
            } else {
                last = mid;
            }
        }
        lo = first;
        last = end;
        while (first < last) { /* the first whose byte k is more */
            uint32_t mid = first + (last - first) / 2;
            if ((unsigned char)t->bytes[t->offsets[t->specials[mid]] + k] <= s[k]) {
                first = mid + 1;
            } else {
                last = mid;
            }
        }
        hi = first;
    }
    return found;
}

/* -- decoding ------------------------------------------------------------------------ */

/* The text of a token, that of control tokens included, and a 0 behind it; NULL for ids out of range. */
static const char *dendp_tokenizer_text(const dendp_tokenizer *t, int32_t id, size_t *n) {
    size_t len = 0;
    const char *s = NULL;
    if (id >= 0 && (uint32_t)id < t->n_vocab) s = dendp_tok_at(t, (uint32_t)id, &len);
    if (n) *n = len;
    return s;
}

/* As dendp_tokenizer_text, but silent tokens have no bytes. */
static const char *dendp_tokenizer_bytes(const dendp_tokenizer *t, int32_t id, size_t *n) {
    size_t len;
    const char *s = dendp_tokenizer_text(t, id, &len);
    if (s && (t->flags[id] & DENDP_TOK_SILENT)) {
        s += len; /* the 0 behind it */
        len = 0;
    }
    if (n) *n = len;
    return s;
}

static bool dendp_tokenizer_is_end(const dendp_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_vocab && (t->flags[id] & DENDP_TOK_END) != 0;
}
