/* libFuzzer target: any bytes as a session, for a small cache of two layer groups.
 *
 *     byte 0 even   the rest is restored as it is
 *            odd    its checks are first made right, as somebody would who means harm
 *
 * What is refused must leave everything free; what is accepted must be sequences
 * that can be read, extended, forked and dropped, after which all is free again.
 *
 *     make fuzz && build/fuzz_session fuzz/corpus/session
 *
 * The seeds: cc -DFUZZ_SEEDS -I. fuzz/fuzz_session.c -lm -lpthread && ./a.out fuzz/corpus/session
 */
#ifndef DENDRITE_IMPLEMENTATION
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
#endif
#include "tests/dend_session.h"

#include <stdio.h>
#include <stdlib.h>

#define FUZZ_SES_REQUIRE(condition)                                                                          \
    do {                                                                                                     \
        if (!(condition)) abort();                                                                           \
    } while (0)

#define FUZZ_SES_VOCAB 50u

typedef struct fuzz_ses_bytes {
    uint8_t *data;
    size_t size, cap;
} fuzz_ses_bytes;

typedef struct fuzz_ses_room {
    dendp_cache *cache;
    dendp_snapshot snapshot;
} fuzz_ses_room;

static fuzz_ses_room *fuzz_ses_open(void) {
    static fuzz_ses_room room;
    static dendp_group_desc groups[2];
    dend_allocator allocator;
    dendp_cache_desc desc;
    dendp_carver carver;
    uint64_t bytes;
    if (room.cache) {
        return &room;
    }
    memset(&allocator, 0, sizeof allocator);
    memset(&desc, 0, sizeof desc);
    FUZZ_SES_REQUIRE(dendp_allocator_resolve(&allocator, NULL) == DEND_OK);
    groups[0].n_layers = groups[0].n_kv_heads = groups[1].n_layers = groups[1].n_kv_heads = 1;
    groups[0].head_dim = groups[1].head_dim = 2;
    groups[1].window = 16;
    desc.n_groups = 2;
    desc.groups = groups;
    desc.n_blocks = 40;
    desc.block_tokens = 16;
    desc.n_seqs = 8;
    desc.n_ctx = 1000;
    desc.n_logits = 2;
    desc.seed = 1;
    dendp_codec_get(DEND_KV_F16, DEND_ISA_SCALAR, &desc.codec);
    room.cache = dendp_cache_create(&desc, &allocator, &bytes);
    FUZZ_SES_REQUIRE(room.cache != NULL);
    memset(&carver, 0, sizeof carver);
    dendp_snapshot_carve(&room.snapshot, room.cache, &carver);
    bytes = carver.used;
    memset(&carver, 0, sizeof carver);
    carver.base = (unsigned char *)dendp_alloc(&allocator, bytes);
    FUZZ_SES_REQUIRE(carver.base != NULL);
    dendp_snapshot_carve(&room.snapshot, room.cache, &carver);
    room.snapshot.cache = room.cache;
    return &room;
}

static bool fuzz_ses_read(void *user, uint64_t offset, void *dst, size_t n) {
    const fuzz_ses_bytes *b = (const fuzz_ses_bytes *)user;
    FUZZ_SES_REQUIRE(offset <= b->size && n <= b->size - offset);
    memcpy(dst, b->data + offset, n);
    return true;
}

static void fuzz_ses_all_free(const dendp_cache *c) {
    uint32_t g;
    FUZZ_SES_REQUIRE(c->nodes.n_free == c->nodes.n_nodes && c->n_free_slots == c->desc.n_seqs);
    for (g = 0; g < c->desc.n_groups; g++) {
        FUZZ_SES_REQUIRE(c->pools[g].n_free == c->pools[g].n_blocks);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_ses_room *room = fuzz_ses_open();
    dendp_cache *c = room->cache;
    fuzz_ses_bytes bytes;
    dend_reader reader;
    dend_error err;
    dend_seq seqs[8];
    dend_status status;
    uint32_t n = 0, i, pos;
    if (size == 0) {
        return 0;
    }
    bytes.size = size - 1;
    bytes.data = (uint8_t *)malloc(size);
    FUZZ_SES_REQUIRE(bytes.data != NULL);
    memcpy(bytes.data, data + 1, size - 1);
    if (data[0] & 1u) {
        session_sign(bytes.data, bytes.size);
    }
    reader.read = fuzz_ses_read;
    reader.size = bytes.size;
    reader.user = &bytes;
    memset(&err, 0, sizeof err);
    status = dendp_cache_restore(&room->snapshot, &reader, 1, FUZZ_SES_VOCAB, seqs, NULL, 8, &n, &err);
    free(bytes.data);
    if (status != DEND_OK) {
        FUZZ_SES_REQUIRE(err.status == status && err.msg && err.where <= size);
        fuzz_ses_all_free(c);
        return 0;
    }
    for (i = 0; i < n; i++) {
        dendp_slot *slot = dendp_cache_slot(c, seqs[i]);
        const int32_t more[20] = {1, 2, 3};
        dend_seq child;
        uint32_t g;
        FUZZ_SES_REQUIRE(slot != NULL);
        for (pos = 0; pos < c->records[slot->record].len; pos++) {
            int32_t token = dendp_record_token(c, slot->record, pos);
            FUZZ_SES_REQUIRE(token < (int32_t)FUZZ_SES_VOCAB);
        }
        for (g = 0; g < 2; g++) {
            const dendp_table *t = dendp_cache_table(c, slot->record, g);
            for (pos = t->first; pos < t->n_blocks; pos++) {
                FUZZ_SES_REQUIRE(dendp_table_get(&c->nodes, t, pos) < c->pools[g].n_blocks);
            }
        }
        if (dendp_cache_seq_fork(c, seqs[i], 0, &child) == DEND_OK) {
            (void)dendp_cache_append(c, dendp_cache_slot(c, child), more, 20);
            FUZZ_SES_REQUIRE(dendp_cache_seq_drop(c, child) == DEND_OK);
        }
        (void)dendp_cache_append(c, slot, more, 3);
        (void)dendp_cache_rewind(c, slot, dendp_record_rewind_min(c, slot->record));
    }
    for (i = 0; i < n; i++) {
        FUZZ_SES_REQUIRE(dendp_cache_seq_drop(c, seqs[i]) == DEND_OK);
    }
    while (dendp_node_reclaim(&c->nodes, 1000)) {
    }
    fuzz_ses_all_free(c);
    c->n_streams = 0;
    return 0;
}

#ifdef FUZZ_SEEDS
static bool fuzz_ses_write(void *user, const void *data, size_t n) {
    return fwrite(data, 1, n, (FILE *)user) == n;
}

/* Writes the first n of these sequences, with each of the two first bytes. */
static void fuzz_ses_seed(fuzz_ses_room *room, const char *folder, const char *name, const dend_seq *seqs,
                          uint32_t n) {
    int sign;
    for (sign = 0; sign < 2; sign++) {
        char path[1024];
        dend_writer writer;
        uint64_t bytes;
        FILE *f;
        snprintf(path, sizeof path, "%s/%s_%d", folder, name, sign);
        f = fopen(path, "wb");
        FUZZ_SES_REQUIRE(f && fputc(sign, f) == sign);
        writer.write = fuzz_ses_write;
        writer.user = f;
        FUZZ_SES_REQUIRE(
            dendp_cache_save(&room->snapshot, seqs, NULL, n, 1, FUZZ_SES_VOCAB, &writer, &bytes) == DEND_OK);
        fclose(f);
    }
}

int main(int argc, char **argv) {
    fuzz_ses_room *room = fuzz_ses_open();
    dendp_cache *c = room->cache;
    dend_seq seqs[4];
    int32_t tokens[600];
    uint32_t i;
    FUZZ_SES_REQUIRE(argc == 2);
    for (i = 0; i < 600; i++) {
        tokens[i] = (int32_t)(i * 7 % FUZZ_SES_VOCAB);
    }
    fuzz_ses_seed(room, argv[1], "none", seqs, 0);
    for (i = 0; i < 4; i++) {
        FUZZ_SES_REQUIRE(dendp_cache_seq_create(c, &seqs[i]) == DEND_OK);
    }
    fuzz_ses_seed(room, argv[1], "empty", seqs, 1);
    FUZZ_SES_REQUIRE(dendp_cache_append(c, dendp_cache_slot(c, seqs[0]), tokens, 37) == DEND_OK);
    memset(dendp_block_data(&c->pools[0], 0), 0, (size_t)c->pools[0].block_bytes * c->pools[0].n_blocks);
    memset(dendp_block_data(&c->pools[1], 0), 0, (size_t)c->pools[1].block_bytes * c->pools[1].n_blocks);
    fuzz_ses_seed(room, argv[1], "waiting", seqs, 1);
    dendp_record_commit(c, dendp_cache_slot(c, seqs[0])->record, 37);
    fuzz_ses_seed(room, argv[1], "computed", seqs, 1);
    FUZZ_SES_REQUIRE(dendp_cache_seq_drop(c, seqs[1]) == DEND_OK &&
                     dendp_cache_seq_drop(c, seqs[2]) == DEND_OK);
    FUZZ_SES_REQUIRE(dendp_cache_seq_fork(c, seqs[0], 0, &seqs[1]) == DEND_OK);
    FUZZ_SES_REQUIRE(dendp_cache_seq_fork(c, seqs[0], 0, &seqs[2]) == DEND_OK);
    FUZZ_SES_REQUIRE(dendp_cache_append(c, dendp_cache_slot(c, seqs[1]), tokens + 40, 15) == DEND_OK);
    dendp_record_commit(c, dendp_cache_slot(c, seqs[1])->record, 52);
    FUZZ_SES_REQUIRE(dendp_cache_trim(c, dendp_cache_slot(c, seqs[1]), 1, 33) == DEND_OK);
    fuzz_ses_seed(room, argv[1], "forks", seqs, 4);
    FUZZ_SES_REQUIRE(dendp_cache_append(c, dendp_cache_slot(c, seqs[3]), tokens, 530) == DEND_OK);
    fuzz_ses_seed(room, argv[1], "two_leaves", seqs + 3, 1);
    return 0;
}
#endif
