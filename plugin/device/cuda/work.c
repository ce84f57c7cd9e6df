/* SPDX-License-Identifier: Apache-2.0 */
/* Work of the CUDA device: submitting it, polling, waiting. */
#include "device/cuda/table.h"

#include <errno.h>
#include <sched.h>

#define SETTLE_NS INT64_C(5000000000)
#define TOGETHER (UINT64_MAX - 1) /* nb_work.id of a work in parts, at a struct nb_compared */
#define PARTS (sizeof(((struct nb_compared *)0)->part) / sizeof(struct nb_work))

/* Return the state of a work. A work in parts is under way as long as one of its parts. When all parts have
 * ended its result is the first error. */
static ssize_t state_of(struct nb_cuda_device *d, struct nb_work *w)
{
    struct nb_compared *c = w->at;
    ssize_t ret = 0, one;

    if (w->id != TOGETHER)
        return nb_ring_poll(&d->gpu->ring, w);
    for (unsigned i = 0; i < PARTS && ret != -EINPROGRESS; i++) {
        one = c->part[i].id ? nb_ring_poll(&d->gpu->ring, &c->part[i]) : 0;
        ret = one == -EINPROGRESS || (one < 0 && !ret) ? one : ret;
    }
    if (ret != -EINPROGRESS) {
        c->equal = c->differ == 0;
        c->width = c->guess == NB_ULP_8 || c->guess == NB_ULP_32 ? (enum nb_ulp_width)c->guess : NB_ULP_16;
    }
    return ret;
}

/* Return the state of a work, and make a turn of the launches for it. */
static ssize_t look(struct nb_cuda_device *d, struct nb_work *w)
{
    ssize_t ret;

    pthread_mutex_lock(&d->gpu->lock);
    ret = state_of(d, w);
    if (ret == -EINPROGRESS)
        nb_launches_turn(&d->gpu->launches);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

/* Wait for a work. The watchdog of nb_launches_turn bounds it. */
static ssize_t await(struct nb_cuda_device *d, struct nb_work *w)
{
    ssize_t ret;

    while ((ret = look(d, w)) == -EINPROGRESS)
        sched_yield();
    return ret;
}

/* End the kernels of a connecting communicator, for which the engine makes no turns yet. A kernel that was
 * launched for its work has to end here, since the rest of connecting waits for peers, and other users of the
 * GPU would wait for that kernel. On a failed GPU waiting is useless, since all kernels were told to end. */
static void settle(struct nb_cuda_device *d)
{
    const struct nb_clock *clock = &d->gpu->ctx->clock;
    const int64_t limit = nb_clock_ns(clock) + SETTLE_NS;
    int left;

    do {
        pthread_mutex_lock(&d->gpu->lock);
        left = nb_launches_turn(&d->gpu->launches);
        pthread_mutex_unlock(&d->gpu->lock);
        if (left)
            sched_yield();
    } while (left && !atomic_load(&d->gpu->ring.failed) && nb_clock_ns(clock) < limit);
}

static ssize_t wait_for(struct nb_cuda_device *d, struct nb_work *w)
{
    const ssize_t ret = await(d, w);

    if (!atomic_load(&d->connected))
        settle(d);
    return ret;
}

ssize_t nb_cuda_dev_submit(struct nb_cuda_device *d, struct nb_work *work, struct nb_gpu_desc *desc,
                           const struct nb_source *sources, const struct nb_gpu_wanted *want)
{
    struct nb_work own, *w = work ? work : &own;
    ssize_t ret;

    for (;;) {
        pthread_mutex_lock(&d->gpu->lock);
        ret = atomic_load(&d->gpu->ring.failed);
        if (!ret)
            ret = nb_ring_submit(&d->gpu->ring, &d->inflight, w, desc, sources, want);
        if (ret == -EAGAIN || (!ret && d->gpu->launches.how == NB_LAUNCH_BATCH && !work))
            nb_launches_turn(&d->gpu->launches);
        pthread_mutex_unlock(&d->gpu->lock);
        if (ret != -EAGAIN || work)
            break;
        sched_yield();
    }
    if (ret)
        return ret;
    return work ? -EINPROGRESS : wait_for(d, w);
}

int nb_cuda_dev_room(struct nb_cuda_device *d, unsigned parts)
{
    int ret;

    pthread_mutex_lock(&d->gpu->lock);
    ret = nb_ring_room(&d->gpu->ring, parts);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

ssize_t nb_cuda_dev_together(struct nb_cuda_device *d, struct nb_work *work, struct nb_compared *out)
{
    struct nb_work own, *w = work ? work : &own;

    w->id = TOGETHER;
    w->at = out;
    return work ? -EINPROGRESS : wait_for(d, w);
}

/* Return the state of a work. The engine's turn takes back all finished work at once. Before there is an
 * engine this function does so. */
ssize_t nb_cuda_dev_poll(struct nb_device *dev, struct nb_work *work)
{
    struct nb_cuda_device *d = nb_cuda_of(dev);
    ssize_t ret;

    if (!atomic_load_explicit(&d->connected, memory_order_relaxed))
        return look(d, work);
    pthread_mutex_lock(&d->gpu->lock);
    ret = state_of(d, work);
    pthread_mutex_unlock(&d->gpu->lock);
    return ret;
}

void nb_cuda_dev_drain(struct nb_cuda_device *d)
{
    unsigned open;

    do {
        pthread_mutex_lock(&d->gpu->lock);
        nb_launches_turn(&d->gpu->launches);
        open = d->inflight;
        pthread_mutex_unlock(&d->gpu->lock);
        if (open)
            sched_yield();
    } while (open);
}

int nb_cuda_dev_lost(struct nb_cuda_device *d)
{
    const int err = atomic_load(&d->gpu->ring.failed);
    return err ? err : -EIO;
}
