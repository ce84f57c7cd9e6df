/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v6 (NCCL 2.29: descriptions of collectives by copy engines). */
#include "abi/api.h"

#define VERSION 6
#include "abi/profiler_calls.inc.h"
