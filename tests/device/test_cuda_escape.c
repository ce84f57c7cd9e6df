/* SPDX-License-Identifier: Apache-2.0 */
/* Work of the CUDA device whose kernel does not begin: by the adapter and this processor
 * (device/cuda/escape.c). The device's memory lies where this processor cannot reach it. */
#include "cuda_fixture.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "device/host/host.h"

#include "tests/gpu/fake_stream.h"

/* ---- An adapter ---------------------------------------------------------------------------------------- */

enum { HANDLES = 64 };

static struct memory {
    uint8_t *at;
    size_t bytes;
    int gpu;
} memory[HANDLES];

static struct copying {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    int tests;
} copying;

static int slow;        /* tests before a copy is done */
static int refuses;     /* registrations of GPU memory fail from this one on, counted down. 0: none */
static atomic_int held; /* 1: registrations of GPU memory do not return. 2: one has begun */
static int fails;       /* copies fail from this one on, counted down. 0: none */
static int breaks;      /* the same for tests of copies: their connection has failed */
static int by_dmabuf;   /* GPU memory is registered by DMA-BUF alone, and that fails */
static unsigned long copies;

static int counts_down(int *left)
{
    return *left && --*left == 0 ? (*left = 1) : 0;
}

static int reg(const struct nb_adapter *a, void *data, size_t bytes, bool gpu, int fd, uint64_t offset,
               void **handle)
{
    (void)a;
    (void)offset;
    for (int one = 1; gpu && atomic_load(&held); one = 1) {
        atomic_compare_exchange_strong(&held, &one, 2);
        usleep(100);
    }
    if (gpu && counts_down(&refuses))
        return -EIO;
    if (gpu && by_dmabuf)
        return fd >= 0 ? -ENOSPC : -ENOTSUP;
    for (int i = 0; i < HANDLES; i++)
        if (!memory[i].at) {
            memory[i] = (struct memory){data, bytes, gpu};
            *handle = &memory[i];
            return 0;
        }
    abort();
}

static void dereg(const struct nb_adapter *a, void *handle)
{
    struct memory *m = handle;

    (void)a;
    CHECK(m->at);
    m->at = NULL;
}

static int left(void)
{
    int n = 0;

    for (int i = 0; i < HANDLES; i++)
        n += memory[i].at != NULL;
    return n;
}

/* Require that the bytes lie in the registered memory, and return where the CPU finds them. */
static void *seen(const struct memory *m, const void *at, size_t bytes)
{
    CHECK(m && m->at && (const uint8_t *)at >= m->at && (const uint8_t *)at + bytes <= m->at + m->bytes);
    return m->gpu ? fake_seen_at(at) : (void *)(uintptr_t)at;
}

static int copy(const struct nb_adapter *a, void *to, void *to_handle, const void *from, void *from_handle,
                size_t bytes, void **request)
{
    static unsigned calls;

    (void)a;
    *request = NULL;
    CHECK(!copying.bytes && bytes &&
          ((struct memory *)to_handle)->gpu != ((struct memory *)from_handle)->gpu);
    if (++calls % 3 == 0)
        return 0; /* try again */
    if (counts_down(&fails))
        return -EIO;
    copying = (struct copying){seen(to_handle, to, bytes), seen(from_handle, from, bytes), bytes, 0};
    *request = &copying;
    return 0;
}

static int test(const struct nb_adapter *a, void *request, int *done)
{
    (void)a;
    CHECK(request == &copying && copying.bytes);
    if (counts_down(&breaks))
        return -EPROTO;
    if (copying.tests++ < slow)
        return 0;
    memcpy(copying.to, copying.from, copying.bytes);
    copying.bytes = 0;
    copies++;
    *done = 1;
    return 0;
}

static const struct nb_adapter adapter = {reg, dereg, copy, test};

/* ---- A device without a kernel ------------------------------------------------------------------------- */

static struct nb_device *dev;
static struct nb_gpu *g;

static void open_it(void)
{
    nb_device_pointers(&ctx, 1); /* so that the arena is memory that adapters reach */
    slow = 2;
    refuses = fails = breaks = by_dmabuf = 0;
    dev = open_device(COMM);
    g = gpu_of(dev);
    dev->ops->adapter(dev, &adapter);
}

/* Let no kernel begin from here on. */
static void no_kernel(void)
{
    dev->ops->turn(dev, 1); /* the engine has it from here on */
    while (dev->ops->turn(dev, 0))
        usleep(20);
    fake.never = 1;
    fake_serves(1);
}

static void close_it(void)
{
    fake_serves(0);
    fake.never = 0;
    dev->ops->quiesce(dev);
    dev->ops->adapter(dev, NULL);
    CHECK(left() == 0 && (!copying.bytes || breaks));
    copying.bytes = 0;
    close_device(dev);
    CHECK(fake_alive() == 0);
}

/* Do a work that has been submitted, as the engine does. Return its result. */
static ssize_t result(struct nb_work *w, ssize_t ret)
{
    while (ret == -EINPROGRESS) {
        dev->ops->turn(dev, 1);
        ret = dev->ops->poll(dev, w);
    }
    return ret;
}

static void *state(size_t bytes)
{
    void *at = dev->ops->alloc(dev, NB_PLACE_STATE, bytes);

    CHECK(at != NULL);
    return at;
}

/* ---- The tests ----------------------------------------------------------------------------------------- */

/* Encode with feedback from GPU memory into GPU memory, and decode and sum there. All bytes, residuals as
 * well, are those of the host's codec. */
static void test_codec(uint64_t first, size_t n)
{
    const size_t bound = nb_encode_bound(NB_CODEC_INT4, NB_F32, n), all = (size_t)first + n;
    float *values = state(4 * n), *sum = state(4 * n), *host = malloc(4 * n), *want = malloc(4 * n);
    uint8_t *coded = state(bound + 4), *err = state(nb_ef_err_bytes(all)),
            *scale = state(nb_ef_scale_bytes(all)), *here = malloc(bound), *err_here = malloc(all),
            *scale_here = malloc(nb_ef_scale_bytes(all));
    struct nb_ef ef = {(int8_t *)err, scale, NB_EF_FULL, 0, 0.2f};
    struct nb_ef ef_here = {(int8_t *)err_here, scale_here, NB_EF_FULL, 0, 0.2f};
    struct nb_encode_stats stats = {0}, stats_here = {0};
    const struct nb_codec_row *row = nb_codec_row(NB_CODEC_INT4);
    struct nb_encoding e = {.codec = row,
                            .format = NB_F32,
                            .src = values,
                            .bytes = 4 * n,
                            .first = first,
                            .ef = &ef,
                            .dst = coded,
                            .cap = bound + 4,
                            .stats = &stats};
    struct nb_work w;

    no_kernel();
    memset(err_here, 3, all);
    memset(scale_here, 90, nb_ef_scale_bytes(all));
    memcpy(fake_seen_at(err), err_here, all);
    memcpy(fake_seen_at(scale), scale_here, nb_ef_scale_bytes(all));
    for (int round = 0; round < 3; round++) {
        fill(host, n);
        memcpy(fake_seen_at(values), host, 4 * n);
        ssize_t ret = result(&w, dev->ops->encode(dev, &w, &e));
        CHECK(ret == nb_encode(NB_CODEC_INT4, NB_F32, host, n, first, &ef_here, here, bound, &stats_here));
        same("coded bytes", fake_seen_at(coded), here, (size_t)ret);
        same("residuals", fake_seen_at(err), err_here, all);
        same("their scales", fake_seen_at(scale), scale_here, nb_ef_scale_bytes(all));
        CHECK(stats.escapes == stats_here.escapes && stats.noise2 == stats_here.noise2);
        const struct nb_source source = {NB_CODEC_INT4, coded, (size_t)ret},
                               source_here = {NB_CODEC_INT4, here, (size_t)ret};
        CHECK(result(&w, dev->ops->reduce(dev, &w, NB_F32, &source, 1, values, n, first, sum)) == 0);
        CHECK(nb_reduce(NB_F32, &source_here, 1, host, n, first, want) == 0);
        same("a sum", fake_seen_at(sum), want, 4 * n);
    }
    CHECK(g->escape.works == 6 && g->ring.published == g->ring.oldest && copies > 0);
    fake_serves(0);
    free(host);
    free(want);
    free(here);
    free(err_here);
    free(scale_here);
    dev->ops->free(dev, NB_PLACE_STATE, values, 4 * n);
    dev->ops->free(dev, NB_PLACE_STATE, sum, 4 * n);
    dev->ops->free(dev, NB_PLACE_STATE, coded, bound + 4);
    dev->ops->free(dev, NB_PLACE_STATE, err, nb_ef_err_bytes(all));
    dev->ops->free(dev, NB_PLACE_STATE, scale, nb_ef_scale_bytes(all));
}

/* Every kind of question, copy and delta, between GPU memory and pinned memory. */
static void test_others(void)
{
    enum { N = 6000 };
    uint16_t *ref = state(2 * N), *cur = dev->ops->alloc(dev, NB_PLACE_WIRE, 2 * N), *out = state(2 * N);
    const size_t cap = (nb_ulp_bound(NB_ULP_16, 2 * N) + 3) / 4 * 4;
    uint8_t *coded = state(cap), *here = malloc(cap);
    struct nb_compared compared;
    struct nb_similarity near;
    float sample[64], want[64];
    uint32_t picked[NB_PICKS], want_picked[NB_PICKS];
    struct nb_work w;
    struct nb_encoding e = {.codec = nb_codec_row(NB_CODEC_ULP),
                            .format = NB_ULP_16,
                            .src = cur,
                            .bytes = 2 * N,
                            .ref = ref,
                            .limit = 2 * N,
                            .dst = coded,
                            .cap = cap};
    uint16_t *seen_ref = fake_seen_at(ref), *seen_out = fake_seen_at(out);

    no_kernel();
    for (int i = 0; i < N; i++) {
        seen_ref[i] = (uint16_t)(0x3f00 + random32() % 500);
        cur[i] = (uint16_t)(seen_ref[i] + random32() % 3);
    }
    ssize_t len = result(&w, dev->ops->encode(dev, &w, &e));
    CHECK(len > 0 && len == nb_ulp_encode(NB_ULP_16, cur, seen_ref, 2 * N, 2 * N, here, cap));
    same("deltas", fake_seen_at(coded), here, (size_t)len);
    const struct nb_decoding d = {.codec = nb_codec_row(NB_CODEC_ULP),
                                  .format = NB_ULP_16,
                                  .coded = coded,
                                  .len = (size_t)len,
                                  .ref = ref,
                                  .bytes = 2 * N,
                                  .dst = out};
    CHECK(result(&w, dev->ops->decode(dev, &w, &d)) == 0);
    same("decoded deltas", seen_out, cur, 2 * N);
    CHECK(result(&w, dev->ops->compare(dev, &w, cur, ref, 2 * N, &compared)) == 0);
    CHECK(!compared.equal && compared.hash == nb_hash64(cur, 2 * N, 0) &&
          compared.ref_hash == nb_hash64(seen_ref, 2 * N, 0) && compared.width == NB_ULP_16);
    CHECK(result(&w, dev->ops->similarity(dev, &w, cur, ref, 2 * N, 100, &near)) == 0);
    const struct nb_similarity near_here = nb_host_similarity(cur, seen_ref, 2 * N, 100);
    CHECK(near.near16 == near_here.near16 && near.far16 == near_here.far16 && near.near8 == near_here.near8 &&
          near.samples == near_here.samples);
    CHECK(result(&w, dev->ops->sample(dev, &w, NB_BF16, ref, N, 64, sample)) == 64);
    nb_host_sample(NB_BF16, seen_ref, N, 64, want);
    same("samples", sample, want, sizeof(want));
    CHECK(result(&w, dev->ops->sums(dev, &w, NB_BF16, ref, N, 64, sample)) == 64);
    nb_host_sums(NB_BF16, seen_ref, N, 64, want);
    same("sums", sample, want, sizeof(want));
    CHECK(result(&w, dev->ops->pick(dev, &w, 2, ref, N, 512, 0, N, picked)) == 512);
    nb_pick(2, seen_ref, N, 512, 0, N, want_picked);
    same("picks", picked, want_picked, 512 * sizeof(*picked));
    CHECK(result(&w, dev->ops->copy(dev, &w, out, ref, 2 * N)) == 0);
    same("a copy", seen_out, seen_ref, 2 * N);
    const void *const plain[] = {cur};
    CHECK(result(&w, dev->ops->reduce_exact(dev, &w, ncclInt8, ncclMax, plain, 1, ref, 2 * N, out)) == 0);
    for (int i = 0; i < 2 * N; i++) {
        const int8_t a = ((int8_t *)cur)[i], b = ((int8_t *)seen_ref)[i];
        CHECK(((int8_t *)seen_out)[i] == (a > b ? a : b));
    }
    CHECK(result(&w, dev->ops->zero(dev, &w, out, 2 * N)) == 0 && !seen_out[0] && !seen_out[N - 1]);
    fake_serves(0);
    free(here);
    dev->ops->free(dev, NB_PLACE_STATE, ref, 2 * N);
    dev->ops->free(dev, NB_PLACE_STATE, out, 2 * N);
    dev->ops->free(dev, NB_PLACE_STATE, coded, cap);
    dev->ops->free(dev, NB_PLACE_WIRE, cur, 2 * N);
}

/* A window waits for a kernel that does not begin. After a while the device takes the window all the same. A
 * kernel that begins then does the rest of the works. */
static void test_hand_over(void)
{
    enum { WORKS = 40 };
    struct operation op = {0};
    struct nb_work w[WORKS];
    uint8_t *from = state(WORKS), *to = state(WORKS);
    nb_cu_stream stream = fake_stream();
    unsigned done = 0;

    no_kernel();
    fake_serves(0);
    CHECK(launch(stream, COMM, &op, GATHER) != 0);
    fake_serves(1);
    CHECK(!dev->ops->ready(dev));
    while (!dev->ops->ready(dev)) {
        dev->ops->turn(dev, 1);
        usleep(1000);
    }
    dev->ops->begins(dev);
    slow = 50;
    for (unsigned i = 0; i < WORKS; i++) {
        ((uint8_t *)fake_seen_at(from))[i] = (uint8_t)(i + 1);
        CHECK(dev->ops->copy(dev, &w[i], to + i, from + i, 1) == -EINPROGRESS);
    }
    while (g->escape.works < 5)
        dev->ops->turn(dev, 1);
    fake.never = 0;
    const struct nb_gpu_ring *ring = &g->ring.host->ring;
    while (__atomic_load_n(&ring->started, __ATOMIC_ACQUIRE) ==
           __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE))
        usleep(100);
    while (done < WORKS) {
        dev->ops->turn(dev, 1);
        const ssize_t ret = dev->ops->poll(dev, &w[done]);
        CHECK(ret == 0 || ret == -EINPROGRESS);
        done += ret == 0;
    }
    CHECK(g->escape.works < WORKS && g->ring.published > 0);
    for (unsigned i = 0; i < WORKS; i++)
        CHECK(((uint8_t *)fake_seen_at(to))[i] == i + 1);
    atomic_store(&op.may_end, 1);
    while (dev->ops->turn(dev, 0) || atomic_load(&g->launches.places))
        usleep(20);
    CHECK(!g->launches.escapes);
    fake_serves(0);
    fake_wait(stream);
    fake_stream_free(stream);
    dev->ops->free(dev, NB_PLACE_STATE, from, WORKS);
    dev->ops->free(dev, NB_PLACE_STATE, to, WORKS);
}

/* The arena grows on another thread. Nobody gets the new memory before it is registered, and other work goes
 * on meanwhile. Then work goes on it, also where it begins in an older piece. */
static void test_grown(void)
{
    const size_t bytes = (size_t)100 << 20;
    uint8_t *more, *at = state(4096), *wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    struct nb_work w;

    no_kernel();
    memset(wire, 7, 4096);
    atomic_store(&held, 1);
    CHECK(!dev->ops->alloc(dev, NB_PLACE_STATE, bytes));
    while (atomic_load(&held) == 1)
        usleep(1000);
    CHECK(result(&w, dev->ops->copy(dev, &w, at, wire, 4096)) == 0);
    same("older memory", fake_seen_at(at), wire, 4096);
    pthread_mutex_lock(&g->lock);
    CHECK(g->arena.mapped < bytes);
    pthread_mutex_unlock(&g->lock);
    atomic_store(&held, 0);
    while (!(more = dev->ops->alloc(dev, NB_PLACE_STATE, bytes)))
        usleep(1000);
    uint8_t *const between = (uint8_t *)(uintptr_t)(g->arena.base + ((size_t)64 << 20)) - 1000;
    CHECK(more < between && between + 4096 < more + bytes);
    CHECK(result(&w, dev->ops->copy(dev, &w, between, wire, 4096)) == 0);
    same("memory in two pieces", fake_seen_at(between), wire, 4096);
    CHECK(result(&w, dev->ops->copy(dev, &w, more + bytes - 4096, wire, 4096)) == 0);
    same("the end of new memory", fake_seen_at(more + bytes - 4096), wire, 4096);
    /* Zeros for all of it, from little memory. */
    CHECK(result(&w, dev->ops->zero(dev, &w, more, bytes)) == 0);
    CHECK(g->escape.mem_bytes < (size_t)8 << 20);
    const uint8_t *const zeros = fake_seen_at(more);
    for (size_t i = 0; i < bytes; i += 1000)
        CHECK(zeros[i] == 0);
    CHECK(zeros[bytes - 1] == 0);
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, more, bytes);
    dev->ops->free(dev, NB_PLACE_STATE, at, 4096);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
}

/* New memory cannot be registered. All registrations end, and a kernel does the work. */
static void test_refused_later(void)
{
    const size_t bytes = (size_t)100 << 20;
    uint8_t *more, *wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    struct nb_work w;

    no_kernel();
    refuses = 1;
    while (!(more = dev->ops->alloc(dev, NB_PLACE_STATE, bytes)))
        usleep(1000);
    while (!atomic_load(&g->escape.blind))
        usleep(1000);
    int registered;
    do { /* another thread ends them */
        pthread_mutex_lock(&g->escape.making);
        registered = left();
        pthread_mutex_unlock(&g->escape.making);
    } while (registered);
    memset(wire, 7, 4096);
    CHECK(dev->ops->copy(dev, &w, more, wire, 4096) == -EINPROGRESS);
    fake.never = 0;
    CHECK(result(&w, -EINPROGRESS) == 0 && g->escape.works == 0);
    same("a kernel's copy", fake_seen_at(more), wire, 4096);
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, more, bytes);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
}

/* A fetch fails, or its connection does. The device goes on, without the adapter, and a kernel that begins
 * does the work. */
static void test_fetch_fails(int *way)
{
    uint8_t *at = state(4096), *wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    const unsigned warned = warnings;
    struct nb_work w[2];

    no_kernel();
    memset(fake_seen_at(at), 9, 4096);
    *way = 1;
    CHECK(dev->ops->copy(dev, &w[0], wire, at, 2048) == -EINPROGRESS);
    CHECK(dev->ops->copy(dev, &w[1], wire + 2048, at + 2048, 2048) == -EINPROGRESS);
    for (int i = 0; i < 100; i++) {
        dev->ops->turn(dev, 1);
        usleep(1000);
    }
    CHECK(dev->ops->poll(dev, &w[0]) == -EINPROGRESS && !g->launches.escapes && !dev->ops->failed(dev));
    CHECK(warnings == warned);
    fake.never = 0;
    CHECK(result(&w[0], -EINPROGRESS) == 0 && result(&w[1], -EINPROGRESS) == 0);
    same("a kernel's copies", wire, fake_seen_at(at), 4096);
    CHECK(g->escape.works == 0);
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, at, 4096);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
}

/* Without an adapter for all memory, work waits for NIBBLE_GPU_TIMEOUT. A store that fails, or whose
 * connection does, fails the device. */
enum no_way { REFUSES, FAILS, BREAKS };

static void test_no_way(enum no_way how)
{
    uint8_t *at, *wire;
    struct nb_work w;

    settings("NIBBLE_GPU_TIMEOUT", "1");
    nb_device_pointers(&ctx, 1);
    slow = 2;
    refuses = how == REFUSES;
    fails = how == FAILS;
    breaks = how == BREAKS;
    dev = open_device(COMM);
    g = gpu_of(dev);
    dev->ops->adapter(dev, &adapter);
    at = state(4096);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    no_kernel();
    CHECK(result(&w, dev->ops->copy(dev, &w, at, wire, 4096)) == -ECANCELED);
    CHECK(dev->ops->failed(dev) == (how == REFUSES ? -ETIMEDOUT : how == FAILS ? -EIO : -EPROTO));
    CHECK(strstr(last_warning, how == REFUSES ? "NIBBLE_GPU_TIMEOUT" : "adapter cannot store"));
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, at, 4096);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    close_it();
    settings("NIBBLE_GPU_TIMEOUT", NULL);
}

/* The line says why memory could not be registered, although a second way does not exist. */
static void test_reason(void)
{
    nb_device_pointers(&ctx, 1);
    dev = open_device(COMM);
    by_dmabuf = 1;
    dev->ops->adapter(dev, &adapter);
    CHECK(strstr(last_info, "the adapter cannot") && strstr(last_info, strerror(ENOSPC)));
    close_it();
}

/* A kernel was told to end and works on for long. No work waits, so no kernel is missed. */
static void test_kernel_at_work(void)
{
    uint8_t *at, *wire;
    struct operation op = {0};
    struct nb_work w;
    nb_cu_stream stream = fake_stream();

    settings("NIBBLE_GPU_TIMEOUT", "1");
    open_it();
    at = state(4096);
    wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 4096);
    no_kernel();
    fake_serves(0);
    fake.stuck = 1;
    fake.never = 0;
    CHECK(launch(stream, COMM, &op, GATHER) != 0);
    fake_serves(1);
    while (!dev->ops->ready(dev))
        dev->ops->turn(dev, 1);
    dev->ops->begins(dev);
    CHECK(dev->ops->copy(dev, &w, at, wire, 4096) == -EINPROGRESS && g->ring.oldest < g->ring.published);
    atomic_store(&op.may_end, 1);
    while (!g->launches.told)
        dev->ops->turn(dev, 0);
    CHECK(result(&w, -EINPROGRESS) == -ECANCELED);
    CHECK(!g->launches.escape_said && dev->ops->failed(dev) == -ETIMEDOUT);
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, at, 4096);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 4096);
    fake_wait(stream);
    fake_stream_free(stream);
    close_it();
    settings("NIBBLE_GPU_TIMEOUT", NULL);
}

/* The communicator ends with a copy under way, and with work behind it. No copy outlives quiesce, and the
 * works are cancelled. */
static void test_ends_between(void)
{
    uint8_t *at = state(8192), *wire = dev->ops->alloc(dev, NB_PLACE_WIRE, 8192);
    struct nb_work w[2];

    no_kernel();
    slow = 1000;
    CHECK(dev->ops->copy(dev, &w[0], at, wire, 4096) == -EINPROGRESS);
    CHECK(dev->ops->copy(dev, &w[1], at + 4096, wire, 4096) == -EINPROGRESS);
    while (!copying.bytes)
        dev->ops->turn(dev, 1);
    dev->ops->quiesce(dev);
    CHECK(!copying.bytes);
    CHECK(dev->ops->poll(dev, &w[0]) == -ECANCELED && dev->ops->poll(dev, &w[1]) == -ECANCELED);
    fake_serves(0);
    dev->ops->free(dev, NB_PLACE_STATE, at, 8192);
    dev->ops->free(dev, NB_PLACE_WIRE, wire, 8192);
}

static void play(void (*body)(void))
{
    fake = (struct fake_settings){0};
    open_it();
    body();
    close_it();
}

static void fetch_fails(void)
{
    test_fetch_fails(&fails);
}

static void fetch_breaks(void)
{
    test_fetch_fails(&breaks);
}

static void codec_from_0(void)
{
    test_codec(0, 9000);
}

static void codec_in_a_block(void)
{
    test_codec(4 * (uint64_t)NB_TILE, 5 * (size_t)NB_TILE + 77);
}

int main(void)
{
    fixture_open();
    nb_launch_attached(&ctx, GPU, 1);
    play(codec_from_0);
    play(codec_in_a_block);
    play(test_others);
    play(test_hand_over);
    play(test_grown);
    play(test_refused_later);
    play(fetch_fails);
    play(fetch_breaks);
    play(test_ends_between);
    fake = (struct fake_settings){0};
    test_no_way(REFUSES);
    test_no_way(FAILS);
    test_no_way(BREAKS);
    test_reason();
    test_kernel_at_work();
    nb_launch_attached(&ctx, GPU, -1);
    fixture_close();
    printf("work goes on without a kernel\n");
    return 0;
}
