/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: the resident kernel, whose blocks are threads of the operating system (tests/gpu/emulate.c),
 * against a host. The host publishes descriptors, polls their results, uses places and memory again, and ends
 * launches, in all orders that kernels.h allows: launches ended before they begin, empty ones, many ended
 * ahead, launches ended after descriptors that are still to come.
 *
 *     test_ring [launches [seed]]
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "tests/gpu/emulate.h"

#define BLOCKS 3u
#define LARGEST 70000u /* bytes: three tickets */

static struct nb_gpu_ring *ring;
static struct nb_gpu_state *state;
static uint64_t launches, seed = 1;

/* ---- The stream: launches one after the other, each of BLOCKS threads ---------------------------------- */

static pthread_barrier_t between;

static void *stream(void *argument)
{
    const unsigned block = (unsigned)(uintptr_t)argument;
    const struct nb_gpu_launch launch = {(uintptr_t)state, (uintptr_t)ring, 0, 0};
    struct nb_emulated_block *b = nb_emulate_open(block, BLOCKS);
    for (uint64_t k = 0; k < launches; k++) {
        nb_emulate_block(b, &launch, seed * 1000 + k);
        pthread_barrier_wait(&between);
    }
    nb_emulate_close(b);
    return NULL;
}

/* ---- The host ------------------------------------------------------------------------------------------ */

static struct slot {
    struct nb_gpu_result *result;
    uint8_t *src, *dst, *work;
    uint32_t bytes, op;
    uint8_t value;
} slots[NB_GPU_RING];

static uint64_t published, finished, stops, tickets;
static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static void fail(const char *what, uint64_t number)
{
    fprintf(stderr, "%s: descriptor %llu of %llu, %llu launches ended of %llu, seed %llu\n", what,
            (unsigned long long)number, (unsigned long long)published,
            (unsigned long long)__atomic_load_n(&ring->ended, __ATOMIC_RELAXED), (unsigned long long)launches,
            (unsigned long long)seed);
    abort();
}

/* Wait a moment. A test that stands still says so. */
static void rest(void)
{
    static time_t since;
    static uint64_t where;
    const uint64_t now = published + finished + stops + __atomic_load_n(&ring->ended, __ATOMIC_RELAXED);
    sched_yield();
    if (now != where) {
        where = now;
        since = time(NULL);
    } else if (time(NULL) - since > 120) {
        fail("nothing has moved for two minutes", finished);
    }
}

/* Take the result of the oldest descriptor in flight, if it is there. */
static int poll(void)
{
    struct slot *s = &slots[finished % NB_GPU_RING];
    if (__atomic_load_n(&s->result->done, __ATOMIC_ACQUIRE) != (uint32_t)finished + 1)
        return 0;
    if (s->result->length)
        fail("wrong length", finished);
    if (s->op == NB_GPU_EQUAL && (s->result->value != 0) != (s->value & 1))
        fail("wrong comparison", finished);
    if (s->op == NB_GPU_COPY || s->op == NB_GPU_ZERO)
        for (uint32_t i = 0; i < s->bytes; i += i + 9 < s->bytes ? 1 + i / 8 : 1)
            if (s->dst[i] != (s->op == NB_GPU_ZERO ? 0 : (uint8_t)(s->value + i)))
                fail("wrong bytes", finished);
    finished++;
    return 1;
}

static void publish(void)
{
    while (published - finished == NB_GPU_RING || (below(4) == 0 && finished < published && poll()))
        if (!poll())
            rest();
    struct slot *s = &slots[published % NB_GPU_RING];
    s->op = below(3) ? NB_GPU_COPY : below(2) ? NB_GPU_EQUAL : NB_GPU_ZERO;
    s->bytes = below(12) ? (uint32_t)below(300) : (uint32_t)below(LARGEST);
    s->value = (uint8_t)below(256);
    /* Write new values, because earlier content must not show: */
    for (uint32_t i = 0; i < s->bytes; i++)
        s->src[i] = (uint8_t)(s->value + i);
    if (s->op == NB_GPU_EQUAL) {
        memcpy(s->dst, s->src, s->bytes);
        if (!s->bytes)
            s->value = 0;
        if (s->value & 1)
            s->dst[below(s->bytes)] ^= 1;
    } else if (s->bytes) {
        s->dst[0] = s->dst[s->bytes - 1] = 0x77;
    }
    struct nb_gpu_desc d = {.ticket = tickets,
                            .id = (uint32_t)published + 1,
                            .op = (uint8_t)s->op,
                            .n = s->bytes,
                            .src = (uintptr_t)s->src,
                            .ref = (uintptr_t)s->dst,
                            .dst = (uintptr_t)s->dst,
                            .work = (uintptr_t)s->work,
                            .result = (uintptr_t)s->result};
    if (nb_gpu_plan(&d) < 0)
        fail("nb_gpu_plan", published);
    tickets += d.tickets;
    memcpy(&ring->desc[published % NB_GPU_RING], &d, sizeof(d));
    __atomic_store_n(&ring->published, ++published, __ATOMIC_RELEASE);
}

/* End launch `stops` after descriptor number `at` - 1. */
static void stop(uint64_t at)
{
    while (stops >= NB_GPU_STOPS && __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE) <= stops - NB_GPU_STOPS)
        if (finished == published || !poll())
            rest();
    ring->stop[stops % NB_GPU_STOPS] = at;
    __atomic_store_n(&ring->stops, ++stops, __ATOMIC_RELEASE);
}

static void host(void)
{
    while (stops < launches) {
        uint64_t left = launches - stops;
        switch (below(8)) {
        case 0: /* many at once, some long before they begin, mostly empty */
            for (uint64_t i = 1 + below(3 * NB_GPU_STOPS / 2); i > 0 && left > 0; i--, left--) {
                if (below(10) == 0)
                    publish();
                stop(published);
            }
            break;
        case 1: { /* ended after descriptors still to come */
            uint64_t more = below(NB_GPU_RING + 10);
            stop(published + more);
            while (more--)
                publish();
            break;
        }
        case 2: /* the ring goes round */
            for (uint64_t i = NB_GPU_RING + below(NB_GPU_RING); i > 0; i--)
                publish();
            stop(published);
            break;
        case 3: /* the launch finds all descriptors done */
            publish();
            while (finished < published)
                if (!poll())
                    rest();
            stop(published);
            break;
        default:
            for (uint64_t i = below(6); i > 0; i--)
                publish();
            stop(published);
            break;
        }
    }
    while (finished < published)
        if (!poll())
            rest();
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
    if (!p)
        abort();
    memset(p, 0, bytes);
    return p;
}

int main(int argc, char **argv)
{
    pthread_t thread[BLOCKS];
    launches = argc > 1                  ? strtoull(argv[1], NULL, 10)
               : getenv("NB_LONG_TESTS") ? 20000
               : getenv("NB_TEST_QUICK") ? 300
                                         : 2000;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    random_state = seed;
    ring = memory(sizeof(*ring));
    state = memory(sizeof(*state));
    for (unsigned i = 0; i < NB_GPU_RING; i++) {
        slots[i].result = memory(sizeof(*slots[i].result));
        slots[i].src = memory(LARGEST);
        slots[i].dst = memory(LARGEST);
        slots[i].work = memory(256);
    }
    pthread_barrier_init(&between, NULL, BLOCKS);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (pthread_create(&thread[i], NULL, stream, (void *)(uintptr_t)i))
            abort();
    host();
    for (unsigned i = 0; i < BLOCKS; i++)
        pthread_join(thread[i], NULL);
    if (__atomic_load_n(&ring->started, __ATOMIC_ACQUIRE) != launches ||
        __atomic_load_n(&ring->ended, __ATOMIC_ACQUIRE) != launches ||
        __atomic_load_n(&state->launches, __ATOMIC_ACQUIRE) != launches ||
        __atomic_load_n(&state->carried, __ATOMIC_ACQUIRE) != published)
        fail("the counters of launches are wrong", published);
    printf("%llu launches, %llu descriptors, %llu tickets\n", (unsigned long long)launches,
           (unsigned long long)published, (unsigned long long)tickets);
    for (unsigned i = 0; i < NB_GPU_RING; i++) {
        free(slots[i].result);
        free(slots[i].src);
        free(slots[i].dst);
        free(slots[i].work);
    }
    free(ring);
    free(state);
    return 0;
}
