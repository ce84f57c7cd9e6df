/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether coding pays: a reckoning of what a sum takes coded and raw, on links of this rate with codecs of this speed.
 * Where NIBBLE_RS and NIBBLE_AR are auto, sums are coded from the size on from which it promises a gain, and stay raw
 * below. Where no sum and no all-gather gains at any size the nodes decline the communicator (nb_policy_declines).
 *
 * Results may not change from run to run, so it follows from facts alone that do not: the links' nominal rate, nodes
 * and schedule, bytes, the codec variant with the speed that is tabled for it, the number of codec threads. Nodes tell
 * each other theirs when they vote (coll/connect/vote.c), and the slowest counts. Nothing here is measured where it runs.
 *
 * The costs are those of nibble-model (policy/cost.h), which walks NCCL's calls over them; here a closed formula says how
 * long they take together. It need not be right about times, only about which is the shorter
 * (tests/policy/test_reckon.c tells how far they agree). Pure functions; any thread.
 */
#ifndef NIBBLE_POLICY_RECKON_H
#define NIBBLE_POLICY_RECKON_H

#include <stddef.h>
#include <stdint.h>

#include "base/params.h"
#include "nibble/codec.h"
#include "policy/cost.h"

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
struct nb_reckon_group {
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
    struct nb_reckon_group group;
    bool known;                              /* false: rate or speed is unknown, all is coded */
    struct nb_reckoned of[NB_FUNC_COUNT][2]; /* by function, and width of a value: 2 bytes, 4 */
};

/* Reckon from which size on coding pays. For all-gathers the result only says whether a communicator has anything to
 * gain (nb_policy_declines). A gather that comes to a connected communicator is coded at every size, since the ratio of
 * exact differences is known when they have been made. The reckoning takes the ratio of nb_cost_usual_ratio. */
void nb_reckon(const struct nb_reckon_facts *facts, const struct nb_reckon_group *group,
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
struct nb_cost_figures nb_reckon_figures(const struct nb_reckon_facts *facts, double value);
/* How long an operation takes: what bounds it, what it waits for. columns: of the grid, or 0. */
double nb_reckon_seconds(const struct nb_cost_figures *figures, const struct nb_cost_op *op, int columns);
/* Raw over coded, of an operation of `bytes` in all. */
double nb_reckon_gain(const struct nb_cost_figures *figures, const struct nb_reckon_group *group,
                      enum nb_func func, double value, double bytes);

/* Raw over coded of 64 MiB of BF16 with codecs as fast as was seen and, where they were not the limit and the link did not
 * get to half of its rate, a link of what was seen. Only where the reckoning is known. */
double nb_reckon_seen_gain(const struct nb_reckoning *r, enum nb_func func,
                           const struct nb_reckon_seen *seen);
/* Whether what was reckoned came true, and if not, the setting that pins what would be better. */
void nb_reckon_seen_text(const struct nb_reckoning *r, enum nb_func func, const struct nb_reckon_seen *seen,
                         char *out, size_t cap);

/* "coded from 64 KiB on: about 3.1 times as fast as raw", or "raw: ...", into out. */
void nb_reckon_text(const struct nb_reckoning *r, enum nb_func func, char *out, size_t cap);

#endif
