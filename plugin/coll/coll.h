/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective engine behind the CollNet tables: a version-free API with negative errno results.
 * What NCCL promises and expects of each call is told in docs/nccl-contract.md.
 */
#ifndef NIBBLE_COLL_COLL_H
#define NIBBLE_COLL_COLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_types.h"

struct nb_context;
struct nb_coll_listen; /* one per (communicator, device), made by listen */
struct nb_coll_comm;   /* NCCL's collComm */
struct nb_coll_req;    /* a window handed over by i*, or a flush */
struct nb_record;      /* policy/records/records.h */

/* Reserve a listening address of node `ctx`, which outlives all that comes of it, on net device `dev`; fills
 * handle[NB_NET_HANDLE_BYTES]. `comm_id` is NCCL's communicator hash (0 where the table version does not
 * tell). */
int nb_coll_listen(struct nb_context *ctx, int dev, uint64_t comm_id, void *handle,
                   struct nb_coll_listen **listen);

/* Join the group of `nnodes` nodes as node `rank`; handles[r] is what the listen of node r has filled. Blocks
 * (NCCL calls it on its proxy service thread) until all nodes are known to be ready, or one of them is known
 * not to be, or NIBBLE_CONNECT_TIMEOUT has passed since the call. 0 on every node, or a negative errno on
 * every node: -ECONNREFUSED when some node declined or was missing (a line says which and why). A failure in
 * the very last exchange may leave a communicator on some nodes only; it fails at once (vote.c). On failure
 * `listen` has been freed, since NCCL drops its pointer without closing it; on success the caller closes it.
 */
int nb_coll_connect(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                    struct nb_coll_comm **comm);

/* The same without blocking, for callers that connect several nodes in one thread. begin: 0 and *connect, or
 * an error as above. The handles are copied. */
struct nb_coll_connect;
int nb_coll_connect_begin(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                          struct nb_coll_connect **connect);
/* -EINPROGRESS: call again, at once if *moved, else when a peer or the clock has moved. Anything else is the
 * result of nb_coll_connect, and `connect` has been freed. */
int nb_coll_connect_step(struct nb_coll_connect *connect, bool *moved, struct nb_coll_comm **comm);
/* The time of the context's clock at which a step is due even if no peer moves; INT64_MAX: none. */
int64_t nb_coll_connect_until(const struct nb_coll_connect *connect);
/* What it is about, for messages and tests. */
const char *nb_coll_connect_phase(const struct nb_coll_connect *connect);

/* 1 when the sum/product/minimum/maximum of `type` is carried (exactly, or by policy coded). */
int nb_coll_reduce_support(ncclDataType_t type, ncclRedOp_t op);

/* Memory NCCL will pass pointers into. mem_type is NCCL_PTR_*. User buffers (whatever is not NCCL's buffer, or,
 * of its size, the one that it has besides in the other kind of memory) are refused with -ENOTSUP: NCCL then
 * goes through its own buffer. */
int nb_coll_reg_mr(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, void **mhandle);
int nb_coll_dereg_mr(struct nb_coll_comm *comm, void *mhandle);

/* Enqueue a window. Never blocks, never allocates; *req is written on every path (NULL: retry later). A call
 * that is refused with -EINVAL has changed nothing. */
int nb_coll_iallreduce(struct nb_coll_comm *comm, const void *send, void *recv, size_t count,
                       ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);
/* `send` is the first byte of (window and own block), `recv` of the whole window. */
int nb_coll_iallgather(struct nb_coll_comm *comm, const void *send, void *recv, size_t recv_bytes,
                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                       struct nb_coll_req **req);
/* `send` is the first byte of the window, `recv` of (window and own block). */
int nb_coll_ireducescatter(struct nb_coll_comm *comm, const void *send, size_t send_bytes, void *recv,
                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                           ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);
int nb_coll_iflush(struct nb_coll_comm *comm, void *data, size_t size, struct nb_coll_req **req);
/* size may be NULL. A done request is freed. */
int nb_coll_test(struct nb_coll_req *req, int *done, size_t *size);

/* Finish what this node owes its peers, within NIBBLE_CLOSE_TIMEOUT, then close and free; at once when a
 * request is unfinished or the communicator has failed. Blocks. Where nobody drives the node's engine
 * (engine.h) this does, while others have to drive the peers'. 0, or -EINVAL when `comm` is not a
 * communicator, or -ETIMEDOUT when the engine is stuck (engine.h): then everything is left as it is. */
int nb_coll_close(struct nb_coll_comm *comm);
/* The same without blocking. begin: 0, then nothing but step may be called on `comm`; or -EINVAL. step:
 * -EINPROGRESS while the engine still has to make rounds; -ETIMEDOUT when it is stuck, but step may be called
 * again when it goes on; else 0, and `comm` has been freed. */
int nb_coll_close_begin(struct nb_coll_comm *comm);
int nb_coll_close_step(struct nb_coll_comm *comm);

/* Stop listening and free `listen`. 0 or a negative errno. */
int nb_coll_close_listen(struct nb_coll_listen *listen);

/* For tests and tools: append a record to the queue of a connected communicator, as NCCL's profiler events
 * do. 0, -EINVAL for a record that contradicts itself, -ENOSPC: the queue is full. Any thread. */
int nb_record_push(struct nb_coll_comm *comm, const struct nb_record *record);

#endif
