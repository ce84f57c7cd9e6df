/* SPDX-License-Identifier: Apache-2.0 */
/* A logger for tests that pick the lines they need: hear_log gives each line's text to the program's own
 * `hear`. One C file of a program includes this. */
#ifndef NIBBLE_TESTS_HEAR_H
#define NIBBLE_TESTS_HEAR_H

#include <stdarg.h>
#include <stdio.h>

#include "nibble/nccl_types.h"

static void hear(ncclDebugLogLevel level, const char *text);

__attribute__((format(printf, 5, 6))) static void hear_log(ncclDebugLogLevel level, unsigned long flags,
                                                           const char *file, int line, const char *fmt, ...)
{
    char text[4096];
    va_list ap;

    (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    hear(level, text);
}

#endif
