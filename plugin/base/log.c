/* SPDX-License-Identifier: Apache-2.0 */
/* The logger: lines are formatted here, so that NCCL's function only ever gets "%s". */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic(ncclDebugLogger_t) nb_logger;
static _Thread_local const char *nb_label;

void nb_log_set(ncclDebugLogger_t logger)
{
    atomic_store_explicit(&nb_logger, logger, memory_order_release);
}

const char *nb_log_label(const char *label)
{
    const char *before = nb_label;

    nb_label = label;
    return before;
}

void nb_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nb_logger, memory_order_acquire);
    if (!logger && level != NCCL_LOG_WARN)
        return;

    char text[1024];
    size_t at = 0;
    if (nb_label && *nb_label)
        at = (size_t)snprintf(text, sizeof(text) / 2, "%.100s: ", nb_label);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text + at, sizeof(text) - at, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if (at + (size_t)n >= sizeof(text))
        memcpy(text + sizeof(text) - 4, "...", 4);

    if (logger)
        logger(level, flags, file, line, "NET/nibble : %s", text);
    else
        fprintf(stderr, "NET/nibble : %s\n", text);
}

void nb_log_pass(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *text)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nb_logger, memory_order_acquire);

    if (logger)
        logger(level, flags, file, line, "%s", text);
    else if (level == NCCL_LOG_WARN)
        fprintf(stderr, "%s\n", text);
}
