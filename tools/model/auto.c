/* SPDX-License-Identifier: Apache-2.0 */
/* Print the plugin's reckoning for NIBBLE_RS=auto and NIBBLE_AR=auto on links and codecs, as tables in
 * Markdown. */
#include <stdio.h>

#include "auto.h"
#include "policy/reckon/reckon.h"

static const uint32_t codecs[] = {NB_RECKON_AVX512, NB_RECKON_AVX2, NB_RECKON_PORTABLE};
static const uint32_t threads[] = {0, 1, 2, 3, 4, 6};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void cell(const struct nb_reckoned *r)
{
    if (r->from == NB_RECKON_NEVER)
        printf(" raw |");
    else if (r->from >= 1 << 20)
        printf(" %.1f, from %llu MiB |", r->times, (unsigned long long)r->from >> 20);
    else if (r->from > 0)
        printf(" %.1f, from %llu KiB |", r->times, (unsigned long long)r->from >> 10);
    else
        printf(" %.1f |", r->times);
}

static void table(const struct nb_reckon_nodes *group, const double *gbps, int links, enum nb_func func,
                  bool wide)
{
    printf("\n%s of %s, %d nodes: raw, or how many times as fast as raw 64 MiB are when coded, and from "
           "which size on\n\n",
           nb_func_name(func), wide ? "FP32" : "BF16 and FP16", group->nodes);
    printf("| codec | threads |");
    for (int i = 0; i < links; i++)
        printf(" %g Gbit/s |", gbps[i]);
    printf("\n|---|---|");
    for (int i = 0; i < links; i++)
        printf("---|");
    for (size_t c = 0; c < COUNT(codecs); c++)
        for (size_t t = 0; t < COUNT(threads); t++) {
            printf("\n| %s | %u |", nb_reckon_codec_name((enum nb_reckon_codec)codecs[c]), threads[t]);
            for (int i = 0; i < links; i++) {
                const struct nb_reckon_facts facts = {
                    .mbps = (uint32_t)(1000 * gbps[i]), .codec = codecs[c], .workers = threads[t]};
                struct nb_reckoning r;

                nb_reckon(&facts, group, &r);
                cell(&r.of[func][wide]);
            }
        }
    printf("\n");
}

/* Print the recommended settings at the group's round trip. */
static void buffers(const struct nb_reckon_nodes *group, const double *gbps, int links)
{
    printf("\nround trip of %.4g ms, NCCL_BUFFSIZE=%.0f; recommended: %.0f", 1e3 * group->rtt, group->buffer,
           nb_reckon_buffer(group->rtt));
    for (int i = 0; i < links; i++) {
        const double unit = nb_reckon_unit(nb_reckon_path(group, 1000 * gbps[i]));

        if (unit > group->unit)
            printf(", and NIBBLE_UNIT_BYTES=%.0f at %g Gbit/s", unit, gbps[i]);
    }
    printf("\n");
}

void auto_print(const struct nb_reckon_nodes *group, const double *gbps, int links, bool wide)
{
    if (group->rtt > 0)
        buffers(group, gbps, links);
    table(group, gbps, links, NB_FUNC_REDUCE_SCATTER, wide);
    table(group, gbps, links, NB_FUNC_ALL_REDUCE, wide);
}
