/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many runs in one table. Every run appends a line to a file of records; the table is made from the file, so
 * that runs can be added, and a day's work that was cut short goes on where it stopped.
 *
 * A record is a line of tab-separated fields, the first line names them. Numbers that were not measured are
 * "nan".
 */
#ifndef NIBBLE_TRAIN_TABLE_H
#define NIBBLE_TRAIN_TABLE_H

#include "report.h"

/* Append a run to the file at `path`. 0 or a negative errno value after a line on stderr. */
int nbt_record(const struct nbt_settings *s, const struct nbt_outcome *o, const char *path);
/* 1 when the file has this run with this seed, these steps and this peak learning rate. */
int nbt_record_has(const struct nbt_settings *s, const struct nbt_run *run, const char *path);

/* Print the tables of a file of records as Markdown on stdout, and judge them: the number of bars that
 * failed, or negative after a line on stderr. */
int nbt_table(const char *path);

#endif
