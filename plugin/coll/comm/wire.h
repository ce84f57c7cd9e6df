/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the collective engine (docs/messages.md). All integers are little-endian at
 * fixed offsets; parsing never trusts the bytes: a header is accepted only when every field is in range and
 * its check value fits.
 *
 * Three classes of messages travel on connections of their own, so that none can fill the buffers that
 * another needs:
 *   CONTRIB  a node's values, or a row's sum, to the node that reduces them; its block of an all-gather
 *   RESULT   reduced values to everyone (all-reduce) or their owner (two hops, two levels), forwarded
 *            segments
 *   CONTROL  heartbeats, confirmations, requests for raw bytes and answers to them, shutdown
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

/* Header of a data message (CONTRIB and RESULT); the coded bytes follow it. */
struct nb_msg {
    uint8_t func;  /* enum nb_func */
    uint8_t codec; /* enum nb_codec */
    uint8_t
        type; /* ncclDataType_t: of the values that are coded; ncclInt8 for an all-gather's bytes; for a codec of
                      * patterns (codec/row.h) their width in bytes */
    uint8_t op;     /* ncclRedOp_t */
    uint16_t flags; /* NB_MSG_* */
    uint32_t token; /* of the group, agreed at connect */
    uint64_t opno;  /* the operation's number on this communicator, from 0 */
    uint64_t
        offset; /* first byte of the range, in the operation's whole vector (all-reduce: of the window) */
    uint32_t
        bytes; /* length of the range before coding; all-reduce: its values without padding, perhaps none */
    uint32_t coded; /* bytes that follow this header (and its reference part): the payload */
    uint64_t check; /* with NB_MSG_CHECKED nb_hash64, with NB_PAYLOAD_SEED, of the payload, else 0 */
    /* With NB_MSG_KEEP, or a codec with a reference, the reference part follows the header: */
    uint32_t ref_number; /* reference number of the owner */
    uint32_t version;    /* of the unit's reference after this message */
    uint64_t ref_hash;   /* nb_hash64 of the reference this was coded against, else 0 */
    uint64_t new_hash;   /* nb_hash64 of the bytes that the message stands for */
};

enum {
    NB_MSG_KEEP = 1, /* keep the bytes as the reference of (owner, number) for this range */
    NB_MSG_TWO_HOP =
        2, /* the operation goes by two hops: who gets a segment as CONTRIB works on it for others */
    NB_MSG_TWO_LEVEL = 4,                             /* it goes along rows and columns, likewise */
    NB_MSG_ROUTE = NB_MSG_TWO_HOP | NB_MSG_TWO_LEVEL, /* none of them: straight to where it is needed */
    NB_MSG_CHECKED = 8,                               /* `check` holds (flow/internal.h) */
};

#define NB_MSG_BYTES 56u     /* header */
#define NB_MSG_REF_BYTES 24u /* reference part */
#define NB_MSG_MAX_BYTES (NB_MSG_BYTES + NB_MSG_REF_BYTES)

/* Seed of check values of payloads ("payload"): sets them apart from hashes of contents. */
#define NB_PAYLOAD_SEED UINT64_C(0x7061796c6f6164)

/* Length of the header that nb_msg_pack would write. */
size_t nb_msg_header_bytes(const struct nb_msg *msg);
/* Write the header to `out` (at least nb_msg_header_bytes). Returns its length. */
size_t nb_msg_pack(const struct nb_msg *msg, void *out);
/* Read and check a header of a message of `len` bytes in all. Returns the header's length, or -EBADMSG with
 * *why set to a constant text. `max_unit` bounds `bytes`. */
int nb_msg_parse(const void *in, size_t len, uint32_t token, size_t max_unit, struct nb_msg *msg,
                 const char **why);

/* Control messages: one fixed size, but for DATA. Nodes that are not connected (grid.h) send each other RAW,
 * DATA and those about the kill switch through one that is connected with both. */
enum nb_ctl_kind {
    NB_CTL_ALIVE =
        0, /* a heartbeat. a: 1 + the neighbor of which nothing is heard, 0: none, b: for so many ms; c: whom its
            * writer waits for (enum nb_chain_kind), wait: in the end */
    NB_CTL_CONFIRM =
        1, /* a: number of the all-gather of which the owner's block was taken over whole; b: 1 when its bytes
                         * were kept; c: by so many nodes, which `from` speaks for */
    NB_CTL_RAW =
        2, /* a: operation, b: offset in the own block, c: length, at most NB_CTL_DATA_BYTES: please send
                         * this range again as raw bytes */
    NB_CTL_FIN = 3,     /* a, b: messages sent so far as CONTRIB and RESULT; nothing will follow */
    NB_CTL_FIN_ACK = 4, /* all of them have arrived */
    NB_CTL_ABORT =
        5, /* the communicator has failed on the sender; a: the node that found why, text: what it says;
                       * both are passed on as they are */
    NB_CTL_SWITCH_ASK = 6, /* to node 0: please switch compression; a: 1 off, 0 on */
    NB_CTL_SWITCH = 7,     /* from node 0: it is switched; a: as above, c: how many times it has been */
    NB_CTL_SWITCHED = 8,   /* to node 0: done; a: first operation for which it holds here, c: as above */
    NB_CTL_DATA = 9,       /* a, b, c as in the RAW that this answers; the c bytes follow the message */
    NB_CTL_COLUMN =
        10, /* on a grid, to a node of the row: a: number of the all-gather of which the blocks of that node's
                            * column were taken over whole; rows: those of which something was to be kept;
                            * lost: and was not */
    NB_CTL_COUNT /* 11 to 14 are reserved: development versions used them */
};

/* ALIVE: at the end of a chain of waits (watch/watch.h). */
struct nb_ctl_wait {
    uint32_t end, steps; /* rank; so many waits from its writer on */
};

#define NB_CTL_TEXT 180u
struct nb_ctl {
    uint8_t kind;
    uint32_t token;
    uint64_t a, b;
    uint32_t c;
    uint32_t from, to;         /* ranks: of the node that wrote it, and of the one that is meant */
    uint64_t rows[2], lost[2]; /* COLUMN: a bit for each row; else 0 */
    struct nb_ctl_wait wait;   /* ALIVE; else 0 */
    uint64_t check;            /* DATA: nb_hash64, with NB_PAYLOAD_SEED, of the bytes that follow; else 0 */
    char text[NB_CTL_TEXT];    /* terminated; "" unless ABORT */
};
#define NB_CTL_BYTES 224u
#define NB_CTL_DATA_BYTES 16384u

/* Writes NB_CTL_BYTES bytes. */
void nb_ctl_pack(const struct nb_ctl *ctl, void *out);
/* `len` is that of the message in all. */
int nb_ctl_parse(const void *in, size_t len, uint32_t token, struct nb_ctl *ctl, const char **why);

/* First message on every connection of a group: who is calling. */
struct nb_hello {
    uint32_t wire_version;
    uint32_t nclasses; /* NB_CLASS_COUNT of the sender */
    uint32_t cls;      /* enum nb_class of this connection */
    uint32_t rank, nnodes;
    uint32_t token_share; /* sender's share of the group token (shares are combined) */
    uint64_t comm_id;     /* NCCL's communicator hash; 0 unknown */
    uint64_t settings;    /* nb_params_hash; 0: the sender has bad settings, and declines */
    char version[32];     /* plugin version, terminated */
    char host[64];        /* terminated */
};
#define NB_HELLO_BYTES 160u
void nb_hello_pack(const struct nb_hello *hello, void *out);
int nb_hello_parse(const void *in, size_t len, struct nb_hello *hello, const char **why);

/* What follows the hellos on CONTROL while a group is made: yeses, one in each round that the two nodes
 * share, and a no at any time, also when the reader already has a communicator. */
enum nb_round {
    NB_ROUND_GREETED = 0,    /* the reader's connections have all come */
    NB_ROUND_ROW = 1,        /* the sender is ready; to its row (no grid: to all) */
    NB_ROUND_COLUMN = 2,     /* its row is; to its column */
    NB_ROUND_ROW_ALL = 3,    /* it knows that all nodes are; to its row */
    NB_ROUND_COLUMN_ALL = 4, /* its row knows it; to its column */
    NB_ROUND_COUNT
};
/* What a no is about. A lower one is nearer to the cause, and takes the place of a higher one: a node that
 * misses a vote may wait for one that itself misses a connection. */
enum nb_cause {
    NB_CAUSE_SURE = 0,    /* the node that declines, itself */
    NB_CAUSE_LOST = 1,    /* a node that has gone */
    NB_CAUSE_CONNECT = 2, /* a node that has not been reached, or has not greeted, in time */
    NB_CAUSE_VOTE = 3,    /* a node that has not voted in time; + its round */
    NB_CAUSE_NONE = NB_CAUSE_VOTE + NB_ROUND_COUNT
};

struct nb_vote {
    uint32_t yes;
    uint32_t rank;  /* of the sender */
    uint32_t round; /* enum nb_round; of a no: what it is about, enum nb_cause (connect/connect.h) */
    uint32_t token; /* COLUMN: the row's share of the group token; else 0 */
    char reason[NB_CTL_TEXT]; /* of a no; names its author */
    /* ROW: what the sender's link and codec are (struct nb_reckon_facts); COLUMN: the slowest of the row;
     * else 0 */
    uint32_t mbps, codec, workers;
};
#define NB_VOTE_BYTES 224u
void nb_vote_pack(const struct nb_vote *vote, void *out);
int nb_vote_parse(const void *in, size_t len, struct nb_vote *vote, const char **why);
/* True when the message is a no: its reason goes to `reason`. */
bool nb_vote_is_no(const void *in, size_t len, char reason[NB_CTL_TEXT]);

#endif
