/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator has done so far, copied at one time: what the summary at close (report.c) and the
 * metrics of a running job (metrics.c) are both made of.
 */
#ifndef NIBBLE_COLL_FIGURES_H
#define NIBBLE_COLL_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/decision.h"
#include "coll/stats.h"
#include "coll/wire.h"
#include "policy/comm_rules.h"
#include "policy/policy.h"
#include "state/feedback.h"

struct nb_coll_comm;

#define NB_FIGURES_SLOTS 64u /* error slots at most */
#define NB_FIGURES_LATE 16u  /* peers that are waited for, at most */

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
    uint64_t reasons[NB_FUNC_COUNT][NB_REASON_COUNT]; /* operations that were sent raw */
    unsigned nsignatures;
    struct nb_sig_report signature[NB_SIG_REPORTS];
    unsigned nslots; /* all, where they were asked for; the first NB_FIGURES_SLOTS are here */
    struct nb_ef_report slot[NB_FIGURES_SLOTS];
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

/* The same of its error slots, which the above leaves out since it takes the time of the square of their
 * number. */
void nb_figures_take_slots(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Ask the connections for figures->retransmits: a system call each. Any thread, without progress_lock, as
 * long as they are open. */
void nb_figures_ask_transport(struct nb_figures *figures, const struct nb_coll_comm *comm);

/* Error of the code relative to the energy of the values, and of the residual that was added to them; 0
 * without values. */
double nb_figures_nmse(const struct nb_encode_stats *encode);
double nb_figures_carried(const struct nb_encode_stats *encode);
/* Bytes before over bytes after; 0 without any. */
double nb_figures_ratio(uint64_t bytes, uint64_t wire_bytes);

#endif
