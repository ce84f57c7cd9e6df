/* SPDX-License-Identifier: Apache-2.0 */
/* Read and split the training text, and draw from it. */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rng.h"

struct buffer {
    uint8_t *data;
    size_t len, cap, limit, files;
};

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort would follow the locale */
}

static int reserve(struct buffer *b, size_t more)
{
    if (b->cap - b->len >= more)
        return 0;
    const size_t cap = (b->len + more) * 3 / 2 + 65536;
    uint8_t *p = realloc(b->data, cap);
    if (!p)
        return -ENOMEM;
    b->data = p;
    b->cap = cap;
    return 0;
}

static int read_file(struct buffer *b, const char *path, size_t size)
{
    if (size > b->limit - b->len)
        size = b->limit - b->len;
    const int rc = reserve(b, size);
    if (rc)
        return rc;
    FILE *f = fopen(path, "rb");
    if (!f)
        return -errno;
    const size_t got = fread(b->data + b->len, 1, size, f);
    const int bad = ferror(f);
    fclose(f);
    if (bad)
        return -EIO;
    if (memchr(b->data + b->len, 0, got))
        return 0;
    b->len += got;
    b->files += got > 0;
    return 0;
}

static int read_path(struct buffer *b, const char *path, int named)
{
    struct stat st;
    if ((named ? stat(path, &st) : lstat(path, &st)) != 0)
        return -errno;
    if (S_ISREG(st.st_mode))
        return read_file(b, path, (size_t)st.st_size);
    if (!S_ISDIR(st.st_mode))
        return 0;
    struct dirent **list;
    const int n = scandir(path, &list, NULL, by_name);
    int rc = n < 0 ? -errno : 0;
    for (int i = 0; i < n; i++) {
        char sub[4096];
        if (rc == 0 && strcmp(list[i]->d_name, ".") != 0 && strcmp(list[i]->d_name, "..") != 0 &&
            b->len < b->limit &&
            (size_t)snprintf(sub, sizeof sub, "%s/%s", path, list[i]->d_name) < sizeof sub) {
            rc = read_path(b, sub, 0);
            if (rc == -EACCES)
                rc = 0; /* another user's file in a shared folder */
        }
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return rc;
}

int nbt_text_load(const char *const *paths, size_t npaths, size_t limit, struct nbt_text *out)
{
    struct buffer b = {.limit = limit};
    int rc = 0;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < npaths && rc == 0; i++) {
        rc = read_path(&b, paths[i], 1);
        if (rc)
            fprintf(stderr, "nibble-train: cannot read %s: %s\n", paths[i], strerror(-rc));
    }
    if (rc == 0 && b.len < 65536) {
        fprintf(stderr, "nibble-train: only %zu bytes of text; at least 65536 are needed (--text)\n", b.len);
        rc = -ENODATA;
    }
    if (rc == 0) {
        out->train = malloc(b.len);
        out->valid = malloc(b.len);
        if (!out->train || !out->valid)
            rc = -ENOMEM;
    }
    if (rc) {
        free(b.data);
        nbt_text_free(out);
        return rc;
    }
    for (size_t at = 0; at < b.len; at += NBT_TEXT_PIECE) {
        const size_t n = b.len - at < NBT_TEXT_PIECE ? b.len - at : NBT_TEXT_PIECE;
        const int hold = at / NBT_TEXT_PIECE % NBT_TEXT_HOLD_OUT == NBT_TEXT_HOLD_OUT / 2;
        memcpy(hold ? out->valid + out->valid_bytes : out->train + out->train_bytes, b.data + at, n);
        *(hold ? &out->valid_bytes : &out->train_bytes) += n;
    }
    out->files = b.files;
    free(b.data);
    return 0;
}

void nbt_text_free(struct nbt_text *text)
{
    free(text->train);
    free(text->valid);
    memset(text, 0, sizeof *text);
}

const uint8_t *nbt_text_sample(const struct nbt_text *text, uint64_t seed, size_t step, int node,
                               size_t index, size_t context)
{
    struct nbt_rng rng =
        nbt_rng_seed(seed, 0x7e87, (uint64_t)step << 32 | (uint64_t)node << 16 | (uint64_t)index);
    return text->train + nbt_rng_below(&rng, text->train_bytes - context);
}

size_t nbt_text_valid_count(const struct nbt_text *text, size_t context)
{
    return text->valid_bytes > context ? (text->valid_bytes - 1) / context : 0;
}

const uint8_t *nbt_text_valid(const struct nbt_text *text, size_t index, size_t context)
{
    return text->valid + index * context;
}
