/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognition of messages whose content comes again, a little changed: weights that a job sends every few
 * steps. A place stands for one message of such a round and holds a sample of its content. Rounds repeat in
 * the same order. So the message after place i is compared with place i + 1, or with the first at the end.
 * Only where that fails, some messages are compared with all places.
 */
#include "net/tcp/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define PLACES_MAX 16384u
#define NEAR 16           /* distance up to which two samples are alike, in BF16's last places */
#define SEARCH_COST 64u   /* places to compare with an unknown message, on average */
#define FIRST_PLACES 256u /* allocated at first */

/* Take samples at equal distances. A sample is the upper half of an aligned word: a BF16 or FP16 value, or
 * sign, exponent and highest bits of an FP32 value. */
static void take_picks(const uint8_t *data, size_t size, uint16_t pick[NB_TCP_PICKS])
{
    const size_t words = size / 4;

    for (size_t i = 0; i < NB_TCP_PICKS; i++)
        pick[i] = nb_get16(data + 4 * ((2 * i + 1) * words / (2 * NB_TCP_PICKS)) + 2);
}

/* Return whether most samples are alike. Few samples of different weights are, since half of them differ in
 * sign and most of the others in exponent. */
static bool alike(const struct nb_tcp_place *place, size_t size, const uint16_t pick[NB_TCP_PICKS])
{
    unsigned near = 0;

    if (place->size != size)
        return false;
    for (unsigned i = 0; i < NB_TCP_PICKS; i++) {
        near += (unsigned)(abs((int)place->pick[i] - (int)pick[i]) <= NEAR);
        if (i == NB_TCP_PICKS / 4 && near < NB_TCP_PICKS / 8)
            return false;
    }
    return near >= NB_TCP_PICKS / 2;
}

static struct nb_tcp_place *found(struct nb_tcp_places *p, unsigned i)
{
    p->next = i + 1;
    p->unknown = 0;
    p->found++;
    return &p->at[i];
}

static int grow(struct nb_tcp_places *p)
{
    const unsigned cap = p->cap ? 2 * p->cap : FIRST_PLACES;
    struct nb_tcp_place *at = realloc(p->at, cap * sizeof(*at));

    if (!at)
        return 0;
    p->at = at;
    p->cap = cap;
    return 1;
}

/* Forget the places whose content is not kept. */
static void forget(struct nb_tcp_places *p)
{
    unsigned n = 0;

    for (unsigned i = 0; i < p->n; i++)
        if (p->at[i].slot != NB_TCP_NO_SLOT)
            p->at[n++] = p->at[i];
    p->n = n;
    p->next = n;
}

/* Add a place after the others. Return NULL where there is no room. */
static struct nb_tcp_place *add(struct nb_tcp_places *p, size_t size)
{
    if (p->n == PLACES_MAX) {
        p->hopeless = p->found == 0;
        p->found = 0;
        forget(p);
    }
    if (p->hopeless || p->n == PLACES_MAX || (p->n == p->cap && !grow(p)))
        return NULL;
    p->at[p->n] = (struct nb_tcp_place){.size = size, .slot = NB_TCP_NO_SLOT};
    p->next = ++p->n;
    return &p->at[p->n - 1];
}

static struct nb_tcp_place *find(struct nb_tcp_places *p, size_t size, const uint16_t pick[NB_TCP_PICKS])
{
    if (p->next >= p->n)
        p->next = 0;
    if (p->n && alike(&p->at[p->next], size, pick))
        return found(p, p->next);
    if (p->unknown++ % (1 + p->n / SEARCH_COST) == 0)
        for (unsigned i = 0; i < p->n; i++)
            if (alike(&p->at[i], size, pick))
                return found(p, i);
    return NULL;
}

struct nb_tcp_place *nb_tcp_place_of(struct nb_tcp_places *p, const void *data, size_t size, bool *known)
{
    uint16_t pick[NB_TCP_PICKS];
    struct nb_tcp_place *place;

    take_picks(data, size, pick);
    place = find(p, size, pick);
    *known = place != NULL;
    if (!place)
        place = add(p, size);
    if (place)
        memcpy(place->pick, pick, sizeof(pick));
    return place;
}

struct nb_tcp_place *nb_tcp_place_of_tag(struct nb_tcp_places *p, int32_t tag, size_t size)
{
    struct nb_tcp_place *place;

    for (unsigned i = 0; i < p->n; i++) { /* from the expected place on */
        const unsigned at = (p->next + i) % p->n;
        if (p->at[at].tag == tag && p->at[at].size == size)
            return found(p, at);
    }
    place = add(p, size);
    if (place)
        place->tag = tag;
    return place;
}

void nb_tcp_places_free(struct nb_tcp_places *p)
{
    free(p->at);
    memset(p, 0, sizeof(*p));
}
