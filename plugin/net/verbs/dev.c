/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's state in one context: settings, adapters, their ports, connects in progress.
 *
 * Adapters and their ports: which ones are used, in which order, their capabilities, and the properties they
 * report.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"

/* Unused devices and ports, for the one line that says why there is no device. */
struct leftovers {
    int active, down, filtered, unreadable;
    bool full;       /* the list has no place for more */
    char names[192]; /* of ports that are down or filtered out */
};

struct nb_verbs_dev *nb_verbs_device(struct nb_verbs *v, int dev)
{
    if (dev >= 0 && dev < v->ndevs)
        return &v->dev[dev];
    NB_WARN("verbs: device %d is unknown: there are %d", dev, v->ndevs);
    return NULL;
}

/* Return whether NCCL_IB_HCA lists exact names, of ports that all nodes have. Then a port counts even while
 * it is down, so that all nodes report the same devices. Connections over it fail and log why. */
static bool hca_exact(const struct nb_verbs_conf *conf)
{
    return conf->hca && conf->hca[0] == '=';
}

/* Return whether NCCL_IB_HCA selects a port. It is a comma list of names or, without a leading =, prefixes,
 * each perhaps with :port. A leading ^ excludes. The text behind a second colon names rails and planes, which
 * nibble ignores. */
static bool hca_wanted(const struct nb_verbs_conf *conf, const char *name, int port)
{
    const char *p = conf->hca;
    bool exclude = false, exact = false, hit = false, any = false;

    if (!p)
        return true;
    if (*p == '^') {
        exclude = true;
        p++;
    }
    if (*p == '=') {
        exact = true;
        p++;
    }
    while (*p && !hit) {
        size_t item = strcspn(p, ","), len = strcspn(p, ",:");

        if (len > 0) {
            const char *colon = len < item ? p + len + 1 : NULL;
            bool port_ok = !colon || *colon < '0' || *colon > '9' || atoi(colon) == port;

            any = true;
            hit = port_ok && strncmp(name, p, len) == 0 && (!exact || name[len] == '\0');
        }
        p += item + (p[item] == ',');
    }
    return !any || hit != exclude;
}

/* ---- capabilities of a port ---- */

static int lowest_bit(unsigned v, int max)
{
    int i = 0;

    while (i < max && !(v & 1u << i))
        i++;
    return i;
}

static int port_speed(const struct nb_verbs_hca *h, int port, const struct ibv_port_attr *a)
{
    static const int lanes[] = {1, 4, 8, 12, 2};
    static const int mbps[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000, 200000};
    unsigned speed = a->active_speed;
    uint64_t s = 0;

    if (h->conf->query_speed && h->api->query_port_speed &&
        h->api->query_port_speed(h->context, (uint32_t)port, &s) == 0 && s > 0)
        return (int)(s * 100);
    return mbps[lowest_bit(speed, 8)] * lanes[lowest_bit(a->active_width, 4)];
}

static bool file_exists(const struct nb_verbs_api *api, const char *path)
{
    char buf[8];

    return api->read_sysfs(path, buf, sizeof(buf)) >= 0;
}

/* Return whether the adapter can reach GPU memory, by a driver that knows the GPU's (peermem), or by
 * DMA-BUF. */
static int mem_support(struct nb_verbs_hca *h)
{
    int mem = NB_MEM_HOST;
    struct ibv_pd *pd;

    if (file_exists(h->api, "/sys/kernel/mm/memory_peers/nv_mem/version") ||
        file_exists(h->api, "/sys/kernel/mm/memory_peers/nv_mem_nc/version") ||
        file_exists(h->api, "/sys/module/nvidia_peermem/version"))
        mem |= NB_MEM_CUDA;
    pd = h->api->reg_dmabuf_mr ? h->api->alloc_pd(h->context) : NULL;
    if (pd) {
        struct ibv_mr *mr;

        errno = 0;
        /* Try a bad file descriptor: the error code tells whether the driver knows DMA-BUF. */
        mr = h->api->reg_dmabuf_mr(pd, 0, 0, 0, -1, 0);
        if (mr)
            h->api->dereg_mr(mr);
        else if (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT)
            mem |= NB_MEM_DMABUF;
        h->api->dealloc_pd(pd);
    }
    return mem;
}

static void pci_paths(struct nb_verbs_dev *d)
{
    char link[128];
    size_t n;

    snprintf(link, sizeof(link), "/sys/class/infiniband/%s/device", d->hca->name);
    if (d->hca->api->real_path(link, d->full_path, sizeof(d->full_path)) != 0)
        d->full_path[0] = '\0';
    strcpy(d->pci_path, d->full_path);
    n = strlen(d->pci_path);
    /* Functions of one card, and virtual functions, count as one place in the topology. */
    if (n > 4 && d->pci_path[n - 2] == '.') {
        d->pci_path[n - 1] = '0';
        if (d->hca->conf->merge_vfs)
            d->pci_path[n - 3] = d->pci_path[n - 4] = '0';
    }
}

/* ---- order ---- */

/* Return bus, device and function at the end of a path as a number, UINT64_MAX without them. */
static uint64_t pci_number(const char *path)
{
    const char *p = strrchr(path, '/');
    uint64_t v = 0;

    if (!p)
        return UINT64_MAX;
    for (p++; *p; p++) {
        int low = *p | 32;

        if (*p >= '0' && *p <= '9')
            v = v << 4 | (uint64_t)(*p - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (uint64_t)(low - 'a' + 10);
    }
    return v;
}

static void sort_devices(struct nb_verbs *v)
{
    struct nb_verbs_dev *devs = v->dev;

    for (int i = 1; v->conf.pci_order && i < v->ndevs; i++) {
        struct nb_verbs_dev d = devs[i];
        int k = i;

        for (; k > 0 && pci_number(devs[k - 1].full_path) > pci_number(d.full_path); k--)
            devs[k] = devs[k - 1];
        devs[k] = d;
    }
    for (int i = 0; i < v->ndevs; i++) {
        size_t n = strlen(devs[i].pci_path), same = v->conf.merge_vfs ? 4 : 1;

        for (int k = 0; k < i && n > same; k++)
            devs[i].real_port += strncmp(devs[k].pci_path, devs[i].pci_path, n - same) == 0;
    }
}

/* ---- discovery ---- */

static void leave_out(struct leftovers *l, int *count, const char *name, int port)
{
    size_t n = strlen(l->names);

    (*count)++;
    snprintf(l->names + n, sizeof(l->names) - n, "%s%s:%d", n ? ", " : "", name, port);
}

static void add_ports(struct nb_verbs *v, struct nb_verbs_hca *h, struct leftovers *l)
{
    int mem = 0;

    for (int port = 1; port <= h->attr.phys_port_cnt; port++) {
        struct nb_verbs_dev *d;
        struct ibv_port_attr a;

        memset(&a, 0, sizeof(a));
        if (v->api->query_port(h->context, (uint8_t)port, &a) != 0) {
            NB_INFO(NCCL_NET, "verbs: port %s:%d cannot be queried: %s", h->name, port, strerror(errno));
            l->unreadable++;
            continue;
        }
        if (a.link_layer == IBV_LINK_LAYER_UNSPECIFIED)
            a.link_layer = IBV_LINK_LAYER_INFINIBAND; /* as reported by kernels before RoCE */
        if (a.link_layer != IBV_LINK_LAYER_INFINIBAND && a.link_layer != IBV_LINK_LAYER_ETHERNET)
            continue;
        if (!hca_wanted(h->conf, h->name, port)) {
            leave_out(l, &l->filtered, h->name, port);
            continue;
        }
        if (a.state != IBV_PORT_ACTIVE) {
            leave_out(l, &l->down, h->name, port);
            if (!hca_exact(h->conf))
                continue;
        } else {
            l->active++;
        }
        if (v->ndevs == NB_NET_MAX_DEVS) {
            if (!l->full)
                NB_WARN("verbs: only the first %d ports are used, as NCCL allows: %s:%d and those after it "
                        "are left out. Choose with NCCL_IB_HCA",
                        NB_NET_MAX_DEVS, h->name, port);
            l->full = true;
            return;
        }
        d = &v->dev[v->ndevs];
        memset(d, 0, sizeof(*d));
        d->hca = h;
        d->port = port;
        d->attr = a;
        if (port == 1)
            snprintf(d->name, sizeof(d->name), "%s", h->name);
        else
            snprintf(d->name, sizeof(d->name), "%.50s:%d", h->name, port);
        pci_paths(d);
        d->speed_mbps = port_speed(h, port, &a);
        d->adaptive_routing = v->conf.adaptive_routing == -2 ? a.link_layer == IBV_LINK_LAYER_INFINIBAND
                                                             : v->conf.adaptive_routing == 1;
        mem = mem ? mem : mem_support(h);
        d->mem_support = mem;
        d->parts = h->attr.max_sge >= 2;
        d->max_write =
            a.max_msg_sz > 0 && a.max_msg_sz < NB_VERBS_MAX_WRITE ? a.max_msg_sz : NB_VERBS_MAX_WRITE;
        d->max_write &= ~(uint32_t)(NB_VERBS_CHUNK_ALIGN - 1);
        v->ndevs++;
    }
}

bool nb_verbs_freed(struct nb_verbs_hca *h, const char *what, int rc)
{
    const int err = rc > 0 ? rc : errno;

    if (!rc)
        return true;
    if (atomic_exchange(&h->leaks, true))
        NB_INFO(NCCL_NET, "verbs: %s: freeing %s at close failed: %s", h->name, what, strerror(err));
    else
        NB_WARN("verbs: %s: freeing %s at close failed: %s. The adapter keeps it until the process ends",
                h->name, what, strerror(err));
    return false;
}

static void hca_free(struct nb_verbs_hca *h)
{
    nb_verbs_freed(h, "the adapter's context", h->api->close_device(h->context));
    pthread_mutex_destroy(&h->lock);
    free(h->mr);
    free(h);
}

static int open_hca(struct nb_verbs *v, struct ibv_device *device, struct leftovers *l)
{
    const char *name = v->api->get_device_name(device);
    struct nb_verbs_hca *h = calloc(1, sizeof(*h));
    int before = v->ndevs, flags;

    if (!h)
        return -ENOMEM;
    snprintf(h->name, sizeof(h->name), "%s", name ? name : "?");
    h->api = v->api;
    h->conf = &v->conf;
    h->clock = v->clock;
    pthread_mutex_init(&h->lock, NULL);
    h->context = v->api->open_device(device);
    if (!h->context || v->api->query_device(h->context, &h->attr) != 0) {
        NB_INFO(NCCL_NET, "verbs: %s cannot be %s: %s", h->name, h->context ? "queried" : "opened",
                strerror(errno));
        l->unreadable++;
        if (h->context)
            v->api->close_device(h->context);
        pthread_mutex_destroy(&h->lock);
        free(h);
        return 0;
    }
    add_ports(v, h, l);
    if (v->ndevs == before) {
        hca_free(h);
        return 0;
    }
    flags = fcntl(h->context->async_fd, F_GETFL);
    if (flags >= 0)
        fcntl(h->context->async_fd, F_SETFL, flags | O_NONBLOCK);
    h->next = v->hcas;
    v->hcas = h;
    return 0;
}

static void explain(const struct nb_verbs_conf *conf, const struct leftovers *l, int found, char *why,
                    size_t cap)
{
    if (found == 0)
        snprintf(why, cap, "libibverbs finds no RDMA device");
    else if (l->down > 0 && l->filtered == 0)
        snprintf(why, cap, "no active RDMA port: %s down", l->names);
    else if (l->down > 0)
        snprintf(why, cap, "no active RDMA port: %s down or not in NCCL_IB_HCA=%s", l->names, conf->hca);
    else if (l->filtered > 0)
        snprintf(why, cap, "NCCL_IB_HCA=%s matches no RDMA port: there is %s", conf->hca, l->names);
    else
        snprintf(why, cap, "no RDMA device is usable (%d found, NCCL_DEBUG=INFO shows why)", found);
}

int nb_verbs_devices_open(struct nb_verbs *v, char *why, size_t cap, bool *misfit)
{
    struct leftovers left = {0};
    struct ibv_device **list;
    int n = 0, rc = 0;

    *misfit = false;
    if (v->conf.disable) {
        snprintf(why, cap, "NCCL_IB_DISABLE=1");
        return -ENODEV;
    }
    v->api = nb_verbs_api_open(why, cap);
    if (!v->api)
        return -ENODEV;
    /* Before the first registration: a child of fork must not inherit registered pages. */
    rc = v->api->fork_init();
    if (rc)
        NB_INFO(NCCL_INIT | NCCL_NET, "verbs: no protection against fork: %s", strerror(rc > 0 ? rc : errno));
    rc = 0;
    list = v->api->get_device_list(&n);
    for (int i = 0; list && i < n && !rc; i++)
        rc = open_hca(v, list[i], &left);
    if (list)
        v->api->free_device_list(list);
    if (rc || left.active == 0) {
        *misfit = list && n > 0;
        explain(&v->conf, &left, list ? n : 0, why, cap);
        nb_verbs_devices_close(v);
        return rc ? rc : -ENODEV;
    }
    sort_devices(v);
    for (int i = 0; i < v->ndevs; i++) {
        const struct nb_verbs_dev *d = &v->dev[i];

        NB_INFO(NCCL_INIT | NCCL_NET, "verbs: device %d is %s port %d, %s, %d Mbit/s%s%s%s", i, d->hca->name,
                d->port, nb_verbs_link_name(d->attr.link_layer), d->speed_mbps,
                d->adaptive_routing ? ", adaptive routing" : "",
                d->mem_support & NB_MEM_CUDA ? ", peermem" : "",
                d->mem_support & NB_MEM_DMABUF ? ", DMA-BUF" : "");
        if (d->attr.state != IBV_PORT_ACTIVE)
            NB_WARN("verbs: device %d, %s, is named in NCCL_IB_HCA but down: connections over it will fail",
                    i, d->name);
    }
    return 0;
}

void nb_verbs_devices_close(struct nb_verbs *v)
{
    while (v->hcas) {
        struct nb_verbs_hca *h = v->hcas;

        v->hcas = h->next;
        hca_free(h);
    }
    v->ndevs = 0;
}

struct ibv_pd *nb_verbs_pd_get(struct nb_verbs_hca *h, int *err)
{
    struct ibv_pd *pd;

    pthread_mutex_lock(&h->lock);
    if (h->pd_refs == 0) {
        errno = 0;
        h->pd = h->api->alloc_pd(h->context);
    }
    *err = errno ? errno : ENOMEM;
    pd = h->pd;
    if (pd)
        h->pd_refs++;
    pthread_mutex_unlock(&h->lock);
    return pd;
}

void nb_verbs_pd_put(struct nb_verbs_hca *h)
{
    pthread_mutex_lock(&h->lock);
    if (--h->pd_refs == 0) {
        /* Log registrations that were left when the last comm closed. */
        while (h->nmr > 0) {
            struct nb_verbs_mr *m = h->mr[--h->nmr];

            NB_INFO(NCCL_NET, "verbs: %s: %zu bytes at %p were still registered", h->name, m->bytes,
                    (void *)m->addr);
            nb_verbs_freed(h, "a registration", h->api->dereg_mr(m->mr));
            free(m);
        }
        nb_verbs_freed(h, "the protection domain", h->api->dealloc_pd(h->pd));
        h->pd = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}
