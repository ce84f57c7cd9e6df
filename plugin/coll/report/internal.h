/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of report share: figures, metrics, hang reports. Private to this room. */
#ifndef NIBBLE_COLL_REPORT_INTERNAL_H
#define NIBBLE_COLL_REPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/nccl_names.h"
#include "base/process_name.h"
#include "coll/comm/stats.h"
#include "coll/comm/wire.h"
#include "coll/decide/decide.h"
#include "policy/rules/rules.h"
#include "state/feedback.h"

struct nb_coll_comm;
struct nb_figures;

/* ---- figures ----------------------------------------------------------------------------------------- */

/*
 * What a communicator has done so far, copied at one time: what the summary at close (summary.c) and the
 * metrics of a running job (metrics.c) are both made of.
 */

#define NB_FIGURES_RESIDUALS 64u /* residuals at most */
#define NB_FIGURES_LATE 16u      /* peers that are waited for, at most */

struct nb_figures {
    /* Whose they are. */
    char label[64];
    uint64_t comm_id;
    unsigned serial; /* tells those of a process apart; the caller's */
    struct nb_comm_info info;
    int rank, nnodes, dev, gpu;
    bool shadow, profiled; /* profiled: NCCL's events of it come here */
    /* What it has done. */
    struct nb_coll_stats stats;
    uint64_t reasons[NB_FUNC_COUNT][NB_RAW_REASON_COUNT]; /* operations that were sent raw */
    unsigned nsignatures;
    struct nb_sig_report signature[NB_SIG_REPORTS];
    unsigned nresiduals; /* all, where they were asked for; the first NB_FIGURES_RESIDUALS are here */
    struct nb_ef_report residual[NB_FIGURES_RESIDUALS];
    /* How it is. */
    int error; /* negative errno that it has failed with; 0: none */
    bool off;  /* the kill switch is on */
    bool closed;
    uint64_t open_windows;
    int64_t waited_ns;     /* the oldest of these has not got on for so long; 0: there is none */
    uint64_t late_reports; /* lines about late peers */
    unsigned nlate;        /* peers that it waits for: all; the first NB_FIGURES_LATE are here */
    int late[NB_FIGURES_LATE];
    int64_t silence_ns;   /* the longest time for which a connected peer has not been heard from */
    uint64_t retransmits; /* segments that the system has sent again on connections; UINT64_MAX: not known */
};

/* Copy the counters of `comm` into *figures; `serial`, `closed` and `retransmits` stay as they are. With
 * progress_lock, or where the engine does not know the communicator any more. */
void nb_figures_take(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* The same of its residuals, which the above leaves out since it takes the time of the square of their
 * number. */
void nb_figures_take_residuals(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Ask the connections for figures->retransmits: a system call each. Any thread, without progress_lock, as
 * long as they are open. */
void nb_figures_ask_transport(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Error of the code relative to the energy of the values, and of the residual that was added to them; 0
 * without values. */
double nb_figures_nmse(const struct nb_encode_stats *encode);
double nb_figures_carried(const struct nb_encode_stats *encode);
/* Bytes before over bytes after; 0 without any. */
double nb_figures_ratio(uint64_t bytes, uint64_t wire_bytes);

/* ---- metrics ----------------------------------------------------------------------------------------- */

/*
 * The figures of a process's communicators (report.h) as text for others: the exposition format of
 * Prometheus. It is made from one table of metrics (metrics.c). docs/operators.md says
 * what each means. Labels are called as NCCL Inspector calls them where it has them
 * (plugins/profiler/inspector/inspector_prom.cc of NCCL 2.30): slurm_job_id, node, gpu, comm_name, n_nodes,
 * nranks, collective.
 */

/* Where the figures come from. */
struct nb_metrics_process {
    char host[64];
    char job[64];                  /* SLURM_JOB_ID, or "unknown" */
    char process[NB_PROCESS_NAME]; /* the label "pid" */
    double time;                   /* of the copy, in seconds since 1970 */
};

/* Write all of `n` communicators to `out`, each metric with its help and type once. The calling thread's
 * locale has decimal points. */
void nb_metrics_prometheus(FILE *out, const struct nb_metrics_process *process,
                           const struct nb_figures *const *figures, unsigned n);

/* ---- hang report ------------------------------------------------------------------------------------- */

/*
 * What a communicator waits for, copied at one time, and the text of a hang report, which nibble-hang reads
 * (tools/watch). A report has a line each for
 *
 *     report     the format's version, and the process: host, pid, time, why it was written
 *     engine     steps made; seconds without one
 *     comm       a communicator: identifiers, this node's number, state, windows, the next operation
 *     window     its oldest open window, of an operation: how far it is, and for how long
 *     peer       a node that it is connected with: whether the window misses something of it, how long it has been
 *                silent, messages queued, sent and done, posted, arrived and taken, by class
 *
 * "window" and "peer" belong to the "comm" before. A line is a word and KEY=VALUE fields; a value with blanks
 * stands in quotes.
 */

struct nb_waits_peer {
    int rank;
    char name[112];
    bool gone, missing;
    int64_t silent_ns;
    struct {
        uint64_t queued, sent, done, posted, arrived, taken;
    } ring[NB_CLASS_COUNT];
};

struct nb_waits {
    uint64_t comm_id;
    uint32_t token; /* with comm_id: the same on the nodes of the group, and of no other group */
    int rank, nnodes;
    char name[NB_COMM_NAME];
    bool seen; /* the engine let it be looked at; else only what follows up to `finished` */
    uint64_t submitted, finished;
    uint64_t begun, oldest, next_op; /* next_op: the operation behind the last window that was begun */
    int error;                       /* negative errno, or 0 */
    char cause[NB_CTL_TEXT];
    bool closing;
    /* The oldest open window, where oldest < begun. */
    enum nb_func func;
    uint64_t opno, bytes, off, undelivered;
    int unsent;
    unsigned working;
    int64_t waited_ns;
    int npeers;
    struct nb_waits_peer peer[]; /* [npeers] */
};

/* Room for what `comm`, connected, waits for; free() it. NULL: no memory. */
struct nb_waits *nb_waits_new(const struct nb_coll_comm *comm);
/* The same once more: free() it. NULL: no memory, or of NULL. */
struct nb_waits *nb_waits_copy(const struct nb_waits *waits);
/* Fill in what any thread may read without waiting. */
void nb_waits_glance(struct nb_waits *waits, const struct nb_coll_comm *comm);
/* Fill in everything. With progress_lock. */
void nb_waits_take(struct nb_waits *waits, const struct nb_coll_comm *comm);

/* Whose report it is. */
struct nb_waits_process {
    const char *host, *job, *why;
    int pid;
    double time; /* seconds since 1970 */
    uint64_t steps;
    unsigned still; /* seconds in which the engine has made none */
};
/* Write a report of `n` communicators. */
void nb_waits_write(FILE *out, const struct nb_waits_process *process, const struct nb_waits *const *waits,
                    unsigned n);

#endif
