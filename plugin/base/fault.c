/* SPDX-License-Identifier: Apache-2.0 */
/* Looks a place up in NIBBLE_FAULT. */
#include "base/fault.h"

#include <string.h>

#include "base/context.h"
#include "base/log.h"

int nb_fault(const struct nb_context *ctx, const char *where)
{
    size_t len = strlen(where);
    for (const char *at = ctx->params->fault; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, where, n) == 0) {
            NB_INFO(NCCL_INIT | NCCL_NET, "fault injected: %s (NIBBLE_FAULT)", where);
            return 1;
        }
        at += n;
    }
    return 0;
}
