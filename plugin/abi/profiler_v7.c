/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v7 (NCCL 2.31: tags of calls, and operations by kernels for symmetric memory). */
#include "abi/api.h"

#define VERSION 7
#include "abi/profiler_calls.inc.h"
