/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the codecs here, and the gain on a link that the model of tools/model predicts. */
#include <math.h>

#include "doctor.h"

#define BYTES 67108864.0 /* of the predicted operation */
#define HOP 20e-6        /* seconds, unless measured: as nibble-model */
#define MESSAGE 2e-6     /* processor time of a message at one end: as nibble-model */

void predict_gain(struct doctor *d, int nodes, double link, double latency)
{
    const struct info_speeds *s = &d->speeds;
    static const char *const names[NB_FUNC_COUNT] = {"reduce-scatter", "all-gather", "all-reduce"};
    struct nb_cost_machine f = {.link = link,
                                .latency = latency,
                                .message = MESSAGE,
                                .copy = 1e9 * s->copy,
                                .cores = 1 + d->threads,
                                .speed = {1e9 * s->encode, 1e9 * s->encode, 1e9 * s->decode, 1e9 * s->decode,
                                          1e9 * s->ulp_encode, 1e9 * s->ulp_decode}};

    for (int i = 0; i < NB_FUNC_COUNT; i++) {
        const enum nb_func func = (enum nb_func)i;
        struct nb_cost_op op = nb_cost_op_make(func, nodes, BYTES, 2, nb_cost_usual_ratio(func, 2));
        struct nm_result r;

        op.coded = true;
        op.feedback = func != NB_FUNC_ALL_GATHER;
        if (nm_predict_best(&f, &op, &r) == NB_COST_SCHEDULES)
            continue;
        const double times = nm_nccl(&f, func, nodes, BYTES) / r.seconds;
        say(&d->report, times > 1.05 ? STATUS_OK : STATUS_WARNING, "gain",
            times > 1.05 ? NULL
                         : "a faster codec (more of the processor, a GPU), or no nibble for this function",
            "%s of 64 MiB BF16, %d nodes at %.3g Gbit/s: %.2f times NCCL's rings (predicted)", names[i],
            nodes, 8e-9 * link, times);
    }
}

void check_gain(struct doctor *d)
{
    const int nodes = d->options.nodes >= 2 ? d->options.nodes : 2;
    double mbps = 0;

    if (!d->options.speed || !info_codec_speeds(&d->speeds))
        return;
    say(&d->report, STATUS_OK, "codec", NULL,
        "one core, GB of BF16 a second: encode %.1f, decode and add %.1f, differences %.1f and %.1f, memcpy "
        "%.1f",
        d->speeds.encode, d->speeds.decode, d->speeds.ulp_encode, d->speeds.ulp_decode, d->speeds.copy);
    for (int i = 0; d->list && i < d->list->n; i++) /* a GPU's own link */
        mbps = fmax(mbps, d->list->device[i].net.speed_mbps);
    if (d->options.gbps > 0)
        mbps = 1000 * d->options.gbps;
    if (mbps > 0 && !d->options.together)
        predict_gain(d, nodes, 1e6 / 8 * mbps, HOP);
}
