/* SPDX-License-Identifier: Apache-2.0 */
/* The host's device with codec threads: results and ends. test_host_places.c tests where they run. */
#include "device/host/host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "tests/base/capture.h"
#include "tests/device/host_node.h"
#include "tests/suite.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN 0
#endif

#define VALUES 65536u
#define PIECE 16384u /* values of an item of work: too many for the calling thread */
#define PIECES (VALUES / PIECE)

/* ---- works ------------------------------------------------------------------------------------------- */

/* A codec whose encoder waits until the test lets it go. */
static atomic_bool held;
static atomic_uint entered;

static ssize_t waiting_encode(const struct nb_encoding *e)
{
    atomic_fetch_add(&entered, 1);
    while (atomic_load(&held))
        host_nap_ms(1);
    memset(e->dst, 7, e->cap);
    return (ssize_t)e->cap;
}

static const struct nb_codec_row waiting_row = {.name = "waiting", .encode = waiting_encode};

static struct nb_encoding waiting(void *dst, size_t cap)
{
    return (struct nb_encoding){.codec = &waiting_row, .src = dst, .bytes = 1 << 20, .dst = dst, .cap = cap};
}

static void hold(void)
{
    atomic_store(&held, true);
    atomic_store(&entered, 0);
}

/* ---- results ----------------------------------------------------------------------------------------- */

struct data {
    float values[VALUES], sum[VALUES], decoded[VALUES], copied[VALUES];
    uint8_t coded[PIECES][PIECE * 5], delta[PIECES][PIECE * 5], undone[VALUES * 4];
    int8_t err[VALUES];
    uint8_t scale[VALUES / NB_GROUP];
    int32_t exact[VALUES];
    ssize_t coded_bytes[PIECES], delta_bytes[PIECES];
};

static void make_values(float *v, unsigned seed)
{
    uint64_t s = seed * UINT64_C(2654435761) + 1;

    for (unsigned i = 0; i < VALUES; i++) {
        s = s * UINT64_C(6364136223846793005) + 1442695040888963407u;
        v[i] = (float)((double)(int64_t)s * 0x1p-66);
    }
}

/* Do everything that a device does, with a few items of work of each kind in flight, over three rounds that
 * carry errors on. */
static void do_all(struct nb_device *dev, struct data *d)
{
    const struct nb_device_ops *o = dev->ops;
    struct nb_work w[5][PIECES];
    ssize_t ret[5][PIECES];
    struct nb_encode_stats stats[PIECES];
    struct nb_source source[PIECES];
    const struct nb_ef ef = {.mode = NB_EF_FULL, .bound = 0.2f, .err = d->err, .scale = d->scale};

    memset(stats, 0, sizeof(stats));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned p = 0; p < PIECES; p++) {
            const struct nb_encoding e = {.codec = nb_codec_row(NB_CODEC_INT4),
                                          .format = NB_F32,
                                          .src = d->values + p * PIECE,
                                          .bytes = PIECE * 4,
                                          .first = p * PIECE,
                                          .limit = PIECE * 4,
                                          .ef = &ef,
                                          .dst = d->coded[p],
                                          .cap = sizeof(d->coded[p]),
                                          .stats = &stats[p]};
            const struct nb_encoding g = {.codec = nb_codec_row(NB_CODEC_ULP),
                                          .format = NB_ULP_32,
                                          .src = d->values + p * PIECE,
                                          .bytes = PIECE * 4,
                                          .ref = d->copied + p * PIECE,
                                          .limit = PIECE * 4,
                                          .dst = d->delta[p],
                                          .cap = sizeof(d->delta[p])};
            ret[0][p] = o->encode(dev, &w[0][p], &e);
            ret[1][p] = o->encode(dev, &w[1][p], &g);
        }
        for (unsigned p = 0; p < PIECES; p++) {
            d->coded_bytes[p] = ret[0][p] == -EINPROGRESS ? host_finished(dev, &w[0][p]) : ret[0][p];
            d->delta_bytes[p] = ret[1][p] == -EINPROGRESS ? host_finished(dev, &w[1][p]) : ret[1][p];
            ck_assert_int_gt(d->coded_bytes[p], 0);
            ck_assert_msg(d->delta_bytes[p] > 0 || d->delta_bytes[p] == -E2BIG, "delta %zd",
                          d->delta_bytes[p]);
            source[p] = (struct nb_source){
                .codec = NB_CODEC_INT4, .coded = d->coded[p], .len = (size_t)d->coded_bytes[p]};
        }
        for (unsigned p = 0; p < PIECES; p++) {
            const void *plain[1] = {d->values + p * PIECE};
            const struct nb_decoding g = {.codec = nb_codec_row(NB_CODEC_INT4),
                                          .format = NB_F32,
                                          .coded = d->coded[p],
                                          .len = (size_t)d->coded_bytes[p],
                                          .bytes = PIECE * 4,
                                          .first = p * PIECE,
                                          .dst = d->decoded + p * PIECE};
            ret[0][p] = o->decode(dev, &w[0][p], &g);
            ret[1][p] = o->reduce(dev, &w[1][p], NB_F32, &source[p], 1, d->values + p * PIECE, PIECE,
                                  p * PIECE, d->sum + p * PIECE);
            ret[2][p] = o->copy(dev, &w[2][p], d->copied + p * PIECE, d->values + p * PIECE, PIECE * 4);
            /* `plain` is gone when the work is done: after that the device may read only copies of
             * addresses. */
            static const void *kept[PIECES][1];
            kept[p][0] = plain[0];
            ret[3][p] = o->reduce_exact(dev, &w[3][p], ncclInt32, ncclSum, kept[p], 1, d->values + p * PIECE,
                                        PIECE, d->exact + p * PIECE);
        }
        for (unsigned p = 0; p < PIECES; p++)
            for (unsigned k = 0; k < 4; k++)
                ck_assert_int_eq(ret[k][p] == -EINPROGRESS ? host_finished(dev, &w[k][p]) : ret[k][p], 0);
        d->values[round] += 1;
    }
}

START_TEST(same_bits)
{
    static const int64_t counts[] = {0, 1, 2, 7};
    struct data *d[4];
    struct host_node n;

    for (unsigned i = 0; i < 4; i++) {
        struct nb_device *dev;
        host_node_open(&n, counts[i]);
        dev = host_node_device(&n);
        ck_assert(host_threads_are((unsigned)counts[i]));
        ck_assert(counts[i] ? dev->ops->workers && dev->ops->workers(dev) == counts[i]
                            : dev == nb_host_device());
        d[i] = calloc(1, sizeof(struct data));
        make_values(d[i]->values, 3);
        do_all(dev, d[i]);
        if (counts[i])
            ck_assert_uint_gt(atomic_load(&n.done), 3 * PIECES);
        dev->ops->close(dev);
        host_node_close(&n);
        ck_assert(host_threads_are(0));
        ck_assert_msg(memcmp(d[i], d[0], sizeof(struct data)) == 0, "%u threads: other bits",
                      (unsigned)counts[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        free(d[i]);
}
END_TEST

/* Errors of a codec are results too. The calling thread does small work itself. At most as many items of
 * work are in flight as there are slots. */
START_TEST(refusals)
{
    static uint8_t bytes[1 << 20], out[1 << 20];
    struct nb_work w[80];
    struct host_node n;
    struct nb_device *dev;
    unsigned taken = 0;
    const struct nb_decoding bad = {.codec = nb_codec_row(NB_CODEC_INT4),
                                    .format = NB_F32,
                                    .coded = bytes,
                                    .len = 3,
                                    .bytes = 65536,
                                    .dst = out};

    host_node_open(&n, 2);
    dev = host_node_device(&n);
    ck_assert_int_eq(dev->ops->decode(dev, &w[0], &bad), -EINPROGRESS);
    ck_assert_int_eq(host_finished(dev, &w[0]), -EBADMSG);
    ck_assert_int_eq(dev->ops->failed(dev), 0);
    ck_assert_int_eq(dev->ops->copy(dev, &w[0], out, bytes, 512), 0);
    ck_assert_int_eq(dev->ops->copy(dev, NULL, out, bytes, sizeof(out)), 0);
    hold();
    for (unsigned i = 0; i < 80; i++) {
        const struct nb_encoding e = waiting(out + 64 * i, 64);
        const ssize_t ret = dev->ops->encode(dev, &w[i], &e);
        taken += ret == -EINPROGRESS;
        ck_assert(ret == (taken == i + 1 ? -EINPROGRESS : -EAGAIN));
    }
    ck_assert_uint_eq(taken, 64);
    ck_assert_int_eq(dev->ops->news(dev), 0);
    atomic_store(&held, false);
    for (unsigned i = 0; i < taken; i++)
        ck_assert_int_eq(host_finished(dev, &w[i]), 64);
    ck_assert_int_eq(dev->ops->news(dev), 0);
    dev->ops->close(dev);
    host_node_close(&n);
}
END_TEST

/* ---- ends -------------------------------------------------------------------------------------------- */

/* Work that has begun ends, other work never begins, and its memory may go. Two communicators share the
 * threads, and one of them goes on. */
static void *let_go(void *arg)
{
    host_nap_ms(20);
    atomic_store(&held, false);
    return arg;
}

START_TEST(quiesced)
{
    unsigned dropped = 0; /* turns in which the waiting work did not begin */

    for (unsigned turn = 0; turn < 20; turn++) {
        const size_t bytes = 40 * 4096;
        uint8_t *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        static uint8_t others[64];
        struct nb_work w[40], other;
        struct nb_device *dev, *beside;
        struct nb_encoding e = waiting(others, sizeof(others));
        struct host_node n;
        pthread_t helper;
        unsigned gone = 0;

        ck_assert(mem != MAP_FAILED);
        host_node_open(&n, 3);
        dev = host_node_device(&n);
        beside = host_node_device(&n);
        ck_assert(host_threads_are(3));
        hold();
        for (unsigned i = 0; i < 40; i++) {
            const struct nb_encoding mine = waiting(mem + 4096 * i, 4096);
            if (i == 20)
                ck_assert_int_eq(beside->ops->encode(beside, &other, &e), -EINPROGRESS);
            ck_assert_int_eq(dev->ops->encode(dev, &w[i], &mine), -EINPROGRESS);
        }
        while (turn % 2 && atomic_load(&entered) < 3)
            host_nap_ms(1);
        if (turn % 2) /* during quiesce */
            ck_assert_int_eq(pthread_create(&helper, NULL, let_go, NULL), 0);
        else
            atomic_store(&held, false);
        dev->ops->quiesce(dev);
        if (turn % 2)
            pthread_join(helper, NULL);
        munmap(mem, bytes);
        ck_assert(!dev->ops->lost(dev) && !dev->ops->failed(dev) && !dev->ops->news(dev));
        for (unsigned i = 0; i < 40; i++)
            gone += dev->ops->poll(dev, &w[i]) == -ECANCELED;
        ck_assert_uint_eq(gone, 40);
        ck_assert_int_eq(host_finished(beside, &other), 64);
        dropped += atomic_load(&entered) <= 3 + 1;
        ck_assert_int_eq(dev->ops->copy(dev, &w[0], others, others + 32, 32), 0); /* the device still works */
        dev->ops->close(dev);
        ck_assert(host_threads_are(3));
        beside->ops->close(beside);
        ck_assert(host_threads_are(0));
        host_node_close(&n);
    }
    ck_assert_uint_gt(dropped, 0);
}
END_TEST

/* Contexts share no threads. */
START_TEST(two_contexts)
{
    static uint8_t out[2][64];
    struct nb_device *dev[2];
    struct nb_work w[2];
    struct host_node n[2];

    for (int i = 0; i < 2; i++) {
        host_node_open(&n[i], 2 + i);
        dev[i] = host_node_device(&n[i]);
    }
    ck_assert(host_threads_are(5));
    hold();
    for (int i = 0; i < 2; i++) {
        const struct nb_encoding e = waiting(out[i], 64);
        ck_assert_int_eq(dev[i]->ops->encode(dev[i], &w[i], &e), -EINPROGRESS);
    }
    while (atomic_load(&entered) < 2)
        host_nap_ms(1);
    atomic_store(&held, false);
    ck_assert_int_eq(host_finished(dev[0], &w[0]), 64);
    dev[0]->ops->close(dev[0]);
    host_node_close(&n[0]);
    ck_assert(host_threads_are(3));
    ck_assert_int_eq(host_finished(dev[1], &w[1]), 64);
    dev[1]->ops->close(dev[1]);
    host_node_close(&n[1]);
    ck_assert(host_threads_are(0));
}
END_TEST

/* The system gives no threads: the engine's thread does all work. */
START_TEST(no_threads)
{
    struct host_node n;
    struct nb_device *dev;

    host_node_open(&n, 4);
    n.params.fault = "codec-thread";
    ck_assert_ptr_eq(host_node_device(&n), nb_host_device());
    n.params.fault = "";
    dev = host_node_device(&n); /* and the next communicator gets some */
    ck_assert(host_threads_are(4));
    dev->ops->close(dev);
    host_node_close(&n);
}
END_TEST

/* By default there are no codec threads where the caller makes the engine's steps, or in a context without a
 * pool. */
START_TEST(not_wanted)
{
    struct nb_host_pool *pool;
    struct host_node n;

    host_node_open(&n, -1);
    n.ctx.work_done = NULL;
    ck_assert_ptr_eq(host_node_device(&n), nb_host_device());
    n.params.host_threads = 2;
    pool = n.ctx.host_pool;
    n.ctx.host_pool = NULL;
    ck_assert_ptr_eq(host_node_device(&n), nb_host_device());
    n.ctx.host_pool = pool;
    host_node_close(&n);
}
END_TEST

/* Work does not end: the communicator fails in bounded time, and its memory must stay while the work hangs.
 * A process that was stopped for long does not fail. */
START_TEST(stuck)
{
    static uint8_t out[64];
    struct nb_encoding e = waiting(out, sizeof(out));
    struct nb_device *dev;
    struct nb_work w;
    struct host_node n;
    unsigned turns = 0;

    capture_reset();
    nb_log_set(capture_log);
    host_node_open(&n, 2);
    dev = host_node_device(&n);
    hold();
    ck_assert_int_eq(dev->ops->encode(dev, &w, &e), -EINPROGRESS);
    while (!atomic_load(&entered))
        host_nap_ms(1);
    for (int i = 0; i < 10; i++) { /* stopped for hours, ten times */
        dev->ops->turn(dev, 1);
        atomic_fetch_add(&n.now, 3600 * (int64_t)NB_NS_PER_S);
    }
    ck_assert_int_eq(dev->ops->failed(dev), 0);
    for (; !dev->ops->failed(dev) && turns < 1000; turns++) {
        atomic_fetch_add(&n.now, (int64_t)NB_NS_PER_S / 2);
        dev->ops->turn(dev, 1);
    }
    ck_assert_int_eq(dev->ops->failed(dev), -ETIMEDOUT);
    ck_assert_uint_ge(turns, 2 * (60 - 11));
    ck_assert_uint_le(turns, 2 * 60 + 1);
    ck_assert(capture_has("codec threads have not ended a work for 60 s"));
    ck_assert_int_eq(dev->ops->poll(dev, &w), -ETIMEDOUT);
    ck_assert_int_eq(dev->ops->copy(dev, &w, out, out, 64), 0); /* an empty copy */
    ck_assert_int_eq(dev->ops->copy(dev, &w, out, out + 32, 32), -ETIMEDOUT);
    dev->ops->quiesce(dev);
    ck_assert_int_eq(dev->ops->lost(dev), 1);
    atomic_store(&held, false); /* it ends after all */
    dev->ops->quiesce(dev);
    ck_assert_int_eq(dev->ops->lost(dev), 0);
    dev->ops->close(dev);
    host_node_close(&n);
    nb_log_set(NULL);
}
END_TEST

/* While work goes on ending, the communicator does not fail, however long the wait. */
START_TEST(slow_but_alive)
{
    static uint8_t out[1 << 16], from[1 << 16];
    struct nb_encoding e = waiting(out, 64);
    struct nb_device *dev;
    struct nb_work w, other;
    struct host_node n;

    host_node_open(&n, 2);
    dev = host_node_device(&n);
    hold();
    ck_assert_int_eq(dev->ops->encode(dev, &w, &e), -EINPROGRESS);
    for (int i = 0; i < 300; i++) {
        atomic_fetch_add(&n.now, (int64_t)NB_NS_PER_S / 2);
        if (i % 50 == 0) {
            ck_assert_int_eq(dev->ops->copy(dev, &other, out + 64, from, 32768), -EINPROGRESS);
            ck_assert_int_eq(host_finished(dev, &other), 0);
            host_nap_ms(2); /* until its worker has counted it */
        }
        dev->ops->turn(dev, 1);
        ck_assert_int_eq(dev->ops->failed(dev), 0);
    }
    atomic_store(&held, false);
    ck_assert_int_eq(host_finished(dev, &w), 64);
    dev->ops->close(dev);
    host_node_close(&n);
}
END_TEST

/* A child of fork has no workers, and closes without them. */
START_TEST(forked)
{
    static uint8_t out[64];
    struct nb_encoding e = waiting(out, sizeof(out));
    struct nb_device *dev;
    struct nb_work w[4];
    struct host_node n;
    int status;
    pid_t child;

    host_node_open(&n, 2);
    dev = host_node_device(&n);
    hold();
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(dev->ops->encode(dev, &w[i], &e), -EINPROGRESS);
    while (atomic_load(&entered) < 2)
        host_nap_ms(1);
    child = fork();
    if (child == 0) {
        dev->ops->quiesce(dev);
        status = dev->ops->poll(dev, &w[0]) != -ECANCELED || dev->ops->lost(dev);
        dev->ops->close(dev);
        host_node_close(&n);
        _exit(status);
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    atomic_store(&held, false);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(host_finished(dev, &w[i]), 64);
    dev->ops->close(dev);
    host_node_close(&n);
}
END_TEST

/* The thread sanitizer does not follow threads into a child. */
SUITE_MAIN("host_threads", TEST(same_bits), TEST(refusals), TEST(quiesced), TEST(two_contexts),
           TEST(no_threads), TEST(not_wanted), TEST(stuck), TEST(slow_but_alive),
           WITH_TSAN ? (void)0 : TEST(forked))
