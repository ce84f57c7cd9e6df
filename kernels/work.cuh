/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all kernels: a block's shared memory, the work of a ticket, the order of results in the output,
 * and the end of a descriptor.
 *
 * A descriptor's workspace begins with a struct nb_control. A word for each ticket (`state`) follows, through
 * which tickets learn where their output begins: each ticket publishes its length, looks back over the
 * lengths of its predecessors, and publishes the sum. Blocks draw predecessors first, so every ticket waits
 * only for tickets that already run.
 */
#ifndef NIBBLE_KERNELS_WORK_CUH
#define NIBBLE_KERNELS_WORK_CUH

#include <errno.h>

#include "codec/format.h"
#include "kernels.h"
#include "target.cuh"

#define NB_THREADS NB_GPU_THREADS
#define NB_WARPS (NB_THREADS / 32u) /* a warp has 32 threads on every GPU */
NB_STATIC_ASSERT(NB_TILE_GROUPS == NB_THREADS, "a block has a thread for each group of a tile");
#define NB_ALL 0xffffffffu

/* The descriptor's operation. Where count.cu counts instructions it is known at compile time, and the marks
 * below show the usual path: rare code, the code of each source of a sum, and the code that one warp runs for
 * all. */
#ifndef NB_OP
#define NB_OP(d) ((d)->op)
#define NB_TYPE(d) ((d)->type)
#define NB_MODE(d) ((d)->mode)
#define NB_CODEC(d) ((d)->codec)
#define NB_ALONE(d) ((d)->op == NB_GPU_DECODE || (d)->nsources == 1)
#define NB_RARE ((void)0)
#define NB_EACH_SOURCE ((void)0)
#define NB_EACH_FURTHER ((void)0)
#define NB_ONE_WARP ((void)0)
#define NB_EACH_TICKET ((void)0)
#define NB_TIMES(n) ((void)0)
#endif

#define NB_RECORD_QUADS 140u /* an int4 record with three escapes, wherever it begins in 16 bytes */
/* A tile of FP32 and two records, or of a 16-bit type and five. */
#define NB_STAGE_QUADS (1032u + 2u * NB_RECORD_QUADS)
#define NB_ERRORS_AT 1032u /* encoding: quads of the values, then of the error codes, */
#define NB_SCALES_AT 1296u /* and of their scales */

struct nb_control {
    uint32_t finished; /* tickets */
    uint32_t failed;   /* errno of the first failure */
    uint64_t nonfinite, escapes, fallback, flushed, bounded;
    uint64_t value;
    uint64_t length;
    uint64_t pad;
};

/* A ticket, decoded for all threads. From one whole tile inside a span to the next each word from `tile` to
 * `state` grows by a constant (struct nb_strides). */
struct nb_job {
    uint32_t ticket; /* in its descriptor */
    uint32_t tile;   /* encode, reduce: in the span. Unused for an index ticket */
    uint32_t tiles;
    uint32_t groups, group0; /* whole groups of the tile, first one in the tile */
    uint32_t head, tail;     /* values of partial groups that this ticket copies, too */
    uint32_t index;          /* reduce: this ticket finds records */
    uint64_t phase;          /* encode: less than `measured` of the strides in tiles that are measured */
    uint64_t at;             /* index in the span of the first value of the whole groups */
    uint64_t src;            /* address of that value */
    uint64_t own, out;
    uint64_t err, scale;
    uint64_t state; /* encode: address of the ticket's word in the workspace */
    uint32_t measure; /* encode: measure energies */
    uint32_t plain;   /* a whole tile inside its span, values aligned to 16 bytes. Encode: int4 or
                         int6 without energies */
};

enum {
    NB_JOB_PHASE = 4,
    NB_JOB_AT,
    NB_JOB_SRC,
    NB_JOB_OWN,
    NB_JOB_OUT,
    NB_JOB_ERR,
    NB_JOB_SCALE,
    NB_JOB_STATE,
    NB_JOB_WORDS
};

/* The growth of a job's 8-byte words from tile to tile. */
struct nb_strides {
    uint64_t by[NB_JOB_WORDS];
    uint64_t measured;
    uint32_t plain; /* tiles without energies are plain */
    uint32_t until; /* tickets up to this one grow so. 0: the last ticket found is no whole tile */
};

/* Where a thread puts the first quad that it fetches of a whole tile (nb_fetch), in bytes from the beginning. */
struct nb_fetch_places {
    uint32_t values; /* of 16 bits */
    uint32_t errors;
};

#define NB_SOURCE_BUFFERS_MOST 5u

/* Place and length of the record of a source's tile. bytes 0: the source is malformed. For a record in shared
 * memory: its whole quads, first and behind the last, and the record itself, in bytes from the quad in which
 * it begins. For other records `end` is 0. */
struct nb_where {
    uint64_t from;
    uint32_t bytes;
    uint32_t codec;
    uint32_t first, whole, begin, end;
};

struct nb_shared {
    nb_quad stage[2][NB_STAGE_QUADS + NB_RECORD_QUADS]; /* the last part: an encoder's record (nb_record_of) */
    float sums[2][NB_TILE_GROUPS];
    uint32_t part[4][NB_WARPS]; /* maxima, minima, ... of the warps */
    /* Encoder: maximum and minimum over the tile. nb_reset_extremes begins anew. */
    uint32_t largest, smallest;
    struct nb_gpu_desc desc[2];
    struct nb_gpu_desc kept[2]; /* of the last two tickets, until they are counted */
    struct nb_job job[2];
    struct nb_strides strides; /* of the descriptor of the last ticket found */
    struct nb_where where[2][NB_SOURCE_BUFFERS_MOST];
    uint32_t ready[2]; /* sources of a tile that were fetched ahead */
    uint64_t ticket[2];
    uint64_t offset;
    float factor, signal2, carried2;
    uint32_t flag[3];
    struct nb_gpu_launch launch;
    struct nb_fetch_places fetches[NB_THREADS]; /* of each thread: to load them takes fewer instructions */
    /* Between two tickets one warp writes `ended`, another one the rest. All threads read both, mostly 0. */
    uint32_t ended;         /* bit i: the ticket just counted, of place i, was its descriptor's last */
    uint32_t special;       /* not 0: of the last two tickets one is not plain, or was not counted on to */
    uint32_t drawn;         /* number after the next ticket's, relative to the current ticket */
    uint32_t left;          /* the next ticket is found by counting on if `drawn` is less than this */
    int32_t have;           /* state of the next ticket, see nb_find */
    uint32_t pending;       /* the ticket before left its record in shared memory (nb_deliver) */
    uint32_t due;           /* the ticket before is still to be counted */
    uint32_t deferred;      /* this ticket leaves its record in shared memory */
    int32_t found;
    uint32_t place;         /* of the next ticket */
    uint32_t pending_ticket[2];
    uint64_t pending_at;    /* address of the place of that record in the output */
    uint32_t same;          /* the last ticket found belongs to the descriptor of the one before it */
    uint32_t keep[2];       /* `kept` of the place has another descriptor than the place's ticket */
};

/* Return the place of an encoder's record behind its stage, where one register finds both. */
NB_DEV nb_quad *nb_record_of(nb_quad *stage)
{
    return stage + NB_STAGE_QUADS;
}

NB_DEV struct nb_control *nb_control_of(const struct nb_gpu_desc *d)
{
    return (struct nb_control *)(uintptr_t)d->work;
}

NB_DEV uint64_t *nb_states(const struct nb_gpu_desc *d)
{
    return (uint64_t *)(uintptr_t)(d->work + sizeof(struct nb_control));
}

/* FP32 energies of the tiles, three for each ticket. */
NB_DEV float *nb_energies(const struct nb_gpu_desc *d)
{
    return (float *)(uintptr_t)(d->work + sizeof(struct nb_control) + 8 * (uint64_t)d->tickets);
}

NB_DEV void nb_fail(const struct nb_gpu_desc *d, uint32_t error)
{
    nb_or32(&nb_control_of(d)->failed, error);
}

/* Begin the extremes of another tile. One thread, with barriers before and after. */
NB_DEV void nb_reset_extremes(struct nb_shared *sh)
{
    sh->largest = 0;
    sh->smallest = NB_ALL;
}

/* ---- Where a ticket's output begins -------------------------------------------------------------------- */

NB_DEV void nb_publish(uint64_t state, uint64_t length)
{
    nb_put64_gpu((uint64_t *)(uintptr_t)state, length << 2 | 1);
}

/* Return the sum of the lengths of all tickets before. One whole warp calls, after its block has published. A
 * ticket's length is less than 2^27. */
NB_DEV uint64_t nb_look_back(uint64_t *state, uint32_t ticket, uint64_t length)
{
    const uint32_t lane = nb_thread() & 31;
    uint64_t sum = 0;
    uint32_t at = ticket;

    while (at) {
        const uint32_t mine = at - 1 - lane;
        uint64_t s = 2;
        if (lane < at)
            s = nb_get64_gpu(&state[mine]);
        uint32_t whole, last;
        for (;;) {
            whole = nb_ballot((nb_low(s) & 2) != 0);
            last = whole ? nb_ffs(whole) - 1 : 31;
            /* tickets before a known sum do not count */
            if (!nb_ballot((nb_low(s) & 3) == 0 && lane <= last))
                break;
            NB_RARE;
            nb_pause();
            if ((nb_low(s) & 3) == 0)
                s = nb_get64_gpu(&state[mine]);
        }
        const uint64_t v = s >> 2;
        if (whole) {
            uint32_t low = nb_shfl((uint32_t)v, last), high = nb_shfl((uint32_t)(v >> 32), last);
            sum += (uint64_t)high << 32 | low;
            sum += nb_warp_sum(lane < last ? (uint32_t)v : 0);
            break;
        }
        NB_RARE;
        sum += nb_warp_sum((uint32_t)v);
        if (at <= 32)
            break;
        at -= 32;
    }
    if (lane == 0)
        nb_put64_gpu(&state[ticket], (sum + length) << 2 | 2);
    return sum;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

NB_DEV uint64_t nb_work_words(const struct nb_gpu_desc *d);

/* Return the sum of a column of the energies, in an order that is independent of timing. One warp. */
NB_DEV double nb_sum_column(const float *column, uint32_t tickets)
{
    double sum = 0;
    for (uint32_t i = nb_thread() & 31; i < tickets; i += 32)
        sum += (double)nb_real(nb_load4(column + 3 * (uint64_t)i));
    for (unsigned by = 16; by; by /= 2) {
        union {
            double d;
            uint32_t w[2];
        } mine, other;
        mine.d = sum;
        other.w[0] = nb_shfl_xor(mine.w[0], by);
        other.w[1] = nb_shfl_xor(mine.w[1], by);
        sum += other.d;
    }
    return sum;
}

/* Count a ticket as done, after the last store of all threads for it. Return 1 if it was the last open one.
 * One thread. */
NB_DEV uint32_t nb_count_ticket(const struct nb_gpu_desc *d)
{
    struct nb_control *control = nb_control_of(d);
    const uint32_t last = nb_add32_release(&control->finished, 1) + 1 == d->tickets;
    if (last) {
        NB_RARE;
        nb_fence();
    }
    return last;
}

/* Write the result. All threads of the block that has ended the last ticket. */
NB_DEV void nb_finish(const struct nb_gpu_desc *d)
{
    struct nb_control *control = nb_control_of(d);
    struct nb_gpu_result *result = (struct nb_gpu_result *)(uintptr_t)d->result;
    if (nb_thread() < 32) {
        double energy[3] = {0, 0, 0};
        if (NB_OP(d) == NB_GPU_ENCODE && (d->flags & NB_GPU_STATS))
            for (unsigned i = 0; i < 3; i++)
                energy[i] = nb_sum_column(nb_energies(d) + i, d->tickets);
        if (nb_thread() == 0) {
            uint32_t failed = nb_load4(&control->failed);
            result->length = failed ? -(int64_t)failed : (int64_t)nb_load8(&control->length);
            result->value = nb_load8(&control->value);
            result->nonfinite = nb_load8(&control->nonfinite);
            result->escapes = nb_load8(&control->escapes);
            result->fallback = nb_load8(&control->fallback);
            result->flushed = nb_load8(&control->flushed);
            result->bounded = nb_load8(&control->bounded);
            result->signal2 = energy[0];
            result->noise2 = energy[1];
            result->carried2 = energy[2];
        }
    }
    nb_barrier();
    uint64_t *word = (uint64_t *)(uintptr_t)d->work, words = nb_work_words(d);
    for (uint64_t i = nb_thread(); i < words; i += NB_THREADS)
        nb_store8(word + i, 0);
    nb_barrier();
    if (nb_thread() == 0) {
        nb_fence_sys();
        nb_put32_sys(&result->done, d->id);
    }
}

#endif
