/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and hints for statuses and events of adapters. nibble has its own, since older libraries lack some,
 * and tests run without a library.
 */
#include "net/verbs/internal.h"

#include <errno.h>

static const struct {
    enum ibv_wc_status status;
    const char *name;
    int err;
    bool local;
    const char *hint;
} statuses[] = {
    {IBV_WC_LOC_LEN_ERR, "local length error", EIO, true, "a message is longer than the port allows"},
    {IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error", EIO, true,
     "the adapter could not carry out a request: see its driver's messages in dmesg"},
    {IBV_WC_LOC_PROT_ERR, "local protection error", EIO, true,
     "a buffer is not registered, or its memory was unmapped or freed since it was"},
    {IBV_WC_WR_FLUSH_ERR, "work request flushed", ECONNABORTED, false,
     "the queue pair had failed before: see the peer's log, and the adapter's messages in dmesg"},
    {IBV_WC_MW_BIND_ERR, "memory window bind error", EIO, true, "the adapter's driver misbehaves"},
    {IBV_WC_BAD_RESP_ERR, "bad response", EPROTO, false, "packets were damaged or a driver misbehaves"},
    {IBV_WC_LOC_ACCESS_ERR, "local access error", EIO, true,
     "the peer wrote to memory that does not allow it: do both nodes run the same version?"},
    {IBV_WC_REM_INV_REQ_ERR, "remote invalid request", EPROTO, false,
     "the peer's adapter rejects the request: do both nodes run the same version and settings?"},
    {IBV_WC_REM_ACCESS_ERR, "remote access error", EPROTO, false,
     "the peer's buffer has been deregistered, or is smaller than announced"},
    {IBV_WC_REM_OP_ERR, "remote operation error", EPROTO, false,
     "the peer's adapter failed: see dmesg there"},
    {IBV_WC_RETRY_EXC_ERR, "retries exceeded", ETIMEDOUT, false,
     "no acknowledgement: a link or switch is down or loses packets, the peer has died, or (RoCE) the GIDs "
     "are of networks that cannot reach each other: see NCCL_IB_GID_INDEX, NCCL_IB_TIMEOUT, "
     "NCCL_IB_RETRY_CNT"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "receiver not ready, retries exceeded", ETIMEDOUT, false,
     "the peer does not take messages: has its process hung?"},
    {IBV_WC_REM_ABORT_ERR, "remote aborted", EPROTO, false, "the peer's adapter gave the request up"},
    {IBV_WC_FATAL_ERR, "fatal adapter error", EIO, true, "the adapter is lost: see dmesg"},
    {IBV_WC_RESP_TIMEOUT_ERR, "response timeout", ETIMEDOUT, false, "the peer's adapter does not answer"},
    {IBV_WC_GENERAL_ERR, "general error", EIO, true, "the adapter's driver gives no cause: see dmesg"},
};

static int find_status(enum ibv_wc_status status)
{
    for (int i = 0; i < (int)(sizeof(statuses) / sizeof(statuses[0])); i++)
        if (statuses[i].status == status)
            return i;
    return -1;
}

const char *nb_verbs_status_name(enum ibv_wc_status status)
{
    int i = find_status(status);

    return i < 0 ? "unknown error" : statuses[i].name;
}

const char *nb_verbs_status_hint(enum ibv_wc_status status)
{
    int i = find_status(status);

    return i < 0 ? "see the adapter's documentation" : statuses[i].hint;
}

int nb_verbs_status_errno(enum ibv_wc_status status)
{
    int i = find_status(status);

    return i < 0 ? -EIO : -statuses[i].err;
}

bool nb_verbs_status_local(enum ibv_wc_status status)
{
    int i = find_status(status);

    return i < 0 || statuses[i].local;
}

const char *nb_verbs_event_name(enum ibv_event_type type)
{
    static const char *const names[] = {
        [IBV_EVENT_CQ_ERR] = "completion queue error",
        [IBV_EVENT_QP_FATAL] = "queue pair fatal error",
        [IBV_EVENT_QP_REQ_ERR] = "queue pair request error",
        [IBV_EVENT_QP_ACCESS_ERR] = "queue pair access error",
        [IBV_EVENT_COMM_EST] = "connection established",
        [IBV_EVENT_SQ_DRAINED] = "send queue drained",
        [IBV_EVENT_PATH_MIG] = "path migrated",
        [IBV_EVENT_PATH_MIG_ERR] = "path migration failed",
        [IBV_EVENT_DEVICE_FATAL] = "adapter fatal error",
        [IBV_EVENT_PORT_ACTIVE] = "port is up",
        [IBV_EVENT_PORT_ERR] = "port is down",
        [IBV_EVENT_LID_CHANGE] = "LID changed",
        [IBV_EVENT_PKEY_CHANGE] = "partition keys changed",
        [IBV_EVENT_SM_CHANGE] = "subnet manager changed",
        [IBV_EVENT_SRQ_ERR] = "shared receive queue error",
        [IBV_EVENT_SRQ_LIMIT_REACHED] = "shared receive queue low",
        [IBV_EVENT_QP_LAST_WQE_REACHED] = "last request reached",
        [IBV_EVENT_CLIENT_REREGISTER] = "subnet manager wants a new registration",
        [IBV_EVENT_GID_CHANGE] = "GIDs changed",
        [IBV_EVENT_WQ_FATAL] = "work queue fatal error",
    };

    if (type < 0 || (size_t)type >= sizeof(names) / sizeof(names[0]) || !names[type])
        return "unknown event";
    return names[type];
}

const char *nb_verbs_link_name(int link_layer)
{
    if (link_layer == IBV_LINK_LAYER_INFINIBAND)
        return "InfiniBand";
    return link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "?";
}
