/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processors that this process may use, and how many of them are its share: by its affinity mask, the ranks
 * that run beside it on this machine, and the limit of its control group. Read from /proc and /sys; what cannot
 * be read counts as not limited. No state; any thread.
 *
 * `root` is put in front of every path: "" for this machine, a folder for tests.
 */
#ifndef NIBBLE_DEVICE_CORES_H
#define NIBBLE_DEVICE_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#define NB_CPUS 8192 /* numbers of CPUs (hardware threads) that a set may have */

/* A set of CPUs; the system's calls get `set` and sizeof(struct nb_cpus). */
struct nb_cpus {
    union {
        cpu_set_t set;
        unsigned char room[NB_CPUS / 8];
    };
};

/* What the default of NIBBLE_HOST_THREADS follows from. Cores are physical: hyperthreads of one count once. */
struct nb_cores {
    unsigned usable;      /* cores of which the affinity mask has a CPU */
    unsigned machine;     /* cores of the machine */
    unsigned ranks;       /* processes with a GPU each that share them, at least 1 */
    const char *ranks_by; /* what says so: the name of a variable, or "GPUs"; "" where nothing does */
    double limit;         /* processors that the control group may use at a time; 0: no limit */
    unsigned share;       /* of this process, at least 1 */
};

/* The calling thread's affinity mask; empty where the system does not tell. */
void nb_cpus_mine(struct nb_cpus *cpus);
/* "0-3,8" as a set: false, and *cpus is empty, when it is no such list. */
bool nb_cpus_parse(const char *list, struct nb_cpus *cpus);
/* Into all of `cpus` but those of `other`; whether any is left. */
bool nb_cpus_intersect(struct nb_cpus *cpus, const struct nb_cpus *other);
void nb_cpus_add(struct nb_cpus *cpus, const struct nb_cpus *other);
unsigned nb_cpus_count(const struct nb_cpus *cpus);

/* What there is for a process whose mask is `mine`. */
void nb_cores_look(const char *root, const struct nb_cpus *mine, struct nb_cores *cores);
/* Codec threads that such a process gets by default (NIBBLE_HOST_THREADS=-1). */
unsigned nb_cores_default_threads(const struct nb_cores *cores);

/* CPUs of the NUMA node in whose memory the page at `at` lies. false: the machine has one node, the page is in no
 * memory yet, or the system does not tell. */
bool nb_cores_near(const char *root, const void *at, struct nb_cpus *cpus);

#endif
