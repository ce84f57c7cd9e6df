/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the ulp decoder on bytes of any origin, and the round trip on any pair of contents. All
 * variants must agree to the byte.
 *
 * Input: action u8 (0 decode, 1 encode), width u8, bytes u16, kind u8, seed u64, then
 *   decode: coded bytes (the reference is made from the seed);  encode: differences that are xored into a
 * copy of the reference, repeated as often as it takes.
 */
#include <errno.h>

#include "fuzz.h"
#include "fuzz_codec.h"

#define MOST_BYTES 6000u

static const enum nb_ulp_width widths[] = {NB_ULP_8, NB_ULP_16, NB_ULP_32};

/* Few distinct exponents, all of them, or constants. */
static uint8_t *reference(size_t bytes, unsigned kind, uint64_t seed)
{
    uint8_t *ref = fuzz_alloc(bytes, (int)(seed & 0xff));

    for (size_t i = 0; i < bytes && kind % 3; i++)
        ref[i] = (uint8_t)fuzz_random(&seed);
    for (size_t i = 1; i < bytes && kind % 3 == 1; i += 2)
        ref[i] = (uint8_t)(0x3b + ref[i] % 3);
    return ref;
}

static void decode(struct fuzz_input *in, enum nb_ulp_width width, const uint8_t *ref, size_t bytes)
{
    const size_t len = in->left;
    uint8_t *coded = fuzz_copy(in, len), *want = NULL;
    int want_rc = 0;

    for (int v = NB_VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bytes, 0);
        int rc = nb_ulp_decode(width, coded, len, ref, bytes, out);
        FUZZ_CHECK(rc == 0 || rc == -EBADMSG);
        if (rc == 0) {
            /* In place too. */
            uint8_t *same = fuzz_alloc(bytes, 0);
            memcpy(same, ref, bytes);
            FUZZ_CHECK(nb_ulp_decode(width, coded, len, same, bytes, same) == 0);
            FUZZ_CHECK(memcmp(same, out, bytes) == 0);
            free(same);
        }
        if (!want) {
            want = out;
            want_rc = rc;
            continue;
        }
        FUZZ_CHECK(rc == want_rc);
        FUZZ_CHECK(rc || memcmp(out, want, bytes) == 0);
        free(out);
    }
    free(want);
    free(coded);
}

static void encode(struct fuzz_input *in, enum nb_ulp_width width, const uint8_t *ref, size_t bytes)
{
    const size_t bound = nb_ulp_bound(width, bytes), period = in->left;
    uint8_t *cur = fuzz_alloc(bytes, 0), *want = NULL, *out, *back = fuzz_alloc(bytes, 0);
    ssize_t want_len = 0;

    for (size_t i = 0; i < bytes; i++)
        cur[i] = ref[i] ^ (period ? in->p[i % period] : 0);
    FUZZ_CHECK(nb_ulp_bound(nb_ulp_guess_width(cur, ref, bytes), bytes) >= bytes);
    for (int v = NB_VARIANT_REFERENCE; next_variant(&v); v++) {
        out = fuzz_alloc(bound, 0xa5);
        ssize_t len = nb_ulp_encode(width, cur, ref, bytes, SIZE_MAX, out, bound);
        FUZZ_CHECK(len > 0 && (size_t)len <= bound);
        if (!want) {
            want = out;
            want_len = len;
        }
        FUZZ_CHECK(len == want_len && memcmp(out, want, (size_t)len) == 0);
        uint8_t *tight = fuzz_alloc((size_t)len, 0);
        memcpy(tight, out, (size_t)len);
        FUZZ_CHECK(nb_ulp_decode(width, tight, (size_t)len, ref, bytes, back) == 0);
        FUZZ_CHECK(memcmp(back, cur, bytes) == 0);
        FUZZ_CHECK(nb_ulp_encode(width, cur, ref, bytes, (size_t)len, out, bound) == -E2BIG);
        free(tight);
        if (out != want)
            free(out);
    }
    free(want);
    free(cur);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned action = (unsigned)fuzz_take(&in, 1) % 2;
    const enum nb_ulp_width width = widths[fuzz_take(&in, 1) % 3];
    const size_t bytes = fuzz_take(&in, 2) % MOST_BYTES;
    const unsigned kind = (unsigned)fuzz_take(&in, 1);
    uint8_t *ref = reference(bytes, kind, fuzz_take(&in, 8) | 1);

    if (action == 0)
        decode(&in, width, ref, bytes);
    else
        encode(&in, width, ref, bytes);
    free(ref);
    return 0;
}
