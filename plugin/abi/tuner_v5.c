/* SPDX-License-Identifier: Apache-2.0 */
/* ncclTunerPlugin_v5 (NCCL 2.28). */
#include "abi/api.h"

static ncclResult_t init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                         ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                         ncclTunerConstants_v5_t *constants)
{
    return nb_api_tuner_init(context, comm_id, nranks, nnodes, logger, domains, constants, 5);
}

NB_EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {
    .name = "nibble",
    .init = init,
    .getCollInfo = nb_api_tuner_info,
    .finalize = nb_api_tuner_finalize,
};
