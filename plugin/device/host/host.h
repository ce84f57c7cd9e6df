/* SPDX-License-Identifier: Apache-2.0 */
/* The device in host memory, and functions on values that the CPU runs. */
#ifndef NIBBLE_DEVICE_HOST_H
#define NIBBLE_DEVICE_HOST_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"

/* ---- threads.c: the device with codec threads ---------------------------------------------------------- */

/* Create a communicator's instance, which uses ctx until its table's `close`. Return NULL when setting or
 * default give it no workers, or none could be started (after a log line). Then the host's own device does
 * all the work. On NCCL's thread, at connect. */
struct nb_device *nb_host_threads_open(struct nb_context *ctx);

/* ---- cores.c: processors and the share of this process ------------------------------------------------- */

#define NB_CPUS 8192 /* CPU numbers (hardware threads) that a set can hold */

/* A set of CPUs. The system's calls get `set` and sizeof(struct nb_cpus). */
struct nb_cpus {
    union {
        cpu_set_t set;
        unsigned char room[NB_CPUS / 8];
    };
};

/* Facts from which the default of NIBBLE_HOST_THREADS follows. Cores are physical: hyperthreads of a core
 * count once. */
struct nb_cores {
    unsigned usable;      /* cores of which the affinity mask has a CPU */
    unsigned machine;     /* cores of the machine */
    unsigned ranks;       /* processes with a GPU each that share them, at least 1 */
    const char *ranks_by; /* source of that number: the name of a variable, or "GPUs", or "" without a
                             source */
    double limit;         /* processors that the control group may use at a time. 0: no limit */
    unsigned share;       /* of this process, at least 1 */
};

/* Return the calling thread's affinity mask, or an empty set where the system does not report it. */
void nb_cpus_mine(struct nb_cpus *cpus);
/* Parse "0-3,8" as a set. Return false, with *cpus empty, for a malformed list. */
bool nb_cpus_parse(const char *list, struct nb_cpus *cpus);
/* Keep in `cpus` the CPUs of `other`. Return whether any is left. */
bool nb_cpus_intersect(struct nb_cpus *cpus, const struct nb_cpus *other);
void nb_cpus_add(struct nb_cpus *cpus, const struct nb_cpus *other);
unsigned nb_cpus_count(const struct nb_cpus *cpus);

/* Look up the processors for a process whose mask is `mine`. */
void nb_cores_look(const char *root, const struct nb_cpus *mine, struct nb_cores *cores);
/* Return the default number of codec threads of such a process (NIBBLE_HOST_THREADS=-1). */
unsigned nb_cores_default_threads(const struct nb_cores *cores);

/* Set *cpus to the CPUs of the NUMA node in whose memory the page at `at` lies. Return false when the machine
 * has one node, the page is not in memory yet, or the system does not report it. */
bool nb_cores_near(const char *root, const void *at, struct nb_cpus *cpus);

/* ---- evidence.c: statistics of values ------------------------------------------------------------------ */

#define NB_PROFILE_GROUP 32u /* values of a profile's group */

/* Take `samples` values spread over the n at src, as floats at out. They are taken at odd indices, where the
 * 16-bit halves of FP32 numbers are the upper ones. Memory of unknown type may therefore be sampled as BF16.
 * Return the number of samples: `samples`, or 0 when there are fewer than 2 * samples values. */
unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out);

/* Set sums[i] to the squares of the values of the i-th of `groups` groups of 32, spread over the n at src,
 * added in order. A NaN is some NaN. Return `groups`, or 0 when the n values are too few. */
unsigned nb_host_sums(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *sums);
/* Compute the profile from these sums. `sums` and `out` may be the same. out[i]: log2 of the root mean square
 * of the i-th group. Groups below 2^-16 of the largest are clamped to that. A group of zeros is -150. Return
 * `groups`, or 0 when all values are zero, or one is not finite. */
unsigned nb_profile_of_sums(const float *sums, unsigned groups, float *out);

/* Number of positions at which two byte strings are similar: 16-bit patterns that differ by at most 64, by 65
 * to 256, and bytes that differ by at most 8. */
struct nb_similarity {
    uint64_t near16, far16, near8;
    unsigned samples; /* compared positions: as requested, but at most bytes / 4 */
};
struct nb_similarity nb_host_similarity(const void *a, const void *b, size_t bytes, unsigned samples);
/* Return the similarity of the two byte strings, in 0..1: the larger of the share of 16-bit patterns that
 * differ by at most 64, and the share of bytes that differ by at most 8. 64 is half a binade of BF16.
 * Patterns that differ by at most 256, a quarter of a binade of FP16, weigh 0.95. */
static inline double nb_likeness_of(const struct nb_similarity *near)
{
    const double by16 = (double)near->near16 + 0.95 * (double)near->far16, by8 = (double)near->near8;

    return near->samples ? (by16 > by8 ? by16 : by8) / near->samples : 0;
}

/* ---- exact.c: reductions of plain values --------------------------------------------------------------- */

/* Set dst[i] = sources[0][i] op ... op sources[nsources-1][i] op own[i] for i < n. `own` may be NULL and may
 * equal dst. Any alignment. Return 0, or -EINVAL where nb_exact_supported (base/nccl_names.h) denies type and
 * op, or both sources and `own` are missing. */
int nb_exact_reduce(ncclDataType_t type, ncclRedOp_t op, const void *const *sources, size_t nsources,
                    const void *own, size_t n, void *dst);

#endif
