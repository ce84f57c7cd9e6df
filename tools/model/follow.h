/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatters and all-gathers, followed message by message: where nodes wait for one another, shares of
 * links and the order of things decide, and no formula has them. follow.c has what nodes do, follow_link.c
 * rings and links, follow_fair.c how rings share a link.
 *
 * A node has a link, each way with the rate and the latency of struct nb_cost_figures, a thread, and a ring
 * to each neighbor in each of two classes. The thread goes round: sends what is made, looks at what has come,
 * delivers, sums and forwards some, makes messages; what comes meanwhile waits for the next round. What rings
 * have to send takes turns at the sender's link, message by message, and is served at the receiver's as it
 * comes, while it leaves; that is what shares both links about as fairly as a network does. A ring has as
 * many buffers as there are credits, and as many at the receiver; a connection takes `queue` bytes for which
 * the receiver has no buffer yet (0: it holds the sender's buffer until then), and which it does not look at
 * before.
 */
#ifndef NIBBLE_TOOLS_MODEL_FOLLOW_H
#define NIBBLE_TOOLS_MODEL_FOLLOW_H

#include "agenda.h"
#include "walk.h"

enum follow_kind {
    FOLLOW_ROUND, /* the node's thread looks round */
    FOLLOW_LOOK,  /* it should */
    FOLLOW_DUE,   /* a message is given to the link: thing */
    FOLLOW_OUT,   /* the node's link has sent one */
    FOLLOW_IN     /* one has come: thing */
};

enum follow_class { FOLLOW_VALUES, FOLLOW_RESULTS, FOLLOW_CLASSES };

/* What a message carries: a piece of a call that lies in one block. */
struct segment {
    double bytes;
    int owner, column; /* direct: the owner's is -1 */
    long call;
    struct segment *next; /* that goes through the same column (direct: to the same owner) */
    int *waiting;         /* [rows]: messages that the node of the column waits for */
};

struct message {
    struct message *next;
    struct ring *ring;
    struct segment *segment;
    double bytes; /* on the wire */
};

struct line { /* of messages */
    struct message *head, *last;
};

struct ring {
    int from, to;
    int used;            /* buffers of the sender */
    int unread;          /* arrived, and not read */
    double under_way;    /* bytes that the connection has taken and the receiver has no buffer for */
    struct line todo;    /* not made yet */
    struct line made;    /* in buffers */
    struct line link;    /* of the sender: they wait for it */
    struct line outside; /* arrived, and the receiver has no buffer for them */
    struct ring *turn;   /* behind it */
    bool queued, offered;
    double had, seen, moved,
        took; /* follow_fair.c: bytes sent, and when; moved < 0: there was nothing to send */
};

struct fair {     /* follow_fair.c */
    double most;  /* bytes up to which a ring may be given something */
    double lead;  /* that a ring may be ahead of the last */
    double noted; /* what the last had had at `since` (< 0: nothing is to be sent) */
    double since;
    double until; /* then one that others wait for may count as stuck */
};

struct node {
    struct fair fair[FOLLOW_CLASSES];
    int pending[FOLLOW_CLASSES];   /* rings that use buffers */
    double alarm;                  /* a look is due then */
    struct ring *turn, *turn_last; /* rings whose messages wait for the link */
    int offers;                    /* rings that have something for their connections */
    bool busy, woken;
    double in, thread;         /* when the link has served what comes, and when the thread is free */
    long posted;               /* calls */
    long todo;                 /* messages that it has not made */
    struct segment *sum, *own; /* the next that it sums or forwards; of its own block */
    struct line inbox;         /* come, and not looked at */
    struct line mine;          /* looked at, for this node: until it has posted their calls */
};

struct follow {
    struct walk *w;
    struct nm_agenda agenda;
    double now, ended;
    int columns, rows, npeers;
    int *peers; /* [n][npeers]: as they are sent to: the column, then the row, each from behind a node on */
    struct node *node; /* [n] */
    struct ring *ring; /* [n][columns + rows][classes] */
    long calls, segments;
    struct segment *segment;
    struct segment **segment_of; /* [calls + 1]: the first of a call */
    int *left;                   /* [n][calls]: segments that the node needs something of */
    long *tested;                /* [n][groups] */
    struct message *spare;
    struct chunk *chunks; /* of messages */
    bool failed;
};

struct ring *follow_ring(const struct follow *f, int from, int to, enum follow_class class);
static inline void follow_append(struct line *l, struct message *m)
{
    m->next = NULL;
    if (l->head)
        l->last->next = m;
    else
        l->head = m;
    l->last = m;
}
static inline struct message *follow_pop(struct line *l)
{
    struct message *m = l->head;

    l->head = m->next;
    return m;
}
/* NULL: no memory. */
struct message *follow_message(struct follow *f, struct ring *r, struct segment *s, double bytes);
void follow_free(struct follow *f, struct message *m);
/* All messages there have been. */
void follow_free_all(struct follow *f);
/* A buffer of the ring's is free. */
static inline bool follow_room(const struct follow *f, const struct ring *r)
{
    return r->used < f->w->op->credits;
}
/* A message is in its buffer. */
void follow_made(struct follow *f, struct message *m);
/* The node's thread works on something for `seconds` of one processor. */
void follow_work(struct follow *f, int node, double seconds);
/* The thread will look round when it can. */
void follow_wake(struct follow *f, int node);
/* Hand connections what they take. True: they have taken something. */
bool follow_send(struct follow *f, int node);
/* See how far the rings of a class have got, before something is sent. */
void follow_look_fair(struct follow *f, int node, enum follow_class class);
/* Messages on their way: FOLLOW_DUE, FOLLOW_OUT, FOLLOW_IN. */
void follow_link_event(struct follow *f, const struct nm_event *event);
/* One of the ring's is read at its receiver: there is room for another. */
void follow_read(struct follow *f, struct ring *r);

#endif
