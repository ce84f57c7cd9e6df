/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether coding pays: a reckoning of a sum's time coded and raw, on links of this rate with codecs of this
 * speed. Where NIBBLE_RS and NIBBLE_AR are auto, sums are coded from the size on from which the reckoning
 * promises a gain. Smaller sums stay raw.
 *
 * Results must be the same in every run. The reckoning therefore uses constant facts only: the links' nominal
 * rate, nodes and schedule, bytes, the codec variant with its tabled speed, and the number of codec threads.
 * Nodes exchange their facts when they vote (coll/connect/vote.c), and the slowest counts. Nothing is
 * measured at run time.
 *
 * A closed formula makes a time of the costs in policy/reckon/cost.c. It has to find the shorter of two ways,
 * and is within a third of the times that nibble-scale finds with the engine itself
 * (tests/scale/test-scale.sh). nibble-model and the doctor predict by the same formula. Pure functions, for
 * any thread.
 */
#include "policy/reckon/reckon.h"

#include <math.h>
#include <stdio.h>

#include "base/minmax.h"

#define KIB 1024.0
#define MIB (1024 * KIB)
#define SMALLEST (4 * KIB)
#define LARGEST (1024 * MIB)
#define USUAL (64 * MIB) /* size for which log lines state times */

/* Minimum gain. Coding costs accuracy and the model errs by a tenth or two, so a smaller gain does not
 * count. */
#define PROMISE 1.1

#define BUFFER (NB_RECKON_BUFFER_MIB * MIB)
/* NCCL's usual chunk where many operations are small, and its channels. */
#define CHUNK 131072.0
#define CHANNELS 8.0
#define CHUNK_STEP 65536.0

#define WORKERS_MOST 6u /* that an engine's thread can keep busy (device/host/cores.c) */

/*
 * Speeds of one thread, GB/s of values: of BF16 (FP16 is as fast), and of FP32. Measured with nibble-perf
 * codec on single cores (docs/performance.md, "Speeds that are tabled"). A processor may be faster or slower.
 * It matters more that all nodes and all runs use the same figures. A change of them raises NB_RULES_VERSION.
 */
static const struct nb_cost_speed tabled[][2] = {
    [NB_RECKON_PORTABLE] = {{0.48, 0.29, 1.51, 1.36, 0.27, 0.46}, {0.92, 0.61, 3.56, 3.23, 0.28, 0.95}},
    [NB_RECKON_AVX2] = {{4.39, 2.44, 7.99, 6.38, 2.56, 4.00}, {8.07, 4.78, 18.4, 14.5, 2.10, 4.75}},
    [NB_RECKON_AVX512] = {{7.49, 3.54, 16.2, 13.1, 3.30, 4.70}, {11.4, 6.10, 19.6, 18.3, 1.90, 5.60}},
};
#define COPY 16e9    /* bytes a second of a copy of uncached memory */
#define HOP 20e-6    /* seconds */
#define MESSAGE 2e-6 /* processor time of one message at one end */
/* As measured (docs/performance.md, "Codec threads"): handing work over costs a sixth more, but the engine's
 * thread keeps a quarter to a third of it, so that a codec thread allows a little more than one. Beyond three
 * threads the engine is the limit. */
#define THREAD_ALLOWS 1.15
#define ENGINE_ALLOWS 2.9

enum nb_reckon_codec nb_reckon_codec_of(enum nb_variant variant)
{
    switch (variant) {
    case NB_VARIANT_NEON: /* not measured yet, and faster than portable code */
    case NB_VARIANT_PORTABLE: return NB_RECKON_PORTABLE;
    case NB_VARIANT_AVX2: return NB_RECKON_AVX2;
    case NB_VARIANT_AVX512_VBMI:
    case NB_VARIANT_AVX512: return NB_RECKON_AVX512;
    default: return NB_RECKON_UNKNOWN;
    }
}

const char *nb_reckon_codec_name(enum nb_reckon_codec codec)
{
    switch (codec) {
    case NB_RECKON_PORTABLE: return "portable";
    case NB_RECKON_AVX2: return "avx2";
    case NB_RECKON_AVX512: return "avx512";
    case NB_RECKON_GPU: return "GPU";
    default: return "unknown";
    }
}

static bool is_tabled(uint32_t codec)
{
    return codec > 0 && codec < sizeof(tabled) / sizeof(tabled[0]);
}

void nb_reckon_slowest(struct nb_reckon_facts *all, const struct nb_reckon_facts *one)
{
    all->mbps = all->mbps < one->mbps ? all->mbps : one->mbps;
    all->codec = all->codec < one->codec ? all->codec : one->codec;
    all->workers = all->workers < one->workers ? all->workers : one->workers;
    all->buffer = all->buffer < one->buffer ? all->buffer : one->buffer;
    all->measured = all->measured > one->measured ? all->measured : one->measured;
}

/* ---- distance ------------------------------------------------------------------------------------------ */

double nb_reckon_chunk(double bytes, double channels)
{
    return CHUNK_STEP * ceil(bytes / (NB_COST_STEPS * channels * CHUNK_STEP));
}

double nb_reckon_buffer(double rtt)
{
    return rtt > 0 ? LARGEST / CHANNELS : 0;
}

double nb_reckon_unit(double mbps)
{
    const double ratio = nb_cost_usual_ratio(NB_FUNC_ALL_REDUCE, 2), link = 1e6 / 8 * mbps;
    const double usual = (double)nb_params_defaults()->unit_bytes;
    double unit = usual;

    /* A node sends and gets a message in the time of one, with a quarter of it to spare. */
    while (unit < MIB && 1.3 * 2 * MESSAGE > ratio * unit / link)
        unit *= 2;
    return unit > usual ? unit : 0;
}

double nb_reckon_hop(const struct nb_reckoning *r, enum nb_func func, double value, bool coded, double block)
{
    const double ratio = coded ? nb_cost_usual_ratio(func, value) : 1;

    return r->facts.mbps ? r->group.rtt / 2 / (ratio * block / (1e6 / 8 * r->facts.mbps)) : 0;
}

double nb_reckon_path(const struct nb_reckon_nodes *g, double mbps)
{
    return g->trunk > 0 && g->trunk < mbps ? g->trunk : mbps;
}

static double buffer_of(const struct nb_reckon_nodes *g)
{
    return g->buffer > 0 ? g->buffer : BUFFER;
}

double nb_reckon_walk_chunk(const struct nb_reckon_nodes *g, double bytes)
{
    const double slot = buffer_of(g) / NB_COST_STEPS;

    if (g->rtt <= 0)
        return CHUNK;
    return nb_min_double(slot, nb_max_double(CHUNK, nb_reckon_chunk(bytes, CHANNELS)));
}

/* ---- times ------------------------------------------------------------------------------------------- */

struct nb_cost_machine nb_reckon_machine(const struct nb_reckon_facts *facts, double value)
{
    const struct nb_cost_speed *s = &tabled[is_tabled(facts->codec) ? facts->codec : 0][value > 2];
    return (struct nb_cost_machine){
        .link = 1e6 / 8 * facts->mbps,
        .latency = HOP,
        .message = MESSAGE,
        .copy = COPY,
        .cores = facts->workers ? nb_min_double(THREAD_ALLOWS * facts->workers, ENGINE_ALLOWS) : 1,
        .speed = {1e9 * s->encode, 1e9 * s->encode_feedback, 1e9 * s->decode, 1e9 * s->decode_add,
                  1e9 * s->ulp_encode, 1e9 * s->ulp_decode}};
}

/* Return the busiest link's bytes for a part of a call. Owners' links work in turns, or `owners` of them at a
 * time. */
static double link_bytes(const struct nb_cost_op *op, int columns, const struct nb_cost_part *p,
                         double owners)
{
    const struct nb_cost_load all = nb_cost_average(op, columns, p);
    const double average = nb_max_double(all.tx, all.rx), owner = nb_max_double(p->owner.tx, p->owner.rx);
    const double other = nb_max_double(p->other.tx, p->other.rx), row = nb_max_double(p->row.tx, p->row.rx);

    if (op->func == NB_FUNC_ALL_REDUCE)
        return average;
    if (columns) { /* the owner's row has more to do than the other rows, busy for half of it */
        const double rest = average * op->nodes / (op->nodes - 1.0);
        return (nb_max_double(row, rest) + rest) / 2;
    }
    if (op->schedule == NB_COST_TWO_HOP && op->nodes > 2)
        return nb_max_double(owner, other);
    return nb_max_double(owner / owners, average);
}

/* Bytes on the way that a near network holds at most. */
#define NEAR_PIPE MIB

/* Return the number of owners whose links work at the same time. In a gather they are the owners of the
 * blocks that NCCL's window touches, and nibble-scale finds a tenth more. */
static double owners_of(const struct nb_cost_machine *f, const struct nb_cost_op *op, double flight,
                        double block)
{
    /* Buffers of twice the bandwidth-delay product, for a round trip of two hops. */
    const double pipe = nb_max_double(0, 4 * f->link * f->latency - NEAR_PIPE);

    if (op->func == NB_FUNC_ALL_GATHER)
        return nb_min_double(op->nodes, 1 + 1.1 * flight / block);
    return nb_cost_owners(op->nodes, flight, block, op->credits * op->unit, pipe / op->ratio);
}

/* Return whether rows lie within sites, so that only hops along columns are distant. */
static bool rows_at_sites(const struct nb_cost_op *op, int columns)
{
    return columns > 0 && op->sites > 1;
}

/* Return the time of a message's hops. An all-reduce's values go to another site and back. Of other functions
 * the blocks of one site follow those of another, and each site takes a hop. */
static double hops_take(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns, int hops)
{
    return rows_at_sites(op, columns) && hops > 2 ? 2 * f->latency + (hops - 2) * f->near : hops * f->latency;
}

/*
 * Return the time in which a site's bytes leave it. Without rows within sites, a node sends its values to all
 * nodes of other sites. With them a row sends sums, once for each of its rows, and an all-gather's blocks and
 * an all-reduce's results once to each row of another site. Sums of rows have 8 bits.
 *
 * The blocks of one site's nodes follow those of another's, and bytes of a reduce-scatter or all-gather go to
 * or from one site at a time, unless NCCL keeps blocks of several sites in flight. On a grid a node runs
 * ahead by the length of its row's message buffers. 1.5 and 0.93 are close to the times of nibble-scale.
 */
static double trunk_takes(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    const double n = op->nodes, sites = op->sites, nodes = n / sites, outside = (n - nodes) / n;
    const double again = nb_cost_ratio_again(op), flight = NB_COST_STEPS * op->chunk * op->channels;
    const double rows = columns ? n / columns : n, own = rows / sites;
    double bytes = op->ratio * nodes * outside, turns = 1;

    if (sites < 2 || f->trunk <= 0)
        return 0;
    if (op->func == NB_FUNC_ALL_REDUCE) {
        bytes =
            columns ? (nb_cost_ratio_of_rows(op) + again) * own * outside : bytes + again * nodes * outside;
    } else if (columns) {
        const double ahead = 1.5 * (columns - 1) * op->credits * op->unit;

        bytes = op->func == NB_FUNC_ALL_GATHER ? op->ratio * own * outside
                                               : nb_cost_ratio_of_rows(op) * own * outside;
        turns = op->func == NB_FUNC_ALL_GATHER ? 0.93 * sites
                                               : nb_max_double(1, sites - ahead * sites / op->bytes);
    } else {
        const double owners = nb_min_double(n, 1 + flight * n / op->bytes);

        turns = sites / nb_max_double(1, nb_min_double(sites, owners / nodes));
    }
    return turns * bytes * op->bytes / f->trunk;
}

/* Return the time of the busiest resource in an operation of many calls. */
static double bound(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    const bool through =
        (columns || (op->schedule == NB_COST_TWO_HOP && op->nodes > 2)) && op->func != NB_FUNC_ALL_REDUCE;
    const double block = op->func == NB_FUNC_ALL_REDUCE ? op->bytes : op->bytes / op->nodes;
    const double group = op->channels < NB_COST_CALL_CHANNELS ? op->channels : NB_COST_CALL_CHANNELS;
    const double part = nb_min_double(op->chunk * group, block), parts = op->bytes / part;
    const double flight = NB_COST_STEPS * op->chunk * op->channels, speed = nb_min_double(1, f->cores);
    const double owners = owners_of(f, op, flight, block);
    const struct nb_cost_part p = nb_cost_part(f, op, columns, part);
    const struct nb_cost_load all = nb_cost_average(op, columns, &p);
    const double link =
        nb_max_double(parts * link_bytes(op, columns, &p, owners) / f->link, trunk_takes(f, op, columns));
    const double work = parts * all.cpu / f->cores, hops = hops_take(f, op, columns, p.hops);
    const double first = p.other.first / speed, last = (p.owner.last + p.other.last) / speed;

    if (through)
        return nb_cost_in_turns(link, work) + first + hops + last;
    if (op->func == NB_FUNC_ALL_REDUCE) {
        const double call = op->chunk * group,
                     turns = nb_cost_turns(f, op, columns, call, ceil(op->bytes / call));
        /* Contributions fill the link while the first results are on their way. */
        const double busy = nb_max_double(first + link, work), away = hops - f->latency + link / 2;
        const double even =
            (columns ? busy + hops : nb_max_double(busy, away) + f->latency) + p.other.last / speed;

        return turns > f->latency ? nb_cost_in_turns(even - hops, turns + hops - f->latency) : even;
    }
    /* Owners whose blocks NCCL has handed over add at the same time. Each of NCCL's first turns waits for its
     * hop. Later turns find their values sent. */
    const double turns = nb_min_double(ceil(op->bytes / flight), nb_min_double(op->nodes, 3));
    return nb_max_double(work, first + turns * hops + last +
                                   nb_max_double(link, parts * p.owner.cpu / f->cores /
                                                           nb_min_double(op->nodes, 1 + flight / block)));
}

/* Return the time that far nodes wait: NCCL keeps eight calls of a group of channels in flight, and a node
 * posts the next when they have made their hops. In a reduce-scatter or gather a block's calls wait together,
 * since its owner posts them all at once. */
static double waits(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    const double turns = ceil(op->bytes / (NB_COST_STEPS * op->chunk * op->channels));
    const int hops = nb_cost_part(f, op, columns, op->chunk).hops;

    return op->func == NB_FUNC_ALL_REDUCE
               ? turns * hops_take(f, op, columns, hops)
               : nb_min_double(turns, op->nodes) * hops_take(f, op, columns, hops > 2 ? 2 : hops);
}

/* Return the time that relays wait in two hops, which adds to the time of the busiest resource. */
static double relays_wait(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    if (columns || op->schedule != NB_COST_TWO_HOP || op->nodes < 3 || op->func == NB_FUNC_ALL_REDUCE)
        return 0;
    return f->latency *
           nb_cost_relay_waits(op->nodes, NB_COST_STEPS * op->chunk * op->channels, op->bytes / op->nodes);
}

static double not_far(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    const double group = op->channels < NB_COST_CALL_CHANNELS ? op->channels : NB_COST_CALL_CHANNELS;
    const double call = op->chunk * group, calls = ceil(op->bytes / call);
    struct nb_cost_op first = *op;
    struct nb_cost_machine apart = *f; /* without a trunk, which one call does not fill */

    if (op->func != NB_FUNC_ALL_REDUCE)
        return bound(f, op, columns);
    /* Add the waits of few calls. */
    first.bytes = nb_min_double(op->bytes, call);
    apart.trunk = 0;
    const struct nb_cost_part p = nb_cost_part(f, op, columns, first.bytes);
    const double work = op->bytes / first.bytes * nb_cost_average(op, columns, &p).cpu / f->cores;
    return nb_max_double(
        work, bound(f, op, columns) +
                  (nb_cost_alone(&apart, &first, columns, call) - bound(&apart, &first, columns)) / calls);
}

double nb_reckon_seconds(const struct nb_cost_machine *f, const struct nb_cost_op *op, int columns)
{
    const double busy = not_far(f, op, columns), relays = relays_wait(f, op, columns);
    double wait = waits(f, op, columns);

    /* The bytes of an all-reduce's last turn still pass the link. */
    if (op->func == NB_FUNC_ALL_REDUCE && wait > busy) {
        const double part = nb_min_double(op->bytes, NB_COST_STEPS * op->chunk * op->channels);
        const struct nb_cost_part p = nb_cost_part(f, op, columns, part);

        wait += nb_max_double(nb_cost_average(op, columns, &p).tx / f->link,
                              trunk_takes(f, op, columns) * part / op->bytes);
    }
    return nb_max_double(sqrt(busy * busy + relays * relays), wait);
}

/* Return the schedule of an operation of so many bytes: coded, or raw because all nodes reckon so. */
static enum nb_cost_schedule schedule_of(const struct nb_cost_machine *f, const struct nb_reckon_nodes *g,
                                         const struct nb_cost_op *op)
{
    const double flight = NB_COST_STEPS * op->chunk * op->channels;
    const double hop = g->rtt / 2 / (op->ratio * op->bytes / g->nodes / f->link);
    const enum nb_cost_second second = op->coded ? nb_cost_second_of(g->second_bits) : NB_COST_SECOND_RAW;

    if (g->columns)
        return NB_COST_TWO_LEVEL;
    if (op->func == NB_FUNC_ALL_REDUCE || g->nodes < 3)
        return NB_COST_DIRECT;
    switch (g->schedule) {
    case NB_SCHEDULE_DIRECT: return NB_COST_DIRECT;
    case NB_SCHEDULE_TWO_HOP: return NB_COST_TWO_HOP;
    case NB_SCHEDULE_TWO_LEVEL:
    case NB_SCHEDULE_AUTO:
    case NB_SCHEDULE_COUNT: break;
    }
    if (op->func == NB_FUNC_ALL_GATHER)
        return nb_cost_gather_hops_pay(g->nodes, flight, op->bytes / g->nodes, hop) ? NB_COST_TWO_HOP
                                                                                    : NB_COST_DIRECT;
    return nb_cost_two_hops_pay(g->nodes, flight, op->bytes / g->nodes, hop, second) ? NB_COST_TWO_HOP
                                                                                     : NB_COST_DIRECT;
}

double nb_reckon_gain(const struct nb_cost_machine *f, const struct nb_reckon_nodes *g, enum nb_func func,
                      double value, double bytes)
{
    struct nb_cost_op op = nb_cost_op_make(func, g->nodes, bytes, value, nb_cost_usual_ratio(func, value));
    struct nb_cost_machine far = *f;
    double coded;

    far.near = f->latency;
    far.trunk = 1e6 / 8 * g->trunk;
    if (far.latency < g->rtt / 2)
        far.latency = g->rtt / 2;
    f = &far;
    op.chunk = nb_reckon_walk_chunk(g, bytes);
    op.unit = g->unit;
    op.group = g->columns;
    op.sites = g->sites;
    op.feedback = func != NB_FUNC_ALL_GATHER;
    op.schedule = schedule_of(f, g, &op);
    if (g->second_bits > 4 && func != NB_FUNC_ALL_GATHER)
        op.ratio_again = op.ratio + (g->second_bits - 4) / (8 * value);
    coded = nb_reckon_seconds(f, &op, g->columns);
    op.coded = op.feedback = false;
    op.schedule = schedule_of(f, g, &op);
    op.ratio = 1;
    op.ratio_again = 0;
    return nb_reckon_seconds(f, &op, g->columns) / coded;
}

/* ---- decisions --------------------------------------------------------------------------------------- */

/* Return the smallest size from which on coding pays at all sizes. */
static uint64_t pays_from(const struct nb_cost_machine *f, const struct nb_reckon_nodes *g, enum nb_func func,
                          double value)
{
    uint64_t from = NB_RECKON_NEVER;

    for (double bytes = LARGEST; bytes >= SMALLEST; bytes /= 2) {
        if (!(nb_reckon_gain(f, g, func, value, bytes) >= PROMISE))
            return from;
        from = (uint64_t)bytes;
    }
    return 0;
}

/* Return the number of codec threads with which some sizes would pay, or 0. */
static unsigned workers_needed(const struct nb_reckon_facts *facts, const struct nb_reckon_nodes *g,
                               enum nb_func func, double value)
{
    struct nb_reckon_facts more = *facts;

    while (more.workers < WORKERS_MOST) {
        more.workers++;
        const struct nb_cost_machine f = nb_reckon_machine(&more, value);
        if (pays_from(&f, g, func, value) != NB_RECKON_NEVER)
            return more.workers;
    }
    return 0;
}

/* Return NCCL's buffer with which some sizes would pay, or 0. */
static uint64_t buffer_needed(const struct nb_reckon_facts *facts, const struct nb_reckon_nodes *g,
                              enum nb_func func, double value)
{
    const struct nb_cost_machine f = nb_reckon_machine(facts, value);
    struct nb_reckon_nodes more = *g;

    more.buffer = nb_reckon_buffer(g->rtt);
    if (more.buffer <= buffer_of(g) || pays_from(&f, &more, func, value) == NB_RECKON_NEVER)
        return 0;
    return (uint64_t)more.buffer;
}

void nb_reckon(const struct nb_reckon_facts *facts, const struct nb_reckon_nodes *g, struct nb_reckoning *out)
{
    *out = (struct nb_reckoning){
        .facts = *facts, .group = *g, .known = facts->mbps > 0 && is_tabled(facts->codec) && g->nodes >= 2};
    for (int i = 0; out->known && i < NB_FUNC_COUNT; i++)
        for (int wide = 0; wide < 2; wide++) {
            const enum nb_func func = (enum nb_func)i;
            const double value = wide ? 4 : 2;
            const struct nb_cost_machine f = nb_reckon_machine(facts, value);
            struct nb_reckoned *r = &out->of[func][wide];

            r->from = pays_from(&f, g, func, value);
            r->times =
                nb_reckon_gain(&f, g, func, value,
                               r->from == NB_RECKON_NEVER ? USUAL : nb_max_double(USUAL, (double)r->from));
            if (r->from == NB_RECKON_NEVER)
                r->buffer = buffer_needed(facts, g, func, value);
            if (r->from == NB_RECKON_NEVER && !r->buffer)
                r->workers = workers_needed(facts, g, func, value);
        }
}

bool nb_reckon_pays(const struct nb_reckoning *r, enum nb_func func)
{
    return r->of[func][0].from != NB_RECKON_NEVER || r->of[func][1].from != NB_RECKON_NEVER;
}

unsigned nb_reckon_workers(const struct nb_reckoning *r, enum nb_func func)
{
    const unsigned narrow = r->of[func][0].workers, wide = r->of[func][1].workers;

    return !narrow || (wide && wide < narrow) ? wide : narrow;
}

uint64_t nb_reckon_buffer_needed(const struct nb_reckoning *r, enum nb_func func)
{
    return r->of[func][0].buffer ? r->of[func][0].buffer : r->of[func][1].buffer;
}

/* ---- words ------------------------------------------------------------------------------------------- */

static int size_text(uint64_t bytes, char *out, size_t cap)
{
    if (bytes % 1024)
        return snprintf(out, cap, "%llu bytes", (unsigned long long)bytes);
    return bytes >= 1 << 20 && bytes % (1 << 20) == 0
               ? snprintf(out, cap, "%llu MiB", (unsigned long long)bytes >> 20)
               : snprintf(out, cap, "%llu KiB", (unsigned long long)bytes >> 10);
}

static void one_text(const struct nb_reckoned *r, char *out, size_t cap)
{
    char size[32];

    if (r->from == NB_RECKON_NEVER && r->buffer)
        snprintf(
            out, cap,
            "raw: NCCL's buffers are too small for this round trip (NCCL_BUFFSIZE=%llu would change that)",
            (unsigned long long)r->buffer);
    else if (r->from == NB_RECKON_NEVER && r->workers)
        snprintf(out, cap,
                 "raw: this link is faster than the codec (NIBBLE_HOST_THREADS=%u would change that)",
                 r->workers);
    else if (r->from == NB_RECKON_NEVER)
        snprintf(out, cap, "raw: this link is faster than the codec");
    else if (r->from == 0)
        snprintf(out, cap, "coded at every size: about %.1f times as fast as raw", r->times);
    else {
        size_text(r->from, size, sizeof(size));
        snprintf(out, cap, "coded from %s on: about %.1f times as fast as raw", size, r->times);
    }
}

void nb_reckon_facts_text(const struct nb_reckoning *r, char *out, size_t cap)
{
    const struct nb_reckon_facts *facts = &r->facts;
    char threads[48] = "", away[48] = "", sites[64] = "";

    if (r->group.trunk)
        snprintf(sites, sizeof(sites), ", %.4g Gbit/s from each of %d sites", r->group.trunk / 1e3,
                 r->group.sites);
    if (r->group.rtt > 0)
        snprintf(away, sizeof(away), " and a round trip of %.4g ms", 1e3 * r->group.rtt);
    if (facts->workers)
        snprintf(threads, sizeof(threads), ", %u codec threads", facts->workers);
    snprintf(out, cap, "links of %.4g Gbit/s%s%s with codec %s%s", facts->mbps / 1e3, sites, away,
             nb_reckon_codec_name((enum nb_reckon_codec)facts->codec), threads);
}

/* Round trips from here on are worth a setting, in seconds. */
#define DISTANT 2e-3

void nb_reckon_distance_text(const struct nb_reckoning *r, char *out, size_t cap)
{
    const double rtt = 1e-4 * r->facts.measured, nominal = r->group.rtt;

    *out = '\0';
    if (rtt < DISTANT || (rtt < 2 * nominal && rtt > nominal / 2))
        return;
    if (nominal > 0)
        snprintf(out, cap,
                 "the longest round trip is %.4g ms, not %.4g ms as NIBBLE_LINK_RTT_US says. Remedy: "
                 "NIBBLE_LINK_RTT_US=%.0f on all ranks",
                 1e3 * rtt, 1e3 * nominal, 1e6 * rtt);
    else
        snprintf(out, cap,
                 "the longest round trip is %.4g ms. Set NIBBLE_LINK_RTT_US=%.0f on all ranks: without it "
                 "nibble takes the nodes for near ones",
                 1e3 * rtt, 1e6 * rtt);
}

void nb_reckon_window_text(const struct nb_reckoning *r, char *out, size_t cap)
{
    const double path = nb_reckon_path(&r->group, r->facts.mbps), unit = nb_reckon_unit(path);
    const double needed = nb_reckon_buffer(r->group.rtt), have = buffer_of(&r->group);
    const bool more = r->group.rtt > 0 && unit > r->group.unit;
    char units[80] = "", rate[48] = "";

    *out = '\0';
    if (more)
        snprintf(units, sizeof(units), "NIBBLE_UNIT_BYTES=%.0f (now %.0f)", unit, r->group.unit);
    if (path > 0)
        snprintf(rate, sizeof(rate), " links of %.4g Gbit/s and", path / 1e3);
    if (needed > have)
        snprintf(out, cap,
                 "NCCL keeps too few bytes in flight for%s a round trip of %.4g ms: set NCCL_BUFFSIZE=%.0f "
                 "(now %.0f)%s%s on all ranks, which takes about %.1f GiB of each GPU for a communicator. An "
                 "eighth of the largest operation suffices",
                 rate, 1e3 * r->group.rtt, needed, have, more ? " and " : "", units,
                 2 * CHANNELS * needed / (1024 * MIB));
    else if (more)
        snprintf(out, cap, "messages are too short for links of %.4g Gbit/s: set %s on all ranks", path / 1e3,
                 units);
}

void nb_reckon_text(const struct nb_reckoning *r, enum nb_func func, char *out, size_t cap)
{
    char narrow[128], wide[128];

    if (!r->known) {
        snprintf(out, cap, "coded");
        return;
    }
    one_text(&r->of[func][0], narrow, sizeof(narrow));
    one_text(&r->of[func][1], wide, sizeof(wide));
    snprintf(out, cap, "BF16 and FP16 %s, FP32 %s", narrow, wide);
}

/* ---- observations -------------------------------------------------------------------------------------- */

/* Codecs that are busy for this share of the time are the limit (coll/flow/window.c). */
#define LIMIT_SHARE 0.75
/* A link that carried less than this share of its rate is slower than the reckoning assumes. */
#define LINK_SHARE 0.5

/* Return whether a link stayed below its rate although codecs did not hold it up. */
static bool slow_link(const struct nb_reckoning *r, const struct nb_reckon_seen *seen)
{
    return seen->link > 0 && seen->share < LINK_SHARE && seen->link < LINK_SHARE * 1e6 / 8 * r->facts.mbps;
}

double nb_reckon_seen_gain(const struct nb_reckoning *r, enum nb_func func, const struct nb_reckon_seen *seen)
{
    struct nb_cost_machine f = nb_reckon_machine(&r->facts, 2);
    struct nb_cost_speed *s = &f.speed;

    if (seen->codec > 0) {
        /* Each of N nodes codes the values of N - 1 blocks, and adds N - 1 to each value of its own. */
        const double n = r->group.nodes;
        const double faster = seen->codec * (n - 1) / n * (1 / s->encode_feedback + 1 / s->decode_add);
        s->encode *= faster;
        s->encode_feedback *= faster;
        s->decode *= faster;
        s->decode_add *= faster;
    }
    if (slow_link(r, seen))
        f.link = seen->link;
    return nb_reckon_gain(&f, &r->group, func, 2, USUAL);
}

void nb_reckon_seen_text(const struct nb_reckoning *r, enum nb_func func, const struct nb_reckon_seen *seen,
                         char *out, size_t cap)
{
    const double gain = nb_reckon_seen_gain(r, func, seen);
    const bool coded = r->of[func][0].from != NB_RECKON_NEVER;
    const char *setting = func == NB_FUNC_ALL_REDUCE ? "NIBBLE_AR" : "NIBBLE_RS";

    if (coded && gain >= 1)
        snprintf(out, cap, "came true: coded about %.1f times as fast as raw, reckoned %.1f", gain,
                 r->of[func][0].times);
    else if (coded)
        snprintf(out, cap, "did not come true: raw would be about %.1f times as fast%s, and %s=raw pins that",
                 1 / gain, seen->share >= LIMIT_SHARE ? ", since codecs are the limit" : "", setting);
    else if (gain < PROMISE)
        snprintf(out, cap, "came true: raw, coded would be %.1f times as fast", gain);
    else if (slow_link(r, seen))
        snprintf(out, cap,
                 "did not come true: coded would be about %.1f times as fast on a link of %.3g Gbit/s, the "
                 "rate that it carried, and NIBBLE_LINK_MBPS=%.0f or %s=int4 pins that",
                 gain, 8e-9 * seen->link, 8e-6 * seen->link, setting);
    else
        snprintf(out, cap,
                 "did not come true: coded would be about %.1f times as fast, and %s=int4 pins that", gain,
                 setting);
}
