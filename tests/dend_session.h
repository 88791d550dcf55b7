/* Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
 *
 * Forged sessions, for tests and fuzz targets that include dendrite.h with its
 * implementation. */
#ifndef DEND_SESSION_H
#define DEND_SESSION_H

#include <string.h>

/* Makes the checks of a changed session right, as far as the lengths of its sections lead. */
static void session_sign(unsigned char *data, size_t n) {
    size_t at = sizeof(dendp_session_header);
    dendp_check all, one;
    uint64_t check;
    if (n < at) {
        return;
    }
    dendp_check_begin(&all);
    dendp_check_begin(&one);
    dendp_check_add(&one, data, at - 8);
    check = dendp_check_end(&one);
    memcpy(data + at - 8, &check, 8);
    dendp_check_add(&all, &check, 8);
    while (n - at >= sizeof(dendp_session_section) + 8) {
        dendp_session_section head;
        memcpy(&head, data + at, sizeof head);
        if (head.n_bytes > n - at - sizeof head - 8) {
            return; /* this length has been changed */
        }
        check = dendp_check_end(&all);
        if (head.kind == DENDP_SECTION_END && head.n_bytes == 8) {
            memcpy(data + at + sizeof head, &check, 8);
        }
        dendp_check_begin(&one);
        dendp_check_add(&one, data + at, sizeof head + (size_t)head.n_bytes);
        check = dendp_check_end(&one);
        at += sizeof head + (size_t)head.n_bytes;
        memcpy(data + at, &check, 8);
        dendp_check_add(&all, &check, 8);
        at += 8;
    }
}

#endif
