/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one-sided operations: registrations, copies and signals. See puts.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "abi/puts_internal.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

/* ---- Copies ----------------------------------------------------------------------------------------- */

void nb_puts_copy(struct nb_puts *p, bool gpu, void *to, const void *from, size_t size)
{
    if (!gpu) {
        memmove(to, from, size);
        return;
    }
    const int ret = nb_copier_copy(p->copier, to, from, size);
    if (ret)
        nb_puts_fail(p, ret, "copying GPU memory failed: %s", strerror(-ret));
}

uint8_t *nb_puts_pinned(struct nb_puts *p, uint8_t **memory)
{
    if (!*memory)
        *memory = nb_copier_pinned(p->copier, NB_PUTS_PIECE);
    if (!*memory)
        nb_puts_fail(p, -ENOMEM, "no pinned memory");
    return *memory;
}

/* Copy between registrations of this rank. */
static void copy_here(struct nb_puts *p, const struct nb_put *put)
{
    uint8_t *to = put->to->data + put->to_at;
    const uint8_t *from = put->from->data + put->from_at;

    if (!put->to->gpu && !put->from->gpu) {
        memmove(to, from, put->size);
        return;
    }
    for (size_t at = 0; at < put->size && !p->err; at += NB_PUTS_PIECE) {
        const size_t n = put->size - at < NB_PUTS_PIECE ? put->size - at : NB_PUTS_PIECE;
        nb_puts_copy(p, put->from->gpu, p->scratch, from + at, n);
        nb_puts_copy(p, put->to->gpu, to + at, p->scratch, n);
    }
}

void nb_puts_signal(struct nb_puts *p, const struct nb_puts_memory *m, uint64_t at, uint64_t add)
{
    uint8_t *word = m->data + at;
    uint64_t value;

    if (!m->gpu) { /* another thread reads it without a lock */
        __atomic_fetch_add((uint64_t *)(void *)word, add, __ATOMIC_ACQ_REL);
        return;
    }
    nb_puts_copy(p, true, p->scratch, word, sizeof(value));
    memcpy(&value, p->scratch, sizeof(value));
    value += add;
    memcpy(p->scratch, &value, sizeof(value));
    if (!p->err)
        nb_puts_copy(p, true, word, p->scratch, sizeof(value));
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

bool nb_puts_inside(const struct nb_puts_memory *m, uint64_t at, uint64_t size)
{
    return at <= m->size && size <= m->size - at;
}

static int check_handle(const struct nb_puts *p, const struct nb_puts_memory *m, const char *what)
{
    if (m && m->number < p->nmemory && p->memory[m->number] == m && !m->gone)
        return 0;
    NB_WARN("puts: rank %d of %d: %s is not registered", p->rank, p->nranks, what);
    return -EINVAL;
}

static int check_range(const struct nb_puts *p, const struct nb_puts_memory *m, uint64_t at, uint64_t size,
                       const char *what)
{
    if (nb_puts_inside(m, at, size))
        return 0;
    NB_WARN("puts: rank %d of %d: %s: %" PRIu64 " bytes at %" PRIu64 " exceed the %zu registered ones",
            p->rank, p->nranks, what, size, at, m->size);
    return -EINVAL;
}

int nb_puts_check(const struct nb_puts *p, const struct nb_put *put, bool get)
{
    const bool here = put->rank == p->rank; /* otherwise the other side checks its own range */
    int ret = 0;

    if (put->rank < 0 || put->rank >= p->nranks) {
        NB_WARN("puts: rank %d of %d: there is no rank %d", p->rank, p->nranks, put->rank);
        return -EINVAL;
    }
    if (put->size) {
        ret = check_handle(p, put->from, "the source");
        if (!ret)
            ret = check_handle(p, put->to, "the destination");
        if (!ret && (here || !get))
            ret = check_range(p, put->from, put->from_at, put->size, "the source");
        if (!ret && (here || get))
            ret = check_range(p, put->to, put->to_at, put->size, "the destination");
    }
    if (ret || !put->signal)
        return ret;
    ret = check_handle(p, put->signal, "the signal");
    if (!ret && here)
        ret = check_range(p, put->signal, put->signal_at, sizeof(uint64_t), "the signal");
    if (!ret && put->signal_at % sizeof(uint64_t)) {
        NB_WARN("puts: rank %d of %d: a signal at offset %" PRIu64 ", no multiple of 8", p->rank, p->nranks,
                put->signal_at);
        ret = -EINVAL;
    }
    return ret;
}

int nb_puts_here(struct nb_puts *p, const struct nb_put *put)
{
    if (put->size)
        copy_here(p, put);
    if (put->signal && !p->err)
        nb_puts_signal(p, put->signal, put->signal_at, put->add);
    return p->err;
}

/* ---- Registrations ---------------------------------------------------------------------------------- */

static int grow(struct nb_puts *p)
{
    const uint32_t capacity = p->capacity ? 2 * p->capacity : 16;
    struct nb_puts_memory **memory = realloc(p->memory, capacity * sizeof(*memory));

    if (!memory)
        return -ENOMEM;
    p->memory = memory;
    p->capacity = capacity;
    return 0;
}

int nb_puts_register(struct nb_puts *p, void *data, size_t size, bool gpu, struct nb_puts_memory **memory)
{
    struct nb_puts_memory *m = calloc(1, sizeof(*m));
    int ret;

    pthread_mutex_lock(&p->lock);
    if (!p->err && (!m || (p->nmemory == p->capacity && grow(p)))) /* later numbers would differ */
        nb_puts_fail(p, -ENOMEM, "no memory for a registration");
    ret = p->err;
    if (ret) {
        free(m);
    } else {
        *m = (struct nb_puts_memory){
            .data = data, .size = size, .number = p->nmemory, .gpu = gpu && p->copier != NULL};
        p->memory[p->nmemory++] = m;
        *memory = m;
    }
    pthread_mutex_unlock(&p->lock);
    return ret;
}

/* Return whether an operation under way uses the memory. */
static bool in_use(const struct nb_puts *p, const struct nb_puts_memory *m)
{
    for (const struct nb_puts_in *in = p->ins; in; in = in->next)
        if (in->comm && in->state == NB_PUTS_WANT_BYTES && in->to == m)
            return true;
    for (const struct nb_puts_request *r = p->requests; r; r = r->next)
        if (!r->done && r->from == m && r->head.size)
            return true;
    return false;
}

int nb_puts_deregister(struct nb_puts *p, struct nb_puts_memory *m)
{
    int ret;

    pthread_mutex_lock(&p->lock);
    ret = check_handle(p, m, "memory to deregister");
    if (!ret) {
        if (in_use(p, m)) {
            if (!p->err)
                ret = -EINVAL;
            nb_puts_fail(p, -EINVAL, "memory is deregistered while operations use it");
            for (struct nb_puts_peer *peer = p->active; peer; peer = peer->next)
                nb_puts_close_peer(p, peer);
            for (struct nb_puts_in *in = p->ins; in; in = in->next)
                nb_puts_close_in(p, in);
        }
        m->gone = true;
    }
    pthread_mutex_unlock(&p->lock);
    return ret;
}
