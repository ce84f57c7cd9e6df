/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs and sums of the CUDA device give the host's results. The device refuses foreign memory. */
#include "cuda_fixture.h"

#include <errno.h>
#include <string.h>

/* Encode n float values without a reference. */
static ssize_t encode(struct nb_device *dev, struct nb_work *w, enum nb_codec codec, const void *src,
                      size_t n, const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats)
{
    return dev->ops->encode(dev, w,
                            &(struct nb_encoding){.codec = nb_codec_row(codec),
                                                  .format = NB_F32,
                                                  .src = src,
                                                  .bytes = n * 4,
                                                  .ef = ef,
                                                  .dst = dst,
                                                  .cap = cap,
                                                  .stats = stats});
}

static int decode(struct nb_device *dev, struct nb_work *w, enum nb_codec codec, const void *coded,
                  size_t len, size_t n, void *dst)
{
    return dev->ops->decode(dev, w,
                            &(struct nb_decoding){.codec = nb_codec_row(codec),
                                                  .format = NB_F32,
                                                  .coded = coded,
                                                  .len = len,
                                                  .bytes = n * 4,
                                                  .dst = dst});
}

/* Encode against a reference. */
static ssize_t differ(struct nb_device *dev, struct nb_work *w, enum nb_codec codec, unsigned format,
                      const void *src, const void *ref, size_t bytes, void *dst, size_t cap,
                      struct nb_delta4_stats *runs)
{
    return dev->ops->encode(dev, w,
                            &(struct nb_encoding){.codec = nb_codec_row(codec),
                                                  .format = format,
                                                  .src = src,
                                                  .bytes = bytes,
                                                  .ref = ref,
                                                  .limit = bytes,
                                                  .dst = dst,
                                                  .cap = cap,
                                                  .runs = runs});
}

static int add(struct nb_device *dev, struct nb_work *w, enum nb_codec codec, unsigned format,
               const void *coded, size_t len, const void *ref, size_t bytes, void *dst)
{
    return dev->ops->decode(dev, w,
                            &(struct nb_decoding){.codec = nb_codec_row(codec),
                                                  .format = format,
                                                  .coded = coded,
                                                  .len = len,
                                                  .ref = ref,
                                                  .bytes = bytes,
                                                  .dst = dst});
}

static void compare_works(struct nb_device *dev, int in_state)
{
    const struct nb_device_ops *o = dev->ops, *h = nb_host_device()->ops;
    struct nb_device *host = nb_host_device();
    struct buffers b;
    struct nb_encode_stats s[2] = {{.every = 1}, {.every = 1}};
    struct nb_source src[2], src_host[2];
    struct nb_work w;
    struct nb_ef ef[2];
    const size_t n = 10007, bytes = n * 4, cap = 8 * VALUES;
    float *values, *out, out_host[10007];
    const void *plain[2];
    ssize_t len[2], got;

    make_buffers(&b, dev);
    values = in_state ? b.state[0] : b.wire[3];
    out = in_state ? b.state[1] : b.wire[3] + VALUES;
    fill(b.wire[0], VALUES);
    memcpy(b.host[0], b.wire[0], 4 * VALUES);
    CHECK(o->copy(dev, NULL, values, b.wire[0], bytes) == 0);
    /* with residuals, twice */
    CHECK((ef[0].err = o->alloc(dev, NB_PLACE_STATE, nb_ef_err_bytes(n))) != NULL);
    CHECK((ef[0].scale = o->alloc(dev, NB_PLACE_STATE, nb_ef_scale_bytes(n))) != NULL);
    CHECK(finish(dev, &w, o->zero(dev, &w, ef[0].err, nb_ef_err_bytes(n))) == 0);
    CHECK(finish(dev, &w, o->zero(dev, &w, ef[0].scale, nb_ef_scale_bytes(n))) == 0);
    ef[0].mode = NB_EF_FULL;
    ef[0].beta = 0;
    ef[0].bound = 0.2f;
    ef[1] = ef[0];
    CHECK((ef[1].err = calloc(1, nb_ef_err_bytes(n))) && (ef[1].scale = calloc(1, nb_ef_scale_bytes(n))));
    for (int i = 0; i < 2; i++) {
        len[i] =
            finish(dev, &w, encode(dev, &w, NB_CODEC_INT4, values, n, &ef[0], b.wire[1 + i], cap, &s[0]));
        got = encode(host, NULL, NB_CODEC_INT4, b.host[0], n, &ef[1], b.host[1 + i], cap, &s[1]);
        CHECK(len[i] == got);
        same("coded", b.wire[1 + i], b.host[1 + i], (size_t)got);
        src[i] = (struct nb_source){NB_CODEC_INT4, b.wire[1 + i], (size_t)got};
        src_host[i] = (struct nb_source){NB_CODEC_INT4, b.host[1 + i], (size_t)got};
    }
    CHECK(s[0].values == s[1].values && s[0].escapes == s[1].escapes && s[0].signal2 > 0);
    CHECK(s[0].signal2 > s[1].signal2 * 0.9999 && s[0].signal2 < s[1].signal2 * 1.0001);
    CHECK(o->copy(dev, NULL, b.wire[3], ef[0].err, nb_ef_err_bytes(n)) == 0);
    same("errors", b.wire[3], ef[1].err, nb_ef_err_bytes(n));
    o->copy(dev, NULL, values, b.wire[0], bytes);
    /* sums and decoding */
    CHECK(finish(dev, &w, o->reduce(dev, &w, NB_F32, src, 2, values, n, 0, out)) == 0);
    CHECK(h->reduce(host, NULL, NB_F32, src_host, 2, b.host[0], n, 0, out_host) == 0);
    CHECK(o->copy(dev, NULL, b.wire[2], out, bytes) == 0);
    same("sum", b.wire[2], out_host, bytes);
    CHECK(finish(dev, &w, decode(dev, &w, NB_CODEC_INT4, b.wire[1], (size_t)len[0], n, out)) == 0);
    CHECK(decode(host, NULL, NB_CODEC_INT4, b.host[1], (size_t)len[0], n, out_host) == 0);
    o->copy(dev, NULL, b.wire[2], out, bytes);
    same("decoded", b.wire[2], out_host, bytes);
    /* A wrong length. */
    CHECK(decode(dev, NULL, NB_CODEC_INT4, b.wire[1], (size_t)len[0] - 1, n, out) == -EBADMSG);
    /* raw, and values at an odd address: the CPU does these */
    CHECK(encode(dev, NULL, NB_CODEC_RAW, values, n, NULL, b.wire[1], cap, NULL) == (ssize_t)bytes);
    same("raw", b.wire[1], b.host[0], bytes);
    /* exact sums */
    memcpy(b.wire[1], b.host[0], bytes);
    plain[0] = b.wire[1];
    plain[1] = b.wire[0];
    CHECK(finish(dev, &w, o->reduce_exact(dev, &w, ncclFloat32, ncclSum, plain, 2, values, n, out)) == 0);
    plain[0] = plain[1] = b.host[0];
    h->reduce_exact(host, NULL, ncclFloat32, ncclSum, plain, 2, b.host[0], n, out_host);
    o->copy(dev, NULL, b.wire[2], out, bytes);
    same("exact sum", b.wire[2], out_host, bytes);
    /* differences */
    float *ref = b.state[2];
    for (size_t i = 0; i < n; i++)
        b.host[1][i] = b.host[0][i] * (1.0f + (float)(random32() % 64) * 1e-6f);
    memcpy(b.wire[1], b.host[1], bytes);
    o->copy(dev, NULL, ref, b.wire[1], bytes);
    len[0] =
        finish(dev, &w, differ(dev, &w, NB_CODEC_ULP, NB_ULP_32, values, ref, bytes, b.wire[2], cap, NULL));
    CHECK(len[0] > 0 && len[0] == differ(host, NULL, NB_CODEC_ULP, NB_ULP_32, b.host[0], b.host[1], bytes,
                                         b.host[2], cap, NULL));
    same("differences", b.wire[2], b.host[2], (size_t)len[0]);
    CHECK(finish(dev, &w,
                 add(dev, &w, NB_CODEC_ULP, NB_ULP_32, b.wire[2], (size_t)len[0], ref, bytes, out)) == 0);
    o->copy(dev, NULL, b.wire[3], out, bytes);
    same("decoded differences", b.wire[3], b.host[0], bytes);
    o->copy(dev, NULL, values, b.wire[0], bytes);
    struct nb_delta4_stats ds[2] = {{0, 0}, {0, 0}};
    len[0] =
        finish(dev, &w, differ(dev, &w, NB_CODEC_DELTA4, NB_F32, values, ref, bytes, b.wire[2], cap, &ds[0]));
    CHECK(len[0] ==
          differ(host, NULL, NB_CODEC_DELTA4, NB_F32, b.host[0], b.host[1], bytes, b.host[2], cap, &ds[1]));
    CHECK(len[0] > 0 && ds[0].runs == ds[1].runs && ds[0].lossy == ds[1].lossy);
    same("bounded differences", b.wire[2], b.host[2], (size_t)len[0]);
    CHECK(finish(dev, &w,
                 add(dev, &w, NB_CODEC_DELTA4, NB_F32, b.wire[2], (size_t)len[0], ref, bytes, out)) == 0);
    add(host, NULL, NB_CODEC_DELTA4, NB_F32, b.host[2], (size_t)len[0], b.host[1], bytes, out_host);
    o->copy(dev, NULL, b.wire[3], out, bytes);
    same("decoded bounded differences", b.wire[3], out_host, bytes);
    o->copy(dev, NULL, values, b.wire[0], bytes);
    CHECK(o->zero(dev, NULL, ref, bytes) == 0);
    o->copy(dev, NULL, b.wire[3], ref, bytes);
    CHECK(b.wire[3][0] == 0 && b.wire[3][n - 1] == 0);
    o->free(dev, NB_PLACE_STATE, ef[0].err, nb_ef_err_bytes(n));
    o->free(dev, NB_PLACE_STATE, ef[0].scale, nb_ef_scale_bytes(n));
    free(ef[1].err);
    free(ef[1].scale);
    free_buffers(&b);
}

static void test_works(int emulate, int major)
{
    struct nb_device *dev;

    fake = (struct fake_settings){.emulate = emulate, .major = major};
    dev = open_device(COMM);
    CHECK(gpu_of(dev)->launches.how == NB_LAUNCH_BATCH);
    compare_works(dev, 0);
    compare_works(dev, 1);
    CHECK(dev->ops->failed(dev) == 0);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* The device refuses memory that CUDA does not know, and names it. */
static void test_foreign_memory(void)
{
    static float here[64];
    struct nb_device *dev;
    float *wire;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    CHECK(encode(dev, NULL, NB_CODEC_INT4, here, 64, NULL, wire, 4096, NULL) == -EFAULT);
    CHECK(strstr(last_warning, "outside GPU memory and pinned memory") && dev->ops->failed(dev) == -EFAULT);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

int main(void)
{
    fixture_open();
    test_works(0, 0);
    test_works(0, NB_GPU_NO_DIFFERENCES); /* on such a GPU the CPU encodes differences */
    if (EMULATES)
        test_works(1, 0);
    test_foreign_memory();
    fixture_close();
    printf("the CUDA device's codecs give the host's bytes\n");
    return 0;
}
