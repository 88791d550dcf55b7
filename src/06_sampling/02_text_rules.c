/* ==========================================================================
 * >>06.02 TEXT RULES: banned strings, stop strings, breakers
 * ==========================================================================
 * Users think in text, models write tokens, and the borders of the two do not
 * meet: "stop" comes as "st" + "op", or inside "unstoppable". Everything here
 * works on the bytes that tokens stand for.
 *
 * WORDS.  A set of strings is a trie with failure links (Aho and Corasick,
 * "Efficient string matching", CACM 1975). After each byte of a text the
 * automaton is at the longest end of the text that begins some word; from there
 * the failure links lead to all shorter such ends. A state is one number, so it
 * forks by being copied, and it is known again from the last L - 1 bytes of the
 * text, L being the longest word: nothing has to be kept along with a sequence.
 *
 * BANNED.  Looking at every token of the vocabulary at every step would cost
 * milliseconds, so that is done once:
 *
 *     inside    tokens in which a whole banned word lies: a bit each
 *     across    word w = u v, where the text ends with u and v is to follow: the
 *               tokens that begin with v are neighbours in the sorted vocabulary,
 *               and so a range of it is kept for each word and each place to cut it
 *
 * A step walks the failure links of where the text stands. Each node on the way
 * spells an end u of the text, the words that begin with u are neighbours too
 * (words are sorted), and each gives its range. A word that is cut inside a token
 * and goes on behind it is no matter yet: the token that completes it will be
 * banned when its time comes. So no banned word is ever completed, and no token
 * is banned that does not complete one.
 *
 * STOPS.  What may be shown of a text is what precedes the end that begins some
 * stop string. That place never moves back, since the end grows by one byte at
 * most for each byte of text.
 * ======================================================================== */

#ifndef DEND_NO_SAMPLERS

#define DENDP_WORD_MOST 4096u       /* bytes of a word */
#define DENDP_WORDS_MOST (1u << 20) /* bytes of all words of a set */

typedef struct dendp_word_node {
    uint32_t child, next; /* its first child, its next sibling; 0 = none */
    uint32_t fail;        /* the longest proper end of its string that is a node too */
    uint32_t depth;
    uint32_t match;       /* length of the longest word that its string ends with; 0 = none */
    uint32_t first, last; /* words that begin with its string: first ... last - 1 */
    unsigned char byte;
} dendp_word_node;

typedef struct dendp_words {
    uint32_t n_words, n_nodes, longest;
    char *bytes;
    uint32_t *starts; /* [n_words + 1] in bytes; words are sorted */
    dendp_word_node *nodes;
} dendp_words;

/* Tokens [from, to) of the sorted list. */
typedef struct dendp_range {
    uint32_t from, to;
} dendp_range;

struct dend_text_rules {
    dend_allocator allocator;
    uint64_t bytes; /* of this block */
    const dendp_tokenizer *tokenizer;
    dendp_words banned, stops, breakers;
    uint32_t *inside; /* bits [V]: a banned word lies within the token */
    uint32_t *breaks; /* bits [V]: a breaker does */
    uint32_t n_sorted;
    uint32_t *sorted; /* [n_sorted] tokens that may complete a word, by their bytes */
    dendp_range
        *ranges; /* [bytes of banned words] at starts[w] + l: tokens that begin with w from byte l on */
};

/* -- automaton ----------------------------------------------------------------- */

static uint32_t dendp_words_child(const dendp_words *w, uint32_t node, unsigned char byte) {
    uint32_t child = w->nodes[node].child;
    while (child && w->nodes[child].byte != byte) {
        child = w->nodes[child].next;
    }
    return child;
}

/* Where the automaton is after one byte more. */
static uint32_t dendp_words_step(const dendp_words *w, uint32_t node, unsigned char byte) {
    for (;;) {
        uint32_t child = dendp_words_child(w, node, byte);
        if (child || node == 0) {
            return child;
        }
        node = w->nodes[node].fail;
    }
}

/* True when a word ends in n bytes that follow those that have led to *node. */
static bool dendp_words_run(const dendp_words *w, uint32_t *node, const char *bytes, size_t n) {
    bool found = false;
    size_t i;
    for (i = 0; i < n; i++) {
        *node = dendp_words_step(w, *node, (unsigned char)bytes[i]);
        found = found || w->nodes[*node].match > 0;
    }
    return found;
}

static int dendp_words_compare(const void *ctx, uint32_t a, uint32_t b) {
    const char *const *words = (const char *const *)ctx;
    return strcmp(words[a], words[b]);
}

/* Bytes of all words, or 0 when one of them is not allowed. */
static uint32_t dendp_words_check(const char *const *words, uint32_t n) {
    uint64_t total = 0;
    uint32_t i;
    if (n > DENDP_WORDS_MOST || (n && !words)) {
        return 0;
    }
    for (i = 0; i < n; i++) {
        size_t len = words[i] ? strlen(words[i]) : 0;
        total += len;
        if (len == 0 || len > DENDP_WORD_MOST || total > DENDP_WORDS_MOST) {
            return 0;
        }
    }
    return (uint32_t)total;
}

/* Places a set of words of n_bytes in all. */
static void dendp_words_carve(dendp_words *w, uint32_t n_words, uint32_t n_bytes, dendp_carver *carver) {
    w->n_words = n_words;
    w->bytes = (char *)dendp_carve(carver, n_bytes, 1);
    w->starts = (uint32_t *)dendp_carve(carver, (uint64_t)n_words + 1, sizeof *w->starts);
    w->nodes = (dendp_word_node *)dendp_carve(carver, (uint64_t)n_bytes + 1, sizeof *w->nodes);
}

/* Adds word number `at` to the trie; words come in order, so it is the last child wherever it is one. */
static void dendp_words_add(dendp_words *w, uint32_t at) {
    uint32_t i, node = 0;
    w->nodes[0].last = at + 1;
    for (i = w->starts[at]; i < w->starts[at + 1]; i++) {
        uint32_t child = dendp_words_child(w, node, (unsigned char)w->bytes[i]);
        if (!child) {
            dendp_word_node *n = &w->nodes[child = w->n_nodes++];
            memset(n, 0, sizeof *n);
            n->byte = (unsigned char)w->bytes[i];
            n->next = w->nodes[node].child;
            n->depth = w->nodes[node].depth + 1;
            n->first = at;
            w->nodes[node].child = child;
        }
        node = child;
        w->nodes[node].last = at + 1;
    }
    w->nodes[node].match = w->nodes[node].depth;
}

/* Builds a set that has been placed. order holds n_words numbers, queue n_bytes + 1. */
static void dendp_words_build(dendp_words *w, const char *const *words, uint32_t *order, uint32_t *queue) {
    uint32_t i, n = w->n_words, at = 0, head = 0, tail = 0;
    memset(&w->nodes[0], 0, sizeof w->nodes[0]);
    w->n_nodes = 1;
    for (i = 0; i < n; i++) {
        order[i] = i;
    }
    dendp_heap_sort(order, n, dendp_words_compare, words);
    for (i = 0, w->n_words = 0; i < n; i++) {
        uint32_t len = (uint32_t)strlen(words[order[i]]);
        if (i > 0 && strcmp(words[order[i]], words[order[i - 1]]) == 0) {
            continue;
        }
        memcpy(w->bytes + at, words[order[i]], len);
        w->starts[w->n_words] = at;
        w->starts[w->n_words + 1] = at += len;
        w->longest = dendp_max_u32(w->longest, len);
        dendp_words_add(w, w->n_words++);
    }
    /* Breadth first: a node's failure link is known before its children's are asked for. */
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t node = queue[head++], child;
        for (child = w->nodes[node].child; child; child = w->nodes[child].next) {
            dendp_word_node *c = &w->nodes[child];
            const dendp_word_node *fail;
            c->fail = node ? dendp_words_step(w, w->nodes[node].fail, c->byte) : 0;
            fail = &w->nodes[c->fail];
            c->match = dendp_max_u32(c->match, fail->match);
            queue[tail++] = child;
        }
    }
}

/* -- compiling ------------------------------------------------------------------- */

/* Bytes of a token, which may be none; also for ids that there are not. */
static const char *dendp_rules_bytes(const dend_text_rules *r, int32_t token, size_t *n) {
    const char *bytes = dendp_tokenizer_bytes(r->tokenizer, token, n);
    *n = bytes ? *n : 0;
    return bytes;
}

static int dendp_rules_compare(const void *ctx, uint32_t a, uint32_t b) {
    const dend_text_rules *r = (const dend_text_rules *)ctx;
    size_t na, nb;
    const char *x = dendp_rules_bytes(r, (int32_t)a, &na), *y = dendp_rules_bytes(r, (int32_t)b, &nb);
    return dendp_compare_bytes(x, na, y, nb);
}

/* The first place in the sorted list whose token is not below s [n]; with `behind`, also does not begin with it. */
static uint32_t dendp_rules_bound(const dend_text_rules *r, const char *s, size_t n, bool behind) {
    uint32_t low = 0, high = r->n_sorted;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        size_t len;
        const char *bytes = dendp_rules_bytes(r, (int32_t)r->sorted[middle], &len);
        int order = memcmp(bytes, s, len < n ? len : n);
        if (order < 0 || (order == 0 && (len < n || behind))) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Sets the bits of tokens in which a word lies. */
static void dendp_rules_mark(const dend_text_rules *r, const dendp_words *w, uint32_t *bits) {
    uint32_t i, V = r->tokenizer->n_vocab;
    memset(bits, 0, ((size_t)V / 32 + 1) * sizeof *bits);
    for (i = 0; w->n_words && i < V; i++) {
        size_t n;
        const char *bytes = dendp_rules_bytes(r, (int32_t)i, &n);
        uint32_t node = 0;
        if (dendp_words_run(w, &node, bytes, n)) {
            bits[i / 32] |= 1u << (i % 32);
        }
    }
}

/* Lists the tokens that may complete a banned word, and finds the ranges. */
static void dendp_rules_sort(dend_text_rules *r) {
    const dendp_words *w = &r->banned;
    bool begins[256] = {false};
    uint32_t i, l;
    for (i = 0; i < w->n_words; i++) {
        for (l = w->starts[i] + 1; l < w->starts[i + 1]; l++) {
            begins[(unsigned char)w->bytes[l]] = true;
        }
    }
    for (i = 0; w->n_words && i < r->tokenizer->n_vocab; i++) {
        size_t n;
        const char *bytes = dendp_rules_bytes(r, (int32_t)i, &n);
        if (n && begins[(unsigned char)bytes[0]]) {
            r->sorted[r->n_sorted++] = i;
        }
    }
    dendp_heap_sort(r->sorted, r->n_sorted, dendp_rules_compare, r);
    for (i = 0; i < w->n_words; i++) {
        for (l = w->starts[i] + 1; l < w->starts[i + 1]; l++) {
            r->ranges[l].from = dendp_rules_bound(r, w->bytes + l, w->starts[i + 1] - l, false);
            r->ranges[l].to = dendp_rules_bound(r, w->bytes + l, w->starts[i + 1] - l, true);
        }
    }
}

/* Compiles rules for the model of a tokenizer; see dend_text_rules_create. */
static dend_status dendp_rules_create(const dend_text_rules_desc *d, const dendp_tokenizer *t,
                                      dend_text_rules **out, dend_error *err) {
    dend_allocator allocator = d->allocator;
    const char *const *words[3];
    uint32_t counts[3], n_bytes[3], i, pass, most_words = 0, most_bytes = 0, V = t->n_vocab;
    dend_text_rules probe, *r = &probe;
    uint32_t *order = NULL, *queue = NULL;
    dendp_carver carver;
    dend_status status = dendp_allocator_resolve(&allocator, err);
    if (status != DEND_OK) {
        return status;
    }
    words[0] = d->banned, counts[0] = d->n_banned;
    words[1] = d->stops, counts[1] = d->n_stops;
    words[2] = d->breakers, counts[2] = d->n_breakers;
    for (i = 0; i < 3; i++) {
        n_bytes[i] = dendp_words_check(words[i], counts[i]);
        if (counts[i] && !n_bytes[i]) {
            return DENDP_FAIL(err, DEND_ERR_ARGUMENT, "a string is missing, empty or too long", 0);
        }
        most_words = dendp_max_u32(most_words, counts[i]);
        most_bytes = dendp_max_u32(most_bytes, n_bytes[i]);
    }
    for (pass = 0; pass < 2; pass++) { /* measure, then cut */
        dendp_words *sets[3];
        memset(&carver, 0, sizeof carver);
        carver.base = pass ? (unsigned char *)r : NULL;
        dendp_carve(&carver, 1, sizeof *r);
        sets[0] = &r->banned, sets[1] = &r->stops, sets[2] = &r->breakers;
        for (i = 0; i < 3; i++) {
            dendp_words_carve(sets[i], counts[i], n_bytes[i], &carver);
        }
        r->inside = (uint32_t *)dendp_carve(&carver, V / 32 + 1, sizeof *r->inside);
        r->breaks = (uint32_t *)dendp_carve(&carver, V / 32 + 1, sizeof *r->breaks);
        r->sorted = (uint32_t *)dendp_carve(&carver, counts[0] ? V : 0, sizeof *r->sorted);
        r->ranges = (dendp_range *)dendp_carve(&carver, n_bytes[0], sizeof *r->ranges);
        order = (uint32_t *)dendp_carve(&carver, most_words, sizeof *order);
        queue = (uint32_t *)dendp_carve(&carver, (uint64_t)most_bytes + 1, sizeof *queue);
        if (pass == 0) {
            r = carver.overflow ? NULL : (dend_text_rules *)dendp_alloc(&allocator, carver.used);
            if (!r) {
                return DENDP_FAIL(err, DEND_ERR_MEMORY, "no memory for the text rules", 0);
            }
            memset(r, 0, sizeof *r);
            r->bytes = carver.used;
        }
    }
    r->allocator = allocator;
    r->tokenizer = t;
    dendp_words_build(&r->banned, words[0], order, queue);
    dendp_words_build(&r->stops, words[1], order, queue);
    dendp_words_build(&r->breakers, words[2], order, queue);
    dendp_rules_mark(r, &r->banned, r->inside);
    dendp_rules_mark(r, &r->breakers, r->breaks);
    dendp_rules_sort(r);
    *out = r;
    return DEND_OK;
}

DEND_IMPL void dend_text_rules_free(dend_text_rules *rules) {
    if (rules) {
        dend_allocator allocator = rules->allocator;
        dendp_free(&allocator, rules, rules->bytes);
    }
}

/* -- banned strings --------------------------------------------------------------- */

/* Calls ban(ctx, token) for each token that completes a banned string behind a text that ends with the bytes of
 * tokens [n]; for some more than once. The tokens must have longest - 1 bytes, or be all. */
static void dendp_rules_ban(const dend_text_rules *r, const int32_t *tokens, uint32_t n,
                            void (*ban)(void *ctx, uint32_t token), void *ctx) {
    const dendp_words *w = &r->banned;
    uint32_t i, first = n, node = 0, word;
    size_t have = 0, len;
    if (w->n_words == 0) {
        return;
    }
    for (i = 0; i <= r->tokenizer->n_vocab / 32; i++) {
        uint32_t bits = r->inside[i], bit;
        for (bit = 0; bits; bit++, bits >>= 1) {
            if (bits & 1u) {
                ban(ctx, i * 32 + bit);
            }
        }
    }
    while (first > 0 && have + 1 < w->longest) {
        dendp_rules_bytes(r, tokens[--first], &len);
        have += len;
    }
    for (i = first; i < n; i++) {
        const char *bytes = dendp_rules_bytes(r, tokens[i], &len);
        dendp_words_run(w, &node, bytes, len);
    }
    for (; node; node = w->nodes[node].fail) {
        const dendp_word_node *u = &w->nodes[node];
        for (word = u->first; word < u->last; word++) {
            if (w->starts[word + 1] - w->starts[word] > u->depth) {
                const dendp_range *range = &r->ranges[w->starts[word] + u->depth];
                for (i = range->from; i < range->to; i++) {
                    ban(ctx, r->sorted[i]);
                }
            }
        }
    }
}

/* -- breakers ----------------------------------------------------------------------- */

/* True when a breaker lies within the token. */
static bool dendp_rules_breaks(const dend_text_rules *r, uint32_t token) {
    return token < r->tokenizer->n_vocab && (r->breaks[token / 32] >> (token % 32) & 1u);
}

/* How many of tokens [n] follow the last in which a breaker ends that began within them; n when none does. */
static uint32_t dendp_rules_unbroken(const dend_text_rules *r, const int32_t *tokens, uint32_t n) {
    uint32_t i = n, after, node = 0;
    size_t have = 0, len;
    if (r->breakers.n_words == 0) {
        return n;
    }
    while (i > 0 && !(tokens[i - 1] >= 0 && dendp_rules_breaks(r, (uint32_t)tokens[i - 1]))) {
        i--;
    }
    after = i; /* behind a token with a whole breaker, or behind none; others may lie across later tokens */
    while (i > 0 && have + 1 < r->breakers.longest) {
        dendp_rules_bytes(r, tokens[--i], &len);
        have += len;
    }
    for (; i < n; i++) {
        const char *bytes = dendp_rules_bytes(r, tokens[i], &len);
        if (dendp_words_run(&r->breakers, &node, bytes, len)) {
            after = i + 1;
        }
    }
    return n - after;
}

/* -- stop strings ---------------------------------------------------------------------- */

/* Follows one byte through the characters of UTF-8: char_left_ bytes are missing of one that has char_have_. */
static void dendp_stop_char(dend_stop_state *s, unsigned char byte) {
    if ((byte & 0xc0u) == 0x80u) {
        s->char_have_ = s->char_left_ > 1 ? (uint8_t)(s->char_have_ + 1) : 0;
        s->char_left_ = s->char_left_ > 0 ? (uint8_t)(s->char_left_ - 1) : 0;
    } else {
        s->char_left_ = byte >= 0xf0u && byte < 0xf8u ? 3 : byte >= 0xe0u && byte < 0xf0u ? 2 : 0;
        s->char_left_ = byte >= 0xc2u && byte < 0xe0u ? 1 : s->char_left_;
        s->char_have_ = s->char_left_ ? 1 : 0;
    }
}

DEND_IMPL dend_status dend_stop_feed(const dend_text_rules *rules, dend_stop_state *state, const char *bytes,
                                     size_t n, uint32_t flags) {
    const dendp_words *w;
    const dendp_word_node *node;
    dend_stop_state s;
    size_t i;
    if (!rules || !state || (!bytes && n) || flags > DEND_STOP_UTF8 || state->node_ >= rules->stops.n_nodes) {
        return DEND_ERR_ARGUMENT;
    }
    w = &rules->stops;
    s = *state;
    for (i = 0; i < n && !s.stopped; i++) {
        uint64_t release;
        unsigned char byte = (unsigned char)bytes[i];
        s.node_ = dendp_words_step(w, s.node_, byte);
        s.n_bytes++;
        dendp_stop_char(&s, byte);
        node = &w->nodes[s.node_];
        if (node->match) {
            s.stopped = true;
            s.n_release = s.n_bytes - node->match;
            break;
        }
        release = s.n_bytes - node->depth;
        if (flags & DEND_STOP_UTF8) {
            if (node->depth == 0) {
                release -= s.char_have_;
            } else if (((unsigned char)w->bytes[w->starts[node->first]] & 0xc0u) == 0x80u) {
                release = s.n_release; /* a string that begins within a character */
            }
        }
        s.n_release = release > s.n_release ? release : s.n_release;
    }
    *state = s;
    return s.stopped ? DEND_END : DEND_OK;
}

#endif /* DEND_NO_SAMPLERS */
