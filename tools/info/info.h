/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of nibble-info, and what nibble-doctor takes from them. */
#ifndef NIBBLE_TOOLS_INFO_H
#define NIBBLE_TOOLS_INFO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "emit.h"

struct nb_params;
struct nb_context;

struct info_options {
    const char *python; /* the interpreter whose PyTorch is asked for; "": none */
    const char *nccl;   /* a file; NULL: what is found */
    bool speed;         /* measure the codecs */
    bool all;           /* settings that have their defaults, too */
};

void info_version(struct emit *e);
/* Settings of the environment that differ from their defaults (all: every one). */
void info_settings(struct emit *e, const struct nb_params *params, bool all);
/* Network devices of the started context. Returns how many. */
int info_devices(struct emit *e, struct nb_context *ctx);
/* Variants of the codecs and, if wished, the speed of the one in force: some tenths of a second. */
void info_codecs(struct emit *e, bool speed);
/* Codec threads of a process that is started as this one was, and what their number follows from. */
void info_threads(struct emit *e, const struct nb_params *params);
/* Speeds of the variant in force on one core, in GB of BF16 values a second: some tenths of a second. NAN: it
 * fails;
 * false: no memory. */
struct info_speeds {
    double copy, encode, decode, ulp_encode,
        ulp_decode; /* encode with feedback, decode and add, differences */
};
bool info_codec_speeds(struct info_speeds *speeds);
/* Codec threads that a process has which is started as this one was. */
unsigned info_thread_count(const struct nb_params *params);
/* Whether the nodes of a communicator decline it at connect because coding gains nothing, as the plugin decides
 * (nb_policy_declines): `nodes` nodes with links of `mbps` Mbit/s (0: unknown), this processor's codec and so many codec
 * threads. True: `why` says so. */
bool info_declines(const struct nb_params *params, int nodes, int mbps, unsigned threads, char *why,
                   size_t cap);
/* The same for several numbers of nodes, on the slowest device of the started context. */
void info_gain(struct emit *e, struct nb_context *ctx);
void info_gpu(struct emit *e);
/* The NCCL that a program of this environment loads, and PyTorch's, and what works under each. */
void info_nccl(struct emit *e, const struct info_options *options);

/* What nibble can do under a version of NCCL, as ncclGetVersion counts: 22807 is 2.28.7. */
struct info_support {
    int net, tuner, profiler; /* versions of the tables that are used; 0: none */
    const char *note;         /* "" or a remark */
};
/* False: nothing (older than 2.20). Versions later than those known are taken for the last one, with a
 * note. */
bool info_support_of(int version, struct info_support *support);

/* An NCCL that was looked for. */
struct info_nccl {
    const char *from;    /* where: static storage */
    char torch[64];      /* PyTorch's version beside it, "none", or "" where nobody asked */
    char file[PATH_MAX]; /* its path, or what was looked for */
    int version;         /* as ncclGetVersion counts; 0: there is none */
    bool supported;      /* `support` says how; else `problem` why not */
    struct info_support support;
    char problem[256];
};
/* The NCCL that a program of this environment loads, and the one of Python's packages where there is one: how
 * many, 1 or 2. Both stay loaded: NCCL does not expect to be unloaded. */
int info_nccl_find(const struct info_options *options, struct info_nccl found[2]);
/* "2.28.7" into text, which is returned. */
const char *info_nccl_version(int version, char *text, size_t cap);

#endif
