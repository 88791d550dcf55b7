/* ==========================================================================
 * >>01.06 FIXED MEMORY: an allocator over one block of the caller's
 * ==========================================================================
 * Programs that own all their memory from the start (games, controllers) hand
 * over a block and never see another allocation. Models, engines, schedulers
 * and searches take their allocator from the description, so an allocator that
 * works inside a fixed block is all that this mode needs.
 *
 *     | head | in use ...... | free: next, size | in use | free: next, size ... |
 *
 * Free pieces are a list in order of address; a request takes the first piece
 * that fits (first fit: Knuth, The Art of Computer Programming 1, section 2.5),
 * a piece that comes back joins its neighbours. Sizes are multiples of 64 and
 * free() is told the size, so pieces in use need no head of their own, and
 * whoever asks for 64-byte alignment, as all of this library does, wastes
 * nothing else.
 *
 * Cost: O(free pieces), of which there are a handful: loading and creating ask
 * for a few large pieces, running for none. A lock of one word guards the list,
 * since tokenizing may ask from several threads.
 * What may fail: a request that finds no piece gives NULL, and its caller says
 * DEND_ERR_MEMORY. A pointer that is not of this block, or that lies in a free
 * piece, is ignored.
 * ======================================================================== */

typedef struct dendp_fixed_piece {
    struct dendp_fixed_piece *next;
    size_t size;
} dendp_fixed_piece;

typedef struct dendp_fixed {
    dendp_fixed_piece *first;
    unsigned char *begin, *end; /* of what can be handed out */
    size_t used, peak;
    uint32_t locked;
} dendp_fixed;

static void dendp_fixed_lock(dendp_fixed *f) {
    uint32_t open = 0;
    while (!dendp_atomic_swap_if(&f->locked, &open, 1)) {
        open = 0;
        dendp_yield();
    }
}

static void dendp_fixed_unlock(dendp_fixed *f) {
    dendp_atomic_store(&f->locked, 0);
}

/* n rounded up to a multiple of `to`, a power of two; 0 when it overflows. */
static size_t dendp_fixed_round(size_t n, size_t to) {
    return n > SIZE_MAX - (to - 1) ? 0 : (n + to - 1) & ~(to - 1);
}

static void *dendp_fixed_alloc(void *user, size_t size, size_t align) {
    dendp_fixed *f = (dendp_fixed *)user;
    dendp_fixed_piece **link;
    unsigned char *found = NULL;
    size = dendp_fixed_round(size ? size : 1, DENDP_ALIGN);
    align = align < DENDP_ALIGN ? DENDP_ALIGN : align;
    if (size == 0) {
        return NULL;
    }
    dendp_fixed_lock(f);
    for (link = &f->first; *link && !found; link = &(*link)->next) {
        dendp_fixed_piece *piece = *link, *rest = piece->next;
        unsigned char *at = (unsigned char *)(void *)piece;
        size_t before = (size_t)(0 - (uintptr_t)at) & (align - 1);
        if (before > piece->size || size > piece->size - before) {
            continue;
        }
        found = at + before;
        if (piece->size - before > size) { /* what is left behind it */
            dendp_fixed_piece *behind = (dendp_fixed_piece *)(void *)(found + size);
            behind->next = rest;
            behind->size = piece->size - before - size;
            rest = behind;
        }
        if (before) {
            piece->next = rest;
            piece->size = before;
        } else {
            *link = rest;
        }
        f->used += size;
        f->peak = f->used > f->peak ? f->used : f->peak;
        break;
    }
    dendp_fixed_unlock(f);
    return found;
}

static void dendp_fixed_free(void *user, void *p, size_t size) {
    dendp_fixed *f = (dendp_fixed *)user;
    unsigned char *at = (unsigned char *)p, *end;
    dendp_fixed_piece *before = NULL, *next, *piece = (dendp_fixed_piece *)p;
    size = dendp_fixed_round(size ? size : 1, DENDP_ALIGN);
    if (!p || at < f->begin || at >= f->end || size > (size_t)(f->end - at)) {
        return;
    }
    end = at + size;
    dendp_fixed_lock(f);
    for (next = f->first; next && (unsigned char *)(void *)next < at; next = next->next) {
        before = next;
    }
    if ((!before || (unsigned char *)(void *)before + before->size <= at) &&
        (!next || end <= (unsigned char *)(void *)next)) {
        piece->next = next;
        piece->size = size;
        f->used -= size;
        if (next && end == (unsigned char *)(void *)next) {
            piece->size += next->size;
            piece->next = next->next;
        }
        if (before && (unsigned char *)(void *)before + before->size == at) {
            before->size += piece->size;
            before->next = piece->next;
        } else if (before) {
            before->next = piece;
        } else {
            f->first = piece;
        }
    }
    dendp_fixed_unlock(f);
}

DEND_IMPL dend_status dend_fixed_memory(void *memory, size_t n_bytes, dend_allocator *out) {
    unsigned char *at = (unsigned char *)memory, *end;
    dendp_fixed *f;
    size_t skip = (size_t)(0 - (uintptr_t)at) & (DENDP_ALIGN - 1);
    size_t head = dendp_fixed_round(sizeof *f, DENDP_ALIGN);
    if (!memory || !out || n_bytes < skip + head + DENDP_ALIGN) {
        return DEND_ERR_ARGUMENT;
    }
    dendp_ask_large_pages(memory, n_bytes);
    f = (dendp_fixed *)(void *)(at + skip);
    memset(f, 0, sizeof *f);
    f->begin = at + skip + head;
    end = f->begin + ((n_bytes - skip - head) & ~(size_t)(DENDP_ALIGN - 1));
    f->end = end;
    f->first = (dendp_fixed_piece *)(void *)f->begin;
    f->first->next = NULL;
    f->first->size = (size_t)(end - f->begin);
    out->alloc = dendp_fixed_alloc;
    out->free = dendp_fixed_free;
    out->user = f;
    return DEND_OK;
}

DEND_IMPL void dend_fixed_get_info(const dend_allocator *allocator, dend_fixed_info *out) {
    dendp_fixed *f;
    const dendp_fixed_piece *piece;
    if (!out) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (!allocator || allocator->alloc != dendp_fixed_alloc) {
        return;
    }
    f = (dendp_fixed *)allocator->user;
    dendp_fixed_lock(f);
    out->n_bytes = (size_t)(f->end - f->begin);
    out->n_used = f->used;
    out->n_peak = f->peak;
    for (piece = f->first; piece; piece = piece->next) {
        out->n_largest_free = piece->size > out->n_largest_free ? piece->size : out->n_largest_free;
    }
    dendp_fixed_unlock(f);
}
