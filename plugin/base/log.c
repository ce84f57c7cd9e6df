/* SPDX-License-Identifier: Apache-2.0 */
/* The logger: lines are formatted here, so that NCCL's function only ever gets "%s". */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic(ncclDebugLogger_t) nb_logger;

void nb_log_set(ncclDebugLogger_t logger)
{
    atomic_store_explicit(&nb_logger, logger, memory_order_release);
}

void nb_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nb_logger, memory_order_acquire);
    if (!logger && level != NCCL_LOG_WARN)
        return;

    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof(text))
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
