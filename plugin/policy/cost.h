/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a part of one operation's bytes costs the nodes: bytes on their links and time of their processors, by
 * schedule and by a node's place. nibble-model (tools/model) walks NCCL's calls over these costs, and
 * policy/reckon.h decides by them what is coded, so that both say the same of the same link and codec.
 *
 * Everything is in bytes and seconds. "Bytes" of a codec's speed are those of values, before coding. Pure functions of
 * their arguments; any thread.
 */
#ifndef NIBBLE_POLICY_COST_H
#define NIBBLE_POLICY_COST_H

#include <math.h>
#include <stdbool.h>

#include "base/func.h"

#define NB_COST_STEPS 8 /* NCCL_STEPS: calls that a group of channels has in flight */
#define NB_COST_GROUP 8 /* channels that share a call */
#define NB_COST_QUANTUM \
    1024.0 /* plugin/coll/schedule/cut.c: what goes through others is cut into multiples of it */
/* And, where a block is too short for a piece of this length through every other node, or on a grid every other column,
 * into fewer pieces: shorter ones cost more in messages than idle links do (docs/scale.md). */
#define NB_COST_PIECE 16384u
#define NB_COST_PIECE_GRID 65536u

enum nb_cost_schedule { NB_COST_DIRECT, NB_COST_TWO_HOP, NB_COST_TWO_LEVEL, NB_COST_SCHEDULES };

/* Bytes of values a second of one thread; 0: it takes no time. */
struct nb_cost_speed {
    double encode, encode_feedback, decode, decode_add, ulp_encode, ulp_decode;
};

struct nb_cost_figures {
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
    /* nibble-model: a reduce-scatter or all-gather of no more messages than these is followed message by message, which
     * takes about a second for a million; what is larger is walked call by call, and a tenth less exact.
     * 0: the walk alone, also of all-reduces, without what few calls wait for. */
    double followed;
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

/* An operation in NCCL's chunks of 128 KiB on 8 channels, with nibble's default units and credits, straight to where
 * its bytes are needed; coded where the ratio is below 1; 300,000 messages are followed. */
struct nb_cost_op nb_cost_op_make(enum nb_func func, int nodes, double bytes, double value, double ratio);

/* Bytes on the wire over bytes of values, as training has them, where values have so many bytes (2: BF16, 4: FP32):
 * 4-bit sums, and exact differences of weights. A sum's ratio is that of its format. Differences
 * depend on the learning rate: 0.19 of BF16 are 3 bits of 16, and the transformer of docs/training.md had 2.6. */
double nb_cost_usual_ratio(enum nb_func func, double value);

/* Costs of `len` bytes that lie in one rank's block, or of an all-reduce, where every node is "other". columns: of the
 * grid, 0: there is none. */
struct nb_cost_part nb_cost_part(const struct nb_cost_figures *figures, const struct nb_cost_op *op,
                                 int columns, double len);
/* Of one node on average, as the owner goes round. */
struct nb_cost_load nb_cost_average(const struct nb_cost_op *op, int columns,
                                    const struct nb_cost_part *part);

/* Bytes on the wire of `copies` messages' worth of `bytes` each, of `ratio`. */
double nb_cost_wire(const struct nb_cost_op *op, double ratio, double copies, double bytes);
/* Ratios of what is quantized a second time, and of sums of rows. */
double nb_cost_ratio_again(const struct nb_cost_op *op);
double nb_cost_ratio_of_rows(const struct nb_cost_op *op);
/* Processor times of `bytes` of values: to make messages of them, to store what has come, to copy, to add to a sum, to
 * code a sum again. */
double nb_cost_encode(const struct nb_cost_figures *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_decode(const struct nb_cost_figures *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_copy(const struct nb_cost_figures *figures, double bytes);
double nb_cost_add(const struct nb_cost_figures *figures, const struct nb_cost_op *op, double bytes);
double nb_cost_recode(const struct nb_cost_figures *figures, const struct nb_cost_op *op, double bytes);

/*
 * Two-level all-reduces. The nodes of a column finish its segments by turns, each in the order of calls, and a node
 * that waits for the others' sums of one does not send its own of the next: so every segment costs a hop, unless one
 * node finishes all that a call has for the column. Seconds of `calls` calls of `call` bytes; 0 where none waits for that.
 */
double nb_cost_turns(const struct nb_cost_figures *figures, const struct nb_cost_op *op, int columns,
                     double call, double calls);

/*
 * What an all-reduce of one call takes, on the node that has most to do. Nothing else is under way that would fill the links
 * while its stages follow one another: values are coded, all of them before the first leaves, and go to who sums them; on a
 * grid, sums of rows go along columns; results go out, on a grid along the columns and then along the rows. A call is cut
 * as a whole one is (coll/schedule/two_level.c), however little of it is values.
 */
double nb_cost_alone(const struct nb_cost_figures *figures, const struct nb_cost_op *op, int columns,
                     double call);

/* Owners that receive a direct reduce-scatter's values at the same time, with blocks of so many bytes and `flight`
 * bytes in flight: contributions are staged, so that nodes run ahead of the block that is summed. As measured over
 * links of limited speed (docs/performance.md). */
static inline double nb_cost_owners(double nodes, double flight, double block)
{
    const double owners = 1.5 + nodes * flight / (8 * block);

    return owners > nodes ? nodes : owners;
}

/* What becomes of the second hop's sums in two hops. */
enum nb_cost_second { NB_COST_SECOND_RAW, NB_COST_SECOND_INT4, NB_COST_SECOND_INT8 };

/* Whether two hops are chosen for a reduce-scatter in a full mesh of three nodes and more. coll/schedule/two_hop.c tells
 * why. */
static inline bool nb_cost_two_hops_pay(double nodes, double flight, double block, enum nb_cost_second second)
{
    const double two_hops = second == NB_COST_SECOND_INT8 ? 2.2 : 1.1;
    const double promise = second == NB_COST_SECOND_INT8 ? 1.2 : second == NB_COST_SECOND_INT4 ? 1.5 : 1;

    return (nodes - 1) / nb_cost_owners(nodes, flight, block) >= promise * two_hops;
}

/* Return whether an all-gather goes by two hops in a full mesh of three nodes and more: coll/two_hop_gather.c tells why.
 * Coding does not matter, as coded bytes are forwarded unchanged. */
static inline bool nb_cost_gather_hops_pay(double nodes, double flight, double block)
{
    const double owners = 1 + flight / (2 * block);

    return nodes - 1 > 1.1 * (owners > nodes ? nodes : owners);
}

/* Two resources are busy for `a` and `b` seconds, but neither always has something to do, since the other comes before
 * it. The sum of cubes is no theory, but close to what nibble-scale finds (docs/scale.md). */
static inline double nb_cost_in_turns(double a, double b)
{
    return cbrt(a * a * a + b * b * b);
}

#endif
