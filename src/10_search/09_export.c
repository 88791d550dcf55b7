/* ==========================================================================
 * >>10.09 EXPORT: the tree as JSON, and as a drawing
 * ==========================================================================
 * JSON says everything that dend_search_node does, in the order of creation, so
 * that a viewer can replay the growth; docs/search.md has the schema. DOT is for
 * Graphviz: `dot -Tsvg`. Text is written as it comes, without memory: bytes that
 * are no UTF-8 are written as U+FFFD in both.
 *
 * Blocks: a node's `blocks` are those that its sequence names, `shared` those of
 * them that its parent's text covers whole, so that they are stored once.
 * ======================================================================== */
#ifndef DEND_NO_SEARCH

typedef struct dendp_exporter {
    const dend_writer *to;
    char buffer[512];
    size_t n;
    bool failed;
    bool plain; /* control characters as points: DOT knows no code for them */
} dendp_exporter;

static void dendp_export_flush(dendp_exporter *e) {
    if (e->n > 0 && !e->failed && !e->to->write(e->to->user, e->buffer, e->n)) {
        e->failed = true;
    }
    e->n = 0;
}

static void dendp_export_byte(dendp_exporter *e, char c) {
    if (e->n == sizeof e->buffer) {
        dendp_export_flush(e);
    }
    e->buffer[e->n++] = c;
}

static void dendp_export_text(dendp_exporter *e, const char *text) {
    while (*text) {
        dendp_export_byte(e, *text++);
    }
}

static void dendp_export_u64(dendp_exporter *e, uint64_t v) {
    char digits[20];
    size_t n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    while (n > 0) {
        dendp_export_byte(e, digits[--n]);
    }
}

/* Six digits behind the point, without the locale's ideas of one; null for what JSON has no number for. */
static void dendp_export_number(dendp_exporter *e, double v) {
    uint64_t whole, part, unit;
    if (!(v > -1e12 && v < 1e12)) {
        dendp_export_text(e, "null");
        return;
    }
    if (v < 0.0) {
        dendp_export_byte(e, '-');
        v = -v;
    }
    whole = (uint64_t)v;
    part = (uint64_t)((v - (double)whole) * 1e6 + 0.5);
    if (part >= 1000000u) {
        whole++;
        part = 0;
    }
    dendp_export_u64(e, whole);
    dendp_export_byte(e, '.');
    for (unit = 100000; unit > 0; unit /= 10) {
        dendp_export_byte(e, (char)('0' + part / unit % 10));
    }
}

/* A key of an object and its number. */
static void dendp_export_field(dendp_exporter *e, const char *name, uint64_t v) {
    dendp_export_text(e, ",\"");
    dendp_export_text(e, name);
    dendp_export_text(e, "\":");
    dendp_export_u64(e, v);
}

static void dendp_export_field_number(dendp_exporter *e, const char *name, double v) {
    dendp_export_text(e, ",\"");
    dendp_export_text(e, name);
    dendp_export_text(e, "\":");
    dendp_export_number(e, v);
}

static void dendp_export_field_node(dendp_exporter *e, const char *name, uint32_t node) {
    if (node == DEND_NODE_NONE) {
        dendp_export_text(e, ",\"");
        dendp_export_text(e, name);
        dendp_export_text(e, "\":null");
    } else {
        dendp_export_field(e, name, node);
    }
}

/* One character of a string; JSON and DOT share what must be escaped. */
static void dendp_export_escaped(dendp_exporter *e, const unsigned char *s, size_t n) {
    static const char hex[] = "0123456789abcdef";
    size_t i;
    if (n == 1 && (s[0] == '"' || s[0] == '\\')) {
        dendp_export_byte(e, '\\');
        dendp_export_byte(e, (char)s[0]);
    } else if (n == 1 && s[0] == '\n') {
        dendp_export_text(e, "\\n");
    } else if (n == 1 && (s[0] < 32 || s[0] == 127) && e->plain) {
        dendp_export_byte(e, '.');
    } else if (n == 1 && (s[0] < 32 || s[0] == 127)) {
        dendp_export_text(e, "\\u00");
        dendp_export_byte(e, hex[s[0] >> 4]);
        dendp_export_byte(e, hex[s[0] & 15u]);
    } else {
        for (i = 0; i < n; i++) {
            dendp_export_byte(e, (char)s[i]);
        }
    }
}

/* The text of a node's step, as the inside of a string. A character may reach across tokens, hence the window. */
static void dendp_export_step(dendp_exporter *e, const dend_search *s, uint32_t node) {
    unsigned char window[4];
    size_t have = 0, n_bytes, at = 0, len, k;
    const char *bytes = "";
    uint32_t i = 0, n = s->nodes[node].n_tokens;
    n_bytes = 0;
    for (;;) {
        while (have < 4 && (at < n_bytes || i < n)) {
            if (at == n_bytes) {
                bytes = dend_token_bytes(s->engine->model, dendp_snode_token(s, node, i++), &n_bytes);
                at = 0;
                continue;
            }
            window[have++] = (unsigned char)bytes[at++];
        }
        if (have == 0) {
            return;
        }
        (void)dendp_uni_next(window, have, &len);
        if ((len == 1 && window[0] >= 0x80) || (len == 3 && window[0] == 0xed && window[1] >= 0xa0)) {
            dendp_export_text(e, "\xef\xbf\xbd");
        } else {
            dendp_export_escaped(e, window, len);
        }
        for (k = len; k < have; k++) {
            window[k - len] = window[k];
        }
        have -= len;
    }
}

static const char *dendp_export_state(uint8_t state) {
    static const char *const names[] = {"open", "growing", "solved", "ended", "dead", "closed", "merged"};
    return state < sizeof names / sizeof names[0] ? names[state] : "free";
}

static void dendp_export_json(dendp_exporter *e, const dend_search *s) {
    static const char *const methods[] = {"", "mcts", "beam", "tree_of_thought", "depth_first", "best_of_n"};
    static const char *const ends[] = {"running", "solved", "exhausted", "tokens",
                                       "time",    "nodes",  "stopped"};
    uint32_t id, P = s->engine->desc.block_tokens;
    bool first = true;
    dendp_export_text(e, "{\"format\":\"dendrite.search.1\",\"method\":\"");
    dendp_export_text(e, methods[s->desc.method]);
    dendp_export_text(e, "\",\"end\":\"");
    dendp_export_text(e, ends[s->info.end]);
    dendp_export_text(e, "\"");
    dendp_export_field(e, "best", dend_search_best(s));
    dendp_export_field(e, "batches", s->info.n_batches);
    dendp_export_field(e, "tokens", s->info.n_tokens);
    dendp_export_field(e, "prompt_tokens", s->nodes[0].len_tokens);
    dendp_export_field(e, "block_tokens", P);
    dendp_export_text(e, ",\"nodes\":[");
    for (id = 0; id < s->n_slots; id++) {
        const dendp_search_node *n = &s->nodes[id];
        if (n->state == DENDP_NODE_FREE) {
            continue;
        }
        dendp_export_text(e, first ? "\n" : ",\n");
        first = false;
        dendp_export_text(e, "{\"id\":");
        dendp_export_u64(e, id);
        dendp_export_field_node(e, "parent", n->parent);
        dendp_export_text(e, ",\"state\":\"");
        dendp_export_text(e, dendp_export_state(n->state));
        dendp_export_text(e, "\",\"text\":\"");
        dendp_export_step(e, s, id);
        dendp_export_text(e, "\"");
        dendp_export_field_node(e, "twin", n->state == DEND_NODE_MERGED ? n->others : DEND_NODE_NONE);
        dendp_export_field(e, "depth", n->depth);
        dendp_export_field(e, "tokens", n->n_tokens);
        dendp_export_field(e, "created", n->created);
        dendp_export_field(e, "visits", n->visits);
        dendp_export_field(e, "copies", n->n_copies);
        dendp_export_field_number(e, "logprob", (double)n->logprob);
        dendp_export_field_number(e, "value", (double)n->value);
        dendp_export_field_number(e, "mean", dendp_score_mean(n));
        dendp_export_field(e, "blocks", (n->len_tokens + P - 1) / P);
        dendp_export_field(e, "shared", n->parent == DENDP_NONE ? 0 : s->nodes[n->parent].len_tokens / P);
        dendp_export_text(e, "}");
    }
    dendp_export_text(e, "\n]}\n");
}

static void dendp_export_dot(dendp_exporter *e, const dend_search *s) {
    static const char *const colours[] = {"white",     "lightblue", "palegreen",  "gray90",
                                          "mistyrose", "gray90",    "lightyellow"};
    uint32_t id;
    dendp_export_text(
        e, "digraph search {\n  rankdir=LR;\n  node [shape=box, style=filled, fontname=monospace];\n");
    for (id = 0; id < s->n_slots; id++) {
        const dendp_search_node *n = &s->nodes[id];
        if (n->state == DENDP_NODE_FREE) {
            continue;
        }
        dendp_export_text(e, "  n");
        dendp_export_u64(e, id);
        dendp_export_text(e, " [fillcolor=");
        dendp_export_text(e, colours[n->state]);
        dendp_export_text(e, ", label=\"");
        if (id == 0) {
            dendp_export_text(e, "prompt");
        } else {
            dendp_export_step(e, s, id);
        }
        dendp_export_text(e, "\\n");
        dendp_export_number(e, dendp_score_mean(n));
        dendp_export_text(e, " of ");
        dendp_export_u64(e, n->visits);
        dendp_export_text(e, "\"];\n");
        if (n->parent != DENDP_NONE) {
            dendp_export_text(e, "  n");
            dendp_export_u64(e, n->parent);
            dendp_export_text(e, " -> n");
            dendp_export_u64(e, id);
            dendp_export_text(e, ";\n");
        }
        if (n->state == DEND_NODE_MERGED) {
            dendp_export_text(e, "  n");
            dendp_export_u64(e, id);
            dendp_export_text(e, " -> n");
            dendp_export_u64(e, n->others);
            dendp_export_text(e, " [style=dashed, constraint=false];\n");
        }
    }
    dendp_export_text(e, "}\n");
}

DEND_IMPL dend_status dend_search_export(const dend_search *search, dend_export_format format,
                                         const dend_writer *writer) {
    dendp_exporter e;
    if (!search || !writer || !writer->write || (format != DEND_EXPORT_JSON && format != DEND_EXPORT_DOT)) {
        return DEND_ERR_ARGUMENT;
    }
    memset(&e, 0, sizeof e);
    e.to = writer;
    if (format == DEND_EXPORT_JSON) {
        dendp_export_json(&e, search);
    } else {
        e.plain = true;
        dendp_export_dot(&e, search);
    }
    dendp_export_flush(&e);
    return e.failed ? DEND_ERR_IO : DEND_OK;
}

#endif /* DEND_NO_SEARCH */
