/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of earlier operations. A book finds whether this content, or nearly this content, has come before.
 * It keeps the samples of a signature's last few operations and of some older ones, so that blocks of one
 * size that take turns are found again. Inside of classify.c.
 *
 * Vetoes from the values of a sum: gradients have both signs and are not integers. Squares, counts and
 * histograms are useless with a value of the wrong sign, or a broken one.
 *
 * A call whose samples are all such values stays raw by itself. The counts of a signature find calls with few
 * values, or with some of the other sign. They fade, so that a change of content shows after some ten calls.
 *
 * The module is pure, and the caller serializes the calls.
 */
#include "policy/recognise/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/codec.h"

#define CLIP 3.0f  /* times the median magnitude */
#define STALE 256u /* look-ups after which a kept entry without a match makes room */

/* Return the median magnitude of the values other than 0, or 0 when all are 0. */
static float median(const float *value, unsigned n)
{
    float a[NB_CLASSIFY_SAMPLES];
    unsigned m = 0, low = 0, high, middle;

    for (unsigned i = 0; i < n; i++)
        if (value[i] != 0.0f)
            a[m++] = fabsf(value[i]);
    if (m == 0)
        return 0.0f;
    middle = m / 2;
    high = m - 1;
    while (low < high) { /* narrow down to the place of the middle one */
        float pivot = a[(low + high) / 2];
        unsigned i = low, j = high;
        while (i <= j) {
            while (a[i] < pivot)
                i++;
            while (a[j] > pivot)
                j--;
            if (i <= j) {
                float t = a[i];
                a[i++] = a[j];
                a[j] = t;
                if (j == 0)
                    break;
                j--;
            }
        }
        if (middle <= j)
            high = j;
        else if (middle >= i)
            low = i;
        else
            break;
    }
    return a[middle];
}

/* Normalize samples to mean 0 and norm 1, so that a correlation is a dot product. Clip outliers first: two
 * gradients with one value a thousand times larger than the rest would otherwise be alike for that value
 * alone. Return 1, 0 when the samples do not vary, or -1 when one is not finite. */
static int normalise(const float *samples, unsigned n, float out[NB_CLASSIFY_SAMPLES], uint64_t *hash)
{
    unsigned take = n < NB_CLASSIFY_SAMPLES ? n : NB_CLASSIFY_SAMPLES;
    double sum = 0.0, square = 0.0;
    float most;

    memset(out, 0, NB_CLASSIFY_SAMPLES * sizeof(*out));
    for (unsigned i = 0; i < take; i++) {
        out[i] = samples[(uint64_t)i * n / take];
        if (!isfinite(out[i]))
            return -1;
    }
    *hash = nb_hash64(out, take * sizeof(*out), n);
    most = CLIP * median(out, take);
    for (unsigned i = 0; i < take; i++) {
        out[i] = out[i] > most ? most : out[i] < -most ? -most : out[i];
        sum += out[i];
    }
    for (unsigned i = 0; i < take; i++) {
        double d = out[i] - sum / take;
        square += d * d;
    }
    if (!(square > 0.0))
        memset(out, 0, NB_CLASSIFY_SAMPLES * sizeof(*out));
    else
        for (unsigned i = 0; i < take; i++)
            out[i] = (float)((out[i] - sum / take) / sqrt(square));
    return square > 0.0;
}

static float dot(const float *a, const float *b)
{
    float lane[16] = {0}, sum = 0.0f;

    for (unsigned i = 0; i < NB_CLASSIFY_SAMPLES; i += 16)
        for (unsigned k = 0; k < 16; k++)
            lane[k] += a[i + k] * b[i + k];
    for (unsigned k = 0; k < 16; k++)
        sum += lane[k];
    return sum;
}

static void note(struct nb_book *book, struct nb_sample *at, const float *value, uint64_t hash)
{
    memcpy(at->value, value, sizeof(at->value));
    at->hash = hash;
    at->last = book->looks;
}

/* Return a place for new content among the recent entries. The entry that it pushes out is kept where there
 * is room. */
static struct nb_sample *make_room(struct nb_book *book)
{
    struct nb_sample *out = &book->entry[book->recent], *keep = NULL;

    book->recent = (book->recent + 1) % NB_BOOK_RECENT;
    if (out->last) {
        for (unsigned i = NB_BOOK_RECENT; i < NB_BOOK_ENTRIES && !keep; i++) {
            struct nb_sample *e = &book->entry[i];
            if (!e->last || book->looks - e->last > STALE)
                keep = e;
        }
        if (keep)
            *keep = *out;
    }
    memset(out, 0, sizeof(*out));
    return out;
}

struct nb_book_match nb_book_find(struct nb_book *book, const float *samples, unsigned n)
{
    struct nb_book_match look = {0};
    float value[NB_CLASSIFY_SAMPLES];
    uint64_t hash;
    int varies = n >= 2 && samples ? normalise(samples, n, value, &hash) : -1;

    if (varies >= 0 && !book->entry)
        book->entry = calloc(NB_BOOK_ENTRIES, sizeof(*book->entry));
    if (varies < 0 || !book->entry)
        return look;
    look.varies = varies;
    book->looks++;
    if (varies) {
        /* Blocks come in turn: begin behind the last match. */
        for (unsigned k = 0; k < NB_BOOK_ENTRIES; k++) {
            unsigned i = (book->hint + k) % NB_BOOK_ENTRIES;
            struct nb_sample *e = &book->entry[i];
            float likeness = e->last ? dot(value, e->value) : -1.0f;
            if (likeness >= NB_SAME_CONTENT) {
                look.found = e;
                book->hint = (i + 1) % NB_BOOK_ENTRIES;
                break;
            }
        }
    }
    if (look.found) {
        look.changed = look.found->hash != hash;
        look.found->changes += (uint32_t)look.changed;
        note(book, look.found, value, hash);
    } else {
        note(book, make_room(book), value, hash);
    }
    return look;
}

void nb_book_clear(struct nb_book *book)
{
    free(book->entry);
    *book = (struct nb_book){0};
}

#define FADE 0.98f    /* a call */
#define ENOUGH 512.0f /* samples other than 0 before a judgement */
/* By chance a gradient's call looks so once in two billion calls: a sign is a bit, an integer BITS_BEHIND. */
#define BITS_OF_ONE 31.0f
#define OTHER_SIGN 0.002f /* share of values */
#define WHOLE 0.99f
#define BITS_BEHIND \
    3 /* bits behind the point that a value's type must have, so that an integer is more than chance */

/* Return the magnitude below which values have BITS_BEHIND bits behind the point. */
static float limit(enum nb_dtype type)
{
    static const int mantissa[NB_DTYPE_COUNT] = {[NB_F32] = 23, [NB_BF16] = 7, [NB_F16] = 10};

    return ldexpf(1.0f, mantissa[type] - BITS_BEHIND + 1);
}

struct nb_content nb_content_of(enum nb_dtype type, const float *samples, unsigned n)
{
    const float most = limit(type);
    unsigned negative = 0, positive = 0, could = 0, integer = 0;

    for (unsigned i = 0; i < n; i++) {
        const float v = samples[i], size = fabsf(v);
        negative += v < 0.0f;
        positive += v > 0.0f;
        could += v != 0.0f && size < most;
        integer += v != 0.0f && size < most && truncf(v) == v;
    }
    return (struct nb_content){(float)(negative + positive), (float)negative, (float)positive, (float)could,
                               (float)integer};
}

void nb_content_add(struct nb_content *c, const struct nb_content *call)
{
    c->values = c->values * FADE + call->values;
    c->negative = c->negative * FADE + call->negative;
    c->positive = c->positive * FADE + call->positive;
    c->could_be_broken = c->could_be_broken * FADE + call->could_be_broken;
    c->integer = c->integer * FADE + call->integer;
}

float nb_content_size(const float *samples, unsigned n)
{
    double sum = 0;
    unsigned values = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!isfinite(samples[i]))
            continue;
        sum += (double)samples[i] * (double)samples[i];
        values += samples[i] != 0.0f;
    }
    return values ? (float)sqrt(sum / values) : 0.0f;
}

static float other_sign(const struct nb_content *c)
{
    return fminf(c->negative, c->positive);
}

int nb_content_one_sign(const struct nb_content *c, const struct nb_content *call)
{
    return (call->values > BITS_OF_ONE && other_sign(call) == 0.0f) ||
           (c->values >= ENOUGH && other_sign(c) < OTHER_SIGN * c->values);
}

int nb_content_integers(const struct nb_content *c, const struct nb_content *call)
{
    return (call->could_be_broken * BITS_BEHIND > BITS_OF_ONE && call->integer == call->could_be_broken) ||
           (c->could_be_broken >= ENOUGH && c->integer >= WHOLE * c->could_be_broken);
}
