/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes.h. */
#include "nodes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "facts.h"
#include "meet.h"
#include "pairs.h"
#include "tools/output.h"

/* Shares of the time limit. */
#define JOINING 0.35
#define CONNECTING 0.25
#define MEASURING 0.25
#define TELLING 0.05
#define STREAM 0.4 /* seconds of a node's own sending */

struct job {
    struct doctor *d;
    struct meet *meet;
    double limit;
    node_name *names;
    struct blob *facts; /* node 0: of all nodes */
    struct pairs *pairs;
    int ndev, dev; /* devices of node 0. The one on which rates are measured */
    bool *well;    /* node 0: [from][to]: the messages over that device arrived */
};

static char *text_of(void (*write)(const struct job *job, FILE *f), const struct job *job, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);

    if (!f)
        return NULL;
    write(job, f);
    fclose(f);
    return text;
}

static int gather_text(struct job *job, void (*write)(const struct job *job, FILE *f), double seconds)
{
    size_t len = 0;
    char *text = text_of(write, job, &len);
    const int err = text ? meet_gather(job->meet, text, len, seconds) : -1;

    free(text);
    return err;
}

static void write_facts(const struct job *job, FILE *f)
{
    facts_write(job->d, f);
}

static void write_pairs(const struct job *job, FILE *f)
{
    if (job->pairs)
        pairs_tell(job->pairs, f);
}

/* ---- Handles: each node's to all ---- */

static char *all_handles(const struct job *job, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);

    for (int i = 0; f && i < job->meet->nodes; i++) {
        const struct blob *b = &job->meet->got[i];
        uint8_t head[4];
        nb_put32(head, (uint32_t)b->len);
        fwrite(head, 1, sizeof(head), f);
        if (b->len)
            fwrite(b->data, 1, b->len, f);
    }
    if (f)
        fclose(f);
    return text;
}

static void set_handles(struct job *job, const char *at, size_t len)
{
    for (int i = 0; i < job->meet->nodes && len >= 4 && job->pairs; i++) {
        const uint32_t n = nb_get32(at);
        if (n > len - 4)
            return;
        pairs_set(job->pairs, i, at + 4, n);
        at += 4 + n;
        len -= 4 + n;
    }
}

static int exchange_handles(struct job *job)
{
    const double seconds = TELLING * job->limit;
    const void *mine = "";
    size_t len = 0;
    struct blob all = {0};

    if (job->d->ctx && pairs_open(job->d->ctx->net, job->meet->rank, job->meet->nodes, &job->pairs))
        job->pairs = NULL;
    if (job->pairs)
        mine = pairs_handles(job->pairs, &len);
    if (meet_gather(job->meet, mine, len, seconds))
        return -1;
    if (job->meet->rank == 0) {
        all.data = all_handles(job, &all.len);
        if (!all.data)
            return -1;
        meet_say(job->meet, all.data, all.len);
    } else if (meet_hear(job->meet, &all, 2 * seconds)) {
        return -1;
    }
    set_handles(job, all.data, all.len);
    free(all.data);
    return 0;
}

/* ---- What became of the pairs ---- */

struct seen {
    char out[16], to[72], cause[320]; /* the sender's result */
    char in[16];                      /* the receiver's */
};

/* Return whether pair k, from node k / nodes to node k % nodes, is of two nodes that have come. */
static bool both_here(const struct job *job, int k)
{
    const int from = k / job->meet->nodes, to = k % job->meet->nodes;

    return from != to && job->facts[from].data && job->facts[to].data;
}

static void read_node(struct seen *seen, const struct job *job, int node, int ndev)
{
    const int nodes = job->meet->nodes;

    for (char *line = job->meet->got[node].data; line && *line;) {
        char *next = strchr(line, '\n'), *field[6] = {0}, *at = line;
        if (next)
            *next++ = '\0';
        for (int i = 0; i < 6 && at; i++)
            field[i] = strsep(&at, "\t");
        line = next;
        if (!field[3])
            continue;
        const int peer = atoi(field[1]), dev = atoi(field[2]);
        if (peer < 0 || peer >= nodes || dev < 0 || dev >= ndev)
            continue;
        const bool out = strcmp(field[0], "out") == 0;
        struct seen *s =
            &seen[((size_t)(out ? node : peer) * (size_t)nodes + (size_t)(out ? peer : node)) * (size_t)ndev +
                  (size_t)dev];
        snprintf(out ? s->out : s->in, sizeof(s->in), "%s", field[3]);
        if (out && field[5]) {
            snprintf(s->to, sizeof(s->to), "%s", field[4]);
            snprintf(s->cause, sizeof(s->cause), "%s", field[5]);
        }
    }
}

/* Say how a device failed to carry messages, between these nodes or, with `all`, between any two nodes. */
static void say_pair(struct job *job, int from, int to, int dev, const struct seen *s, bool all)
{
    struct report *r = &job->d->report;

    snprintf(r->where, sizeof(r->where), "%.36s -> %.36s", job->names[from], job->names[to]);
    if (all)
        snprintf(r->where, sizeof(r->where), "every pair of nodes");
    if (strcmp(s->in, "damaged") == 0)
        say(r, STATUS_PROBLEM, "pair", "ethtool -K gro off lro off tso off; another cable or NIC",
            "device %d at %s: what arrives is not what was sent", dev, s->to);
    else if (strcmp(s->in, "small") == 0)
        say(r, STATUS_PROBLEM, "pair",
            "set the same MTU on both nodes and all switches between them (ping -M do -s 8972)",
            "device %d at %s: 64 bytes arrive, 64 KiB do not: the path carries less than the interfaces' MTU",
            dev, s->to);
    else if (strcmp(s->out, "connect") == 0)
        say(r, STATUS_PROBLEM, "pair",
            "let TCP pass in both directions (docs/network.md, Ports and firewalls); routes; interfaces of "
            "one network",
            "device %d at %s: cannot connect: %s", dev, s->to, s->cause);
    else
        say(r, STATUS_PROBLEM, "pair", "let packets pass in both directions; the other node may have ended",
            "device %d at %s: connected, but nothing arrives%s%s", dev, s->to, *s->cause ? ": " : "",
            s->cause);
    r->where[0] = '\0';
}

/* Judge a device over all pairs. Where there are others, and it connects no pair, as bridges and management
 * adapters with one address on all nodes, a line stands for all pairs. Return the pairs that it connects. */
static int judge_device(struct job *job, int dev, const struct seen *seen)
{
    const int nodes = job->meet->nodes, ndev = job->ndev;
    int good = 0;

    for (int k = 0; k < nodes * nodes; k++)
        good += both_here(job, k) && strcmp(seen[k * ndev + dev].in, "ok") == 0;
    for (int k = 0; k < nodes * nodes; k++) {
        const struct seen *s = &seen[k * ndev + dev];
        if (!both_here(job, k) || strcmp(s->in, "ok") == 0)
            continue;
        say_pair(job, k / nodes, k % nodes, dev, s, good == 0 && ndev > 1);
        if (good == 0 && ndev > 1)
            break;
    }
    return good;
}

/* Judge all devices over all pairs. For the rates, choose the first of those that connect the most pairs. */
static void judge_pairs(struct job *job)
{
    const int nodes = job->meet->nodes, ndev = job->ndev;
    struct seen *seen = calloc((size_t)nodes * (size_t)nodes * (size_t)(ndev + 1), sizeof(*seen));
    char list[400] = "";
    size_t at = 0;
    int all = 0, most = -1, whole = 0;

    for (int i = 0; seen && i < nodes; i++)
        read_node(seen, job, i, ndev);
    for (int k = 0; k < nodes * nodes; k++)
        all += both_here(job, k);
    for (int dev = 0; seen && dev < ndev; dev++) {
        const int good = judge_device(job, dev, seen);
        if (good > most) {
            most = good;
            job->dev = dev;
        }
        if (good < all)
            continue;
        whole++;
        if (at < sizeof(list))
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%.40s", at ? "," : "",
                                   job->d->list->device[dev].net.name);
    }
    for (int k = 0; k < nodes * nodes && most > 0; k++)
        job->well[k] = both_here(job, k) && strcmp(seen[k * ndev + job->dev].in, "ok") == 0;
    if (whole == ndev && all > 0 && ndev > 0)
        say(&job->d->report, STATUS_OK, "pair", NULL,
            "%d pairs in both directions, %d device%s: connected over %s, 64 bytes and 64 KiB arrived",
            all / 2, ndev, ndev == 1 ? "" : "s", job->d->transport);
    else if (whole > 0 && all > 0)
        say(&job->d->report, STATUS_WARNING, "pair",
            strcmp(job->d->transport, "tcp") == 0 ? "NCCL_SOCKET_IFNAME with the names of these devices"
                                                  : "name these devices for NCCL",
            "%d of %d devices connect%s all pairs, by their names on node 0: %s", whole, ndev,
            whole == 1 ? "s" : "", list);
    free(seen);
}

/* ---- Rates ---- */

/* Plan the ring. Bit 1 of a node: it sends. 2: it receives. 4 on all: the ring is whole. */
static void ring(const struct job *job, char *plan)
{
    const int nodes = job->meet->nodes;
    int whole = 4;

    memset(plan, 0, (size_t)nodes);
    for (int i = 0; i < nodes; i++) {
        const int next = (i + 1) % nodes;
        if (!job->well[i * nodes + next]) {
            whole = 0;
            continue;
        }
        plan[i] |= 1;
        plan[next] |= 2;
    }
    for (int i = 0; i < nodes; i++)
        plan[i] |= (char)whole;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Name the nodes into which no rate was measured. */
static void say_missing(struct job *job, const double *rate, int measured)
{
    char list[400];
    size_t at = 0;

    for (int i = 0; i < job->meet->nodes && at < sizeof(list); i++)
        if (!(rate[i] > 0))
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%.36s", at ? ", " : "", job->names[i]);
    say(&job->d->report, STATUS_WARNING, "link",
        "the pairs above, if any; else ethtool, the switch, and --limit with more seconds",
        "%d of %d nodes have no rate, since nothing arrived there in time: %s", job->meet->nodes - measured,
        job->meet->nodes, list);
}

static void judge_rates(struct job *job, double hop)
{
    struct report *r = &job->d->report;
    const int nodes = job->meet->nodes;
    double *rate = calloc((size_t)nodes, sizeof(*rate)), *order = calloc((size_t)nodes, sizeof(*order));
    int n = 0;

    for (int i = 0; rate && order && i < nodes; i++) {
        rate[i] = job->meet->got[i].data ? atof(job->meet->got[i].data) : 0;
        if (rate[i] > 0)
            order[n++] = rate[i];
    }
    if (n > 0) {
        qsort(order, (size_t)n, sizeof(*order), ascending);
        /* A slow host slows the flow into it and the flow out of it: of 3 nodes, the majority. */
        const double least = order[0], median = order[n / 2], usual = order[2 * n / 3];
        say(r, STATUS_OK, "link", NULL,
            "%.3g Gbit/s into the slowest of %d nodes, median %.3g (measured, one connection each, all at a "
            "time)",
            8e-9 * least, n, 8e-9 * median);
        for (int i = 0; i < nodes; i++) {
            if (!(rate[i] > 0) || rate[i] >= usual / 2)
                continue;
            snprintf(r->where, sizeof(r->where), "%.36s -> %.36s", job->names[(i + nodes - 1) % nodes],
                     job->names[i]);
            say(r, STATUS_WARNING, "link", "ethtool, ethtool -S and the switch's counters of both ends",
                "%.3g Gbit/s: less than half of %.3g Gbit/s, which two thirds of the nodes do not exceed",
                8e-9 * rate[i], 8e-9 * usual);
            r->where[0] = '\0';
        }
        if (isfinite(hop))
            say(r, STATUS_OK, "link", NULL, "%.0f us from node to node (measured)", 1e6 * hop);
        if (job->d->speeds.encode > 0)
            predict_gain(job->d, nodes, least, isfinite(hop) ? hop : 20e-6);
    }
    if (n == 0)
        say(r, STATUS_WARNING, "link", "--limit with more seconds, where pairs are well",
            "no rate was measured: nothing went round all nodes in time");
    else if (n < nodes)
        say_missing(job, rate, n);
    free(rate);
    free(order);
}

static int measure(struct job *job)
{
    const double limit = MEASURING * job->limit;
    const int nodes = job->meet->nodes, rank = job->meet->rank;
    struct blob plan = {0};
    char text[64];
    double hop = NAN, rate = NAN;

    if (rank == 0) {
        plan = (struct blob){malloc((size_t)nodes + 1), (size_t)nodes + 1};
        if (!plan.data)
            return -1;
        ring(job, plan.data);
        plan.data[nodes] = (char)job->dev;
        meet_say(job->meet, plan.data, plan.len);
    } else if (meet_hear(job->meet, &plan, (CONNECTING + 2 * TELLING) * job->limit)) {
        return -1;
    }
    if (job->pairs && plan.len == (size_t)nodes + 1 && plan.data[rank]) {
        const int mine = plan.data[rank];
        const bool whole = (mine & 4) != 0;
        /* A message that went round and got lost would disturb the stream. */
        pairs_choose(job->pairs, plan.data[nodes]);
        if (whole)
            hop = pairs_hop(job->pairs, limit / 2);
        if (!whole || isfinite(hop))
            rate = pairs_stream(job->pairs, mine & 1, mine & 2, STREAM, limit / 2);
    }
    free(plan.data);
    snprintf(text, sizeof(text), "%.6g", isfinite(rate) ? rate : 0);
    if (meet_gather(job->meet, text, strlen(text), limit + TELLING * job->limit))
        return -1;
    if (rank == 0)
        judge_rates(job, hop);
    return 0;
}

/* ---- The whole ---- */

/* Copy the facts for node 0, since each gather replaces the last one's. */
static bool keep_facts(struct job *job)
{
    const int nodes = job->meet->nodes;

    job->facts = calloc((size_t)nodes, sizeof(*job->facts));
    job->names = calloc((size_t)nodes, sizeof(*job->names));
    job->well = calloc((size_t)nodes * (size_t)nodes, sizeof(*job->well));
    if (!job->facts || !job->names || !job->well)
        return false;
    memcpy(job->facts, job->meet->got, (size_t)nodes * sizeof(*job->facts));
    memset(job->meet->got, 0, (size_t)nodes * sizeof(*job->facts));
    facts_names(job->facts, nodes, job->names);
    return true;
}

static int steps(struct job *job)
{
    const bool first = job->meet->rank == 0;

    if (gather_text(job, write_facts, TELLING * job->limit))
        return -1;
    if (first) {
        /* From here on the report is of all nodes. */
        report_free(&job->d->report);
        if (!keep_facts(job))
            return -1;
        facts_judge(&job->d->report, job->facts, job->meet->nodes, job->names);
        if (job->d->judged) {
            struct nb_reckon_facts slowest = job->d->facts;
            facts_slowest(job->facts, job->meet->nodes, &slowest);
            tell_compressed(job->d, &slowest);
        }
    }
    if (exchange_handles(job))
        return -1;
    if (job->pairs) {
        output_progress("connecting %d nodes in pairs", job->meet->nodes);
        pairs_run(job->pairs, CONNECTING * job->limit);
    }
    if (gather_text(job, write_pairs, (CONNECTING + TELLING) * job->limit))
        return -1;
    if (first)
        judge_pairs(job);
    output_progress("measuring the links of %d nodes", job->meet->nodes);
    return measure(job);
}

enum status doctor_nodes(struct doctor *d, const struct place *place, double limit, bool *shown)
{
    static struct meet meet;
    struct job job = {.d = d, .meet = &meet, .limit = limit};
    enum status status = STATUS_PROBLEM;
    char why[256] = "it has ended, or hangs";
    struct blob said = {0};
    int err;

    job.ndev = d->list ? d->list->n : 0;
    *shown = place->rank == 0;
    output_progress("waiting for %d nodes", place->nodes);
    err = meet_open(&meet, place, JOINING * limit, why, sizeof(why));
    if (!err)
        err = steps(&job);
    output_progress_end();
    if (place->rank == 0) {
        if (err)
            say(&d->report, STATUS_PROBLEM, "nodes", "--port, free memory", "the nodes cannot meet: %s", why);
        status = report_status(&d->report);
        meet_say(&meet, &(char){(char)status}, 1);
    } else if (!err && meet_hear(&meet, &said, (MEASURING + 2 * TELLING) * limit) == 0 && said.len == 1) {
        status = (enum status)said.data[0];
    } else {
        report_free(&d->report);
        *shown = true;
        say(&d->report, STATUS_PROBLEM, "nodes",
            "look at node 0 (the host of rank 0, --root) and its port (--port)", "node %d: %s", place->rank,
            why);
    }
    free(said.data);
    if (job.pairs)
        pairs_close(job.pairs);
    for (int i = 0; job.facts && i < meet.nodes; i++)
        free(job.facts[i].data);
    free(job.facts);
    free(job.names);
    free(job.well);
    meet_close(&meet);
    return status;
}
