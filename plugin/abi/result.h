/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where nibble's negative errno values become NCCL's results. */
#ifndef NIBBLE_ABI_RESULT_H
#define NIBBLE_ABI_RESULT_H

#include "nibble/nccl_types.h"

/* 0 and positive values are success. NCCL documents what each result tells the user: an invalid argument or
 * an operation that was not offered is NCCL core's mistake (ncclInternalError), sizes that do not fit are the
 * user's (ncclInvalidUsage), a peer that is gone, refuses, or talks nonsense is ncclRemoteError, and the rest
 * is the machine's (ncclSystemError). */
ncclResult_t nb_result(int err);

/* The same during init, where an invalid value can only come from the user's settings. */
ncclResult_t nb_result_init(int err);

/* The same of a function that NCCL's progress thread calls. Up to 2.27 NCCL drops the error (progressOps in
 * its src/proxy.cc goes on with the next operation and returns success), so the job hangs and
 * ncclCommGetAsyncError says nothing: the first one is told in a line that is shown without NCCL_DEBUG, too.
 * Any thread. */
ncclResult_t nb_result_moving(int err);

/* ncclInternalError after a WARN line: NCCL called `function` without `what`. */
ncclResult_t nb_result_missing(const char *function, const char *what);

/* Return from a table function that would let a job go on that is to stop (abi/process.h). */
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
