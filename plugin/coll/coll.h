/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective engine behind the CollNet tables: a version-free API. Its functions return negative errno
 * values on failure. docs/nccl-contract.md describes the promises and expectations of NCCL for each call.
 */
#ifndef NIBBLE_COLL_COLL_H
#define NIBBLE_COLL_COLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_types.h"

struct nb_context;
struct nb_coll_listen; /* one for each communicator and device, made by listen */
struct nb_coll_comm;   /* NCCL's collComm */
struct nb_coll_req;    /* a window that NCCL has handed over, or a flush */
struct nb_record;      /* policy/records/records.h */

/* Reserve a listening address of node `ctx` on net device `dev`, and fill handle[NB_NET_HANDLE_BYTES]. `ctx`
 * outlives everything made from it. `comm_id` is NCCL's communicator hash, or 0 where the table version does
 * not pass it. */
int nb_coll_listen(struct nb_context *ctx, int dev, uint64_t comm_id, void *handle,
                   struct nb_coll_listen **listen);

/* Join the group of `nnodes` nodes as node `rank`. handles[r] was filled by the listen of node r. Blocks
 * (NCCL calls it on its proxy service thread) until all nodes are known to be ready, or one of them is known
 * not to be, or NIBBLE_CONNECT_TIMEOUT has passed since the call. Return 0 on every node, or a negative errno
 * on every node: -ECONNREFUSED when some node declined or was missing. A log line says which node and why. A
 * failure in the very last exchange may leave a communicator on some nodes only. It fails at once (vote.c).
 * On failure `listen` has been freed, since NCCL drops its pointer without closing it. On success the caller
 * closes it. */
int nb_coll_connect(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                    struct nb_coll_comm **comm);

/* The same without blocking, for callers that connect several nodes in one thread. begin: copy the handles.
 * Return 0 and *connect, or an error as above. */
struct nb_coll_connect;
int nb_coll_connect_begin(void *const *handles, int nnodes, int rank, struct nb_coll_listen *listen,
                          struct nb_coll_connect **connect);
/* Make a step. Return -EINPROGRESS to be called again: at once if *moved, otherwise when a peer or the clock
 * has moved. Any other value is the result of nb_coll_connect, and `connect` has been freed. */
int nb_coll_connect_step(struct nb_coll_connect *connect, bool *moved, struct nb_coll_comm **comm);
/* Return the time of the context's clock at which a step is due even if all peers are silent, or
 * INT64_MAX. */
int64_t nb_coll_connect_until(const struct nb_coll_connect *connect);
/* Return the current phase, for messages and tests. */
const char *nb_coll_connect_phase(const struct nb_coll_connect *connect);

/* Return 1 when the engine carries the sum, product, minimum or maximum of `type`: exactly, or coded by
 * policy. */
int nb_coll_reduce_support(ncclDataType_t type, ncclRedOp_t op);

/* Register memory into which NCCL will pass pointers. mem_type is NCCL_PTR_*. Buffers other than NCCL's own
 * are refused with -ENOTSUP: NCCL then goes through its own buffer. NCCL may have two own buffers of the same
 * size, one in each kind of memory. */
int nb_coll_reg_mr(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, void **mhandle);
/* The same for memory that lies at `offset` of the DMA-BUF `fd`, which the caller closes. */
int nb_coll_reg_mr_dmabuf(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, uint64_t offset,
                          int fd, void **mhandle);
int nb_coll_dereg_mr(struct nb_coll_comm *comm, void *mhandle);

/* Enqueue a window. Never blocks, never allocates. *req is written on every path (NULL: retry later). A call
 * that fails with -EINVAL leaves everything as it was. */
int nb_coll_iallreduce(struct nb_coll_comm *comm, const void *send, void *recv, size_t count,
                       ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);
/* `send` is the first byte of the window's overlap with the own block, `recv` the first byte of the
 * window. */
int nb_coll_iallgather(struct nb_coll_comm *comm, const void *send, void *recv, size_t recv_bytes,
                       size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                       struct nb_coll_req **req);
/* `send` is the first byte of the window, `recv` the first byte of its overlap with the own block. */
int nb_coll_ireducescatter(struct nb_coll_comm *comm, const void *send, size_t send_bytes, void *recv,
                           size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                           ncclDataType_t type, ncclRedOp_t op, struct nb_coll_req **req);
int nb_coll_iflush(struct nb_coll_comm *comm, void *data, size_t size, struct nb_coll_req **req);
/* Test a request, and free it when it is done. size may be NULL. */
int nb_coll_test(struct nb_coll_req *req, int *done, size_t *size);

/* Finish the work that this node owes its peers, within NIBBLE_CLOSE_TIMEOUT, then close and free the
 * communicator. Close at once when a request is unfinished or the communicator has failed. Blocks. If the
 * node's engine has no runner (engine.h), this function steps it, and other threads have to step the peers'
 * engines. Return 0, -EINVAL when `comm` is not a communicator, or -ETIMEDOUT when the engine is stuck
 * (engine.h): then everything is left as it is. */
int nb_coll_close(struct nb_coll_comm *comm);
/* The same without blocking. begin: return 0, after which only step may be called on `comm`, or -EINVAL.
 * step: return -EINPROGRESS while the engine still has to make rounds, or -ETIMEDOUT when it is stuck. In
 * both cases step may be called again. Otherwise return 0: `comm` has been freed. */
int nb_coll_close_begin(struct nb_coll_comm *comm);
int nb_coll_close_step(struct nb_coll_comm *comm);

/* Stop listening and free `listen`. Return 0 or a negative errno. */
int nb_coll_close_listen(struct nb_coll_listen *listen);

/* Append a record to the queue of a connected communicator, as NCCL's profiler events do. For tests and
 * tools. Return 0, -EINVAL for a record that contradicts itself, or -ENOSPC when the queue is full. Any
 * thread. */
int nb_record_push(struct nb_coll_comm *comm, const struct nb_record *record);

#endif
