/* ==========================================================================
 * >>02.13 TOKENIZER: from text to token ids and back
 * ==========================================================================
 * Text becomes tokens in three steps:
 *
 *     "Hi there<|im_end|>"                           special tokens
 *     "Hi there" <|im_end|>                          words
 *     "Hi" " there" <|im_end|>                       merges (02.12)
 *     26843 665 2                                    ids (of SmolLM2)
 *
 * SPECIAL TOKENS are looked for in the text first: at each position the
 * longest one, from left to right. (llama.cpp looks for the longest of the
 * whole text first. It differs where a longer one begins inside a shorter one
 * and ends behind it, as in no vocabulary that we know.)
 *
 * WORDS  Byte-level BPE: 02.10. Pieces know no words: the rest is one long list
 * of symbols. But a token cannot reach across two neighbouring bytes that stand
 * side by side in no token at all, and the vocabulary knows which do. So we cut
 * there, which changes no result: in most vocabularies before every space
 * behind a letter. What cannot be cut (a megabyte of spaces) is a long word.
 *
 * SPACES  Pieces see each space as U+2581, and so a U+2581 in the text is a
 * space from then on. Most put one more space in front of the text; llama.cpp
 * and the originals' own conversions do so behind each special token too. That
 * space is not part of the text: detokenizing takes it away again.
 *
 * THE WAY BACK  The bytes of the tokens of a text are the text, for every byte
 * string, with these exceptions: the space in front (dend_detokenize knows it,
 * a single token does not), U+2581 in text for pieces, and bytes or characters
 * without a token. SmolLM2 has none for 0x04 and for most bytes that UTF-8
 * never uses; the reference leaves such a byte out, and so do we. Where the
 * reference replaces invalid UTF-8 by U+FFFD, we keep the bytes.
 *
 * Cost: O(n log w) for n bytes in words of w bytes, plus O(s) at each place
 * where a special token of s bytes could begin.
 * ======================================================================== */

/* Length of the word of pieces with which s[n] begins, and whether it holds a
 * U+2581; with `space` a space stands in front of it. May be 0 only with a space. */
static size_t dendp_tok_piece_word(const dendp_tokenizer *t, const unsigned char *s, size_t n, bool space,
                                   bool *stand_in) {
    size_t at = 0;
    uint32_t before = ' ';
    bool first = !space;
    *stand_in = false;
    while (at < n) {
        size_t len = dendp_tok_char(s + at, n - at);
        bool is_space = len == 3 && memcmp(s + at, "\342\226\201", 3) == 0;
        uint32_t b = is_space ? ' ' : s[at];
        if (!first && !(t->joins[before * 8 + (b >> 5)] >> (b & 31u) & 1u)) break;
        first = false;
        *stand_in = *stand_in || is_space;
        before = is_space ? ' ' : s[at + len - 1];
        at += len;
    }
    return at;
}

/* The tokens of s[n], text of pieces without special tokens, n > 0. Returns: OK, MEMORY. */
static dend_status dendp_tok_encode_pieces(dendp_tok_run *run, const unsigned char *s, size_t n, bool space) {
    unsigned char room[DENDP_TOK_MEDIUM];
    dend_status status = DEND_OK;
    size_t at = 0;
    while ((at < n || space) && status == DEND_OK) {
        bool stand_in;
        size_t len = dendp_tok_piece_word(run->t, s + at, n - at, space, &stand_in), i, k = 0;
        if (space || stand_in) {
            unsigned char *copy = room;
            if (len >= sizeof room) {
                copy = (unsigned char *)dendp_tok_scratch(run, 1, (uint64_t)len + 1);
                if (!copy) return DEND_ERR_MEMORY;
            }
            if (space) copy[k++] = ' ';
            for (i = at; i < at + len; k++) {
                bool is_space = at + len - i >= 3 && memcmp(s + i, "\342\226\201", 3) == 0;
                copy[k] = is_space ? ' ' : s[i];
                i += is_space ? 3 : 1;
            }
            status = dendp_tok_encode_word(run, copy, k);
        } else {
            status = dendp_tok_encode_word(run, s + at, len);
        }
        space = false;
        at += len;
    }
    return status;
}

/* Whether a space goes in front of s[n], which begins the text, or stands behind a special token. */
static bool dendp_tok_wants_space(const dendp_tokenizer *t, const unsigned char *s, size_t n, bool begins) {
    bool is_space = s[0] == ' ' || (n >= 3 && memcmp(s, "\342\226\201", 3) == 0);
    switch (t->prefix) {
    case DENDP_PREFIX_EACH:
        return true;
    case DENDP_PREFIX_EACH_WORD:
        return !is_space;
    case DENDP_PREFIX_FIRST_WORD:
        return begins && !is_space;
    case DENDP_PREFIX_NONE:
        break;
    }
    return false;
}

/* A part of a text, [begin, end). */
typedef struct dendp_tok_range {
    size_t begin, end;
} dendp_tok_range;

/* The longest special token with which s[n] begins; of control tokens only one within s[n_control]. */
static uint32_t dendp_tok_special_here(const dendp_tokenizer *t, const unsigned char *s, size_t n,
                                       size_t n_control) {
    uint32_t any, control, which = DENDP_TOK_USER | DENDP_TOK_CONTROL;
    if (n_control == n) return dendp_tok_special(t, s, n, which);
    any = dendp_tok_special(t, s, n, DENDP_TOK_USER);
    control = n_control ? dendp_tok_special(t, s, n_control, DENDP_TOK_CONTROL) : DENDP_TOK_NONE;
    if (any == DENDP_TOK_NONE || control == DENDP_TOK_NONE) return any == DENDP_TOK_NONE ? control : any;
    return t->offsets[any + 1] - t->offsets[any] > t->offsets[control + 1] - t->offsets[control] ? any
                                                                                                 : control;
}

/* Splits text[n_bytes] into tokens: dend_tokenize says how. Control tokens are
 * looked for in ranges[n_ranges] alone, which ascend and do not touch. Ordinary
 * words use the stack, words over 256 bytes the allocator (02.12), which must be
 * thread-safe if calls are to overlap.
 * Returns: OK; BUFFER; MEMORY; UNSUPPORTED without a vocabulary. */
static dend_status dendp_tokenizer_encode_ranges(const dendp_tokenizer *t, const char *text, size_t n_bytes,
                                                 const dendp_tok_range *ranges, size_t n_ranges,
                                                 uint32_t flags, int32_t *out, size_t cap, size_t *n_out) {
    const unsigned char *s = (const unsigned char *)text;
    dendp_tok_cached cache[DENDP_TOK_CACHED]; /* 16 KB */
    dendp_tok_run run;
    size_t at = 0, r = 0, i;
    dend_status status = DEND_OK;
    if (t->n_vocab == 0) return DEND_ERR_UNSUPPORTED;
    memset(&run, 0, sizeof run);
    run.t = t;
    run.out = out;
    run.cap = cap;
    if (n_bytes >= DENDP_TOK_CACHED) { /* short texts are done before it pays */
        for (i = 0; i < DENDP_TOK_CACHED; i++) cache[i].n = 0;
        run.cache = cache;
    }
    if ((flags & DEND_TOKENIZE_ADD_BOS) && t->add_bos) dendp_tok_emit(&run, (uint32_t)t->bos);
    while (at < n_bytes && status == DEND_OK) {
        uint32_t special = DENDP_TOK_NONE;
        size_t end = at;
        while (end < n_bytes && special == DENDP_TOK_NONE) {
            size_t stop = n_bytes, inside = 0; /* up to `stop` nothing changes */
            const uint32_t *starts;
            while (r < n_ranges && ranges[r].end <= end) r++;
            if (r < n_ranges) {
                inside = ranges[r].begin <= end ? 1 : 0;
                stop = inside ? ranges[r].end : ranges[r].begin;
            }
            starts = t->starts[inside];
            for (; end < stop; end++) {
                uint32_t two = (uint32_t)s[end] << 8 | (end + 1 < n_bytes ? s[end + 1] : 0u);
                if (end + 1 < n_bytes && (starts[two >> 5] >> (two & 31u) & 1u) == 0) continue;
                special = dendp_tok_special_here(t, s + end, n_bytes - end, inside ? stop - end : 0);
                if (special != DENDP_TOK_NONE) break;
            }
        }
        if (t->spelling == DENDP_SPELL_PIECES && at < end) {
            bool space = dendp_tok_wants_space(t, s + at, end - at, at == 0);
            status = dendp_tok_encode_pieces(&run, s + at, end - at, space);
            at = end;
        }
        while (at < end && status == DEND_OK) {
            size_t n = dendp_split(t->split, s + at, end - at);
            status = dendp_tok_encode_word(&run, s + at, n);
            at += n;
        }
        if (special != DENDP_TOK_NONE) {
            size_t n;
            (void)dendp_tok_at(t, special, &n);
            dendp_tok_emit(&run, special);
            at += n;
        }
    }
    if ((flags & DEND_TOKENIZE_ADD_EOS) && t->add_eos) dendp_tok_emit(&run, (uint32_t)t->eos);
    dendp_free(&t->allocator, run.scratch[0], run.scratch_bytes[0]);
    dendp_free(&t->allocator, run.scratch[1], run.scratch_bytes[1]);
    if (status != DEND_OK) return status;
    *n_out = run.n;
    return run.n > cap ? DEND_ERR_BUFFER : DEND_OK;
}

/* The same with the flags of dend_tokenize.  Returns: those; ARGUMENT. */
static dend_status dendp_tokenizer_encode(const dendp_tokenizer *t, const char *text, size_t n_bytes,
                                          uint32_t flags, int32_t *out, size_t cap, size_t *n_out) {
    dendp_tok_range all;
    if (!n_out || (!text && n_bytes) || (!out && cap) ||
        (flags & ~(uint32_t)(DEND_TOKENIZE_SPECIAL | DEND_TOKENIZE_ADD_BOS | DEND_TOKENIZE_ADD_EOS))) {
        return DEND_ERR_ARGUMENT;
    }
    all.begin = 0;
    all.end = n_bytes;
    return dendp_tokenizer_encode_ranges(t, text, n_bytes, &all, flags & DEND_TOKENIZE_SPECIAL ? 1 : 0, flags,
                                         out, cap, n_out);
}

/* The text of tokens[n]: dend_detokenize says how.  Returns: OK; BUFFER; TOKEN; UNSUPPORTED; ARGUMENT. */
static dend_status dendp_tokenizer_decode(const dendp_tokenizer *t, const int32_t *tokens, size_t n,
                                          uint32_t flags, char *out, size_t cap, size_t *n_out) {
    size_t i, used = 0;
    bool begins = true, strip = t->prefix != DENDP_PREFIX_NONE;
    if (!n_out || (!tokens && n) || (!out && cap) || (flags & ~(uint32_t)DEND_TOKENIZE_SPECIAL)) {
        return DEND_ERR_ARGUMENT;
    }
    if (t->n_vocab == 0) return DEND_ERR_UNSUPPORTED;
    for (i = 0; i < n; i++) {
        if (!dendp_tokenizer_text(t, tokens[i], NULL)) return DEND_ERR_TOKEN;
    }
    for (i = 0; i < n; i++) {
        size_t len;
        const char *s = flags & DEND_TOKENIZE_SPECIAL ? dendp_tokenizer_text(t, tokens[i], &len)
                                                      : dendp_tokenizer_bytes(t, tokens[i], &len);
        /* where not all bytes have tokens the unknown one stands for text */
        bool text = tokens[i] == t->unk && t->byte_ids[0xff] == DENDP_TOK_NONE;
        bool special = !text && (t->flags[tokens[i]] & (DENDP_TOK_CONTROL | DENDP_TOK_USER)) != 0;
        if (strip && begins && !special && len > 0 && s[0] == ' ') {
            s++;
            len--;
        }
        if (special) {
            begins = t->prefix != DENDP_PREFIX_FIRST_WORD || (used == 0 && len == 0);
        } else {
            begins = false;
        }
        if (used < cap) memcpy(out + used, s, len < cap - used ? len : cap - used);
        used += len;
    }
    *n_out = used;
    return used > cap ? DEND_ERR_BUFFER : DEND_OK;
}
