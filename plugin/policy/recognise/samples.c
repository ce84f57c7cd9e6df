/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has this content, or nearly this content, been seen before? A book keeps the samples of the last few
 * operations of a signature, and of some older ones, so that blocks of one size that take turns are found
 * again. Inside of classify.c.
 *
 * Vetoes from the values of what is summed: gradients have both signs and are not integers. Squares, counts
 * and histograms are worth nothing with a value of the wrong sign, or a broken one.
 *
 * What is counted fades, so that a change of content shows after some ten calls. Pure; the caller serialises.
 */
#include "policy/recognise/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/codec.h"

#define CLIP 3.0f  /* times the median magnitude */
#define STALE 256u /* look-ups: an older entry that was kept and not met again makes room */

/* The median of magnitudes, of those that are not 0; 0 when all are. */
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

/* Without outliers: two gradients with a thousand times more in one value than in the others would be alike
 * for that value alone. Mean 0 and norm 1, so that a correlation is a dot product. 0 when the samples do not
 * vary, -1 when not finite. */
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

/* A place for new content among the recent ones. What is pushed out is kept where there is room. */
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
        for (unsigned i = NB_BOOK_RECENT; i < NB_BOOK_ENTRIES && !keep && out->matches; i++)
            if (!book->entry[i].matches)
                keep = &book->entry[i];
        if (keep)
            *keep = *out;
    }
    memset(out, 0, sizeof(*out));
    return out;
}

struct nb_book_match nb_book_find(struct nb_book *book, const float *samples, unsigned n)
{
    struct nb_book_match look = {.likeness = -1.0f};
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
        /* Blocks come in turn: the one behind the last found is tried first. */
        for (unsigned k = 0; k < NB_BOOK_ENTRIES; k++) {
            unsigned i = (book->hint + k) % NB_BOOK_ENTRIES;
            struct nb_sample *e = &book->entry[i];
            float likeness = e->last ? dot(value, e->value) : -1.0f;
            if (likeness > look.likeness)
                look.likeness = likeness;
            if (likeness >= NB_SAME_CONTENT) {
                look.found = e;
                book->hint = (i + 1) % NB_BOOK_ENTRIES;
                break;
            }
        }
    }
    if (look.found) {
        look.changed = look.found->hash != hash;
        look.found->matches++;
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

#define FADE 0.98f        /* a call */
#define ENOUGH 512.0f     /* samples that are not 0, before it is judged */
#define OTHER_SIGN 0.002f /* share of values */
#define WHOLE 0.99f
#define BITS_BEHIND \
    3 /* the point, that a value's type must have for an integer to be one by more than chance */

/* Values below this have so many bits behind the point. */
static float limit(enum nb_dtype type)
{
    static const int mantissa[NB_DTYPE_COUNT] = {[NB_F32] = 23, [NB_BF16] = 7, [NB_F16] = 10};

    return ldexpf(1.0f, mantissa[type] - BITS_BEHIND + 1);
}

void nb_content_note(struct nb_content *c, enum nb_dtype type, const float *samples, unsigned n)
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
    c->values = c->values * FADE + (float)(negative + positive);
    c->negative = c->negative * FADE + (float)negative;
    c->positive = c->positive * FADE + (float)positive;
    c->could_be_broken = c->could_be_broken * FADE + (float)could;
    c->integer = c->integer * FADE + (float)integer;
}

int nb_content_one_sign(const struct nb_content *c)
{
    return c->values >= ENOUGH && fminf(c->negative, c->positive) < OTHER_SIGN * c->values;
}

int nb_content_integers(const struct nb_content *c)
{
    return c->could_be_broken >= ENOUGH && c->integer >= WHOLE * c->could_be_broken;
}
