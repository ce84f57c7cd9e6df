/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of gradients, and the codecs measured on them. */
#include "dump.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nibble/codec.h"
#include "values.h"

/* Bound on real gradients: groups of 32 in the better of two domains with a signed maximum stay below this.
 */
#define NMSE_BOUND 0.0065

static int complain(const char *what, const char *path, int rc)
{
    fprintf(stderr, "nibble-train: cannot %s %s: %s\n", what, path, strerror(-rc));
    return rc;
}

static int write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return complain("write", path, -errno);
    const size_t put = fwrite(data, 1, bytes, f);
    if (fclose(f) != 0 || put != bytes)
        return complain("write", path, -EIO);
    return 0;
}

int nbt_dump_begin(const char *dir, const struct nbt_layout *lay, int nodes, size_t block)
{
    char path[4096];
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return complain("make", dir, -errno);
    snprintf(path, sizeof path, "%s/layout.txt", dir);
    FILE *f = fopen(path, "w");
    if (!f)
        return complain("write", path, -errno);
    fprintf(f, "nodes %d block %zu params %zu tensors %d\n", nodes, block, lay->params, lay->tensors);
    for (int t = 0; t < lay->tensors; t++)
        fprintf(f, "%s %d %zu %zu %zu\n", lay->tensor[t].name, (int)lay->tensor[t].cls, lay->tensor[t].offset,
                lay->tensor[t].rows, lay->tensor[t].cols);
    return fclose(f) == 0 ? 0 : complain("write", path, -EIO);
}

int nbt_dump_step(const char *dir, int nodes, size_t block, size_t step, int rank, const float *grad)
{
    const size_t n = (size_t)nodes * block;
    char path[4096];
    uint16_t *half = malloc(n * sizeof *half);
    if (!half)
        return -ENOMEM;
    nbt_to_bf16(grad, n, half);
    snprintf(path, sizeof path, "%s/step%05zu-node%d.bf16", dir, step, rank);
    int rc = write_file(path, half, n * sizeof *half);
    free(half);
    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/step%05zu-node%d.f32", dir, step, rank);
    return write_file(path, grad, n * sizeof *grad);
}

/* ---- report ---- */

struct dumps {
    int nodes, tensors;
    size_t block, params;
    uint8_t *cls; /* class of every value */
};

struct tally { /* of one codec and type */
    double nmse[NBT_CLASSES], all;
    double coded_bits, values;
    size_t files;
};

static int read_layout(const char *dir, struct dumps *d)
{
    char path[4096];
    memset(d, 0, sizeof *d);
    snprintf(path, sizeof path, "%s/layout.txt", dir);
    FILE *f = fopen(path, "r");
    if (!f)
        return complain("read", path, -errno);
    int ok = fscanf(f, "nodes %d block %zu params %zu tensors %d", &d->nodes, &d->block, &d->params,
                    &d->tensors) == 4 &&
             d->nodes > 0 && d->params <= (size_t)d->nodes * d->block && d->block < (size_t)1 << 32;
    d->cls = ok ? calloc((size_t)d->nodes * d->block, 1) : NULL;
    ok = ok && d->cls;
    for (int t = 0; ok && t < d->tensors; t++) {
        char name[64];
        int cls;
        size_t offset, rows, cols;
        ok = fscanf(f, "%63s %d %zu %zu %zu", name, &cls, &offset, &rows, &cols) == 5 && cls >= 0 &&
             cls < NBT_CLASSES && rows <= d->params && cols <= d->params && offset <= d->params &&
             rows * cols <= d->params - offset;
        if (ok)
            memset(d->cls + offset, cls, rows * cols);
    }
    fclose(f);
    return ok ? 0 : complain("understand", path, -EINVAL);
}

static int measure(const struct dumps *d, enum nb_codec codec, enum nb_dtype type, const void *values,
                   struct tally *t)
{
    const size_t size = nb_dtype_size(type), cap = nb_encode_bound(codec, type, d->block);
    unsigned char *coded = malloc(cap), *back = malloc(d->block * size);
    float *a = malloc(d->block * sizeof *a), *b = malloc(d->block * sizeof *b);
    double noise[NBT_CLASSES + 1] = {0}, signal[NBT_CLASSES + 1] = {0};
    int rc = coded && back && a && b ? 0 : -ENOMEM;
    for (int r = 0; rc == 0 && r < d->nodes; r++) {
        const void *src = (const char *)values + (size_t)r * d->block * size;
        const ssize_t len = nb_encode(codec, type, src, d->block, 0, NULL, coded, cap, NULL);
        rc = len < 0 ? (int)len : nb_decode(codec, type, coded, (size_t)len, d->block, 0, back);
        if (rc)
            break;
        if (type == NB_BF16) {
            nbt_from_bf16(src, d->block, a);
            nbt_from_bf16((const uint16_t *)(const void *)back, d->block, b);
        } else {
            memcpy(a, src, d->block * size);
            memcpy(b, back, d->block * size);
        }
        t->coded_bits += 8.0 * (double)len;
        t->values += (double)d->block;
        for (size_t i = 0; i < d->block && (size_t)r * d->block + i < d->params; i++) {
            const int c = d->cls[(size_t)r * d->block + i];
            const double g = (double)a[i], e = (double)b[i] - g;
            noise[c] += e * e;
            signal[c] += g * g;
            noise[NBT_CLASSES] += e * e;
            signal[NBT_CLASSES] += g * g;
        }
    }
    for (int c = 0; c < NBT_CLASSES; c++)
        t->nmse[c] += signal[c] > 0 ? noise[c] / signal[c] : 0;
    t->all += signal[NBT_CLASSES] > 0 ? noise[NBT_CLASSES] / signal[NBT_CLASSES] : 0;
    t->files++;
    free(coded), free(back), free(a), free(b);
    return rc;
}

static int measure_file(const struct dumps *d, const char *path, enum nb_dtype type, struct tally int4[],
                        struct tally int8[])
{
    const size_t n = (size_t)d->nodes * d->block, size = nb_dtype_size(type);
    void *values = malloc(n * size);
    FILE *f = fopen(path, "rb");
    int rc = !values                                             ? -ENOMEM
             : !f                                                ? -errno
             : fread(values, size, n, f) == n && fgetc(f) == EOF ? 0
                                                                 : -EINVAL;
    if (f)
        fclose(f);
    if (rc == 0)
        rc = measure(d, NB_CODEC_INT4, type, values, &int4[type]);
    if (rc == 0)
        rc = measure(d, NB_CODEC_INT8, type, values, &int8[type]);
    free(values);
    return rc ? complain("measure", path, rc) : 0;
}

static void print_tally(const char *codec, enum nb_dtype type, const struct tally *t)
{
    if (!t->files)
        return;
    printf("%-6s %-6s", codec, nb_dtype_name(type));
    for (int c = 0; c < NBT_CLASSES; c++)
        printf(" %11.6f", t->nmse[c] / (double)t->files);
    const double bits = t->coded_bits / t->values;
    printf(" %11.6f %8.3f %7.2f\n", t->all / (double)t->files, bits,
           8.0 * (double)nb_dtype_size(type) / bits);
}

int nbt_codec_report(const char *dir)
{
    struct dumps d;
    struct tally int4[NB_DTYPE_COUNT] = {0}, int8[NB_DTYPE_COUNT] = {0};
    struct dirent **list;
    if (read_layout(dir, &d))
        return 2;
    const int n = scandir(dir, &list, NULL, alphasort);
    int rc = n < 0 ? complain("list", dir, -errno) : 0;
    for (int i = 0; i < n; i++) {
        const char *dot = strrchr(list[i]->d_name, '.');
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        if (rc == 0 && dot && strcmp(dot, ".bf16") == 0)
            rc = measure_file(&d, path, NB_BF16, int4, int8);
        else if (rc == 0 && dot && strcmp(dot, ".f32") == 0)
            rc = measure_file(&d, path, NB_F32, int4, int8);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    free(d.cls);
    if (rc)
        return 2;
    if (int4[NB_BF16].files + int4[NB_F32].files == 0) {
        fprintf(stderr, "nibble-train: %s holds no dumps (--dump-grads makes them)\n", dir);
        return 2;
    }
    printf("NMSE of coded gradients, means over %zu dumps (no error feedback), codec variant %s\n",
           int4[NB_F32].files, nb_variant_name(nb_codec_selected()));
    printf("%-6s %-6s", "codec", "type");
    for (int c = 0; c < NBT_CLASSES; c++)
        printf(" %11s", nbt_class_name((enum nbt_class)c));
    printf(" %11s %8s %7s\n", "all", "bits", "ratio");
    int over = 0;
    for (int t = 0; t < NB_DTYPE_COUNT; t++) {
        print_tally("int4", (enum nb_dtype)t, &int4[t]);
        print_tally("int8", (enum nb_dtype)t, &int8[t]);
        over |= int4[t].files && int4[t].all > NMSE_BOUND * (double)int4[t].files;
    }
    printf("%s: NMSE of int4 over all values %s %.4f\n", over ? "FAIL" : "ok", over ? "above" : "at most",
           NMSE_BOUND);
    return over;
}
