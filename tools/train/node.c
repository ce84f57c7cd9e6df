/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop of one node: gradients out, the shard's optimizer, weights in, and the checks of both. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"
#include "worker.h"

#define SCALE_FIRST \
    4096.0f              /* loss scale with FP16 gradients: halved when one overflows, else doubled ... \
                          */
#define SCALE_STEPS 200u /* ... after so many steps, as PyTorch's GradScaler does it (with other numbers) */
#define SCALE_MAX 65536.0f

/* ---- set-up ---- */

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p)
        hx_fail("out of memory");
    return p;
}

static int open_buffers(struct nbt_worker *w)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block, size = nb_dtype_size(s->grad_type);
    int ok = 1;
    w->model = nbt_model_new(&s->lay, nbt_kernels_get(NULL));
    ok &= w->model != NULL;
    ok &= (w->tokens = zeros(s->lay.cfg.batch, s->lay.cfg.context + 1)) != NULL;
    ok &= (w->send = zeros(all, size)) != NULL;
    ok &= (w->recv = zeros(s->block, size)) != NULL;
    ok &= (w->weights = zeros(all, sizeof *w->weights)) != NULL;
    float **const whole[] = {&w->params, &w->grad, &w->params_exact};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        ok &= (*whole[i] = zeros(all, sizeof(float))) != NULL;
    float **const shard[] = {&w->master,  &w->before, &w->delivered, &w->exact,       &w->u,
                             &w->u_exact, &w->mom.m,  &w->mom.v,     &w->mom_exact.m, &w->mom_exact.v};
    for (size_t i = 0; i < sizeof shard / sizeof *shard; i++)
        ok &= (*shard[i] = zeros(s->block, sizeof(float))) != NULL;
    return ok ? 0 : -ENOMEM;
}

static void free_worker(struct nbt_worker *w)
{
    nbt_model_free(w->model);
    free(w->tokens), free(w->params), free(w->params_exact), free(w->grad), free(w->weights);
    free(w->send), free(w->recv);
    free(w->master), free(w->before), free(w->delivered), free(w->exact);
    free(w->u), free(w->u_exact);
    free(w->mom.m), free(w->mom.v), free(w->mom_exact.m), free(w->mom_exact.v);
}

static int open_exchange(struct nbt_worker *w)
{
    const struct nbt_settings *s = w->s;
    w->x.ops = s->exchange;
    w->x.cfg = (struct nbt_exchange_cfg){
        .node = w->node,
        .grad_type = s->grad_type,
        .block = s->block,
        .all_reduce = w->run->method.all_reduce,
        .shared = nbt_board_exchange(s, w->board),
        .plugin = s->plugin,
    };
    return w->x.ops->open(&w->x);
}

static int open_worker(struct nbt_worker *w, const struct nbt_launch *l, struct hx_node *node)
{
    const struct nbt_settings *s = l->settings;
    const size_t all = (size_t)s->nodes * s->block;
    memset(w, 0, sizeof *w);
    w->s = s;
    w->run = l->run;
    w->node = node;
    w->board = l->board;
    w->progress = l->progress;
    w->last_valid = NAN;
    w->scale = s->grad_type == NB_F16 ? SCALE_FIRST : 1;
    w->first = (size_t)node->rank * s->block;
    w->n = w->first >= s->lay.params ? 0 : s->lay.params - w->first;
    w->n = w->n < s->block ? w->n : s->block;
    if (open_buffers(w))
        return -ENOMEM;
    /* All nodes start from the same weights, rounded as they will travel. */
    nbt_init_params(&s->lay, s->seed, w->params);
    memcpy(w->master, w->params + w->first, s->block * sizeof(float));
    nbt_to_bf16(w->params, all, w->weights);
    nbt_from_bf16(w->weights, all, w->params);
    memcpy(w->params_exact, w->params, all * sizeof *w->params);
    return open_exchange(w);
}

int nbt_meet(struct nbt_worker *w)
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

/* Draw this node's micro-batch, and note which bytes occur anywhere in the step. */
static void draw(struct nbt_worker *w, size_t step)
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

static double sum_squares(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

double nbt_over_nodes(const struct nbt_worker *w, const double *first)
{
    double sum = 0;
    for (int r = 0; r < w->s->nodes; r++)
        sum +=
            *(const double *)(const void *)((const char *)first + (size_t)r * sizeof(struct nbt_node_board));
    return sum;
}

/* Let both optimizers take their step on the shard. The weights follow the delivered gradients. */
static void update(struct nbt_worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    struct nbt_node_board *nb = w->board->node, *mine = &nb[w->node->rank];
    const double inv = 1.0 / ((double)s->nodes * (double)w->scale);
    const float clip = nbt_clip_factor(nbt_over_nodes(w, &nb->norm2) * inv * inv);
    const float clip_exact = nbt_clip_factor(nbt_over_nodes(w, &nb->norm2_exact) * inv * inv);
    nbt_adamw_direction(&s->opt, w->updates, w->n, w->delivered, clip * (float)inv, w->mom, w->u);
    nbt_adamw_direction(&s->opt, w->updates, w->n, w->exact, clip_exact * (float)inv, w->mom_exact,
                        w->u_exact);
    memcpy(w->before, w->master, w->n * sizeof *w->before);
    nbt_adamw_apply(&s->opt, &s->lay, w->first, w->n, nbt_learning_rate(step, s->steps, s->warmup, s->rate),
                    w->u, w->master);
    w->updates++;
    mine->change2 = 0;
    for (size_t i = 0; i < w->n; i++)
        mine->change2 +=
            ((double)w->master[i] - (double)w->before[i]) * ((double)w->master[i] - (double)w->before[i]);
    mine->weight2 = sum_squares(w->master, w->n);
}

int nbt_gather(struct nbt_worker *w, size_t where)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block;
    struct nbt_node_board *mine = &w->board->node[w->node->rank];
    nbt_to_bf16(w->master, s->block, w->weights + w->first);
    memcpy(nbt_board_weights(s, w->board) + w->first, w->weights + w->first, s->block * sizeof *w->weights);
    const double t0 = hx_now();
    int rc = w->x.ops->all_gather(&w->x, w->weights);
    if (rc)
        return rc;
    mine->seconds_ag += hx_now() - t0;
    if (s->fault == NBT_FAULT_WEIGHT && where == s->steps / 2 && w->node->rank == 1)
        w->weights[0] ^= 1;
    rc = nbt_meet(w); /* all shards are on the board */
    if (rc == 0)
        rc = nbt_check_weights(w, where);
    if (rc)
        return rc;
    nbt_from_bf16(w->weights, s->lay.params, w->params);
    if (nbt_weights_lossy(w->run->method.weights))
        nbt_from_bf16(nbt_board_weights(s, w->board), all, w->params_exact);
    return nbt_meet(w); /* writes to the board wait until all nodes have read it */
}

void nbt_validate(struct nbt_worker *w)
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

/* Write the step down on node 0. All nodes have met since their last change to the board. */
static void record(struct nbt_worker *w, size_t step, const struct nbt_step *now, int validated, int instant)
{
    const struct nbt_settings *s = w->s;
    struct nbt_board *b = w->board;
    struct nbt_step *at = &b->step[step];
    double valid = 0, batches = 0;
    *at = *now;
    for (int r = 0; r < s->nodes; r++) {
        valid += b->node[r].valid;
        batches += (double)b->node[r].valid_batches;
    }
    if (!now->skipped && instant)
        nbt_probe_collect(w);
    at->valid = validated && batches > 0 ? valid / batches : NAN;
    if (validated)
        w->last_valid = at->valid;
    b->steps_done = step + 1;
    nbt_progress_step(w->progress, step + 1, at->loss, w->last_valid);
}

/* Compute the own micro-batch's gradients, in the type that travels. A copy goes to the board for the exact
 * sum. */
static void compute(struct nbt_worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    const size_t all = (size_t)s->nodes * s->block, params = s->lay.params;
    const float factor = w->scale;
    void *const board = nbt_board_grads(s, w->board, w->node->rank);
    draw(w, step);
    w->board->node[w->node->rank].loss = nbt_model_run(w->model, w->params, w->tokens, w->grad);
    for (size_t i = 0; factor != 1 && i < params; i++)
        w->grad[i] *= factor;
    nbt_narrow(s->grad_type, w->grad, params, w->send);
    if (!nbt_weights_lossy(w->run->method.weights)) {
        memcpy(board, w->send, all * nb_dtype_size(s->grad_type));
        return;
    }
    /* Run with the weights that exact gathers would have delivered. */
    (void)nbt_model_run(w->model, w->params_exact, w->tokens, w->grad);
    for (size_t i = 0; factor != 1 && i < params; i++)
        w->grad[i] *= factor;
    nbt_narrow(s->grad_type, w->grad, params, board);
}

/* Send the gradients. */
static int reduce(struct nbt_worker *w)
{
    const double t0 = hx_now();
    const int rc = w->x.ops->reduce_scatter(&w->x, w->send, w->recv);
    w->board->node[w->node->rank].seconds_rs += hx_now() - t0;
    if (rc == 0)
        nbt_widen(w->s->grad_type, w->recv, w->s->block, w->delivered);
    return rc;
}

/* Decide whether the optimizer takes this step. The loss scale follows the decision. All nodes decide alike.
 * Return a negative value when a gradient that should be finite is not, or when a gradient arrives finite
 * although its sum is not. (A sum of finite values may be too large for FP16.) */
static int decide(struct nbt_worker *w, size_t step, double loss)
{
    const struct nbt_node_board *nb = w->board->node;
    const int finite = isfinite(nbt_over_nodes(w, &nb->norm2)) != 0;
    if (finite && !isfinite(nbt_over_nodes(w, &nb->norm2_exact))) {
        hx_fail("step %zu: a gradient that is not finite arrives finite", step);
        return -EDOM;
    }
    if (!isfinite(loss) || (!finite && w->s->grad_type != NB_F16)) {
        hx_fail("step %zu: loss %g, the gradient is%s finite", step, loss, finite ? "" : " not");
        return -EDOM;
    }
    return finite;
}

static void rescale(struct nbt_worker *w, int finite)
{
    if (w->s->grad_type != NB_F16)
        return;
    if (!finite)
        w->scale /= 2;
    else if (w->since + 1 >= SCALE_STEPS && w->scale < SCALE_MAX)
        w->scale *= 2;
    else {
        w->since++;
        return;
    }
    w->since = 0;
}

static int one_step(struct nbt_worker *w, size_t step)
{
    const struct nbt_settings *s = w->s;
    struct nbt_node_board *const nb = w->board->node, *const mine = &nb[w->node->rank];
    const int instant =
        step >= s->probe_from && ((step - s->probe_from) % s->probe_every == 0 || step + 1 == s->steps);
    const double t0 = hx_now();
    compute(w, step);
    mine->seconds_compute += hx_now() - t0;
    int rc = reduce(w);
    if (rc == 0)
        rc = nbt_meet(w); /* all gradients and losses are on the board */
    if (rc)
        return rc;
    const double loss = nbt_over_nodes(w, &nb->loss) / (double)s->nodes;
    nbt_exact_sum(w);
    mine->norm2 = sum_squares(w->delivered, w->n);
    mine->norm2_exact = sum_squares(w->exact, w->n);
    rc = nbt_meet(w);
    if (rc)
        return rc;
    const int taken = decide(w, step, loss);
    if (taken < 0)
        return taken;
    const double inv = 1.0 / ((double)s->nodes * (double)w->scale);
    struct nbt_step now = {
        .loss = loss,
        .norm = sqrt(nbt_over_nodes(w, &nb->norm2)) * inv,
        .norm_exact = sqrt(nbt_over_nodes(w, &nb->norm2_exact)) * inv,
        .rate = nbt_learning_rate(step, s->steps, s->warmup, s->rate),
        .skipped = !taken,
    };
    if (taken) {
        update(w, step);
        if (instant)
            nbt_probe(w);
        rc = nbt_gather(w, step);
        if (rc)
            return rc;
        now.change = sqrt(nbt_over_nodes(w, &nb->change2) / nbt_over_nodes(w, &nb->weight2));
    }
    rescale(w, isfinite(now.norm));
    const int validated = (step + 1) % s->eval_every == 0 || step + 1 == s->steps;
    if (validated)
        nbt_validate(w);
    rc = nbt_meet(w);
    if (rc)
        return rc;
    if (w->node->rank == 0)
        record(w, step, &now, validated, taken && instant);
    return 0;
}

int nbt_node_main(struct hx_node *node, void *arg)
{
    const struct nbt_launch *l = arg;
    struct nbt_worker *w = malloc(sizeof *w);
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
    if (w->x.state || rc == 0) {
        hx_where("closing the exchange");
        const int closed = w->x.ops->close(&w->x);
        rc = rc ? rc : closed;
    }
    free_worker(w);
    free(w);
    return rc ? 1 : 0;
}
