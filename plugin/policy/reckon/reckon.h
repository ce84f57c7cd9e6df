/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation costs on these links and codecs, raw and coded, and what NCCL's tuner is told. */
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

/* ---- cost.c: costs of one call
 * --------------------------------------------------------------------------- */

#define NB_COST_STEPS 8         /* NCCL_STEPS: calls that a group of channels has in flight */
#define NB_COST_CALL_CHANNELS 8 /* channels that share a call */
#define NB_COST_QUANTUM \
    1024.0 /* plugin/coll/schedule/cut.c: what goes through others is cut into multiples of it */
/* And, where a block is too short for a piece of this length through every other node, or on a grid every
 * other column, into fewer pieces: shorter ones cost more in messages than idle links do (docs/scale.md). */
#define NB_COST_PIECE 16384u
#define NB_COST_PIECE_GRID 65536u

enum nb_cost_schedule { NB_COST_DIRECT, NB_COST_TWO_HOP, NB_COST_TWO_LEVEL, NB_COST_SCHEDULES };

/* Bytes of values a second of one thread; 0: it takes no time. */
struct nb_cost_speed {
    double encode, encode_feedback, decode, decode_add, ulp_encode, ulp_decode;
};

struct nb_cost_machine {
    double link;     /* bytes a second, each direction of a node's link */
    double latency;  /* of one hop: from the last byte there to the reaction here */
    double queue;    /* bytes on the wire that the transport takes on a connection before they leave */
    double message;  /* processor time of one message at one end */
    double copy;     /* bytes a second that memory is copied at */
    double cores;    /* processors of a node for all of this; less than 1 where nodes share a machine */
    bool host_slots; /* the node's processors fill and drain NCCL's slots (the harness does; a GPU else) */
    struct nb_cost_speed speed;
};

struct nb_cost_op {
    enum nb_func func;
    enum nb_cost_schedule schedule;
    int nodes;
    double bytes;       /* of the whole vector */
    double value;       /* bytes of one */
    double ratio;       /* bytes on the wire over bytes of values, headers included; 1: raw */
    double ratio_again; /* of what is quantized a second time; 0: the same */
    bool coded, feedback;
    double chunk;
    int channels;
    double unit;    /* bytes of values of a message at most */
    double credits; /* units */
    int group;      /* two-level: nodes of a row; 0: as the caller chooses */
};

/* What one part of a call costs a node in one role. Link loads in bytes on the wire. */
struct nb_cost_load {
    double tx, rx, cpu;
    double first; /* processor time before the first unit can go */
    double last;  /* processor time behind the last unit's arrival */
};

/* By a node's place: the block's owner, the nodes of its row and of its column, and all others. Without a
 * grid all but the owner are others. */
struct nb_cost_part {
    struct nb_cost_load owner, row, column, other;
    int hops;
    bool early; /* a node that only contributes is finished once it has encoded */
};

/* An operation in NCCL's chunks of 128 KiB on 8 channels, with nibble's default units and credits, straight
 * to where its bytes are needed; coded where the ratio is below 1. */
struct nb_cost_op nb_cost_op_make(enum nb_func func, int nodes, double bytes, double value, double ratio);

/* Bytes on the wire over bytes of values, as training has them, where values have so many bytes (2: BF16, 4:
 * FP32): 4-bit sums, and exact differences of weights. A sum's ratio is that of its format. Differences
 * depend on the learning rate: 0.19 of BF16 are 3 bits of 16, and the transformer of docs/training.md had
 * 2.6. */
double nb_cost_usual_ratio(enum nb_func func, double value);

/* Costs of `len` bytes that lie in one rank's block, or of an all-reduce, where every node is "other".
 * columns: of the grid, 0: there is none. */
struct nb_cost_part nb_cost_part(const struct nb_cost_machine *figures, const struct nb_cost_op *op,
                                 int columns, double len);
/* Of one node on average, as the owner goes round. */
struct nb_cost_load nb_cost_average(const struct nb_cost_op *op, int columns,
                                    const struct nb_cost_part *part);

/* Bytes on the wire of `copies` messages' worth of `bytes` each, of `ratio`. */
double nb_cost_wire(const struct nb_cost_op *op, double ratio, double copies, double bytes);
/* Ratios of what is quantized a second time, and of sums of rows. */
double nb_cost_ratio_again(const struct nb_cost_op *op);
double nb_cost_ratio_of_rows(const struct nb_cost_op *op);
/* Processor times of `bytes` of values: to make messages of them, to store what has come, to copy, to add to
 * a sum, to code a sum again. */
double nb_cost_encode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_decode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_copy(const struct nb_cost_machine *figures, double bytes);
double nb_cost_add(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_recode(const struct nb_cost_machine *figures, const struct nb_cost_op *op, double bytes);

/*
 * Two-level all-reduces. The nodes of a column finish its segments by turns, each in the order of calls, and
 * a node that waits for the others' sums of one does not send its own of the next: so every segment costs a
 * hop, unless one node finishes all that a call has for the column. Seconds of `calls` calls of `call` bytes;
 * 0 where none waits for that.
 */
double nb_cost_turns(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns,
                     double call, double calls);

/*
 * What an all-reduce of one call takes, on the node that has most to do. Nothing else is under way that would
 * fill the links while its stages follow one another: values are coded, all of them before the first leaves,
 * and go to who sums them; on a grid, sums of rows go along columns; results go out, on a grid along the
 * columns and then along the rows. A call is cut as a whole one is (coll/schedule/two_level.c), however
 * little of it is values.
 */
double nb_cost_alone(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns,
                     double call);

/* Owners that receive a direct reduce-scatter's values at the same time, with blocks of so many bytes and
 * `flight` bytes in flight: contributions are staged, so that nodes run ahead of the block that is summed. As
 * measured over links of limited speed (docs/performance.md). */
static inline double nb_cost_owners(double nodes, double flight, double block)
{
    const double owners = 1.5 + nodes * flight / (8 * block);

    return owners > nodes ? nodes : owners;
}

/* What becomes of the second hop's sums in two hops. */
enum nb_cost_second { NB_COST_SECOND_RAW, NB_COST_SECOND_INT4, NB_COST_SECOND_INT8 };

/* Whether two hops are chosen for a reduce-scatter in a full mesh of three nodes and more.
 * coll/schedule/two_hop.c tells why. */
static inline bool nb_cost_two_hops_pay(double nodes, double flight, double block, enum nb_cost_second second)
{
    const double two_hops = second == NB_COST_SECOND_INT8 ? 2.2 : 1.1;
    const double promise = second == NB_COST_SECOND_INT8 ? 1.2 : second == NB_COST_SECOND_INT4 ? 1.5 : 1;

    return (nodes - 1) / nb_cost_owners(nodes, flight, block) >= promise * two_hops;
}

/* Return whether an all-gather goes by two hops in a full mesh of three nodes and more: coll/two_hop_gather.c
 * tells why. Coding does not matter, as coded bytes are forwarded unchanged. */
static inline bool nb_cost_gather_hops_pay(double nodes, double flight, double block)
{
    const double owners = 1 + flight / (2 * block);

    return nodes - 1 > 1.1 * (owners > nodes ? nodes : owners);
}

/* Two resources are busy for `a` and `b` seconds, but neither always has something to do, since the other
 * comes before it. The sum of cubes is no theory, but close to what nibble-scale finds (docs/scale.md). */
static inline double nb_cost_in_turns(double a, double b)
{
    return cbrt(a * a * a + b * b * b);
}

/* ---- reckon.c: from which size on coding pays
 * ------------------------------------------------------------ */

/* Codecs, slowest first. The numbers travel in votes (docs/messages.md): never change them. */
enum nb_reckon_codec {
    NB_RECKON_UNKNOWN = 0, /* no speed is tabled */
    NB_RECKON_PORTABLE = 1,
    NB_RECKON_AVX2 = 2,
    NB_RECKON_AVX512 = 3,
    NB_RECKON_GPU = 255, /* nor for these: a GPU's codec has not been found to be the limit */
};

/* What the reckoning rests on. */
struct nb_reckon_facts {
    uint32_t mbps;    /* nominal rate of a node's link, one direction, Mbit/s; 0: unknown */
    uint32_t codec;   /* enum nb_reckon_codec */
    uint32_t workers; /* codec threads; 0: the engine's thread does it all */
};
#define NB_RECKON_NO_LIMIT UINT32_MAX /* workers of a node whose codecs run on a GPU */

/* The variant's number here. */
enum nb_reckon_codec nb_reckon_codec_of(enum nb_variant variant);
const char *nb_reckon_codec_name(enum nb_reckon_codec codec);

/* Put the slower of each into *all. An unknown one is the slowest: it keeps the group coded. */
void nb_reckon_slowest(struct nb_reckon_facts *all, const struct nb_reckon_facts *one);

/* What all nodes of a group have alike by settings. */
struct nb_reckon_nodes {
    int nodes;
    int columns;                    /* of the grid; 0: every node sends to every other */
    enum nb_schedule_word schedule; /* NIBBLE_SCHEDULE; two-level without a grid: as auto */
    double unit;                    /* NIBBLE_UNIT_BYTES */
    bool second_int8;               /* NIBBLE_RS_SECOND */
};

/* What a node has seen of what the reckoning rests on. It decides nothing. */
struct nb_reckon_seen {
    double codec; /* bytes of values a second of a thread that codes and sums; 0: nothing was coded */
    double link;  /* bytes a second that were sent while operations were under way */
    double share; /* of that time in which codecs were busy, as nb_pace_share has it */
};

#define NB_RECKON_NEVER UINT64_MAX
struct nb_reckoned {
    uint64_t from; /* bytes of the whole vector; 0: all; NB_RECKON_NEVER: none */
    double times;  /* raw over coded, of 64 MiB or what `from` says if that is more */
    unsigned
        workers; /* where none is: with so many codec threads some would be; 0: no number of them changes that */
};

struct nb_reckoning {
    struct nb_reckon_facts facts;
    struct nb_reckon_nodes group;
    bool known;                              /* false: rate or speed is unknown, all is coded */
    struct nb_reckoned of[NB_FUNC_COUNT][2]; /* by function, and width of a value: 2 bytes, 4 */
};

/* Reckon from which size on coding pays. For all-gathers the result only says whether a communicator has
 * anything to gain (nb_policy_declines). A gather that comes to a connected communicator is coded at every
 * size, since the ratio of exact differences is known when they have been made. The reckoning takes the ratio
 * of nb_cost_usual_ratio. */
void nb_reckon(const struct nb_reckon_facts *facts, const struct nb_reckon_nodes *group,
               struct nb_reckoning *out);
static inline uint64_t nb_reckon_from(const struct nb_reckoning *r, enum nb_func func, size_t value)
{
    return r->of[func][value > 2].from;
}

/* Return whether coding pays at some size, for values of 2 bytes or of 4. */
bool nb_reckon_pays(const struct nb_reckoning *r, enum nb_func func);
/* Where it pays at no size: the smallest number of codec threads with which it would, or 0. */
unsigned nb_reckon_workers(const struct nb_reckoning *r, enum nb_func func);
/* Write "links of 25 Gbit/s with codec avx2, 4 codec threads" to out. */
void nb_reckon_facts_text(const struct nb_reckon_facts *facts, char *out, size_t cap);

/* The parts that it is made of: for nibble-model, and tests. */

/* Figures of links and codecs; facts that are known. `value`: bytes of one. */
struct nb_cost_machine nb_reckon_machine(const struct nb_reckon_facts *facts, double value);
/* How long an operation takes: what bounds it, and its waits. columns: of the grid, or 0. */
double nb_reckon_seconds(const struct nb_cost_machine *figures, const struct nb_cost_op *op, int columns);
/* Raw over coded, of an operation of `bytes` in all. */
double nb_reckon_gain(const struct nb_cost_machine *figures, const struct nb_reckon_nodes *group,
                      enum nb_func func, double value, double bytes);

/* Raw over coded of 64 MiB of BF16 with codecs as fast as was seen and, where they were not the limit and the
 * link did not get to half of its rate, a link of what was seen. Only where the reckoning is known. */
double nb_reckon_seen_gain(const struct nb_reckoning *r, enum nb_func func,
                           const struct nb_reckon_seen *seen);
/* Whether what was reckoned came true, and if not, the setting that pins what would be better. */
void nb_reckon_seen_text(const struct nb_reckoning *r, enum nb_func func, const struct nb_reckon_seen *seen,
                         char *out, size_t cap);

/* "coded from 64 KiB on: about 3.1 times as fast as raw", or "raw: ...", into out. */
void nb_reckon_text(const struct nb_reckoning *r, enum nb_func func, char *out, size_t cap);

/* ---- decline.c: communicators that the nodes decline at connect
 * ------------------------------------------ */

/* Settings exclude the communicator (NIBBLE_ENABLE, NIBBLE_COMMS), or a framework gave it a name of tensor,
 * sequence, context or expert parallelism, and no rule of NIBBLE_COMMS includes it by a condition that it
 * meets. Its traffic is then activations: neither gradients nor weights. */
bool nb_policy_excludes(const struct nb_params *params, const struct nb_comm_rules *rules,
                        const struct nb_comm_info *info, char *why, size_t cap);
/* Coding gains nothing: settings leave some function to the reckoning (auto), and every function is raw, by
 * its setting or because coding pays at no size. Where a link's rate or a codec's speed is unknown the answer
 * is false. All nodes reckon with the same facts and settings, so all answer alike. */
bool nb_policy_declines(const struct nb_params *params, const struct nb_reckoning *reckoning, char *why,
                        size_t cap);

/* ---- tuning.c: when NCCL takes CollNet
 * ------------------------------------------------------------------- */

struct nb_tuning {
    const struct nb_params *params;
    size_t nranks, nnodes;
    int records; /* this NCCL tells the users' calls (2.28 and later): all-reduces can be coded */
};

/* 1 when coding this operation of `bytes` bytes (the whole vector over all ranks) pays by the settings. */
int nb_tuning_pays(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes);

/* Lower CollNet's entry of table[algos][protos] below all others when it pays: true when it was not so
 * before. Entries of -1 stay as they are (but see NIBBLE_FORCE_COLLNET). */
bool nb_tuning_costs(const struct nb_tuning *tuning, ncclFunc_t func, size_t bytes, float *table, int algos,
                     int protos);

/* The chunk for an operation for which NCCL chose `chunk`. NVLS has buffers of its own chunk and would
 * overrun them, so only CollNet-direct is ever raised. */
size_t nb_tuning_chunk(const struct nb_tuning *tuning, int algo, int proto, size_t chunk);

#endif
