/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's registrations of its own buffer (regMr, deregMr).
 *
 * NCCL registers its buffer once or more for each side (send, receive) of every channel when it connects:
 * always the same region, before anything else. Where GPU-direct serves one side only (NCCL_NET_GDR_READ=0: receives), it
 * has two buffers of one size (collNet->size), one in host memory and one in the GPU's, and each side uses its half of its own.
 * Any other is a user's buffer: with it the windows of different nodes may differ, which the engine does not match; refused,
 * NCCL goes through its own buffer. A user's is in GPU memory, and registered only for a side that is GPU-direct
 * (collnetRegisterBuffer), so it comes after NCCL's own one there and is never taken for it.
 */
#include <errno.h>

#include "base/log.h"
#include "coll/coll.h"
#include "coll/comm.h"
#include "coll/engine.h"
#include "coll/request.h"
#include "coll/stuck.h"
#include "coll/task.h"

int nb_coll_reg_mr(struct nb_coll_comm *comm, void *data, size_t size, int mem_type, void **mhandle)
{
    int ret = -ENOTSUP;

    *mhandle = NULL;
    if (!comm || comm->magic != NB_COMM_MAGIC || !data || !size) {
        NB_WARN("regMr: communicator %p, %zu bytes at %p", (void *)comm, size, data);
        return -EINVAL;
    }
    if (mem_type != NCCL_PTR_HOST && (mem_type != NCCL_PTR_CUDA || comm->device->ops->host_memory)) {
        NB_WARN("%s: regMr: memory of type %d, but its codecs run on device %s", comm->label, mem_type,
                comm->device->ops->name);
        return -EINVAL;
    }
    const int at = mem_type == NCCL_PTR_CUDA, other = !at;
    pthread_mutex_lock(&comm->submit.lock);
    if (comm->submit.region[at].base
            ? comm->submit.region[at].base == data && comm->submit.region[at].size == size
            : !comm->submit.region[other].base || comm->submit.region[other].size == size) {
        comm->submit.region[at].base = data;
        comm->submit.region[at].size = size;
        comm->submit.region[at].refs++;
        *mhandle = &comm->submit.region[at];
        ret = 0;
    }
    pthread_mutex_unlock(&comm->submit.lock);
    if (!ret && comm->device->ops->region && comm->device->ops->region(comm->device, data, size))
        NB_WARN("%s: regMr: out of memory",
                comm->label); /* its windows will fail; regMr must not on one node alone */
    if (ret)
        NB_INFO(NCCL_REG, "%s: user buffer of %zu bytes is not registered: NCCL uses its own buffer",
                comm->label, size);
    return ret;
}

/* NCCL frees its buffer with the first deregistration, before it closes the communicator. After an abort
 * windows may still be open: nothing may touch them from here on. */
int nb_coll_dereg_mr(struct nb_coll_comm *comm, void *mhandle)
{
    const void *gone = NULL;
    int ret = -EINVAL, aborts;

    if (!comm || comm->magic != NB_COMM_MAGIC) {
        NB_WARN("deregMr: not a collective communicator of nibble: %p", (void *)comm);
        return -EINVAL;
    }
    pthread_mutex_lock(&comm->submit.lock);
    for (int i = 0; i < 2; i++) {
        if (mhandle == &comm->submit.region[i] && comm->submit.region[i].refs > 0) {
            if (--comm->submit.region[i].refs == 0) {
                gone = comm->submit.region[i].base;
                comm->submit.region[i].base = NULL;
            }
            ret = 0;
        }
    }
    pthread_mutex_unlock(&comm->submit.lock);
    if (ret) {
        NB_WARN("%s: deregMr: unknown registration %p", comm->label, mhandle);
        return ret;
    }
    aborts = nb_requests_unfinished(comm);
    if (nb_stuck_lock(comm)) {
        NB_WARN("%s: deregMr: its engine is stuck, so that it may still use the buffer", comm->label);
        return -ETIMEDOUT;
    }
    if (aborts) {
        nb_comm_fail(comm, -ECONNABORTED, "the communicator was closed with unfinished operations");
        nb_engine_wake(comm->engine); /* which tells the peers */
    }
    if (nb_comm_failed(comm)) /* nothing goes on any more, but the device may be at work */
        ret = nb_tasks_abandon(comm);
    if (ret)
        NB_WARN("%s: deregMr: work on its buffer does not end", comm->label);
    if (gone && comm->device->ops->region)
        comm->device->ops->region(comm->device, gone, 0);
    nb_turn_lock_give(&comm->progress_lock);
    return ret;
}
