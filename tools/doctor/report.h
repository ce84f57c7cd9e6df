/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of nibble-doctor: checks in the order in which they were made, and their display. */
#ifndef NIBBLE_TOOLS_DOCTOR_REPORT_H
#define NIBBLE_TOOLS_DOCTOR_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum status {
    STATUS_OK,
    STATUS_WARNING, /* the job runs compressed, but slower or less safely than it could */
    STATUS_PROBLEM, /* the job fails, or an operation that the user expects to be compressed is not */
};

struct check {
    enum status status;
    const char *subject;          /* static storage: "settings", "device" */
    char where[80];               /* the node or pair of nodes. "": this node */
    char found[512], remedy[384]; /* what was measured or read, and what to do ("" if there is no need) */
};

struct report {
    struct check *check;
    size_t n, cap;
    bool lost;      /* out of memory for a check: the report is incomplete */
    char where[80]; /* of checks that are added now */
};

/* Add a check. `remedy` may be NULL for STATUS_OK. */
void say(struct report *report, enum status status, const char *subject, const char *remedy,
         const char *found, ...) __attribute__((format(printf, 5, 6)));
/* Replace the remedy of the last check. */
void say_remedy(struct report *report, const char *remedy, ...) __attribute__((format(printf, 2, 3)));

/* Return the worst status. An incomplete report is a problem. */
enum status report_status(const struct report *report);

/* Show all checks, as text or as JSON, headed by `version` and the scope. Return 0, or -1 when writing
 * failed. */
int report_show(const struct report *report, FILE *out, bool json, const char *version, const char *scope);

void report_free(struct report *report);

#endif
