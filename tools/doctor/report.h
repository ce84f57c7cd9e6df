/* SPDX-License-Identifier: Apache-2.0 */
/* What nibble-doctor has found: checks in the order in which they were made, and how they are shown. */
#ifndef NIBBLE_TOOLS_DOCTOR_REPORT_H
#define NIBBLE_TOOLS_DOCTOR_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum status {
    STATUS_OK,
    STATUS_WARNING, /* the job runs compressed, but slower or less safely than it could */
    STATUS_PROBLEM, /* the job fails, or something that the user expects is not compressed */
};

struct check {
    enum status status;
    const char *subject;          /* static storage: "settings", "device" */
    char where[80];               /* the node or pair of nodes; "": this node */
    char found[512], remedy[384]; /* what was measured or read; what to do, "" where nothing is to be done */
};

struct report {
    struct check *check;
    size_t n, cap;
    bool lost;      /* no memory for a check: the report is not whole */
    char where[80]; /* of the checks that are added */
};

/* Add a check. `remedy` NULL: there is none (of STATUS_OK). */
void say(struct report *report, enum status status, const char *subject, const char *remedy,
         const char *found, ...) __attribute__((format(printf, 5, 6)));
/* Give the last check that was added another remedy. */
void say_remedy(struct report *report, const char *remedy, ...) __attribute__((format(printf, 2, 3)));

/* The worst status; a report that is not whole has a problem. */
enum status report_status(const struct report *report);

/* Show all checks, as text or as JSON, headed by `version` and a word on what was looked at. 0, or -1: not
 * everything could be written. */
int report_show(const struct report *report, FILE *out, bool json, const char *version, const char *scope);

void report_free(struct report *report);

#endif
