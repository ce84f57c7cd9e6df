/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugins that come after nibble: NCCL has one place for a profiler and one for a tuner, nibble takes
 * both, and NIBBLE_PROFILER_NEXT and NIBBLE_TUNER_NEXT name the ones that they pass everything on to
 * (profiler_next.h, tuner_next.h). A name means what it means to NCCL in NCCL_PROFILER_PLUGIN and
 * NCCL_TUNER_PLUGIN: a file for dlopen, else X of libnccl-profiler-X.so and libnccl-tuner-X.so.
 *
 * A library is opened when it is first asked for and stays open until the process ends: threads of its own
 * may be at work in it. The settings are read here and not with the others, since a profiler may be asked
 * before any other table. Any thread.
 */
#ifndef NIBBLE_ABI_NEXT_H
#define NIBBLE_ABI_NEXT_H

enum nb_next { NB_NEXT_PROFILER, NB_NEXT_TUNER };

struct nb_next_table {
    const void *table; /* NULL: none is named, or it cannot be had, which has been logged once */
    int version;
    const char *name; /* of its table, and its file; for the log */
    const char *file;
};

/* Its table of the newest version that is no newer than `newest`, the version of the table of ours that NCCL
 * calls. */
struct nb_next_table nb_next_find(enum nb_next which, int newest);

#endif
