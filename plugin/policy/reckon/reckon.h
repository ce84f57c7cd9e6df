/* SPDX-License-Identifier: Apache-2.0 */
/* Reckon an operation's time on these links and codecs, raw and coded, and compute the tuner's answers to
 * NCCL. */
#ifndef NIBBLE_POLICY_RECKON_H
#define NIBBLE_POLICY_RECKON_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/nccl_names.h"
#include "base/params.h"
#include "nibble/codec.h"
#include "nibble/nccl_tuner.h"

struct nb_comm_info;
struct nb_comm_rules;
struct nb_params;

/* ---- cost.c: costs of one call ------------------------------------------------------------------------- */

#define NB_COST_STEPS 8         /* NCCL_STEPS: calls of a group of channels in flight */
#define NB_COST_CALL_CHANNELS 8 /* channels that share a call */
/* Pieces through other nodes are multiples of it (plugin/coll/schedule/cut.c). */
#define NB_COST_QUANTUM 1024.0
/* Minimum length of a piece. A block that is too short for a piece of this length through every other node,
 * or on a grid through every other column, is cut into fewer pieces. Shorter pieces cost more in messages
 * than idle links do (docs/scale.md). */
#define NB_COST_PIECE 16384u
#define NB_COST_PIECE_GRID 65536u

enum nb_cost_schedule { NB_COST_DIRECT, NB_COST_TWO_HOP, NB_COST_TWO_LEVEL, NB_COST_SCHEDULES };

/* Bytes of values that one thread codes a second. 0: it takes no time. */
struct nb_cost_speed {
    double encode, encode_feedback, decode, decode_add, ulp_encode, ulp_decode;
};

struct nb_cost_machine {
    double link;     /* bytes a second, each direction of a node's link */
    double latency;  /* of one hop: from the last byte's departure to the receiver's reaction */
    double near;     /* of a hop within a site, where rows lie within sites */
    double trunk;    /* bytes a second, each direction, of all nodes of a site to other sites. 0: no limit */
    double message;  /* processor time of one message at one end */
    double copy;     /* bytes a second of a memory copy */
    double cores;    /* processors of a node for all of this. Less than 1 where nodes share a machine */
    bool host_slots; /* the node's processors fill and drain NCCL's slots (in the harness; else a GPU does) */
    struct nb_cost_speed speed;
};

struct nb_cost_op {
    enum nb_func func;
    enum nb_cost_schedule schedule;
    int nodes;
    double bytes;       /* of the whole vector */
    double value;       /* bytes of one value */
    double ratio;       /* bytes on the wire over bytes of values, headers included. 1: raw */
    double ratio_again; /* of sums that are quantized a second time. 0: the same */
    bool coded, feedback;
    double chunk;
    int channels;
    double unit;    /* maximum bytes of values of a message */
    double credits; /* units */
    int group;      /* two-level: nodes of a row. 0: as the caller chooses */
    int sites;      /* of as many nodes each, within which rows lie. 0 or 1: distances are the same */
};

/* Costs of one part of a call on a node in one role. Link loads are bytes on the wire. */
struct nb_cost_load {
    double tx, rx, cpu;
    double first; /* processor time before the first unit can leave */
    double last;  /* processor time after the last unit's arrival */
};

/* Costs by a node's place: the block's owner, the nodes of its row and of its column, and all others. Without
 * a grid all nodes but the owner are others. */
struct nb_cost_part {
    struct nb_cost_load owner, row, column, other;
    int hops;
};

/* Return an operation in NCCL's chunks of 128 KiB on 8 channels, with nibble's default units and credits,
 * sent directly to the nodes that need its bytes. It is coded where the ratio is below 1. */
struct nb_cost_op nb_cost_op_make(enum nb_func func, int nodes, double bytes, double value, double ratio);

/* Return the usual bytes on the wire over bytes of values in training, for values of `value` bytes (2: BF16,
 * 4: FP32): of 4-bit sums, and of exact differences of weights. A sum's ratio is its format's. Differences
 * depend on the learning rate: 0.19 of BF16 are 3 bits of 16, and the transformer of docs/training.md had
 * 2.6. */
double nb_cost_usual_ratio(enum nb_func func, double value);

/* Return the costs of `len` bytes that lie in one rank's block, or of an all-reduce, where every node is
 * "other". columns: of the grid, 0 without a grid. */
struct nb_cost_part nb_cost_part(const struct nb_cost_machine *figures, const struct nb_cost_op *op,
                                 int columns, double len);
/* Return the costs of one node on average, as each node in turn is the owner. */
struct nb_cost_load nb_cost_average(const struct nb_cost_op *op, int columns,
                                    const struct nb_cost_part *part);

/* Return the ratios of sums that are quantized a second time, and of sums of rows. */
double nb_cost_ratio_again(const struct nb_cost_op *op);
double nb_cost_ratio_of_rows(const struct nb_cost_op *op);
/*
 * Return the seconds that `calls` calls of `call` bytes of a two-level all-reduce spend in turns. The nodes
 * of a column finish its segments by turns, each in the order of calls. A node that waits for the other
 * nodes' sums of a segment keeps its row's messages, and sums the next segments for other nodes, as far as
 * its row's message buffers suffice. So as many segments as a row has credits cost a hop, unless one node
 * finishes all of the call's bytes for the column. Return 0 where no node waits for that.
 */
double nb_cost_turns(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns,
                     double call, double calls);

/*
 * Return the time of an all-reduce of one call, on the node with the most work. Its stages follow one another
 * while the links carry no other operation. First a node encodes all its values, before the first of them
 * leaves, and sends them to the nodes that sum them. On a grid, sums of rows then go along columns. Then
 * results go out, on a grid along the columns and then along the rows. A call is cut like a whole one
 * (coll/schedule/two_level.c), however few of its bytes are values.
 */
double nb_cost_alone(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns,
                     double call);

#define NB_COST_AHEAD (48 * 131072.0) /* bytes that a node stages for another one, by default */

/* Return the number of owners that receive a direct reduce-scatter's values at the same time, with blocks of
 * `block` bytes and `flight` bytes in flight. NCCL's window lies in 1 + flight/block blocks. Nodes run ahead
 * of it by the bytes that they stage (`ahead`) and that a distant link's buffers hold (`pipe`). The more
 * nodes there are, the more of the staged bytes belong to later blocks. So N blocks take so many turns of a
 * block's time, and a last turn that is not full takes nearly a whole block's. Of two nodes only one sends at
 * a time, until half of the bytes are in flight. The figures are close to the times of nibble-scale
 * (tests/scale/test-scale.sh, tools/model/test_predict.c). */
static inline double nb_cost_owners(double nodes, double flight, double block, double ahead, double pipe)
{
    const double window = flight / block, share = nodes > 3 ? 0.4 + 0.7 * log2(nodes / 4) : 0;
    const double held = pipe < block / 3 ? block / (block - pipe) - 1 : 0.5;
    const double staged = share * ahead / block;
    const double more = fmax(staged, fmin(0.5, staged + held)), turns = nodes / (1 + window + more);
    double taken = fmax(turns, 0.5 + 0.85 * turns);

    if (nodes <= 2)
        return 2 / fmax(1, 2 - 0.875 * window);
    if (turns < 2)
        taken = fmax(2 - fmin(0.5, more), 0.5 + 0.85 * turns);
    taken = fmax(1, fmin(taken, 1 + 3.5 * (turns - 1)));
    return nodes / taken;
}

/* Coding of the second hop's sums in two hops. */
enum nb_cost_second { NB_COST_SECOND_RAW, NB_COST_SECOND_INT4, NB_COST_SECOND_INT6, NB_COST_SECOND_INT8 };

/* Return the bits of a sum that goes on, by NIBBLE_SECOND_HOP. */
static inline unsigned nb_second_hop_bits(enum nb_second_hop_word word)
{
    return word == NB_SECOND_HOP_INT8 ? 8 : word == NB_SECOND_HOP_INT6 ? 6 : 4;
}

static inline enum nb_cost_second nb_cost_second_of(unsigned bits)
{
    return bits == 8 ? NB_COST_SECOND_INT8 : bits == 6 ? NB_COST_SECOND_INT6 : NB_COST_SECOND_INT4;
}

/* Return the hops that two hops wait for: a relay's window is complete when its values have come, so NCCL's
 * walk waits a hop in each turn, and each owner's result takes one more. 0: all is in flight at once. */
static inline double nb_cost_relay_waits(double nodes, double flight, double block)
{
    const double turns = ceil(nodes * block / flight);

    return turns > 1 ? turns + (turns < nodes ? turns : nodes) : 0;
}

/* Return the time of two hops with the relays' waits. Times are in units of all blocks' time on a link, and
 * `hop` in units of one block's. The root of the squares is close to the times of nibble-scale. */
static inline double nb_cost_two_hops(double nodes, double flight, double block, double hop, double near)
{
    const double waits = hop > 0 ? nb_cost_relay_waits(nodes, flight, block) * hop / nodes : 0;

    return sqrt(near * near + waits * waits);
}

/* Return whether a reduce-scatter goes by two hops in a full mesh of three nodes and more.
 * coll/schedule/two_hop.c explains why. hop: a nominal hop over the time of a block's bytes on the wire, 0
 * between near nodes. */
static inline bool nb_cost_two_hops_pay(double nodes, double flight, double block, double hop,
                                        enum nb_cost_second second)
{
    const double near = second == NB_COST_SECOND_INT8 ? 2.2 : second == NB_COST_SECOND_INT6 ? 1.45 : 1.1;
    const double promise = second == NB_COST_SECOND_INT4 ? 1.5 : 1;
    const double two_hops = nb_cost_two_hops(nodes, flight, block, hop, near);
    /* A link's buffers hold twice a round trip. */
    const double owners = nb_cost_owners(nodes, flight, block, NB_COST_AHEAD, 4 * hop * block);

    return (nodes - 1) / owners >= promise * two_hops;
}

/* Return whether an all-gather goes by two hops in a full mesh of three nodes and more.
 * coll/schedule/two_hop.c explains why. Coding matters for `hop` only, as coded bytes are forwarded
 * unchanged. */
static inline bool nb_cost_gather_hops_pay(double nodes, double flight, double block, double hop)
{
    const double owners = 1 + flight / (2 * block);

    return nodes - 1 > nb_cost_two_hops(nodes, flight, block, hop, 1.1) * (owners > nodes ? nodes : owners);
}

/* Return the time in which two resources are busy for `a` and `b` seconds, where each at times waits for the
 * other. The sum of cubes has no theory behind it, but is close to the times of nibble-scale
 * (docs/scale.md). */
static inline double nb_cost_in_turns(double a, double b)
{
    return cbrt(a * a * a + b * b * b);
}

/* ---- reckon.c: the size from which on coding pays ------------------------------------------------------ */

/* Codecs, slowest first. The numbers travel in votes (docs/messages.md): never change them. */
enum nb_reckon_codec {
    NB_RECKON_UNKNOWN = 0, /* without a tabled speed */
    NB_RECKON_PORTABLE = 1,
    NB_RECKON_AVX2 = 2,
    NB_RECKON_AVX512 = 3,
    NB_RECKON_GPU = 255, /* also without one: a GPU's codec has never been the limit */
};

/* Facts of one node, on which the reckoning rests. */
struct nb_reckon_facts {
    uint32_t mbps;    /* nominal rate of a node's link, one direction, Mbit/s. 0: unknown */
    uint32_t codec;   /* enum nb_reckon_codec */
    uint32_t workers; /* codec threads. 0: the engine's thread does all the work */
    uint32_t buffer;  /* NCCL's buffer of a channel in MiB (NCCL_BUFFSIZE). 0: NCCL's default */
    /* Measured round trip to the farthest neighbor, in units of 0.1 ms. 0: unknown. For advice, never for a
     * decision. */
    uint32_t measured;
};
#define NB_RECKON_BUFFER_MIB 4u       /* NCCL's buffer of a channel where NCCL_BUFFSIZE is not set */
#define NB_RECKON_NO_LIMIT UINT32_MAX /* workers of a node whose codecs run on a GPU */

/* Return the codec number of a variant. */
enum nb_reckon_codec nb_reckon_codec_of(enum nb_variant variant);
const char *nb_reckon_codec_name(enum nb_reckon_codec codec);

/* Put the slower of each, and the longer round trip, into *all. An unknown codec is the slowest: it keeps the
 * group coded. */
void nb_reckon_slowest(struct nb_reckon_facts *all, const struct nb_reckon_facts *one);

/* Facts that all nodes of a group share by settings. */
struct nb_reckon_nodes {
    int nodes;
    int columns;                    /* of the grid. 0: every node sends to all nodes */
    enum nb_schedule_word schedule; /* NIBBLE_SCHEDULE. Two-level without a grid is auto */
    double unit;                    /* NIBBLE_UNIT_BYTES */
    unsigned second_bits;           /* NIBBLE_SECOND_HOP: bits of sums that go on. 0: 4 */
    double rtt;                     /* NIBBLE_LINK_RTT_US in seconds. 0: the nodes are near */
    int sites;                      /* that the nodes name (NIBBLE_SITE). 0: none, or rows cross them */
    uint32_t trunk;                 /* Mbit/s that leave a site, by NIBBLE_SITE. 0: no limit */
    double buffer;                  /* bytes of NCCL's buffer of a channel. 0: its default */
};

/* A node's observations of the reckoning's facts. They influence no decision. */
struct nb_reckon_seen {
    double codec; /* bytes of values a second of a thread that codes and sums. 0: none coded yet */
    double link;  /* bytes a second sent while operations were under way */
    double share; /* share of that time in which codecs were busy, by nb_pace_share */
};

#define NB_RECKON_NEVER UINT64_MAX
struct nb_reckoned {
    uint64_t from; /* bytes of the whole vector from which coding pays. 0: always, NB_RECKON_NEVER: never */
    double times;  /* raw time over coded time, of 64 MiB or of `from` bytes if that is more */
    /* Where coding never pays: codec threads with which it would pay for some sizes. 0: no number helps. */
    unsigned workers;
    /* Likewise the bytes of NCCL's buffer (NCCL_BUFFSIZE), between distant nodes. */
    uint64_t buffer;
};

struct nb_reckoning {
    struct nb_reckon_facts facts;
    struct nb_reckon_nodes group;
    bool known;                              /* without a rate and a speed all is coded */
    struct nb_reckoned of[NB_FUNC_COUNT][2]; /* by function, and by width of a value: 2 bytes, 4 bytes */
};

/* Return the nominal time of a hop over the time of `block` bytes on the wire, for the choice of a schedule.
 * 0: the nodes are near, or the links' rate is unknown. */
double nb_reckon_hop(const struct nb_reckoning *r, enum nb_func func, double value, bool coded, double block);

/* Reckon from which size on coding pays. For all-gathers the result only says whether a communicator can gain
 * (nb_policy_declines). A gather that comes to a connected communicator is coded at every size, since the
 * ratio of exact differences is known after they were computed. The reckoning uses the ratio of
 * nb_cost_usual_ratio. */
void nb_reckon(const struct nb_reckon_facts *facts, const struct nb_reckon_nodes *group,
               struct nb_reckoning *out);
static inline uint64_t nb_reckon_from(const struct nb_reckoning *r, enum nb_func func, size_t value)
{
    return r->of[func][value > 2].from;
}

/* Return whether coding values of `value` bytes pays at no size. */
static inline bool nb_reckon_never(const struct nb_reckoning *r, enum nb_func func, size_t value)
{
    return nb_reckon_from(r, func, value) == NB_RECKON_NEVER;
}

/* Return whether coding pays at some size, for values of 2 bytes or of 4. */
bool nb_reckon_pays(const struct nb_reckoning *r, enum nb_func func);
/* Return the smallest number of codec threads with which coding would pay, where it pays at no size, else 0.
 * Also 0 when it would pay with no number of threads. */
unsigned nb_reckon_workers(const struct nb_reckoning *r, enum nb_func func);
/* Return the NCCL_BUFFSIZE with which coding would pay, where it pays at no size, else 0. */
uint64_t nb_reckon_buffer_needed(const struct nb_reckoning *r, enum nb_func func);
/* Write "links of 25 Gbit/s with codec avx2, 4 codec threads" to out. */
void nb_reckon_facts_text(const struct nb_reckoning *r, char *out, size_t cap);
/* Where the measured round trip is distant and another one than the nominal one, write the remedy to out,
 * else "". */
void nb_reckon_distance_text(const struct nb_reckoning *r, char *out, size_t cap);
/* Where NCCL's buffers are too small for the nominal round trip, write the remedy to out, else "". */
void nb_reckon_window_text(const struct nb_reckoning *r, char *out, size_t cap);

/* The parts of the reckoning, for nibble-model and tests. */

/* Return the recommended NCCL_BUFFSIZE between distant nodes, with which 1 GiB is in flight as a whole. NCCL
 * walks through a reduce-scatter block by block, so that links are idle at any rate and round trip unless all
 * blocks are in flight. 0: the nodes are near. */
double nb_reckon_buffer(double rtt);
/* Return the recommended NIBBLE_UNIT_BYTES on links of this rate, where smaller messages would keep a
 * processor longer than the link. 0: the default suffices. */
double nb_reckon_unit(double mbps);
/* Return the rate of the slowest link between two nodes of a group, in Mbit/s. */
double nb_reckon_path(const struct nb_reckon_nodes *group, double mbps);
/* Return the chunk of an operation of `bytes` bytes in all, on `channels` channels: between distant nodes a
 * channel's eight slots hold the whole operation, if they are large enough. */
double nb_reckon_chunk(double bytes, double channels);
/* Return the chunk of NCCL's walk over an operation of `bytes` bytes with these buffers at this round
 * trip. */
double nb_reckon_walk_chunk(const struct nb_reckon_nodes *group, double bytes);

/* Return the figures of links and codecs of known facts. `value`: bytes of one value. */
struct nb_cost_machine nb_reckon_machine(const struct nb_reckon_facts *facts, double value);
/* Return an operation's time: the busiest resource's, and waits. columns: of the grid, or 0. */
double nb_reckon_seconds(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns);
/* Return raw time over coded time of an operation of `bytes` in all. */
double nb_reckon_gain(const struct nb_cost_machine *figures, const struct nb_reckon_nodes *group,
                      enum nb_func func, double value, double bytes);

/* Return raw time over coded time of 64 MiB of BF16 with the observed speed of codecs. Where codecs were not
 * the limit and the link carried less than half of its rate, use the observed rate, too. Call it only with a
 * known reckoning. */
double nb_reckon_seen_gain(const struct nb_reckoning *r, enum nb_func func,
                           const struct nb_reckon_seen *seen);
/* Write whether the reckoning came true, and if not, the setting that pins the better choice. */
void nb_reckon_seen_text(const struct nb_reckoning *r, enum nb_func func, const struct nb_reckon_seen *seen,
                         char *out, size_t cap);

/* Write "coded from 64 KiB on: about 3.1 times as fast as raw", or "raw: ...", into out. */
void nb_reckon_text(const struct nb_reckoning *r, enum nb_func func, char *out, size_t cap);

/* ---- decline.c: communicators that the nodes decline at connect ---------------------------------------- */

/* Return whether settings exclude the communicator (NIBBLE_ENABLE, NIBBLE_COMMS), or its name does. A
 * framework's name of tensor, sequence, context or expert parallelism excludes it unless a rule of
 * NIBBLE_COMMS includes it by a condition that it meets. Such traffic is activations, not gradients or
 * weights. */
bool nb_policy_excludes(const struct nb_params *params, const struct nb_comm_rules *rules,
                        const struct nb_comm_info *info, char *why, size_t cap);
/* Return whether coding gains no time: settings leave some function to the reckoning (auto), and every
 * function is raw, by its setting or because coding pays at no size. Return false where a link's rate or a
 * codec's speed is unknown. All nodes reckon with the same facts and settings, so that all return the
 * same. */
bool nb_policy_declines(const struct nb_params *params, const struct nb_reckoning *reckoning, char *why,
                        size_t cap);

/* ---- tuning.c: when NCCL takes CollNet ----------------------------------------------------------------- */

struct nb_tuning {
    const struct nb_params *params;
    size_t nranks, nnodes;
    int records; /* this NCCL reports the users' calls (2.28 and later): all-reduces can be coded */
};

/* Return 1 when coding this operation of `bytes` bytes (the whole vector over all ranks) pays by the
 * settings. */
int nb_tuning_pays(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes);

/* Return whether NCCL, which takes the lowest entry of table[algos][protos] that is not negative, takes an
 * algorithm that reaches CollNet between nodes. Also return true where the table leaves it open. */
bool nb_tuning_reaches(const float *table, int algos, int protos);

/* Lower CollNet's entry of table[algos][protos] below all others when coding pays. Return true when the entry
 * changed. Entries of -1 stay as they are (but see NIBBLE_FORCE_COLLNET). */
bool nb_tuning_costs(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes, float *table, int algos,
                     int protos);

/* Return the chunk for an operation of `bytes` bytes (the whole vector over all ranks) for which NCCL chose
 * `chunk`. NCCL limits the answer to an eighth of its buffer. NVLS has buffers of its own chunk and would
 * overrun them, so only CollNet-direct gets a larger one. */
size_t nb_tuning_chunk(const struct nb_tuning *tuning, size_t bytes, int algo, int proto, int channels,
                       size_t chunk);

#endif
