/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-doctor: what its parts share. A part looks at one subject of this node and adds its checks to the
 * report; later parts use what earlier ones have found.
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
    bool together;      /* the link will be measured with the other nodes: what it gains comes then */
    const char *python; /* the interpreter whose PyTorch is asked for NCCL; "": none */
    const char *nccl;   /* a file; NULL: what is found */
    const char *system; /* a copy of another machine's /sys, /proc and /dev; "": this one's own */
    int nodes;          /* that the job will have; 0: not known */
    int gpus;           /* of a node; -1: those that are found */
    double gbps;        /* Gbit/s of a node's link; 0: what the device says */
};

struct doctor {
    struct doctor_options options;
    struct report report;

    struct nb_params *params;    /* settings in force */
    struct nb_context *ctx;      /* started, or NULL: it cannot be */
    struct nb_device_list *list; /* its devices, empty without a context */
    const char *transport;       /* "" without a context */
    struct info_nccl nccl[2];
    int nnccl;
    int gpus;                  /* of this node */
    bool nvswitch;             /* seen here */
    bool profiler, tuner;      /* nibble's are the ones that NCCL asks, as far as the environment shows */
    bool collnet;              /* nothing in the environment keeps NCCL from CollNet */
    int threads;               /* of the codecs, beside the engine's */
    struct info_speeds speeds; /* zero: not measured */
};

/* Everything about this node. `d` has its options; the rest is zero. */
void doctor_local(struct doctor *d);
/* Free what doctor_local made, but not the report. */
void doctor_end(struct doctor *d);

/* ---- The parts, in their order ---- */

/* NCCL's configuration files, which set variables of a job's process: set them here, too, before anything
 * reads them. */
void check_files(struct doctor *d);
/* Read and judge nibble's settings; d->params. Lines that the plugin would have logged are problems. */
void check_settings(struct doctor *d);
/* NCCL's variables that keep traffic away from nibble. */
void check_environment(struct doctor *d);
/* The plugin file that NCCL would load, started in a process of its own as NCCL would. */
void check_library(struct doctor *d);
/* Network devices of the transport that a job would use; d->ctx, d->list. */
void check_devices(struct doctor *d);
/* Adapters of InfiniBand and RoCE, as the kernel shows them. */
void check_rdma(struct doctor *d);
/* GPUs, NVSwitch, and whether network devices suffice for them. */
void check_gpus(struct doctor *d);
/* Limits of processes, shared memory, processors, ports. */
void check_limits(struct doctor *d);
/* NCCL, and which collectives will be compressed under it. */
void check_compressed(struct doctor *d);
/* Speed of the codecs, and what the model says that they gain. */
void check_gain(struct doctor *d);

/* The same for a link that was measured: bytes a second, each direction, and seconds of one hop. */
void predict_gain(struct doctor *d, int nodes, double link, double latency);

/* ---- Lines that the plugin logs meanwhile ---- */

/* The oldest warning that was not taken yet. False: there is none. */
bool log_next(char *line, size_t cap);
/* Take over the plugin's log of this process. */
void log_begin(void);

#endif
