/* SPDX-License-Identifier: Apache-2.0 */
/* An RDMA stack within one process: devices, memory, and the tests' actions on them. fake_verbs.h describes
 * its behaviour. */
#include "fake_verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_int.h"

struct fake_world fake;
struct fake_state fk = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct fdev devices[FAKE_DEVICES];

void fake_misused(const char *what)
{
    fk.counts.misuse++;
    snprintf(fk.misuse_text, sizeof(fk.misuse_text), "%s", what);
}

bool fake_faulty(const char *name)
{
    int err = 0;

    for (int i = 0; i < FAKE_CALL_FAULTS; i++)
        if (fk.call_fault[i].nth > 0 && strcmp(fk.call_fault[i].name, name) == 0 &&
            --fk.call_fault[i].nth == 0)
            err = fk.call_fault[i].err;
    if (err)
        errno = err;
    return err != 0;
}

int fake_unfreed(const char *name)
{
    bool faulty;

    pthread_mutex_lock(&fk.lock);
    faulty = fake_faulty(name);
    pthread_mutex_unlock(&fk.lock);
    return faulty ? errno : 0;
}

struct fake_entry *fake_note(enum fake_what what)
{
    static struct fake_entry lost;
    struct fake_entry *e = fk.nlog < FAKE_LOG ? &fk.log_entries[fk.nlog++] : &lost;

    memset(e, 0, sizeof(*e));
    e->what = what;
    return e;
}

unsigned fake_dice(unsigned n)
{
    fk.random_state = fk.random_state * 1664525u + 1013904223u;
    return (fk.random_state >> 8) % n;
}

/* ---- devices ---- */

static struct nb_verbs_api table;
static struct ibv_mr *f_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                     unsigned access);
static struct ibv_mr *f_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                      int fd, int access);
static int f_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);

/* The first call of all: from here on the world is as the test has made it. */
static int f_fork_init(void)
{
    fk.counts.fork_inits++;
    table.reg_mr_iova2 = fake.no_iova2 ? NULL : f_reg_mr_iova2;
    table.reg_dmabuf_mr = f_reg_dmabuf_mr;
    table.query_port_speed = fake.port_speed ? f_query_port_speed : NULL;
    return fake_faulty("fork_init") ? errno : 0;
}

static struct ibv_device **f_get_device_list(int *n)
{
    struct ibv_device **list;

    pthread_mutex_lock(&fk.lock);
    if (fake.no_kernel || fake_faulty("get_device_list")) {
        errno = fake.no_kernel ? ENOSYS : errno;
        pthread_mutex_unlock(&fk.lock);
        return NULL;
    }
    list = calloc((size_t)fake.devices + 1, sizeof(*list));
    for (int i = 0; i < fake.devices; i++) {
        devices[i].index = i;
        snprintf(devices[i].ibv.name, sizeof(devices[i].ibv.name), "%s", fake.device[i].name);
        list[i] = &devices[i].ibv;
    }
    *n = fake.devices;
    pthread_mutex_unlock(&fk.lock);
    return list;
}

static void f_free_device_list(struct ibv_device **list)
{
    free(list);
}

static const char *f_get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *f_open_device(struct ibv_device *device)
{
    struct fctx *c = NULL;
    int fds[2];

    pthread_mutex_lock(&fk.lock);
    if (!fake_faulty("open_device") && pipe2(fds, O_CLOEXEC) == 0) {
        c = calloc(1, sizeof(*c));
        c->ibv.device = device;
        c->ibv.async_fd = fds[0];
        c->event_in = fds[1];
        c->device = ((struct fdev *)(void *)device)->index;
        c->ibv.ops.poll_cq = fake_poll_cq;
        c->ibv.ops.req_notify_cq = fake_req_notify_cq;
        c->ibv.ops.post_send = fake_post_send;
        c->ibv.ops.post_recv = fake_post_recv;
        c->next = fk.contexts;
        fk.contexts = c;
        fk.counts.contexts++;
    }
    pthread_mutex_unlock(&fk.lock);
    return c ? &c->ibv : NULL;
}

static int f_close_device(struct ibv_context *context)
{
    struct fctx *c = (struct fctx *)(void *)context;

    pthread_mutex_lock(&fk.lock);
    for (struct fctx **p = &fk.contexts; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    fk.counts.contexts--;
    pthread_mutex_unlock(&fk.lock);
    close(c->ibv.async_fd);
    close(c->event_in);
    free(c);
    return fake_unfreed("close_device");
}

static int f_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (read(context->async_fd, event, sizeof(*event)) != (ssize_t)sizeof(*event))
        return -1;
    pthread_mutex_lock(&fk.lock);
    fk.counts.events_unacked++;
    pthread_mutex_unlock(&fk.lock);
    return 0;
}

static void f_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
    pthread_mutex_lock(&fk.lock);
    fk.counts.events_unacked--;
    pthread_mutex_unlock(&fk.lock);
}

const struct fake_device *fake_device_of(struct ibv_context *context)
{
    return &fake.device[((struct fctx *)(void *)context)->device];
}

static int f_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    const struct fake_device *d = fake_device_of(context);
    int rc = 0;

    pthread_mutex_lock(&fk.lock);
    memset(attr, 0, sizeof(*attr));
    attr->phys_port_cnt = (uint8_t)d->ports;
    attr->sys_image_guid = d->guid;
    attr->max_qp_wr = d->max_qp_wr;
    attr->max_cqe = d->max_cqe;
    attr->max_qp = 1024;
    attr->max_sge = d->max_sge;
    if (fake_faulty("query_device"))
        rc = errno;
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

static int f_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    const struct fake_port *p = &fake_device_of(context)->port[(port - 1) % FAKE_PORTS];
    int rc = 0;

    pthread_mutex_lock(&fk.lock);
    memset(attr, 0, sizeof(*attr));
    attr->state = p->down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->link_layer = (uint8_t)p->link;
    attr->active_mtu = attr->max_mtu = p->mtu;
    attr->active_speed = p->speed;
    attr->active_width = p->width;
    attr->flags = p->flags;
    attr->lid = p->lid;
    attr->gid_tbl_len = p->gids;
    attr->pkey_tbl_len = 8;
    attr->max_msg_sz = p->max_msg;
    if (fake_faulty("query_port"))
        rc = errno;
    pthread_mutex_unlock(&fk.lock);
    return rc;
}

static int f_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed)
{
    (void)context;
    (void)port;
    *speed = fake.port_speed;
    return fake.port_speed ? 0 : EOPNOTSUPP;
}

static int f_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    const struct fake_port *p = &fake_device_of(context)->port[port - 1];

    if (index < 0 || index >= p->gids) {
        errno = EINVAL;
        return -1;
    }
    *gid = p->gid[index];
    return 0;
}

static int f_read_sysfs(const char *path, char *buf, size_t cap)
{
    char name[64];
    int port, index;

    if (strstr(path, "nvidia_peermem"))
        return fake.peermem ? snprintf(buf, cap, "1") : -ENOENT;
    if (sscanf(path, "/sys/class/infiniband/%63[^/]/ports/%d/gid_attrs/types/%d", name, &port, &index) == 3) {
        for (int i = 0; i < fake.devices; i++) {
            const char *type = fake.device[i].port[port - 1].gid_type[index];

            if (strcmp(fake.device[i].name, name) == 0)
                return type ? snprintf(buf, cap, "%s\n", type) : -EINVAL;
        }
    }
    return -ENOENT;
}

static int f_real_path(const char *path, char *buf, size_t cap)
{
    for (int i = 0; i < fake.devices; i++) {
        char link[128];

        snprintf(link, sizeof(link), "/sys/class/infiniband/%s/device", fake.device[i].name);
        if (strcmp(link, path) == 0 && fake.device[i].pci) {
            snprintf(buf, cap, "%s", fake.device[i].pci);
            return 0;
        }
    }
    return -ENOENT;
}

/* ---- memory ---- */

static struct ibv_pd *f_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = NULL;

    pthread_mutex_lock(&fk.lock);
    if (!fake_faulty("alloc_pd")) {
        pd = calloc(1, sizeof(*pd));
        pd->context = context;
        fk.counts.pds++;
    }
    pthread_mutex_unlock(&fk.lock);
    return pd;
}

static int f_dealloc_pd(struct ibv_pd *pd)
{
    pthread_mutex_lock(&fk.lock);
    for (struct fmr *m = fk.mrs; m; m = m->next)
        if (m->ibv.pd == pd)
            fake_misused("ibv_dealloc_pd with registrations");
    for (struct fqp *q = fk.qps; q; q = q->next)
        if (q->ibv.pd == pd)
            fake_misused("ibv_dealloc_pd with queue pairs");
    fk.counts.pds--;
    pthread_mutex_unlock(&fk.lock);
    free(pd);
    return fake_unfreed("dealloc_pd");
}

static struct ibv_mr *reg(const char *call, struct ibv_pd *pd, void *addr, size_t length, int access, int fd,
                          uint64_t offset)
{
    struct fmr *m = NULL;
    struct fake_entry *e;

    pthread_mutex_lock(&fk.lock);
    if (!fake_faulty(call)) {
        m = calloc(1, sizeof(*m));
        m->ibv.context = pd->context;
        m->ibv.pd = pd;
        m->ibv.addr = addr;
        m->ibv.length = length;
        m->ibv.lkey = m->ibv.rkey = ++fk.next_key * 256;
        m->access = access;
        m->next = fk.mrs;
        fk.mrs = m;
        fk.counts.mrs++;
        e = fake_note(FAKE_REG);
        e->access = access;
        e->fd = fd;
        e->addr = (uint64_t)(uintptr_t)addr;
        e->length = length;
        e->offset = offset;
        e->iova2 = strcmp(call, "reg_mr_iova2") == 0;
    }
    pthread_mutex_unlock(&fk.lock);
    return m ? &m->ibv : NULL;
}

static struct ibv_mr *f_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return reg("reg_mr", pd, addr, length, access, -1, 0);
}

static struct ibv_mr *f_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                     unsigned access)
{
    if (iova != (uint64_t)(uintptr_t)addr) {
        errno = EINVAL;
        return NULL;
    }
    return reg("reg_mr_iova2", pd, addr, length, (int)access, -1, 0);
}

static struct ibv_mr *f_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                      int fd, int access)
{
    if (!fake.dmabuf || fd < 0) {
        errno = fake.dmabuf ? EBADF : EOPNOTSUPP;
        return NULL;
    }
    return reg("reg_dmabuf_mr", pd, (void *)(uintptr_t)iova, length, access, fd, offset);
}

static int f_dereg_mr(struct ibv_mr *mr)
{
    int found = 0, err;

    pthread_mutex_lock(&fk.lock);
    for (struct fmr **p = &fk.mrs; *p; p = &(*p)->next) {
        if (&(*p)->ibv == mr) {
            *p = (*p)->next;
            found = 1;
            break;
        }
    }
    if (!found)
        fake_misused("ibv_dereg_mr of what is not registered");
    fk.counts.mrs -= found;
    pthread_mutex_unlock(&fk.lock);
    err = fake_unfreed("dereg_mr");
    if (err) { /* its memory stays in use */
        fk.kept[fk.nkept++ % FAKE_CALL_FAULTS] = mr;
    } else if (found) {
        free(mr);
    }
    return err;
}

const struct fmr *fake_find_mr(const struct ibv_pd *pd, uint32_t key, uint64_t addr, uint64_t length,
                               int access)
{
    for (const struct fmr *m = fk.mrs; m; m = m->next) {
        uint64_t begin = (uint64_t)(uintptr_t)m->ibv.addr;

        if (m->ibv.lkey == key && m->ibv.pd == pd && addr >= begin &&
            addr + length <= begin + m->ibv.length && (m->access & access) == access)
            return m;
    }
    return NULL;
}

/* ---- for the tests ---- */

static struct nb_verbs_api table = {
    .fork_init = f_fork_init,
    .get_device_list = f_get_device_list,
    .free_device_list = f_free_device_list,
    .get_device_name = f_get_device_name,
    .open_device = f_open_device,
    .close_device = f_close_device,
    .get_async_event = f_get_async_event,
    .ack_async_event = f_ack_async_event,
    .query_device = f_query_device,
    .query_port = f_query_port,
    .query_gid = f_query_gid,
    .alloc_pd = f_alloc_pd,
    .dealloc_pd = f_dealloc_pd,
    .reg_mr = f_reg_mr,
    .dereg_mr = f_dereg_mr,
    .create_comp_channel = fake_create_comp_channel,
    .destroy_comp_channel = fake_destroy_comp_channel,
    .create_cq = fake_create_cq,
    .destroy_cq = fake_destroy_cq,
    .get_cq_event = fake_get_cq_event,
    .ack_cq_events = fake_ack_cq_events,
    .create_qp = fake_create_qp,
    .modify_qp = fake_modify_qp,
    .destroy_qp = fake_destroy_qp,
    .read_sysfs = f_read_sysfs,
    .real_path = f_real_path,
};

static void roce_port(struct fake_port *p, int host)
{
    static const char *const types[] = {"IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"};

    *p = (struct fake_port){.link = IBV_LINK_LAYER_ETHERNET,
                            .mtu = IBV_MTU_4096,
                            .speed = 32,
                            .width = 2,
                            .gids = 4,
                            .max_msg = 1u << 30};
    for (int i = 0; i < 4; i++) {
        uint8_t *g = p->gid[i].raw;

        p->gid_type[i] = types[i];
        if (i < 2) { /* fe80::1:host */
            g[0] = 0xfe;
            g[1] = 0x80;
            g[13] = 1;
        } else { /* ::ffff:10.77.0.host */
            g[10] = g[11] = 0xff;
            g[12] = 10;
            g[13] = 77;
        }
        g[15] = (uint8_t)host;
    }
}

void fake_reset(void)
{
    memset(&fake, 0, sizeof(fake));
    memset(fk.call_fault, 0, sizeof(fk.call_fault));
    memset(fk.wc_fault, 0, sizeof(fk.wc_fault));
    fk.counts.fork_inits = fk.counts.not_ready = fk.counts.misuse = 0;
    fk.nlog = 0;
    fk.random_state = 1;
    fake.devices = 2;
    fake.device[0] = (struct fake_device){.name = "fake0",
                                          .pci = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
                                          .ports = 1,
                                          .guid = 0x1000,
                                          .max_qp_wr = 4096,
                                          .max_sge = 30,
                                          .max_cqe = 1 << 20};
    fake.device[1] = fake.device[0];
    fake.device[1].name = "fake1";
    fake.device[1].pci = "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0";
    fake.device[1].guid = 0x2000;
    roce_port(&fake.device[0].port[0], 1);
    roce_port(&fake.device[1].port[0], 2);
    nb_verbs_api_replace(&table);
}

void fake_end(void)
{
    nb_verbs_api_replace(NULL);
}

void fake_fail_call(const char *name, int nth, int err)
{
    pthread_mutex_lock(&fk.lock);
    for (int i = 0; i < FAKE_CALL_FAULTS; i++) {
        if (fk.call_fault[i].nth > 0)
            continue;
        snprintf(fk.call_fault[i].name, sizeof(fk.call_fault[i].name), "%s", name);
        fk.call_fault[i].err = err;
        fk.call_fault[i].nth = nth;
        break;
    }
    pthread_mutex_unlock(&fk.lock);
}

void fake_fail_wc(enum fake_side side, int nth, enum ibv_wc_status status, uint32_t vendor)
{
    pthread_mutex_lock(&fk.lock);
    fk.wc_fault[side].nth = nth;
    fk.wc_fault[side].status = status;
    fk.wc_fault[side].vendor = vendor;
    pthread_mutex_unlock(&fk.lock);
}

void fake_event(int device, enum ibv_event_type type, int n)
{
    struct ibv_async_event e = {.event_type = type};
    struct fqp *found = NULL;
    int k = 0;

    pthread_mutex_lock(&fk.lock);
    for (struct fqp *q = fk.qps; q; q = q->next)
        k += q->device == device;
    for (struct fqp *q = fk.qps; q && !found; q = q->next)
        if (q->device == device && --k == n)
            found = q;
    if (type == IBV_EVENT_CQ_ERR && found)
        e.element.cq = found->ibv.send_cq;
    else if ((type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
              type == IBV_EVENT_QP_ACCESS_ERR) &&
             found)
        e.element.qp = &found->ibv;
    else
        e.element.port_num = n > 0 ? n : 1;
    for (struct fctx *c = fk.contexts; c; c = c->next) {
        if (c->device == device && write(c->event_in, &e, sizeof(e)) != (ssize_t)sizeof(e))
            fake_misused("too many events");
    }
    pthread_mutex_unlock(&fk.lock);
}

struct fake_counts fake_counts(void)
{
    struct fake_counts c;

    pthread_mutex_lock(&fk.lock);
    c = fk.counts;
    pthread_mutex_unlock(&fk.lock);
    return c;
}

const char *fake_misuse(void)
{
    return fk.misuse_text;
}

static bool is_kind(const struct fake_entry *e, enum fake_what what, int detail)
{
    if (e->what != what)
        return false;
    if (detail < 0)
        return true;
    return what == FAKE_MODIFY ? (int)e->attr.qp_state == detail
                               : what != FAKE_POST || (int)e->opcode == detail;
}

const struct fake_entry *fake_log(enum fake_what what, int detail, int nth)
{
    for (int i = 0; i < fk.nlog; i++)
        if (is_kind(&fk.log_entries[i], what, detail) && nth-- == 0)
            return &fk.log_entries[i];
    return NULL;
}

int fake_logged(enum fake_what what, int detail)
{
    int n = 0;

    for (int i = 0; i < fk.nlog; i++)
        n += is_kind(&fk.log_entries[i], what, detail);
    return n;
}

void fake_forget(void)
{
    pthread_mutex_lock(&fk.lock);
    fk.nlog = 0;
    pthread_mutex_unlock(&fk.lock);
}
