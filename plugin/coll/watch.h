/* SPDX-License-Identifier: Apache-2.0 */
/* Which receive rings may have got something. For the engine thread, but open and close. */
#ifndef NIBBLE_COLL_WATCH_H
#define NIBBLE_COLL_WATCH_H

struct nb_coll_comm;

struct nb_watch {
    int fd; /* epoll set, or -1: all rings are asked in every round */
};

/* After connect: begin; watches nothing where the transport has no descriptors for it. */
void nb_watch_open(struct nb_coll_comm *comm);
void nb_watch_close(struct nb_coll_comm *comm);
/* Find the rings that have news. */
void nb_watch_look(struct nb_coll_comm *comm);
/* Let all be asked once, now and then: nothing is known to need it. */
void nb_watch_rescan(struct nb_coll_comm *comm);

#endif
