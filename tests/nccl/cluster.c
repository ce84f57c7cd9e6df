/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster names, or cluster LIBRARY LAYOUT NODES[xRANKS] CASE...
 *
 * Run NVIDIA's library in one process a rank, with nibble as its plugin, and check the results. Nodes have
 * one rank, or RANKS. "names" prints the names for layout.py. test-nccl.sh sets NCCL's variables. With
 * NCCL_NET_PLUGIN=none, NCCL's own sockets are the control: then all sums must be exact. A CASE:
 *
 *     raw      sums of small whole numbers and gathers, right to the bit, in several sizes
 *     coded    the same calls over and over with gradients: the sums are near, and all ranks have the same
 *     named    the same where NIBBLE_GRAD names the all-reduces alone: reduce-scatters stay exact
 *     sharded  training with gathered weights and scattered gradients, with nibble's default settings: exact
 *              before step WARM, the weights always, and most gradients coded from step LATE on
 *     weights  rounds of broadcasts of the same weights, of which 3 % change from round to round, in the
 *              orders of calls of weights.c
 *     push     the same, measured: NB_PUSH has the words WAY BYTES WARM-UP ROUNDS PERCENT...
 *     sums     all-reduces of gradients in BF16, measured: NB_SUMS has the words BYTES WARM-UP ROUNDS
 *     said     the framework's word: sums of two communicators whose names say what they sum, and calls of
 *              one group whose tags say otherwise (tags from NCCL 2.31 on)
 *     chosen   calls that choose rings themselves, between coded sums and in one group with them: exact, and
 *              the coded sums have the bits that they have without such calls (from NCCL 2.31 on)
 *     again    communicators that are made, used and destroyed, one after the other, in one process
 *     many     several communicators at a time, used in turn and closed in the order in which they were made
 *     split    a child of a communicator, both used in turn
 *     shrink   a child without the last node, both used in turn, then one made while an all-reduce waits
 *     grow     a communicator without the last node, and its successor with this node (from NCCL 2.30 on)
 *     revoke   a communicator is revoked while an all-reduce waits for a rank, and another one is made
 *     abort    the same with a communicator that is aborted
 *     windows  all-gathers of registered buffers, of which 3 % of the values change from round to round,
 *              right to the bit: with NCCL's settings for it they go by copy engines and puts (from NCCL 2.32
 *              on, or with nibble's table from 2.30 on)
 *     exchange all-to-alls of registered buffers, the same
 *     beside   coded sums by CollNet between such gathers of the same communicator
 *     lost     the last node ends in the middle of such a gather. The others learn of it by a sum or by
 *              ncclCommGetAsyncError, and make another communicator
 *
 * After each case a process has as many threads and descriptors as after the first one, and no memory that it
 * shares with others.
 */
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/fp.h"
#include "nibble/nccl_types.h"
#include "policy/job/job.h"
#include "ranks.h"

#define CODED_ERROR 1e-6 /* of the sums' power: what rounding of float32 cannot reach */

static bool control; /* without nibble */

/* ---- Cases --------------------------------------------------------------------------------------------- */

static float whole(size_t i, int rank, int round)
{
    return (float)((int)((i * 7 + (size_t)rank * 13 + (size_t)round * 5) % 1001) - 500);
}

/* Gather the first `count` values of `in` on each rank, which are value(i, rank, round), and judge them. */
static void gather(struct member *m, const float *in, float *out, size_t count, int round,
                   float (*value)(size_t i, int rank, int round))
{
    const size_t all = count * (size_t)m->ranks;
    size_t bad = 0;

    memset(out, 0xff, all * 4);
    check(nccl.all_gather(in, out, count, ncclFloat32, m->comm, m->stream), "ncclAllGather");
    stream_wait(m->stream);
    for (size_t i = 0; i < all; i++) {
        const float want = value(i % count, (int)(i / count), round);
        bad += memcmp(&out[i], &want, 4) != 0;
    }
    if (bad)
        die("rank %d: all-gather of %zu values: %zu are wrong", m->rank, count, bad);
}

/* Call the three collectives with `count` values a rank. All sums of these numbers are exact. */
static void exact(struct member *m, size_t count, int round)
{
    const size_t all = count * (size_t)m->ranks;
    float *in = device_alloc(all * 4), *out = device_alloc(all * 4);
    size_t bad = 0;

    for (size_t i = 0; i < all; i++)
        in[i] = whole(i, m->rank, round);
    memset(out, 0xff, all * 4);
    check(nccl.all_reduce(in, out, all, ncclFloat32, ncclSum, m->comm, m->stream), "ncclAllReduce");
    stream_wait(m->stream);
    for (size_t i = 0; i < all; i++) {
        float want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += whole(i, r, round);
        bad += out[i] != want;
    }
    if (bad)
        die("rank %d: all-reduce of %zu values: %zu are wrong", m->rank, all, bad);
    memset(out, 0xff, all * 4);
    check(nccl.reduce_scatter(in, out, count, ncclFloat32, ncclSum, m->comm, m->stream), "ncclReduceScatter");
    stream_wait(m->stream);
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += whole((size_t)m->rank * count + i, r, round);
        bad += out[i] != want;
    }
    if (bad)
        die("rank %d: reduce-scatter of %zu values: %zu are wrong", m->rank, count, bad);
    gather(m, in, out, count, round, whole);
    device_free(in);
    device_free(out);
}

static void raw(struct member *m)
{
    static const size_t counts[] = {1, 1000, 65536, 300007, 1000000};

    open_comm(m, NULL);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        exact(m, counts[i], (int)i);
    close_comm(m);
}

static void again(struct member *m)
{
    for (int k = 0; k < 3; k++) {
        open_comm(m, NULL);
        exact(m, 20000, k);
        close_comm(m);
    }
}

#define MANY 4
static void many(struct member *m)
{
    struct member one[MANY];

    for (int i = 0; i < MANY; i++) {
        one[i] = *m;
        open_comm(&one[i], NULL);
    }
    for (int k = 0; k < 2 * MANY; k++)
        exact(&one[(k * 3) % MANY], 5000, k);
    for (int i = 0; i < MANY; i++)
        close_comm(&one[i]);
}

static void split(struct member *m)
{
    struct member child = *m;

    open_comm(m, NULL);
    check(nccl.split(m->comm, 0, m->rank, &child.comm, NULL), "ncclCommSplit");
    take_comm(&child, m->ranks);
    for (int k = 0; k < 2; k++) {
        exact(m, 3000, k);
        exact(&child, 50000, k);
    }
    close_comm(&child);
    close_comm(m);
}

/* Begin an all-reduce in which the other ranks take no part. */
static float *wait_alone(struct member *m)
{
    float *values = device_alloc(400000);

    exact(m, 1000, 0);
    if (m->rank == 0)
        check(nccl.all_reduce(values, values, 100000, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclAllReduce");
    meet(m->ranks);
    usleep(50000);
    return values;
}

/* Abort the communicator, and use another one. */
static void abort_waiting(struct member *m, float *values)
{
    device_forget(m->comm);
    check(nccl.abort(m->comm), "ncclCommAbort");
    stream_wait(m->stream);
    stream_destroy(m->stream);
    device_free(values);
    meet(m->ranks);
    again(m);
}

static void abort_comm(struct member *m)
{
    open_comm(m, NULL);
    abort_waiting(m, wait_alone(m));
}

static void revoke_comm(struct member *m)
{
    open_comm(m, NULL);
    float *values = wait_alone(m);
    check(nccl.revoke(m->comm, 0), "ncclCommRevoke");
    abort_waiting(m, values);
}

#define SHRINK_ABORT 1
static void shrink(struct member *m)
{
    struct member child = *m;
    int gone[MAX_RANKS];
    const int left = m->ranks - m->per_node;

    for (int i = 0; i < m->per_node; i++)
        gone[i] = left + i;
    open_comm(m, NULL);
    if (m->rank < left) {
        check(nccl.shrink(m->comm, gone, m->per_node, &child.comm, NULL, 0), "ncclCommShrink");
        take_comm(&child, left);
    }
    for (int k = 0; k < 2; k++) {
        exact(m, 3000, k);
        if (m->rank < left)
            exact(&child, 50000, k);
    }
    if (m->rank < left)
        leave_comm(&child);
    float *values = wait_alone(m);
    if (m->rank < left) {
        check(nccl.shrink(m->comm, gone, m->per_node, &child.comm, NULL, SHRINK_ABORT), "ncclCommShrink");
        take_comm(&child, left);
        exact(&child, 50000, 0);
        leave_comm(&child);
    }
    meet(m->ranks);
    abort_waiting(m, values);
}

static void grow(struct member *m)
{
    struct member old = *m;
    const int few = m->ranks - m->per_node;
    const bool member = m->rank < few;

    if (m->rank == 0)
        check(nccl.id(&shared->id), "ncclGetUniqueId");
    meet(m->ranks);
    if (member) {
        check(nccl.init(&old.comm, few, shared->id, m->rank), "ncclCommInitRank");
        take_comm(&old, few);
        exact(&old, 3000, 0);
    }
    meet(m->ranks);
    if (m->rank == 0)
        check(nccl.grow_id(old.comm, &shared->id), "ncclCommGetUniqueId");
    meet(m->ranks);
    check(nccl.grow(member ? old.comm : NULL, m->ranks, m->rank == 0 || !member ? &shared->id : NULL,
                    member ? -1 : m->rank, &m->comm, NULL),
          "ncclCommGrow");
    take_comm(m, m->ranks);
    if (member)
        leave_comm(&old);
    for (int k = 0; k < 2; k++)
        exact(m, 50000, k);
    close_comm(m);
}

static uint64_t mix(size_t i, int rank, int round)
{
    uint64_t x = (i * 0x9e3779b97f4a7c15u) ^ ((uint64_t)rank << 40) ^ ((uint64_t)round << 48);

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static float gradient(size_t i, int rank, int round)
{
    return ((float)(mix(i, rank, round) & 0xffff) - 32767.5f) / 32768.0f;
}

/* Compare with exact sums. Four bits a value leave some percent of the sums' power as error. */
static void near(const struct member *m, const char *what, bool codes, const float *out, size_t from,
                 size_t count, int round)
{
    double error = 0, power = 0;

    for (size_t i = 0; i < count; i++) {
        double want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += (double)gradient(from + i, r, round);
        error += (out[i] - want) * (out[i] - want);
        power += want * want;
    }
    if (!(error < 0.05 * power))
        die("rank %d: %s: error %.4f of the sums' power", m->rank, what, error / power);
    if (codes && !control ? error < CODED_ERROR * power : error > CODED_ERROR * power)
        die("rank %d: %s: error %.2g of the sums' power, so that %s was coded", m->rank, what, error / power,
            codes && !control ? "nothing" : "it");
}

static uint64_t hash_of(uint64_t hash, const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        hash = hash * 31 + bits;
    }
    return hash;
}

static void train(struct member *m, bool all_named)
{
    const size_t count = 200000, all = count * (size_t)m->ranks;
    float *in = device_alloc(all * 4), *out = device_alloc(all * 4);

    open_comm(m, NULL);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < all; i++)
            in[i] = gradient(i, m->rank, round);
        check(nccl.all_reduce(in, out, all, ncclFloat32, ncclSum, m->comm, m->stream), "ncclAllReduce");
        stream_wait(m->stream);
        near(m, "all-reduce", true, out, 0, all, round);
        const uint64_t sum = hash_of(0, out, all);
        shared->sum[m->rank] = sum;
        meet(m->ranks);
        if (shared->sum[0] != sum)
            die("rank %d: its all-reduce differs from rank 0's", m->rank);
        check(nccl.reduce_scatter(in, out, count, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclReduceScatter");
        stream_wait(m->stream);
        near(m, "reduce-scatter", all_named, out, (size_t)m->rank * count, count, round);
        check(nccl.all_gather(in, out, count, ncclFloat32, m->comm, m->stream), "ncclAllGather");
        stream_wait(m->stream);
        for (size_t i = 0; i < all; i++)
            if (out[i] != gradient(i % count, (int)(i / count), round))
                die("rank %d: all-gather: value %zu is wrong", m->rank, i);
    }
    close_comm(m);
    device_free(in);
    device_free(out);
}

static void coded(struct member *m)
{
    train(m, true);
}

static void named(struct member *m)
{
    train(m, false);
}

struct sums { /* gradients of a measured all-reduce */
    uint16_t *in, *out;
    size_t count;
};

static void sum_once(const struct member *m, void *arg)
{
    const struct sums *s = arg;

    check(nccl.all_reduce(s->in, s->out, s->count, ncclBfloat16, ncclSum, m->comm, m->stream),
          "ncclAllReduce");
    stream_wait(m->stream);
}

static void sums(struct member *m)
{
    const char *text = getenv("NB_SUMS");
    double seconds[MOST_ROUNDS], error = 0, power = 0, before;
    struct sums s = {0};
    char what[64];
    size_t bytes;
    int warm, rounds;

    if (!text || sscanf(text, "%zu %d %d", &bytes, &warm, &rounds) != 3 || rounds < 1 || rounds > MOST_ROUNDS)
        die("NB_SUMS: no \"BYTES WARM-UP ROUNDS\"");
    s.count = bytes / 2;
    s.in = device_alloc(bytes);
    s.out = device_alloc(bytes);
    for (size_t i = 0; i < s.count; i++)
        s.in[i] = nb_f32_to_bf16(gradient(i, m->rank, 0));
    open_comm(m, NULL);
    for (int i = 0; i < warm; i++)
        timed(m, sum_once, &s);
    before = link_bytes();
    for (int i = 0; i < rounds; i++)
        seconds[i] = timed(m, sum_once, &s);
    for (size_t i = 0; i < s.count; i++) {
        double want = 0;
        for (int r = 0; r < m->ranks; r++)
            want += (double)nb_bf16_to_f32(nb_f32_to_bf16(gradient(i, r, 0)));
        const double off = (double)nb_bf16_to_f32(s.out[i]) - want;
        error += off * off;
        power += want * want;
    }
    if (error > 0.05 * power)
        die("rank %d: sums of %zu bytes are off by %g of their power", m->rank, bytes, error / power);
    snprintf(what, sizeof(what), "sums %zu", bytes);
    print_times(m, what, seconds, rounds, before);
    close_comm(m);
    device_free(s.in);
    device_free(s.out);
}

/* Sums of a communicator that names them, and of calls with tags. Those of a group have several sizes, which
 * NCCL sorts. */
static void said(struct member *m)
{
    enum { ALONE = 150000, GRADIENTS = 40000, EXACT = 90000, ROUNDS = 3 };
    const struct call_config gradients = config_of(NULL, NB_TAG_GRADIENT),
                             exact_sums = config_of(NULL, NB_TAG_EXACT);
    const size_t most = (size_t)ALONE * (size_t)m->ranks;
    float *in = device_alloc(most * 4), *out[3];

    for (int i = 0; i < 3; i++)
        out[i] = device_alloc(most * 4);
    for (int named = 0; named < 2; named++) {
        open_comm(m, named ? "job 7 nibble:gradients" : "nibble:exact");
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t i = 0; i < most; i++)
                in[i] = gradient(i, m->rank, round);
            check(nccl.group_start(), "ncclGroupStart");
            check(nccl.reduce_scatter(in, out[0], ALONE, ncclFloat32, ncclSum, m->comm, m->stream),
                  "ncclReduceScatter");
            if (nccl.reduce_scatter_with) {
                check(nccl.reduce_scatter_with(in, out[1], GRADIENTS, ncclFloat32, ncclSum, m->comm,
                                               m->stream, &gradients),
                      "ncclReduceScatterConfig");
                check(nccl.all_reduce_with(in, out[2], EXACT, ncclFloat32, ncclSum, m->comm, m->stream,
                                           &exact_sums),
                      "ncclAllReduceConfig");
            }
            check(nccl.group_end(), "ncclGroupEnd");
            stream_wait(m->stream);
            near(m, "a sum of a communicator with a name", named, out[0], (size_t)m->rank * ALONE, ALONE,
                 round);
            if (!nccl.reduce_scatter_with)
                continue;
            near(m, "a sum that a tag calls gradients", true, out[1], (size_t)m->rank * GRADIENTS, GRADIENTS,
                 round);
            near(m, "a sum that a tag calls exact", false, out[2], 0, EXACT, round);
        }
        close_comm(m);
    }
    device_free(in);
    for (int i = 0; i < 3; i++)
        device_free(out[i]);
}

/* Sum the same gradients over and over, and return a hash of the results of the coded calls. With
 * `algorithm`, another call between them and one in their group choose it. */
static uint64_t sums_beside(struct member *m, const char *algorithm)
{
    enum { COUNT = 60000, ROUNDS = 6 };
    const struct call_config config = config_of(algorithm, 0);
    const size_t all = (size_t)COUNT * (size_t)m->ranks;
    float *in = device_alloc(all * 4), *out = device_alloc(all * 4), *part = device_alloc(COUNT * 4),
          *other = device_alloc(all * 4);
    uint64_t hash = 0;

    for (size_t i = 0; i < all; i++)
        in[i] = gradient(i, m->rank, 0);
    open_comm(m, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        check(nccl.all_reduce(in, out, all, ncclFloat32, ncclSum, m->comm, m->stream), "ncclAllReduce");
        if (algorithm) {
            check(nccl.all_reduce_with(in, other, all, ncclFloat32, ncclSum, m->comm, m->stream, &config),
                  "ncclAllReduceConfig");
            stream_wait(m->stream);
            near(m, "an all-reduce that chooses its algorithm", false, other, 0, all, 0);
        }
        check(nccl.group_start(), "ncclGroupStart");
        if (algorithm)
            check(
                nccl.reduce_scatter_with(in, other, COUNT, ncclFloat32, ncclSum, m->comm, m->stream, &config),
                "ncclReduceScatterConfig");
        check(nccl.reduce_scatter(in, part, COUNT, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclReduceScatter");
        check(nccl.group_end(), "ncclGroupEnd");
        stream_wait(m->stream);
        if (algorithm)
            near(m, "a reduce-scatter that chooses its algorithm", false, other, (size_t)m->rank * COUNT,
                 COUNT, 0);
        near(m, "all-reduce", true, out, 0, all, 0);
        near(m, "reduce-scatter", true, part, (size_t)m->rank * COUNT, COUNT, 0);
        hash = hash_of(hash_of(hash, out, all), part, COUNT);
    }
    close_comm(m);
    device_free(in);
    device_free(out);
    device_free(part);
    device_free(other);
    return hash;
}

static void chosen(struct member *m)
{
    const uint64_t plain = sums_beside(m, NULL);

    if (sums_beside(m, "RING_SIMPLE") != plain)
        die("rank %d: calls that choose rings change the sums beside them", m->rank);
}

/* Training of LAYERS layers, whose shards of weights follow the sums of the ranks' gradients. */
#define LAYERS 4
#define SHARD 24000
#define WARM 45
#define LATE 60
#define TRAINING 66

static void sharded(struct member *m)
{
    const size_t all = SHARD * (size_t)m->ranks;
    float *shard[LAYERS], *full[LAYERS], *gradients = device_alloc(all * 4), *sums = device_alloc(SHARD * 4);
    unsigned coded_late = 0;

    open_comm(m, NULL);
    for (int l = 0; l < LAYERS; l++) {
        shard[l] = device_alloc(SHARD * 4);
        full[l] = device_alloc(all * 4);
        for (size_t i = 0; i < SHARD; i++)
            shard[l][i] = gradient(i, m->rank, 1000 + l);
    }
    for (int step = 0; step < TRAINING; step++) {
        for (int l = 0; l < LAYERS; l++) {
            check(nccl.all_gather(shard[l], full[l], SHARD, ncclFloat32, m->comm, m->stream),
                  "ncclAllGather");
            stream_wait(m->stream);
            if (memcmp(full[l] + (size_t)m->rank * SHARD, shard[l], SHARD * 4) != 0)
                die("rank %d: step %d: the own weights have changed", m->rank, step);
        }
        for (int l = LAYERS - 1; l >= 0; l--) {
            const int round = step * LAYERS + l;
            size_t wrong = 0;
            for (size_t i = 0; i < all; i++)
                gradients[i] = gradient(i, m->rank, round) * (float)(1 + l) + 0.1f * full[l][i];
            check(nccl.reduce_scatter(gradients, sums, SHARD, ncclFloat32, ncclSum, m->comm, m->stream),
                  "ncclReduceScatter");
            stream_wait(m->stream);
            for (size_t i = 0; i < SHARD; i++) {
                const size_t at_all = (size_t)m->rank * SHARD + i;
                float want = 0;
                for (int r = 0; r < m->ranks; r++)
                    want += gradient(at_all, r, round) * (float)(1 + l) + 0.1f * full[l][at_all];
                wrong += fabsf(sums[i] - want) > 1e-5f * (float)(1 + l);
                shard[l][i] -= 0.01f * sums[i];
            }
            if (step < WARM && wrong)
                die("rank %d: step %d: %zu sums differ during the warm-up", m->rank, step, wrong);
            coded_late += step >= LATE && wrong > SHARD / 2;
        }
    }
    /* A sum in doubt goes raw. */
    if (control ? coded_late > 0 : coded_late < (TRAINING - LATE) * LAYERS * 3 / 4)
        die("rank %d: %u of %d sums of gradients were coded from step %d on", m->rank, coded_late,
            (TRAINING - LATE) * LAYERS, LATE);
    close_comm(m);
    for (int l = 0; l < LAYERS; l++) {
        device_free(shard[l]);
        device_free(full[l]);
    }
    device_free(gradients);
    device_free(sums);
}

/* Weights of a rank that training has moved `round` times: a part of them by their last place each time. */
static float weight(size_t i, int rank, int round)
{
    const float start = gradient(i, rank, 0);
    uint32_t bits;
    float moved;

    memcpy(&bits, &start, 4);
    for (int k = 1; k <= round; k++)
        bits += mix(i, rank, k) % 32 == 0;
    memcpy(&moved, &bits, 4);
    return moved;
}

/* A buffer that is registered for one-sided operations. Where NCCL makes no windows, `window` is NULL, and
 * NCCL treats the buffer as others. */
struct registered {
    float *data;
    void *window;
};

static struct registered register_buffer(const struct member *m, size_t values)
{
    enum { SYMMETRIC = 1 };
    struct registered r;

    check(nccl.mem_alloc((void **)&r.data, values * 4), "ncclMemAlloc");
    check(nccl.window(m->comm, r.data, values * 4, &r.window, SYMMETRIC), "ncclCommWindowRegister");
    return r;
}

static void free_registered(const struct member *m, const struct registered *r)
{
    if (r->window)
        check(nccl.close_window(m->comm, r->window), "ncclCommWindowDeregister");
    check(nccl.mem_free(r->data), "ncclMemFree");
}

#define WINDOW 300007 /* values */

static void windows(struct member *m)
{
    struct registered in, out;

    open_comm(m, NULL);
    in = register_buffer(m, WINDOW);
    out = register_buffer(m, (size_t)WINDOW * (size_t)m->ranks);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < WINDOW; i++)
            in.data[i] = weight(i, m->rank, round);
        gather(m, in.data, out.data, WINDOW, round, weight);
    }
    free_registered(m, &in);
    free_registered(m, &out);
    close_comm(m);
}

/* All-to-alls: rank r's block for rank s has the values of weight(s * WINDOW + i, r). */
static void exchange(struct member *m)
{
    const size_t all = (size_t)WINDOW * (size_t)m->ranks, own = (size_t)WINDOW * (size_t)m->rank;
    struct registered in, out;

    open_comm(m, NULL);
    in = register_buffer(m, all);
    out = register_buffer(m, all);
    for (int round = 0; round < 4; round++) {
        size_t bad = 0;
        for (size_t i = 0; i < all; i++)
            in.data[i] = weight(i, m->rank, round);
        memset(out.data, 0xff, all * 4);
        check(nccl.all_to_all(in.data, out.data, WINDOW, ncclFloat32, m->comm, m->stream), "ncclAlltoAll");
        stream_wait(m->stream);
        for (size_t i = 0; i < all; i++) {
            const float want = weight(own + i % WINDOW, (int)(i / WINDOW), round);
            bad += memcmp(&out.data[i], &want, 4) != 0;
        }
        if (bad)
            die("rank %d: all-to-all of %zu values: %zu are wrong", m->rank, all, bad);
    }
    free_registered(m, &in);
    free_registered(m, &out);
    close_comm(m);
}

/* Sums by CollNet between gathers of windows, of one communicator. */
static void beside(struct member *m)
{
    const size_t all = (size_t)WINDOW * (size_t)m->ranks;
    float *gradients = device_alloc(all * 4), *sums = device_alloc(all * 4);
    struct registered in, out;

    open_comm(m, NULL);
    in = register_buffer(m, WINDOW);
    out = register_buffer(m, all);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < WINDOW; i++)
            in.data[i] = weight(i, m->rank, round);
        for (size_t i = 0; i < all; i++)
            gradients[i] = gradient(i, m->rank, round);
        gather(m, in.data, out.data, WINDOW, round, weight);
        check(nccl.reduce_scatter(gradients, sums, WINDOW, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclReduceScatter");
        stream_wait(m->stream);
        near(m, "reduce-scatter", true, sums, (size_t)m->rank * WINDOW, WINDOW, round);
        check(nccl.all_reduce(gradients, sums, all, ncclFloat32, ncclSum, m->comm, m->stream),
              "ncclAllReduce");
        stream_wait(m->stream);
        near(m, "all-reduce", true, sums, 0, all, round);
    }
    free_registered(m, &in);
    free_registered(m, &out);
    close_comm(m);
    device_free(gradients);
    device_free(sums);
}

static bool arrived(const float *value)
{
    return __atomic_load_n((const uint32_t *)(const void *)value, __ATOMIC_RELAXED) != UINT32_MAX;
}

/* The last rank ends when it has a part of what it gathers. The other ones learn of it within LOST_MS. */
static void lost(struct member *m)
{
    enum { COUNT = 8 << 20, LOST_MS = 10000 };
    const size_t all = (size_t)COUNT * (size_t)m->ranks;
    const int left = m->ranks - m->per_node;
    struct registered in, out;
    float *sums = device_alloc(4000);
    int gathered = 0, summed = 0, asynchronous = 0;

    open_comm(m, NULL);
    in = register_buffer(m, COUNT);
    out = register_buffer(m, all);
    if (!in.window || !out.window)
        die("NCCL made no window");
    for (size_t i = 0; i < COUNT; i++)
        in.data[i] = gradient(i, m->rank, 0);
    exact(m, 1000, 0); /* connects all ranks: a call that connects with a lost rank waits in NCCL */
    memset(out.data, 0xff, all * 4);
    meet(m->ranks);
    check(nccl.all_gather(in.data, out.data, COUNT, ncclFloat32, m->comm, m->stream), "ncclAllGather");
    if (m->rank >= left) {
        while (!arrived(out.data))
            usleep(10);
        shared->sum[m->rank] = arrived(out.data + COUNT - 1);
        _exit(0);
    }
    for (int ms = 0; ms < LOST_MS && !summed && !asynchronous; ms += 50) {
        usleep(50000);
        check(nccl.error(m->comm, &asynchronous), "ncclCommGetAsyncError");
        summed = nccl.all_reduce(sums, sums, 1000, ncclFloat32, ncclSum, m->comm, m->stream);
    }
    /* One gather only: NCCL's thread for puts has ended, so nothing empties its queue, and a call that finds
     * the queue full never returns. */
    gathered = nccl.all_gather(in.data, out.data, 1000, ncclFloat32, m->comm, m->stream);
    if (m->rank == 0)
        printf("        a gather returns %d, an all-reduce %d, ncclCommGetAsyncError %d\n", gathered, summed,
               asynchronous);
    if (shared->sum[m->ranks - 1])
        die("the rank ended after its gather");
    if (!summed && !asynchronous)
        die("rank %d learns nothing of the lost rank", m->rank);
    device_reset();
    device_forget(m->comm);
    check(nccl.abort(m->comm), "ncclCommAbort");
    stream_wait(m->stream);
    stream_destroy(m->stream);
    device_free(sums);
    m->ranks = left;
    again(m);
}
static const struct {
    const char *name;
    void (*run)(struct member *);
} cases[] = {{"raw", raw},         {"coded", coded},       {"named", named},        {"sharded", sharded},
             {"weights", weights}, {"push", push},         {"sums", sums},          {"said", said},
             {"chosen", chosen},   {"again", again},       {"many", many},          {"split", split},
             {"shrink", shrink},   {"grow", grow},         {"revoke", revoke_comm}, {"abort", abort_comm},
             {"windows", windows}, {"exchange", exchange}, {"beside", beside},      {"lost", lost}};
#define CASES (sizeof(cases) / sizeof(cases[0]))

/* Count the entries of a folder, but not the files that hold memory of emulated GPUs: NCCL 2.32.3 never frees
 * the offsets of signals that a communicator with windows has on the GPU. */
static unsigned count_of(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *e;
    char to[64];
    unsigned n = 0;

    while (d && (e = readdir(d))) {
        const ssize_t length = readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);
        to[length > 0 ? length : 0] = 0;
        n += !strstr(to, VIRTUAL_MEMORY);
    }
    if (d)
        closedir(d);
    return n;
}

/* Return whether this process maps a file of /dev/shm. */
static bool shares_memory(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;

    while (f && fgets(line, sizeof(line), f))
        found |= strstr(line, "/dev/shm/") != NULL;
    if (f)
        fclose(f);
    return found;
}

/* Print what the descriptors are. */
static void list_descriptors(void)
{
    for (int fd = 0; fd < 256; fd++) {
        char path[32], to[128];
        struct sockaddr_in own = {0}, peer = {0};
        socklen_t size = sizeof(own);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(path, to, sizeof(to) - 1);
        if (length < 0)
            continue;
        to[length] = 0;
        getsockname(fd, (struct sockaddr *)&own, &size);
        size = sizeof(peer);
        getpeername(fd, (struct sockaddr *)&peer, &size);
        fprintf(stderr, "process %d, descriptor %d: %s, ports %d and %d\n", (int)getpid(), fd, to,
                ntohs(own.sin_port), ntohs(peer.sin_port));
    }
}

/* Compare with the numbers after the first case. NCCL keeps some threads and descriptors of its own. Threads
 * that end need a moment. */
static void check_remains(const char *after)
{
    static unsigned threads, descriptors;
    unsigned t = count_of("/proc/self/task"), d = count_of("/proc/self/fd");

    for (int i = 0; threads && (t != threads || d != descriptors) && i < 100; i++) {
        usleep(20000);
        t = count_of("/proc/self/task");
        d = count_of("/proc/self/fd");
    }
    if (threads && d > descriptors)
        list_descriptors();
    if (threads && (t > threads || d > descriptors))
        die("after %s a process has %u threads and %u descriptors, instead of %u and %u", after, t, d,
            threads, descriptors);
    if (shares_memory())
        die("after %s a process still maps files of /dev/shm", after);
    threads = t;
    descriptors = d;
}

static void run_cases(const struct member *start, void *arg)
{
    char **name = arg;
    struct member m = *start;
    int version;

    check(nccl.version(&version), "ncclGetVersion");
    for (int i = 2; name[i]; i++)
        for (size_t c = 0; c < CASES; c++)
            if (strcmp(cases[c].name, name[i]) == 0) {
                if ((cases[c].run == grow && !nccl.grow) || (cases[c].run == revoke_comm && !nccl.revoke) ||
                    (cases[c].run == chosen && !nccl.all_reduce_with))
                    continue;
                cases[c].run(&m);
                check_remains(name[i]);
                if (m.rank == 0)
                    printf("ok      NCCL %d, %s nodes%s: %s\n", version, name[1],
                           control ? " over NCCL's sockets" : "", name[i]);
                fflush(stdout);
            }
}

int main(int argc, char **argv)
{
    const char *plugin = getenv("NCCL_NET_PLUGIN");
    int nodes, per_node = 1;

    if (argc == 2 && strcmp(argv[1], "names") == 0) {
        library_names();
        return 0;
    }
    if (argc < 5 || sscanf(argv[3], "%dx%d", &nodes, &per_node) < 1 || nodes < 2 || per_node < 1 ||
        nodes * per_node > MAX_RANKS)
        die("usage: %s names | LIBRARY LAYOUT NODES[xRANKS] CASE...", argv[0]);
    control = plugin && strcmp(plugin, "none") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that hangs keeps its log */
    return ranks_run(argv[1], argv[2], nodes, per_node, run_cases, argv + 2);
}
