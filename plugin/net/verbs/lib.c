/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens libibverbs and fills the table of its functions. Each function has the version whose arguments the
 * headers describe.
 */
#include "net/verbs/api.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"

const char *nb_verbs_lib_names[2] = {"libibverbs.so", "libibverbs.so.1"};

static const struct nb_verbs_api *replacement;
static struct nb_verbs_api lib;
static void *lib_handle;
/* The function behind the name ibv_query_port. It fills only the first fields of its result. */
static int (*old_query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    struct verbs_context *v = verbs_get_ctx_op(context, query_port);

    memset(attr, 0, sizeof(*attr));
    if (v)
        return v->query_port(context, port, attr, sizeof(*attr));
    return old_query_port(context, port, (struct _compat_ibv_port_attr *)attr);
}

static int read_sysfs(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), n;

    if (fd < 0)
        return -errno;
    n = (int)read(fd, buf, cap - 1);
    if (n < 0)
        n = -errno;
    else
        buf[n] = '\0';
    close(fd);
    return n;
}

static int real_path(const char *path, char *buf, size_t cap)
{
    char real[PATH_MAX];

    if (!realpath(path, real))
        return -errno;
    if (strlen(real) >= cap)
        return -ENAMETOOLONG;
    strcpy(buf, real);
    return 0;
}

static const struct {
    const char *name, *version;
    size_t offset; /* in struct nb_verbs_api */
    int optional;
} symbols[] = {
#define NEEDED(member) \
    { \
        "ibv_" #member, "IBVERBS_1.1", offsetof(struct nb_verbs_api, member), 0 \
    }
#define OPTIONAL(member, version) \
    { \
        "ibv_" #member, version, offsetof(struct nb_verbs_api, member), 1 \
    }
    NEEDED(fork_init),
    NEEDED(get_device_list),
    NEEDED(free_device_list),
    NEEDED(get_device_name),
    NEEDED(open_device),
    NEEDED(close_device),
    NEEDED(get_async_event),
    NEEDED(ack_async_event),
    NEEDED(query_device),
    NEEDED(query_gid),
    NEEDED(alloc_pd),
    NEEDED(dealloc_pd),
    NEEDED(reg_mr),
    NEEDED(dereg_mr),
    NEEDED(create_comp_channel),
    NEEDED(destroy_comp_channel),
    NEEDED(create_cq),
    NEEDED(destroy_cq),
    NEEDED(get_cq_event),
    NEEDED(ack_cq_events),
    NEEDED(create_qp),
    NEEDED(modify_qp),
    NEEDED(destroy_qp),
    OPTIONAL(reg_mr_iova2, "IBVERBS_1.8"),
    OPTIONAL(reg_dmabuf_mr, "IBVERBS_1.12"),
    OPTIONAL(query_port_speed, "IBVERBS_1.16"),
};

/* Find a function. Some functions still carry their first version's name. */
static void *find(void *handle, const char *name, const char *version, int optional)
{
    void *f = dlvsym(handle, name, version);

    if (!f && !optional)
        f = dlvsym(handle, name, "IBVERBS_1.0");
    if (!f && !optional)
        f = dlsym(handle, name); /* a library without versions */
    return f;
}

static int load(void *handle, char *why, size_t cap)
{
    void *f;

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        f = find(handle, symbols[i].name, symbols[i].version, symbols[i].optional);
        if (!f && !symbols[i].optional) {
            snprintf(why, cap, "libibverbs has no %s", symbols[i].name);
            return -ENOSYS;
        }
        memcpy((char *)&lib + symbols[i].offset, &f, sizeof(f));
    }
    f = find(handle, "ibv_query_port", "IBVERBS_1.1", 0);
    if (!f) {
        snprintf(why, cap, "libibverbs has no ibv_query_port");
        return -ENOSYS;
    }
    memcpy(&old_query_port, &f, sizeof(f));
    lib.query_port = query_port;
    lib.read_sysfs = read_sysfs;
    lib.real_path = real_path;
    return 0;
}

const struct nb_verbs_api *nb_verbs_api_open(char *why, size_t cap)
{
    const char *names[] = {nb_env("NCCL_IBVERBS_LIB"), nb_verbs_lib_names[0], nb_verbs_lib_names[1]};

    if (replacement)
        return replacement;
    if (lib_handle)
        return &lib;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        /* RTLD_NODELETE: libibverbs loads drivers, and would leave them behind when it is closed and opened
         * again */
        void *h = names[i] ? dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;

        if (names[i] && !h)
            snprintf(why, cap, "%s", dlerror());
        if (!h)
            continue;
        if (load(h, why, cap) != 0) {
            dlclose(h);
            continue;
        }
        lib_handle = h;
        return &lib;
    }
    return NULL;
}

void nb_verbs_api_replace(const struct nb_verbs_api *api)
{
    replacement = api;
}
