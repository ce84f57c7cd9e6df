/* SPDX-License-Identifier: Apache-2.0 */
/* A logger for tests that remembers its lines. One C file of a program includes this. */
#ifndef NIBBLE_TESTS_CAPTURE_H
#define NIBBLE_TESTS_CAPTURE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nibble/nccl_types.h"

static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static char capture_text[65536]; /* the lines, "WARN text\n" or "INFO text\n", since capture_reset */
static int capture_warnings;
static int capture_infos;

__attribute__((format(printf, 5, 6))) static void capture_log(ncclDebugLogLevel level, unsigned long flags,
                                                              const char *file, int line, const char *fmt,
                                                              ...)
{
    (void)flags;
    (void)file;
    (void)line;
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&capture_lock);
    capture_warnings += level == NCCL_LOG_WARN;
    capture_infos += level == NCCL_LOG_INFO;
    size_t at = strlen(capture_text);
    snprintf(capture_text + at, sizeof(capture_text) - at, "%s %s\n",
             level == NCCL_LOG_WARN ? "WARN" : "INFO", text);
    pthread_mutex_unlock(&capture_lock);
}

static inline void capture_reset(void)
{
    pthread_mutex_lock(&capture_lock);
    capture_text[0] = '\0';
    capture_warnings = 0;
    capture_infos = 0;
    pthread_mutex_unlock(&capture_lock);
}

/* Return the number of warnings since capture_reset. Other threads may log meanwhile. */
static inline int capture_warned(void)
{
    pthread_mutex_lock(&capture_lock);
    int n = capture_warnings;
    pthread_mutex_unlock(&capture_lock);
    return n;
}

/* Return 1 when the captured lines contain `part`. */
static inline int capture_has(const char *part)
{
    pthread_mutex_lock(&capture_lock);
    int has = strstr(capture_text, part) != NULL;
    pthread_mutex_unlock(&capture_lock);
    return has;
}

#endif
