/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's outside functions in one table: libibverbs, which the plugin opens at run time
 * instead of linking with it, and files of sysfs for facts that libibverbs does not report. Tests substitute
 * a table of their own.
 *
 * The four calls of the data path (ibv_poll_cq, ibv_req_notify_cq, ibv_post_send, ibv_post_recv) are missing
 * here. They are inline functions of infiniband/verbs.h that go through the device's own table.
 */
#ifndef NIBBLE_NET_VERBS_API_H
#define NIBBLE_NET_VERBS_API_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

/* Members have the meaning, arguments and results of the ibv_ function of the same name. Members marked
 * optional are NULL where the library is too old for them. */
struct nb_verbs_api {
    int (*fork_init)(void);
    struct ibv_device **(*get_device_list)(int *n);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
    int (*query_port_speed)(struct ibv_context *context, uint32_t port,
                            uint64_t *speed); /* optional; in 100 Mbit/s */
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                   unsigned access); /* optional */
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                    int access); /* optional */
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);

    /* Read a file below /sys: at most cap - 1 bytes, with a 0 behind them. Return the bytes read, or a
     * negative errno. */
    int (*read_sysfs)(const char *path, char *buf, size_t cap);
    /* Write the path with all links resolved. Return 0 or a negative errno. */
    int (*real_path)(const char *path, char *buf, size_t cap);
};

/* Return the table over libibverbs, or NULL and the reason in `why`. The first call opens the first library
 * that exists of NCCL_IBVERBS_LIB, libibverbs.so and libibverbs.so.1. It stays open, because it keeps lists
 * of forked memory that must outlive a reload of the plugin. The caller holds its lock. */
const struct nb_verbs_api *nb_verbs_api_open(char *why, size_t cap);

/* The names tried after NCCL_IBVERBS_LIB. Tests change them. */
extern const char *nb_verbs_lib_names[2];

/* For tests: set the table that nb_verbs_api_open returns from now on. NULL restores libibverbs. */
void nb_verbs_api_replace(const struct nb_verbs_api *api);

#endif
