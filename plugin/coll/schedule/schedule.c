/* SPDX-License-Identifier: Apache-2.0 */
/* The list of schedules, and the choice among them. */
#include "coll/schedule/cut.h"

/* The first schedule that takes an operation has it. The last one takes all operations. */
static const struct nb_schedule_ops *const schedules[] = {
    &nb_schedule_two_level,
    &nb_schedule_two_hop_gather,
    &nb_schedule_two_hop_reduce,
    &nb_schedule_direct,
};

const struct nb_schedule_ops *nb_schedule_choose(const struct nb_coll_comm *comm,
                                                 const struct nb_coll_req *win)
{
    const struct nb_schedule_ops *const *s = schedules;

    if (comm->ctx->schedule && comm->ctx->schedule->takes(comm, win))
        return comm->ctx->schedule;
    while (!(*s)->takes(comm, win))
        s++;
    return *s;
}
