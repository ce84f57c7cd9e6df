/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's answers to questions equal the host's. */
#include "cuda_fixture.h"

#include <errno.h>
#include <string.h>

#include "codec/pick.h"

/* Require that the CUDA device's answer, given at once or later, equals the host's. Return it. */
static double likeness(struct nb_device *dev, const void *a, const void *b, size_t bytes, unsigned samples)
{
    struct nb_similarity near = {.near16 = 99};
    struct nb_work w;

    CHECK(finish(dev, &w, dev->ops->similarity(dev, &w, a, b, bytes, samples, &near)) == 0);
    return nb_likeness_of(&near);
}

/* Require equal sums of squares. All NaNs count as equal. */
static void same_but_nan(const char *what, const float *a, const float *b, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (a[i] == a[i] || b[i] == b[i])
            same(what, &a[i], &b[i], sizeof(*a));
}

/* Ask all questions about values: n at `values` and `ref` on the device, with copies at the other two
 * pointers. */
static void compare_evidence(struct nb_device *dev, float *values, const float *ref, const float *host_values,
                             const float *host_ref, size_t n)
{
    static const unsigned counts[] = {0, 1, 200, 256, 5003, 5004};
    const struct nb_device_ops *o = dev->ops, *h = nb_host_device()->ops;
    static float got[5004], want[5004];
    const unsigned works = (unsigned)gpu_of(dev)->ring.done;
    struct nb_work w;
    double like;

    for (unsigned i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        const unsigned count = counts[i];
        for (unsigned shift = 0; shift < 4; shift += 2) { /* 2: unaligned FP32 values, which the CPU reads */
            const char *v = (const char *)values + shift, *hv = (const char *)host_values + shift;
            const char *r = (const char *)ref + shift, *hr = (const char *)host_ref + shift;
            for (int type = 0; type < NB_DTYPE_COUNT; type++) {
                const enum nb_dtype t = (enum nb_dtype)type;
                unsigned k = (unsigned)h->sample(nb_host_device(), NULL, t, hv, n - 1, count, want);
                memset(got, 0, sizeof(got));
                CHECK(finish(dev, &w, o->sample(dev, &w, t, v, n - 1, count, got)) == (ssize_t)k);
                same("samples", got, want, sizeof(float) * k);
                CHECK(o->sample(dev, NULL, t, v, n - 1, count, got) == (int)k);
                same("samples that are waited for", got, want, sizeof(float) * k);
                k = (unsigned)h->sums(nb_host_device(), NULL, t, hv, n - 1, count < 313 ? count : 313, want);
                memset(got, 0, sizeof(got));
                CHECK(finish(dev, &w, o->sums(dev, &w, t, v, n - 1, count < 313 ? count : 313, got)) ==
                      (ssize_t)k);
                same_but_nan("sums", got, want, k);
            }
            like = likeness(nb_host_device(), hv, hr, (n - 1) * 4, count);
            CHECK(likeness(dev, v, r, (n - 1) * 4, count) == like);
            like = likeness(nb_host_device(), hv, hv + 4, (n - 1) * 4 - 4, count); /* now and then alike */
            CHECK(likeness(dev, v, v + 4, (n - 1) * 4 - 4, count) == like);
            CHECK(count < 200 || (like > 0 && like < 1));
        }
    }
    CHECK(likeness(nb_host_device(), host_values, host_values, 3, 7) == 1);
    CHECK(likeness(dev, values, values, 3, 7) == 1 && likeness(dev, values, ref, 3, 7) == 0);
    /* Each question is one item of work, instead of one for every sample. */
    CHECK((unsigned)gpu_of(dev)->ring.done - works < 200);
    CHECK(o->sums(dev, NULL, NB_F32, values, 100, 4, got) == 0); /* there are three groups */
}

static void same_comparison(const struct nb_compared *a, const struct nb_compared *b)
{
    CHECK(a->hash == b->hash && a->ref_hash == b->ref_hash && a->equal == b->equal &&
          (b->equal || a->width == b->width));
}

/* Ask for more comparisons at a time than the ring has places. The device may refuse some, but never gives
 * half an answer. */
static void compare_comparisons(struct nb_device *dev, const void *values, const void *ref,
                                const struct buffers *b, size_t bytes)
{
    enum { MANY = 40 };
    const struct nb_device_ops *o = dev->ops, *h = nb_host_device()->ops;
    const void *const mine[] = {values, values, values, ref}, *const with[] = {ref, values, NULL, values};
    const void *const host[] = {b->host[0], b->host[0], b->host[0], b->host[1]};
    const void *const host_with[] = {b->host[1], b->host[0], NULL, b->host[0]};
    static struct nb_compared got[MANY];
    struct nb_compared want[4], waited;
    struct nb_work work[MANY];
    ssize_t ret[MANY];
    unsigned refused = 0;

    for (unsigned i = 0; i < 4; i++) {
        memset(&want[i], 0, sizeof(want[i]));
        CHECK(h->compare(nb_host_device(), NULL, host[i], host_with[i], bytes, &want[i]) == 0);
        memset(&waited, 0x5a, sizeof(waited));
        CHECK(o->compare(dev, NULL, mine[i], with[i], bytes, &waited) == 0);
        if (with[i])
            same_comparison(&waited, &want[i]);
        CHECK(waited.hash == want[i].hash);
    }
    CHECK(!want[0].equal && want[1].equal && want[1].hash == want[1].ref_hash &&
          want[3].hash == want[0].ref_hash);
    for (unsigned i = 0; i < MANY; i++)
        ret[i] = o->compare(dev, &work[i], mine[i % 4], with[i % 4], bytes, &got[i]);
    for (unsigned i = MANY; i-- > 0;) {
        while (ret[i] == -EAGAIN) {
            refused++;
            dev->ops->turn(dev, 1);
            ret[i] = o->compare(dev, &work[i], mine[i % 4], with[i % 4], bytes, &got[i]);
        }
        CHECK(finish(dev, &work[i], ret[i]) == 0);
        if (with[i % 4])
            same_comparison(&got[i], &want[i % 4]);
        CHECK(got[i].hash == want[i % 4].hash);
    }
    CHECK(refused || gpu_of(dev)->ring.major); /* the CPU's guess waits for copies */
}

static void compare_answers(struct nb_device *dev, int in_state)
{
    const struct nb_device_ops *o = dev->ops;
    const size_t n = 10007, bytes = n * 4;
    float *values, *ref;
    struct buffers b;

    make_buffers(&b, dev);
    values = in_state ? b.state[0] : b.wire[3];
    ref = b.state[2];
    fill(b.host[0], n);
    for (size_t i = 0; i < n; i++)
        b.host[1][i] = b.host[0][i] * (1.0f + (float)(random32() % 64) * 1e-6f);
    memcpy(b.wire[0], b.host[0], bytes);
    memcpy(b.wire[1], b.host[1], bytes);
    CHECK(o->copy(dev, NULL, values, b.wire[0], bytes) == 0 &&
          o->copy(dev, NULL, ref, b.wire[1], bytes) == 0);
    compare_comparisons(dev, values, ref, &b, bytes);
    compare_evidence(dev, values, ref, b.host[0], b.host[1], n);
    free_buffers(&b);
}

static void test_answers(int emulate, int major)
{
    struct nb_device *dev;

    fake = (struct fake_settings){.emulate = emulate, .major = major};
    dev = open_device(COMM);
    compare_answers(dev, 0);
    compare_answers(dev, 1);
    CHECK(dev->ops->failed(dev) == 0);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

static unsigned profile_of(struct nb_device *dev, const float *values)
{
    float out[8];
    struct nb_work w;

    CHECK(finish(dev, &w, dev->ops->sums(dev, &w, NB_F32, values, 1024, 8, out)) == 8);
    return nb_profile_of_sums(out, 8, out);
}

/* Profiles of zeros, of NaN, and of more unaligned values than the CPU could read. */
static void test_odd_evidence(void)
{
    struct nb_device *dev;
    const size_t much = ((size_t)8 << 20) + 65536;
    float out[8], *wire, *state;

    fake = (struct fake_settings){0};
    dev = open_device(COMM);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    state = dev->ops->alloc(dev, NB_PLACE_STATE, much);
    CHECK(wire && state && much - 4 > ((struct nb_cuda_device *)dev)->bounce_bytes);
    CHECK(profile_of(dev, state) == 0);
    wire[0] = 1.0f / 0.0f;
    CHECK(dev->ops->copy(dev, NULL, state, wire, 4) == 0);
    CHECK(profile_of(dev, state) == 0);
    CHECK(dev->ops->sample(dev, NULL, NB_F32, state, much / 4, 8, out) == 8);
    CHECK(dev->ops->sample(dev, NULL, NB_F32, (char *)state + 2, much / 4 - 1, 8, out) == 0);
    CHECK(dev->ops->sums(dev, NULL, NB_F32, (char *)state + 2, much / 4 - 1, 8, out) == 0);
    CHECK(dev->ops->failed(dev) == 0);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    dev->ops->free(dev, NB_PLACE_STATE, state, much);
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* Pick from a block that comes in pieces, all in flight at once and taken back in any order: the result
 * equals nb_pick's. The call never waits. With kernels beside NCCL's only, and none launched, the device
 * answers "later". */
static void test_picks(int emulate, int resident)
{
    static const size_t widths[] = {1, 2, 4};
    const size_t bytes = 4 * VALUES;
    static uint32_t got[NB_PICKS], want[NB_PICKS];
    struct nb_device *dev;
    struct buffers b;
    uint64_t launched;

    fake = (struct fake_settings){.emulate = emulate};
    if (resident)
        nb_launch_attached(&ctx, GPU, 1);
    dev = open_device(COMM);
    make_buffers(&b, dev);
    fill(b.wire[0], VALUES);
    CHECK(dev->ops->copy(dev, NULL, b.state[0], b.wire[0], bytes) == 0);
    CHECK(dev->ops->turn(dev, 0) >= 0); /* connected */
    launched = atomic_load(&gpu_of(dev)->launches.launched);
    for (unsigned i = 0; i < 6; i++) {
        const char *from = (const char *)(i % 2 ? b.wire[0] : b.state[0]);
        const size_t width = widths[i / 2], n = bytes / width - 5;
        const unsigned picks = nb_picks_of(n);
        struct nb_work work[8];
        ssize_t ret[8], all = 0;

        memset(got, 0, sizeof(got));
        memset(want, 0, sizeof(want));
        CHECK(nb_pick(width, b.wire[0], n, picks, 0, n, want) == picks);
        for (size_t k = 0; k < 8; k++) {
            const size_t begin = n * k / 8, end = n * (k + 1) / 8;
            ret[k] =
                dev->ops->pick(dev, &work[k], width, from + begin * width, n, picks, begin, end - begin, got);
            CHECK(ret[k] == -EINPROGRESS);
        }
        if (i == 0 && resident)
            CHECK(atomic_load(&gpu_of(dev)->launches.launched) == launched);
        for (size_t k = 8; k-- > 0;) {
            while (ret[k] == -EINPROGRESS) {
                dev->ops->turn(dev, 1);
                ret[k] = dev->ops->poll(dev, &work[k]);
            }
            CHECK(ret[k] >= 0);
            all += ret[k];
        }
        CHECK(all == (ssize_t)picks);
        same("picks", got, want, sizeof(got));
        CHECK(dev->ops->pick(dev, NULL, width, from, n, picks, 0, n, got) == (ssize_t)picks);
        same("picks that are waited for", got, want, sizeof(got));
        /* A range between two positions has no value to pick. */
        unsigned part;
        uint64_t none = 0;
        while (nb_pick_parts(n, picks, none, 1, &part))
            none++;
        CHECK(dev->ops->pick(dev, &work[0], width, from + none * width, n, picks, none, 1, got) == 0);
    }
    /* The kernel does not take unaligned values of four bytes, and the call does not wait for a copy. */
    CHECK(dev->ops->pick(dev, NULL, 4, (char *)b.state[0] + 2, 5000, 512, 0, 5000, got) == 0);
    CHECK(dev->ops->failed(dev) == 0);
    free_buffers(&b);
    close_device(dev);
    if (resident)
        nb_launch_attached(&ctx, GPU, -1);
    CHECK(fake_alive() == 0);
}

int main(void)
{
    fixture_open();
    test_answers(0, 0);
    test_answers(0, NB_GPU_NO_DIFFERENCES);
    if (EMULATES)
        test_answers(1, 0);
    test_odd_evidence();
    test_picks(0, 0);
    test_picks(0, 1);
    if (EMULATES)
        test_picks(1, 0);
    fixture_close();
    printf("the CUDA device answers as the host does\n");
    return 0;
}
