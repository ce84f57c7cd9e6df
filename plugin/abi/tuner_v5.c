/* SPDX-License-Identifier: Apache-2.0 */
/* ncclTunerPlugin_v5 (NCCL 2.28). */
#include "abi/api.h"

NB_EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {
    .name = "nibble",
    .init = nb_api_tuner_init,
    .getCollInfo = nb_api_tuner_info,
    .finalize = nb_api_tuner_finalize,
};
