/* SPDX-License-Identifier: Apache-2.0 */
/* errno to ncclResult_t. */
#include "abi/result.h"

#include <errno.h>
#include <string.h>

#include "abi/process.h"
#include "base/log.h"

ncclResult_t nb_result(int err)
{
    if (err >= 0)
        return ncclSuccess;
    switch (-err) {
    case EINVAL:
    case ENOTSUP: return ncclInternalError;
    case EMSGSIZE: return ncclInvalidUsage;
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EBADMSG:
    case EPROTO: return ncclRemoteError;
    default: return ncclSystemError;
    }
}

ncclResult_t nb_result_moving(int err)
{
    if (err < 0 && nb_process_loses_first())
        NB_ALERT("moving data failed: %s. This NCCL (2.27 or older) does not pass a plugin's error on, so "
                 "the job hangs from here on and nobody is told: end it. The cause is logged at "
                 "NCCL_DEBUG=WARN; NCCL 2.28 and later end the job themselves",
                 strerror(-err));
    return nb_result(err);
}

ncclResult_t nb_result_init(int err)
{
    return err == -EINVAL ? ncclInvalidUsage : nb_result(err);
}

ncclResult_t nb_result_missing(const char *function, const char *what)
{
    NB_WARN("%s: NCCL passed NULL for %s", function, what);
    return ncclInternalError;
}
