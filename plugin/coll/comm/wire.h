/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the collective engine (docs/messages.md). All integers are little-endian at fixed offsets. The
 * parser trusts no byte: it accepts a header only when every field is in range and its check value fits.
 *
 * Three classes of messages travel on connections of their own, so that one class cannot fill the buffers of
 * another:
 *   CONTRIB  a node's values, or a row's sum, to the node that reduces them, and its block of an all-gather
 *   RESULT   reduced values to all nodes (all-reduce) or to their owner (two hops, two levels), and
 *            forwarded segments
 *   CONTROL  heartbeats, confirmations, requests for raw bytes and their answers, shutdown
 */
#ifndef NIBBLE_COLL_COMM_WIRE_H
#define NIBBLE_COLL_COMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "base/params.h" /* NB_WIRE_VERSION, which is part of the settings' hash */

#define NB_WIRE_MAGIC 0x314c424eu /* "NBL1" */

enum nb_class { NB_CLASS_CONTRIB = 0, NB_CLASS_RESULT = 1, NB_CLASS_CONTROL = 2, NB_CLASS_COUNT };

/* Header of a data message (CONTRIB and RESULT). The coded bytes follow it. */
struct nb_msg {
    uint8_t func;   /* enum nb_func */
    uint8_t codec;  /* enum nb_codec */
    uint8_t type;   /* ncclDataType_t of the coded values. ncclInt8 for an all-gather's bytes. For a codec of
                 patterns (codec/row.h) their width in bytes */
    uint8_t op;     /* ncclRedOp_t */
    uint16_t flags; /* NB_MSG_* */
    uint32_t token; /* of the group, agreed at connect */
    uint64_t opno;  /* the operation's number on this communicator, from 0 */
    uint64_t
        offset; /* first byte of the range, in the operation's whole vector (all-reduce: in the window) */
    uint32_t
        bytes; /* length of the range before coding. All-reduce: of its values without padding, may be 0 */
    uint32_t coded; /* bytes that follow this header (and its reference part): the payload */
    uint64_t check; /* with NB_MSG_CHECKED nb_hash64 of the payload with NB_PAYLOAD_SEED, else 0 */
    /* With NB_MSG_KEEP, or a codec with a reference, the reference part follows the header: */
    uint32_t ref_number; /* reference number of the owner */
    uint32_t version;    /* of the reference after this message */
    uint64_t ref_hash;   /* nb_hash64 of the reference that the deltas were taken against, else 0 */
    uint64_t new_hash;   /* nb_hash64 of the decoded bytes */
};

enum {
    NB_MSG_KEEP = 1, /* keep the bytes as the reference of (owner, number) for this range */
    NB_MSG_TWO_HOP =
        2, /* the operation goes by two hops: the receiver of a CONTRIB segment works on it for other nodes */
    NB_MSG_TWO_LEVEL = 4,                             /* the operation goes along rows and columns,
                                                         likewise */
    NB_MSG_ROUTE = NB_MSG_TWO_HOP | NB_MSG_TWO_LEVEL, /* without these bits: straight to its destination */
    NB_MSG_CHECKED = 8,                               /* `check` holds (flow/internal.h) */
};

#define NB_MSG_BYTES 56u     /* header */
#define NB_MSG_REF_BYTES 24u /* reference part */
#define NB_MSG_MAX_BYTES (NB_MSG_BYTES + NB_MSG_REF_BYTES)

/* Seed of check values of payloads ("payload"), which makes them differ from hashes of contents. */
#define NB_PAYLOAD_SEED UINT64_C(0x7061796c6f6164)

/* Return the length of the header that nb_msg_pack would write. */
size_t nb_msg_header_bytes(const struct nb_msg *msg);
/* Return the length of the header at `in`, which need not be a valid one. At least NB_MSG_BYTES are there. */
size_t nb_msg_header_at(const void *in);
/* Write the header to `out` (at least nb_msg_header_bytes). Return its length. */
size_t nb_msg_pack(const struct nb_msg *msg, void *out);
/* Read and check a header of a message of `len` bytes in all. Return the header's length, or -EBADMSG with
 * *why set to a constant text. `max_unit` bounds `bytes`. */
int nb_msg_parse(const void *in, size_t len, uint32_t token, size_t max_unit, struct nb_msg *msg,
                 const char **why);

/* Control messages, all of one size except DATA. Nodes without a connection (grid.h) send each other RAW,
 * DATA and the messages about the kill switch through a common neighbor. */
enum nb_ctl_kind {
    NB_CTL_ALIVE =
        0, /* a heartbeat. a: 1 + a silent neighbor, or 0. b: milliseconds of its silence. c: reason of the
              sender's wait (enum nb_chain_kind). wait: end of the chain */
    NB_CTL_CONFIRM =
        1, /* a: number of the all-gather whose owner's block was received whole. b: 1 when its bytes were
              kept. c: number of nodes for which `from` speaks */
    NB_CTL_RAW =
        2, /* a: operation, b: offset in the own block, c: length, at most NB_CTL_DATA_BYTES: asks for this
              range again as raw bytes */
    NB_CTL_FIN = 3,     /* a, b: messages sent as CONTRIB and RESULT. The last message of its sender */
    NB_CTL_FIN_ACK = 4, /* all of them have arrived */
    NB_CTL_ABORT =
        5, /* the communicator has failed on the sender. a: the node that found the cause, text: its words.
              Receivers pass both on unchanged */
    NB_CTL_SWITCH_ASK = 6, /* to node 0: asks to switch compression. a: 1 off, 0 on */
    NB_CTL_SWITCH = 7,     /* from node 0: it is switched. a: as above, c: number of switches so far */
    NB_CTL_SWITCHED = 8,   /* to node 0: done. a: first operation of this node with the new state, c: as
                              above */
    NB_CTL_DATA = 9,       /* a, b, c as in the RAW that it answers. The c bytes follow the message */
    NB_CTL_COLUMN =
        10,      /* on a grid, to a node of the row. a: number of the all-gather whose blocks of that node's
               column were received whole. rows: rows with bytes to keep. lost: rows that failed to keep
               them */
    NB_CTL_COUNT /* 11 to 14 are reserved: development versions used them */
};

/* ALIVE: the end of a chain of waits (watch/watch.h). */
struct nb_ctl_wait {
    uint32_t end, steps; /* its rank, and the number of waits from the sender to it */
};

#define NB_CTL_TEXT 180u
struct nb_ctl {
    uint8_t kind;
    uint32_t token;
    uint64_t a, b;
    uint32_t c;
    uint32_t from, to;         /* ranks of the author and of the addressee */
    uint64_t rows[2], lost[2]; /* COLUMN: a bit for each row. Else 0 */
    struct nb_ctl_wait wait;   /* ALIVE. Else 0 */
    uint64_t check;            /* DATA: nb_hash64, with NB_PAYLOAD_SEED, of the bytes that follow. Else 0 */
    char text[NB_CTL_TEXT];    /* terminated. "" except in ABORT */
};
#define NB_CTL_BYTES 224u
#define NB_CTL_DATA_BYTES 16384u

/* Write NB_CTL_BYTES bytes. */
void nb_ctl_pack(const struct nb_ctl *ctl, void *out);
/* Parse a control message of `len` bytes in all. */
int nb_ctl_parse(const void *in, size_t len, uint32_t token, struct nb_ctl *ctl, const char **why);

/* First message on every connection of a group: the caller's identity. */
struct nb_hello {
    uint32_t wire_version;
    uint32_t nclasses; /* NB_CLASS_COUNT of the sender */
    uint32_t cls;      /* enum nb_class of this connection */
    uint32_t rank, nnodes;
    uint32_t token_share; /* sender's share of the group token (shares are combined) */
    uint64_t comm_id;     /* NCCL's communicator hash. 0: unknown */
    uint64_t settings;    /* nb_params_hash. 0: the sender has bad settings, and declines */
    char version[32];     /* plugin version, terminated */
    char host[64];        /* terminated */
};
#define NB_HELLO_BYTES 160u
void nb_hello_pack(const struct nb_hello *hello, void *out);
int nb_hello_parse(const void *in, size_t len, struct nb_hello *hello, const char **why);

/* Messages behind the hellos on CONTROL while a group connects: a yes in each round that the two nodes share,
 * and a no at any time, also to a node that already has a communicator. */
enum nb_round {
    NB_ROUND_GREETED = 0,    /* the reader's connections have all arrived */
    NB_ROUND_ROW = 1,        /* the sender is ready. To its row (without a grid: to all) */
    NB_ROUND_COLUMN = 2,     /* its row is ready. To its column */
    NB_ROUND_ROW_ALL = 3,    /* it knows that all nodes are ready. To its row */
    NB_ROUND_COLUMN_ALL = 4, /* its row knows it. To its column */
    NB_ROUND_COUNT
};
/* The cause of a no. A lower number is nearer to the cause and replaces a higher one: a node that misses a
 * vote may wait for one that itself misses a connection. */
enum nb_cause {
    NB_CAUSE_SURE = 0,    /* the node that declines, itself */
    NB_CAUSE_LOST = 1,    /* a node that has gone */
    NB_CAUSE_CONNECT = 2, /* a node that was not reached, or did not greet, in time */
    NB_CAUSE_VOTE = 3,    /* a node that did not vote in time. Plus its round */
    NB_CAUSE_NONE = NB_CAUSE_VOTE + NB_ROUND_COUNT
};

struct nb_vote {
    uint32_t yes;
    uint32_t rank;            /* of the sender */
    uint32_t round;           /* enum nb_round. Of a no: enum nb_cause (connect/connect.h) */
    uint32_t token;           /* COLUMN: the row's share of the group token. Else 0 */
    char reason[NB_CTL_TEXT]; /* of a no. Names its author */
    /* ROW: the sender's link and codec (struct nb_reckon_facts). COLUMN: the slowest of the row. Else 0 */
    uint32_t mbps, codec, workers, buffer, measured;
};
#define NB_VOTE_BYTES 224u
void nb_vote_pack(const struct nb_vote *vote, void *out);
int nb_vote_parse(const void *in, size_t len, struct nb_vote *vote, const char **why);
/* Return true when the message is a no, whose reason goes to `reason`. */
bool nb_vote_is_no(const void *in, size_t len, char reason[NB_CTL_TEXT]);

#endif
