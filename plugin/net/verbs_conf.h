/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL_IB_* variables that the verbs transport honors, with NCCL's names, meanings and defaults. */
#ifndef NIBBLE_NET_VERBS_CONF_H
#define NIBBLE_NET_VERBS_CONF_H

#include <stdint.h>

#include "base/params.h"

/* NCCL's variables, with NCCL's defaults. */
struct nb_verbs_conf {
    int disable;              /* NCCL_IB_DISABLE */
    const char *hca;          /* NCCL_IB_HCA */
    int merge_vfs, pci_order; /* NCCL_IB_MERGE_VFS, NCCL_IB_DEVICE_PCI_ORDER */
    int relaxed_ordering;     /* NCCL_IB_PCI_RELAXED_ORDERING: 0, 1, 2 (where possible) */
    int adaptive_routing;     /* NCCL_IB_ADAPTIVE_ROUTING: -2: on for InfiniBand */
    int64_t ar_threshold;     /* NCCL_IB_AR_THRESHOLD */
    int gid_index, flid_gid_index, roce_version;
    int addr_family; /* NCCL_IB_ADDR_FAMILY */
    int range_bits;  /* NCCL_IB_ADDR_RANGE; 0: none */
    uint8_t range[16];
    int timeout, retry_cnt, pkey, use_inline, sl, tc, fifo_tc;
    int qps, split;   /* NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_SPLIT_DATA_ON_QPS */
    int return_async; /* NCCL_IB_RETURN_ASYNC_EVENTS */
    int query_speed;  /* NCCL_IB_QUERY_PORT_SPEED */
    int mqp_retry_all, mqp_retry_cnt, mqp_retry_ms; /* NCCL_IB_MQP_RETRY_* */
    int flush_disable;                              /* NCCL_GDR_FLUSH_DISABLE */
    int connect_ms;                                 /* NIBBLE_CONNECT_TIMEOUT */
};

/* Fills *conf; 0, or -EINVAL after a WARN that names variable and value. */
int nb_verbs_conf_read(const struct nb_params *params, struct nb_verbs_conf *conf);

#endif
