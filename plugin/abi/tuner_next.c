/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner after nibble's; see tuner_next.h. */
#include "abi/tuner_next.h"

#include "base/log.h"

static const ncclTuner_v4_t *v4(const struct nb_tuner_next *n)
{
    return n->of.version == 4 ? n->of.table : NULL;
}

/* v6 begins with the members of v5. */
static const ncclTuner_v5_t *v5(const struct nb_tuner_next *n)
{
    return n->of.version >= 5 ? n->of.table : NULL;
}

ncclResult_t nb_tuner_next_init(struct nb_tuner_next *next, const struct nb_tuner_setting *s)
{
    next->context = NULL;
    next->of = nb_next_find(NB_NEXT_TUNER, s->version);
    if (!next->of.table)
        return ncclSuccess;
    NB_INFO(NCCL_INIT | NCCL_TUNING,
            "tuner: %s (%s, v%d) is asked first; nibble decides on what is to take CollNet", next->of.name,
            next->of.file, next->of.version);
    if (v4(next))
        return v4(next)->init(s->nranks, s->nnodes, s->logger, &next->context);
    return v5(next)->init(&next->context, s->comm_id, s->nranks, s->nnodes, s->logger, s->domains,
                          s->constants);
}

ncclResult_t nb_tuner_next_info(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int ops,
                                float **table, int algos, int protos, int registered, int *channels)
{
    if (v4(next))
        return v4(next)->getCollInfo(next->context, func, bytes, ops, table, algos, protos, registered,
                                     channels);
    if (v5(next))
        return v5(next)->getCollInfo(next->context, func, bytes, ops, table, algos, protos, registered,
                                     channels);
    return ncclSuccess;
}

ncclResult_t nb_tuner_next_chunk(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int algo,
                                 int proto, int channels, size_t *chunk)
{
    const ncclTuner_v6_t *v6 = next->of.version >= 6 ? next->of.table : NULL;

    if (!v6 || !v6->getChunkSize)
        return ncclSuccess;
    return v6->getChunkSize(next->context, func, bytes, algo, proto, channels, chunk);
}

ncclResult_t nb_tuner_next_finalize(const struct nb_tuner_next *next)
{
    if (v4(next))
        return v4(next)->destroy(next->context);
    if (v5(next))
        return v5(next)->finalize(next->context);
    return ncclSuccess;
}
