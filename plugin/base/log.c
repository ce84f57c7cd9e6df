/* SPDX-License-Identifier: Apache-2.0 */
/* The logger. It formats lines itself, so that NCCL's function only ever gets "%s". */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static _Atomic(ncclDebugLogger_t) nb_logger;
static _Thread_local const char *nb_label;
static _Thread_local char *nb_kept;
static _Thread_local size_t nb_kept_cap;
static _Thread_local bool nb_mildly;

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

void nb_log_keep(char *text, size_t cap)
{
    nb_kept = text;
    nb_kept_cap = cap;
}

void nb_log_mildly(bool mildly)
{
    nb_mildly = mildly;
}

static void keep(const char *text)
{
    const size_t at = strlen(nb_kept);

    snprintf(nb_kept + at, nb_kept_cap - at, "%s%s", at ? "\n" : "", text);
}

/* Return whether NCCL's function shows warnings. Its configuration files may enable them, too. An alert then
 * appears twice. */
static bool warnings_are_shown(void)
{
    const char *level = getenv("NCCL_DEBUG");

    return level && *level && strcasecmp(level, "VERSION") != 0 && strcasecmp(level, "NONE") != 0;
}

/* Format all of a line that is too long for `text`, and keep its beginning and its end there. */
__attribute__((format(printf, 4, 0))) static void shorten(char *text, size_t cap, size_t len, const char *fmt,
                                                          va_list ap)
{
    const size_t end = cap / 2;
    char *whole = malloc(len + 1);

    if (whole && vsnprintf(whole, len + 1, fmt, ap) == (int)len) {
        memcpy(text + cap - 1 - end, whole + len - end, end + 1);
        memcpy(text + cap - 1 - end - 3, "...", 3);
    } else {
        memcpy(text + cap - 4, "...", 4);
    }
    free(whole);
}

/* Write a line through NCCL's function, or to stderr before NCCL has given one. Write an alert to stderr also
 * where NCCL's function shows no warnings. */
__attribute__((format(printf, 6, 0))) static void put(bool alert, ncclDebugLogLevel level,
                                                      unsigned long flags, const char *file, int line,
                                                      const char *fmt, va_list ap)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nb_logger, memory_order_acquire);
    char text[1024];
    size_t at = 0;

    if (!logger && level != NCCL_LOG_WARN)
        return;
    if (nb_label && *nb_label)
        at = (size_t)snprintf(text, sizeof(text) / 2, "%.100s: ", nb_label);
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(text + at, sizeof(text) - at, fmt, ap);
    if (n >= 0 && at + (size_t)n >= sizeof(text))
        shorten(text + at, sizeof(text) - at, (size_t)n, fmt, again);
    va_end(again);
    if (n < 0)
        return;
    if (nb_kept && level == NCCL_LOG_WARN)
        keep(text + at);
    if (logger)
        logger(level, flags, file, line, "NET/nibble : %s", text);
    if (!logger || (alert && !warnings_are_shown()))
        fprintf(stderr, "NET/nibble : %s\n", text);
}

void nb_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    if (nb_mildly && level == NCCL_LOG_WARN)
        level = NCCL_LOG_INFO;
    va_start(ap, fmt);
    put(false, level, flags, file, line, fmt, ap);
    va_end(ap);
}

void nb_log_alert(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(true, NCCL_LOG_WARN, NCCL_ALL, file, line, fmt, ap);
    va_end(ap);
}

void nb_log_pass(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *text)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nb_logger, memory_order_acquire);

    if (logger)
        logger(level, flags, file, line, "%s", text);
    else if (level == NCCL_LOG_WARN)
        fprintf(stderr, "%s\n", text);
}
