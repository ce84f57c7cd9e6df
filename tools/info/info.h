/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of nibble-info, and the parts that nibble-doctor uses. */
#ifndef NIBBLE_TOOLS_INFO_H
#define NIBBLE_TOOLS_INFO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "emit.h"

struct nb_params;
struct nb_context;
struct nb_reckoning;

struct info_options {
    const char *python; /* the interpreter whose PyTorch is asked. "": no interpreter */
    const char *nccl;   /* a file. NULL: search */
    bool speed;         /* measure the codecs */
    bool all;           /* show settings with default values, too */
};

void info_version(struct emit *e);
/* Show settings of the environment that differ from their defaults (all: every one). */
void info_settings(struct emit *e, const struct nb_params *params, bool all);
/* Show the setting of this name, with or without NIBBLE_. Where there is none, show all whose name contains
 * it. Return their number. */
int info_setting(struct emit *e, const struct nb_params *params, const char *name);
/* Show the network devices of the started context. Return their number. */
int info_devices(struct emit *e, struct nb_context *ctx);
/* Show the variants of the codecs and, with `speed`, the speed of the selected one, which takes some tenths
 * of a second. */
void info_codecs(struct emit *e, bool speed);
/* Show the number of codec threads of a process that was started like this one, and its reason. */
void info_threads(struct emit *e, const struct nb_params *params);
/* Measure the selected variant on one core, in GB of BF16 values a second, in some tenths of a second. NAN:
 * the operation failed. Return false when out of memory. */
struct info_speeds {
    double copy, encode, decode, ulp_encode, ulp_decode; /* encode with feedback, decode and add, deltas */
};
bool info_codec_speeds(struct info_speeds *speeds);
/* Codec threads that a process has which is started as this one was. */
unsigned info_thread_count(const struct nb_params *params);
/* Return the facts that the plugin would tell the other nodes: of links of `mbps` Mbit/s (0: unknown) unless
 * NIBBLE_LINK_MBPS says otherwise, and of the GPU's codec or this processor's and so many codec threads. */
struct nb_reckon_facts info_reckon_facts(const struct nb_params *params, int mbps, bool gpu,
                                         unsigned threads);
/* Show whether nodes decline a communicator (nb_policy_declines) for several numbers of nodes, on the slowest
 * device of the started context. */
void info_gain(struct emit *e, struct nb_context *ctx);
void info_gpu(struct emit *e);
/* Show the NCCL that a program of this environment loads, PyTorch's NCCL, and the features under each. */
void info_nccl(struct emit *e, const struct info_options *options);

/* nibble's features under a version of NCCL, as ncclGetVersion counts: 22807 is 2.28.7. */
struct info_support {
    int net, tuner, profiler; /* versions of the tables that NCCL uses. 0: it uses none */
    const char *note;         /* "" or a remark */
};
/* Get the features. Return false below 2.20, which nibble does not support. Versions later than the last
 * known one count as that one, with a note. */
bool info_support_of(int version, struct info_support *support);

/* An NCCL that was searched for. */
struct info_nccl {
    const char *from;    /* the place of the search, in static storage */
    char torch[64];      /* PyTorch's version beside it, "none", or "" without a question */
    char file[PATH_MAX]; /* its path, or the name that was searched for */
    int version;         /* as ncclGetVersion counts. 0: not found */
    bool supported;      /* `support` has the features, otherwise `problem` the reason */
    struct info_support support;
    char problem[256];
};
/* Find the NCCL that a program of this environment loads, and the one of Python's packages if there is one.
 * Return their number, 1 or 2. Both stay loaded, since NCCL does not support unloading. */
int info_nccl_find(const struct info_options *options, struct info_nccl found[2]);
/* Write "2.28.7" into text and return it. */
const char *info_nccl_version(int version, char *text, size_t cap);

#endif
