/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU. For each channel of the running operation it fills send slots for which the proxy has
 * given credit, and drains receive slots whose tail has moved, as NCCL's CollNet-direct kernels do with one
 * GPU in a node. It runs on the proxy thread between two passes of the proxy.
 */
#include <string.h>

#include "internal.h"

/* Return true once the channel's random delay is over. `at` keeps the moment drawn for this step. */
static bool delay_over(struct hx_comm *c, double *at)
{
    if (!c->cfg.gpu_delay_us)
        return true;
    if (*at == 0)
        *at = hx_now() + 1e-6 * (double)hx_rand_below(&c->rng, c->cfg.gpu_delay_us + 1);
    if (hx_now() < *at)
        return false;
    *at = 0;
    return true;
}

/* Like delay_over, but every stall_every-th step is left alone for stall_ms. */
static bool drain_due(struct hx_comm *c, double *at)
{
    if (c->cfg.stall_every && *at == 0 &&
        (c->drained_steps++ + c->stall_phase) % c->cfg.stall_every == c->cfg.stall_every - 1)
        *at = hx_now() + 1e-3 * c->cfg.stall_ms;
    else if (c->cfg.stall_every && *at == 0)
        *at = 1e-9; /* drawn: now */
    if (*at == 0)
        return delay_over(c, at);
    if (hx_now() < *at)
        return false;
    *at = 0;
    return true;
}

/* Return the bytes of an all-reduce vector that channel `sub` carries in `step`, and set *offset to their
 * start. */
static size_t ar_part(const struct hx_op_state *s, int sub, uint64_t step, size_t *offset)
{
    *offset = (size_t)(step * (uint64_t)s->nsubs + (uint64_t)sub) * s->chunk;
    if (*offset >= s->bytes)
        return 0;
    return s->bytes - *offset < s->chunk ? s->bytes - *offset : s->chunk;
}

/* Fill the end of a chunk behind its valid bytes. With NCCL it holds stale memory, here the worst case: words
 * that are NaN or huge in one type or another. In every other operation it holds ordinary values of the right
 * type that are 3000 times too large. Among themselves they are no outliers, but they ruin the scale of every
 * group that they share. */
static void poison(char *at, size_t bytes, ncclDataType_t type, bool large)
{
    /* NaN as float32, 1e30, NaN as two bfloat16, NaN as two float16, NaN as anything, 1e30 as two bfloat16 */
    static const uint32_t pattern[] = {0x7fc00000u, 0x7149f2cau, 0x7fc17fc1u,
                                       0x7e017e01u, 0xffffffffu, 0x71497149u};
    enum { PERIOD = 150 }; /* values, after which the pattern repeats */
    char value[PERIOD * sizeof(double)];
    size_t size = hx_type_size(type);
    size_t n = large && hx_type_is_float(type) ? bytes / size : 0;

    for (size_t i = 0; i < PERIOD && i < n; i++)
        hx_store(type, value, i, i % 3 ? 3000.0 + (double)(i % 50) : -2500.0);
    for (size_t i = 0; i < n; i += PERIOD)
        memcpy(at + i * size, value, (n - i < PERIOD ? n - i : PERIOD) * size);
    for (size_t i = n * size; i < bytes; i += 4)
        memcpy(at + i, &pattern[i / 4 % 6], bytes - i < 4 ? bytes - i : 4);
}

static void fill(struct hx_comm *c, struct hx_op_state *s, int sub, uint64_t step, int slot)
{
    struct hx_fifo *f = &c->channel[sub].send;
    const struct hx_op *op = s->op;
    char *dst = c->region + f->slot[slot].offset;
    size_t beg, end, len;

    if (op->func == HX_ALL_REDUCE) {
        len = ar_part(s, sub, step, &beg);
        if (c->cfg.poison)
            poison(dst + len, s->chunk - len, op->type, c->poison_large);
    } else {
        bool all = op->func == HX_REDUCE_SCATTER;

        beg = hx_algo_offset(c, s, all, sub, step);
        end = hx_algo_offset(c, s, all, sub + 1, step);
        len = end - beg;
        if (!all)
            beg -= (size_t)c->node->rank * s->size_per_rank;
    }
    if (len && !(op->flags & HX_OP_NOCOPY))
        memcpy(dst, (const char *)op->send + beg, len);
    f->slot[slot].size = (ssize_t)len;
}

static void drain(struct hx_comm *c, struct hx_op_state *s, int sub, uint64_t step, int slot)
{
    const struct hx_op *op = s->op;
    const char *src = c->recv_region + c->channel[sub].recv.slot[slot].offset;
    size_t own = (size_t)c->node->rank * s->size_per_rank, beg, end, len;

    if (op->flags & HX_OP_NOCOPY)
        return;
    if (op->func == HX_ALL_REDUCE) {
        len = ar_part(s, sub, step, &beg);
        if (len)
            memcpy((char *)op->recv + beg, src, len);
        return;
    }
    beg = hx_algo_offset(c, s, op->func == HX_ALL_GATHER, sub, step);
    end = hx_algo_offset(c, s, op->func == HX_ALL_GATHER, sub + 1, step);
    if (op->func == HX_REDUCE_SCATTER) {
        if (end > beg)
            memcpy((char *)op->recv + (beg - own), src, end - beg);
        return;
    }
    if ((const char *)op->send == (char *)op->recv + own) { /* in place: the own block stays unchanged */
        size_t cut_beg = beg > own ? beg : own;
        size_t cut_end = end < own + s->size_per_rank ? end : own + s->size_per_rank;

        if (cut_beg < cut_end) {
            memcpy((char *)op->recv + beg, src, cut_beg - beg);
            memcpy((char *)op->recv + cut_end, src + (cut_end - beg), end - cut_end);
            return;
        }
    }
    if (end > beg)
        memcpy((char *)op->recv + beg, src, end - beg);
}

bool hx_gpu_pass(struct hx_comm *c)
{
    struct hx_op *op = c->gpu_head;
    struct hx_op_state *s;
    bool moved = false, all_done = true;

    if (!op)
        return false;
    s = op->state;
    if (!s->gpu_started) {
        for (int i = 0; i < s->nsubs; i++) {
            s->gpu_send_base[i] = c->channel[i].gpu_send_step;
            s->gpu_recv_base[i] = c->channel[i].gpu_recv_step;
        }
        c->poison_large = !c->poison_large;
        s->gpu_started = true;
    }
    for (int i = 0; i < s->nsubs; i++) {
        struct hx_channel *ch = &c->channel[i];
        uint64_t step = s->gpu_send_base[i] + s->filled[i];

        if (s->filled[i] < s->nsteps && (int64_t)(ch->send.head + HX_STEPS - step - 1) >= 0 &&
            delay_over(c, &ch->fill_at)) {
            fill(c, s, i, s->filled[i], (int)(step % HX_STEPS));
            ch->send.tail = step + 1;
            s->filled[i]++;
            moved = true;
        }
        step = s->gpu_recv_base[i] + s->drained[i];
        if (s->drained[i] < s->nsteps && (int64_t)(ch->recv.tail - step - 1) >= 0 &&
            drain_due(c, &ch->drain_at)) {
            drain(c, s, i, s->drained[i], (int)(step % HX_STEPS));
            ch->recv.head = step + 1;
            s->drained[i]++;
            moved = true;
        }
        all_done = all_done && s->filled[i] == s->nsteps && s->drained[i] == s->nsteps;
    }
    if (all_done) {
        for (int i = 0; i < s->nsubs; i++) {
            c->channel[i].gpu_send_step += s->nsteps;
            c->channel[i].gpu_recv_step += s->nsteps;
        }
        s->gpu_done = true;
        c->gpu_head = s->next_gpu;
        if (!c->gpu_head)
            c->gpu_tail = NULL;
    }
    return moved;
}
