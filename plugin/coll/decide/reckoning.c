/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a node's link and codec, and the size from which coding pays. */
#include <stdio.h>
#include <stdlib.h>

#include "base/demand.h"
#include "base/log.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"

uint32_t nb_facts_rate(const struct nb_coll_comm *comm)
{
    const int64_t told = comm->ctx->params->link_mbps;
    struct nb_net_props props;

    if (told > 0)
        return (uint32_t)told;
    if (comm->net->properties(comm->ctx->net, comm->dev, &props) == 0 && props.rate_mbps > 0)
        return (uint32_t)props.rate_mbps;
    return 0;
}

struct nb_reckon_facts nb_facts_of_node(const struct nb_coll_comm *comm)
{
    const struct nb_device_ops *device = comm->device->ops;
    struct nb_reckon_facts facts = {
        .codec = NB_RECKON_GPU, .workers = NB_RECKON_NO_LIMIT, .mbps = nb_facts_rate(comm)};

    if (device->host_memory) {
        facts.codec = nb_reckon_codec_of(nb_codec_selected());
        facts.workers = device->workers ? device->workers(comm->device) : 0;
    }
    facts.buffer = nb_facts_buffer();
    return facts;
}

uint32_t nb_facts_buffer(void)
{
    const char *text = nb_env("NCCL_BUFFSIZE");
    const long long bytes = text ? atoll(text) : 0;

    if (bytes <= 0)
        return NB_RECKON_BUFFER_MIB;
    return (uint32_t)nb_max64(1, nb_min64((uint64_t)bytes >> 20, UINT16_MAX));
}

/* Return the facts that the settings make equal on all nodes of a communicator. */
static struct nb_reckon_nodes group_of(const struct nb_params *p, const struct nb_grid *grid)
{
    const bool across = grid->rows > 1 && !grid->sites; /* rows of consecutive ranks, which may cross sites */

    return (struct nb_reckon_nodes){.nodes = grid->rows * grid->columns,
                                    .sites = across ? 0 : grid->named,
                                    .trunk = across ? 0 : grid->trunk,
                                    .columns = grid->rows > 1 ? grid->columns : 0,
                                    .schedule = p->schedule,
                                    .unit = (double)(p->unit_bytes / 4096 * 4096),
                                    .second_bits = nb_second_hop_bits(p->second_hop),
                                    .rtt = 1e-6 * (double)p->link_rtt_us};
}

void nb_facts_reckon(const struct nb_params *p, const struct nb_grid *grid,
                     const struct nb_reckon_facts *slowest, struct nb_reckoning *out)
{
    struct nb_reckon_nodes group = group_of(p, grid);

    group.buffer = 0x1p20 * slowest->buffer;
    nb_reckon(slowest, &group, out);
    for (int wide = 0; wide < 2; wide++) {
        struct nb_reckoned *rs = &out->of[NB_FUNC_REDUCE_SCATTER][wide];
        struct nb_reckoned *ar = &out->of[NB_FUNC_ALL_REDUCE][wide];
        rs->from = nb_max64(rs->from, (uint64_t)p->rs_min_bytes);
        ar->from = nb_max64(ar->from, (uint64_t)p->ar_min_bytes);
    }
}

/* Return the names of the sums that settings leave to the reckoning, or NULL. */
static const char *what_is_reckoned(const struct nb_params *p)
{
    const bool rs = nb_policy_reckons(p, NB_FUNC_REDUCE_SCATTER),
               ar = nb_policy_reckons(p, NB_FUNC_ALL_REDUCE);

    return rs && ar ? "sums" : rs ? "reduce_scatter" : ar ? "all_reduce" : NULL;
}

void nb_facts_log(const struct nb_coll_comm *comm)
{
    const struct nb_reckoning *r = &comm->reckoning;
    const struct nb_params *p = comm->ctx->params;
    const char *what = what_is_reckoned(p);
    char text[2][400] = {"as NIBBLE_RS says", "as NIBBLE_AR says"}, facts[128], window[400];

    nb_reckon_distance_text(r, window, sizeof(window));
    if (*window)
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: %s", comm->label, window);
    nb_reckon_window_text(r, window, sizeof(window));
    if (*window) {
        NB_INFO(NCCL_INIT | NCCL_NET, "%s: %s", comm->label, window);
        nb_demand_fails(comm->ctx, NB_DEMAND_WINDOW, window);
    }
    if (!what)
        return;
    if (r->facts.mbps == 0 || !r->known) {
        NB_INFO(
            NCCL_INIT | NCCL_NET, "%s: auto: %s coded, since %s", comm->label, what,
            r->facts.mbps == 0 ? "the rate of a node's link is unknown (NIBBLE_LINK_MBPS states it)"
            : r->facts.codec == NB_RECKON_GPU
                ? "codecs run on GPUs, of which no speed is tabled (NIBBLE_RS=raw, NIBBLE_AR=raw: not coded)"
                : "no speed is tabled for a node's codec");
        return;
    }
    if (nb_policy_reckons(p, NB_FUNC_REDUCE_SCATTER))
        nb_reckon_text(r, NB_FUNC_REDUCE_SCATTER, text[0], sizeof(text[0]));
    if (nb_policy_reckons(p, NB_FUNC_ALL_REDUCE))
        nb_reckon_text(r, NB_FUNC_ALL_REDUCE, text[1], sizeof(text[1]));
    nb_reckon_facts_text(r, facts, sizeof(facts));
    NB_INFO(NCCL_INIT | NCCL_NET,
            "%s: auto, on %s (of the slowest nodes): reduce_scatter %s, and all_reduce %s", comm->label,
            facts, text[0], text[1]);
}

void nb_facts_log_seen(const struct nb_coll_comm *comm, const struct nb_coll_stats *stats)
{
    static const enum nb_func sums[] = {NB_FUNC_REDUCE_SCATTER, NB_FUNC_ALL_REDUCE};
    struct nb_reckon_seen seen = {.share = nb_stats_codec_share(stats)};
    uint64_t sent = 0, coded = 0;

    for (int func = 0; func < NB_FUNC_COUNT; func++)
        sent += stats->func[func].wire_bytes;
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        coded += stats->func[sums[i]].coded_ops;
    if (!comm->reckoning.known || comm->shadow || !stats->busy_ns)
        return;
    seen.link = 1e9 * (double)sent / (double)stats->busy_ns;
    if (coded && stats->worked_ns)
        seen.codec = 1e9 * (double)stats->worked_bytes / (double)stats->worked_ns;
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        char text[256];

        if (!stats->func[sums[i]].ops || !nb_policy_reckons(comm->ctx->params, sums[i]))
            continue;
        nb_reckon_seen_text(&comm->reckoning, sums[i], &seen, text, sizeof(text));
        NB_INFO(NCCL_NET, "summary %s: auto, %s %s (sent %.3g Gbit/s of %.4g, codecs busy for %.0f %%)",
                comm->label, nb_func_name(sums[i]), text, 8e-9 * seen.link, comm->reckoning.facts.mbps / 1e3,
                100 * seen.share);
    }
}
