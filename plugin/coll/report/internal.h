/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of report share: figures, metrics, hang reports. Private to this folder. */
#ifndef NIBBLE_COLL_REPORT_INTERNAL_H
#define NIBBLE_COLL_REPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/nccl_names.h"
#include "base/system.h"
#include "coll/comm/stats.h"
#include "coll/comm/wire.h"
#include "coll/decide/decide.h"
#include "policy/rules/rules.h"
#include "state/feedback.h"

struct nb_coll_comm;
struct nb_figures;

/* ---- figures ----------------------------------------------------------------------------------------- */

/*
 * The counters of a communicator, copied at one time, for the summary at close (summary.c) and the metrics of
 * a running job (metrics.c).
 */

#define NB_FIGURES_RESIDUALS 64u /* residuals at most */
#define NB_FIGURES_LATE 16u      /* late peers at most, and nodes that were waited for most */

struct nb_figures {
    /* Identity. */
    char label[64];
    uint64_t comm_id;
    unsigned serial; /* distinguishes the communicators of a process. Set by the caller */
    struct nb_comm_info info;
    int rank, nnodes, dev, gpu;
    const char *device;    /* where codecs run */
    bool shadow, profiled; /* profiled: nibble gets NCCL's profiler events of it */
    /* Counters. */
    struct nb_coll_stats stats;
    uint64_t reasons[NB_FUNC_COUNT][NB_RAW_REASON_COUNT]; /* operations sent raw */
    unsigned nsignatures;
    struct nb_sig_report signature[NB_SIG_REPORTS];
    unsigned nresiduals; /* number of all residuals, if requested. The first NB_FIGURES_RESIDUALS are here */
    struct nb_ef_report residual[NB_FIGURES_RESIDUALS];
    /* State. */
    int error; /* negative errno of its failure, or 0 */
    bool off;  /* the kill switch is on */
    bool closed;
    uint64_t open_windows;
    int64_t waited_ns;     /* time since the oldest open window last progressed, 0 without open windows */
    uint64_t late_reports; /* log lines about late peers */
    unsigned nlate;        /* number of all late peers. The first NB_FIGURES_LATE are here */
    int late[NB_FIGURES_LATE];
    /* Checks by nb_figures_note_wait that found an open window, and how many of them lacked a node's data, of
     * the nodes that lack most. */
    uint64_t waits;
    unsigned nwaited;
    struct {
        int rank;
        uint64_t times;
    } waited[NB_FIGURES_LATE];
    int64_t silence_ns;   /* the longest silence of a connected peer */
    uint64_t retransmits; /* segments that the system has retransmitted on connections. UINT64_MAX: unknown */
};

/* Copy the counters of `comm` into *figures. `serial`, `closed` and `retransmits` stay as they are. Call with
 * progress_lock, or after the engine has dropped the communicator. */
void nb_figures_take(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Copy its residuals, too. A function of its own, since it takes time with the square of their number. */
void nb_figures_take_residuals(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Note which nodes are late at present: times[rank] grows by one where the oldest open window lacks the
 * node's data and has those of at least half of the neighbors. Where more lack, data are on their way and
 * nobody is late. Refresh `waits` and `waited`. Call it once a second with progress_lock. */
void nb_figures_note_wait(struct nb_figures *figures, const struct nb_coll_comm *comm, uint32_t *times);

/* Ask the connections for figures->retransmits, with a system call each. Any thread, without progress_lock,
 * while they are open. */
void nb_figures_ask_transport(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Return the error of the code relative to the energy of the values and of the added residual, 0 without
 * values. */
double nb_figures_nmse(const struct nb_encode_stats *encode);
double nb_figures_carried(const struct nb_encode_stats *encode);
/* Return bytes before over bytes after, 0 without bytes. */
double nb_figures_ratio(uint64_t bytes, uint64_t wire_bytes);

/* ---- metrics ----------------------------------------------------------------------------------------- */

/*
 * The figures of a process's communicators (report.h) in the exposition format of Prometheus, made from one
 * table of metrics (metrics.c). docs/operators.md explains each metric. Labels have NCCL Inspector's names
 * where it has them (plugins/profiler/inspector/inspector_prom.cc of NCCL 2.30): slurm_job_id, node, gpu,
 * comm_name, n_nodes, nranks, collective.
 */

/* The process of the figures. */
struct nb_metrics_process {
    char host[64];
    char job[64];                                           /* SLURM_JOB_ID, or "unknown" */
    char process[NB_PROCESS_NAME];                          /* the label "pid" */
    double time;                                            /* of the copy, in seconds since 1970 */
    uint64_t delta_messages, delta_bytes, delta_wire_bytes; /* as struct nb_p2p_counts */
    uint64_t puts, put_bytes;                               /* the same */
    uint64_t past[NB_PAST_WAYS][NB_PAST_COUNT];             /* the same */
};

/* Write all of `n` communicators to `out`, each metric with its help and type once. The calling thread's
 * locale must have decimal points. */
void nb_metrics_prometheus(FILE *out, const struct nb_metrics_process *process,
                           const struct nb_figures *const *figures, unsigned n);

/* ---- live queries ------------------------------------------------------------------------------------ */

/*
 * nibble-top connects to an abstract Unix socket of the process, "@nibble/PROCESS[-LABEL]", and reads the
 * metrics as text until the end. The monitor's thread accepts one caller a second, of the same user or root.
 * It gives up a caller that does not read within a second. The name vanishes with the process.
 */

/* Return the listening socket, or -1 after a line in the log. */
int nb_live_open(const char *label);
/* Return the next caller's socket, or -1 where no caller, or no allowed one, waits. Where the system refuses
 * the call, log that, close *live and set it to -1, so that callers learn at once that no answer comes. */
int nb_live_accept(int *live);
/* Send the text and close the socket. */
void nb_live_answer(int fd, const char *text, size_t bytes);

/* ---- hang report ------------------------------------------------------------------------------------- */

/*
 * The waits of a communicator, copied at one time, and the text of a hang report, which nibble-hang reads. A
 * report has a line each for
 *
 *     report     the format's version, and the process: host, pid, time, why it was written
 *     engine     steps made, and seconds without one
 *     comm       a communicator: identifiers, this node's number, state, windows, the next operation
 *     window     its oldest open window, of an operation: its progress and its age
 *     peer       a neighbor: whether the window misses its data, the time of its silence, messages
 *                queued, sent and done, posted, arrived and taken, by class
 *
 * "window" and "peer" belong to the last "comm". A line is a word and KEY=VALUE fields. A value with blanks
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
    uint32_t token; /* with comm_id: identifies the group, the same on all of its nodes */
    int rank, nnodes;
    char name[NB_COMM_NAME];
    bool seen; /* the copy holds all fields. Otherwise only the fields up to `finished` are set */
    uint64_t submitted, finished;
    uint64_t begun, oldest, next_op; /* next_op: the operation after the last begun window's */
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

/* Return room for the waits of connected `comm`, which the caller frees with free(), or NULL when out of
 * memory. */
struct nb_waits *nb_waits_new(const struct nb_coll_comm *comm);
/* Return a copy, which the caller frees with free(). NULL: out of memory, or a copy of NULL. */
struct nb_waits *nb_waits_copy(const struct nb_waits *waits);
/* Fill in the fields that any thread may read without waiting. */
void nb_waits_glance(struct nb_waits *waits, const struct nb_coll_comm *comm);
/* Fill in all fields. Call with progress_lock. */
void nb_waits_take(struct nb_waits *waits, const struct nb_coll_comm *comm);

/* The process of a report. */
struct nb_waits_process {
    const char *host, *job, *why;
    int pid;
    double time; /* seconds since 1970 */
    uint64_t steps;
    unsigned still; /* seconds without a step of the engine */
};
/* Write a report of `n` communicators. */
void nb_waits_write(FILE *out, const struct nb_waits_process *process, const struct nb_waits *const *waits,
                    unsigned n);

#endif
