/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts of windows that schedules share; pure functions of the window and what is the same on all nodes. */
#ifndef NIBBLE_COLL_CUT_H
#define NIBBLE_COLL_CUT_H

#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;
struct nb_segment;

/* Segments of an all-reduce's window that is cut into so many shares, as in nb_schedule_ops: that at `off`;
 * the next whose number leaves `residue` when divided by `modulus`. Shares go round over the segments; the
 * owner that is set is the share's number. */
int nb_stream_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares,
                      uint64_t off, struct nb_segment *segment);
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment);

/* As in nb_schedule_ops, for reduce-scatters and all-gathers that go in two hops or levels. */
int nb_cut_segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment);
/* Next segment of `owner`'s block. */
int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_segment *segment);
/* Next segment of another node's block that goes through the column of `node` (in two hops: through
 * `node`). */
int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_segment *segment);
/* Next segment of this node's block that goes through it. */
int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node,
                       uint64_t from, struct nb_segment *segment);
/* 1 when segments of a window that is cut into one for each of the others are long enough to be worth a
 * second hop. */
int nb_cut_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win);
/* Bytes of a reduce-scatter's window that end at this node: of its block, and what it sums for others. */
uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win);

#endif
