/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy thread: the loops of NCCL's CollNet proxy, state for state, for operations in NCCL's own buffer,
 * without user-buffer registration. Odd code here follows the original: a refused call leaves the loop body
 * before the test of that group, slots have the number of the channel's running step but their place in the
 * region follows from the operation's own step, and the last channel of a group speaks for the whole group.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

size_t hx_algo_offset(const struct hx_comm *c, const struct hx_op_state *s, bool all, int sub, uint64_t step)
{
    size_t offset = (size_t)(step * (uint64_t)s->nsubs + (uint64_t)sub) * s->chunk;
    size_t rank = (size_t)c->node->rank, nnodes = (size_t)c->node->nnodes;
    size_t lo = all ? 0 : rank * s->size_per_rank;
    size_t hi = all ? nnodes * s->size_per_rank : (rank + 1) * s->size_per_rank;

    return offset < lo ? lo : offset > hi ? hi : offset;
}

ssize_t hx_region_offset(const struct hx_comm *c, const struct hx_op_state *s, bool recv, int sub,
                         uint64_t step, int side)
{
    ssize_t base = (ssize_t)((recv ? HX_STEPS : 0) + step % HX_STEPS) * c->nchannels * c->slot_size;
    bool all = recv != (s->op->func == HX_REDUCE_SCATTER);
    int sub0 = sub - sub % HX_CALL_CHANNELS;

    if (s->op->func == HX_ALL_REDUCE)
        return base + (ssize_t)(sub + side) * (ssize_t)s->chunk;
    return base + sub0 * c->slot_size + (ssize_t)hx_algo_offset(c, s, all, sub + side, step) -
           (ssize_t)hx_algo_offset(c, s, all, sub0, step);
}

size_t hx_nccl_chunk(size_t total, int nchannels, size_t buff_size)
{
    size_t chunk = buff_size / HX_STEPS, n = (size_t)nchannels;

    while (total / (n * chunk) < 64 && chunk > 131072)
        chunk /= 2;
    while (total / (n * chunk) < 8 && chunk > 32768)
        chunk /= 2;
    return chunk / 512 * 512;
}

static bool last_of_group(const struct hx_op_state *s, int i)
{
    return i % HX_CALL_CHANNELS == HX_CALL_CHANNELS - 1 || i == s->nsubs - 1;
}

/* Pass one window to the plugin. */
static ncclResult_t call_plugin(struct hx_comm *c, struct hx_op_state *s, int i, size_t all_beg, size_t bytes,
                                ssize_t send_beg, ssize_t recv_beg, void **request)
{
    struct hx_op *op = s->op;
    char *send = c->region + send_beg, *recv = c->recv_region + recv_beg;

    if (!s->started) {
        s->started = true;
        op->t_first = hx_now();
        if (op->on_start)
            op->on_start(op, op->on_start_arg);
    }
    c->counts.calls++;
    switch (op->func) {
    case HX_ALL_REDUCE:
        return hx_coll_iallreduce(c->lib, c->plugin, send, recv, bytes / s->elem, op->type, op->op,
                                  c->send_mh[i], c->recv_mh[i], request);
    case HX_ALL_GATHER:
        return hx_coll_iallgather(c->lib, c->plugin, send, recv, bytes, c->recv_mh[i], s->size_per_rank,
                                  all_beg, bytes, c->send_mh[i], request);
    default:
        return hx_coll_ireducescatter(c->lib, c->plugin, send, bytes, c->send_mh[i], recv, s->size_per_rank,
                                      all_beg, bytes, op->type, op->op, c->recv_mh[i], request);
    }
}

static ncclResult_t send_progress(struct hx_comm *c, struct hx_op_state *s)
{
    struct hx_side *side = &s->send;
    ncclResult_t ret;

    if (side->state == HX_SIDE_READY) {
        for (int i = 0; i < s->nsubs; i++) {
            side->sub[i].base = c->channel[i].send_step;
            c->channel[i].send_step += s->nsteps;
        }
        side->state = HX_SIDE_RUNNING;
    }
    side->idle = true;
    for (int i = 0; i < s->nsubs; i++) {
        struct hx_sub *sub = &side->sub[i];
        struct hx_channel *ch = &c->channel[i];
        int group = i / HX_CALL_CHANNELS, group_start = i - i % HX_CALL_CHANNELS;
        bool ordered;

        if (sub->posted < s->nsteps && sub->posted < sub->done + HX_STEPS) {
            int slot = (int)((sub->base + sub->posted) % HX_STEPS);

            ch->send.slot[slot].offset = hx_region_offset(c, s, false, i, sub->posted, 0);
            sub->posted++;
            ch->send.head = sub->base + sub->posted - HX_STEPS;
        }
        if (sub->received < sub->posted && sub->received < sub->done + HX_STEPS) {
            int slot = (int)((sub->base + sub->received) % HX_STEPS);

            if (ch->send.slot[slot].size != -1 && ch->send.tail > sub->base + sub->received) {
                if (s->op->func != HX_ALL_REDUCE &&
                    hx_region_offset(c, s, false, i, sub->received, 1) -
                            hx_region_offset(c, s, false, i, sub->received, 0) !=
                        ch->send.slot[slot].size) {
                    hx_fail("harness: a slot was filled with another size than the proxy expects");
                    return HX_BROKEN;
                }
                ch->send.slot[slot].size = -1;
                sub->received++;
                side->idle = false;
            }
        }
        /* Calls go out in the order of steps and, within a step, of channels. */
        ordered = i == 0 ? side->sub[s->nsubs - 1].transmitted == sub->transmitted
                         : sub->transmitted < sub[-1].transmitted;
        if (ordered && sub->transmitted < sub->received) {
            if (last_of_group(s, i)) {
                int slot = (int)((sub->base + sub->transmitted) % HX_STEPS);
                struct hx_req_slot *turn = &ch->fifo[group][slot];

                if (!turn->send_turn)
                    continue;
                size_t all_beg = hx_algo_offset(c, s, true, group_start, sub->transmitted);
                size_t all_end = hx_algo_offset(c, s, true, i + 1, sub->transmitted);
                ssize_t send_beg = hx_region_offset(c, s, false, group_start, sub->transmitted, 0);
                ssize_t send_end = hx_region_offset(c, s, false, i, sub->transmitted, 1);
                ssize_t recv_beg = hx_region_offset(c, s, true, group_start, sub->transmitted, 0);
                ssize_t recv_end = hx_region_offset(c, s, true, i, sub->transmitted, 1);

                turn->size = recv_end - recv_beg;
                if (send_beg == send_end && recv_beg == recv_end) {
                    sub->requests[slot] = NULL; /* trivially finished */
                } else {
                    size_t bytes =
                        s->op->func == HX_ALL_REDUCE ? (size_t)(send_end - send_beg) : all_end - all_beg;

                    ret = call_plugin(c, s, i, all_beg, bytes, send_beg, recv_beg, &sub->requests[slot]);
                    if (ret != ncclSuccess)
                        return ret;
                    if (bytes > 0 && !sub->requests[slot]) {
                        c->counts.refused++;
                        continue;
                    }
                }
            }
            sub->transmitted++;
            side->idle = false;
            continue;
        }
        if (last_of_group(s, i) && sub->done < sub->transmitted) {
            int slot = (int)((sub->base + sub->done) % HX_STEPS), done = 1, size = 0;

            if (sub->requests[slot]) {
                c->counts.tests++;
                ret = hx_coll_test(c->lib, sub->requests[slot], &done, &size);
                if (ret != ncclSuccess)
                    return ret;
            }
            if (done) {
                bool all_done = true;

                sub->requests[slot] = NULL;
                ch->fifo[group][slot].send_turn = false;
                for (int k = group_start; k <= i; k++)
                    side->sub[k].done++;
                side->idle = false;
                for (int k = 0; k < s->nsubs; k++)
                    all_done = all_done && side->sub[k].done == s->nsteps;
                if (all_done)
                    side->state = HX_SIDE_DONE;
            }
        }
    }
    return ncclSuccess;
}

static ncclResult_t recv_progress(struct hx_comm *c, struct hx_op_state *s)
{
    struct hx_side *side = &s->recv;
    ncclResult_t ret;

    if (side->state == HX_SIDE_READY) {
        for (int i = 0; i < s->nsubs; i++) {
            side->sub[i].base = c->channel[i].recv_step;
            c->channel[i].recv_step += s->nsteps;
        }
        side->state = HX_SIDE_RUNNING;
    }
    side->idle = true;
    for (int i = 0; i < s->nsubs; i++) {
        struct hx_sub *sub = &side->sub[i];
        struct hx_channel *ch = &c->channel[i];
        int group = i / HX_CALL_CHANNELS, group_start = i - i % HX_CALL_CHANNELS;
        bool in_turn;

        if (last_of_group(s, i) && sub->posted < sub->done + HX_STEPS && sub->posted < s->nsteps) {
            ch->fifo[group][(sub->base + sub->posted) % HX_STEPS].send_turn = true;
            sub->posted++;
            side->idle = false;
            continue;
        }
        if (last_of_group(s, i) && sub->received < sub->posted) {
            int slot = (int)((sub->base + sub->received) % HX_STEPS);

            if (!ch->fifo[group][slot].send_turn) {
                ssize_t beg = hx_region_offset(c, s, true, group_start, sub->received, 0);
                ssize_t end = hx_region_offset(c, s, true, i, sub->received, 1);

                sub->received++;
                if (ch->fifo[group][slot].size > 0 && c->cfg.flush) {
                    c->counts.flushes++;
                    ret = hx_coll_iflush(c->lib, c->plugin, c->recv_region + beg, (int)(end - beg),
                                         c->recv_mh[i], &sub->requests[slot]);
                    if (ret != ncclSuccess)
                        return ret;
                }
                side->idle = false;
                continue;
            }
        }
        if (last_of_group(s, i) && sub->flushed < sub->received) {
            int slot = (int)((sub->base + sub->flushed) % HX_STEPS), done = 1;

            if (sub->requests[slot]) {
                c->counts.tests++;
                ret = hx_coll_test(c->lib, sub->requests[slot], &done, NULL);
                if (ret != ncclSuccess)
                    return ret;
            }
            if (done) {
                sub->requests[slot] = NULL;
                for (int k = group_start; k <= i; k++)
                    side->sub[k].flushed++;
                side->idle = false;
            }
        }
        if (sub->transmitted < sub->flushed) {
            int slot = (int)((sub->base + sub->transmitted) % HX_STEPS);

            ch->recv.slot[slot].offset = hx_region_offset(c, s, true, i, sub->transmitted, 0);
            ch->recv.tail = sub->base + sub->flushed;
            sub->transmitted++;
            side->idle = false;
            continue;
        }
        /* Channels give slots back in order, so that no slot is posted while another still drains it. */
        in_turn = i == 0 ? side->sub[s->nsubs - 1].done == sub->done : sub[-1].done > sub->done;
        if (in_turn && sub->done < sub->transmitted && sub->base + sub->done < ch->recv.head) {
            sub->done++;
            side->idle = false;
            if (sub->done == s->nsteps && i == s->nsubs - 1)
                side->state = HX_SIDE_DONE;
        }
    }
    return ncclSuccess;
}

/* ---- queue and thread ---- */

static void finish(struct hx_comm *c, struct hx_op *op, ncclResult_t result)
{
    pthread_mutex_lock(&c->lock);
    op->t_done = hx_now();
    op->result = result;
    ((struct hx_op_state *)op->state)->finished = true;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* Take over posted operations. Sleep when there is no work. Return false when the thread must end. */
static bool take_posted(struct hx_comm *c)
{
    struct hx_op *op;
    bool go_on;

    pthread_mutex_lock(&c->lock);
    while (!c->recv_head && !c->posted && !c->stop) {
        c->counts.sleeps++;
        pthread_cond_wait(&c->wake, &c->lock);
    }
    while ((op = c->posted)) {
        struct hx_op_state *s = op->state;

        c->posted = op->next_send;
        op->next_send = op->next_recv = NULL;
        if (c->send_tail)
            c->send_tail->next_send = op;
        else
            c->send_head = op;
        c->send_tail = op;
        if (c->recv_tail)
            c->recv_tail->next_recv = op;
        else
            c->recv_head = op;
        c->recv_tail = op;
        if (c->gpu_tail)
            ((struct hx_op_state *)c->gpu_tail->state)->next_gpu = op;
        else
            c->gpu_head = op;
        c->gpu_tail = op;
        s->next_gpu = NULL;
    }
    c->posted_tail = NULL;
    go_on = !c->abort && !(c->stop && !c->recv_head);
    pthread_mutex_unlock(&c->lock);
    return go_on;
}

static ncclResult_t pass(struct hx_comm *c, bool *idle)
{
    struct hx_op *op = c->send_head;
    struct hx_op_state *s;
    ncclResult_t ret = ncclSuccess;

    if (op) {
        s = op->state;
        ret = send_progress(c, s);
        *idle = *idle && s->send.idle;
        if (ret != ncclSuccess)
            return ret;
        if (s->send.state == HX_SIDE_DONE) {
            c->send_head = op->next_send;
            if (!c->send_head)
                c->send_tail = NULL;
        }
    }
    op = c->recv_head;
    if (op) {
        s = op->state;
        ret = recv_progress(c, s);
        *idle = *idle && s->recv.idle;
        if (ret != ncclSuccess)
            return ret;
        if (s->recv.state == HX_SIDE_DONE) {
            c->recv_head = op->next_recv;
            if (!c->recv_head)
                c->recv_tail = NULL;
            finish(c, op, ncclSuccess);
        }
    }
    return ncclSuccess;
}

#define YIELDS 64         /* passes without progress before the proxy sleeps */
#define SHORTEST_NAP 5e-5 /* seconds */
#define LONGEST_NAP 1e-3

/* Yield or sleep after a pass without progress. Nodes share few cores, and system calls of short naps are
 * most of a waiting test's cost. So the sleep grows with the time without progress, to a quarter of that
 * time. */
static void idle(const struct hx_comm *c, unsigned passes, double since)
{
    double nap = (hx_now() - since) / 4;

    if (passes < YIELDS || c->cfg.idle_us == HX_SPIN) {
        sched_yield();
        return;
    }
    if (c->cfg.idle_us)
        nap = 1e-6 * c->cfg.idle_us;
    else if (nap < SHORTEST_NAP)
        nap = SHORTEST_NAP;
    else if (nap > LONGEST_NAP)
        nap = LONGEST_NAP;
    hx_sleep(nap);
}

static void *proxy_main(void *arg)
{
    struct hx_comm *c = arg;
    ncclResult_t ret = ncclSuccess;
    unsigned idle_passes = 0;
    double idle_since = 0;

    while (take_posted(c)) {
        bool nothing = true;

        ret = pass(c, &nothing);
        if (ret != ncclSuccess)
            break;
        if (hx_gpu_pass(c))
            nothing = false;
        if (!nothing) {
            idle_passes = 0;
            continue;
        }
        if (!idle_passes++)
            idle_since = hx_now();
        idle(c, idle_passes, idle_since);
    }
    pthread_mutex_lock(&c->lock);
    if (ret != ncclSuccess)
        c->async = ret;
    else if (c->abort)
        c->async = ncclInternalError;
    ret = c->async;
    pthread_mutex_unlock(&c->lock);
    while (c->recv_head) {
        struct hx_op *op = c->recv_head;

        c->recv_head = op->next_recv;
        finish(c, op, ret);
    }
    pthread_mutex_lock(&c->lock);
    while (c->posted) { /* posted after the last look */
        struct hx_op *op = c->posted;

        c->posted = op->next_send;
        op->result = ret;
        ((struct hx_op_state *)op->state)->finished = true;
    }
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int hx_proxy_start(struct hx_comm *c)
{
    c->thread_runs = pthread_create(&c->thread, NULL, proxy_main, c) == 0;
    return c->thread_runs ? 0 : hx_fail("cannot start the proxy thread");
}

void hx_proxy_stop(struct hx_comm *c, bool abort_ops)
{
    if (!c->thread_runs)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    c->abort = abort_ops;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    c->thread_runs = false;
}

ncclResult_t hx_post(struct hx_comm *c, struct hx_op *op)
{
    size_t elem = hx_type_size(op->type), total;
    struct hx_op_state *s;
    ncclResult_t async;

    if (!elem || !op->count || op->channels < 0 || op->channels > c->nchannels)
        return ncclInvalidArgument;
    s = calloc(1, sizeof *s);
    if (!s)
        return ncclSystemError;
    s->op = op;
    s->elem = elem;
    s->nsubs = op->channels ? op->channels : c->nchannels;
    s->bytes = op->count * elem;
    s->size_per_rank = op->func == HX_ALL_REDUCE ? 0 : s->bytes;
    total = op->func == HX_ALL_REDUCE ? s->bytes : s->bytes * (size_t)c->node->nnodes;
    s->chunk = op->chunk ? op->chunk : c->cfg.chunk;
    if (!s->chunk)
        s->chunk = (size_t)c->slot_size;
    else if (s->chunk == HX_CHUNK_NCCL)
        s->chunk = hx_nccl_chunk(total, s->nsubs, c->cfg.buff_size);
    if (s->chunk > (size_t)c->slot_size || s->chunk % elem) {
        free(s);
        return ncclInvalidArgument;
    }
    s->nsteps = HX_DIV_UP(total, (size_t)s->nsubs * s->chunk);
    op->state = s;
    op->result = ncclInProgress;
    op->next_send = op->next_recv = NULL;
    op->t_first = op->t_done = 0;
    op->t_post = hx_now();
    pthread_mutex_lock(&c->lock);
    s->next_open = c->open;
    c->open = s;
    async = c->async;
    if (async != ncclSuccess) {
        op->result = async;
        s->finished = true;
    } else {
        if (c->posted_tail)
            c->posted_tail->next_send = op;
        else
            c->posted = op;
        c->posted_tail = op;
        pthread_cond_signal(&c->wake);
    }
    pthread_mutex_unlock(&c->lock);
    return ncclSuccess;
}

ncclResult_t hx_wait(struct hx_comm *c, struct hx_op *op, double timeout_s)
{
    struct hx_op_state *s = op->state;
    struct timespec until;
    ncclResult_t result;
    int rc = 0;

    if (!s)
        return op->result;
    timeout_s *= hx_env_read()->patience;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)timeout_s;
    until.tv_nsec += (long)((timeout_s - (double)(time_t)timeout_s) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&c->lock);
    while (!s->finished && rc == 0) {
        if (timeout_s > 0)
            rc = pthread_cond_timedwait(&c->done, &c->lock, &until);
        else
            pthread_cond_wait(&c->done, &c->lock);
    }
    result = s->finished ? op->result : HX_TIMEOUT;
    if (s->finished) {
        struct hx_op_state **at = &c->open;

        while (*at != s)
            at = &(*at)->next_open;
        *at = s->next_open;
        free(s);
        op->state = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    return result;
}

ncclResult_t hx_run(struct hx_comm *c, struct hx_op *op)
{
    ncclResult_t ret = hx_post(c, op);

    return ret == ncclSuccess ? hx_wait(c, op, 0) : ret;
}

ncclResult_t hx_async_error(struct hx_comm *c)
{
    ncclResult_t ret;

    pthread_mutex_lock(&c->lock);
    ret = c->async;
    pthread_mutex_unlock(&c->lock);
    return ret;
}

double hx_op_seconds(struct hx_node *node, const struct hx_op *op)
{
    double mine[2] = {op->t_first, op->t_done}, all[2 * HX_MAX_NODES], first, last;

    hx_allgather(node, mine, sizeof mine, all);
    first = all[0];
    last = all[1];
    for (int r = 1; r < node->nnodes; r++) {
        if (all[2 * r] != 0 && all[2 * r] < first)
            first = all[2 * r];
        if (all[2 * r + 1] > last)
            last = all[2 * r + 1];
    }
    return last - first;
}
