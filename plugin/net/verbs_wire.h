/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between the two ends of a verbs connection. All little-endian. Parsers take bytes of any
 * origin, read exactly the stated number, and log nothing.
 *
 * Over the connection's TCP socket, which stays open as long as the connection: connecting side
 * accepting side META ->                  (makes its queue pairs)
 *                            <- META
 * (queue pairs to RTS) CONTROL ready -> ... later, either side, at most one: CONTROL bye or error By RDMA, on
 * queue pair 0 of the receiver: a slot of the clear-to-send table in the sender's memory, by WRITE with
 * immediate (the immediate wakes a sender that sleeps). By RDMA, on all queue pairs of the sender: a
 * message's bytes, by WRITE, in one piece a queue pair; each piece ends with an immediate. Its length is what
 * the pieces' completions add up to; or, where pieces are written without immediate first (adaptive routing,
 * very large messages), what the first piece's immediate write puts into the receiver's table of lengths.
 */
#ifndef NIBBLE_NET_VERBS_WIRE_H
#define NIBBLE_NET_VERBS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"

#define NB_VERBS_WIRE_VERSION 1
#define NB_VERBS_MAX_QPS 128
#define NB_VERBS_SLOTS 256 /* receives (grouped ones count once) under way on a connection */

/*
 * META, 0 magic u32, 4 version u32, 8 error i32 (0, or an errno: no connection, for the reason at 96), 12
 * queue pairs u32, 16 link layer u8 (1 InfiniBand, 2 Ethernet), 17 path MTU u8 (IBV_MTU_*), 18 service level
 * u8, 19 traffic class u8, 20 LID u16, 22 zero u16, 24 depth u32 (receive work requests on its queue pair 0),
 * 28 rkey u32, 32 GID[16], 48 address u64 (with the rkey: sender: clear-to-send table; receiver: table of
 * lengths), 56 zero u64, 64 device char[32], 96 reason char[96], 192 queue pair numbers u32[128].
 */
#define NB_VERBS_META_BYTES 704

struct nb_verbs_meta {
    uint32_t version;
    int error;
    unsigned nqps;
    uint8_t link, mtu, sl, tc;
    uint16_t lid;
    uint32_t depth, rkey;
    uint8_t gid[16];
    uint64_t addr;
    char device[32];
    char reason[96];
    uint32_t qpn[NB_VERBS_MAX_QPS];
};

void nb_verbs_meta_put(uint8_t bytes[NB_VERBS_META_BYTES], const struct nb_verbs_meta *m);
/* 0; -EINVAL: not a META; -EPROTO: of another version (only that is filled in); -EBADMSG: fields that cannot
 * be. */
int nb_verbs_meta_get(const uint8_t bytes[NB_VERBS_META_BYTES], struct nb_verbs_meta *m);

/* CONTROL: 0 magic u32, 4 kind u16, 6 zero u16, 8 error i32 (an errno, in ERROR only), 12 zero u32, 16 count
 * u64, 24 reason char[104]. count, in BYE: messages that this side knows to be complete. */
#define NB_VERBS_CONTROL_BYTES 128

enum nb_verbs_control_kind { NB_VERBS_READY = 1, NB_VERBS_BYE = 2, NB_VERBS_ERROR = 3 };

struct nb_verbs_control {
    uint16_t kind;
    int error;
    uint64_t count;
    char reason[104];
};

void nb_verbs_control_put(uint8_t bytes[NB_VERBS_CONTROL_BYTES], const struct nb_verbs_control *c);
/* 0 or -EPROTO. */
int nb_verbs_control_get(const uint8_t bytes[NB_VERBS_CONTROL_BYTES], struct nb_verbs_control *c);

/* A slot of the clear-to-send table: 0 seq u32, 4 n u32, 8 zero u64, then n times 0 address u64, 8 size u64,
 * 16 rkey u32, 20 tag i32. */
#define NB_VERBS_SLOT_BYTES 256
#define NB_VERBS_ENTRY_BYTES 24
#define NB_VERBS_SLOT_USED(n) (16 + (size_t)(n)*NB_VERBS_ENTRY_BYTES)
_Static_assert(NB_VERBS_SLOT_USED(NB_NET_MAX_RECVS) <= NB_VERBS_SLOT_BYTES, "a slot holds a full group");

struct nb_verbs_cts {
    uint32_t seq;
    int n;
    struct nb_verbs_cts_entry {
        uint64_t addr, size;
        uint32_t rkey;
        int32_t tag;
    } entry[NB_NET_MAX_RECVS];
};

void nb_verbs_cts_put(uint8_t *slot, const struct nb_verbs_cts *c);
/* 0 or -EPROTO. */
int nb_verbs_cts_get(const uint8_t *slot, struct nb_verbs_cts *c);

/* Immediates, in host order. Of a slot: 0..7 slot, 8..31 seq. Of a piece: 0..7 slot, 8..10 entry, 11..17
 * pieces of the message less one, 18 its length is in the table, 19..31 seq. */
#define NB_VERBS_CTS_SEQ_MASK 0xffffffu
#define NB_VERBS_DATA_SEQ_MASK 0x1fffu

struct nb_verbs_imm {
    unsigned slot, entry, pieces;
    bool in_table;
    uint32_t seq; /* low 13 bits */
};

static inline uint32_t nb_verbs_imm_put(const struct nb_verbs_imm *i)
{
    return i->slot | i->entry << 8 | (i->pieces - 1) << 11 | (uint32_t)i->in_table << 18 |
           (i->seq & NB_VERBS_DATA_SEQ_MASK) << 19;
}

static inline struct nb_verbs_imm nb_verbs_imm_get(uint32_t v)
{
    return (struct nb_verbs_imm){.slot = v & 255,
                                 .entry = v >> 8 & 7,
                                 .pieces = (v >> 11 & 127) + 1,
                                 .in_table = v >> 18 & 1,
                                 .seq = v >> 19};
}

#endif
