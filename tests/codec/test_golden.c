/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes on the wire, the values, the error states and the sums never change:
 * tests/codec/golden/quant.bin, delta4.bin, ulp.bin. */

#include "golden.h"
#include "reference.h"
#include "tests/suite.h"

static uint8_t *file;
static size_t file_bytes, position;

static void load(const char *name)
{
    char path[4096];
    const char *top = getenv("NB_SRCDIR");
    snprintf(path, sizeof path, "%s/tests/codec/golden/%s.bin", top ? top : ".", name);
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "cannot open %s", path);
    file = malloc(1 << 20);
    file_bytes = fread(file, 1, 1 << 20, f);
    ck_assert_uint_gt(file_bytes, 1000);
    ck_assert_uint_lt(file_bytes, 200000);
    fclose(f);
    position = 0;
}

static void same(const void *data, size_t bytes, const char *what, unsigned c)
{
    ck_assert_msg(position + 4 <= file_bytes, "the file ends early");
    size_t want = nb_get32(file + position);
    position += 4;
    ck_assert_msg(want == bytes && position + want <= file_bytes, "%s of case %u: %zu bytes, not %zu", what,
                  c, bytes, want);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(file[position + i] == ((const uint8_t *)data)[i],
                      "%s of case %u differ at byte %zu (%s)", what, c, i,
                      variant_name((int)nb_codec_selected()));
    position += bytes;
}

START_TEST(golden)
{
    static struct golden_result g;
    if (!variant_available(_i)) {
        printf("this CPU or build has no %s\n", variant_name(_i));
        return;
    }
    ck_assert_int_eq(variant_select(_i), 0);
    load("quant");
    for (unsigned c = 0; c < GOLDEN_CASES; c++) {
        ck_assert_int_eq(golden_run(c, &g), 0);
        same(g.values, g.input, "inputs", c);
        same(g.span, g.coded, "coded bytes", c);
        same(g.out, g.decoded, "values", c);
        same(g.err, golden_cases[c].n, "errors", c);
        same(g.scale, g.scales, "error scales", c);
    }
    for (unsigned type = 0; type < NB_DTYPE_COUNT; type++) {
        ck_assert_int_eq(golden_sum((enum nb_dtype)type, g.out), 0);
        same(g.out, GOLDEN_SUM * nb_dtype_size((enum nb_dtype)type), "sums", type);
    }
    ck_assert_uint_eq(position, file_bytes);
    free(file);
}
END_TEST

START_TEST(differences)
{
    static struct golden_difference_result g;
    if (variant_select(_i)) {
        printf("this CPU or build has no %s\n", variant_name(_i));
        return;
    }
    for (unsigned i = 0; i < GOLDEN_DIFFERENCES; i++) {
        const struct golden_differences *of = &golden_differences[i];
        load(of->name);
        for (unsigned c = 0; c < of->n; c++) {
            ck_assert_int_eq(golden_difference(of, c, &g), 0);
            same(g.ref, g.bytes, "references", c);
            same(g.cur, g.bytes, "inputs", c);
            same(g.span, g.coded, "coded bytes", c);
            same(g.out, g.bytes, "values", c);
        }
        ck_assert_uint_eq(position, file_bytes);
        free(file);
    }
}
END_TEST

SUITE_MAIN("golden vectors", LOOP(golden, VARIANT_REFERENCE, NB_VARIANT_COUNT),
           LOOP(differences, VARIANT_REFERENCE, NB_VARIANT_COUNT))
