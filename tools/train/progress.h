/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of all runs on stderr: a bar that redraws itself on a terminal, a plain line every few seconds
 * elsewhere. Node 0 of the current run draws it.
 */
#ifndef NIBBLE_TRAIN_PROGRESS_H
#define NIBBLE_TRAIN_PROGRESS_H

#include <stddef.h>

struct nbt_progress {
    size_t run, runs, steps; /* run counts from 0 */
    const char *title;
    int terminal, quiet;
    double begin, drawn; /* hx_now at the beginning of this run, and at the last line */
};

/* Call before a run begins. */
void nbt_progress_run(struct nbt_progress *p, size_t run, const char *title);
/* Show that `done` steps are done. valid is NaN before the first validation. */
void nbt_progress_step(struct nbt_progress *p, size_t done, double loss, double valid);

#endif
