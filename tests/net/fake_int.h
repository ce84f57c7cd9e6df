/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of fake_verbs.h: its objects, and declarations that its parts share. */
#ifndef NIBBLE_TESTS_NET_FAKE_INT_H
#define NIBBLE_TESTS_NET_FAKE_INT_H

#include <pthread.h>

#include "fake_verbs.h"

#define FAKE_CALL_FAULTS 8

struct fdev {
    struct ibv_device ibv; /* first */
    int index;
};

struct fctx {
    struct ibv_context ibv; /* first */
    struct fctx *next;
    int device, event_in; /* event_in: the write end of the pipe of events */
};

struct fmr {
    struct ibv_mr ibv; /* first */
    struct fmr *next;
    int access;
};

struct fchannel {
    struct ibv_comp_channel ibv; /* first */
    int in, cqs;
};

struct fcq {
    struct ibv_cq ibv; /* first */
    struct fchannel *channel;
    struct ibv_wc *wc;
    unsigned *places; /* in the send queue, which polling this entry frees */
    struct fqp **of;
    unsigned head, count, cap;
    bool armed;
    int qps, unacked;
};

struct fwr {
    struct fwr *next;
    struct ibv_send_wr wr;
    struct ibv_sge sge[2];
    uint8_t *inlined;
};

struct fqp {
    struct ibv_qp ibv; /* first */
    struct fqp *next;  /* all, newest first */
    int device, port;
    enum ibv_qp_state state;
    struct ibv_qp_cap cap;
    int access;
    uint32_t peer;
    unsigned sq_used, unsignaled; /* places, and the number behind which no signaled request has completed */
    struct fwr *sq, **sq_end;     /* not yet carried out */
    uint64_t *rq;
    unsigned rq_head, rq_count;
    bool waits; /* counted as not ready */
};
struct fake_state {
    pthread_mutex_t lock;
    struct fctx *contexts;
    struct fmr *mrs;
    struct ibv_mr *kept[FAKE_CALL_FAULTS]; /* that dereg_mr refused to free */
    unsigned nkept;
    struct fqp *qps;
    uint32_t next_key, next_qpn;
    struct fake_counts counts;
    char misuse_text[160];
    struct {
        char name[32];
        int nth, err;
    } call_fault[FAKE_CALL_FAULTS];
    struct {
        int nth;
        enum ibv_wc_status status;
        uint32_t vendor;
    } wc_fault[2]; /* by side */
    struct fake_entry log_entries[FAKE_LOG];
    int nlog;
    unsigned random_state;
};

extern struct fake_state fk;

static inline struct fqp *qp_of(struct ibv_qp *qp)
{
    return (struct fqp *)(void *)qp;
}

static inline struct fcq *cq_of(struct ibv_cq *cq)
{
    return (struct fcq *)(void *)cq;
}

/* ---- fake_verbs.c, all with the lock ---- */

/* Record a broken rule of verbs. */
void fake_misused(const char *what);
/* Return whether this call must fail. errno is then set. */
bool fake_faulty(const char *name);
/* Return the error of a call that frees, or 0. What it frees is gone all the same. Call without the lock. */
int fake_unfreed(const char *name);
/* Return a new entry of the log. */
struct fake_entry *fake_note(enum fake_what what);
unsigned fake_dice(unsigned n);
const struct fake_device *fake_device_of(struct ibv_context *context);
/* Return the registration that a key names and that covers the range with these rights. */
const struct fmr *fake_find_mr(const struct ibv_pd *pd, uint32_t key, uint64_t addr, uint64_t length,
                               int access);

/* ---- fake_queues.c: the ibv_ functions of these names ---- */

struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context);
int fake_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel, int vector);
int fake_destroy_cq(struct ibv_cq *cq);
int fake_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void fake_ack_cq_events(struct ibv_cq *cq, unsigned n);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited);
struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init);
int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int fake_destroy_qp(struct ibv_qp *qp);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);

#endif
