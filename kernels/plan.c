/* SPDX-License-Identifier: Apache-2.0 */
/* Check descriptors and compute their tickets and workspace. See kernels.h. */
#include <errno.h>

#include "base/nccl_names.h"
#include "codec/format.h"
#include "codec/pick.h"
#include "codec/ulp.h"
#include "kernels.h"

_Static_assert(sizeof(struct nb_gpu_desc) == 160, "descriptors are read in 16-byte words");
_Static_assert(sizeof(struct nb_gpu_result) == 128, "results have a line each");

/* As in work.cuh, bytes.cuh, ulp.cuh. */
#define CONTROL 72u
#define PIECE 32768u
#define SEGMENT 32u /* blocks of ulp, a warp's work */
#define SEGMENTS 4u /* segments of a ticket */
#define PARTS 512u  /* parts of a pick that a ticket handles */

static int aligned(uint64_t address, uint64_t to)
{
    return address % to == 0;
}

/* Tiles of the span, at least one. */
static uint64_t tiles_of(uint64_t n, uint64_t first)
{
    uint64_t into = first % NB_GROUP, head = !into ? 0 : n < NB_GROUP - into ? n : NB_GROUP - into;
    uint64_t groups = (n - head) / NB_GROUP, group = (first + head) / NB_GROUP;
    return groups ? (group + groups - 1) / NB_TILE_GROUPS - group / NB_TILE_GROUPS + 1 : 1;
}

static int64_t plan_encode(struct nb_gpu_desc *d, uint64_t size)
{
    if ((d->codec != NB_CODEC_INT4 && d->codec != NB_CODEC_INT6 && d->codec != NB_CODEC_INT8) ||
        d->every > 1u << 16)
        return -EINVAL;
    if (d->mode != NB_EF_OFF &&
        (!d->err || !d->scale || (d->mode != NB_EF_FULL && d->mode != NB_EF_EMA) || !(d->bound >= 0) ||
         (d->mode == NB_EF_EMA && !(d->beta >= 0 && d->beta < 1))))
        return -EINVAL;
    if (!aligned(d->src, size) || !aligned(d->dst, 4) || (d->mode != NB_EF_OFF && !aligned(d->err, 16)))
        return -ENOTSUP;
    uint64_t tiles = tiles_of(d->n, d->first);
    if (tiles > UINT32_MAX / 2)
        return -EINVAL;
    d->tickets = (uint32_t)tiles;
    d->share = d->bound * d->bound * NB_GPU_SURE;
    return (int64_t)(CONTROL + 20 * tiles);
}

static int64_t plan_reduce(struct nb_gpu_desc *d, uint64_t size)
{
    if (d->nsources > NB_MAX_SOURCES || (d->nsources && !d->sources) ||
        (d->op == NB_GPU_DECODE && d->nsources != 1))
        return -EINVAL;
    if (!aligned(d->dst, size) || !aligned(d->own, size) || !aligned(d->sources, 8))
        return -ENOTSUP;
    uint64_t tiles = tiles_of(d->n, d->first);
    if (tiles > UINT32_MAX / 2)
        return -EINVAL;
    d->tickets = (uint32_t)(tiles + (d->nsources + 3) / 4);
    return (int64_t)(CONTROL + 4 * (uint64_t)((d->nsources + 3) & ~3u) +
                     4 * (uint64_t)d->nsources * (tiles + 1));
}

/* Plan an encoder or a decoder of deltas. */
static int64_t plan_differences(struct nb_gpu_desc *d)
{
    const int encode = d->op == NB_GPU_ULP_ENCODE || d->op == NB_GPU_DELTA4_ENCODE;
    uint64_t width = d->width;

    if (d->op == NB_GPU_DELTA4_ENCODE || d->op == NB_GPU_DELTA4_DECODE) {
        if (d->type >= NB_DTYPE_COUNT)
            return -EINVAL;
        width = d->type == NB_F32 ? 4 : 2;
    }
    if (width != NB_ULP_8 && width != NB_ULP_16 && width != NB_ULP_32)
        return -EINVAL;
    if (encode ? !d->dst || (d->n && (!d->src || !d->ref)) : d->nsources != 1 || !d->sources)
        return -EINVAL;
    if (!aligned(d->ref, width) || !aligned(encode ? d->src : d->dst, width) || !aligned(d->sources, 8) ||
        !aligned(d->scratch, 16))
        return -ENOTSUP;
    uint64_t blocks = (d->n / width + NB_ULP_BLOCK - 1) / NB_ULP_BLOCK;
    uint64_t tickets = (blocks + SEGMENT * SEGMENTS - 1) / (SEGMENT * SEGMENTS);
    if (tickets > UINT32_MAX / SEGMENTS)
        return -EINVAL;
    d->tickets = tickets ? (uint32_t)tickets : 1;
    return (int64_t)(CONTROL + (encode ? 12 : 8) * SEGMENTS * (uint64_t)d->tickets);
}

static int64_t plan_exact(struct nb_gpu_desc *d)
{
    uint64_t size = nb_nccl_type_size((ncclDataType_t)d->type);

    if (!nb_exact_supported((ncclDataType_t)d->type, (ncclRedOp_t)d->mode) ||
        d->nsources + (d->own != 0) == 0 || d->nsources > NB_MAX_SOURCES || (d->nsources && !d->sources) ||
        (d->n && !d->dst))
        return -EINVAL;
    if (!aligned(d->dst, size) || !aligned(d->own, size) || !aligned(d->sources, 8))
        return -ENOTSUP;
    uint64_t tickets = (d->n * size + PIECE - 1) / PIECE;
    if (tickets > UINT32_MAX)
        return -EINVAL;
    d->tickets = tickets ? (uint32_t)tickets : 1;
    return CONTROL;
}

static int64_t plan_pick(struct nb_gpu_desc *d)
{
    const uint64_t size = d->width;

    if ((size != 1 && size != 2 && size != 4) || !d->picks || (d->picks & (d->picks - 1)) ||
        d->picks > NB_PICKS || d->limit < d->picks || d->limit > (uint64_t)1 << 46 ||
        d->first + d->n > d->limit || d->part > d->picks || d->nsources > d->picks - d->part || !d->src ||
        !d->dst)
        return -EINVAL;
    if (!aligned(d->src, size) || !aligned(d->dst, 4))
        return -ENOTSUP;
    d->tickets = d->nsources ? (d->nsources + PARTS - 1) / PARTS : 1;
    return CONTROL;
}

int64_t nb_gpu_plan(struct nb_gpu_desc *d)
{
    uint64_t size = d->type == NB_F32 ? 4 : 2;
    int64_t work = CONTROL;

    d->tickets = 1;
    if (!d->result || d->n > (uint64_t)1 << 46 || d->first > UINT64_MAX - d->n)
        return -EINVAL;
    if (!aligned(d->result, 16) || !aligned(d->work, 16))
        return -ENOTSUP;
    switch (d->op) {
    case NB_GPU_ENCODE:
    case NB_GPU_DECODE:
    case NB_GPU_REDUCE:
        if (d->type >= NB_DTYPE_COUNT || !d->n || !d->dst || (d->op == NB_GPU_ENCODE && !d->src))
            return -EINVAL;
        work = d->op == NB_GPU_ENCODE ? plan_encode(d, size) : plan_reduce(d, size);
        break;
    case NB_GPU_ULP_ENCODE:
    case NB_GPU_ULP_DECODE:
    case NB_GPU_DELTA4_ENCODE:
    case NB_GPU_DELTA4_DECODE: work = plan_differences(d); break;
    case NB_GPU_REDUCE_EXACT: work = plan_exact(d); break;
    case NB_GPU_ULP_GUESS:
        if (!aligned(d->src, 4) || !aligned(d->ref, 4))
            return -ENOTSUP;
        break;
    case NB_GPU_COPY:
    case NB_GPU_ZERO:
    case NB_GPU_EQUAL:
        if ((d->n + PIECE - 1) / PIECE > UINT32_MAX)
            return -EINVAL;
        d->tickets = d->n ? (uint32_t)((d->n + PIECE - 1) / PIECE) : 1;
        break;
    case NB_GPU_HASH:
    case NB_GPU_LIKENESS: break;
    case NB_GPU_PROFILE:
    case NB_GPU_SAMPLE:
        if (d->type >= NB_DTYPE_COUNT ||
            ((d->op == NB_GPU_SAMPLE || (d->flags & NB_GPU_SPREAD)) && d->nsources > 1u << 16))
            return -EINVAL;
        if (!aligned(d->src, size) || !aligned(d->dst, 4))
            return -ENOTSUP;
        break;
    case NB_GPU_PICK: work = plan_pick(d); break;
    default: return -EINVAL;
    }
    return work < 0 ? work : (work + 15) & ~(int64_t)15;
}

uint64_t nb_gpu_scratch(const struct nb_gpu_desc *d)
{
    uint64_t width = d->op == NB_GPU_ULP_ENCODE      ? d->width
                     : d->op == NB_GPU_DELTA4_ENCODE ? (d->type == NB_F32 ? 4u : 2u)
                                                     : 0;
    if (!width)
        return 0;
    /* A block that coding would lengthen is stored uncoded. */
    return (d->n / width + NB_ULP_BLOCK - 1) / NB_ULP_BLOCK * NB_ULP_BLOCK * width;
}
