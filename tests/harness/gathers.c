/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gathers in every mode of NIBBLE_AG. In each mode the own block stays unchanged, all nodes that receive
 * a block hold the same bits of it, and a source that did not change arrives with the bits of the time
 * before. Bytes of a type that is not known to be a float type arrive exactly, even if they look like
 * weights. Lossy blocks stay within their bound. For BF16 weights in the hottest phase delta4 sends 3.6 times
 * fewer bytes than raw.
 *
 * Only the record of a gather states its type. NCCL's profiler events make the record in a job, and here the
 * test makes it. So this program links the plugin's sources instead of loading the plugin.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tables.h"
#include "codec/fp.h"
#include "coll/coll.h"
#include "coll/comm/stats.h"
#include "coll/report/report.h"
#include "lib/suite.h"
#include "policy/records/records.h"

#define VALUES 30000u /* of a block */
#define ROUNDS 8

enum mode { RAW, EXACT, DELTA4, OFF };
enum told {
    UNTOLD,
    UNKNOWN,
    TOLD
}; /* without a record, with a record that lacks the user's call, with a
                                        full record */

struct variant {
    const char *name;
    enum nb_dtype content; /* weights of this type, whatever type the record states */
    enum told told;
    ncclDataType_t type;
};

/* Variants without records come first: operations before the first record have none. */
static const struct variant variants[] = {
    {"no record", NB_BF16, UNTOLD, 0},         {"record without a type", NB_BF16, UNKNOWN, 0},
    {"int8", NB_BF16, TOLD, ncclInt8},         {"uint8", NB_BF16, TOLD, ncclUint8},
    {"int32", NB_F32, TOLD, ncclInt32},        {"float8", NB_BF16, TOLD, ncclFloat8e4m3},
    {"bfloat16", NB_BF16, TOLD, ncclBfloat16}, {"float16", NB_F16, TOLD, ncclFloat16},
    {"float32", NB_F32, TOLD, ncclFloat32},
};

/* Changes of the weights before each round, the same on every node. TWICE: a step, then two gathers of the
 * same source one behind the other. MORE: a step, a gather, a step and a gather at once. The second of these
 * gathers usually finds that receivers have not confirmed the first, and waits for it. So the time of
 * confirmations does not change the bytes that go out. */
enum change { NEW, STEP, SAME, TWICE, MORE };
static const enum change changes[ROUNDS] = {NEW, STEP, SAME, TWICE, SAME, MORE, SAME, NEW};

static bool lossy(enum mode mode, const struct variant *v, bool fp32)
{
    const bool is_float =
        v->told == TOLD && (v->type == ncclBfloat16 || v->type == ncclFloat16 || v->type == ncclFloat32);

    return is_float && mode == DELTA4 && (v->type != ncclFloat32 || fp32);
}

/* Move the master weights of a block by steps of about one size, as Adam's. */
static void advance(float *w, enum change change, uint64_t seed, double ratio)
{
    uint64_t rng = hx_seed(seed, 1, 2);

    if (change == NEW)
        hx_fill(ncclFloat32, w, VALUES, seed, HX_FILL_NORMAL);
    for (size_t i = 0; i < VALUES && change != NEW && change != SAME; i += 64) {
        double scale = 0;
        for (size_t j = i; j < i + 64 && j < VALUES; j++)
            scale += (double)w[j] * w[j];
        scale = ratio * sqrt(scale / 64) * sqrt(3);
        for (size_t j = i; j < i + 64 && j < VALUES; j++) {
            /* The sum of four uniform numbers has about the tails of such steps. */
            double u = -2;
            for (int k = 0; k < 4; k++)
                u += (double)hx_rand_below(&rng, 1 << 20) / (1 << 20);
            w[j] += (float)(scale * u);
        }
    }
}

static int push(struct hx_comm *comm, const struct variant *v, size_t bytes)
{
    struct nb_record r = {.func = NB_FUNC_ALL_GATHER,
                          .type = ncclInt8,
                          .api_type = v->told == TOLD ? v->type : 0,
                          .flags = v->told == TOLD ? NB_RECORD_API : 0,
                          .bytes = bytes,
                          .slot = -1};

    if (v->told != UNTOLD)
        HX_CHECK(nb_record_push(hx_comm_plugin(comm), &r) == 0, "a record was refused");
    return 0;
}

struct plan {
    enum mode mode;
    bool fp32, damaged;
    bool few_windows; /* one window for each operation: gathers then overtake confirmations every few times */
};

/* Return the error of a lossy block over the error of rounding to bfloat16. */
static double error_of(enum nb_dtype type, const void *want, const void *got, size_t from, size_t to)
{
    double error2 = 0, unit2 = 0;

    for (size_t i = from; i < to; i++) {
        const double x = (double)nb_load_value(type, want, i), y = (double)nb_load_value(type, got, i);
        int e;
        (void)frexp(x, &e);
        error2 += (x - y) * (x - y);
        unit2 += x == 0 ? 0 : pow(ldexp(1, e - 8), 2) / 12;
    }
    return error2 == 0 ? 0 : sqrt(error2 / unit2);
}

static int check_blocks(struct hx_node *node, const struct variant *v, unsigned char *const *src,
                        const unsigned char *result, size_t bytes, bool may_be_lossy, const char *what)
{
    uint64_t mine[HX_MAX_NODES] = {0}, all[HX_MAX_NODES * HX_MAX_NODES];

    for (int r = 0; r < node->nnodes; r++) {
        const unsigned char *block = result + bytes * (size_t)r;
        const bool exact = r == node->rank || !may_be_lossy;

        mine[r] = hx_hash(block, bytes);
        if (exact) {
            long bad = hx_first_difference(ncclUint8, src[r], block, bytes);
            HX_CHECK(bad < 0, "%s: byte %ld of node %d's block is wrong", what, bad, r);
            continue;
        }
        for (size_t from = 0; from < VALUES; from += 256) {
            const size_t to = from + 256 < VALUES ? from + 256 : VALUES;
            const double e = error_of(v->content, src[r], block, from, to);
            HX_CHECK(e <= 1.0, "%s: values %zu to %zu of node %d's block have error %.4f", what, from, to, r,
                     e);
        }
    }
    hx_allgather(node, mine, sizeof(mine), all);
    for (int r = 0; r < node->nnodes; r++) {
        const uint64_t *first = NULL;
        for (int n = 0; n < node->nnodes; n++) {
            const uint64_t *h = &all[n * HX_MAX_NODES + r];
            if (n == r)
                continue;
            HX_CHECK(!first || *h == *first, "%s: nodes hold different bits of node %d's block", what, r);
            first = h;
        }
    }
    return 0;
}

/* Sources and results of the gathers of one variant. */
struct buffers {
    size_t bytes; /* of a block */
    float *w[HX_MAX_NODES];
    unsigned char *src[2][HX_MAX_NODES], *result[2], *before;
};

static void make_sources(struct hx_node *node, struct buffers *b, int which, enum nb_dtype type,
                         enum change change, uint64_t seed)
{
    for (int r = 0; r < node->nnodes; r++) {
        advance(b->w[r], change, hx_seed(seed, (uint64_t)r, (uint64_t)which), 0.01);
        for (size_t i = 0; i < VALUES; i++)
            nb_store_value(type, b->src[which][r], i, 0.02f * b->w[r][i]);
    }
}

/* Wait until the confirmations of the last gather have arrived on all nodes, as in a training step. */
static void until_confirmed(struct hx_node *node, struct hx_comm *comm)
{
    struct nb_coll_stats s;

    do {
        hx_sleep(1e-3);
        nb_coll_get_stats(hx_comm_plugin(comm), &s);
    } while (s.unanswered);
    hx_barrier(node);
}

/* Run one gather, or two with the second posted before the first has ended. */
static int round_run(struct hx_node *node, struct hx_comm *comm, const struct variant *v, struct buffers *b,
                     int gathers, bool in_place, const char *what)
{
    struct hx_op op[2];
    const size_t own = b->bytes * (size_t)node->rank;

    for (int g = 0; g < gathers; g++) {
        memset(b->result[g], 0xee, b->bytes * (size_t)node->nnodes);
        op[g] = (struct hx_op){.func = HX_ALL_GATHER,
                               .type = ncclInt8,
                               .count = b->bytes,
                               .send = b->src[g][node->rank],
                               .recv = b->result[g]};
        if (in_place) {
            op[g].send = b->result[g] + own;
            memcpy(b->result[g] + own, b->src[g][node->rank], b->bytes);
        }
    }
    for (int g = 0; g < gathers; g++) {
        if (push(comm, v, b->bytes))
            return 1;
        HX_CHECK(hx_post(comm, &op[g]) == ncclSuccess, "%s: a gather was refused", what);
    }
    for (int g = 0; g < gathers; g++)
        HX_CHECK(hx_wait(comm, &op[g], 0) == ncclSuccess, "%s: a gather failed", what);
    return 0;
}

static int variant_rounds(struct hx_node *node, struct hx_comm *comm, const struct plan *plan, int which,
                          bool in_place, struct buffers *b)
{
    const struct variant *v = &variants[which];
    const bool may = lossy(plan->mode, v, plan->fp32);
    const size_t all = b->bytes * (size_t)node->nnodes;
    uint64_t *was = hx_scratch(node, node->rank), did = 0;

    for (int round = 0; round < ROUNDS; round++) {
        const enum change change = changes[round];
        const uint64_t seed = hx_seed((uint64_t)which * 64 + (uint64_t)round, 7, in_place);
        const int gathers = change == TWICE || change == MORE ? 2 : 1;
        const struct nb_func_stats *f0, *f1;
        struct nb_coll_stats s0, s1;
        char what[128];

        snprintf(what, sizeof(what), "%s, round %d, %s", v->name, round,
                 in_place ? "in place" : "out of place");
        hx_where("%s", what);
        until_confirmed(node, comm);
        make_sources(node, b, 0, v->content, change, seed);
        if (gathers == 2)
            make_sources(node, b, 1, v->content, change == MORE ? MORE : SAME, seed + 1);
        nb_coll_get_stats(hx_comm_plugin(comm), &s0);
        if (round_run(node, comm, v, b, gathers, in_place, what))
            return 1;
        nb_coll_get_stats(hx_comm_plugin(comm), &s1);
        f0 = &s0.func[NB_FUNC_ALL_GATHER];
        f1 = &s1.func[NB_FUNC_ALL_GATHER];
        for (int g = 0; g < gathers; g++)
            if (check_blocks(node, v, b->src[g], b->result[g], b->bytes, may, what))
                return 1;
        HX_CHECK(change != TWICE || !memcmp(b->result[0], b->result[1], all),
                 "%s: the second gather of the same source gave other bits", what);
        HX_CHECK(change != SAME || !memcmp(b->result[0], b->before, all),
                 "%s: the sources did not change, but the results did", what);
        if (round == 2 && !plan->damaged && (plan->mode == EXACT || plan->mode == DELTA4))
            HX_CHECK(f1->wire_bytes - f0->wire_bytes <= 100 * (f1->units - f0->units),
                     "%s: unchanged weights took more than headers", what);
        HX_CHECK(s1.ref_unconfirmed == 0, "%s: a reference was not used because of a late confirmation",
                 what);
        if (change == TWICE && !plan->damaged && (plan->mode == EXACT || plan->mode == DELTA4))
            HX_CHECK(f1->unchanged_units - f0->unchanged_units == (f1->units - f0->units) / 2,
                     "%s: the second of two gathers took more than headers", what);
        memcpy(b->before, b->result[gathers - 1], all);
        did = s1.bounded_lossy_runs;
    }
    HX_CHECK(may == (did > *was), "%s: %s", v->name,
             may ? "nothing was approximated, so nothing was tested" : "it was lossy");
    *was = did;
    return 0;
}

static int variant_run(struct hx_node *node, struct hx_comm *comm, const struct plan *plan, int which,
                       bool in_place)
{
    struct buffers b = {.bytes = VALUES * nb_dtype_size(variants[which].content)};
    const size_t all = b.bytes * (size_t)node->nnodes;
    int rc;

    for (int r = 0; r < node->nnodes; r++) {
        b.w[r] = malloc(VALUES * sizeof(float));
        b.src[0][r] = malloc(b.bytes);
        b.src[1][r] = malloc(b.bytes);
    }
    b.result[0] = malloc(all);
    b.result[1] = malloc(all);
    b.before = malloc(all);
    rc = variant_rounds(node, comm, plan, which, in_place, &b);
    for (int r = 0; r < node->nnodes; r++) {
        free(b.w[r]);
        free(b.src[0][r]);
        free(b.src[1][r]);
    }
    free(b.result[0]);
    free(b.result[1]);
    free(b.before);
    return rc;
}

static int mode_node(struct hx_node *node, void *arg)
{
    const struct plan *plan = arg;
    struct hx_comm_cfg cfg = {.channels = 1, .buff_size = plan->few_windows ? 8 << 20 : 256 << 10};
    struct hx_lib *lib;
    struct hx_comm *comm;

    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    for (int which = 0; which < (int)(sizeof(variants) / sizeof(variants[0])); which++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (hx_quick() && in_place != which % 2)
                continue;
            if (variant_run(node, comm, plan, which, in_place))
                return 1;
        }
    return sx_close(lib, comm, false);
}

static int mode_case(const char *name, enum mode mode, const char *const *env)
{
    struct plan plan = {
        .mode = mode, .fp32 = strcmp(name, "delta4-fp32") == 0, .few_windows = mode == DELTA4};
    struct hx_job job = {.name = name, .nnodes = 3, .fn = mode_node, .arg = &plan, .env = env};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0 && hx_report_has(rep, -1, "are not exact from here on", NULL) != (mode == DELTA4))
        rc = hx_fail("%s: what a lossy mode costs must be said, and only then", name);
    hx_report_free(rep);
    return rc;
}

#define MODE_CASE(name, MODE, word, schedule) \
    static int name(void) \
    { \
        static const char *const env[] = {"NIBBLE_AG=" word, "NIBBLE_MIN_BYTES=0", \
                                          "NIBBLE_SCHEDULE=" schedule, NULL}; \
        return mode_case(word, MODE, env); \
    }

MODE_CASE(raw, RAW, "raw", "auto")
MODE_CASE(exact, EXACT, "exact", "auto")
MODE_CASE(delta4, DELTA4, "delta4", "auto")
MODE_CASE(delta4_fp32, DELTA4, "delta4-fp32", "auto")
MODE_CASE(delta4_two_hop, DELTA4, "delta4", "two-hop")
MODE_CASE(off, OFF, "off", "auto")

/* ---- aims of delta4: fewer bytes through a hot phase, and an error that does not grow ------------------ */

static int hot_node(struct hx_node *node, void *arg)
{
    static const double ratios[] = {0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.007, 0.003, 0.001, 0.0003};
    const struct variant *v = arg;
    const size_t bytes = VALUES * 2;
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 256 << 10};
    struct nb_coll_stats s, first = {0};
    struct hx_lib *lib;
    struct hx_comm *comm;
    float *w[HX_MAX_NODES];
    unsigned char *src[HX_MAX_NODES], *result = malloc(bytes * (size_t)node->nnodes);
    double worst = 0, last = 0;

    if (sx_open_linked(node, &ncclNetPlugin_v12, &ncclCollNetPlugin_v12, &cfg, &lib, &comm))
        return 1;
    for (int r = 0; r < node->nnodes; r++) {
        w[r] = malloc(VALUES * sizeof(float));
        src[r] = malloc(bytes);
    }
    for (int step = 0; step <= (int)(sizeof(ratios) / sizeof(ratios[0])); step++) {
        struct hx_op op = {
            .func = HX_ALL_GATHER, .type = ncclInt8, .count = bytes, .send = src[node->rank], .recv = result};
        last = 0;
        for (int r = 0; r < node->nnodes; r++) {
            advance(w[r], step ? STEP : NEW, hx_seed((uint64_t)step, (uint64_t)r, 5),
                    step ? ratios[step - 1] : 0);
            for (size_t i = 0; i < VALUES; i++)
                nb_store_value(NB_BF16, src[r], i, 0.02f * w[r][i]);
        }
        until_confirmed(node, comm);
        if (push(comm, v, bytes))
            return 1;
        HX_CHECK(hx_run(comm, &op) == ncclSuccess, "step %d failed", step);
        for (int r = 0; r < node->nnodes; r++) {
            const double e = error_of(NB_BF16, src[r], result + bytes * (size_t)r, 0, VALUES);
            worst = fmax(worst, e);
            last = fmax(last, e);
        }
        if (step == 0)
            nb_coll_get_stats(hx_comm_plugin(comm), &first);
    }
    nb_coll_get_stats(hx_comm_plugin(comm), &s);
    const struct nb_func_stats *b = &s.func[NB_FUNC_ALL_GATHER], *a = &first.func[NB_FUNC_ALL_GATHER];
    const double ratio = (double)(b->sent_bytes - a->sent_bytes) / (double)(b->wire_bytes - a->wire_bytes);
    if (node->rank == 0)
        printf("        %.2f times fewer bytes than raw, error at most %.3f of bfloat16's rounding\n", ratio,
               worst);
    HX_CHECK(ratio >= 3.6, "only %.2f times fewer bytes", ratio);
    HX_CHECK(worst > 0 && worst <= 0.3, "error %.3f of bfloat16's rounding", worst);
    HX_CHECK(last == 0, "cool weights are not exact: error %.3f", last);
    for (int r = 0; r < node->nnodes; r++) {
        free(w[r]);
        free(src[r]);
    }
    free(result);
    return sx_close(lib, comm, false);
}

HX_CASE(hot, sx_job("hot phase", 3, hot_node, (void *)(uintptr_t)&variants[6],
                    HX_ENV("NIBBLE_AG=delta4", "NIBBLE_MIN_BYTES=0")))

/* Gathers without records, where a setting states their type. */
HX_CASE(untyped, sx_job("untyped", 3, hot_node, (void *)(uintptr_t)&variants[0],
                        HX_ENV("NIBBLE_AG=delta4", "NIBBLE_MIN_BYTES=0", "NIBBLE_AG_UNTYPED=bfloat16")))

/* A node whose copies of references are damaged now and then asks for raw bytes, and must get the bits that
 * the other nodes hold. */
static int damaged(void)
{
    static const char *const env[] = {"NIBBLE_AG=delta4", "NIBBLE_MIN_BYTES=0", NULL};
    static const char *const fault[] = {"NIBBLE_FAULT=ref", NULL};
    struct plan plan = {.mode = DELTA4, .damaged = true};
    struct hx_job job = {.name = "damaged references",
                         .nnodes = 3,
                         .fn = mode_node,
                         .arg = &plan,
                         .env = env,
                         .node_env[1] = fault};
    struct hx_report *rep;
    int rc = hx_job_run(&job, &rep);

    if (rc == 0 && !hx_report_has(rep, 1, "asking for raw bytes", NULL))
        rc = hx_fail("nobody asked for raw bytes");
    hx_report_free(rep);
    return rc;
}

HX_MAIN({"raw", raw, HX_CASE_FULL}, {"exact", exact, HX_CASE_SLOW}, {"delta4", delta4, 0},
        {"delta4-fp32", delta4_fp32, HX_CASE_FULL}, {"delta4-two-hop", delta4_two_hop, HX_CASE_SLOW},
        {"off", off, HX_CASE_FULL}, {"hot-phase", hot, 0}, {"untyped", untyped, HX_CASE_FULL},
        {"damaged-references", damaged, 0})
