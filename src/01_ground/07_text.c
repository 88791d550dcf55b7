/* ==========================================================================
 * >>01.07 TEXT: words for people, without printf
 * ==========================================================================
 * Reports and log lines are put together piece by piece into a buffer of fixed
 * size; what does not fit is cut, and counted, so that a caller learns how much
 * room the whole would have taken. Numbers are written by hand: printf's depend
 * on the program's locale, which a library must neither trust nor touch.
 *
 * The LOG is the caller's function. It is told what a developer wants to see
 * once (what was loaded, what is slow and why), never anything per token, and
 * nothing that a status has not said already: a program that ignores it misses
 * no error.
 * ======================================================================== */

/* Text that goes to out[cap], cut to fit and 0-terminated; n counts all of it. */
typedef struct dendp_text {
    char *out;
    size_t cap, n;
} dendp_text;

static void dendp_text_put(dendp_text *t, const char *s) {
    for (; *s; s++, t->n++) {
        if (t->n + 1 < t->cap) {
            t->out[t->n] = *s;
            t->out[t->n + 1] = 0;
        }
    }
}

static void dendp_text_put_number(dendp_text *t, uint64_t v) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    dendp_text_put(t, digits + at);
}

/* "1 matrix", "2 matrices": one and many end the word. */
static void dendp_text_put_count(dendp_text *t, uint64_t n, const char *one, const char *many) {
    dendp_text_put_number(t, n);
    dendp_text_put(t, " ");
    dendp_text_put(t, n == 1 ? one : many);
}

/* "812 B", "45.1 kB", "98.2 MB", rounded down. */
static void dendp_text_put_bytes(dendp_text *t, uint64_t bytes) {
    uint64_t unit = bytes < 1000 ? 1 : bytes < 1000000 ? 1000 : 1000000;
    dendp_text_put_number(t, bytes / unit);
    if (unit > 1) {
        dendp_text_put(t, ".");
        dendp_text_put_number(t, bytes % unit / (unit / 10));
    }
    dendp_text_put(t, unit == 1 ? " B" : unit == 1000 ? " kB" : " MB");
}

/* Text of a file: what would steer a terminal is replaced. */
static void dendp_text_put_foreign(dendp_text *t, const char *s) {
    char c[2] = {0, 0};
    for (; *s; s++) {
        c[0] = (unsigned char)*s < 32 || *s == 127 ? '?' : *s;
        dendp_text_put(t, c);
    }
}

/* -- log -------------------------------------------------------------------- */

#define DENDP_LOG_BYTES 256

/* A line that is being written. */
typedef struct dendp_log_line {
    char bytes[DENDP_LOG_BYTES];
    dendp_text text;
} dendp_log_line;

/* Begins a line; false when nobody listens. */
static bool dendp_log_begin(dendp_log_line *line, const dend_log *log, const char *what) {
    line->text.out = line->bytes;
    line->text.cap = sizeof line->bytes;
    line->text.n = 0;
    line->bytes[0] = 0;
    if (log->write) {
        dendp_text_put(&line->text, what);
    }
    return log->write != NULL;
}

static void dendp_log_end(const dendp_log_line *line, const dend_log *log, dend_log_level level) {
    log->write(log->user, level, line->bytes);
}
