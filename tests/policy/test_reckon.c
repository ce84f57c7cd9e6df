/* SPDX-License-Identifier: Apache-2.0 */
/* The reckoning: its edges, and that it moves one way with each fact. tests/scale/test-scale.sh compares its
 * times with the simulated engine's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/params.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"
#include "tests/suite.h"

#define MIB 1048576.0

static const enum nb_func sums[] = {NB_FUNC_REDUCE_SCATTER, NB_FUNC_ALL_REDUCE};
static const enum nb_func funcs[] = {NB_FUNC_REDUCE_SCATTER, NB_FUNC_ALL_REDUCE, NB_FUNC_ALL_GATHER};
static const uint32_t codecs[] = {NB_RECKON_PORTABLE, NB_RECKON_AVX2, NB_RECKON_AVX512};
/* Mbit/s, from a modem to more than exists. */
static const uint32_t rates[] = {1,     10,    100,    500,    1000,   2500,   10000,    25000,
                                 40000, 50000, 100000, 200000, 400000, 800000, 10000000, UINT32_MAX};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct nb_reckon_nodes group_of(int nodes)
{
    return (struct nb_reckon_nodes){
        .nodes = nodes, .schedule = NB_SCHEDULE_AUTO, .unit = 131072, .columns = nodes >= 32 ? 8 : 0};
}

static struct nb_reckoning reckon(uint32_t mbps, uint32_t codec, uint32_t workers, int nodes)
{
    const struct nb_reckon_facts facts = {.mbps = mbps, .codec = codec, .workers = workers};
    const struct nb_reckon_nodes group = group_of(nodes);
    struct nb_reckoning r;

    memset(&r, 0x55, sizeof(r));
    nb_reckon(&facts, &group, &r);
    return r;
}

/* Operations are coded at every size where a fact is unknown. */
START_TEST(unknown)
{
    const struct nb_reckoning none[] = {
        reckon(0, NB_RECKON_AVX512, 4, 4),      reckon(400000, NB_RECKON_UNKNOWN, 4, 4),
        reckon(400000, NB_RECKON_GPU, 4, 4),    reckon(400000, 4, 4, 4), /* of a future release */
        reckon(400000, NB_RECKON_AVX512, 0, 1), reckon(400000, NB_RECKON_AVX512, 0, 0)};
    char text[256];

    for (size_t i = 0; i < COUNT(none); i++) {
        ck_assert(!none[i].known);
        for (int func = 0; func < NB_FUNC_COUNT; func++)
            for (size_t value = 2; value <= 4; value += 2)
                ck_assert_uint_eq(nb_reckon_from(&none[i], (enum nb_func)func, value), 0);
        nb_reckon_text(&none[i], NB_FUNC_REDUCE_SCATTER, text, sizeof(text));
        ck_assert_str_eq(text, "coded");
    }
    for (size_t i = 0; i < COUNT(rates); i++) {
        const struct nb_reckoning r = reckon(rates[i], NB_RECKON_PORTABLE, 0, 4);

        ck_assert(r.known);
    }
}
END_TEST

/* A faster link never turns raw into coded, and never makes more sizes pay. A faster codec, or a codec with
 * more threads, never does the opposite. Every time is positive and finite. */
START_TEST(one_way)
{
    static const int nodes[] = {2, 3, 4, 5, 8, 16, 31, 32, 64, 1024, 4096};

    for (size_t n = 0; n < COUNT(nodes); n++)
        for (size_t c = 0; c < COUNT(codecs); c++)
            for (uint32_t workers = 0; workers <= 8; workers++)
                for (size_t i = 0; i < COUNT(rates); i++)
                    for (size_t k = 0; k < 2 * COUNT(funcs); k++) {
                        const enum nb_func func = funcs[k / 2];
                        const size_t value = k % 2 ? 4 : 2;
                        const struct nb_reckoning r = reckon(rates[i], codecs[c], workers, nodes[n]);
                        const uint64_t from = nb_reckon_from(&r, func, value);
                        struct nb_reckoning other;

                        ck_assert(r.known);
                        ck_assert(r.of[func][value > 2].times > 0 && isfinite(r.of[func][value > 2].times));
                        ck_assert((from == NB_RECKON_NEVER) == (r.of[func][value > 2].times < 1.1) ||
                                  from > 64 << 20);
                        if (i > 0) {
                            other = reckon(rates[i - 1], codecs[c], workers, nodes[n]);
                            ck_assert_msg(nb_reckon_from(&other, func, value) <= from,
                                          "%s of %zu bytes a value, %d nodes, %s with %u: %u and %u Mbit/s: "
                                          "from %llu and %llu",
                                          nb_func_name(func), value, nodes[n],
                                          nb_reckon_codec_name(codecs[c]), workers, rates[i - 1], rates[i],
                                          (unsigned long long)nb_reckon_from(&other, func, value),
                                          (unsigned long long)from);
                        }
                        if (c > 0 && func != NB_FUNC_ALL_GATHER) { /* AVX2's differences of FP32 are faster */
                            other = reckon(rates[i], codecs[c - 1], workers, nodes[n]);
                            ck_assert_uint_ge(nb_reckon_from(&other, func, value), from);
                        }
                    }
}
END_TEST

/* More threads help, and the text about them is true. */
START_TEST(threads)
{
    for (size_t c = 0; c < COUNT(codecs); c++)
        for (uint32_t workers = 0; workers < 8; workers++)
            for (size_t i = 0; i < COUNT(rates); i++)
                for (size_t k = 0; k < COUNT(funcs); k++) {
                    const struct nb_reckoning r = reckon(rates[i], codecs[c], workers, 4);
                    const struct nb_reckoned *what = &r.of[funcs[k]][0];
                    const struct nb_reckoning more =
                        reckon(rates[i], codecs[c], what->workers ? what->workers : workers, 4);

                    ck_assert_uint_le(what->workers, 6);
                    if (what->from != NB_RECKON_NEVER)
                        ck_assert_uint_eq(what->workers, 0);
                    else if (what->workers) {
                        ck_assert_uint_gt(what->workers, workers);
                        ck_assert(more.of[funcs[k]][0].from != NB_RECKON_NEVER);
                    }
                }
}
END_TEST

/* The ends of the scale: coding cannot gain on a link that takes no time, and gains the coded ratio on a link
 * that hardly moves. */
START_TEST(ends)
{
    const struct nb_reckon_nodes group = group_of(2);
    struct nb_cost_machine f =
        nb_reckon_machine(&(struct nb_reckon_facts){.mbps = 1000, .codec = NB_RECKON_AVX512}, 2);

    f.link = INFINITY;
    for (double bytes = 1; bytes <= 1024 * MIB; bytes *= 2)
        for (size_t k = 0; k < COUNT(sums); k++) {
            const double gain = nb_reckon_gain(&f, &group, sums[k], 2, bytes);
            ck_assert_msg(gain > 0 && gain <= 1, "%g bytes: %g", bytes, gain);
        }
    f.link = 1;
    for (double bytes = MIB; bytes <= 1024 * MIB; bytes *= 2)
        for (size_t k = 0; k < COUNT(sums); k++)
            ck_assert(fabs(nb_reckon_gain(&f, &group, sums[k], 2, bytes) * 0.268 - 1) < 0.02);
    /* A value or two are headers and latency: no gain, and sane numbers. */
    f.link = 125e6;
    for (double bytes = 1; bytes <= 64; bytes *= 2)
        for (size_t k = 0; k < COUNT(sums); k++)
            ck_assert(fabs(nb_reckon_gain(&f, &group, sums[k], 2, bytes) - 1) < 0.05);
}
END_TEST

/* On a slow link an all-reduce pays for results of 6 and 8 bits as much as they are longer. */
START_TEST(second_hop)
{
    const struct nb_cost_machine f = {
        .speed = {.encode = 1e12, .encode_feedback = 1e12, .decode_add = 1e12, .decode = 1e12},
        .copy = 1e12,
        .cores = 1,
        .link = 1e7};
    struct nb_reckon_nodes group = group_of(4);

    ck_assert_double_eq_tol(nb_reckon_gain(&f, &group, NB_FUNC_ALL_REDUCE, 2, 64 * MIB), 1 / 0.268, 0.1);
    group.second_bits = 6;
    ck_assert_double_eq_tol(nb_reckon_gain(&f, &group, NB_FUNC_ALL_REDUCE, 2, 64 * MIB), 2 / (0.268 + 0.393),
                            0.1);
    group.second_bits = 8;
    ck_assert_double_eq_tol(nb_reckon_gain(&f, &group, NB_FUNC_ALL_REDUCE, 2, 64 * MIB), 2 / (0.268 + 0.518),
                            0.1);
}
END_TEST

/* The known cases: one engine's thread is far slower than raw bytes at 400 Gbit/s, and faster at 10
 * Gbit/s. */
START_TEST(known_cases)
{
    const struct nb_reckoning fast = reckon(400000, NB_RECKON_AVX512, 0, 4),
                              slow = reckon(10000, NB_RECKON_AVX512, 0, 4);
    const struct nb_reckoning slower = reckon(500, NB_RECKON_AVX512, 0, 4),
                              portable = reckon(25000, NB_RECKON_PORTABLE, 2, 4);

    for (size_t k = 0; k < COUNT(funcs); k++) {
        ck_assert(nb_reckon_from(&fast, funcs[k], 2) == NB_RECKON_NEVER);
        ck_assert(nb_reckon_from(&portable, funcs[k], 2) == NB_RECKON_NEVER);
        ck_assert(!nb_reckon_pays(&fast, funcs[k]) && nb_reckon_pays(&slow, funcs[k]));
    }
    for (size_t k = 0; k < COUNT(sums); k++) {
        ck_assert_uint_le(nb_reckon_from(&slow, sums[k], 2), 262144);
        ck_assert(slow.of[sums[k]][0].times > 1.5 && slow.of[sums[k]][0].times < 3.8);
        /* As measured: never slower from 16 KiB on (docs/performance.md, "Small operations"). */
        ck_assert_uint_le(nb_reckon_from(&slower, sums[k], 2), 16384);
    }
}
END_TEST

/* The plugin declines a communicator where settings leave the choice to the reckoning and no operation is
 * coded. */
START_TEST(declines)
{
    static const struct {
        int rs, ar, ag;
        bool fast, slow; /* declined on links too fast for every codec, and on slow links */
    } cases[] = {
        {NB_SUM_AUTO, NB_SUM_AUTO, NB_AG_AUTO, true, false},
        {NB_SUM_AUTO, NB_SUM_AUTO, NB_AG_RAW, true, false},
        {NB_SUM_AUTO, NB_SUM_AUTO, NB_AG_OFF, true, false},
        {NB_SUM_RAW, NB_SUM_RAW, NB_AG_AUTO, true, false},
        {NB_SUM_RAW, NB_SUM_AUTO, NB_AG_AUTO, true, false},
        {NB_SUM_RAW, NB_SUM_RAW, NB_AG_RAW, false, false}, /* the user sets everything */
        {NB_SUM_INT4, NB_SUM_AUTO, NB_AG_AUTO, false, false},
        {NB_SUM_AUTO, NB_SUM_INT8, NB_AG_AUTO, false, false},
        {NB_SUM_AUTO, NB_SUM_AUTO, NB_AG_EXACT, false, false},
        {NB_SUM_AUTO, NB_SUM_AUTO, NB_AG_DELTA4, false, false},
    };
    const struct nb_reckoning fast = reckon(400000, NB_RECKON_AVX512, 6, 4),
                              slow = reckon(1000, NB_RECKON_AVX2, 0, 4),
                              alone = reckon(50000, NB_RECKON_AVX512, 0, 4);
    const struct nb_reckoning unreckoned[] = {reckon(0, NB_RECKON_AVX512, 0, 4),
                                              reckon(400000, NB_RECKON_UNKNOWN, 0, 4),
                                              reckon(400000, NB_RECKON_GPU, NB_RECKON_NO_LIMIT, 4)};
    struct nb_params p = *nb_params_defaults();
    char why[160];

    for (size_t i = 0; i < COUNT(cases); i++) {
        p.rs = cases[i].rs;
        p.ar = cases[i].ar;
        p.ag = cases[i].ag;
        ck_assert_msg(nb_policy_declines(&p, &fast, why, sizeof(why)) == cases[i].fast, "case %zu", i);
        ck_assert_msg(nb_policy_declines(&p, &slow, why, sizeof(why)) == cases[i].slow, "case %zu", i);
        for (size_t k = 0; k < COUNT(unreckoned); k++)
            ck_assert(!nb_policy_declines(&p, &unreckoned[k], why, sizeof(why)));
    }
    p = *nb_params_defaults();
    ck_assert(nb_policy_declines(&p, &fast, why, sizeof(why)));
    ck_assert_str_eq(why, "no gain on links of 400 Gbit/s with codec avx512, 6 codec threads "
                          "(NIBBLE_RS=int4 connects it all the same)");
    p.rs = NB_SUM_RAW;
    ck_assert(nb_policy_declines(&p, &fast, why, sizeof(why)) && strstr(why, "(NIBBLE_AR=int4 connects"));
    p.ar = NB_SUM_RAW;
    ck_assert(nb_policy_declines(&p, &fast, why, sizeof(why)) && strstr(why, "(NIBBLE_AG=exact connects"));
    p = *nb_params_defaults();
    ck_assert(nb_policy_declines(&p, &alone, why, sizeof(why)));
    ck_assert_str_eq(why, "no gain on links of 50 Gbit/s with codec avx512 (NIBBLE_HOST_THREADS=2 would "
                          "change that)");
    p.shadow = 1;
    ck_assert(!nb_policy_declines(&p, &fast, why, sizeof(why)));
    p.shadow = 0;
    p.force_collnet = 1;
    ck_assert(!nb_policy_declines(&p, &fast, why, sizeof(why)));
}
END_TEST

/* The slowest node's facts count, in any order. A node without facts makes the result unknown for all. */
START_TEST(slowest)
{
    const struct nb_reckon_facts one = {25000, NB_RECKON_AVX512, 2, 4, 7},
                                 two = {100000, NB_RECKON_AVX2, 4, 64, 3},
                                 gpu = {50000, NB_RECKON_GPU, NB_RECKON_NO_LIMIT, 8, 0}, none = {0};
    struct nb_reckon_facts a = one, b = two;

    nb_reckon_slowest(&a, &two);
    nb_reckon_slowest(&b, &one);
    ck_assert(a.mbps == 25000 && a.codec == NB_RECKON_AVX2 && a.workers == 2 && a.buffer == 4 &&
              a.measured == 7);
    ck_assert(memcmp(&a, &b, sizeof(a)) == 0);
    nb_reckon_slowest(&a, &gpu);
    ck_assert(memcmp(&a, &b, sizeof(a)) == 0);
    nb_reckon_slowest(&a, &none);
    ck_assert(a.mbps == 0 && a.codec == NB_RECKON_UNKNOWN && a.workers == 0);
    for (int v = NB_VARIANT_PORTABLE; v < NB_VARIANT_COUNT; v++)
        ck_assert_str_eq(nb_reckon_codec_name(nb_reckon_codec_of((enum nb_variant)v)),
                         v == NB_VARIANT_NEON          ? "portable"
                         : v == NB_VARIANT_AVX512_VBMI ? "avx512"
                                                       : nb_variant_name((enum nb_variant)v));
    ck_assert(nb_reckon_codec_of(NB_VARIANT_AUTO) == NB_RECKON_UNKNOWN);
}
END_TEST

static struct nb_reckoning reckon_distant(double rtt, double buffer, uint32_t mbps)
{
    const struct nb_reckon_facts facts = {.mbps = mbps, .codec = NB_RECKON_AVX512, .workers = 4};
    struct nb_reckon_nodes group = group_of(4);
    struct nb_reckoning r;

    group.rtt = rtt;
    group.buffer = buffer;
    nb_reckon(&facts, &group, &r);
    return r;
}

/* Between distant nodes NCCL's window limits coded and raw operations alike, unless its buffers are large. */
START_TEST(distance)
{
    const struct nb_reckoning small = reckon_distant(0.07, 4 * MIB, 10000),
                              large = reckon_distant(0.07, 128 * MIB, 10000),
                              near = reckon_distant(0, 4 * MIB, 100000),
                              fast = reckon_distant(0.07, 128 * MIB, 100000);
    const struct nb_params *p = nb_params_defaults();
    char text[512];

    ck_assert(nb_reckon_buffer(0.07) == 128 * MIB && nb_reckon_buffer(0) == 0);
    ck_assert(nb_reckon_unit(0) == 0 && nb_reckon_unit(50000) == 0);
    ck_assert(nb_reckon_unit(100000) == 262144 && nb_reckon_unit(1e9) == MIB);
    ck_assert(nb_reckon_never(&small, NB_FUNC_ALL_REDUCE, 2));
    ck_assert_uint_eq(nb_reckon_buffer_needed(&small, NB_FUNC_ALL_REDUCE), 128 << 20);
    nb_reckon_text(&small, NB_FUNC_ALL_REDUCE, text, sizeof(text));
    ck_assert_msg(strstr(text, "(NCCL_BUFFSIZE=134217728 would change that)"), "%s", text);
    nb_reckon_window_text(&small, text, sizeof(text));
    ck_assert_msg(strstr(text, "set NCCL_BUFFSIZE=134217728 (now 4194304) on"), "%s", text);
    nb_reckon_facts_text(&small, text, sizeof(text));
    ck_assert_msg(strstr(text, "links of 10 Gbit/s and a round trip of 70 ms with codec avx512"), "%s", text);
    ck_assert(!nb_reckon_never(&large, NB_FUNC_ALL_REDUCE, 2));
    ck_assert_uint_eq(nb_reckon_buffer_needed(&large, NB_FUNC_ALL_REDUCE), 0);
    nb_reckon_window_text(&large, text, sizeof(text));
    ck_assert_str_eq(text, "");
    nb_reckon_window_text(&near, text, sizeof(text));
    ck_assert_str_eq(text, "");
    nb_reckon_window_text(&fast, text, sizeof(text));
    ck_assert_str_eq(text,
                     "messages are too short for links of 100 Gbit/s: set NIBBLE_UNIT_BYTES=262144 (now "
                     "131072) on all ranks");
    /* Reduce-scatters go directly, and gain with NCCL's usual buffers, too. */
    ck_assert(!nb_reckon_never(&small, NB_FUNC_REDUCE_SCATTER, 2));
    ck_assert(!nb_policy_declines(p, &small, text, sizeof(text)));
}
END_TEST

/* A trunk between sites is the limit, where nodes' own links would be faster than the codec. */
START_TEST(sites)
{
    const struct nb_reckon_facts facts = {.mbps = 400000, .codec = NB_RECKON_AVX512};
    struct nb_reckon_nodes group = group_of(8);
    struct nb_reckoning r;
    char text[512];

    group.sites = 2;
    for (int rows = 0; rows < 2; rows++) {
        group.columns = rows ? 4 : 0;
        group.trunk = 0;
        nb_reckon(&facts, &group, &r);
        for (size_t k = 0; k < COUNT(sums); k++)
            ck_assert(nb_reckon_never(&r, sums[k], 2));
        group.trunk = 2000;
        nb_reckon(&facts, &group, &r);
        /* Without rows 4 bits of 16 cross, with them 8 bits for the sum of a row. */
        ck_assert_double_eq_tol(r.of[NB_FUNC_REDUCE_SCATTER][0].times, rows ? 2 : 3.7, 0.2);
        ck_assert(r.of[NB_FUNC_ALL_REDUCE][0].times > (rows ? 2 : 2.8));
    }
    nb_reckon_facts_text(&r, text, sizeof(text));
    ck_assert_msg(strstr(text, "links of 400 Gbit/s, 2 Gbit/s from each of 2 sites with codec avx512"), "%s",
                  text);
    /* The path between sites sets the units, too. */
    group.rtt = 0.07;
    nb_reckon(&facts, &group, &r);
    nb_reckon_window_text(&r, text, sizeof(text));
    ck_assert_msg(strstr(text, "for links of 2 Gbit/s and a round trip of 70 ms: set NCCL_BUFFSIZE=134217728 "
                               "(now 4194304) on"),
                  "%s", text);
}
END_TEST

/* A longer round trip turns two hops into direct sums and gathers, and never the other way round. */
START_TEST(distant_schedules)
{
    static const double flights[] = {0.01, 0.1, 0.5, 1, 2, 4, 8};

    for (int nodes = 3; nodes <= 31; nodes++)
        for (size_t f = 0; f < COUNT(flights); f++)
            for (int second = NB_COST_SECOND_RAW; second <= NB_COST_SECOND_INT8; second++) {
                const double flight = flights[f] * MIB, block = MIB;
                bool sum = nb_cost_two_hops_pay(nodes, flight, block, 0, (enum nb_cost_second)second);
                bool gather = nb_cost_gather_hops_pay(nodes, flight, block, 0);

                for (double hop = 1e-3; hop < 1e3; hop *= 2) {
                    const bool s = nb_cost_two_hops_pay(nodes, flight, block, hop,
                                                        (enum nb_cost_second)second),
                               g = nb_cost_gather_hops_pay(nodes, flight, block, hop);

                    ck_assert((sum || !s) && (gather || !g));
                    sum = s;
                    gather = g;
                }
                ck_assert(flight >= nodes * block || (!sum && !gather));
            }
}
END_TEST

START_TEST(words)
{
    struct nb_reckoning r = {.known = true};
    char text[256];

    r.of[NB_FUNC_REDUCE_SCATTER][0] = (struct nb_reckoned){.from = 65536, .times = 3.14};
    r.of[NB_FUNC_REDUCE_SCATTER][1] = (struct nb_reckoned){.from = 2 << 20, .times = 5};
    nb_reckon_text(&r, NB_FUNC_REDUCE_SCATTER, text, sizeof(text));
    ck_assert_str_eq(text, "BF16 and FP16 coded from 64 KiB on: about 3.1 times as fast as raw, "
                           "FP32 coded from 2 MiB on: about 5.0 times as fast as raw");
    r.of[NB_FUNC_ALL_REDUCE][0] = (struct nb_reckoned){.from = NB_RECKON_NEVER, .workers = 6};
    r.of[NB_FUNC_ALL_REDUCE][1] = (struct nb_reckoned){.times = 2};
    nb_reckon_text(&r, NB_FUNC_ALL_REDUCE, text, sizeof(text));
    ck_assert_str_eq(
        text,
        "BF16 and FP16 raw: this link is faster than the codec (NIBBLE_HOST_THREADS=6 would change that), "
        "FP32 coded at every size: about 2.0 times as fast as raw");
}
END_TEST

/* A measured rate only warns: the direction it points to, and the setting that pins it. */
START_TEST(seen)
{
    const struct nb_reckoning coded = reckon(10000, NB_RECKON_AVX512, 2, 4);
    const struct nb_reckoning raw = reckon(400000, NB_RECKON_AVX2, 0, 4);
    const struct nb_cost_machine f = nb_reckon_machine(&coded.facts, 2);
    const double tabled = 4.0 / 3 / (1 / f.speed.encode_feedback + 1 / f.speed.decode_add);
    char text[256];

    for (size_t k = 0; k < COUNT(sums); k++) {
        const struct nb_reckon_seen same = {tabled, 1e9, 0.5}, nothing = {0, 0, 0},
                                    slow = {tabled / 50, 1e8, 0.99};
        const struct nb_reckon_seen modem = {0, 1e8, 0.1}, busy = {0, 1e8, 0.6}, full = {0, 45e9, 0.1};

        ck_assert_double_eq_tol(nb_reckon_seen_gain(&coded, sums[k], &same), coded.of[sums[k]][0].times,
                                1e-9);
        ck_assert_double_eq_tol(nb_reckon_seen_gain(&coded, sums[k], &nothing), coded.of[sums[k]][0].times,
                                1e-9);
        nb_reckon_seen_text(&coded, sums[k], &same, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "came true: coded about"));
        nb_reckon_seen_text(&coded, sums[k], &slow, text, sizeof(text));
        ck_assert_msg(strstr(text, "did not come true: raw would be") &&
                          strstr(text, "codecs are the limit") &&
                          strstr(text, k ? "NIBBLE_AR=raw" : "NIBBLE_RS=raw"),
                      "%s", text);
        nb_reckon_seen_text(&raw, sums[k], &full, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "came true: raw"));
        nb_reckon_seen_text(&raw, sums[k], &modem, text, sizeof(text)); /* 0.8 Gbit/s of 400 */
        ck_assert_msg(strstr(text, "did not come true: coded would be") &&
                          strstr(text, "NIBBLE_LINK_MBPS=800 "),
                      "%s", text);
        /* Where codecs were busy, the link's rate stays unknown. */
        nb_reckon_seen_text(&raw, sums[k], &busy, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "came true: raw"));
    }
}
END_TEST

SUITE_MAIN("reckon", TEST(unknown), TEST(seen), TEST(one_way), TEST(threads), TEST(ends), TEST(second_hop),
           TEST(known_cases), TEST(declines), TEST(slowest), TEST(distance), TEST(sites),
           TEST(distant_schedules), TEST(words))
