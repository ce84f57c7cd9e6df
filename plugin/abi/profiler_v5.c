/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v5 (NCCL 2.28: the users' calls and the launches of kernels are reported). */
#include "abi/api.h"

#define VERSION 5
#include "abi/profiler_calls.inc.h"
