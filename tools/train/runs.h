/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that can be compared, by name. */
#ifndef NIBBLE_TRAIN_RUNS_H
#define NIBBLE_TRAIN_RUNS_H

#include <stddef.h>
#include <stdio.h>

#include "method.h"

struct nbt_run {
    const char *name;  /* short, for options and files: "raw" */
    const char *title; /* for people: "uncompressed" */
    const char *const
        *env; /* the plugin's settings, "NAME=value" ..., NULL; NULL when it cannot do this run */
    struct nbt_method method;
    int usual;  /* runs when nothing is chosen */
    int judged; /* the bar on the direction of the update holds for it */
};

#define NBT_RUNS_MAX 16
extern const struct nbt_run nbt_runs[];
extern const size_t nbt_runs_count;

/* The run called by the `n` characters at `name`; NULL when there is none. */
const struct nbt_run *nbt_run_find(const char *name, size_t n);
/* All names with commas between them. */
void nbt_run_names(FILE *f);

#endif
