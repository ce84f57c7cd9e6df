/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks up in a tuner plugin: ncclTunerPlugin_vN, N from 4 (NCCL 2.24) to 6 (2.30).
 * Names and layouts are NCCL's, the declarations are our own. Assertions at the end check sizes and offsets.
 *
 *  - getCollInfo may change the cost table, a flat float[numAlgo][numProto] behind a float **. -1 marks an
 *    algorithm that cannot run. From NCCL 2.30 on an error fails the operation, so a tuner without a
 *    preference returns success.
 *  - NCCL calls getChunkSize (v6) for every operation with the chunk that it chose.
 *  - Every rank calls the tuner for itself, and all ranks must get the same answer.
 */
#ifndef NIBBLE_NCCL_TUNER_H
#define NIBBLE_NCCL_TUNER_H

/* The versions of this table, for code that iterates over them. */
#define NB_TUNER_VERSIONS(X) X(4) X(5) X(6)
#define NB_TUNER_OLDEST 4
#define NB_TUNER_NEWEST 6

#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    NCCL_ALGO_TREE = 0,
    NCCL_ALGO_RING = 1,
    NCCL_ALGO_COLLNET_DIRECT = 2,
    NCCL_ALGO_COLLNET_CHAIN = 3,
    NCCL_ALGO_NVLS = 4,
    NCCL_ALGO_NVLS_TREE = 5,
    NCCL_ALGO_PAT = 6
};
#define NCCL_NUM_ALGORITHMS_V5 7

enum { NCCL_PROTO_LL = 0, NCCL_PROTO_LL128 = 1, NCCL_PROTO_SIMPLE = 2 };
#define NCCL_NUM_PROTOCOLS_V5 3
#define NCCL_NUM_HW_LINKS_V5 3
#define NCCL_NUM_COMPCAPS_V5 4
#define NCCL_NUM_TUNING_SCALES_V5 3

#define NCCL_ALGO_PROTO_IGNORE (-1.0f)

typedef struct {
    int nNvlDomains;
    int minRanksPerNvlDomain;
    int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;
typedef ncclNvlDomainInfo_v5_t ncclNvlDomainInfo_v6_t;

/* NCCL's own cost model. nibble leaves it as it is. */
typedef struct {
    double baseLatencies[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    double hwLatencies[NCCL_NUM_HW_LINKS_V5][NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    double llMaxBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxRingLL128Bws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxTreeLL128Bws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxTreeBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxNVLSTreeBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
} ncclTunerConstants_v5_t;
typedef ncclTunerConstants_v5_t ncclTunerConstants_v6_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff,
                                int *nChannels);
    ncclResult_t (*destroy)(void *context);
} ncclTuner_v4_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                         ncclDebugLogger_t logFunction, ncclNvlDomainInfo_v5_t *nvlDomainInfo,
                         ncclTunerConstants_v5_t *constants);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff,
                                int *nChannels);
    ncclResult_t (*finalize)(void *context);
} ncclTuner_v5_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                         ncclDebugLogger_t logFunction, ncclNvlDomainInfo_v6_t *nvlDomainInfo,
                         ncclTunerConstants_v6_t *constants);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff,
                                int *nChannels);
    ncclResult_t (*finalize)(void *context);
    ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collType, size_t nBytes, int algo, int proto,
                                 int nChannels, size_t *chunkSize);
} ncclTuner_v6_t;

/* ---- Layout ---------------------------------------------------------------------------------------- */

#if !defined(__cplusplus) && UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(ncclNvlDomainInfo_v5_t) == 12, "ncclNvlDomainInfo_v5_t does not have NCCL's size");
_Static_assert(sizeof(ncclTunerConstants_v5_t) == (21 + 63 + 5 * 12) * 8,
               "ncclTunerConstants_v5_t does not have NCCL's size");
_Static_assert(sizeof(ncclTuner_v4_t) == 32 && offsetof(ncclTuner_v4_t, destroy) == 24,
               "ncclTuner_v4_t does not have NCCL's layout");
_Static_assert(sizeof(ncclTuner_v5_t) == 32 && offsetof(ncclTuner_v5_t, finalize) == 24,
               "ncclTuner_v5_t does not have NCCL's layout");
_Static_assert(sizeof(ncclTuner_v6_t) == 40 && offsetof(ncclTuner_v6_t, getChunkSize) == 32,
               "ncclTuner_v6_t does not have NCCL's layout");
#endif

#ifdef __cplusplus
}
#endif
#endif
