/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-doctor: the declarations that its parts share. A part checks one subject of this node and adds its
 * checks to the report. Later parts use the findings of earlier ones.
 */
#ifndef NIBBLE_TOOLS_DOCTOR_H
#define NIBBLE_TOOLS_DOCTOR_H

#include <stdbool.h>

#include "abi/device_list.h"
#include "base/context.h"
#include "report.h"
#include "tools/info/info.h"
#include "tools/model/model.h"

struct doctor_options {
    bool json, speed;
    bool together;      /* the link will be measured with the other nodes, and its gain follows from that */
    const char *python; /* the interpreter whose PyTorch is asked for NCCL. "": no interpreter */
    const char *nccl;   /* a file. NULL: search */
    const char *system; /* a copy of another machine's /sys, /proc and /dev. "": this machine's */
    int nodes;          /* number of nodes of the job. 0: unknown */
    int gpus;           /* GPUs of a node. -1: count them */
    double gbps;        /* Gbit/s of a node's link. 0: as the device reports */
};

struct doctor {
    struct doctor_options options;
    struct report report;

    struct nb_params *params;    /* the settings */
    struct nb_context *ctx;      /* started, or NULL where that failed */
    struct nb_device_list *list; /* its devices, empty without a context */
    const char *transport;       /* "" without a context */
    struct info_nccl nccl[2];
    int nnccl;
    int gpus;                       /* of this node */
    bool nvswitch;                  /* seen here */
    bool profiler, tuner;           /* NCCL asks nibble's, as far as the environment shows */
    bool collnet;                   /* the environment allows CollNet */
    int threads;                    /* codec threads, beside the engine's */
    struct info_speeds speeds;      /* zero: not measured */
    struct nb_reckon_facts facts;   /* link and codec, as this node would tell them */
    const char *why[NB_FUNC_COUNT]; /* operations are raw whatever the link. NULL: no cause */
    bool raw[NB_FUNC_COUNT];        /* said so, for that or for the link */
    bool judged;                    /* an NCCL was found, so that `why` is known */
};

/* Check this node. The caller sets the options of `d` and zeroes its other fields. */
void doctor_local(struct doctor *d);
/* Free the results of doctor_local, except the report. */
void doctor_end(struct doctor *d);

/* ---- The parts, in their order ---- */

/* Set the variables of NCCL's configuration files, as in a job's process, before any other part reads
 * them. */
void check_files(struct doctor *d);
/* Read and judge nibble's settings, into d->params. Lines that the plugin would log are problems. */
void check_settings(struct doctor *d);
/* NCCL's variables that keep traffic away from nibble. */
void check_environment(struct doctor *d);
/* Start the plugin file that NCCL would load, in a process of its own, as NCCL would. */
void check_library(struct doctor *d);
/* Network devices of the transport that a job would use; d->ctx, d->list. */
void check_devices(struct doctor *d);
/* Adapters of InfiniBand and RoCE, as the kernel shows them. */
void check_rdma(struct doctor *d);
/* GPUs, NVSwitch, and whether network devices suffice for them. */
void check_gpus(struct doctor *d);
/* Limits of processes, shared memory, processors, ports. */
void check_limits(struct doctor *d);
/* Socket buffers, NCCL's buffers and control of congestion against the nominal round trip. */
void check_distance(struct doctor *d);
/* NCCL, and which collectives will be compressed under it. */
void check_compressed(struct doctor *d);
/* Say which collectives will be compressed: as check_compressed found, reckoned with the facts of the slowest
 * node. */
void tell_compressed(struct doctor *d, const struct nb_reckon_facts *slowest);
/* Names of functions in the report. */
extern const char *const function_names[NB_FUNC_COUNT];
/* Measure the codecs, and let the model say how much they gain. */
void check_gain(struct doctor *d);

/* The same for a measured link: bytes a second in each direction, and seconds of one hop. */
void predict_gain(struct doctor *d, int nodes, double link, double latency);

/* ---- Lines that the plugin logs meanwhile ---- */

/* Take the oldest warning from the log. Return false when the log is empty. */
bool log_next(char *line, size_t cap);
/* Take over the plugin's log of this process. */
void log_begin(void);

#endif
