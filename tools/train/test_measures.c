/* SPDX-License-Identifier: Apache-2.0 */
/* Test the trainer's measures: the direction of an update, and values in the types that travel. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fidelity.h"
#include "tests/suite.h"
#include "values.h"

static const struct nbt_config small = {.layers = 2, .width = 64, .heads = 2, .context = 64, .batch = 1};

/* ---- fidelity ---- */

START_TEST(angle_and_norm)
{
    struct nbt_layout lay;
    struct nbt_usage usage = {.total = 1};
    struct nbt_fidelity_sums sums[2];
    struct nbt_fidelity f = {0};
    ck_assert_int_eq(nbt_layout_make(&small, &lay), 0);
    memset(usage.steps, 0, sizeof usage.steps);
    usage.steps['a'] = 1;
    float *a = calloc(lay.params, sizeof *a), *b = calloc(lay.params, sizeof *b);
    /* Matrices: 45 degrees, and the coded one is sqrt(2) longer. All other classes are equal, the rare rows
     * opposite. */
    for (int k = 0; k < lay.tensors; k++) {
        const struct nbt_tensor *t = &lay.tensor[k];
        for (size_t i = t->offset; i < t->offset + t->rows * t->cols; i++) {
            const int rare = t->by_token && (i - t->offset) / t->cols != 'a';
            b[i] = t->cls == NBT_MATRIX ? (float)(i % 2) : 1;
            a[i] = t->cls == NBT_MATRIX ? 1 : rare ? -b[i] : b[i];
        }
    }
    /* Two shards, cut inside a row. */
    const size_t cut = 1001;
    nbt_fidelity_measure(&lay, &usage, 0, cut, a, b, a, b, &sums[0]);
    nbt_fidelity_measure(&lay, &usage, cut, lay.params - cut, a + cut, b + cut, a + cut, b + cut, &sums[1]);
    nbt_fidelity_add(&f, sums, 2);
    nbt_fidelity_add(&f, sums, 2);
    nbt_fidelity_finish(&f);
    ck_assert_uint_eq(f.instants, 2);
    ck_assert_double_eq_tol(f.off[NBT_MATRIX], 1 - sqrt(0.5), 1e-9);
    ck_assert_double_eq_tol(f.ratio[NBT_MATRIX], sqrt(2), 1e-9);
    ck_assert_double_eq_tol(f.nmse[NBT_MATRIX], 1, 1e-9);
    for (int c = NBT_EMBED; c < NBT_CLASSES; c++) {
        ck_assert_double_eq_tol(f.off[c], 0, 1e-9);
        ck_assert_double_eq_tol(f.ratio[c], 1, 1e-9);
    }
    ck_assert_double_eq_tol(f.off[NBT_RARE_EMBED], 2, 1e-9);
    ck_assert_double_eq_tol(f.off[NBT_RARE_HEAD], 2, 1e-9);
    free(a);
    free(b);
}
END_TEST

/* ---- values ---- */

START_TEST(types)
{
    const float x[] = {0, -1.5f, 65504, 65520, 1e-7f, INFINITY, 1 + 0x1p-11f, -3e-8f};
    const float half[] = {0, -1.5f, 65504, INFINITY, 0x1p-23f, INFINITY, 1, -0x1p-24f};
    float back[8];
    uint16_t coded[8];
    nbt_narrow(NB_F16, x, 8, coded);
    nbt_widen(NB_F16, coded, 8, back);
    for (int i = 0; i < 8; i++)
        ck_assert_msg(back[i] == half[i], "value %d: %g instead of %g", i, (double)back[i], (double)half[i]);
    nbt_narrow(NB_BF16, x, 8, coded);
    nbt_widen(NB_BF16, coded, 8, back);
    ck_assert_float_eq(back[3], 65536);
    ck_assert_float_eq(back[6], 1);
}
END_TEST

SUITE_MAIN("measures", TEST(angle_and_norm), TEST(types))
