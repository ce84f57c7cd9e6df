/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a set of runs amounts to: tables and verdicts on stdout; results.json, loss curves as CSV and, where
 * gnuplot is installed, as a picture in the output folder.
 */
#ifndef NIBBLE_TRAIN_REPORT_H
#define NIBBLE_TRAIN_REPORT_H

#include "job.h"

/* Print and write everything. `judge_quality`: the runs are long enough for the bars on fidelity and loss.
 * Returns the number of bars that failed, or a negative errno value when the folder cannot be written. */
int nbt_report(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t nruns, const char *out,
               int judge_quality);

/* Bytes that a direct exchange of values of `size` bytes without coding sends: steps x (nodes - 1) blocks
 * from every node. */
double nbt_plain_bytes(const struct nbt_settings *s, size_t steps, size_t size);

#endif
