/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop of one node: gradients out, shard of the optimizer, weights in, and the checks of both.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dump.h"
#include "job.h"

struct worker {
    const struct nbt_settings *s;
    struct hx_node *node;
    struct nbt_board *board;
    struct nbt_progress *progress;
    struct nbt_exchange x;
    struct nbt_model *model;
    struct nbt_usage usage;
    size_t first, n; /* own shard within the parameters: [first, first + n); n < block where padding begins */
    uint8_t *tokens; /* batch x (context + 1) */
    float *params;   /* what the model computes with: the gathered BF16 weights */
    float *grad;     /* nodes * block, zeros behind params */
    void *send, *recv;        /* gradients in grad_type: nodes * block, block */
    uint16_t *weights;        /* nodes * block, gathered */
    float *master;            /* block: FP32 weights of the shard */
    float *delivered, *exact; /* block: summed gradient */
    struct nbt_moments mom, mom_exact;
    float *u, *u_exact; /* block: direction of the update */
    double last_valid;
};

/* ---- the board's areas ---- */

static size_t round_up(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

static size_t vector_bytes(const struct nbt_settings *s)
{
    return round_up((size_t)s->nodes * s->block * sizeof(float));
}

static size_t head_bytes(const struct nbt_settings *s)
{
    return round_up(sizeof(struct nbt_board) + s->steps * sizeof(struct nbt_step));
}

size_t nbt_board_bytes(const struct nbt_settings *s)
{
    return head_bytes(s) + ((size_t)s->nodes + 1) * vector_bytes(s) +
           nbt_exchange_shared_bytes(s->nodes, s->block);
}

void *nbt_board_grads(const struct nbt_settings *s, struct nbt_board *b, int rank)
{
    return (char *)b + head_bytes(s) + (size_t)rank * vector_bytes(s);
}

uint16_t *nbt_board_weights(const struct nbt_settings *s, struct nbt_board *b)
{
    return nbt_board_grads(s, b, s->nodes);
}

void *nbt_board_exchange(const struct nbt_settings *s, struct nbt_board *b)
{
    return nbt_board_grads(s, b, s->nodes + 1);
}

/* ---- set-up ---- */

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p)
        hx_fail("out of memory");
    return p;
}

static int open_worker(struct worker *w, const struct nbt_launch *l, struct hx_node *node)
{
    const struct nbt_settings *s = l->settings;
    const size_t all = (size_t)s->nodes * s->block, size = nb_dtype_size(s->grad_type);
    memset(w, 0, sizeof *w);
    w->s = s;
    w->node = node;
    w->board = l->board;
    w->progress = l->progress;
    w->last_valid = NAN;
    w->first = (size_t)node->rank * s->block;
    w->n = w->first >= s->lay.params ? 0 : s->lay.params - w->first;
    w->n = w->n < s->block ? w->n : s->block;
    w->model = nbt_model_new(&s->lay, nbt_kernels_get(NULL));
    w->tokens = zeros(s->lay.cfg.batch, s->lay.cfg.context + 1);
    w->params = zeros(all, sizeof *w->params);
    w->grad = zeros(all, sizeof *w->grad);
    w->send = zeros(all, size);
    w->recv = zeros(s->block, size);
    w->weights = zeros(all, sizeof *w->weights);
    w->master = zeros(s->block, sizeof(float));
    w->delivered = zeros(s->block, sizeof(float));
    w->exact = zeros(s->block, sizeof(float));
    w->mom = (struct nbt_moments){zeros(s->block, sizeof(float)), zeros(s->block, sizeof(float))};
    w->mom_exact = (struct nbt_moments){zeros(s->block, sizeof(float)), zeros(s->block, sizeof(float))};
    w->u = zeros(s->block, sizeof(float));
    w->u_exact = zeros(s->block, sizeof(float));
    if (!w->model || !w->tokens || !w->params || !w->grad || !w->send || !w->recv || !w->weights ||
        !w->master || !w->delivered || !w->exact || !w->mom.m || !w->mom.v || !w->mom_exact.m ||
        !w->mom_exact.v || !w->u || !w->u_exact)
        return -ENOMEM;
    /* All nodes start from the same weights, rounded as they will travel. */
    nbt_init_params(&s->lay, s->seed, w->params);
    memcpy(w->master, w->params + w->first, s->block * sizeof(float));
    nbt_to_bf16(w->params, all, w->weights);
    nbt_from_bf16(w->weights, all, w->params);
    w->x.ops = s->exchange;
    w->x.cfg = (struct nbt_exchange_cfg){
        .node = node,
        .grad_type = s->grad_type,
        .block = s->block,
        .shared = nbt_board_exchange(s, l->board),
        .plugin = s->plugin,
        .fault = s->fault,
    };
    return w->x.ops->open(&w->x);
}

static void free_worker(struct worker *w)
{
    nbt_model_free(w->model);
    free(w->tokens), free(w->params), free(w->grad), free(w->send), free(w->recv), free(w->weights);
    free(w->master), free(w->delivered), free(w->exact), free(w->u), free(w->u_exact);
    free(w->mom.m), free(w->mom.v), free(w->mom_exact.m), free(w->mom_exact.v);
}

/* Wait for all; -EPIPE when a node has ended before it came here (its reason is in its own report). */
static int meet(struct worker *w)
{
    struct nbt_node_board *nodes = w->board->node;
    const uint64_t mine = __atomic_add_fetch(&nodes[w->node->rank].meetings, 1, __ATOMIC_SEQ_CST);
    hx_barrier(w->node);
    for (int r = 0; r < w->node->nnodes; r++)
        if (__atomic_load_n(&nodes[r].meetings, __ATOMIC_SEQ_CST) < mine) {
            hx_fail("node %d has ended", r);
            return -EPIPE;
        }
    return 0;
}

/* ---- parts of a step ---- */

/* The micro-batch of this node, and which bytes occur anywhere in the step. */
static void draw(struct worker *w, size_t step)
{
    const size_t t = w->s->lay.cfg.context;
    uint8_t seen[NBT_VOCAB] = {0};
    for (int r = 0; r < w->s->nodes; r++) {
        for (size_t b = 0; b < w->s->lay.cfg.batch; b++) {
            const uint8_t *at = nbt_text_sample(&w->s->text, w->s->seed, step, r, b, t);
            for (size_t i = 0; i < t; i++)
                seen[at[i]] = 1;
            if (r == w->node->rank)
                memcpy(w->tokens + b * (t + 1), at, t + 1);
        }
    }
    nbt_usage_step(&w->usage, seen);
}

static void load_grad(const struct nbt_settings *s, const void *src, size_t first, size_t n, float *dst)
{
    if (s->grad_type == NB_BF16)
        nbt_from_bf16((const uint16_t *)src + first, n, dst);
    else
        memcpy(dst, (const float *)src + first, n * sizeof *dst);
}

/* Exact sum of the shard's gradients over all nodes, of just the values that were handed to the exchange. */
static void exact_sum(struct worker *w)
{
    const struct nbt_settings *s = w->s;
    for (size_t i0 = 0; i0 < w->n; i0 += 1024) {
        const size_t c = w->n - i0 < 1024 ? w->n - i0 : 1024;
        double sum[1024] = {0};
        float part[1024];
        for (int r = 0; r < s->nodes; r++) {
            load_grad(s, nbt_board_grads(s, w->board, r), w->first + i0, c, part);
            for (size_t i = 0; i < c; i++)
                sum[i] += (double)part[i];
        }
        for (size_t i = 0; i < c; i++)
            w->exact[i0 + i] = (float)sum[i];
    }
}

static double sum_squares(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double over_nodes(const struct worker *w, const double *first)
{
    double sum = 0;
    for (int r = 0; r < w->s->nodes; r++)
        sum +=
            *(const double *)(const void *)((const char *)first + (size_t)r * sizeof(struct nbt_node_board));
    return sum;
}

/* Both optimizers take their step on the shard; the weights follow the delivered gradients. */
static void update(struct worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    const struct nbt_node_board *nb = w->board->node;
    const double inv = 1.0 / (double)s->nodes;
    const float clip = nbt_clip_factor(over_nodes(w, &nb->norm2) * inv * inv);
    const float clip_exact = nbt_clip_factor(over_nodes(w, &nb->norm2_exact) * inv * inv);
    nbt_adamw_direction(&s->opt, step, w->n, w->delivered, clip * (float)inv, w->mom, w->u);
    nbt_adamw_direction(&s->opt, step, w->n, w->exact, clip_exact * (float)inv, w->mom_exact, w->u_exact);
    nbt_adamw_apply(&s->opt, &s->lay, w->first, w->n, nbt_learning_rate(step, s->steps, s->warmup, s->rate),
                    w->u, w->master);
    nbt_to_bf16(w->master, s->block, w->weights + w->first);
}

/* The gathered weights must be the concatenation of the shards, on every node. */
static int check_weights(struct worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block;
    const uint16_t *want = nbt_board_weights(s, w->board);
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    uint64_t bad = 0;
    if (memcmp(w->weights, want, all * sizeof *want) != 0) {
        size_t at = 0;
        while (w->weights[at] == want[at])
            at++;
        hx_fail("step %zu: gathered weight %zu (of node %zu) is %04x, its owner sent %04x", step, at,
                at / s->block, w->weights[at], want[at]);
        bad = 1;
    }
    mine->hash = nb_hash64(w->weights, all * sizeof *w->weights, step);
    const int rc = meet(w);
    if (rc)
        return rc;
    for (int r = 0; r < s->nodes; r++)
        bad += w->board->node[r].hash != mine->hash;
    if (bad)
        __atomic_fetch_add(&w->board->weight_errors, bad, __ATOMIC_RELAXED);
    if (w->node->rank == 0)
        w->board->weight_checks++;
    return 0; /* counted, and the run fails by it; going on shows whether it is one step or all */
}

/* Mean loss over the held-out text, the batches dealt out to the nodes. */
static void validate(struct worker *w)
{
    const struct nbt_config *c = &w->s->lay.cfg;
    const size_t batches = nbt_text_valid_count(&w->s->text, c->context) / c->batch;
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    mine->valid = 0;
    mine->valid_batches = 0;
    for (size_t k = (size_t)w->node->rank; k < batches; k += (size_t)w->s->nodes) {
        for (size_t b = 0; b < c->batch; b++)
            memcpy(w->tokens + b * (c->context + 1),
                   nbt_text_valid(&w->s->text, k * c->batch + b, c->context), c->context + 1);
        mine->valid += nbt_model_run(w->model, w->params, w->tokens, NULL);
        mine->valid_batches++;
    }
}

static void add_traffic(struct nbt_traffic *sum, const struct nbt_traffic *x)
{
    sum->reduce_scatter.ops += x->reduce_scatter.ops;
    sum->reduce_scatter.wire += x->reduce_scatter.wire;
    sum->all_gather.ops += x->all_gather.ops;
    sum->all_gather.wire += x->all_gather.wire;
    sum->quantized_ops += x->quantized_ops;
    sum->feedback_ops += x->feedback_ops;
    sum->known = x->known;
}

/* Node 0 writes the step down. All nodes have met since their last change to the board. */
static void record(struct worker *w, size_t step, double loss, double norm, int validated)
{
    const struct nbt_settings *s = w->s;
    struct nbt_board *b = w->board;
    struct nbt_step *at = &b->step[step];
    double valid = 0, batches = 0;
    memset(at, 0, sizeof *at);
    for (int r = 0; r < s->nodes; r++) {
        valid += b->node[r].valid;
        batches += (double)b->node[r].valid_batches;
        add_traffic(&at->traffic, &b->node[r].traffic);
    }
    at->loss = loss;
    at->norm = norm;
    at->rate = nbt_learning_rate(step, s->steps, s->warmup, s->rate);
    at->valid = validated && batches > 0 ? valid / batches : NAN;
    if (validated)
        w->last_valid = at->valid;
    b->steps_done = step + 1;
    nbt_progress_step(w->progress, step + 1, at->loss, w->last_valid);
}

static int one_step(struct worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block, params = s->lay.params,
                 size = nb_dtype_size(s->grad_type);
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    int rc;

    /* Gradients of the own micro-batch, in the type that travels; a copy goes to the board for the exact sum.
     */
    const double t0 = hx_now();
    draw(w, step);
    mine->loss = nbt_model_run(w->model, w->params, w->tokens, w->grad);
    if (s->grad_type == NB_BF16)
        nbt_to_bf16(w->grad, params, w->send);
    else
        memcpy(w->send, w->grad, params * sizeof *w->grad);
    memcpy(nbt_board_grads(s, w->board, w->node->rank), w->send, all * size);
    if (s->dump_dir && step % s->dump_every == 0) {
        rc = nbt_dump_step(s->dump_dir, s->nodes, s->block, step, w->node->rank, w->grad);
        if (rc)
            return rc;
    }

    const double t1 = hx_now();
    rc = w->x.ops->reduce_scatter(&w->x, w->send, w->recv);
    if (rc)
        return rc;
    const double t2 = hx_now();
    load_grad(s, w->recv, 0, s->block, w->delivered);
    rc = meet(w); /* all gradients are on the board, all losses too */
    if (rc)
        return rc;
    const double loss = over_nodes(w, &w->board->node->loss) / (double)s->nodes;
    exact_sum(w);
    mine->norm2 = sum_squares(w->delivered, w->n);
    mine->norm2_exact = sum_squares(w->exact, w->n);
    if (!isfinite(mine->norm2) || !isfinite(loss)) {
        hx_fail("step %zu: loss %g, the gradient is not finite", step, loss);
        return -EDOM;
    }
    rc = meet(w);
    if (rc)
        return rc;
    const double norm = sqrt(over_nodes(w, &w->board->node->norm2)) / (double)s->nodes;
    update(w, step);
    memcpy(nbt_board_weights(s, w->board) + w->first, w->weights + w->first, s->block * sizeof *w->weights);
    const int probe =
        step >= s->probe_from && ((step - s->probe_from) % s->probe_every == 0 || step + 1 == s->steps);
    if (probe)
        nbt_fidelity_measure(&s->lay, &w->usage, w->first, w->n, w->u, w->u_exact, w->delivered, w->exact,
                             &mine->fidelity);

    const double t3 = hx_now();
    rc = w->x.ops->all_gather(&w->x, w->weights);
    if (rc)
        return rc;
    const double t4 = hx_now();
    if (s->fault == NBT_FAULT_WEIGHT && step == s->steps / 2 && w->node->rank == 1)
        w->weights[0] ^= 1;
    rc = meet(w); /* all shards are on the board */
    if (rc)
        return rc;
    if (probe && w->node->rank == 0) {
        struct nbt_fidelity_sums sums[HX_MAX_NODES];
        for (int r = 0; r < s->nodes; r++)
            sums[r] = w->board->node[r].fidelity;
        nbt_fidelity_add(&w->board->fidelity, sums, s->nodes);
    }
    rc = check_weights(w, step);
    if (rc)
        return rc;
    nbt_from_bf16(w->weights, params, w->params);

    const int validated = (step + 1) % s->eval_every == 0 || step + 1 == s->steps;
    if (validated)
        validate(w);
    w->x.ops->traffic(&w->x, &mine->traffic);
    mine->seconds_compute += t1 - t0;
    mine->seconds_rs += t2 - t1;
    mine->seconds_ag += t4 - t3;
    rc = meet(w);
    if (rc)
        return rc;
    if (w->node->rank == 0)
        record(w, step, loss, norm, validated);
    return 0;
}

int nbt_node_main(struct hx_node *node, void *arg)
{
    const struct nbt_launch *l = arg;
    struct worker *w = malloc(sizeof *w);
    if (!w)
        return hx_fail("out of memory");
    hx_where("opening the exchange");
    int rc = open_worker(w, l, node);
    const double begin = hx_now();
    for (size_t step = 0; rc == 0 && step < l->settings->steps; step++) {
        hx_where("step %zu", step);
        rc = one_step(w, step);
    }
    if (rc == 0 && node->rank == 0) {
        l->board->seconds = hx_now() - begin;
        nbt_fidelity_finish(&l->board->fidelity);
    }
    hx_where("closing the exchange");
    if (w->x.state || rc == 0) {
        const int closed = w->x.ops->close(&w->x);
        rc = rc ? rc : closed;
    }
    free_worker(w);
    free(w);
    return rc ? 1 : 0;
}
