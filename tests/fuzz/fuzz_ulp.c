/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the ulp and delta4 decoders on bytes of any origin, and their encoders on any pair of
 * contents. All variants must agree to the byte, ulp must give back its input, and delta4 keep its promises.
 *
 * Input: action u8 (0 decode, 1 encode, 2 and 3 the same with delta4, 4 and 5 with sparse spans), width or
 * type u8, bytes u16, kind u8, seed u64. For decode, coded bytes follow, and the reference is made from the
 * seed. For encode, differences follow that are xored into a copy of the reference, repeated as often as
 * needed.
 */
#include <errno.h>
#include <math.h>

#include "codec/fp.h"
#include "fuzz.h"
#include "reference.h"

#define MOST_BYTES 6000u

static const enum nb_ulp_width widths[] = {NB_ULP_8, NB_ULP_16, NB_ULP_32};

/* Make a reference: few distinct exponents, all of them, or constants. */
static uint8_t *reference(size_t bytes, unsigned kind, uint64_t seed)
{
    uint8_t *ref = fuzz_alloc(bytes, (int)(seed & 0xff));

    for (size_t i = 0; i < bytes && kind % 3; i++)
        ref[i] = (uint8_t)fuzz_random(&seed);
    for (size_t i = 1; i < bytes && kind % 3 == 1; i += 2)
        ref[i] = (uint8_t)(0x3b + ref[i] % 3);
    return ref;
}

/* A decoder. `what` is a width or a type. */
typedef int decoder(unsigned what, const void *coded, size_t len, const void *ref, size_t bytes, void *out);

static int ulp_decoder(unsigned what, const void *coded, size_t len, const void *ref, size_t bytes, void *out)
{
    return nb_ulp_decode(widths[what], coded, len, ref, bytes, out);
}

static int sparse_decoder(unsigned what, const void *coded, size_t len, const void *ref, size_t bytes,
                          void *out)
{
    return nb_ulp_decode_sparse(widths[what], coded, len, ref, bytes, out);
}

static int delta4_decoder(unsigned what, const void *coded, size_t len, const void *ref, size_t bytes,
                          void *out)
{
    return nb_delta4_decode((enum nb_dtype)what, coded, len, ref, bytes, out);
}

static void decode(struct fuzz_input *in, decoder *decode_as, unsigned what, const uint8_t *ref, size_t bytes)
{
    const size_t len = in->left;
    uint8_t *coded = fuzz_copy(in, len), *want = NULL;
    int want_rc = 0;

    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bytes, 0);
        int rc = decode_as(what, coded, len, ref, bytes, out);
        FUZZ_CHECK(rc == 0 || rc == -EBADMSG);
        if (rc == 0) {
            /* In place too. */
            uint8_t *same = fuzz_alloc(bytes, 0);
            memcpy(same, ref, bytes);
            FUZZ_CHECK(decode_as(what, coded, len, same, bytes, same) == 0);
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

typedef ssize_t encoder(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                        void *dst, size_t cap);

/* Encode with `encode_as` and decode with `decode_as`. `mask` keeps some of each 32 bytes' differences. */
static void encode(struct fuzz_input *in, encoder *encode_as, decoder *decode_as, unsigned what,
                   const uint8_t *ref, size_t bytes, uint32_t mask)
{
    const enum nb_ulp_width width = widths[what];
    const size_t bound = nb_ulp_sparse_bound(width, bytes), period = in->left;
    uint8_t *cur = fuzz_alloc(bytes, 0), *want = NULL, *out, *back = fuzz_alloc(bytes, 0);
    ssize_t want_len = 0;

    for (size_t i = 0; i < bytes; i++)
        cur[i] = ref[i] ^ (period && mask >> i % 32 & 1 ? in->p[i % period] : 0);
    FUZZ_CHECK(nb_ulp_bound(nb_ulp_guess_width(cur, ref, bytes), bytes) >= bytes);
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        out = fuzz_alloc(bound, 0xa5);
        ssize_t len = encode_as(width, cur, ref, bytes, SIZE_MAX, out, bound);
        FUZZ_CHECK(len > 0 && (size_t)len <= bound);
        if (!want) {
            want = out;
            want_len = len;
        }
        FUZZ_CHECK(len == want_len && memcmp(out, want, (size_t)len) == 0);
        uint8_t *tight = fuzz_alloc((size_t)len, 0);
        memcpy(tight, out, (size_t)len);
        FUZZ_CHECK(decode_as(what, tight, (size_t)len, ref, bytes, back) == 0);
        FUZZ_CHECK(memcmp(back, cur, bytes) == 0);
        FUZZ_CHECK(encode_as(width, cur, ref, bytes, (size_t)len, out, bound) == -E2BIG);
        free(tight);
        if (out != want)
            free(out);
    }
    free(want);
    free(cur);
    free(back);
}

/* Check that a run's error is at most the error of rounding to bfloat16, that signs are kept, and that equal
 * or non-finite values are exact. */
static void promises(enum nb_dtype type, const uint8_t *cur, const uint8_t *ref, const uint8_t *out,
                     size_t bytes)
{
    const size_t size = nb_dtype_size(type), n = bytes / size;

    for (size_t from = 0; from < n; from += NB_DELTA4_RUN) {
        double error2 = 0, most2 = 0;
        for (size_t i = from; i < n && i < from + NB_DELTA4_RUN; i++) {
            const float x = nb_load_value(type, cur, i), y = nb_load_value(type, out, i);
            int e;
            (void)frexpf(x, &e);
            if (isfinite(x))
                most2 += pow(ldexp(1, (x == 0 || e < -125 ? -125 : e) - 8), 2) / 12;
            if (memcmp(cur + i * size, out + i * size, size) == 0)
                continue;
            FUZZ_CHECK(isfinite(x) && isfinite(y) && x != 0 && y != 0 && (x < 0) == (y < 0));
            FUZZ_CHECK(memcmp(cur + i * size, ref + i * size, size) != 0);
            error2 += pow((double)x - (double)y, 2);
        }
        FUZZ_CHECK(error2 <= 0.76 * most2);
    }
    FUZZ_CHECK(memcmp(cur + n * size, out + n * size, bytes % size) == 0);
}

static void delta4_encode(struct fuzz_input *in, enum nb_dtype type, const uint8_t *ref, size_t bytes)
{
    const size_t bound = nb_delta4_bound(type, bytes), period = in->left;
    uint8_t *cur = fuzz_alloc(bytes, 0), *want = NULL, *first = fuzz_alloc(bytes, 0),
            *back = fuzz_alloc(bytes, 0);
    ssize_t want_len = 0;

    for (size_t i = 0; i < bytes; i++)
        cur[i] = ref[i] ^ (period ? in->p[i % period] : 0);
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bound, 0xa5);
        struct nb_delta4_stats stats = {0, 0};
        ssize_t len = nb_delta4_encode(type, cur, ref, bytes, SIZE_MAX, out, bound, &stats);
        FUZZ_CHECK(len > 0 && (size_t)len <= bound);
        uint8_t *tight = fuzz_alloc((size_t)len, 0);
        memcpy(tight, out, (size_t)len);
        FUZZ_CHECK(nb_delta4_decode(type, tight, (size_t)len, ref, bytes, back) == 0);
        FUZZ_CHECK(stats.lossy || memcmp(back, cur, bytes) == 0);
        if (!want) {
            want = out;
            want_len = len;
            memcpy(first, back, bytes);
            promises(type, cur, ref, back, bytes);
        }
        FUZZ_CHECK(len == want_len && memcmp(out, want, (size_t)len) == 0);
        FUZZ_CHECK(memcmp(back, first, bytes) == 0);
        FUZZ_CHECK(nb_delta4_encode(type, cur, ref, bytes, (size_t)len, out, bound, NULL) == -E2BIG);
        free(tight);
        if (out != want)
            free(out);
    }
    free(want);
    free(cur);
    free(first);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned action = (unsigned)fuzz_take(&in, 1) % 6, what = (unsigned)fuzz_take(&in, 1) % 3;
    const enum nb_dtype type = (enum nb_dtype)what;
    const size_t bytes = fuzz_take(&in, 2) % MOST_BYTES;
    const unsigned kind = (unsigned)fuzz_take(&in, 1);
    uint8_t *ref = reference(bytes, kind, fuzz_take(&in, 8) | 1);

    if (action == 0)
        decode(&in, ulp_decoder, what, ref, bytes);
    else if (action == 1)
        encode(&in, nb_ulp_encode, ulp_decoder, what, ref, bytes, UINT32_MAX);
    else if (action == 2)
        decode(&in, delta4_decoder, what, ref, bytes);
    else if (action == 4)
        decode(&in, sparse_decoder, what, ref, bytes);
    else if (action == 5)
        encode(&in, nb_ulp_encode_sparse, sparse_decoder, what, ref, bytes, 0x01000010);
    else
        delta4_encode(&in, type, ref, bytes);
    free(ref);
    return 0;
}
