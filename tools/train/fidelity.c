/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, cosines and the distinction between rows in use and rare rows. */
#include "fidelity.h"

#include <math.h>
#include <string.h>

const char *nbt_fid_class_name(int c)
{
    if (c == NBT_RARE_EMBED)
        return "rare embedding rows";
    if (c == NBT_RARE_HEAD)
        return "rare head rows";
    return nbt_class_name((enum nbt_class)c);
}

void nbt_usage_step(struct nbt_usage *u, const uint8_t seen[NBT_VOCAB])
{
    for (size_t i = 0; i < NBT_VOCAB; i++)
        u->steps[i] += seen[i] != 0;
    u->total++;
}

int nbt_usage_in_use(const struct nbt_usage *u, size_t token)
{
    return 2 * u->steps[token] >= u->total;
}

static int class_of(const struct nbt_tensor *t, const struct nbt_usage *usage, size_t row)
{
    if (!t->by_token || nbt_usage_in_use(usage, row))
        return (int)t->cls;
    return t->cls == NBT_HEAD ? NBT_RARE_HEAD : NBT_RARE_EMBED;
}

void nbt_fidelity_measure(const struct nbt_layout *lay, const struct nbt_usage *usage, size_t first, size_t n,
                          const float *coded, const float *exact, const float *gcoded, const float *gexact,
                          struct nbt_fidelity_sums *sums)
{
    memset(sums, 0, sizeof *sums);
    for (int k = 0; k < lay->tensors; k++) {
        const struct nbt_tensor *t = &lay->tensor[k];
        const size_t stop = t->offset + t->rows * t->cols;
        size_t i = t->offset > first ? t->offset : first;
        const size_t end = stop < first + n ? stop : first + n;
        while (i < end) { /* row by row, because the shard may begin and end inside one */
            const size_t row = (i - t->offset) / t->cols, row_end = t->offset + (row + 1) * t->cols;
            const int c = class_of(t, usage, row);
            for (; i < end && i < row_end; i++) {
                const double a = (double)coded[i - first], b = (double)exact[i - first];
                const double g = (double)gexact[i - first], d = (double)gcoded[i - first] - g;
                sums->c[c].dot += a * b;
                sums->c[c].coded2 += a * a;
                sums->c[c].exact2 += b * b;
                sums->c[c].noise2 += d * d;
                sums->c[c].signal2 += g * g;
            }
        }
    }
}

void nbt_fidelity_add(struct nbt_fidelity *f, const struct nbt_fidelity_sums *shards, int nshards)
{
    for (int c = 0; c < NBT_FID_CLASSES; c++) {
        double dot = 0, coded2 = 0, exact2 = 0, noise2 = 0, signal2 = 0;
        for (int s = 0; s < nshards; s++) {
            dot += shards[s].c[c].dot;
            coded2 += shards[s].c[c].coded2;
            exact2 += shards[s].c[c].exact2;
            noise2 += shards[s].c[c].noise2;
            signal2 += shards[s].c[c].signal2;
        }
        if (exact2 > 0 && coded2 > 0) {
            f->off[c] += 1 - dot / sqrt(coded2 * exact2);
            f->ratio[c] += sqrt(coded2 / exact2);
        }
        f->nmse[c] += signal2 > 0 ? noise2 / signal2 : 0;
    }
    f->instants++;
}

void nbt_fidelity_finish(struct nbt_fidelity *f)
{
    for (int c = 0; c < NBT_FID_CLASSES && f->instants; c++) {
        f->off[c] /= (double)f->instants;
        f->ratio[c] /= (double)f->instants;
        f->nmse[c] /= (double)f->instants;
    }
}
