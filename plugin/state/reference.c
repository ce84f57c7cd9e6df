/* SPDX-License-Identifier: Apache-2.0 */
/* Weight references of owners and receivers. See reference.h. */
#include "state/reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "state/budget.h"

#define LIKE_ENOUGH 0.9
/* Least similarity, together with a margin over every other reference. It finds a block that is trained hard,
 * whose small weights move far in a step. Unrelated blocks are alike in up to a fifth of their samples. */
#define LIKE_LEAST 0.6
#define LIKE_MARGIN 0.2
/* Most references that no later gather has matched (activations, logits, statistics). Beyond this number the
 * oldest of them is overwritten instead of making a new one. One step of a model of this many equal blocks
 * still finds all of its own. */
#define MAX_UNMATCHED 512u
/* Most bytes of such references of a communicator, its peers' included: a part of the budget. Weights that
 * take more enter part by part: what has matched makes room. Beyond it one new block of several replaces the
 * longest unused one, so that the others last until their blocks come again. */
#define UNMATCHED_PART 8u
#define UNMATCHED_LEAST ((size_t)16 << 20)
#define REPLACE_EVERY 8u
#define STOPPED_OPS 8192u /* a matched reference that was not picked for so long counts as unmatched again */
#define MAX_SLOTS 16384u
#define PART_BYTES 16384u /* parts end at multiples of this, independently of windows */

struct nb_ref_part {
    uint64_t offset, hash; /* of the source */
    uint32_t bytes;
    enum nb_ref_source how;
};

struct peer_ref {
    uint8_t *data;
    size_t bytes;
};

#define SIZES 8u          /* of blocks, the latest ones */
#define NEWS_RATE 0.05f   /* of the moving average of a size's unmatched gathers */
#define NEWS_USUAL 0.125f /* more than two in a row, or one in twenty, are usual */

struct size {
    size_t bytes;
    float news, before; /* share of gathers that matched no block, with the last gather and without */
};

struct nb_refs {
    struct nb_context *ctx;
    struct size size[SIZES];
    unsigned next_size;
    struct nb_device *dev;
    int nranks;
    struct nb_ref **own; /* by number */
    unsigned nown, cap, nunmatched;
    size_t unmatched_bytes; /* of those */
    unsigned refused;       /* new blocks while unmatched references had all their bytes */
    int last;               /* number of the last operation's reference, or -1 */
    int last_new;           /* it did not match, and will be written with other content */
    int peers_full;         /* a receiver had no memory: make no more references */
    struct peer_ref **peer; /* [owner][number] */
    unsigned *npeer;
    size_t bytes;
};

struct nb_refs *nb_refs_create(struct nb_context *ctx, struct nb_device *dev, int nranks)
{
    struct nb_refs *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->ctx = ctx;
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
    if (nb_budget_take(r->ctx->budgets, NB_BUDGET_REFERENCE, bytes))
        return NULL;
    p = r->dev->ops->alloc(r->dev, NB_PLACE_STATE, bytes);
    if (!p)
        nb_budget_give(r->ctx->budgets, NB_BUDGET_REFERENCE, bytes);
    else
        r->bytes += bytes;
    return p;
}

static void give(struct nb_refs *r, uint8_t *p, size_t bytes)
{
    if (!p)
        return;
    r->dev->ops->free(r->dev, NB_PLACE_STATE, p, bytes);
    nb_budget_give(r->ctx->budgets, NB_BUDGET_REFERENCE, bytes);
    r->bytes -= bytes;
}

void nb_refs_destroy(struct nb_refs *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < r->nown; i++) {
        give(r, r->own[i]->data, r->own[i]->bytes);
        free(r->own[i]->parts.part);
        free(r->own[i]->before.part);
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

/* Return whether some receiver has yet to answer whether it holds the content. */
static int unanswered(const struct nb_refs *r, const struct nb_ref *ref)
{
    return ref->version && ref->answers < (unsigned)r->nranks - 1;
}

/* Return whether all receivers have answered, and some do not hold the content. */
static int lost(const struct nb_refs *r, const struct nb_ref *ref)
{
    return ref->version && !unanswered(r, ref) && ref->confirms < (unsigned)r->nranks - 1;
}

/* Try first the references that have followed the last operation's one before. Jobs gather in the same order
 * step after step, or alternate between two orders. The order also distinguishes blocks whose first parts are
 * equal (fresh layer norms). */
void nb_refs_seek(const struct nb_refs *r, struct nb_ref_search *s)
{
    s->next = 0;
    s->found = -1;
    s->most = s->second = 0;
    s->tried = r->last < 0 ? NB_REF_FOLLOWERS : 0;
}

bool nb_refs_ask(const struct nb_refs *r, struct nb_ref_search *s, const void **there)
{
    const struct nb_ref *ref;

    while (s->tried < NB_REF_FOLLOWERS || s->next < r->nown) {
        const bool follower = s->tried < NB_REF_FOLLOWERS;
        const int number = follower ? r->own[r->last]->follower[s->tried] : (int)s->next++;
        ref = number < 0 ? NULL : r->own[number];
        if (ref && ref->bytes == s->bytes && ref->complete) {
            s->asked = (unsigned)number;
            *there = ref->data + s->offset;
            return true;
        }
        s->tried += follower;
    }
    if (s->most < LIKE_ENOUGH && (s->most < LIKE_LEAST || s->most - s->second < LIKE_MARGIN))
        s->found = -1;
    return false;
}

void nb_refs_answer(const struct nb_refs *r, struct nb_ref_search *s, const struct nb_similarity *near)
{
    const double like = nb_likeness_of(near);

    if (s->tried < NB_REF_FOLLOWERS && like < LIKE_ENOUGH) {
        s->tried++; /* its turn comes again */
        return;
    }
    if (s->found < 0 || like > s->most) {
        s->second = s->most;
        s->most = like;
        s->found = (int)s->asked;
        if (s->tried < NB_REF_FOLLOWERS)
            s->next = r->nown; /* skip the remaining references */
    } else if (like > s->second) {
        s->second = like;
    }
    s->tried = NB_REF_FOLLOWERS;
}

/* Note that reference `reference` was picked after `before`. */
static void note_follower(struct nb_ref *before, int number)
{
    if (before->follower[0] == number)
        return;
    before->follower[1] = before->follower[0];
    before->follower[0] = number;
}

static void set_matched(struct nb_refs *r, struct nb_ref *ref, int matched)
{
    if (ref->matched == matched)
        return;
    ref->matched = matched;
    r->nunmatched += matched ? -1u : 1u;
    r->unmatched_bytes += matched ? -ref->bytes : ref->bytes;
}

/* Return whether unmatched references may take `more` bytes more. */
static bool may_grow(const struct nb_refs *r, size_t more)
{
    const size_t budget = (size_t)r->ctx->params->ref_max_mb << 20;
    const size_t part = budget / UNMATCHED_PART < UNMATCHED_LEAST ? UNMATCHED_LEAST : budget / UNMATCHED_PART;

    return r->nunmatched == 0 || (r->unmatched_bytes + more) * (size_t)r->nranks <= part;
}

/* Return the longest unused reference that has not matched and can take a block of this size: one of the
 * size, or any with `other`, which no receiver can ask for any more. */
static struct nb_ref *find_unused(const struct nb_refs *r, size_t bytes, bool other)
{
    struct nb_ref *found = NULL;

    for (unsigned i = 0; i < r->nown; i++) {
        struct nb_ref *ref = r->own[i];
        if ((other ? ref->bytes > bytes && !unanswered(r, ref) && r->last != (int)i : ref->bytes == bytes) &&
            !ref->matched && !lost(r, ref) && (!found || ref->used_op < found->used_op))
            found = ref;
    }
    return found;
}

/* Let a reference have another size. Return false when memory is short. */
static bool resize(struct nb_refs *r, struct nb_ref *ref, size_t bytes)
{
    uint8_t *data = take(r, bytes);

    if (!data)
        return false;
    give(r, ref->data, ref->bytes);
    r->unmatched_bytes -= ref->bytes - bytes;
    ref->data = data;
    ref->bytes = bytes;
    ref->complete = 0;
    ref->filled = 0;
    ref->jump = (struct nb_jump){0};
    ref->parts.n = ref->before.n = 0;
    return true;
}

/* Return a reference to write new content into: a new one, or the longest unused of the unmatched ones. */
static struct nb_ref *place_new(struct nb_refs *r, size_t bytes, uint64_t opno)
{
    struct nb_ref *ref = NULL;

    for (unsigned i = 0; i < r->nown; i++)
        if (r->own[i]->matched && opno - r->own[i]->used_op > STOPPED_OPS)
            set_matched(r, r->own[i], 0);
    if (!may_grow(r, bytes) && ++r->refused % REPLACE_EVERY)
        return NULL;
    if (r->nunmatched < MAX_UNMATCHED && r->nown < MAX_SLOTS && !r->peers_full && may_grow(r, bytes)) {
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
            ref->number = r->nown;
            ref->bytes = bytes;
            ref->follower[0] = ref->follower[1] = -1;
            r->own[r->nown++] = ref;
            r->nunmatched++;
            r->unmatched_bytes += bytes;
            return ref;
        }
        free(ref);
    }
    ref = find_unused(r, bytes, false);
    if (ref)
        return ref;
    ref = find_unused(r, bytes, true);
    return ref && resize(r, ref, bytes) ? ref : NULL;
}

static struct size *size_of(struct nb_refs *r, size_t bytes)
{
    for (unsigned i = 0; i < SIZES; i++)
        if (r->size[i].bytes == bytes)
            return &r->size[i];
    r->next_size = (r->next_size + 1) % SIZES;
    r->size[r->next_size] = (struct size){.bytes = bytes};
    return &r->size[r->next_size];
}

int nb_refs_news(const struct nb_refs *r, size_t bytes)
{
    for (unsigned i = 0; i < SIZES; i++)
        if (r->size[i].bytes == bytes && r->size[i].before > NEWS_USUAL)
            return 0;
    for (unsigned i = 0; i < r->nown; i++)
        if (r->own[i]->bytes == bytes && nb_jump_steady(&r->own[i]->jump))
            return 1;
    return 0;
}

enum nb_ref_outcome nb_refs_pick(struct nb_refs *r, const struct nb_ref_search *search, uint64_t opno,
                                 struct nb_ref **out)
{
    const int found = search->found;
    struct size *size = size_of(r, search->bytes);
    struct nb_ref *ref;

    *out = NULL;
    size->before = size->news;
    size->news += NEWS_RATE * ((found < 0 ? 1.0f : 0.0f) - size->news);
    if (found >= 0) {
        ref = r->own[found];
        set_matched(r, ref, 1);
    } else {
        ref = place_new(r, search->bytes, opno);
        if (!ref)
            return NB_REF_NONE;
    }
    ref->used_op = opno;
    if (r->last >= 0)
        note_follower(r->own[r->last], (int)ref->number);
    r->last = (int)ref->number;
    r->last_new = found < 0;
    return nb_refs_picked(r, out);
}

enum nb_ref_outcome nb_refs_picked(const struct nb_refs *r, struct nb_ref **out)
{
    struct nb_ref *ref = r->own[r->last];

    *out = NULL;
    if (unanswered(r, ref))
        return NB_REF_WAIT;
    if (lost(r, ref))
        return r->last_new ? NB_REF_NONE : NB_REF_UNCONFIRMED;
    *out = ref;
    return r->last_new ? NB_REF_NEW : NB_REF_HIT;
}

struct nb_ref *nb_refs_last(const struct nb_refs *r)
{
    return r->last >= 0 ? r->own[r->last] : NULL;
}

/* ---- receivers' content that differs from the source --------------------------------------------------- */

static void begin_parts(struct nb_ref *ref, uint64_t opno)
{
    struct nb_ref_parts old = ref->before;

    if (ref->parts_op == opno + 1)
        return;
    ref->before = ref->parts;
    ref->before.at = 0;
    ref->parts = old;
    ref->parts.n = 0;
    ref->parts_op = opno + 1; /* 0: no operation yet */
}

static int reserve(struct nb_ref_parts *p, size_t more)
{
    size_t cap = p->cap ? p->cap : 4;
    struct nb_ref_part *part;

    while (cap < p->n + more)
        cap *= 2;
    if (cap == p->cap)
        return 0;
    part = realloc(p->part, cap * sizeof(*part));
    if (!part)
        return -ENOMEM;
    p->part = part;
    p->cap = cap;
    return 0;
}

static size_t parts_of(size_t bytes)
{
    return bytes / PART_BYTES + 2;
}

/* Return the bytes of a range's part that begins at `offset`: up to the next multiple. */
static size_t part_bytes(size_t offset, size_t end)
{
    const size_t next = (offset / PART_BYTES + 1) * PART_BYTES;

    return (next < end ? next : end) - offset;
}

bool nb_refs_source_noted(struct nb_ref *ref, uint64_t opno)
{
    begin_parts(ref, opno);
    return ref->before.n != 0;
}

static void begin_range(struct nb_ref_range *range, size_t offset, size_t bytes)
{
    range->offset = range->at = offset;
    range->bytes = bytes;
    range->part = 0;
}

/* Go to the range's next part. Return false at its end. */
static bool next_part(struct nb_ref_range *range)
{
    const size_t end = range->offset + range->bytes;

    range->at += range->part;
    range->part = range->at < end ? part_bytes(range->at, end) : 0;
    return range->part > 0;
}

/* Return the note about bytes of the current part. NULL means that the reference's content was delivered. */
static const struct nb_ref_part *noted(const struct nb_ref *ref, const struct nb_ref_range *range)
{
    const struct nb_ref_parts *b = &ref->before;

    return b->at < b->n && b->part[b->at].offset < range->at + range->part ? b->part + b->at : NULL;
}

static void found(struct nb_ref_range *range, enum nb_ref_source one)
{
    if (one == NB_REF_CHANGED || range->all == NB_REF_HELD)
        range->all = one;
}

void nb_refs_source(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes)
{
    begin_range(range, offset, bytes);
    range->all = NB_REF_HELD;
    range->kept = ref->parts.n;
}

bool nb_refs_source_ask(struct nb_ref *ref, struct nb_ref_range *range)
{
    struct nb_ref_parts *b = &ref->before;
    const struct nb_ref_part *p;

    while (range->all != NB_REF_CHANGED && next_part(range)) {
        while (b->at < b->n && b->part[b->at].offset + b->part[b->at].bytes <= range->at)
            b->at++;
        p = noted(ref, range);
        range->there = p ? NULL : ref->data + range->at;
        if (!p || (p->offset == range->at && p->bytes == range->part))
            return true;
        found(range, NB_REF_CHANGED);
    }
    if (range->all != NB_REF_HELD)
        ref->parts.n = range->kept; /* receivers will hold something else */
    return false;
}

void nb_refs_source_answer(struct nb_ref *ref, struct nb_ref_range *range)
{
    const struct nb_ref_part *p = noted(ref, range);

    if (!p) {
        found(range, range->seen.equal ? NB_REF_HELD : NB_REF_CHANGED);
    } else if (p->hash != range->seen.hash) {
        found(range, NB_REF_CHANGED);
    } else {
        if (p->how == NB_REF_HELD && !reserve(&ref->parts, 1)) /* while it stays the same */
            ref->parts.part[ref->parts.n++] = *p;
        found(range, p->how);
    }
}

int nb_refs_may_approximate(struct nb_ref *ref, size_t bytes)
{
    return reserve(&ref->parts, parts_of(bytes)) == 0;
}

void nb_refs_note(struct nb_ref *ref, struct nb_ref_range *range, size_t offset, size_t bytes,
                  enum nb_ref_source how)
{
    begin_range(range, offset, reserve(&ref->parts, parts_of(bytes)) ? 0 : bytes);
    range->all = how;
}

bool nb_refs_note_ask(struct nb_ref_range *range)
{
    range->there = NULL;
    return next_part(range);
}

void nb_refs_note_answer(struct nb_ref *ref, struct nb_ref_range *range)
{
    ref->parts.part[ref->parts.n++] = (struct nb_ref_part){
        .offset = range->at, .hash = range->seen.hash, .bytes = (uint32_t)range->part, .how = range->all};
}

/* ---- contents ------------------------------------------------------------------------------------------ */

uint8_t *nb_refs_write(struct nb_ref *ref, size_t offset, size_t bytes, uint64_t opno)
{
    if (ref->last_op != opno || ref->version == 0) {
        ref->last_op = opno;
        ref->version++;
        ref->complete = 0;
        ref->confirms = ref->answers = 0;
    }
    begin_parts(ref, opno);
    ref->filled = offset + bytes;
    if (ref->filled == ref->bytes)
        ref->complete = 1;
    return ref->data + offset;
}

void nb_refs_confirmed(struct nb_refs *r, uint64_t opno, int kept, unsigned receivers)
{
    for (unsigned i = 0; i < r->nown; i++) {
        struct nb_ref *ref = r->own[i];
        if (ref->version == 0 || ref->last_op != opno)
            continue;
        ref->answers += receivers;
        if (kept)
            ref->confirms += receivers;
        else
            r->peers_full = 1; /* only content that all receivers hold can be a reference */
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
        if (unanswered(r, r->own[i]))
            return 1;
    return 0;
}

uint64_t nb_refs_awaited(const struct nb_refs *r)
{
    uint64_t newest = 0;

    for (unsigned i = 0; i < r->nown; i++)
        if (unanswered(r, r->own[i]) && r->own[i]->last_op + 1 > newest)
            newest = r->own[i]->last_op + 1;
    return newest;
}

/* ---- receiver -------------------------------------------------------------------------------------- */

uint8_t *nb_refs_of_peer(struct nb_refs *r, int owner, uint32_t number, size_t bytes, int make)
{
    struct peer_ref *p;

    if (number >= MAX_SLOTS)
        return NULL;
    if (number >= r->npeer[owner]) {
        unsigned n = number + 16;
        if (!make)
            return NULL;
        p = realloc(r->peer[owner], n * sizeof(*p));
        if (!p)
            return NULL;
        memset(p + r->npeer[owner], 0, (n - r->npeer[owner]) * sizeof(*p));
        r->peer[owner] = p;
        r->npeer[owner] = n;
    }
    p = &r->peer[owner][number];
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
