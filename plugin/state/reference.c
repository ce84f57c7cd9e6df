/* SPDX-License-Identifier: Apache-2.0 */
/* Weight references of owners and receivers; see reference.h. */
#include "state/reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state/budget.h"

#define SAMPLES 256u
#define LIKE_ENOUGH 0.9
/* Slots that no later gather has ever matched (activations, logits, statistics): beyond this many the oldest is
 * overwritten instead of a new one made. One step of a model of this many equal blocks still finds all of its own. */
#define MAX_UNMATCHED 512u
#define MAX_SLOTS 16384u

struct peer_ref {
    uint8_t *data;
    size_t bytes;
};

struct nb_refs {
    const struct nb_device_ops *dev;
    int nranks;
    struct nb_ref **own; /* by slot */
    unsigned nown, cap, nunmatched;
    int last;            /* slot of the operation before, or -1 */
    int peers_full;      /* a receiver had no memory: make no more slots */
    struct peer_ref **peer; /* [owner][slot] */
    unsigned *npeer;
    size_t bytes;
};

struct nb_refs *nb_refs_create(const struct nb_device_ops *dev, int nranks)
{
    struct nb_refs *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->dev = dev;
    r->nranks = nranks;
    r->last = -1;
    r->peer = calloc((size_t)nranks, sizeof(*r->peer));
    r->npeer = calloc((size_t)nranks, sizeof(*r->npeer));
    if (!r->peer || !r->npeer) {
        nb_refs_destroy(r);
        return NULL;
    }
    return r;
}

static uint8_t *take(struct nb_refs *r, size_t bytes)
{
    uint8_t *p;
    if (nb_budget_take(NB_BUDGET_REFERENCE, bytes))
        return NULL;
    p = r->dev->alloc(bytes);
    if (!p)
        nb_budget_give(NB_BUDGET_REFERENCE, bytes);
    else
        r->bytes += bytes;
    return p;
}

static void give(struct nb_refs *r, uint8_t *p, size_t bytes)
{
    if (!p)
        return;
    r->dev->free(p, bytes);
    nb_budget_give(NB_BUDGET_REFERENCE, bytes);
    r->bytes -= bytes;
}

void nb_refs_destroy(struct nb_refs *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < r->nown; i++) {
        give(r, r->own[i]->data, r->own[i]->bytes);
        free(r->own[i]);
    }
    free(r->own);
    for (int p = 0; r->peer && r->npeer && p < r->nranks; p++) {
        for (unsigned i = 0; i < r->npeer[p]; i++)
            give(r, r->peer[p][i].data, r->peer[p][i].bytes);
        free(r->peer[p]);
    }
    free(r->peer);
    free(r->npeer);
    free(r);
}

/* ---- owner ----------------------------------------------------------------------------------------- */

static int ready(const struct nb_refs *r, const struct nb_ref *ref)
{
    return ref->complete && ref->confirms == (unsigned)r->nranks - 1;
}

static double likeness(const struct nb_refs *r, const struct nb_ref *ref, const void *own, size_t offset, size_t avail)
{
    return r->dev->likeness(own, ref->data + offset, avail, SAMPLES);
}

/* The slot that followed the last one before is tried first: jobs gather in the same order step after step, and
 * blocks whose first part looks the same (fresh layer norms) are told apart by it. */
static int find_like(const struct nb_refs *r, const void *own, size_t offset, size_t avail, size_t bytes)
{
    int best = -1;
    double most = LIKE_ENOUGH;

    if (r->last >= 0 && r->own[r->last]->follower >= 0) {
        int next = r->own[r->last]->follower;
        const struct nb_ref *ref = r->own[next];
        if (ref->bytes == bytes && ref->complete && likeness(r, ref, own, offset, avail) >= LIKE_ENOUGH)
            return next;
    }
    for (unsigned i = 0; i < r->nown; i++) {
        const struct nb_ref *ref = r->own[i];
        double like;
        if (ref->bytes != bytes || !ref->complete)
            continue;
        like = likeness(r, ref, own, offset, avail);
        if (like >= most && (like > most || best < 0)) {
            most = like;
            best = (int)i;
        }
    }
    return best;
}

/* A slot to write new content into: a new one, or the longest unused of those never matched. */
static struct nb_ref *place_new(struct nb_refs *r, size_t bytes)
{
    struct nb_ref *ref = NULL;

    if (r->nunmatched < MAX_UNMATCHED && r->nown < MAX_SLOTS && !r->peers_full) {
        if (r->nown == r->cap) {
            unsigned cap = r->cap ? r->cap * 2 : 16;
            struct nb_ref **own = realloc(r->own, cap * sizeof(*own));
            if (!own)
                return NULL;
            r->own = own;
            r->cap = cap;
        }
        ref = calloc(1, sizeof(*ref));
        if (ref && (ref->data = take(r, bytes)) != NULL) {
            ref->slot = r->nown;
            ref->bytes = bytes;
            ref->follower = -1;
            r->own[r->nown++] = ref;
            r->nunmatched++;
            return ref;
        }
        free(ref);
        ref = NULL;
    }
    for (unsigned i = 0; i < r->nown; i++) {
        struct nb_ref *old = r->own[i];
        if (old->bytes == bytes && !old->matched && ready(r, old) && (!ref || old->used_op < ref->used_op))
            ref = old;
    }
    return ref;
}

enum nb_ref_outcome nb_refs_pick(struct nb_refs *r, const void *own, size_t offset, size_t avail, size_t bytes,
                                 uint64_t opno, struct nb_ref **out)
{
    int found = find_like(r, own, offset, avail, bytes);
    enum nb_ref_outcome outcome;
    struct nb_ref *ref;

    *out = NULL;
    if (found >= 0) {
        ref = r->own[found];
        if (!ref->matched) {
            ref->matched = 1;
            r->nunmatched--;
        }
        ref->used_op = opno;
        outcome = ready(r, ref) ? NB_REF_HIT : NB_REF_UNCONFIRMED;
        if (outcome == NB_REF_HIT)
            *out = ref;
    } else {
        ref = place_new(r, bytes);
        if (!ref)
            return NB_REF_NONE;
        ref->used_op = opno;
        *out = ref;
        outcome = NB_REF_NEW;
    }
    if (r->last >= 0)
        r->own[r->last]->follower = (int)ref->slot;
    r->last = (int)ref->slot;
    return outcome;
}

const struct nb_ref *nb_refs_last(const struct nb_refs *r)
{
    return r->last >= 0 ? r->own[r->last] : NULL;
}

void nb_refs_store(struct nb_refs *r, struct nb_ref *ref, const void *own, size_t offset, size_t bytes, uint64_t opno)
{
    if (ref->last_op != opno || ref->version == 0) {
        ref->last_op = opno;
        ref->version++;
        ref->complete = 0;
        ref->confirms = ref->answers = 0;
    }
    r->dev->copy(ref->data + offset, own, bytes);
    ref->filled = offset + bytes;
    if (ref->filled == ref->bytes)
        ref->complete = 1;
}

void nb_refs_confirmed(struct nb_refs *r, uint64_t opno, int kept)
{
    for (unsigned i = 0; i < r->nown; i++) {
        struct nb_ref *ref = r->own[i];
        if (ref->version == 0 || ref->last_op != opno)
            continue;
        ref->answers++;
        if (kept)
            ref->confirms++;
        else
            r->peers_full = 1; /* never confirmed by all, so never used as a reference */
        return;
    }
}

const void *nb_refs_find_op(struct nb_refs *r, uint64_t opno, size_t offset, size_t bytes)
{
    for (unsigned i = 0; i < r->nown; i++) {
        const struct nb_ref *ref = r->own[i];
        if (ref->version && ref->last_op == opno && offset <= ref->filled && bytes <= ref->filled - offset)
            return ref->data + offset;
    }
    return NULL;
}

int nb_refs_unconfirmed(const struct nb_refs *r)
{
    for (unsigned i = 0; i < r->nown; i++)
        if (r->own[i]->version && r->own[i]->answers < (unsigned)r->nranks - 1)
            return 1;
    return 0;
}

/* ---- receiver -------------------------------------------------------------------------------------- */

uint8_t *nb_refs_of_peer(struct nb_refs *r, int owner, uint32_t slot, size_t bytes, int make)
{
    struct peer_ref *p;

    if (slot >= MAX_SLOTS)
        return NULL;
    if (slot >= r->npeer[owner]) {
        unsigned n = slot + 16;
        if (!make)
            return NULL;
        p = realloc(r->peer[owner], n * sizeof(*p));
        if (!p)
            return NULL;
        memset(p + r->npeer[owner], 0, (n - r->npeer[owner]) * sizeof(*p));
        r->peer[owner] = p;
        r->npeer[owner] = n;
    }
    p = &r->peer[owner][slot];
    if (p->data && p->bytes == bytes)
        return p->data;
    if (!make)
        return NULL;
    give(r, p->data, p->bytes);
    p->data = take(r, bytes);
    p->bytes = p->data ? bytes : 0;
    return p->data;
}

size_t nb_refs_bytes(const struct nb_refs *r)
{
    return r->bytes;
}

unsigned nb_refs_count(const struct nb_refs *r)
{
    return r->nown;
}
