/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cursor over the windows of a communicator, in their order, and over the segments of each. Sums, forwards
 * and the sending to each peer have one. For the engine thread.
 */
#ifndef NIBBLE_COLL_CURSOR_H
#define NIBBLE_COLL_CURSOR_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;

struct nb_cursor {
    uint64_t seq; /* number of the window it is at */
    uint64_t off; /* where the next segment may begin; valid once started */
    bool started; /* it has looked at the window */
};

/* The window that the cursor is at, started; NULL: it has passed all that the engine has dequeued. Windows
 * that are finished without it are passed. */
struct nb_coll_req *nb_cursor_window(const struct nb_coll_comm *comm, struct nb_cursor *cursor);
/* Number of the first window that the cursor has not passed. */
uint64_t nb_cursor_reached(const struct nb_coll_comm *comm, const struct nb_cursor *cursor);
/* Where the cursor will look for segments in `win`, which it has not passed. */
uint64_t nb_cursor_place(const struct nb_cursor *cursor, const struct nb_coll_req *win);

/* The window has no segment left for it. */
static inline void nb_cursor_pass(struct nb_cursor *cursor)
{
    cursor->seq++;
    cursor->started = false;
}

#endif
