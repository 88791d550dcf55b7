/* ==========================================================================
 * >>02.16 CHAT: conversations in the form that a model was trained on
 * ==========================================================================
 * A chat model saw its conversations in one certain form, and answers badly in
 * any other. Files carry that form as a program in a template language (Jinja).
 * A program of a stranger's is not something to run; and nearly all of them
 * say one of a few things. So we know these forms, and only look at the
 * template for the pieces that are characteristic of each:
 *
 *     chatml     <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
 *     qwen       the same; results of tools in <tool_response>
 *     qwen3      the same; thoughts of earlier replies are left out
 *     llama2     <s>[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHi [/INST] Hello </s>
 *     llama3     <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>
 *     llama3.1   the same, behind a system message with two dates
 *     gemma      <start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n
 *     mistral, mistral-v1, mistral-v3, mistral-tekken
 *                <s>[INST] Hi [/INST] and where exactly the spaces are
 *     zephyr     <|user|>\nHi</s>\n<|assistant|>\n        (TinyLlama as well)
 *
 * A template that is none of them is not guessed at: the caller names a form.
 * A system message that the template adds where there is none (SmolLM2 and
 * Qwen 2.5 do) is taken from its text, which has it between fixed marks.
 *
 * A form is a row of strings, \1 for bos and \2 for eos, and flags for what
 * strings cannot say. Roles that a template refuses, or silently drops, are
 * refused here.
 *
 * SAFETY  The text comes with marks: which of it is the template's, and which
 * the speakers'. Tokens are made of the whole, as the models saw it, but control
 * tokens are looked for in the template's part alone. A message that says
 * <|im_end|> has five tokens more, and ends nothing. (Forms that mark turns by
 * plain words, as [INST] is for Llama 2, cannot be told from a message that
 * says them: that lies in the form.)
 *
 * Cost: O(bytes). Nothing here allocates.
 * ======================================================================== */

/* What strings cannot say. */
enum {
    DENDP_CHAT_TRIM = 1,           /* white space around messages is cut off */
    DENDP_CHAT_ALTERNATE = 2,      /* user and assistant must alternate */
    DENDP_CHAT_SYSTEM_FIRST = 4,   /* the system message goes into the first user message */
    DENDP_CHAT_SYSTEM_LAST = 8,    /* into the last one */
    DENDP_CHAT_NO_SYSTEM = 16,     /* there is none */
    DENDP_CHAT_SYSTEM_ALWAYS = 32, /* an empty one where there is none */
    DENDP_CHAT_TOOL_RESPONSE = 64, /* results of tools as those of Qwen */
    DENDP_CHAT_TOOL_JSON = 128,    /* as JSON strings */
    DENDP_CHAT_NO_TOOL = 256,
    DENDP_CHAT_THINK = 512,       /* replies hold thoughts: <think>...</think> */
    DENDP_CHAT_BOS = 1024,        /* the conversation begins with bos */
    DENDP_CHAT_TRIM_REPLY = 2048, /* white space around replies is cut off */
    DENDP_CHAT_EOS_SPACE = 4096   /* a space behind the eos of replies */
};

typedef struct dendp_chat_style {
    const char *name;
    uint32_t flags;
    const char *open[4];    /* before a message, by role: system, user, assistant, tool */
    const char *close[4];   /* behind it */
    const char *system_end; /* between system and user text in one message */
    const char *generate;   /* where a reply begins */
} dendp_chat_style;

#define DENDP_IM(role) "<|im_start|>" role "\n"
#define DENDP_IM_ROWS                                                                                        \
    {DENDP_IM("system"), DENDP_IM("user"), DENDP_IM("assistant"), DENDP_IM("tool")},                         \
        {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"}, "", DENDP_IM("assistant")
#define DENDP_HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define DENDP_EOTS                                                                                           \
    { "<|eot_id|>", "<|eot_id|>", "<|eot_id|>", "<|eot_id|>" }
#define DENDP_INST (DENDP_CHAT_ALTERNATE | DENDP_CHAT_NO_TOOL | DENDP_CHAT_BOS)

static const dendp_chat_style dendp_chat_styles[] = {
    {"chatml", 0, DENDP_IM_ROWS},
    {"qwen", DENDP_CHAT_TOOL_RESPONSE, DENDP_IM_ROWS},
    {"qwen3", DENDP_CHAT_TOOL_RESPONSE | DENDP_CHAT_THINK, DENDP_IM_ROWS},
    {"llama2",
     DENDP_CHAT_ALTERNATE | DENDP_CHAT_NO_TOOL | DENDP_CHAT_TRIM | DENDP_CHAT_SYSTEM_FIRST,
     {"<<SYS>>\n", "\1[INST] ", " ", ""},
     {"", " [/INST]", " \2", ""},
     "\n<</SYS>>\n\n",
     ""},
    {"llama3",
     DENDP_CHAT_TRIM | DENDP_CHAT_BOS,
     {DENDP_HEADER("system"), DENDP_HEADER("user"), DENDP_HEADER("assistant"), DENDP_HEADER("tool")},
     DENDP_EOTS,
     "",
     DENDP_HEADER("assistant")},
    {"llama3.1",
     DENDP_CHAT_TRIM | DENDP_CHAT_BOS | DENDP_CHAT_SYSTEM_ALWAYS | DENDP_CHAT_TOOL_JSON,
     {DENDP_HEADER("system"), DENDP_HEADER("user"), DENDP_HEADER("assistant"), DENDP_HEADER("ipython")},
     DENDP_EOTS,
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", /* begins the first system message */
     DENDP_HEADER("assistant")},
    {"gemma",
     DENDP_CHAT_ALTERNATE | DENDP_CHAT_NO_TOOL | DENDP_CHAT_TRIM | DENDP_CHAT_SYSTEM_FIRST | DENDP_CHAT_BOS,
     {"", "<start_of_turn>user\n", "<start_of_turn>model\n", ""},
     {"", "<end_of_turn>\n", "<end_of_turn>\n", ""},
     "\n\n",
     "<start_of_turn>model\n"},
    {"mistral", /* of 7B Instruct v0.1 and v0.2 */
     DENDP_INST | DENDP_CHAT_NO_SYSTEM,
     {"", "[INST] ", "", ""},
     {"", " [/INST]", "\2", ""},
     "",
     ""},
    {"mistral-v1",
     DENDP_INST | DENDP_CHAT_SYSTEM_FIRST,
     {"", " [INST] ", " ", ""},
     {"", " [/INST]", "\2", ""},
     "\n\n",
     ""},
    {"mistral-v3",
     DENDP_INST | DENDP_CHAT_SYSTEM_LAST | DENDP_CHAT_TRIM_REPLY,
     {"", "[INST] ", " ", ""},
     {"", "[/INST]", "\2", ""},
     "\n\n",
     ""},
    {"mistral-tekken",
     DENDP_INST | DENDP_CHAT_SYSTEM_LAST,
     {"", "[INST]", "", ""},
     {"", "[/INST]", "\2", ""},
     "\n\n",
     ""},
    {"zephyr",
     DENDP_CHAT_NO_TOOL,
     {"<|system|>\n", "<|user|>\n", "<|assistant|>\n", ""},
     {"\2\n", "\2\n", "\2\n", ""},
     "",
     "<|assistant|>\n"},
};

/* The form of a model; style NULL: none was recognised. */
typedef struct dendp_chat {
    const dendp_chat_style *style;
    uint32_t flags;   /* the style's, and what the template says */
    char system[512]; /* the system message where a conversation has none; "" = no message */
} dendp_chat;

static const dendp_chat_style *dendp_chat_find(const char *name) {
    size_t i;
    for (i = 0; i < sizeof dendp_chat_styles / sizeof dendp_chat_styles[0]; i++) {
        if (strcmp(name, dendp_chat_styles[i].name) == 0) return &dendp_chat_styles[i];
    }
    return NULL;
}

/* -- recognising ------------------------------------------------------------------ */

/* Where `piece` is in s[n] from `at` on; n when it is not there. */
static size_t dendp_chat_search(const char *s, size_t n, size_t at, const char *piece) {
    size_t len = strlen(piece);
    for (; n - at >= len; at++) {
        const char *p = (const char *)memchr(s + at, piece[0], n - at - len + 1);
        if (!p) break;
        at = (size_t)(p - s);
        if (memcmp(p, piece, len) == 0) return at;
    }
    return n;
}

static bool dendp_chat_has(const char *s, size_t n, const char *piece) {
    return dendp_chat_search(s, n, 0, piece) < n;
}

/* The text of a system message that stands whole in the template, from one mark
 * to the other without a quote between them. Escapes of the template language
 * are left, so that a text with one is not taken. */
static void dendp_chat_default_system(dendp_chat *c, const char *s, size_t n) {
    static const char *const marks[] = {"<|im_start|>system\\n", "<|im_start|>system\n"};
    uint32_t i;
    for (i = 0; i < 2; i++) {
        size_t at = 0, len = strlen(marks[i]);
        while ((at = dendp_chat_search(s, n, at, marks[i])) < n) {
            size_t begin = at + len, end = begin;
            while (end < n && s[end] != '\'' && s[end] != '"' && s[end] != '<' && s[end] != '\\' &&
                   s[end] != '{')
                end++;
            if (end > begin && end - begin < sizeof c->system && n - end >= 10 &&
                memcmp(s + end, "<|im_end|>", 10) == 0) {
                memcpy(c->system, s + begin, end - begin);
                c->system[end - begin] = 0;
                return;
            }
            at = begin;
        }
    }
}

/* Looks for a form that we know in the text of a template; c->style is NULL where there is none. */
static void dendp_chat_recognise(dendp_chat *c, const char *s, size_t n) {
    const char *name = NULL;
    uint32_t off = 0, on = 0;
    memset(c, 0, sizeof *c);
    if (dendp_chat_has(s, n, "<|im_start|>")) {
        bool whole = dendp_chat_has(s, n, "<|im_end|>") && !dendp_chat_has(s, n, "<|im_sep|>") &&
                     !dendp_chat_has(s, n, "<end_of_utterance>");
        bool tool = dendp_chat_has(s, n, "<tool_response>"), think = dendp_chat_has(s, n, "</think>");
        bool ours = dendp_chat_has(s, n, "'<|im_start|>' + message") ||
                    dendp_chat_has(s, n, "'<|im_start|>'+message") ||
                    dendp_chat_has(s, n, "\"<|im_start|>\" + message");
        bool qwen3 = tool && dendp_chat_has(s, n, "ns.last_query_index") &&
                     dendp_chat_has(s, n, "'</think>' in message.content");
        name = !whole || !ours   ? NULL
               : !tool && !think ? "chatml"
               : tool && !think  ? "qwen"
               : qwen3           ? "qwen3"
                                 : NULL;
    } else if (dendp_chat_has(s, n, "<|start_header_id|>")) {
        if (dendp_chat_has(s, n, "<|start_header_id|>' + message['role'] + '<|end_header_id|>") &&
            dendp_chat_has(s, n, "message['content'] | trim + '<|eot_id|>'")) {
            name = dendp_chat_has(s, n, "Cutting Knowledge Date: December 2023") ? "llama3.1" : "llama3";
        }
    } else if (dendp_chat_has(s, n, "<start_of_turn>")) {
        if (dendp_chat_has(s, n, "<end_of_turn>") && dendp_chat_has(s, n, "| trim")) {
            name = "gemma";
            if (!dendp_chat_has(s, n, "first_user_prefix")) {
                off = DENDP_CHAT_SYSTEM_FIRST;
                on = DENDP_CHAT_NO_SYSTEM;
            }
            if (!dendp_chat_has(s, n, "bos_token")) off |= DENDP_CHAT_BOS;
        }
    } else if (dendp_chat_has(s, n, "[INST]") && !dendp_chat_has(s, n, "[SYSTEM_PROMPT]")) {
        bool first = dendp_chat_has(s, n, "loop.first and system_message"),
             last = dendp_chat_has(s, n, "loop.last and system_message");
        if (dendp_chat_has(s, n, "<<SYS>>")) {
            if (dendp_chat_has(s, n, "bos_token + '[INST] ' + content.strip() + ' [/INST]'") &&
                dendp_chat_has(s, n, "' '  + content.strip() + ' ' + eos_token")) {
                name = "llama2";
            }
        } else if (dendp_chat_has(s, n, "[AVAILABLE_TOOLS]") && (first || last)) {
            name = dendp_chat_has(s, n, "\"[INST] \" + message")  ? "mistral-v3"
                   : dendp_chat_has(s, n, "\"[INST]\" + message") ? "mistral-tekken"
                                                                  : NULL;
            off = DENDP_CHAT_SYSTEM_LAST | DENDP_CHAT_TRIM_REPLY;
            on = (last ? DENDP_CHAT_SYSTEM_LAST : DENDP_CHAT_SYSTEM_FIRST) |
                 (dendp_chat_has(s, n, "message[\"content\"]|trim + eos_token") ? DENDP_CHAT_TRIM_REPLY : 0);
        } else if (dendp_chat_has(s, n, "' [INST] ' + system_message") && first) {
            name = "mistral-v1";
        } else if (dendp_chat_has(s, n, "'[INST] ' + message['content'] + ' [/INST]'") &&
                   dendp_chat_has(s, n, "message['content'] + eos_token") &&
                   !dendp_chat_has(s, n, "system_message")) {
            name = "mistral";
            on = dendp_chat_has(s, n, "eos_token + ' '") ? DENDP_CHAT_EOS_SPACE : 0;
        }
    } else if (dendp_chat_has(s, n, "'<|user|>") && dendp_chat_has(s, n, "'<|assistant|>") &&
               dendp_chat_has(s, n, "'<|system|>") &&
               dendp_chat_has(s, n, "message['content'] + eos_token") && !dendp_chat_has(s, n, "<|end|>")) {
        name = "zephyr";
    }
    c->style = name ? dendp_chat_find(name) : NULL;
    if (!c->style) return;
    c->flags = (c->style->flags & ~off) | on;
    dendp_chat_default_system(c, s, n);
}

/* -- writing ------------------------------------------------------------------------ */

/* The text, and which of it is the template's. */
typedef struct dendp_chat_writer {
    const dendp_tokenizer *t;
    char *out;
    size_t cap, n; /* n counts on when out is full */
    dendp_tok_range *ranges;
    size_t cap_ranges, n_ranges;
    size_t last_end; /* of the last range */
    bool overflow;
} dendp_chat_writer;

static void dendp_chat_put(dendp_chat_writer *w, const char *s, size_t n) {
    if (n > SIZE_MAX / 2 - w->n) {
        w->overflow = true;
        return;
    }
    if (w->n < w->cap && n > 0) memcpy(w->out + w->n, s, n < w->cap - w->n ? n : w->cap - w->n);
    w->n += n;
}

/* A piece of the template. */
static void dendp_chat_template(dendp_chat_writer *w, const char *s) {
    size_t begin = w->n;
    for (; *s; s++) {
        if (*s == '\1' || *s == '\2') {
            size_t n;
            const char *text = dendp_tokenizer_text(w->t, *s == '\1' ? w->t->bos : w->t->eos, &n);
            if (text) dendp_chat_put(w, text, n);
        } else {
            dendp_chat_put(w, s, 1);
        }
    }
    if (w->n == begin) return;
    if (w->n_ranges > 0 && w->last_end == begin) {
        w->n_ranges--;
    } else if (w->n_ranges < w->cap_ranges) {
        w->ranges[w->n_ranges].begin = begin;
    }
    if (w->n_ranges < w->cap_ranges) w->ranges[w->n_ranges].end = w->n;
    w->n_ranges++;
    w->last_end = w->n;
}

/* White space as the template language trims it. */
static bool dendp_chat_is_space(const unsigned char *s, size_t n, size_t *len) {
    return dendp_uni_next(s, n, len) == DENDP_UNI_SPACE || (s[0] >= 0x1c && s[0] <= 0x1f);
}

/* Cuts white space off both ends of *s[*n]. */
static void dendp_chat_trim(const char **s, size_t *n) {
    const unsigned char *u = (const unsigned char *)*s;
    size_t begin = 0, end = *n, len;
    while (begin < end && dendp_chat_is_space(u + begin, end - begin, &len)) begin += len;
    while (end > begin) {
        size_t at = end - 1;
        while (at > begin && end - at < 4 && (u[at] & 0xc0) == 0x80) at--;
        if (!dendp_chat_is_space(u + at, end - at, &len) || at + len != end) break;
        end = at;
    }
    *s += begin;
    *n = end - begin;
}

static void dendp_chat_trim_lines(const char **s, size_t *n, bool left, bool right) {
    while (left && *n > 0 && (*s)[0] == '\n') ++*s, --*n;
    while (right && *n > 0 && (*s)[*n - 1] == '\n') --*n;
}

/* A text as a JSON string. */
static void dendp_chat_json(dendp_chat_writer *w, const char *s, size_t n) {
    static const char hex[] = "0123456789abcdef", escaped[] = "\"\\\b\f\n\r\t";
    size_t i;
    dendp_chat_put(w, "\"", 1);
    for (i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char e[6] = {'\\', 'u', '0', '0', 0, 0};
        const char *at = c ? strchr(escaped, c) : NULL;
        e[4] = hex[c >> 4];
        e[5] = hex[c & 15];
        if (at) {
            e[1] = "\"\\bfnrt"[at - escaped];
            dendp_chat_put(w, e, 2);
        } else if (c < 0x20) {
            dendp_chat_put(w, e, 6);
        } else {
            dendp_chat_put(w, s + i, 1);
        }
    }
    dendp_chat_put(w, "\"", 1);
}

/* A reply of qwen3: thoughts are kept from the last question on, and else left out. */
static void dendp_chat_think(dendp_chat_writer *w, const char *s, size_t n, bool recent, bool last) {
    size_t first = dendp_chat_search(s, n, 0, "</think>"), at;
    const char *said = s, *thought = s;
    size_t n_said = n, n_thought = 0;
    if (first < n) {
        n_thought = first;
        dendp_chat_trim_lines(&thought, &n_thought, false, true);
        for (at = 0; (at = dendp_chat_search(thought, n_thought, 0, "<think>")) < n_thought;) {
            thought += at + 7;
            n_thought -= at + 7;
        }
        dendp_chat_trim_lines(&thought, &n_thought, true, true);
        while ((at = dendp_chat_search(said, n_said, 0, "</think>")) < n_said) {
            said += at + 8;
            n_said -= at + 8;
        }
        dendp_chat_trim_lines(&said, &n_said, true, false);
    }
    if (recent && (last || n_thought > 0)) {
        dendp_chat_template(w, "<think>\n");
        dendp_chat_put(w, thought, n_thought);
        dendp_chat_template(w, "\n</think>\n\n");
        dendp_chat_trim_lines(&said, &n_said, true, false);
    }
    dendp_chat_put(w, said, n_said);
}

/* The text of message m. */
static const char *dendp_chat_text(const dend_chat_message *m, size_t *n) {
    *n = m->n_bytes == SIZE_MAX ? strlen(m->text) : m->n_bytes;
    return m->text ? m->text : "";
}

/* Whether the messages can be said in this form; flags as given by the caller. */
static dend_status dendp_chat_check(const dendp_chat *c, const dend_chat_message *m, size_t n,
                                    uint32_t flags) {
    bool follows = (flags & (DEND_CHAT_FOLLOWS | DEND_CHAT_AFTER_REPLY)) != 0;
    bool know = !follows || (flags & DEND_CHAT_AFTER_REPLY), user = true;
    size_t i;
    if ((flags & ~(uint32_t)(DEND_CHAT_GENERATE | DEND_CHAT_FOLLOWS | DEND_CHAT_AFTER_REPLY)) || (!m && n)) {
        return DEND_ERR_ARGUMENT;
    }
    for (i = 0; i < n; i++) {
        uint32_t role = (uint32_t)m[i].role;
        if (role > DEND_ROLE_TOOL || (!m[i].text && m[i].n_bytes)) return DEND_ERR_ARGUMENT;
        if (role == DEND_ROLE_TOOL && (c->flags & DENDP_CHAT_NO_TOOL)) return DEND_ERR_UNSUPPORTED;
        if (role == DEND_ROLE_SYSTEM) {
            if (c->flags & DENDP_CHAT_NO_SYSTEM) return DEND_ERR_UNSUPPORTED;
            if (!(c->flags & (DENDP_CHAT_SYSTEM_FIRST | DENDP_CHAT_SYSTEM_LAST))) continue;
            if (i > 0 || follows)
                return DEND_ERR_UNSUPPORTED; /* the form has a place for one at the beginning only */
            if (n < 2 || m[c->flags & DENDP_CHAT_SYSTEM_LAST ? n - 1 : 1].role != DEND_ROLE_USER) {
                return DEND_ERR_ARGUMENT;
            }
            continue;
        }
        if (!(c->flags & DENDP_CHAT_ALTERNATE)) continue;
        if (know && (role == DEND_ROLE_USER) != user) return DEND_ERR_ARGUMENT;
        user = role != DEND_ROLE_USER;
        know = true;
    }
    return DEND_OK;
}

/* Writes messages m[n], which were checked. */
static void dendp_chat_write(dendp_chat_writer *w, const dendp_chat *c, const dend_chat_message *m, size_t n,
                             uint32_t flags) {
    const dendp_chat_style *style = c->style;
    bool begins = !(flags & (DEND_CHAT_FOLLOWS | DEND_CHAT_AFTER_REPLY));
    bool merged = (c->flags & (DENDP_CHAT_SYSTEM_FIRST | DENDP_CHAT_SYSTEM_LAST)) != 0;
    const dend_chat_message *system = NULL;
    size_t i, question = 0;
    if (begins && (c->flags & DENDP_CHAT_BOS)) dendp_chat_template(w, "\1");
    if (flags & DEND_CHAT_AFTER_REPLY) {
        dendp_chat_template(w, style->close[DEND_ROLE_ASSISTANT]);
        if (c->flags & DENDP_CHAT_EOS_SPACE) dendp_chat_template(w, " ");
    }
    for (i = 0; (c->flags & DENDP_CHAT_THINK) && i < n;
         i++) { /* the last message that a person wrote: some put results of tools into user messages */
        size_t len;
        const char *text = dendp_chat_text(&m[i], &len);
        bool result = len >= 31 && memcmp(text, "<tool_response>", 15) == 0 &&
                      memcmp(text + len - 16, "</tool_response>", 16) == 0;
        if (m[i].role == DEND_ROLE_USER && !result) question = i + 1;
    }
    if (question == 0) question = n;
    if (begins && n > 0 && m[0].role == DEND_ROLE_SYSTEM && merged) system = &m[0];
    if (begins && (n == 0 || m[0].role != DEND_ROLE_SYSTEM)) {
        if (c->flags & DENDP_CHAT_SYSTEM_ALWAYS) {
            dendp_chat_template(w, style->open[DEND_ROLE_SYSTEM]);
            dendp_chat_template(w, style->system_end);
            dendp_chat_template(w, style->close[DEND_ROLE_SYSTEM]);
        } else if (c->system[0] && n > 0) {
            dendp_chat_template(w, style->open[DEND_ROLE_SYSTEM]);
            dendp_chat_put(w, c->system, strlen(c->system));
            dendp_chat_template(w, style->close[DEND_ROLE_SYSTEM]);
        }
    }
    for (i = system ? 1 : 0; i < n; i++) {
        uint32_t role = (uint32_t)m[i].role;
        size_t n_text, n_system, n_all;
        const char *text = dendp_chat_text(&m[i], &n_text), *all;
        if (role == DEND_ROLE_TOOL && (c->flags & DENDP_CHAT_TOOL_RESPONSE)) {
            if (i == 0 || m[i - 1].role != DEND_ROLE_TOOL) dendp_chat_template(w, "<|im_start|>user");
            dendp_chat_template(w, "\n<tool_response>\n");
            dendp_chat_put(w, text, n_text);
            dendp_chat_template(w, "\n</tool_response>");
            if (i + 1 == n || m[i + 1].role != DEND_ROLE_TOOL) dendp_chat_template(w, style->close[role]);
            continue;
        }
        dendp_chat_template(w, style->open[role]);
        if (role == DEND_ROLE_SYSTEM && i == 0 && begins && (c->flags & DENDP_CHAT_SYSTEM_ALWAYS)) {
            dendp_chat_template(w, style->system_end);
        }
        if ((c->flags & DENDP_CHAT_TRIM) && role != DEND_ROLE_TOOL) dendp_chat_trim(&text, &n_text);
        if ((c->flags & DENDP_CHAT_TRIM_REPLY) && role == DEND_ROLE_ASSISTANT)
            dendp_chat_trim(&text, &n_text);
        if (system && role == DEND_ROLE_USER && i == (c->flags & DENDP_CHAT_SYSTEM_LAST ? n - 1 : 1)) {
            const char *says = dendp_chat_text(system, &n_system);
            bool llama2 = style->open[DEND_ROLE_SYSTEM][0] != 0;
            dendp_chat_template(w, style->open[DEND_ROLE_SYSTEM]);
            dendp_chat_put(w, says, n_system);
            if (llama2) { /* both together are trimmed: from the left only system text, from the right the user's */
                text = dendp_chat_text(&m[i], &n_text);
                all = text;
                n_all = n_text;
                dendp_chat_trim(&all, &n_all);
                n_text = n_all ? (size_t)(all - text) + n_all : 0;
                dendp_chat_template(w, n_text ? style->system_end : "\n<</SYS>>");
            } else {
                dendp_chat_template(w, style->system_end);
            }
        }
        if (role == DEND_ROLE_ASSISTANT && (c->flags & DENDP_CHAT_THINK)) {
            dendp_chat_think(w, text, n_text, i + 1 > question, i + 1 == n);
        } else if (role == DEND_ROLE_TOOL && (c->flags & DENDP_CHAT_TOOL_JSON)) {
            dendp_chat_json(w, text, n_text);
        } else {
            dendp_chat_put(w, text, n_text);
        }
        dendp_chat_template(w, style->close[role]);
        if (role == DEND_ROLE_ASSISTANT && (c->flags & DENDP_CHAT_EOS_SPACE)) dendp_chat_template(w, " ");
    }
    if (flags & DEND_CHAT_GENERATE) dendp_chat_template(w, style->generate);
}

/* The form that a caller asks for: by name, or for NULL or "" the model's own. false: there is none. */
static bool dendp_chat_choose(const dendp_chat *own, const char *family, dendp_chat *out) {
    if (!family || !*family || (own->style && strcmp(own->style->name, family) == 0)) {
        *out = *own;
    } else {
        memset(out, 0, sizeof *out);
        out->style = dendp_chat_find(family);
        out->flags = out->style ? out->style->flags : 0;
    }
    return out->style != NULL;
}

/* Formats: dend_chat_format says how; with ranges the template's part of the text too. */
static dend_status dendp_chat_format(const dendp_chat *own, const dendp_tokenizer *t, const char *family,
                                     const dend_chat_message *m, size_t n, uint32_t flags,
                                     dendp_chat_writer *w) {
    dendp_chat c;
    dend_status status;
    uint32_t i;
    if (!dendp_chat_choose(own, family, &c))
        return family && *family ? DEND_ERR_ARGUMENT : DEND_ERR_UNSUPPORTED;
    status = dendp_chat_check(&c, m, n, flags);
    if (status != DEND_OK) return status;
    for (i = 0; i < 4 && t->eos < 0; i++) { /* a turn that cannot be ended */
        if (strchr(c.style->close[i], '\2')) return DEND_ERR_UNSUPPORTED;
    }
    w->t = t;
    w->n = w->n_ranges = w->last_end = 0;
    w->overflow = false;
    dendp_chat_write(w, &c, m, n, flags);
    return w->overflow ? DEND_ERR_MEMORY : DEND_OK;
}
