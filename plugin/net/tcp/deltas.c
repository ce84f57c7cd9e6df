/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact deltas of point-to-point messages. Both ends of a connection keep the same messages in numbered
 * slots. The sender alone decides, and a word in each frame tells the receiver:
 *
 *     first time     plain     nothing is kept, the sender remembers a sample (places.c)
 *     second time    KEEP n    plain bytes, which both ends copy into slot n
 *     from then on   DELTA n   an exact delta against slot n, which both ends then replace
 *
 * Both ends follow these words in the order of the messages, so their slots are equal. A delta names the
 * message in its slot and has a hash, which show that. Where they do not, the receiver asks for the plain
 * message, which both ends then have in the slot. Where tags distinguish messages, the first one is kept
 * already. A send of a delta is done when the receiver has confirmed
 * it: NCCL leaves the message's memory alone until then. With NIBBLE_P2P=auto the sender sends deltas while
 * they are faster (judge.c). The receiver states in its handle how many bytes it keeps for the connection,
 * and reserves them. Both ends count their memory apart.
 */
#include "net/tcp/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/context.h"
#include "base/log.h"
#include "base/minmax.h"
#include "nibble/codec.h"

#define HASH_SEED 0x64656c7461ull
#define LEAST_BYTES 16384u /* of a message that is looked at */
#define MOST_BYTES (64u << 20)
#define SHARE 8u  /* a connection gets this part of the bytes that are left */
#define MISSES 3u /* deltas in a row that saved too little, before the slot is given up */
#define REST 255u /* messages of the place that then go plain, for REST_NS at most */
#define REST_NS (15 * 60 * (int64_t)NB_NS_PER_S)
#define STALE 4u      /* rounds without use after which a slot can be replaced */
#define TRIAL 32u     /* slots in use until deltas pay again */
#define AGAIN_MOST 3u /* deltas that failed, before the connection's messages all go plain */

/* ---- memory ------------------------------------------------------------------------------------------ */

static uint64_t limit_of(const struct nb_tcp *tcp)
{
    return (uint64_t)tcp->net.ctx->params->p2p_max_mb << 20;
}

bool nb_tcp_deltas_wanted(const struct nb_tcp_dev *dev)
{
    const struct nb_params *p = dev->tcp->net.ctx->params;
    const int64_t mbps = p->link_mbps ? p->link_mbps : dev->nif.known_mbps;

    return limit_of(dev->tcp) && p->p2p != NB_P2P_RAW &&
           (p->p2p == NB_P2P_DELTA || mbps <= NB_TCP_DELTA_MBPS);
}

uint64_t nb_tcp_deltas_reserve(struct nb_tcp_dev *dev)
{
    struct nb_tcp *tcp = dev->tcp;
    uint64_t share = 0;

    if (!nb_tcp_deltas_wanted(dev))
        return 0;
    pthread_mutex_lock(&tcp->lock);
    if (tcp->delta_received < limit_of(tcp))
        share = (limit_of(tcp) - tcp->delta_received) / SHARE / NB_TCP_GRANT_UNIT * NB_TCP_GRANT_UNIT;
    share = nb_min64(share, (uint64_t)UINT32_MAX * NB_TCP_GRANT_UNIT);
    tcp->delta_received += share;
    pthread_mutex_unlock(&tcp->lock);
    return share;
}

uint64_t nb_tcp_deltas_reserve_again(struct nb_tcp_dev *dev, uint64_t bytes)
{
    pthread_mutex_lock(&dev->tcp->lock);
    dev->tcp->delta_received += bytes;
    pthread_mutex_unlock(&dev->tcp->lock);
    return bytes;
}

void nb_tcp_deltas_return(struct nb_tcp *tcp, uint64_t bytes)
{
    pthread_mutex_lock(&tcp->lock);
    tcp->delta_received -= bytes;
    pthread_mutex_unlock(&tcp->lock);
}

/* Take memory for messages that this process sends. Return false where the limit forbids it. */
static bool take_sent(struct nb_tcp *tcp, size_t bytes)
{
    bool taken;

    pthread_mutex_lock(&tcp->lock);
    taken = tcp->delta_sent + bytes <= limit_of(tcp);
    if (taken)
        tcp->delta_sent += bytes;
    pthread_mutex_unlock(&tcp->lock);
    return taken;
}

static void give_sent(struct nb_tcp *tcp, size_t bytes)
{
    pthread_mutex_lock(&tcp->lock);
    tcp->delta_sent -= bytes;
    pthread_mutex_unlock(&tcp->lock);
}

/* ---- slots ------------------------------------------------------------------------------------------- */

/* Return slot n, made empty if it is new, or NULL when memory is short. */
static struct nb_tcp_slot *slot_at(struct nb_tcp_slots *s, unsigned n)
{
    if (n >= s->cap) {
        unsigned cap = s->cap ? s->cap : 64;
        struct nb_tcp_slot *at;

        while (cap <= n)
            cap *= 2;
        at = realloc(s->at, cap * sizeof(*at));
        if (!at)
            return NULL;
        memset(at + s->cap, 0, (cap - s->cap) * sizeof(*at));
        s->at = at;
        s->cap = cap;
    }
    return &s->at[n];
}

static void empty(struct nb_tcp_slots *s, struct nb_tcp_slot *slot)
{
    s->bytes -= slot->size;
    free(slot->data);
    *slot = (struct nb_tcp_slot){0};
}

/* Keep a copy of message number `seq` in the slot. Return false when memory is short: it is empty then. */
static bool fill(struct nb_tcp_slots *s, struct nb_tcp_slot *slot, const void *data, size_t size,
                 uint32_t seq)
{
    if (slot->size != size) {
        empty(s, slot);
        slot->data = malloc(size);
        if (!slot->data)
            return false;
        slot->size = size;
        s->bytes += size;
    }
    memcpy(slot->data, data, size);
    slot->seq = seq;
    return true;
}

static void free_slots(struct nb_tcp_slots *s)
{
    for (unsigned i = 0; i < s->cap; i++)
        free(s->at[i].data);
    free(s->at);
    memset(s, 0, sizeof(*s));
}

/* Make room for a coded message. What was there is lost. */
static bool room(struct nb_tcp_coded *c, size_t bytes)
{
    if (c->cap >= bytes)
        return true;
    free(c->bytes);
    c->cap = 0;
    c->bytes = malloc(bytes);
    if (!c->bytes)
        return false;
    c->cap = bytes;
    return true;
}

/* ---- sending ----------------------------------------------------------------------------------------- */

void nb_tcp_deltas_start(struct nb_tcp_send *s, enum nb_net_deltas deltas, uint64_t granted)
{
    struct nb_tcp_deltas *d;

    if (!granted || !nb_tcp_deltas_wanted(s->c.dev))
        return;
    d = calloc(1, sizeof(*d));
    if (d) {
        d->granted = granted;
        d->by_tag = deltas == NB_DELTAS_BY_TAG;
    }
    s->deltas = d;
}

/* Give up the slot of a place. The receiver learns that when the slot is filled again. */
static void give_up(struct nb_tcp_send *s, struct nb_tcp_place *place)
{
    struct nb_tcp_deltas *d = s->deltas;
    struct nb_tcp_slot *slot = &d->slots.at[place->slot];

    give_sent(s->c.dev->tcp, slot->size);
    empty(&d->slots, slot);
    d->kept--;
    if (place->slot < d->lowest)
        d->lowest = place->slot;
    place->slot = NB_TCP_NO_SLOT;
}

/* Empty slots that no message has used for some rounds. They are looked for once a round. */
static void drop_stale(struct nb_tcp_send *s)
{
    struct nb_tcp_deltas *d = s->deltas;

    if (d->seen - d->cleaned < d->places.n)
        return;
    d->cleaned = d->seen;
    for (unsigned i = 0; i < d->places.n; i++) {
        struct nb_tcp_place *place = &d->places.at[i];

        if (place->slot != NB_TCP_NO_SLOT && d->seen - d->slots.at[place->slot].used > STALE * d->places.n)
            give_up(s, place);
    }
}

/* Keep the message in a free slot. Return the word for its frames. */
static uint16_t keep(struct nb_tcp_send *s, struct nb_tcp_place *place, const void *data, size_t size)
{
    struct nb_tcp_deltas *d = s->deltas;
    struct nb_tcp_slot *slot;
    unsigned n = d->lowest;

    if (d->judge.rounds > 0 && d->kept >= TRIAL)
        return NB_TCP_PLAIN;
    if (d->slots.bytes + size > d->granted || !take_sent(s->c.dev->tcp, size)) {
        drop_stale(s);
        return NB_TCP_PLAIN;
    }
    while (n < d->slots.cap && d->slots.at[n].size)
        n++;
    slot = n < NB_TCP_SLOTS ? slot_at(&d->slots, n) : NULL;
    if (!slot || !fill(&d->slots, slot, data, size, s->c.next_seq)) {
        give_sent(s->c.dev->tcp, size);
        return NB_TCP_PLAIN;
    }
    d->lowest = n + 1;
    d->kept++;
    place->slot = (uint16_t)n;
    place->misses = 0;
    slot->used = d->seen;
    return (uint16_t)(NB_TCP_KEEP | n);
}

/* Note the judgement, and give up all slots where deltas do not pay. */
void nb_tcp_deltas_confirmed(struct nb_tcp_send *s, uint32_t seq)
{
    struct nb_tcp_deltas *d = s->deltas;
    struct nb_tcp_judge *j = &d->judge;
    int64_t now;

    if (!j->n)
        return;
    now = nb_clock_ns(s->c.dev->tcp->clock);
    if (nb_tcp_judge_confirmed(j, seq, now))
        return;
    for (unsigned i = 0; i < d->places.n; i++)
        if (d->places.at[i].slot != NB_TCP_NO_SLOT)
            give_up(s, &d->places.at[i]);
    const double plain = j->plain.ns / j->plain.bytes, delta = j->delta.ns / j->delta.bytes;
    nb_tcp_judge_rest(j, d->places.n, now);
    NB_INFO(NCCL_NET,
            "tcp: deltas to %s take %.0f us a MiB, plain messages %.0f us: %s sends %u rounds plain, "
            "for %u minutes at most (NIBBLE_P2P=delta: all as deltas)",
            s->c.peer, delta * 1048.576, plain * 1048.576, s->c.local, j->rounds,
            (unsigned)((j->rest.until_ns - now) / (60 * (int64_t)NB_NS_PER_S)));
}

/* ---- a message --------------------------------------------------------------------------------------- */

/* Code the message against its slot. Return the coded length, or 0 where that saves too little. */
static size_t code(struct nb_tcp_send *s, struct nb_tcp_slot *slot, const void *data, size_t size,
                   struct nb_tcp_coded *coded)
{
    struct nb_tcp_deltas *d = s->deltas;
    const size_t limit = size - size / 8;
    enum nb_ulp_width width;
    ssize_t len;

    if (!slot->width)
        slot->width = (uint8_t)nb_ulp_guess_width(data, slot->data, size);
    width = (enum nb_ulp_width)slot->width;
    if (!room(coded, NB_TCP_DELTA_BYTES + nb_ulp_sparse_bound(width, size)))
        return 0;
    len = nb_ulp_encode_sparse(width, data, slot->data, size, limit, coded->bytes + NB_TCP_DELTA_BYTES,
                               coded->cap - NB_TCP_DELTA_BYTES);
    if (len < 0)
        return 0;
    nb_put64(coded->bytes, size);
    nb_put32(coded->bytes + 8, slot->seq);
    nb_put32(coded->bytes + 12, width);
    nb_put64(coded->bytes + 16, nb_hash64(data, size, HASH_SEED));
    fill(&d->slots, slot, data, size, s->c.next_seq);
    return NB_TCP_DELTA_BYTES + (size_t)len;
}

static uint16_t plan(struct nb_tcp_send *s, const void *data, size_t size, int32_t tag, int64_t now,
                     struct nb_tcp_coded *coded, size_t *length)
{
    struct nb_p2p_counts *counts = &s->c.dev->tcp->net.ctx->p2p;
    struct nb_tcp_deltas *d = s->deltas;
    struct nb_tcp_place *place;
    struct nb_tcp_slot *slot;
    bool known = true;

    d->seen++;
    place = d->by_tag ? nb_tcp_place_of_tag(&d->places, tag, size)
                      : nb_tcp_place_of(&d->places, data, size, &known);
    if (!place || !known)
        return NB_TCP_PLAIN;
    if (nb_tcp_rests(&place->rest, now)) /* of late its deltas saved too little */
        return NB_TCP_PLAIN;
    if (place->slot == NB_TCP_NO_SLOT)
        return keep(s, place, data, size);
    slot = &d->slots.at[place->slot];
    slot->used = d->seen;
    if (nb_tcp_judge_probes(&d->judge))
        return NB_TCP_ECHO;
    const size_t len = code(s, slot, data, size, coded);
    if (!len) {
        slot->width = 0;
        if (++place->misses == MISSES) {
            place->rest = (struct nb_tcp_rest){REST, now + REST_NS};
            give_up(s, place);
            return NB_TCP_PLAIN;
        }
        fill(&d->slots, slot, data, size, s->c.next_seq);
        return (uint16_t)(NB_TCP_KEEP | place->slot);
    }
    place->misses = 0;
    if (d->coded++ == 0)
        NB_INFO(NCCL_NET, "tcp: messages to %s come again: %s sends exact deltas (NIBBLE_P2P)", s->c.peer,
                s->c.local);
    d->plain_bytes += size;
    d->coded_bytes += len;
    counts->messages++;
    counts->bytes += size;
    counts->wire_bytes += len;
    *length = len;
    return (uint16_t)(NB_TCP_DELTA | place->slot);
}

uint16_t nb_tcp_deltas_plan(struct nb_tcp_send *s, const void *data, size_t size, int32_t tag,
                            struct nb_tcp_coded *coded, size_t *length)
{
    struct nb_tcp_deltas *d = s->deltas;
    uint16_t word;
    int64_t now;

    *length = size;
    if (size < LEAST_BYTES || size > MOST_BYTES || d->places.hopeless || d->again >= AGAIN_MOST)
        return NB_TCP_PLAIN;
    now = nb_clock_ns(s->c.dev->tcp->clock);
    if (s->c.dev->tcp->net.ctx->params->p2p == NB_P2P_DELTA)
        return plan(s, data, size, tag, now, coded, length);
    if (nb_tcp_rests(&d->judge.rest, now))
        return NB_TCP_PLAIN;
    word = plan(s, data, size, tag, now, coded, length);
    return nb_tcp_judge_sends(&d->judge, word, s->c.next_seq, size, now);
}

void nb_tcp_deltas_again(struct nb_tcp_send *s, uint32_t seq)
{
    s->deltas->judge.n = 0;
    NB_INFO(NCCL_NET, "tcp: %s sends message %u to %s again, plain: the receiver could not expand its delta",
            s->c.local, seq, s->c.peer);
    if (++s->deltas->again == AGAIN_MOST)
        NB_WARN(
            "tcp: %s sends no more deltas to %s, since %u failed: a fault of a node's memory or processor",
            s->c.local, s->c.peer, AGAIN_MOST);
}

void nb_tcp_deltas_end(struct nb_tcp_send *s)
{
    struct nb_tcp_deltas *d = s->deltas;

    if (!d)
        return;
    if (d->coded)
        NB_INFO(NCCL_NET,
                "tcp: summary of %s to %s: %" PRIu64 " messages as deltas, %" PRIu64 " bytes took %" PRIu64
                " (%.1f times fewer), %" PRIu64 " bytes are kept",
                s->c.local, s->c.peer, d->coded, d->plain_bytes, d->coded_bytes,
                (double)d->plain_bytes / (double)d->coded_bytes, d->slots.bytes);
    give_sent(s->c.dev->tcp, d->slots.bytes);
    free_slots(&d->slots);
    nb_tcp_places_free(&d->places);
    free(d);
    s->deltas = NULL;
}

/* ---- receiving --------------------------------------------------------------------------------------- */

/* Expand a delta into the receive's memory. Return NULL, or the reason why that fails. */
static const char *expand(const struct nb_tcp_slot *slot, struct nb_tcp_buffer *b)
{
    const uint8_t *coded = b->coded.bytes;
    const uint64_t size = b->size < NB_TCP_DELTA_BYTES ? 0 : nb_get64(coded);

    if (!slot->data || size != slot->size || nb_get32(coded + 8) != slot->seq)
        return "a delta that fits no kept message";
    if (size > b->cap)
        return "a delta of a message that is longer than its receive";
    if (nb_ulp_decode_sparse((enum nb_ulp_width)nb_get32(coded + 12), coded + NB_TCP_DELTA_BYTES,
                             b->size - NB_TCP_DELTA_BYTES, slot->data, size, b->data))
        return "a malformed delta";
    if (nb_hash64(b->data, size, HASH_SEED) != nb_get64(coded + 16))
        return "a delta whose result has another hash than the sender's message";
    b->size = size;
    return NULL;
}

int nb_tcp_deltas_take(struct nb_tcp_recv *s, struct nb_tcp_buffer *b, const char **why)
{
    struct nb_tcp_slot *slot;

    if (b->word == NB_TCP_ECHO)
        return 0;
    slot = slot_at(&s->slots, b->word & (NB_TCP_SLOTS - 1));
    *why = "no memory for a kept message";
    if (!slot)
        return -ENOMEM;
    if ((b->word & ~(NB_TCP_SLOTS - 1)) == NB_TCP_DELTA) {
        *why = expand(slot, b);
        if (*why)
            return 1;
    } else if (s->slots.bytes - slot->size + b->size > s->granted) {
        *why = "more messages to keep than this node allows";
        return -EPROTO;
    }
    if (b->size) /* without memory the slot stays empty, and the next delta against it fails */
        fill(&s->slots, slot, b->data, b->size, b->seq);
    return 0;
}

bool nb_tcp_deltas_land(struct nb_tcp_buffer *b)
{
    if ((b->word & ~(NB_TCP_SLOTS - 1)) != NB_TCP_DELTA)
        return true;
    if (!room(&b->coded, b->size))
        return false;
    b->land = b->coded.bytes;
    return true;
}

void nb_tcp_deltas_leave(struct nb_tcp_recv *s)
{
    free_slots(&s->slots);
    if (s->granted)
        nb_tcp_deltas_return(s->c.dev->tcp, s->granted);
}
