/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel: blocks draw tickets until none is left. kernels.h describes the host's part.
 *
 * While a block works on a ticket, it looks for its next ticket and starts to copy its data to shared memory.
 * The number of the ticket after that is already requested. A block ends its tickets in order, and a ticket
 * waits only for smaller ones. All tickets therefore end, whatever the number of blocks that really run.
 */
#ifndef NIBBLE_KERNELS_KERNEL_CUH
#define NIBBLE_KERNELS_KERNEL_CUH

#include "bytes.cuh"
#include "careful.cuh"
#include "encode.cuh"
#include "exact.cuh"
#include "reduce.cuh"
#include "ulp.cuh"
#include "ulp_encode.cuh"

/* Return the number of 8-byte words at the beginning of a workspace that must be zero at the end. */
NB_DEV uint64_t nb_work_words(const struct nb_gpu_desc *d)
{
    uint64_t bytes = sizeof(struct nb_control);
    switch (NB_OP(d)) {
    case NB_GPU_ENCODE:
        bytes += 20 * (uint64_t)d->tickets; /* states, energies */
        break;
    case NB_GPU_ULP_DECODE:
    case NB_GPU_DELTA4_DECODE:
        bytes += 8 * NB_WARPS * (uint64_t)d->tickets;
        break;
    case NB_GPU_ULP_ENCODE:
    case NB_GPU_DELTA4_ENCODE: /* states, and how segments were coded */
        bytes += 12 * NB_WARPS * (uint64_t)d->tickets;
        break;
    case NB_GPU_DECODE:
    case NB_GPU_REDUCE:
        /* Progress of the search for the sources' records, and the records' places. */
        bytes += 4 * ((uint64_t)nb_sources_padded(d) + (uint64_t)d->nsources * (d->tickets - (d->nsources + 3) / 4 + 1));
        break;
    default:
        break;
    }
    return (bytes + 7) / 8;
}

/* ---- From ticket to work ------------------------------------------------------------------------------- */

/*
 * Select the tiles to measure: tiles whose number in the block is a multiple of `every`. Let m = 2^64 /
 * every, rounded up. A number below 2^32 is such a multiple if and only if its product with m, modulo 2^64,
 * is less than m. The product grows by m from tile to tile, so the kernel adds. It begins with the remainder
 * of the number. 64-bit divisions would be calls. `every` is at most 2^16.
 */
NB_DEV void nb_describe_phase(const struct nb_gpu_desc *d, uint64_t number, struct nb_job *job, struct nb_strides *strides)
{
    const uint32_t every = d->every ? d->every : NB_STATS_EVERY;
    uint64_t m = 0;
    uint32_t rest = 0, number_rest = 0;
    job->phase = strides->by[NB_JOB_PHASE] = strides->measured = 0;
    if (!(d->flags & NB_GPU_STATS))
        return;
    if (every == 1) {
        strides->measured = 1;
        return;
    }
    NB_ROLL
    for (int digit = 48; digit >= 0; digit -= 16) {
        rest = rest << 16 | 0xffff;
        m = m << 16 | rest / every;
        rest %= every;
        number_rest = (number_rest << 16 | (uint32_t)(number >> digit & 0xffff)) % every;
    }
    strides->by[NB_JOB_PHASE] = strides->measured = m + 1; /* 2^64 - 1 divided, so rounded down before */
    job->phase = number_rest * (m + 1);
}

/* Decode a ticket of the quantizing codecs. One thread. */
NB_DEV void nb_describe(const struct nb_gpu_desc *d, uint32_t ticket, struct nb_job *job, struct nb_strides *strides)
{
    const uint32_t into = (uint32_t)(d->first % NB_GROUP), size = nb_type_bytes(NB_TYPE(d));
    const uint32_t head = !into ? 0 : d->n < NB_GROUP - into ? (uint32_t)d->n : NB_GROUP - into;
    const uint64_t groups = (d->n - head) / NB_GROUP, group = (d->first + head) / NB_GROUP;
    const uint32_t tiles =
        groups ? (uint32_t)((group + groups - 1) / NB_TILE_GROUPS - group / NB_TILE_GROUPS + 1) : 0;
    const uint32_t index = NB_OP(d) == NB_GPU_ENCODE ? 0 : (d->nsources + 3) / 4;

    strides->until = 0;
    job->ticket = ticket;
    job->state = (uint64_t)(uintptr_t)(nb_states(d) + ticket);
    job->index = ticket < index;
    job->tile = job->index ? ticket : ticket - index;
    job->tiles = tiles;
    job->groups = job->group0 = job->head = job->tail = job->measure = job->plain = 0;
    job->phase = job->own = job->err = job->scale = 0;
    if (job->index)
        return;
    if (job->tile == 0)
        job->head = head;
    if (job->tile + 1 >= tiles)
        job->tail = (uint32_t)((d->n - head) % NB_GROUP);
    if (!tiles)
        return;
    const uint64_t begin = job->tile ? (group / NB_TILE_GROUPS + job->tile) * NB_TILE_GROUPS : group;
    job->groups = nb_groups_of(group, groups, job->tile);
    job->group0 = (uint32_t)(begin % NB_TILE_GROUPS);
    job->at = head + (begin - group) * NB_GROUP;
    job->src = d->src + job->at * size;
    job->out = d->dst + job->at * size;
    if (NB_OP(d) == NB_GPU_REDUCE && d->own)
        job->own = d->own + job->at * size;

    uint64_t *by = strides->by;
    by[0] = 1 + ((uint64_t)1 << 32); /* ticket, tile */
    by[1] = by[2] = by[3] = by[NB_JOB_PHASE] = 0;
    by[NB_JOB_AT] = by[NB_JOB_ERR] = NB_TILE_GROUPS * NB_GROUP;
    by[NB_JOB_SRC] = by[NB_JOB_OUT] = NB_TILE_GROUPS * NB_GROUP * size;
    by[NB_JOB_OWN] = job->own ? NB_TILE_GROUPS * NB_GROUP * size : 0;
    by[NB_JOB_SCALE] = NB_TILE_GROUPS;
    by[NB_JOB_STATE] = sizeof(uint64_t);
    strides->measured = 0;
    if (job->groups == NB_TILE_GROUPS && !job->head)
        strides->until = index + tiles - 1;
    strides->plain = (job->own | job->out) % 16 == 0;
    if (NB_OP(d) != NB_GPU_ENCODE)
        return;
    job->err = d->err + begin * NB_GROUP;
    job->scale = d->scale + begin;
    nb_describe_phase(d, begin / NB_TILE_GROUPS, job, strides);
    job->measure = job->phase < strides->measured;
    strides->plain = (NB_CODEC(d) == NB_CODEC_INT4 || NB_CODEC(d) == NB_CODEC_INT6) &&
                     (job->src | (NB_MODE(d) != NB_EF_OFF ? d->scale : 0)) % 16 == 0;
}

/* Complete nb_describe: decide whether the tile is plain. One warp. A plain tile is whole, with a tile behind
 * it and without values of a partial group before it. A sum's first tile is never plain, since on sm_100 the
 * compiler has no register left for it. */
NB_DEV void nb_mark_plain(struct nb_job *job, const struct nb_strides *strides)
{
    if (job->groups == NB_TILE_GROUPS && !job->head && job->tile + 1 < job->tiles && !job->measure && nb_thread() == 0)
        job->plain = strides->plain;
}

/* Decode a whole tile inside its span, `steps` behind a whole tile of the same descriptor. One warp. A tile
 * that is not plain is special. */
NB_DEV void nb_describe_further(uint32_t steps, const struct nb_job *from, struct nb_job *job,
                                const struct nb_strides *strides, uint32_t *special)
{
    const uint32_t lane = nb_thread();
    if (lane < NB_JOB_WORDS) {
        const uint64_t word = ((const uint64_t *)from)[lane] + steps * strides->by[lane];
        ((uint64_t *)job)[lane] = word;
        if (lane == NB_JOB_PHASE) {
            const uint32_t plain = strides->plain, measure = word < strides->measured;
            job->measure = measure;
            job->plain = plain & ~measure;
            *special = *special >> 1 | (plain & ~measure ? 0 : 2);
        }
    }
}

NB_DEV int nb_quantizes(const struct nb_gpu_desc *d)
{
    return NB_OP(d) == NB_GPU_ENCODE || NB_OP(d) == NB_GPU_DECODE || NB_OP(d) == NB_GPU_REDUCE;
}

/* Return whether nb_encode_tile handles the tile. */
NB_DEV int nb_encodes_fast(const struct nb_gpu_desc *d, const struct nb_job *job)
{
    return NB_CODEC(d) == NB_CODEC_INT4 && job->groups;
}

/* Fetch the scales of residuals, a byte a group. */
NB_DEV void nb_fetch_scales(nb_quad *to, uint64_t from, int aligned, uint32_t groups)
{
    const uint32_t t = nb_thread();
    if (aligned || (from | groups) % 16 == 0) {
        if (t < groups / 16) {
            NB_ONE_WARP;
            nb_async16(to + t, (const char *)(uintptr_t)from + 16 * t);
        }
    } else if (t < groups) {
        NB_RARE;
        ((uint8_t *)to)[t] = (uint8_t)nb_load1((const char *)(uintptr_t)from + t);
    }
}

/* Fetch the values to encode, and their residuals. */
NB_DEV void nb_fetch_tile(int type, nb_quad *stage, const struct nb_job *job, int feedback, int plain, uint32_t groups)
{
    nb_fetch_values(type, stage, (const void *)(uintptr_t)job->src, plain, groups);
    if (feedback) {
        nb_fetch(2, stage + NB_ERRORS_AT, (const void *)(uintptr_t)job->err, groups);
        nb_fetch_scales(stage + NB_SCALES_AT, job->scale, plain, groups);
    }
}

/* Begin to fetch the data of the ticket in place `s`. */
NB_DEV void nb_begin(struct nb_shared *sh, uint32_t s)
{
    const struct nb_gpu_desc *d = &sh->desc[s];
    const struct nb_job *job = &sh->job[s];

    if (NB_OP(d) == NB_GPU_ENCODE) {
        if (job->plain) {
            nb_fetch_tile(NB_TYPE(d), sh->stage[s], job, NB_MODE(d) != NB_EF_OFF, 1, NB_TILE_GROUPS);
        } else if (nb_encodes_fast(d, job)) {
            NB_RARE;
            nb_fetch_tile(NB_TYPE(d), sh->stage[s], job, NB_MODE(d) != NB_EF_OFF, 0, job->groups);
        }
    } else if (NB_OP(d) == NB_GPU_DECODE || NB_OP(d) == NB_GPU_REDUCE) {
        nb_reduce_fetch(NB_TYPE(d), d, job, sh, s, 0);
    }
}

NB_DEV void nb_encode_any(const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh, uint32_t warp,
                          uint32_t s, int usual)
{
    const int feedback = NB_MODE(d) != NB_EF_OFF;

    if (!usual) {
        NB_RARE;
        usual = nb_any((int)job->plain);
    }
    if (usual && NB_CODEC(d) == NB_CODEC_INT6) {
        if (feedback ? !nb_encode_tile(NB_TYPE(d), 1, 1, 1, d, job, sh, warp, s)
                     : !nb_encode_tile(NB_TYPE(d), 0, 1, 1, d, job, sh, warp, s))
            return;
    } else if (usual) {
        if (feedback ? !nb_encode_tile(NB_TYPE(d), 1, 1, 0, d, job, sh, warp, s)
                     : !nb_encode_tile(NB_TYPE(d), 0, 1, 0, d, job, sh, warp, s))
            return;
    }
    NB_RARE;
    if (nb_encodes_fast(d, job))
        if (feedback ? !nb_encode_tile(NB_TYPE(d), 1, 0, 0, d, job, sh, warp, s)
                     : !nb_encode_tile(NB_TYPE(d), 0, 0, 0, d, job, sh, warp, s))
            return;
    if (job->groups) {
        nb_careful(NB_TYPE(d), d, job, sh, sh->stage[s], (int)job->measure);
        return;
    }
    if (nb_thread() == 0)
        nb_publish(job->state, nb_ticket_bytes(NB_TYPE(d), job));
    if (nb_thread() < 32)
        nb_settle(NB_TYPE(d), 0, d, job, sh, 0);
}

/* The same for a plain tile. */
NB_DEV void nb_begin_further(struct nb_shared *sh, uint32_t s)
{
    const struct nb_gpu_desc *d = &sh->desc[s];
    if (NB_OP(d) == NB_GPU_ENCODE) {
        const struct nb_job *job = &sh->job[s];
        const struct nb_fetch_places places = sh->fetches[nb_thread()];
        if (NB_TYPE(d) == NB_F32)
            nb_fetch(8, sh->stage[s], (const void *)(uintptr_t)job->src, NB_TILE_GROUPS);
        else
            nb_fetch_whole(4, sh->stage[s], (const void *)(uintptr_t)job->src, places.values);
        if (NB_MODE(d) != NB_EF_OFF) {
            nb_fetch_whole(2, sh->stage[s] + NB_ERRORS_AT, (const void *)(uintptr_t)job->err, places.errors);
            nb_fetch_scales(sh->stage[s] + NB_SCALES_AT, job->scale, 1, NB_TILE_GROUPS);
        }
    } else if (NB_OP(d) == NB_GPU_DECODE || NB_OP(d) == NB_GPU_REDUCE) {
        nb_reduce_fetch(NB_TYPE(d), d, &sh->job[s], sh, s, 1);
    }
}

/* Run the ticket in place `s`, whose data have arrived. `usual`: its descriptor's tiles are plain, where it
 * quantizes. Return whether there is a next ticket. */
NB_DEV int nb_run(struct nb_shared *sh, uint32_t warp, uint32_t s, int usual)
{
    const struct nb_gpu_desc *d = &sh->desc[s];
    const struct nb_job *job = &sh->job[s];
    const uint32_t ticket = (uint32_t)(sh->ticket[s] - d->ticket);

    NB_EACH_TICKET;
    switch (NB_OP(d)) {
    case NB_GPU_ENCODE:
        nb_encode_any(d, job, sh, warp, s, usual);
        break;
    case NB_GPU_DECODE:
    case NB_GPU_REDUCE:
        nb_reduce_tile(NB_TYPE(d), d, job, sh, s);
        break;
    case NB_GPU_ULP_ENCODE:
    case NB_GPU_DELTA4_ENCODE:
    case NB_GPU_ULP_GUESS:
#ifdef NB_NO_ULP_ENCODE
        if (nb_thread() == 0)
            nb_fail(d, ENOTSUP);
#else
        nb_ulp_encode_ticket(d, ticket, sh, s);
#endif
        break;
    case NB_GPU_ULP_DECODE:
    case NB_GPU_DELTA4_DECODE:
        nb_ulp_decode_ticket(d, ticket, sh, s);
        break;
    case NB_GPU_REDUCE_EXACT:
        nb_exact(d, ticket, sh, s);
        break;
    case NB_GPU_COPY:
        nb_copy(d, ticket);
        break;
    case NB_GPU_ZERO:
        nb_clear(d, ticket);
        break;
    case NB_GPU_HASH:
        nb_hash(d);
        break;
    case NB_GPU_EQUAL:
        nb_compare(d, ticket);
        break;
    case NB_GPU_LIKENESS:
        nb_likeness(d);
        break;
    case NB_GPU_PROFILE:
        nb_profile(NB_TYPE(d), d);
        break;
    case NB_GPU_SAMPLE:
        nb_sample(NB_TYPE(d), d);
        break;
    case NB_GPU_PICK:
        nb_pick_values(d, ticket);
        break;
    default:
        break;
    }
    const int32_t have = sh->have;
    if (sh->pending) {
        if (NB_OP(d) != NB_GPU_ENCODE)
            NB_RARE;
        nb_deliver(sh, NB_SCARCE ? sh->place : s ^ 1);
    }
    return have > 0;
}

/* ---- Tickets ------------------------------------------------------------------------------------------- */

NB_DEV void nb_copy_desc(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(struct nb_gpu_desc) / 8; i++)
        to[i] = nb_get64_gpu(from + i);
}

/* Copy the descriptor in entry i of the ring's image in GPU memory to place s, if it owns the ticket. Block 0
 * may overwrite the entry meanwhile, unless it owns the ticket: `begin` shows this, read before and after. */
NB_DEV int nb_match_entry(const struct nb_gpu_state *state, uint32_t i, uint64_t ticket, struct nb_gpu_desc *to)
{
    const uint64_t begin = nb_get64_gpu(&state->begin[i]);
    if (!begin || begin - 1 > ticket)
        return 0;
    nb_fence();
    const struct nb_gpu_desc *d = &state->desc[i];
    const uint64_t *words = (const uint64_t *)d;
    const uint32_t tickets = (uint32_t)nb_get64_gpu(words + 1);
    if (ticket - (begin - 1) >= tickets)
        return 0;
    nb_fence();
    if (nb_get64_gpu(&state->begin[i]) != begin)
        return 0;
    nb_copy_desc((uint64_t *)to, words);
    return 1;
}

/* Copy the descriptor of the ticket to `to`, as nb_match_entry does. One warp, whose lanes load one word each.
 * Return 0 also where the ring's image changes meanwhile. */
NB_DEV int nb_find_in_image(const struct nb_gpu_state *state, uint64_t ticket, struct nb_gpu_desc *to)
{
    const uint32_t lane = nb_thread(), words = sizeof(struct nb_gpu_desc) / 8;
    uint32_t mine = 0;

    for (uint32_t i = lane; i < NB_GPU_RING; i += 32) {
        const uint64_t begin = nb_get64_gpu(&state->begin[i]);
        const uint32_t tickets = (uint32_t)nb_get64_gpu((const uint64_t *)&state->desc[i] + 1);
        if (begin && begin - 1 <= ticket && ticket - (begin - 1) < tickets)
            mine = i + 1;
    }
    const uint32_t entry = nb_warp_max(mine);
    if (!entry)
        return 0;
    const uint64_t *at = &state->begin[entry - 1], *from = (const uint64_t *)&state->desc[entry - 1];
    const uint64_t begin = nb_acquire64(at);
    const uint64_t word = lane < words ? nb_acquire64(from + lane) : 0;
    int valid = begin && nb_get64_gpu(at) == begin && begin - 1 <= ticket;
    if (lane == 1)
        valid = valid && ticket - (begin - 1) < (uint32_t)word;
    if (nb_ballot(!valid))
        return 0;
    if (lane < words)
        ((uint64_t *)to)[lane] = word;
    return 1;
}

/* Decode the ticket in place s and find its first records. One warp. `steps`: the other place has a ticket of
 * the same descriptor, so many before, or 0. `further`: all words grow from that one. */
NB_DEV void nb_found(struct nb_shared *sh, uint32_t s, uint32_t steps, int further)
{
    const struct nb_gpu_desc *d = &sh->desc[s];
    if (!nb_quantizes(d))
        return;
    if (!further) {
        NB_RARE;
        further = steps && sh->job[s ^ 1].ticket + steps < sh->strides.until;
        nb_warp_barrier(); /* nb_describe writes `until` anew */
    }
    if (further) {
        nb_describe_further(steps, &sh->job[s ^ 1], &sh->job[s], &sh->strides, &sh->special);
    } else {
        NB_RARE;
        if (nb_thread() == 0)
            nb_describe(d, (uint32_t)(sh->ticket[s] - d->ticket), &sh->job[s], &sh->strides);
        nb_warp_barrier();
        if (NB_OP(d) != NB_GPU_REDUCE)
            nb_mark_plain(&sh->job[s], &sh->strides);
    }
    nb_warp_barrier();
    if (NB_OP(d) != NB_GPU_ENCODE)
        nb_reduce_look(NB_TYPE(d), d, &sh->job[s], sh, s);
}

/* Return how many tickets from the one in place s on are found by counting on. */
NB_DEV uint32_t nb_left(const struct nb_shared *sh, uint32_t s)
{
    const struct nb_gpu_desc *d = &sh->desc[s];
    const uint32_t ticket = (uint32_t)(sh->ticket[s] - d->ticket);
    const uint32_t until = nb_quantizes(d) ? sh->strides.until : d->tickets;
    return ticket < until ? until - ticket : 0;
}

/* Find the ticket sh->ticket[s]. All threads. Return 1: it is in place s. 0: it is not published yet. -1: the
 * launch ends before it. */
NB_DEV int nb_find(const struct nb_gpu_launch *launch, struct nb_shared *sh, uint32_t s)
{
    const uint32_t t = nb_thread();
    struct nb_gpu_state *state = (struct nb_gpu_state *)(uintptr_t)launch->state;
    const uint64_t ticket = sh->ticket[s];
    const struct nb_gpu_desc *other = &sh->desc[s ^ 1];
    uint64_t *to = (uint64_t *)&sh->desc[s];

    if (t == 0) {
        sh->found = 0;
        sh->same = sh->left = 0;
        sh->keep[s] = 1;
    }
    nb_barrier();
    if (other->tickets && ticket >= other->ticket && ticket - other->ticket < other->tickets) {
        if (t < sizeof(struct nb_gpu_desc) / 8)
            to[t] = ((const uint64_t *)other)[t];
        if (t == 0)
            sh->found = 1;
    } else if (launch->ring) {
        NB_RARE;
        if (t < NB_GPU_RING && nb_match_entry(state, t, ticket, &sh->desc[s]))
            sh->found = 1;
        if (t == NB_GPU_RING) {
            const uint64_t end = nb_get64_gpu(&state->end);
            if (end && ticket >= end - 1)
                sh->found = -1;
        }
    } else {
        NB_RARE;
        const struct nb_gpu_desc *list = (const struct nb_gpu_desc *)(uintptr_t)launch->list;
        NB_ROLL
        for (uint64_t i = t; i < launch->count; i += NB_THREADS) {
            const uint64_t begin = nb_load8(&list[i].ticket);
            const uint32_t tickets = nb_load4(&list[i].tickets);
            if (ticket >= begin && ticket - begin < tickets) {
                for (uint32_t k = 0; k < sizeof(struct nb_gpu_desc) / 8; k++)
                    to[k] = nb_load8((const uint64_t *)&list[i] + k);
                sh->found = 1;
            }
            if (i + 1 == launch->count && ticket >= begin + tickets)
                sh->found = -1;
        }
    }
    nb_barrier();
    const int found = sh->found;
    if (found == 1 && t < 32)
        nb_found(sh, s, 0, 0);
    nb_barrier();
    return found;
}

#define NB_ELSEWHERE 2 /* not found by one warp: all threads search */

/* Between two tickets, count the tickets whose output is stored: the one before, in place s ^ 1, unless its
 * record is still to be delivered, and the one before that, if its record was delivered just now. sh->ended:
 * these were the last of their descriptors. One thread, of another warp than nb_next's: each of both waits for
 * memory, at the same time. */
NB_DEV void nb_count(struct nb_shared *sh, uint32_t s)
{
    NB_ONE_WARP;
    const uint32_t deferred = sh->deferred, delivered = sh->pending, before = sh->due & ~deferred;
    uint32_t ended = 0;
    if (delivered | before) {
        const uint32_t place = delivered ? s : s ^ 1;
        ended = nb_count_ticket(&sh->kept[place]) << place;
    }
    if (delivered & before) { /* both only where records end to be delivered late */
        NB_RARE;
        ended |= nb_count_ticket(&sh->kept[s ^ 1]) << (s ^ 1);
    }
    sh->ended = ended;
    sh->pending = deferred;
    sh->deferred = 0;
    sh->due = 1;
    nb_reset_extremes(sh);
}

/* End the descriptors whose last tickets nb_count has counted. All threads. */
NB_DEV void nb_finish_counted(struct nb_shared *sh, uint32_t s)
{
    if (sh->ended) {
        NB_RARE;
        if (sh->ended >> s & 1)
            nb_finish(&sh->kept[s]);
        if (sh->ended >> (s ^ 1) & 1)
            nb_finish(&sh->kept[s ^ 1]);
    }
}

/* Between two tickets, put the ticket after the one in place s into the other place. It mostly belongs to the
 * same descriptor. One warp. sh->found is nb_find's result, or NB_ELSEWHERE. */
NB_DEV void nb_next(const struct nb_gpu_launch *launch, struct nb_shared *sh, uint32_t s)
{
    const uint32_t lane = nb_thread();
    const struct nb_gpu_desc *d = &sh->desc[s];
    struct nb_gpu_state *state = (struct nb_gpu_state *)(uintptr_t)launch->state;
    const uint64_t ticket = sh->ticket[s] + sh->drawn;
    const uint32_t steps = sh->drawn, left = sh->left;
    /* The number arrives while the next ticket is described. */
    const uint64_t drawn = lane == 0 ? nb_add64(&state->next, 1) : 0;

    nb_warp_barrier();
    if (steps < left) { /* both places have its descriptor */
        if (lane == 0) {
            sh->place = s ^ 1;
            sh->ticket[s ^ 1] = ticket;
            sh->have = 1;
            if (!nb_quantizes(d))
                sh->special >>= 1;
        }
        nb_found(sh, s ^ 1, steps, 1);
        if (lane == 0) {
            sh->drawn = (uint32_t)drawn - (uint32_t)ticket;
            sh->left = left - steps;
        }
        return;
    }
    NB_RARE;
    const int same = ticket - d->ticket < d->tickets; /* never less than d->ticket */
    if (lane == 0) {
        sh->place = s ^ 1;
        sh->ticket[s ^ 1] = ticket;
        sh->found = sh->have = same ? 1 : NB_ELSEWHERE;
        /* If the place's last ticket belonged to this descriptor as well, nb_run has kept it. */
        sh->keep[s ^ 1] = !(same & (int)sh->same);
        sh->same = (uint32_t)same;
    }
    int found = same;
    if (same) {
        if (lane < sizeof(struct nb_gpu_desc) / 8)
            ((uint64_t *)&sh->desc[s ^ 1])[lane] = ((const uint64_t *)d)[lane];
    } else if (launch->ring) {
        NB_RARE;
        found = nb_find_in_image(state, ticket, &sh->desc[s ^ 1]);
        if (found && lane == 0)
            sh->found = sh->have = 1;
    }
    if (found) {
        nb_warp_barrier();
        nb_found(sh, s ^ 1, same ? steps : 0, 0);
    }
    nb_warp_barrier();
    if (lane == 0) {
        sh->drawn = (uint32_t)drawn - (uint32_t)ticket;
        sh->special = 2;
        sh->left = same ? nb_left(sh, s ^ 1) : 0;
    }
}

/* Between two tickets, all that a change of descriptors needs: end those that are complete, search for the next
 * ticket, keep the descriptor of place s. Then begin to fetch the next ticket's data. All threads. */
NB_DEV void nb_change(const struct nb_gpu_launch *launch, struct nb_shared *sh, uint32_t s)
{
    int have = 1;

    nb_finish_counted(sh, s);
    nb_barrier();
    /* nb_count reads this copy while nb_next replaces the descriptor. */
    if (sh->keep[s] && nb_thread() < sizeof(struct nb_gpu_desc) / 8)
        ((uint64_t *)&sh->kept[s])[nb_thread()] = ((const uint64_t *)&sh->desc[s])[nb_thread()];
    if (sh->found == NB_ELSEWHERE) {
        nb_barrier();
        have = nb_find(launch, sh, s ^ 1);
        if (nb_thread() == 0)
            sh->have = have;
    }
    if (have > 0)
        nb_begin(sh, s ^ 1);
    nb_barrier();
}

/* ---- A ring -------------------------------------------------------------------------------------------- */

#define NB_DESC_WORDS (sizeof(struct nb_gpu_desc) / 8)
#define NB_RING_WORDS (NB_GPU_RING * (uint32_t)NB_DESC_WORDS)
#define NB_CARRY_WORDS ((NB_RING_WORDS + NB_THREADS - 1) / NB_THREADS) /* words a thread carries of a full ring */

/* Return how many descriptors a round takes from number `number` on: all published ones up to the next
 * launch's. -1: this launch has taken all of its own. One thread. */
NB_DEV int nb_published(const struct nb_gpu_state *state, const struct nb_gpu_ring *ring, uint64_t number)
{
    const uint64_t published = nb_get64_sys(&ring->published);
    const uint64_t k = nb_get64_gpu(&state->launches), stops = nb_get64_sys(&ring->stops);
    uint64_t until = published;

    if (stops > k) {
        nb_fence_sys();
        const uint64_t stop = nb_get64_sys(&ring->stop[k % NB_GPU_STOPS]);
        if (number >= stop)
            return -1;
        if (stop < until)
            until = stop;
    }
    return (int)(until - number); /* at most NB_GPU_RING: the host waits for earlier results */
}

/* Copy `count` descriptors from place `first` on. A thread requests all its words over the bus before it
 * stores the first one. A round therefore costs one round trip, whatever the number of descriptors. */
NB_DEV void nb_carry_words(struct nb_gpu_state *state, const struct nb_gpu_ring *ring, uint32_t first, uint32_t count)
{
    const uint64_t *from = (const uint64_t *)ring->desc;
    const uint32_t words = count * (uint32_t)NB_DESC_WORDS, begin = first * (uint32_t)NB_DESC_WORDS;
    uint64_t *to = (uint64_t *)state->desc;
    uint64_t word[NB_CARRY_WORDS];

    for (uint32_t i = 0; i < NB_CARRY_WORDS; i++) {
        const uint32_t at = nb_thread() + i * NB_THREADS;
        word[i] = at < words ? nb_get64_sys(from + (begin + at) % NB_RING_WORDS) : 0;
    }
    for (uint32_t i = 0; i < NB_CARRY_WORDS; i++) {
        const uint32_t at = nb_thread() + i * NB_THREADS;
        if (at < words)
            nb_put64_gpu(to + (begin + at) % NB_RING_WORDS, word[i]);
    }
}

/* Carry descriptors from the host's ring to GPU memory until the launch is ended, in each round all published
 * ones. Block 0 of a resident launch. Thread i < NB_GPU_RING handles the i-th descriptor of a round. */
NB_DEV void nb_carry(const struct nb_gpu_launch *launch, struct nb_shared *sh)
{
    struct nb_gpu_state *state = (struct nb_gpu_state *)(uintptr_t)launch->state;
    const struct nb_gpu_ring *ring = (const struct nb_gpu_ring *)(uintptr_t)launch->ring;
    const uint32_t t = nb_thread();

    for (;;) {
        if (t == 0) {
            sh->offset = nb_get64_gpu(&state->carried);
            sh->found = nb_published(state, ring, sh->offset);
            if (sh->found > 0)
                nb_fence_sys();
            if (sh->found == 0)
                nb_pause();
        }
        nb_barrier();
        const int found = sh->found;
        const uint64_t number = sh->offset;
        const uint32_t entry = (uint32_t)((number + t) % NB_GPU_RING);
        const int mine = found > 0 && t < (uint32_t)found;
        if (found < 0)
            break;
        if (mine) {
            nb_put64_gpu(&state->begin[entry], 0);
            nb_fence();
        }
        nb_barrier();
        if (found > 0)
            nb_carry_words(state, ring, (uint32_t)(number % NB_GPU_RING), (uint32_t)found);
        nb_barrier();
        if (mine) {
            const uint64_t *words = (const uint64_t *)&state->desc[entry];
            const uint64_t begin = nb_get64_gpu(words);
            nb_fence();
            nb_put64_gpu(&state->begin[entry], begin + 1);
            if (t + 1 == (uint32_t)found) {
                nb_put64_gpu(&state->last, begin + (uint32_t)nb_get64_gpu(words + 1));
                nb_put64_gpu(&state->carried, number + (uint32_t)found);
            }
        }
        nb_barrier();
    }
    if (t == 0)
        nb_put64_gpu(&state->end, nb_get64_gpu(&state->last) + 1);
}

#define NB_STATE_OF(launch) ((struct nb_gpu_state *)(uintptr_t)(launch)->state)
#define NB_RING_OF(launch) ((struct nb_gpu_ring *)(uintptr_t)(launch)->ring)

/* ---- The kernel ---------------------------------------------------------------------------------------- */

NB_DEV void nb_work(const struct nb_gpu_launch *argument, struct nb_shared *shared)
{
    struct nb_shared *sh = (struct nb_shared *)nb_kept(shared);
    /* Shared memory saves registers, which are scarce during a ticket. */
    const struct nb_gpu_launch *launch = &sh->launch;
    const uint32_t t = nb_thread(), warp = nb_warp_kept();
    uint32_t s = 0;

    sh->fetches[t].values = nb_fetch_place(4);
    sh->fetches[t].errors = nb_fetch_place(2);
    if (t == 0) {
        sh->launch = *argument;
        sh->desc[0].tickets = sh->desc[1].tickets = 0;
        sh->ready[0] = sh->ready[1] = sh->due = sh->deferred = sh->pending = sh->special = 0;
    }
    nb_barrier();
    if (launch->ring && nb_team() == 0) {
        NB_RARE;
        if (t == 0)
            nb_put64_sys(&NB_RING_OF(launch)->started, nb_get64_gpu(&NB_STATE_OF(launch)->launches) + 1);
        nb_carry(launch, sh);
    } else {
        if (t == 0) {
            sh->ticket[0] = nb_add64(&NB_STATE_OF(launch)->next, 1);
            sh->drawn = (uint32_t)(nb_add64(&NB_STATE_OF(launch)->next, 1) - sh->ticket[0]);
        }
        nb_barrier();
        int have;
        while ((have = nb_find(launch, sh, s)) == 0)
            nb_pause();
        if (have > 0)
            nb_begin(sh, s);
        nb_async_end();
        NB_ROLL
        for (; have > 0;) {
        again:
            /* Shared memory holds the values that the code after the work needs: registers are scarce during
             * the work. */
            nb_barrier();
            if (NB_SCARCE ? nb_thread() < 32 : warp == 0) {
                NB_ONE_WARP;
                nb_next(launch, sh, s);
            }
            if (NB_SCARCE || warp == NB_WARPS - 1) {
                NB_ONE_WARP;
                if (nb_thread() == NB_THREADS - 32)
                    nb_count(sh, s);
            }
            nb_async_wait_all(); /* the data of place s, which the next barrier shows to all */
            nb_barrier();
            const int usual = !nb_any((int)(sh->ended | sh->special));
            if (usual) {
                nb_begin_further(sh, s ^ 1);
            } else {
                NB_RARE;
                nb_change(launch, sh, s);
            }
            nb_async_end();
            const int more = nb_run(sh, warp, s, usual);
            s = NB_SCARCE ? sh->place : s ^ 1;
            if (more)
                goto again;
            /* The host may wait for this end before it publishes another ticket. */
            NB_RARE;
            have = sh->have;
            nb_barrier();
            if (sh->deferred)
                nb_deliver(sh, s ^ 1);
            nb_barrier();
            if (nb_thread() == NB_THREADS - 32) {
                sh->deferred = 0;
                nb_count(sh, s);
                sh->due = 0;
            }
            nb_barrier();
            nb_finish_counted(sh, s);
            while (have == 0 && (have = nb_find(launch, sh, s)) == 0)
                nb_pause();
            if (have > 0)
                nb_begin(sh, s);
            nb_async_end();
        }
        nb_async_wait_all();
    }
    /* The last block to end prepares the state for the next launch. */
    nb_barrier();
    if (nb_thread() == 0) {
        struct nb_gpu_state *state = NB_STATE_OF(launch);
        struct nb_gpu_ring *ring = NB_RING_OF(launch);
        nb_fence();
        if (nb_add32(&state->left, 1) + 1 == nb_teams()) {
            nb_fence();
            nb_put64_gpu(&state->next, ring ? nb_get64_gpu(&state->last) : 0);
            nb_put64_gpu(&state->end, 0);
            nb_put32_shared_by_blocks(&state->left, 0);
            nb_put64_gpu(&state->launches, nb_get64_gpu(&state->launches) + 1);
            nb_fence_sys();
            if (ring)
                nb_put64_sys(&ring->ended, nb_get64_gpu(&state->launches));
        }
    }
}

#endif
