/* ==========================================================================
 * >>01.08 SAVED FILES: written whole or not at all
 * ==========================================================================
 * What is saved goes into PATH.tmp in the same folder. When all of it is there
 * it is flushed, forced to the disk where the system can do that, and renamed:
 * whoever opens PATH finds the old file or the new one, never a part. After a
 * failure PATH.tmp is removed. Two savers of one PATH at a time are one too
 * many.
 *
 * Reading goes from the beginning to the end, so no position has to fit a long,
 * and files may be larger than 4 GiB. A file that shrinks meanwhile is a read
 * that fails; nothing is mapped.
 *
 * Both use stdio, and so a buffer that the C library allocates.
 * ======================================================================== */

#if DENDP_WINDOWS
#include <io.h>
#endif

#define DENDP_PATH_MAX 4096u

typedef struct dendp_outfile {
    FILE *file;
    char tmp[DENDP_PATH_MAX];
} dendp_outfile;

/* True for a path that leaves room for ".tmp". */
static bool dendp_path_fits(const char *path) {
    size_t n = strlen(path);
    return n > 0 && n < DENDP_PATH_MAX - 5;
}

/* Opens PATH.tmp, of a path that fits. */
static bool dendp_outfile_open(dendp_outfile *out, const char *path) {
    size_t n = strlen(path);
    memcpy(out->tmp, path, n);
    memcpy(out->tmp + n, ".tmp", 5);
    out->file = fopen(out->tmp, "wb");
    return out->file != NULL;
}

static bool dendp_outfile_write(void *user, const void *data, size_t n) {
    return fwrite(data, 1, n, ((dendp_outfile *)user)->file) == n;
}

/* To the disk, as far as the system lets us say so. */
static bool dendp_outfile_sync(FILE *file) {
    if (fflush(file) != 0) {
        return false;
    }
#if defined(_WIN32)
    return _commit(_fileno(file)) == 0;
#elif DENDP_POSIX && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112L
    return fsync(fileno(file)) == 0;
#else
    return true;
#endif
}

static bool dendp_rename(const char *from, const char *to) {
#if defined(_WIN32)
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0;
#else
    return rename(from, to) == 0;
#endif
}

/* Ends it: `good` puts the file in its place, else it is removed. True when it is there. */
static bool dendp_outfile_close(dendp_outfile *out, const char *path, bool good) {
    good = good && dendp_outfile_sync(out->file);
    good = fclose(out->file) == 0 && good;
    good = good && dendp_rename(out->tmp, path);
    if (!good) {
        (void)remove(out->tmp);
    }
    return good;
}

/* A file that is read from its beginning to its end. */
typedef struct dendp_infile {
    FILE *file;
    uint64_t at;
} dendp_infile;

/* A reader over it; it wants the offsets in order. */
static bool dendp_infile_read(void *user, uint64_t offset, void *dst, size_t n) {
    dendp_infile *in = (dendp_infile *)user;
    if (offset != in->at || fread(dst, 1, n, in->file) != n) {
        return false;
    }
    in->at += n;
    return true;
}

/* False when it cannot be opened, or its size cannot be told. */
static bool dendp_infile_open(dendp_infile *in, const char *path, uint64_t *size) {
    bool good;
    in->at = 0;
    in->file = fopen(path, "rb");
    if (!in->file) {
        return false;
    }
#if defined(_WIN32)
    {
        int64_t end = _fseeki64(in->file, 0, SEEK_END) == 0 ? _ftelli64(in->file) : -1;
        good = end >= 0 && _fseeki64(in->file, 0, SEEK_SET) == 0;
        *size = good ? (uint64_t)end : 0;
    }
#elif DENDP_POSIX && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112L
    {
        struct stat st;
        good = fstat(fileno(in->file), &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= 0;
        *size = good ? (uint64_t)st.st_size : 0;
    }
#else
    {
        long end = fseek(in->file, 0, SEEK_END) == 0 ? ftell(in->file) : -1;
        good = end >= 0 && fseek(in->file, 0, SEEK_SET) == 0;
        *size = good ? (uint64_t)end : 0;
    }
#endif
    if (!good) {
        fclose(in->file);
    }
    return good;
}
