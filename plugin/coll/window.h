/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of a window: bytes still to be delivered here, send cursors that have not passed it, tasks in
 * flight. It is finished when nothing is left. For the engine thread.
 */
#ifndef NIBBLE_COLL_WINDOW_H
#define NIBBLE_COLL_WINDOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_op;

#define NB_WINDOWS 256u /* NCCL has at most 8 steps x 8 groups in flight: never runs out */

enum { NB_REQ_FREE = 0, NB_REQ_ACTIVE, NB_REQ_DONE };

/* A window handed over by NCCL: the request object. */
struct nb_coll_req {
    uint32_t magic;
    _Atomic int state;
    struct nb_coll_comm *comm;
    uint64_t seq; /* windows of a communicator are numbered from 0 */
    struct nb_op *op;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t off, bytes; /* range in the operation's vector (all-reduce: 0, length) */
    uint64_t part_off; /* reduce-scatter: where recv points; all-gather: where send points (vector offsets) */
    size_t size;       /* reported by test */
    /* engine thread */
    uint64_t rx_left;         /* bytes still to be delivered here */
    int tx_left;              /* send cursors (one a peer, and the scatter cursor) that have not passed it */
    unsigned tasks_in_flight; /* tasks in flight (task.h) */
    uint64_t after_gather; /* number of the first window behind the last all-gather's before this; 0: none */
    /* all-reduce: place in NCCL's region (NB_WALK_SLOTS: not there), set when it is handed over; then the
     * first `sure` bytes certainly are values and those from `most` on certainly are not */
    unsigned slot;
    uint64_t at, sure, most;
};
#define NB_REQ_MAGIC 0x4e425251u

/* `bytes` bytes have been delivered. */
void nb_window_received(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);
/* A send cursor has passed the window. */
void nb_window_sent(struct nb_coll_comm *comm, struct nb_coll_req *win);
/* A task of the window is over, which delivered `bytes` bytes. */
void nb_window_worked(struct nb_coll_comm *comm, struct nb_coll_req *win, uint64_t bytes);
/* True when the device has failed, and then so has the communicator: nothing that the device was asked for
 * counts. */
bool nb_device_failed(struct nb_coll_comm *comm);

#endif
