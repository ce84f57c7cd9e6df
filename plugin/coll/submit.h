/* SPDX-License-Identifier: Apache-2.0 */
/* The side of a communicator that NCCL's threads submit windows to (request.c), with NCCL's registered
 * buffer. */
#ifndef NIBBLE_COLL_SUBMIT_H
#define NIBBLE_COLL_SUBMIT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct nb_op;

struct nb_submit {
    pthread_mutex_t lock; /* guards what is here, and the order of nb_coll_comm.submitted */
    struct nb_op *ops;    /* [NB_OPS] */
    uint64_t next_opno;
    struct nb_op *open_op; /* whose next window must start at open_off; NULL: none */
    uint64_t open_off;
    struct {
        void *base;
        size_t size;
        unsigned refs;
    } region[2]; /* NCCL's buffer in host memory, in device memory */
};

#endif
