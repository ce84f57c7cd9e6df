/* SPDX-License-Identifier: Apache-2.0 */
/* The runs that the trainer can compare, by name. */
#ifndef NIBBLE_TRAIN_RUNS_H
#define NIBBLE_TRAIN_RUNS_H

#include <stddef.h>
#include <stdio.h>

#include "method.h"

struct nbt_run {
    const char *name;  /* short, for options and files: "raw" */
    const char *title; /* for people: "uncompressed" */
    const char *const
        *env; /* the plugin's settings, "NAME=value" ..., NULL. NULL when the plugin cannot do this run */
    struct nbt_method method;
    int usual;     /* part of the default set */
    double judged; /* bar on the direction of the update, in multiples of the usual one. 0: none */
};

#define NBT_RUNS_MAX 16
extern const struct nbt_run nbt_runs[];
extern const size_t nbt_runs_count;

/* Return the run whose name is the `n` characters at `name`, or NULL. */
const struct nbt_run *nbt_run_find(const char *name, size_t n);
/* Print all names with commas between them. */
void nbt_run_names(FILE *f);

#endif
