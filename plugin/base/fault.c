/* SPDX-License-Identifier: Apache-2.0 */
/* Looks a place up in NIBBLE_FAULT. */
#include "base/fault.h"

#include <string.h>

#include "base/log.h"
#include "base/params.h"

int nb_fault(const char *where)
{
    size_t len = strlen(where);
    for (const char *at = nb_params()->fault; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, where, n) == 0) {
            NB_INFO(NCCL_INIT | NCCL_NET, "fault injected: %s (NIBBLE_FAULT)", where);
            return 1;
        }
        at += n;
    }
    return 0;
}
