/* SPDX-License-Identifier: Apache-2.0 */
/* Generated operations with references. See suite.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"

const char *sx_func_name(enum hx_func func)
{
    return func == HX_REDUCE_SCATTER ? "reduce-scatter" : func == HX_ALL_GATHER ? "all-gather" : "all-reduce";
}

const char *sx_describe(const struct sx_spec *s)
{
    static const char *const op[] = {"sum", "prod", "max", "min"};
    static _Thread_local char text[160];

    snprintf(text, sizeof text, "%s of %zu x %s %s, channels %d, chunk %zu%s", sx_func_name(s->func),
             s->count, hx_type_name(s->type), s->func == HX_ALL_GATHER ? "" : op[s->op], s->channels,
             s->chunk, s->in_place ? ", in place" : "");
    return text;
}

void sx_block(const struct sx_spec *spec, int rank, int block, void *buf)
{
    hx_fill(spec->type, buf, spec->count, hx_seed(spec->seed, (uint64_t)rank + 1, (uint64_t)block + 1),
            spec->fill);
}

static void *alloc(size_t bytes)
{
    void *p = malloc(bytes + 64);

    if (!p)
        abort();
    memset(p, 0xEE, bytes + 64); /* bytes beyond the vectors must not matter, and must stay */
    return p;
}

void sx_prepare(struct hx_node *node, const struct sx_spec *spec, struct sx_run *run)
{
    size_t block = spec->count * hx_type_size(spec->type), n = (size_t)node->nnodes, r = (size_t)node->rank;

    memset(run, 0, sizeof *run);
    run->spec = *spec;
    run->op.func = spec->func;
    run->op.type = spec->type;
    run->op.op = spec->op;
    run->op.count = spec->count;
    run->op.channels = spec->channels;
    run->op.chunk = spec->chunk;
    switch (spec->func) {
    case HX_REDUCE_SCATTER:
        run->mem = alloc(n * block + block);
        run->send = run->mem;
        run->recv = spec->in_place ? run->send + r * block : run->mem + n * block;
        for (int b = 0; b < node->nnodes; b++)
            sx_block(spec, node->rank, b, run->send + (size_t)b * block);
        run->recv_values = spec->count;
        break;
    case HX_ALL_GATHER:
        run->mem = alloc(n * block + block);
        run->recv = run->mem;
        run->send = spec->in_place ? run->recv + r * block : run->mem + n * block;
        sx_block(spec, node->rank, node->rank, run->send);
        run->recv_values = spec->count * n;
        break;
    default:
        run->mem = alloc(2 * block);
        run->send = run->mem;
        run->recv = spec->in_place ? run->send : run->mem + block;
        sx_block(spec, node->rank, 0, run->send);
        run->recv_values = spec->count;
    }
    run->op.send = run->send;
    run->op.recv = run->recv;
}

void sx_free(struct sx_run *run)
{
    free(run->mem);
    memset(run, 0, sizeof *run);
}

static int check_gather(struct hx_node *node, struct sx_run *run)
{
    const struct sx_spec *s = &run->spec;
    size_t size = hx_type_size(s->type), block = s->count * size;
    char *ref = alloc(block);

    for (int r = 0; r < node->nnodes; r++) {
        long bad;

        sx_block(s, r, r, ref);
        bad = hx_first_difference(s->type, ref, run->recv + (size_t)r * block, s->count);
        if (bad >= 0) {
            free(ref);
            return hx_fail("%s: value %ld of block %d is wrong", sx_describe(s), bad, r);
        }
    }
    free(ref);
    return 0;
}

int sx_check(struct hx_node *node, struct sx_run *run)
{
    const struct sx_spec *s = &run->spec;
    size_t size = hx_type_size(s->type), block = s->count * size;
    int which = s->func == HX_REDUCE_SCATTER ? node->rank : 0;
    char *x, *acc;
    int rc = 0;

    if (s->func == HX_ALL_GATHER)
        return check_gather(node, run);
    x = alloc(block);
    acc = alloc(block);
    if (s->max_nmse == 0) {
        long bad;

        sx_block(s, 0, which, acc);
        for (int r = 1; r < node->nnodes; r++) {
            sx_block(s, r, which, x);
            hx_accumulate(s->type, s->op, acc, x, s->count);
        }
        bad = hx_first_difference(s->type, acc, run->recv, s->count);
        if (bad >= 0)
            rc = hx_fail("%s: value %ld is %.9g, should be %.9g", sx_describe(s), bad,
                         hx_load(s->type, run->recv, (size_t)bad), hx_load(s->type, acc, (size_t)bad));
    } else {
        double *sum = calloc(s->count, sizeof *sum), err, energy = 0;

        if (!sum)
            abort();
        for (int r = 0; r < node->nnodes; r++) {
            sx_block(s, r, which, x);
            energy += hx_add(s->type, x, s->count, sum);
        }
        err = hx_squared_error(sum, s->type, run->recv, s->count);
        free(sum);
        run->nmse = energy > 0 ? err / energy : err;
        if (!(run->nmse <= s->max_nmse))
            rc = hx_fail("%s: error %.3g of the contributions' energy, more than %.3g", sx_describe(s),
                         run->nmse, s->max_nmse);
    }
    free(x);
    free(acc);
    return rc;
}

int sx_do(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, uint64_t *hash)
{
    struct sx_run run;
    ncclResult_t ret;
    int rc;

    sx_prepare(node, spec, &run);
    hx_where("%s", sx_describe(spec));
    ret = hx_run(comm, &run.op);
    rc = ret == ncclSuccess ? sx_check(node, &run) : hx_fail("%s: result %d", sx_describe(spec), (int)ret);
    if (hash)
        *hash = rc ? 0 : hx_hash(run.recv, run.recv_values * hx_type_size(spec->type));
    sx_free(&run);
    return rc;
}

int sx_job(const char *name, int nnodes, hx_node_fn fn, void *arg, const char *const *env)
{
    struct hx_job job = {.name = name, .nnodes = nnodes, .fn = fn, .arg = arg, .env = env, .seed = 1};

    return hx_job_run(&job, NULL);
}

static int bring_up(struct hx_node *node, struct hx_lib *lib, const struct hx_comm_cfg *cfg,
                    struct hx_comm **comm)
{
    const char *stage;
    ncclResult_t ret = hx_comm_open(node, lib, cfg, comm, &stage);

    return ret == ncclSuccess ? 0 : hx_fail("bring-up failed in %s with %d", stage, (int)ret);
}

int sx_open_linked(struct hx_node *node, const void *net, const void *coll, const struct hx_comm_cfg *cfg,
                   struct hx_lib **lib, struct hx_comm **comm)
{
    *lib = hx_lib_static(net, coll, 12);
    return bring_up(node, *lib, cfg, comm);
}

int sx_open(struct hx_node *node, const struct hx_comm_cfg *cfg, struct hx_lib **lib, struct hx_comm **comm)
{
    *lib = hx_lib_open(NULL, 0);
    return *lib ? bring_up(node, *lib, cfg, comm) : 1;
}

int sx_close(struct hx_lib *lib, struct hx_comm *comm, bool warns_ok)
{
    ncclResult_t ret = hx_comm_close(comm);

    hx_lib_close(lib);
    if (ret != ncclSuccess)
        return hx_fail("closing failed with %d", (int)ret);
    if (!warns_ok && hx_log_warns()) {
        char line[300];

        hx_log_first("W ", line, sizeof line);
        return hx_fail("%d WARN lines were logged: %s", hx_log_warns(), line);
    }
    hx_where("closed");
    return 0;
}

double sx_rounding_nmse(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat64: return 1e-28;
    case ncclFloat32: return 1e-13;
    case ncclFloat16: return 1e-6;
    case ncclBfloat16: return 1.6e-5;
    case ncclFloat8e4m3: return 6e-3;
    default: return 2e-2;
    }
}

int sx_mean_error(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, int rounds,
                  int (*before)(void *arg), void *arg, double *error)
{
    double *sum = calloc(spec->count, sizeof *sum), *truth = calloc(spec->count, sizeof *truth), err = 0,
           energy = 0;
    char *x = malloc(spec->count * hx_type_size(spec->type));
    struct sx_run run;

    HX_CHECK(sum && truth && x, "no memory");
    for (int r = 0; r < node->nnodes; r++) {
        sx_block(spec, r, spec->func == HX_REDUCE_SCATTER ? node->rank : 0, x);
        hx_add(spec->type, x, spec->count, truth);
    }
    sx_prepare(node, spec, &run);
    for (int round = 0; round < rounds; round++) {
        ncclResult_t ret;

        if (before && before(arg))
            return 1;
        hx_where("round %d", round);
        ret = hx_run(comm, &run.op);
        HX_CHECK(ret == ncclSuccess, "round %d: result %d", round, (int)ret);
        hx_add(spec->type, run.recv, spec->count, sum);
    }
    for (size_t i = 0; i < spec->count; i++) {
        double d = sum[i] / rounds - truth[i];

        err += d * d;
        energy += truth[i] * truth[i];
    }
    *error = sqrt(err / energy);
    sx_free(&run);
    free(sum);
    free(truth);
    free(x);
    return 0;
}
