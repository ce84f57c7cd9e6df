/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL_IB_* variables that the verbs transport honors, with NCCL's names, meanings and defaults.
 */
#include "net/verbs/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"

#define AR_THRESHOLD_DEFAULT 8192

static const struct {
    const char *name;
    size_t offset;
    int def, min, max;
} ints[] = {
#define INT(name, field, def, min, max) \
    { \
        "NCCL_" name, offsetof(struct nb_verbs_conf, field), def, min, max \
    }
    INT("IB_DISABLE", disable, 0, 0, 1),
    INT("IB_MERGE_VFS", merge_vfs, 1, 0, 1),
    INT("IB_DEVICE_PCI_ORDER", pci_order, 1, 0, 1),
    INT("IB_PCI_RELAXED_ORDERING", relaxed_ordering, 2, 0, 2),
    INT("IB_ADAPTIVE_ROUTING", adaptive_routing, -2, -2, 1),
    INT("IB_GID_INDEX", gid_index, -1, -1, 255),
    INT("IB_ROUTABLE_FLID_GID_INDEX", flid_gid_index, 1, 0, 255),
    INT("IB_ROCE_VERSION_NUM", roce_version, 2, 1, 2),
    INT("IB_TIMEOUT", timeout, 20, 0, 31),
    INT("IB_RETRY_CNT", retry_cnt, 7, 0, 7),
    INT("IB_PKEY", pkey, 0, 0, 65535),
    INT("IB_USE_INLINE", use_inline, 0, 0, 1),
    INT("IB_SL", sl, -1, -1, 15),
    INT("IB_TC", tc, -1, -1, 255),
    INT("IB_FIFO_TC", fifo_tc, -1, -1, 255),
    INT("IB_QPS_PER_CONNECTION", qps, 1, 1, NB_VERBS_MAX_QPS),
    INT("IB_SPLIT_DATA_ON_QPS", split, 0, 0, 1),
    INT("IB_RETURN_ASYNC_EVENTS", return_async, 1, 0, 1),
    INT("IB_QUERY_PORT_SPEED", query_speed, 1, 0, 1),
    INT("IB_MQP_RETRY_ALL", mqp_retry_all, 0, 0, 1),
    INT("IB_MQP_RETRY_CNT", mqp_retry_cnt, 34, 0, 100000),
    INT("IB_MQP_RETRY_SLEEP_MSEC", mqp_retry_ms, 100, 0, 100000),
    INT("GDR_FLUSH_DISABLE", flush_disable, 0, 0, 1),
};

static int number(const char *name, long long min, long long max, long long *value)
{
    const char *s = nb_env(name);
    char *end;
    long long v;

    if (!s)
        return 0;
    errno = 0;
    v = strtoll(s, &end, 0);
    if (errno || *end) {
        NB_WARN("verbs: %s=%s is not a number", name, s);
        return -EINVAL;
    }
    if (v < min || v > max) {
        NB_WARN("verbs: %s=%s is out of range: %lld to %lld", name, s, min, max);
        return -EINVAL;
    }
    *value = v;
    return 0;
}

/* Parse "10.1.0.0/16" or "fd00::/8". */
static int address_range(struct nb_verbs_conf *c)
{
    const char *s = nb_env("NCCL_IB_ADDR_RANGE"), *slash;
    int max = c->addr_family == AF_INET ? 32 : 128;
    char addr[INET6_ADDRSTRLEN];
    long bits;
    char *end;

    if (!s)
        return 0;
    slash = strchr(s, '/');
    bits = slash ? strtol(slash + 1, &end, 10) : -1;
    if (!slash || slash[1] == '\0' || *end || bits < 0 || bits > max || (size_t)(slash - s) >= sizeof(addr))
        goto bad;
    memcpy(addr, s, (size_t)(slash - s));
    addr[slash - s] = '\0';
    if (inet_pton(c->addr_family, addr, c->range) != 1)
        goto bad;
    c->range_bits = (int)bits;
    return 0;
bad:
    NB_WARN("verbs: NCCL_IB_ADDR_RANGE=%s is not a range of %s addresses such as %s", s,
            max == 32 ? "IPv4" : "IPv6", max == 32 ? "10.1.0.0/16" : "fd00::/8");
    return -EINVAL;
}

int nb_verbs_conf_read(const struct nb_params *params, struct nb_verbs_conf *conf)
{
    struct nb_verbs_conf c = {.addr_family = AF_INET};
    const char *family = nb_env("NCCL_IB_ADDR_FAMILY");
    long long threshold = -2;
    int rc;

    for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++) {
        long long v = ints[i].def;

        rc = number(ints[i].name, ints[i].min, ints[i].max, &v);
        if (rc)
            return rc;
        *(int *)((char *)&c + ints[i].offset) = (int)v;
    }
    rc = number("NCCL_IB_AR_THRESHOLD", -2, LLONG_MAX, &threshold);
    if (rc)
        return rc;
    c.ar_threshold = threshold < 0 ? AR_THRESHOLD_DEFAULT : threshold;
    if (family && strcmp(family, "AF_INET6") == 0) {
        c.addr_family = AF_INET6;
    } else if (family && strcmp(family, "AF_INET") != 0) {
        NB_WARN("verbs: NCCL_IB_ADDR_FAMILY=%s is not a family: use AF_INET or AF_INET6", family);
        return -EINVAL;
    }
    rc = address_range(&c);
    if (rc)
        return rc;
    c.hca = nb_env("NCCL_IB_HCA");
    c.connect_ms = (int)params->connect_timeout * 1000;
    *conf = c;
    return 0;
}
