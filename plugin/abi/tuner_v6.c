/* SPDX-License-Identifier: Apache-2.0 */
/* ncclTunerPlugin_v6 (NCCL 2.30): the tuner may also choose the chunk. */
#include "abi/api.h"

static ncclResult_t init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                         ncclDebugLogger_t logger, ncclNvlDomainInfo_v6_t *domains,
                         ncclTunerConstants_v6_t *constants)
{
    return nb_api_tuner_init(context, comm_id, nranks, nnodes, logger, domains, constants, 6);
}

NB_EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {
    .name = "nibble",
    .init = init,
    .getCollInfo = nb_api_tuner_info,
    .finalize = nb_api_tuner_finalize,
    .getChunkSize = nb_api_tuner_chunk,
};
