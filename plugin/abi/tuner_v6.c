/* SPDX-License-Identifier: Apache-2.0 */
/* ncclTunerPlugin_v6 (NCCL 2.30): the tuner may also choose the chunk. */
#include "abi/api.h"

NB_EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {
    .name = "nibble",
    .init = nb_api_tuner_init,
    .getCollInfo = nb_api_tuner_info,
    .finalize = nb_api_tuner_finalize,
    .getChunkSize = nb_api_tuner_chunk,
};
