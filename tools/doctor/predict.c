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
    const struct nb_reckon_nodes away = {.rtt = 1e-6 * (double)d->params->link_rtt_us,
                                         .buffer = 0x1p20 * d->facts.buffer};
    uint32_t trunk;
    size_t name;
    struct nb_cost_machine f = {.link = link,
                                .latency = fmax(latency, away.rtt / 2),
                                .near = latency,
                                .message = MESSAGE,
                                .copy = 1e9 * s->copy,
                                .cores = 1 + d->threads,
                                .speed = {1e9 * s->encode, 1e9 * s->encode, 1e9 * s->decode, 1e9 * s->decode,
                                          1e9 * s->ulp_encode, 1e9 * s->ulp_decode}};

    if (!nb_params_site(d->params->site, &name, &trunk))
        f.trunk = 1e6 / 8 * trunk;
    for (int i = 0; i < NB_FUNC_COUNT; i++) {
        const enum nb_func func = (enum nb_func)i;
        struct nb_cost_op op = nb_cost_op_make(func, nodes, BYTES, 2, nb_cost_usual_ratio(func, 2));
        struct nm_result r;

        op.coded = true;
        if (d->params->site[0] && nodes % 2 == 0) { /* the setting names one site. Two are usual */
            op.sites = 2;
            op.group = nodes / 2;
        }
        op.chunk = nb_reckon_walk_chunk(&away, BYTES);
        op.feedback = func != NB_FUNC_ALL_GATHER;
        if (nm_predict_best(&f, &op, &r) == NB_COST_SCHEDULES)
            continue;
        const double times = nm_nccl(&f, func, nodes, BYTES) / r.seconds;
        const bool well = times > 1.05 || d->raw[func];
        say(&d->report, well ? STATUS_OK : STATUS_WARNING, "gain",
            well ? NULL : "a faster codec (more of the processor, a GPU), or no nibble for this function",
            "%s of 64 MiB BF16, %d nodes at %.3g Gbit/s: %.2f times NCCL's rings%s (predicted)",
            function_names[func], nodes, 8e-9 * link, times, d->raw[func] ? " if it were coded" : "");
    }
}

void check_gain(struct doctor *d)
{
    const int nodes = d->options.nodes >= 2 ? d->options.nodes : 2;

    if (!d->options.speed || !info_codec_speeds(&d->speeds))
        return;
    say(&d->report, STATUS_OK, "codec", NULL,
        "one core, GB of BF16 a second: encode %.1f, decode and add %.1f, differences %.1f and %.1f, memcpy "
        "%.1f",
        d->speeds.encode, d->speeds.decode, d->speeds.ulp_encode, d->speeds.ulp_decode, d->speeds.copy);
    if (d->options.together)
        return;
    if (d->facts.mbps > 0)
        predict_gain(d, nodes, 1e6 / 8 * d->facts.mbps, HOP);
    else if (d->list && d->list->n > 0)
        say(&d->report, STATUS_WARNING, "gain", "--gbps X here, NIBBLE_LINK_MBPS in the job",
            "a device reports no rate, so no gain is predicted");
}
