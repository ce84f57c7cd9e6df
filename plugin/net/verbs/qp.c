/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs: how they are made, and the attributes of their way from INIT to ready, with NCCL's values.
 */
#include "net/verbs/internal.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"

struct ibv_qp *nb_verbs_qp_new(struct nb_verbs_comm *c, unsigned send_depth, unsigned recv_depth, int access,
                               int *err)
{
    struct ibv_qp_init_attr init = {
        .send_cq = c->cq,
        .recv_cq = c->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = send_depth,
                .max_recv_wr = recv_depth,
                .max_send_sge = c->is_send && c->dev->parts ? 2 : 1,
                .max_recv_sge = 1},
    };
    struct ibv_qp_attr attr;
    struct ibv_qp *qp;
    int rc;

    /* Only grants are small enough to travel inside their work request. */
    if (c->hca->conf->use_inline && !c->is_send)
        init.cap.max_inline_data = NB_VERBS_GRANT_USED(NB_NET_MAX_RECVS);
    errno = 0;
    qp = c->hca->api->create_qp(c->hca->pd, &init);
    if (!qp) {
        *err = errno ? errno : EIO;
        NB_WARN("verbs: %s: no queue pair: %s%s", c->dev->name, strerror(*err),
                *err == ENOMEM ? " (ulimit -l must be unlimited, and the adapter must have queue pairs left)"
                               : "");
        return NULL;
    }
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.pkey_index = (uint16_t)c->hca->conf->pkey;
    attr.port_num = (uint8_t)c->dev->port;
    attr.qp_access_flags = (unsigned)access;
    rc = c->hca->api->modify_qp(qp, &attr,
                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (rc) {
        *err = rc > 0 ? rc : errno;
        NB_WARN("verbs: %s: a queue pair cannot be initialised: %s (partition key index %d of %d)",
                c->dev->name, strerror(*err), c->hca->conf->pkey, c->dev->attr.pkey_tbl_len);
        nb_verbs_freed(c->hca, "a queue pair", c->hca->api->destroy_qp(qp));
        return NULL;
    }
    return qp;
}

/* Return whether two GIDs are of one subnet. The last 16 bits of an InfiniBand subnet prefix distinguish the
 * subnets of one fabric. */
static bool same_subnet(const uint8_t *a, const uint8_t *b)
{
    return a[6] == b[6] && a[7] == b[7];
}

static void address(const struct nb_verbs_comm *c, const struct nb_verbs_meta *peer, uint8_t traffic_class,
                    struct ibv_ah_attr *ah)
{
    memcpy(ah->grh.dgid.raw, peer->gid, 16);
    ah->grh.sgid_index = (uint8_t)c->gid_index;
    ah->grh.hop_limit = 255;
    if (c->dev->attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
        ah->is_global = 1;
        ah->grh.traffic_class = traffic_class;
    } else {
        bool same = same_subnet(c->gid.raw, peer->gid);
        uint16_t flid = (uint16_t)(peer->gid[4] << 8 | peer->gid[5]);

        ah->is_global = !same || c->dev->attr.flags & IBV_QPF_GRH_REQUIRED;
        ah->dlid = !same && flid ? flid : peer->lid;
    }
    ah->sl = c->meta.sl;
    ah->port_num = (uint8_t)c->dev->port;
}

/* Modify a queue pair. Return 0, -EAGAIN, or an error, which is logged. */
static int modify(struct nb_verbs_comm *c, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                  const char *state)
{
    int rc = c->hca->api->modify_qp(qp, attr, mask);

    if (rc == 0)
        return 0;
    rc = rc > 0 ? rc : errno;
    if (rc == ETIMEDOUT || c->hca->conf->mqp_retry_all)
        return -EAGAIN;
    NB_WARN("verbs: %s: a queue pair to %s (%s) does not get %s: %s", c->dev->name, c->peer,
            c->peer_meta.device, state, strerror(rc));
    return -rc;
}

int nb_verbs_qp_connect(struct nb_verbs_comm *c, struct ibv_qp *qp, uint32_t qpn,
                        const struct nb_verbs_meta *peer, uint8_t traffic_class)
{
    struct ibv_qp_attr attr;
    int rc;

    if (qp->state == IBV_QPS_RTR)
        goto rts; /* tried before */
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = (enum ibv_mtu)(c->meta.mtu < peer->mtu ? c->meta.mtu : peer->mtu);
    attr.dest_qp_num = qpn;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    address(c, peer, traffic_class, &attr.ah_attr);
    rc = modify(c, qp, &attr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
    if (rc)
        return rc;
rts:
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = (uint8_t)c->hca->conf->timeout;
    attr.retry_cnt = (uint8_t)c->hca->conf->retry_cnt;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    return modify(c, qp, &attr,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MAX_QP_RD_ATOMIC,
                  "ready to send");
}
