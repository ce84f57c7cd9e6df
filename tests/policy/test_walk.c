/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare policy/records/walk.c with NCCL's dealing of an all-reduce, done here chunk by chunk over many
 * combinations of bytes, channels, heads and chunk. Ranges that the walk calls values are values, and ranges
 * that it calls padding are padding, whatever facts are unknown. The places of windows tell operations apart.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "policy/records/records.h"
#include "tests/suite.h"

/* An operation as NCCL runs it on one head. */
struct deal {
    uint64_t bytes, chunk;
    unsigned channels, heads, head;
};

static uint64_t clamp(int64_t x, uint64_t hi)
{
    return x < 0 ? 0 : (uint64_t)x < hi ? (uint64_t)x : hi;
}

static uint64_t steps_of(const struct deal *d)
{
    uint64_t loop = (uint64_t)d->channels * d->heads * d->chunk;
    return (d->bytes + loop - 1) / loop;
}

/* Return the bytes of a chunk that the GPU fills. */
static uint64_t filled(const struct deal *d, uint64_t step, unsigned channel)
{
    uint64_t offset = ((step * d->channels + channel) * d->heads + d->head) * d->chunk;
    return clamp((int64_t)d->bytes - (int64_t)offset, d->chunk);
}

struct tally {
    uint64_t windows, unsure, values;
};

/* ck_assert reports to its parent each time, which is slow in inner loops. */
#define MUST(cond, ...) \
    do { \
        if (!(cond)) \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* Run `d` through the walk. `known` has the facts of the record. `after`: another operation came before. */
static void run(struct nb_walk *w, const struct deal *d, const struct nb_extent *known,
                const struct nb_extent *before, struct tally *tally)
{
    uint64_t steps = steps_of(d);

    for (uint64_t s = 0; s < steps; s++) {
        for (unsigned first = 0; first < d->channels; first += 8) {
            unsigned n = d->channels - first < 8 ? d->channels - first : 8;
            uint64_t bytes = n * d->chunk, at = first * d->chunk, values = 0, sure, most;
            unsigned slot = (unsigned)(s % 8);
            enum nb_walk_place place = nb_walk_place(w, slot, at, bytes);
            int begins = s == 0 && first == 0;

            if (place == NB_WALK_EITHER) {
                int ended = nb_walk_ended(w, begins ? before : known);
                if (ended < 0)
                    ck_assert((begins ? before : known)->heads & ((begins ? before : known)->heads - 1));
                place = ended < 0 ? (begins ? NB_WALK_BEGINS : NB_WALK_CONTINUES)
                        : ended   ? NB_WALK_BEGINS
                                  : NB_WALK_CONTINUES;
            }
            MUST(place == (begins ? NB_WALK_BEGINS : NB_WALK_CONTINUES),
                 "place %d at step %lu of %lu, channel %u of %u", place, (unsigned long)s,
                 (unsigned long)steps, first, d->channels);
            if (begins)
                nb_walk_begin(w);
            nb_walk_step(w, at, bytes);
            nb_walk_values(w, known, bytes, 4, &sure, &most);
            /* The values of a window come first and without gaps. */
            for (unsigned c = 0; c < n; c++) {
                uint64_t f = filled(d, s, first + c);
                MUST(f == 0 || values == c * d->chunk, "values are not a prefix");
                values += f;
            }
            MUST(sure <= values && values <= most && most <= bytes,
                 "B %lu C %u H %u h %u k %lu: step %lu channel %u has %lu, told %lu to %lu",
                 (unsigned long)d->bytes, d->channels, d->heads, d->head, (unsigned long)d->chunk,
                 (unsigned long)s, first, (unsigned long)values, (unsigned long)sure, (unsigned long)most);
            MUST(sure % 4 == 0 && most % 4 == 0, "not whole values");
            /* Steps before the last are full, which is certain once the heads are known. */
            if (s + 1 < steps && !(known->heads & (known->heads - 1)) && (d->channels <= 8 || w->chunk))
                MUST(sure == bytes, "a full step is not certain");
            tally->windows++;
            tally->unsure += most - sure;
            tally->values += values;
        }
    }
    ck_assert_uint_eq(w->steps, steps);
    ck_assert_uint_eq(w->cur, d->channels * d->chunk);
    ck_assert(nb_walk_heads(known, w->steps, w->cur) >> d->heads & 1);
    ck_assert_int_ne(nb_walk_ended(w, known), 0);
}

static uint64_t up_to(unsigned heads)
{
    return ((UINT64_C(1) << heads) - 1) << 1;
}

static const unsigned channel_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 32};
static const unsigned head_counts[] = {1, 2, 3, 4, 8};
static const uint64_t chunks[] = {512, 4096, 6144, 32768, 131072};

/* Return sizes around every edge of the dealing. */
static size_t sizes(const struct deal *d, uint64_t *out)
{
    uint64_t k = d->chunk, row = d->heads * k, loop = d->channels * row;
    size_t n = 0;

    for (uint64_t steps = 1; steps <= 17; steps += steps < 3    ? 1
                                                   : steps < 7  ? 4
                                                   : steps == 7 ? 1
                                                   : steps == 8 ? 1
                                                                : 4) {
        uint64_t base = (steps - 1) * loop;
        const uint64_t offsets[] = {4,
                                    k - 4,
                                    k,
                                    k + 4,
                                    row - 4,
                                    row,
                                    row + 4,
                                    row + k / 2 / 4 * 4,
                                    loop / 2 / 4 * 4,
                                    loop - k + 4,
                                    loop - 4,
                                    loop};
        for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
            if (offsets[i] <= loop)
                out[n++] = base + offsets[i];
    }
    return n;
}

/* Return the known facts. `mode` 0: all, 1: the number of heads only, 2: an upper bound of that number. */
static struct nb_extent extent_of(const struct deal *d, int mode)
{
    struct nb_extent e = {.bytes = d->bytes, .heads = UINT64_C(1) << d->heads, .head = (int)d->head};

    if (mode >= 1)
        e.head = -1;
    if (mode == 2)
        e.heads = up_to(8);
    return e;
}

START_TEST(brute_force)
{
    struct tally tally = {0};
    uint64_t size[512];

    for (size_t c = 0; c < sizeof(channel_counts) / sizeof(channel_counts[0]); c++)
        for (size_t h = 0; h < sizeof(head_counts) / sizeof(head_counts[0]); h++)
            for (size_t k = 0; k < sizeof(chunks) / sizeof(chunks[0]); k++) {
                struct deal d = {.chunk = chunks[k], .channels = channel_counts[c], .heads = head_counts[h]};
                size_t n = sizes(&d, size);
                for (size_t i = 0; i < n; i++)
                    for (d.head = 0; d.head < d.heads; d.head++) {
                        struct nb_walk w = {0};
                        struct nb_extent e;
                        d.bytes = size[i];
                        e = extent_of(&d, _i);
                        run(&w, &d, &e, &e, &tally);
                    }
            }
    ck_assert_uint_gt(tally.windows, 100000);
    if (_i == 0)
        printf("walk: %lu windows, all known: %lu of %lu value bytes unsure\n", (unsigned long)tally.windows,
               (unsigned long)tally.unsure, (unsigned long)tally.values);
}
END_TEST

/* With one head a node the walk is exact, even if all other facts are unknown. */
START_TEST(one_head_is_exact)
{
    struct tally tally = {0};
    uint64_t size[512];

    for (size_t c = 0; c < sizeof(channel_counts) / sizeof(channel_counts[0]); c++)
        for (size_t k = 0; k < sizeof(chunks) / sizeof(chunks[0]); k++) {
            struct deal d = {.chunk = chunks[k], .channels = channel_counts[c], .heads = 1};
            size_t n = sizes(&d, size);
            for (size_t i = 0; i < n; i++) {
                struct nb_walk w = {0};
                struct nb_extent e;
                d.bytes = size[i];
                e = extent_of(&d, 1);
                run(&w, &d, &e, &e, &tally);
            }
        }
    ck_assert_uint_eq(tally.unsure, 0);
}
END_TEST

/* Eight heads, an unknown one of them, an unknown chunk: at most two windows of an operation stay
 * uncertain. */
START_TEST(little_stays_unsure)
{
    for (size_t c = 0; c < sizeof(channel_counts) / sizeof(channel_counts[0]); c++)
        for (uint64_t mb = 1; mb <= 64; mb *= 4) {
            struct deal d = {
                .bytes = mb << 20, .chunk = 32768, .channels = channel_counts[c], .heads = 8, .head = 5};
            struct tally tally = {0};
            struct nb_walk w = {0};
            struct nb_extent e = extent_of(&d, 1);
            uint64_t window = (d.channels < 8 ? d.channels : 8) * d.chunk;
            run(&w, &d, &e, &e, &tally);
            ck_assert_uint_le(tally.unsure, 2 * window);
        }
}
END_TEST

/* Random operations one after the other in one region: the walk finds every boundary. */
START_TEST(boundaries)
{
    struct nb_walk w = {0};
    struct nb_extent before = {0};
    struct tally tally = {0};
    uint64_t seed = 88172645463325252ull + (uint64_t)_i;

    for (int i = 0; i < 4000; i++) {
        struct deal d;
        struct nb_extent e;
        uint64_t x;
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        x = seed;
        d.channels = channel_counts[x % 14];
        d.heads = head_counts[x / 14 % 5];
        d.head = (unsigned)(x / 70 % d.heads);
        d.chunk = chunks[x / 700 % 3];
        d.bytes = 4 * (1 + x / 10000 % (d.channels * d.heads * d.chunk * 18 / 4));
        if (x >> 60 == 0) /* whole numbers of eight steps: the slot gives no hint */
            d.bytes = (uint64_t)d.channels * d.heads * d.chunk * 8 * (1 + x % 2);
        e = extent_of(&d, 1);
        run(&w, &d, &e, &before, &tally);
        before = e;
    }
}
END_TEST

START_TEST(no_place)
{
    struct nb_walk w = {0};

    ck_assert_int_eq(nb_walk_place(&w, 8, 0, 4096), NB_WALK_NOWHERE); /* outside the region */
    /* in the middle, without an operation */
    ck_assert_int_eq(nb_walk_place(&w, 1, 0, 4096), NB_WALK_NOWHERE);
    ck_assert_int_eq(nb_walk_place(&w, 0, 512, 4096), NB_WALK_NOWHERE);
    ck_assert_int_eq(nb_walk_place(&w, 0, 0, 0), NB_WALK_NOWHERE);
    ck_assert_int_eq(nb_walk_place(&w, 0, 0, 4096), NB_WALK_BEGINS);
    nb_walk_begin(&w);
    nb_walk_step(&w, 0, 4096);
    ck_assert_int_eq(nb_walk_place(&w, 1, 0, 4096), NB_WALK_CONTINUES);
    ck_assert_int_eq(nb_walk_place(&w, 1, 0, 2048), NB_WALK_NOWHERE);     /* steps have equal places */
    ck_assert_int_eq(nb_walk_place(&w, 2, 0, 4096), NB_WALK_NOWHERE);     /* a step is missing */
    ck_assert_int_eq(nb_walk_place(&w, 0, 4096, 512), NB_WALK_CONTINUES); /* a second group */
    ck_assert_int_eq(nb_walk_place(&w, 0, 2048, 512), NB_WALK_NOWHERE);
    ck_assert_int_eq(nb_walk_place(&w, 0, 4096, 8192), NB_WALK_NOWHERE); /* larger than the first one */
    ck_assert_int_eq(nb_walk_place(&w, 0, 0, 512), NB_WALK_BEGINS);
}
END_TEST

/* Where the windows contradict the chunk that the record names, all values are uncertain. */
START_TEST(contradicted_chunk)
{
    struct nb_walk w = {0};
    struct nb_extent e = {.bytes = 1 << 20, .heads = 2, .head = 0, .chunk = 4096};
    uint64_t sure, most;

    nb_walk_begin(&w);
    nb_walk_step(&w, 0, 16 * 4096);
    nb_walk_values(&w, &e, 16 * 4096, 4, &sure, &most);
    ck_assert_uint_eq(sure, 0);
    ck_assert_uint_eq(most, 16 * 4096);
}
END_TEST

SUITE_MAIN("walk", LOOP(brute_force, 0, 3), TEST(one_head_is_exact), TEST(little_stays_unsure),
           LOOP(boundaries, 0, 4), TEST(no_place), TEST(contradicted_chunk))
