/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's cut of operations. See nccl_walk.h. */
#include "emulate/nccl_walk.h"

#include "base/nccl_names.h"

static size_t slot_of(size_t buffer)
{
    return buffer / NB_NCCL_STEPS;
}

/* Return the chunk that NCCL's CollNet-direct chooses (src/enqueue.cc): smaller where there would be few
 * steps. */
static size_t chosen_chunk(size_t total, int channels, size_t buffer)
{
    const size_t n = (size_t)channels;
    size_t chunk = slot_of(buffer);

    while (total / (n * chunk) < 64 && chunk > 131072)
        chunk /= 2;
    while (total / (n * chunk) < 8 && chunk > 32768)
        chunk /= 2;
    return chunk / 512 * 512;
}

struct nb_nccl_walk nb_nccl_walk(enum nb_func func, int nodes, int rank, int channels, size_t buffer,
                                 size_t chunk, size_t bytes)
{
    struct nb_nccl_walk w = {.func = func,
                             .nodes = nodes,
                             .rank = rank,
                             .channels = channels,
                             .laid_out = channels,
                             .slot = slot_of(buffer)};
    size_t step;

    w.block = func == NB_FUNC_ALL_REDUCE ? 0 : bytes;
    w.total = func == NB_FUNC_ALL_REDUCE ? bytes : bytes * (size_t)nodes;
    w.chunk = chunk ? chunk : chosen_chunk(w.total, channels, buffer);
    step = (size_t)channels * w.chunk;
    w.steps = (w.total + step - 1) / step;
    w.groups = (channels + NB_NCCL_GROUP - 1) / NB_NCCL_GROUP;
    return w;
}

size_t nb_nccl_walk_region(int channels, size_t buffer)
{
    return 2 * NB_NCCL_STEPS * (size_t)channels * slot_of(buffer);
}

/* Return where in the vector a channel's chunk begins, within all blocks or the own one. */
static size_t offset_of(const struct nb_nccl_walk *w, bool all, int channel, uint64_t step)
{
    const size_t offset = (size_t)(step * (uint64_t)w->channels + (uint64_t)channel) * w->chunk;
    const size_t low = all ? 0 : (size_t)w->rank * w->block;
    const size_t high = all ? w->total : ((size_t)w->rank + 1) * w->block;

    return offset < low ? low : offset > high ? high : offset;
}

static int last_of(const struct nb_nccl_walk *w, int group)
{
    const int last = (group + 1) * NB_NCCL_GROUP;

    return last < w->channels ? last : w->channels;
}

struct nb_nccl_place nb_nccl_place(const struct nb_nccl_walk *w, bool receives, int group, uint64_t step)
{
    const int first = group * NB_NCCL_GROUP, last = last_of(w, group);
    const bool all = receives != (w->func == NB_FUNC_REDUCE_SCATTER);
    struct nb_nccl_place p;

    p.at = ((receives ? NB_NCCL_STEPS : 0) + step % NB_NCCL_STEPS) * (size_t)w->laid_out * w->slot;
    if (w->func == NB_FUNC_ALL_REDUCE) { /* whole chunks, side by side, even beyond the end of the vector */
        p.at += (size_t)first * w->chunk;
        p.bytes = (size_t)(last - first) * w->chunk;
        p.from = (size_t)(step * (uint64_t)w->channels + (uint64_t)first) * w->chunk;
        p.valid = p.from >= w->total ? 0 : w->total - p.from < p.bytes ? w->total - p.from : p.bytes;
    } else {
        p.at += (size_t)first * w->slot;
        p.from = offset_of(w, all, first, step);
        p.valid = p.bytes = offset_of(w, all, last, step) - p.from;
    }
    return p;
}

int nb_nccl_call(const struct nb_nccl_walk *w, struct nb_coll_comm *coll, uint8_t *region, int group,
                 uint64_t step, ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req)
{
    const struct nb_nccl_place out = nb_nccl_place(w, false, group, step),
                               in = nb_nccl_place(w, true, group, step);
    const size_t offset = offset_of(w, true, group * NB_NCCL_GROUP, step);
    const size_t bytes = offset_of(w, true, last_of(w, group), step) - offset;
    uint8_t *send = region + out.at, *recv = region + in.at;

    *req = NULL;
    if (!out.bytes && !in.bytes)
        return 0;
    switch (w->func) {
    case NB_FUNC_ALL_REDUCE:
        return nb_coll_iallreduce(coll, send, recv, out.bytes / nb_nccl_type_size(type), type, op, req);
    case NB_FUNC_ALL_GATHER:
        return nb_coll_iallgather(coll, send, recv, in.bytes, w->block, offset, bytes, req);
    default:
        return nb_coll_ireducescatter(coll, send, out.bytes, recv, w->block, offset, bytes, type, op, req);
    }
}
