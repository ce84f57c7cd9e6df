/* SPDX-License-Identifier: Apache-2.0 */
/* Translate nibble's negative errno values into NCCL's results. This is the only place that does. */
#ifndef NIBBLE_ABI_RESULT_H
#define NIBBLE_ABI_RESULT_H

#include "nibble/nccl_types.h"

/* Return NCCL's result for a negative errno. 0 and positive values are success. NCCL documents the meaning of
 * each result for the user. ncclInternalError is NCCL's own mistake: an invalid argument, or an operation
 * that was not offered. ncclInvalidUsage is the user's mistake: sizes that do not fit. ncclRemoteError means
 * that a peer is gone, refuses, or breaks the protocol. ncclSystemError stands for all other causes on this
 * machine. */
ncclResult_t nb_result(int err);

/* The same during init, where only the user's settings can cause an invalid value. */
ncclResult_t nb_result_init(int err);

/* The same for a function that NCCL's progress thread calls. Up to 2.27 NCCL drops the error (progressOps in
 * its src/proxy.cc continues with the next operation and returns success), so that the job hangs and
 * ncclCommGetAsyncError reports success. The first such error is therefore logged in a line that needs no
 * NCCL_DEBUG. Any thread. */
ncclResult_t nb_result_moving(int err);

/* Return ncclInternalError after a WARN line: NCCL called `function` without `what`. */
ncclResult_t nb_result_missing(const char *function, const char *what);

/* Return from a table function when the job must stop (abi/process.h). */
#define NB_UNLESS_STOPPED() \
    do { \
        if (nb_process_stops()) \
            return ncclInvalidUsage; \
    } while (0)

/* Return from a table function when NCCL passed NULL. */
#define NB_REQUIRE(pointer) \
    do { \
        if (!(pointer)) \
            return nb_result_missing(__func__, #pointer); \
    } while (0)

#endif
