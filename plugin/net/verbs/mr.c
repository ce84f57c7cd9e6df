/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory registrations, as in struct nb_net_ops. An adapter has one for each range of pages, with a count of
 * users, so that the same buffer on many connections costs one entry in the adapter's tables.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static struct ibv_mr *register_pages(const struct nb_verbs_hca *h, uintptr_t addr, size_t bytes,
                                     uint64_t offset, int fd)
{
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    bool relaxed = h->conf->relaxed_ordering && h->api->reg_mr_iova2;

    /* Writes of a message may overtake each other on the PCI bus: the memory is read only after the
     * completion, and the adapter never lets the completion overtake the writes. */
    if (relaxed)
        access |= IBV_ACCESS_RELAXED_ORDERING;
    errno = 0;
    if (fd >= 0)
        return h->api->reg_dmabuf_mr(h->pd, offset, bytes, addr, fd, (int)access);
    if (relaxed)
        return h->api->reg_mr_iova2(h->pd, (void *)addr, bytes, addr, access);
    return h->api->reg_mr(h->pd, (void *)addr, bytes, (int)access);
}

/* Return the position of the first registration that begins behind `addr`. */
static int upper(const struct nb_verbs_hca *h, uintptr_t addr)
{
    int lo = 0, hi = h->nmr;

    while (lo < hi) {
        int mid = (lo + hi) / 2;

        if (h->mr[mid]->addr <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Return a registration that covers the range. Ranges may overlap, so look at the four registrations that
 * begin last at or before `addr`. A fifth that covers the range is rare, and another registration of the same
 * pages does no harm. */
static struct nb_verbs_mr *lookup(const struct nb_verbs_hca *h, uintptr_t addr, size_t bytes,
                                  enum nb_mem type, bool dmabuf)
{
    for (int i = upper(h, addr) - 1, tries = 0; i >= 0 && tries < 4; i--, tries++) {
        struct nb_verbs_mr *m = h->mr[i];

        if (m->addr + m->bytes >= addr + bytes && m->type == type && m->dmabuf == dmabuf)
            return m;
    }
    return NULL;
}

static int insert(struct nb_verbs_hca *h, struct nb_verbs_mr *m)
{
    int at = upper(h, m->addr);

    if (h->nmr == h->mr_cap) {
        int cap = h->mr_cap ? 2 * h->mr_cap : 32;
        struct nb_verbs_mr **p = realloc(h->mr, (size_t)cap * sizeof(*p));

        if (!p)
            return -ENOMEM;
        h->mr = p;
        h->mr_cap = cap;
    }
    memmove(&h->mr[at + 1], &h->mr[at], (size_t)(h->nmr - at) * sizeof(h->mr[0]));
    h->mr[at] = m;
    h->nmr++;
    return 0;
}

static const char *advice(int err, enum nb_mem type)
{
    if (err == ENOMEM)
        return " (locked memory is limited: ulimit -l must be unlimited where the job is started)";
    if (type == NB_MEM_CUDA)
        return " (is nvidia_peermem loaded, and does it fit the driver?)";
    return "";
}

static int reg(struct nb_verbs_comm *c, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
               void **mhandle)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), addr = (uintptr_t)data & -page;
    size_t bytes = (((uintptr_t)data + size + page - 1) & -page) - addr;
    struct nb_verbs_hca *h = c->hca;
    struct nb_verbs_mr *m;
    int rc = 0;

    *mhandle = NULL;
    if (!data || size == 0) {
        NB_WARN("verbs: %s: registration of %zu bytes at %p", c->dev->name, size, data);
        return -EINVAL;
    }
    if (fd >= 0 && offset < (uintptr_t)data - addr) {
        NB_WARN("verbs: %s: a DMA-BUF registration at %p does not begin on a page and its offset %llu leaves "
                "no room for that",
                c->dev->name, data, (unsigned long long)offset);
        return -EINVAL;
    }
    if (fd >= 0)
        offset -= (uintptr_t)data - addr;
    pthread_mutex_lock(&h->lock);
    m = lookup(h, addr, bytes, type, fd >= 0);
    if (m) {
        m->refs++;
        goto out;
    }
    m = calloc(1, sizeof(*m));
    if (!m) {
        rc = -ENOMEM;
        goto out;
    }
    *m = (struct nb_verbs_mr){
        .hca = h, .addr = addr, .bytes = bytes, .refs = 1, .type = type, .dmabuf = fd >= 0};
    m->mr = register_pages(h, addr, bytes, offset, fd);
    if (!m->mr) {
        rc = errno ? -errno : -EIO;
        NB_WARN("verbs: %s: registering %zu bytes of %s memory%s failed: %s%s", c->dev->name, bytes,
                type == NB_MEM_CUDA ? "GPU" : "host", fd >= 0 ? " by DMA-BUF" : "", strerror(-rc),
                advice(-rc, type));
        free(m);
        goto out;
    }
    rc = insert(h, m);
    if (rc) {
        nb_verbs_freed(h, "a registration", h->api->dereg_mr(m->mr));
        free(m);
    }
out:
    if (!rc)
        *mhandle = m;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

int nb_verbs_reg_mr(void *comm, void *data, size_t size, enum nb_mem type, void **mhandle)
{
    struct nb_verbs_comm *c = comm;

    *mhandle = NULL;
    if (type == NB_MEM_CUDA && !(c->dev->mem_support & NB_MEM_CUDA)) {
        NB_WARN("verbs: %s cannot reach GPU memory: nvidia_peermem is not loaded", c->dev->name);
        return -EINVAL;
    }
    if (type != NB_MEM_HOST && type != NB_MEM_CUDA) {
        NB_WARN("verbs: %s: memory of type %d cannot be registered", c->dev->name, (int)type);
        return -EINVAL;
    }
    return reg(c, data, size, type, 0, -1, mhandle);
}

int nb_verbs_reg_mr_dmabuf(void *comm, void *data, size_t size, enum nb_mem type, uint64_t offset, int fd,
                           void **mhandle)
{
    struct nb_verbs_comm *c = comm;

    *mhandle = NULL;
    if (fd < 0 || !(c->dev->mem_support & NB_MEM_DMABUF)) {
        NB_WARN("verbs: %s: registration by DMA-BUF %s", c->dev->name,
                fd < 0 ? "without a file descriptor" : "is not supported by the driver");
        return -EINVAL;
    }
    return reg(c, data, size, type, offset, fd, mhandle);
}

int nb_verbs_dereg_mr(void *comm, void *mhandle)
{
    struct nb_verbs_comm *c = comm;
    struct nb_verbs_hca *h = c->hca;
    int at = 0, rc = 0;

    if (!mhandle)
        return 0;
    pthread_mutex_lock(&h->lock);
    while (at < h->nmr && h->mr[at] != mhandle)
        at++;
    if (at == h->nmr) {
        NB_WARN("verbs: %s: the registration is unknown", c->dev->name);
        rc = -EINVAL;
    } else if (--h->mr[at]->refs == 0) {
        struct nb_verbs_mr *m = h->mr[at];

        rc = h->api->dereg_mr(m->mr);
        if (rc) {
            NB_WARN("verbs: %s: deregistering %zu bytes failed: %s", c->dev->name, m->bytes, strerror(rc));
            rc = -rc;
        }
        memmove(&h->mr[at], &h->mr[at + 1], (size_t)(h->nmr - at - 1) * sizeof(h->mr[0]));
        h->nmr--;
        free(m);
    }
    pthread_mutex_unlock(&h->lock);
    return rc;
}
