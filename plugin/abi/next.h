/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plugins after nibble. NCCL has one place for a profiler and one for a tuner, and nibble takes both.
 * NIBBLE_PROFILER_NEXT and NIBBLE_TUNER_NEXT name the plugins that nibble passes everything on to
 * (profiler_next.h, tuner_next.h). A name means the same as in NCCL_PROFILER_PLUGIN and NCCL_TUNER_PLUGIN: a
 * file for dlopen, else X of libnccl-profiler-X.so and libnccl-tuner-X.so.
 *
 * nibble opens a library at its first use and keeps it open until the process ends, since its threads may be
 * running. This module reads the two settings itself, because NCCL may ask a profiler before any other table.
 * Any thread.
 */
#ifndef NIBBLE_ABI_NEXT_H
#define NIBBLE_ABI_NEXT_H

enum nb_next { NB_NEXT_PROFILER, NB_NEXT_TUNER };

struct nb_next_table {
    const void *table; /* NULL: no plugin is named, or it has no table, which has been logged once */
    int version;
    const char *name; /* name of the table, and the library's file, for the log */
    const char *file;
};

/* Return the plugin's newest table up to version `newest`, which is the version of nibble's table that NCCL
 * calls. */
struct nb_next_table nb_next_find(enum nb_next which, int newest);

#endif
