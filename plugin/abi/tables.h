/* SPDX-License-Identifier: Apache-2.0 */
/* All tables by name, for programs that are linked with them. NCCL finds them with dlsym. */
#ifndef NIBBLE_ABI_TABLES_H
#define NIBBLE_ABI_TABLES_H

#include "nibble/nccl_net.h"
#include "nibble/nccl_profiler.h"
#include "nibble/nccl_rma.h"
#include "nibble/nccl_tuner.h"

#define NB_TABLES_NET(V) \
    extern const ncclNet_v##V##_t ncclNetPlugin_v##V; \
    extern const ncclCollNet_v##V##_t ncclCollNetPlugin_v##V;
#define NB_TABLES_TUNER(V) extern const ncclTuner_v##V##_t ncclTunerPlugin_v##V;
#define NB_TABLES_PROFILER(V) extern const ncclProfiler_v##V##_t ncclProfiler_v##V;
#define NB_TABLES_RMA(V) extern const ncclRma_v##V##_t ncclRmaPlugin_v##V;
NB_NET_VERSIONS(NB_TABLES_NET)
NB_TUNER_VERSIONS(NB_TABLES_TUNER)
NB_PROFILER_VERSIONS(NB_TABLES_PROFILER)
NB_RMA_VERSIONS(NB_TABLES_RMA)
#undef NB_TABLES_NET
#undef NB_TABLES_TUNER
#undef NB_TABLES_PROFILER
#undef NB_TABLES_RMA

/* The newest of each. */
#define NB_TABLES_JOIN_(name, version, suffix) name##_v##version##suffix
#define NB_TABLES_JOIN(name, version, suffix) NB_TABLES_JOIN_(name, version, suffix)
#define NB_NEWEST_NET NB_TABLES_JOIN(ncclNetPlugin, NB_NET_NEWEST, )
#define NB_NEWEST_COLL NB_TABLES_JOIN(ncclCollNetPlugin, NB_NET_NEWEST, )
#define NB_NEWEST_TUNER NB_TABLES_JOIN(ncclTunerPlugin, NB_TUNER_NEWEST, )
#define NB_NEWEST_PROFILER NB_TABLES_JOIN(ncclProfiler, NB_PROFILER_NEWEST, )

#endif
