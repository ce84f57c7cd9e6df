/* SPDX-License-Identifier: Apache-2.0 */
/* ncclTunerPlugin_v4 (NCCL 2.24). */
#include "abi/api.h"

static ncclResult_t init(size_t nranks, size_t nnodes, ncclDebugLogger_t logger, void **context)
{
    return nb_api_tuner_init(context, 0, nranks, nnodes, logger, NULL, NULL, 4);
}

NB_EXPORT const ncclTuner_v4_t ncclTunerPlugin_v4 = {
    .name = "nibble",
    .init = init,
    .getCollInfo = nb_api_tuner_info,
    .destroy = nb_api_tuner_finalize,
};
