/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the quantizing decoders, nb_reduce, and the encoders. All variants must refuse or decode coded
 * bytes of any origin alike, without a read or write outside. Encodings of any values must decode, and have
 * the same bytes from all variants.
 *
 * Input: action u8 (0 decode, 1 reduce, 2 encode), codec u8, type u8, values u16, first u16, then
 *   decode: coded bytes
 *   reduce: sources u8, own u8, codec u8 and length u16 of each, then their bytes
 *   encode: feedback u8, seed u64, values.
 */
#include <errno.h>

#include "fuzz.h"
#include "reference.h"

#define MOST_VALUES 9000u
#define MOST_SOURCES 5u

static const enum nb_codec codecs[] = {NB_CODEC_INT4, NB_CODEC_INT8, NB_CODEC_RAW, NB_CODEC_INT6};

#define GUARD 16u /* bytes before and behind a result that must stay unchanged */

static void check_guards(const uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        FUZZ_CHECK(out[i] == 0xa5 && out[GUARD + bytes + i] == 0xa5);
}

/* Require that a variant gives the result of the first one, which stays in *want. */
static void same(uint8_t *out, int rc, size_t bytes, uint8_t **want, int *want_rc)
{
    FUZZ_CHECK(rc == 0 || rc == -EBADMSG);
    check_guards(out, bytes);
    if (!*want) {
        *want = out;
        *want_rc = rc;
        return;
    }
    FUZZ_CHECK(rc == *want_rc);
    FUZZ_CHECK(rc || memcmp(out, *want, bytes + 2 * GUARD) == 0);
    free(out);
}

static void decode(struct fuzz_input *in, enum nb_codec codec, enum nb_dtype type, size_t n, uint64_t first)
{
    const size_t bytes = n * nb_dtype_size(type), len = in->left;
    uint8_t *coded = fuzz_copy(in, len), *want = NULL;
    int want_rc = 0;

    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bytes + 2 * GUARD, 0xa5);
        int rc = nb_decode(codec, type, coded, len, n, first, out + GUARD);
        same(out, rc, bytes, &want, &want_rc);
    }
    free(want);
    free(coded);
}

static void reduce(struct fuzz_input *in, enum nb_dtype type, size_t n, uint64_t first)
{
    const size_t bytes = n * nb_dtype_size(type), nsources = fuzz_take(in, 1) % (MOST_SOURCES + 1);
    const int with_own = (int)fuzz_take(in, 1) & 1;
    struct nb_source sources[MOST_SOURCES];
    uint8_t *coded[MOST_SOURCES], *own, *want = NULL;
    int want_rc = 0;

    for (size_t s = 0; s < nsources; s++) {
        sources[s].codec = codecs[fuzz_take(in, 1) % 4];
        sources[s].len = fuzz_take(in, 2);
        if (sources[s].codec == NB_CODEC_RAW && sources[s].len % 4)
            sources[s].len = bytes;
    }
    for (size_t s = 0; s < nsources; s++)
        sources[s].coded = coded[s] = fuzz_copy(in, sources[s].len);
    own = fuzz_copy(in, bytes);
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bytes + 2 * GUARD, 0xa5);
        if (with_own)
            memcpy(out + GUARD, own, bytes);
        int rc = nb_reduce(type, sources, nsources, with_own ? out + GUARD : NULL, n, first, out + GUARD);
        same(out, rc, bytes, &want, &want_rc);
    }
    for (size_t s = 0; s < nsources; s++)
        free(coded[s]);
    free(own);
    free(want);
}

static void encode(struct fuzz_input *in, enum nb_codec codec, enum nb_dtype type, size_t n, uint64_t first)
{
    const unsigned feedback = (unsigned)fuzz_take(in, 1);
    const size_t bytes = n * nb_dtype_size(type), bound = nb_encode_bound(codec, type, n), block = first + n;
    const size_t err_bytes = nb_ef_err_bytes(block), scale_bytes = nb_ef_scale_bytes(block);
    uint64_t seed = fuzz_take(in, 8) | 1;
    uint8_t *src = fuzz_copy(in, bytes), *err = fuzz_alloc(err_bytes, 0), *scale = fuzz_alloc(scale_bytes, 0);
    uint8_t *want = NULL, *want_err = NULL, *want_scale = NULL, *decoded = fuzz_alloc(bytes, 0);
    ssize_t want_len = 0;

    FUZZ_CHECK(bound >= bytes);
    if (feedback & 4) { /* state of any kind */
        for (size_t i = 0; i < err_bytes; i++)
            err[i] = (uint8_t)fuzz_random(&seed);
        for (size_t i = 0; i < scale_bytes; i++)
            scale[i] = (uint8_t)fuzz_random(&seed);
    }
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *out = fuzz_alloc(bound, 0xa5), *e = fuzz_alloc(err_bytes, 0),
                *s = fuzz_alloc(scale_bytes, 0);
        struct nb_ef ef = {.err = (int8_t *)e,
                           .scale = s,
                           .mode = feedback % 3 == 1 ? NB_EF_FULL : NB_EF_EMA,
                           .beta = 0.75f,
                           .bound = 0.2f};
        struct nb_encode_stats stats = {0};
        memcpy(e, err, err_bytes);
        memcpy(s, scale, scale_bytes);
        ssize_t len = nb_encode(codec, type, src, n, first, feedback % 3 ? &ef : NULL, out, bound, &stats);
        FUZZ_CHECK(len >= 0 && (size_t)len <= bound);
        FUZZ_CHECK(stats.values == n);
        FUZZ_CHECK(nb_decode(codec, type, out, (size_t)len, n, first, decoded) == 0);
        if (!want) {
            want = out;
            want_err = e;
            want_scale = s;
            want_len = len;
            continue;
        }
        FUZZ_CHECK(len == want_len && memcmp(out, want, (size_t)len) == 0);
        FUZZ_CHECK(memcmp(e, want_err, err_bytes) == 0 && memcmp(s, want_scale, scale_bytes) == 0);
        free(out);
        free(e);
        free(s);
    }
    free(src);
    free(err);
    free(scale);
    free(want);
    free(want_err);
    free(want_scale);
    free(decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned action = (unsigned)fuzz_take(&in, 1) % 3;
    const enum nb_codec codec = codecs[fuzz_take(&in, 1) % 4];
    const enum nb_dtype type = (enum nb_dtype)(fuzz_take(&in, 1) % NB_DTYPE_COUNT);
    const size_t n = fuzz_take(&in, 2) % MOST_VALUES;
    const uint64_t first = fuzz_take(&in, 2);

    if (action == 0)
        decode(&in, codec, type, n, first);
    else if (action == 1)
        reduce(&in, type, n, first);
    else
        encode(&in, codec, type, n, first);
    return 0;
}
