/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging through the function that NCCL hands to init, in NCCL's style ("NET/nibble : ..."). Until NCCL
 * gives a function other than NULL, warnings go to stderr and other lines are dropped.
 *
 * Rules: an error is logged once, at WARN, where it arises, with cause and place. Callers only return its
 * code. %m is not available: use strerror(err) on a saved code. Lines start with a lower-case word and have
 * no trailing newline.
 */
#ifndef NIBBLE_BASE_LOG_H
#define NIBBLE_BASE_LOG_H

#include <stdbool.h>

#include "nibble/nccl_types.h"

void nb_log_set(ncclDebugLogger_t logger);

/* Begin lines of the calling thread with "label: " from now on, or without a prefix for "" or NULL. The
 * caller owns the text and keeps it until the next call. Return the label before. A thread that drives one of
 * several nodes in a process sets its context's label, as an engine's step does. A caller into a context does
 * the same. */
const char *nb_log_label(const char *label);

/* Append the calling thread's warnings, one a line, also to `text` of `cap` bytes, from its end on, until the
 * next call. The label is left out. NULL: stop. */
void nb_log_keep(char *text, size_t cap);

/* Log the calling thread's warnings as INFO lines from now on, since its caller can do without what fails, or
 * as warnings again. An alert stays one. */
void nb_log_mildly(bool mildly);

void nb_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Log a warning that the user must see: it also goes to stderr where NCCL shows no warnings (NCCL_DEBUG is
 * not set). */
void nb_log_alert(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Pass on a line of another plugin unchanged. */
void nb_log_pass(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *text);

#define NB_WARN(...) nb_log(NCCL_LOG_WARN, NCCL_ALL, __FILE__, __LINE__, __VA_ARGS__)
#define NB_ALERT(...) nb_log_alert(__FILE__, __LINE__, __VA_ARGS__)
#define NB_INFO(flags, ...) nb_log(NCCL_LOG_INFO, (flags), __FILE__, __LINE__, __VA_ARGS__)
#define NB_TRACE(flags, ...) nb_log(NCCL_LOG_TRACE, (flags), __FILE__, __LINE__, __VA_ARGS__)

#endif
