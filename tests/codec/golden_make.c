/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write the golden vectors of the quantizing codecs, of delta4 and of ulp with the reference: golden_make
 * QUANT DELTA4 ULP. Run it only when the format changes on purpose, together with the format's version and
 * docs/wire-format.md.
 */
#include "golden.h"
#include "reference.h"

static void put(FILE *f, const void *data, size_t bytes)
{
    uint8_t length[4];
    nb_put32(length, (uint32_t)bytes);
    if (fwrite(length, 1, 4, f) != 4 || fwrite(data, 1, bytes, f) != bytes) {
        perror("golden_make");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static struct golden_result g;
    static struct golden_difference_result d;
    if (argc != 2 + GOLDEN_DIFFERENCES) {
        fprintf(stderr, "usage: golden_make QUANT DELTA4 ULP\n");
        return 2;
    }
    FILE *f = fopen(argv[1], "wb");
    if (!f || variant_select(VARIANT_REFERENCE)) {
        perror(argv[1]);
        return 1;
    }
    for (unsigned c = 0; c < GOLDEN_CASES; c++) {
        if (golden_run(c, &g)) {
            fprintf(stderr, "golden_make: case %u failed\n", c);
            return 1;
        }
        put(f, g.values, g.input);
        put(f, g.span, g.coded);
        put(f, g.out, g.decoded);
        put(f, g.err, golden_cases[c].n);
        put(f, g.scale, g.scales);
    }
    for (int type = 0; type < NB_DTYPE_COUNT; type++) {
        if (golden_sum((enum nb_dtype)type, g.out)) {
            fprintf(stderr, "golden_make: sum failed\n");
            return 1;
        }
        put(f, g.out, GOLDEN_SUM * nb_dtype_size((enum nb_dtype)type));
    }
    if (fclose(f)) {
        perror(argv[1]);
        return 1;
    }
    for (unsigned file = 0; file < GOLDEN_DIFFERENCES; file++) {
        const struct golden_differences *of = &golden_differences[file];
        f = fopen(argv[2 + file], "wb");
        for (unsigned c = 0; f && c < of->n; c++) {
            if (golden_difference(of, c, &d)) {
                fprintf(stderr, "golden_make: case %u of %s failed\n", c, of->name);
                return 1;
            }
            put(f, d.ref, d.bytes);
            put(f, d.cur, d.bytes);
            put(f, d.span, d.coded);
            put(f, d.out, d.bytes);
        }
        if (!f || fclose(f)) {
            perror(argv[2 + file]);
            return 1;
        }
    }
    return 0;
}
