/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point traffic as NCCL's net proxy makes it. Every stream (channel) has a ring of 8 registered
 * slots in each direction. Each send carries one slot with the stream's tag, and receives of several streams
 * share one grouped irecv. A NULL request means another try on the next pass.
 */
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct stream {
    size_t send_base, send_len, recv_base, recv_len; /* this stream's part of the two vectors */
    uint64_t send_steps, sent, send_done;
    uint64_t recv_steps;
    void *send_req[HX_STEPS];
};

struct group { /* receives that go into one irecv */
    int first, n;
    uint64_t steps, posted, received, flushed;
    void *req[HX_STEPS], *flush[HX_STEPS];
    int sizes[HX_STEPS][HX_CALL_CHANNELS];
};

struct hx_p2p {
    struct hx_lib *lib;
    struct hx_p2p_cfg cfg;
    int streams, ngroups;
    void *listen, *send_comm, *recv_comm;
    char *send_mem, *recv_mem;      /* addresses that the plugin gets */
    ptrdiff_t send_seen, recv_seen; /* distance from there to the harness's view of the bytes */
    void *send_mh, *recv_mh;
    struct stream stream[HX_CALL_CHANNELS];
    struct group group[HX_CALL_CHANNELS];
};

static char *slot_of(char *mem, const struct hx_p2p *p, int stream, uint64_t step)
{
    return mem + ((size_t)stream * HX_STEPS + step % HX_STEPS) * p->cfg.slot;
}

/* Make the memory of all slots of one side. */
static int make_slots(struct hx_p2p *p, size_t size, char **mem, ptrdiff_t *seen, int fill)
{
    void *at = NULL;

    if (p->cfg.memory) {
        *mem = p->cfg.memory(size, &at);
        if (*mem)
            *seen = (char *)at - *mem;
    } else if (posix_memalign((void **)mem, 4096, size)) {
        *mem = NULL;
    }
    if (*mem)
        memset(*mem + *seen, fill, size);
    return *mem ? 0 : -1;
}

ncclResult_t hx_p2p_open(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx, int peer,
                         const struct hx_p2p_cfg *cfg, struct hx_p2p **out)
{
    struct hx_p2p *p = calloc(1, sizeof *p);
    unsigned char handle[HX_HANDLE_BYTES] = {0};
    double end = hx_now() + HX_SOON_S * hx_env_read()->patience;
    struct hx_props props;
    ncclResult_t ret;
    size_t size;

    *out = NULL;
    if (!p)
        abort();
    p->lib = lib;
    if (cfg)
        p->cfg = *cfg;
    p->streams = p->cfg.streams ? p->cfg.streams : 1;
    if (p->streams > HX_CALL_CHANNELS)
        abort();
    if (!p->cfg.slot)
        p->cfg.slot = 512u << 10;
    ret = hx_net_properties(lib, p->cfg.dev, &props);
    if (ret != ncclSuccess)
        goto fail;
    hx_where("p2p listen for node %d", peer);
    ret = hx_net_listen(lib, ctx, p->cfg.dev, handle, &p->listen);
    if (ret != ncclSuccess)
        goto fail;
    ret = HX_TIMEOUT;
    if (hx_put(node, peer, handle, sizeof handle, HX_SOON_S * hx_env_read()->patience) ||
        hx_get(node, peer, handle, sizeof handle, HX_SOON_S * hx_env_read()->patience))
        goto fail;
    hx_where("p2p connect and accept with node %d", peer);
    while (!p->send_comm || !p->recv_comm) {
        if (!p->send_comm &&
            (ret = hx_net_connect(lib, ctx, p->cfg.dev, handle, &p->send_comm)) != ncclSuccess)
            goto fail;
        if (!p->recv_comm && (ret = hx_net_accept(lib, p->listen, &p->recv_comm)) != ncclSuccess)
            goto fail;
        ret = HX_TIMEOUT;
        if (hx_now() > end)
            goto fail;
        sched_yield();
    }
    ret = hx_net_close_listen(lib, p->listen);
    p->listen = NULL;
    if (ret != ncclSuccess)
        goto fail;
    size = (size_t)p->streams * HX_STEPS * p->cfg.slot;
    ret = ncclSystemError;
    if (make_slots(p, size, &p->send_mem, &p->send_seen, 0x33) ||
        make_slots(p, size, &p->recv_mem, &p->recv_seen, 0x66))
        goto fail;
    const int type = p->cfg.memory ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
    if ((ret = hx_net_reg_mr(lib, p->send_comm, p->send_mem, size, type, &p->send_mh)) != ncclSuccess ||
        (ret = hx_net_reg_mr(lib, p->recv_comm, p->recv_mem, size, type, &p->recv_mh)) != ncclSuccess)
        goto fail;
    int group = props.max_recvs < 1                  ? 1
                : props.max_recvs > HX_CALL_CHANNELS ? HX_CALL_CHANNELS
                                                     : props.max_recvs;
    for (int i = 0; i < p->streams; i += group) {
        p->group[p->ngroups].first = i;
        p->group[p->ngroups++].n = p->streams - i < group ? p->streams - i : group;
    }
    *out = p;
    hx_where("p2p with node %d is up", peer);
    return ncclSuccess;
fail:
    hx_p2p_close(p);
    return ret;
}

ncclResult_t hx_p2p_close(struct hx_p2p *p)
{
    ncclResult_t first = ncclSuccess, ret;

    if (!p)
        return ncclSuccess;
    if (p->send_mh && (ret = hx_net_dereg_mr(p->lib, p->send_comm, p->send_mh)) != ncclSuccess && !first)
        first = ret;
    if (p->recv_mh && (ret = hx_net_dereg_mr(p->lib, p->recv_comm, p->recv_mh)) != ncclSuccess && !first)
        first = ret;
    if (p->send_comm && (ret = hx_net_close_send(p->lib, p->send_comm)) != ncclSuccess && !first)
        first = ret;
    if (p->recv_comm && (ret = hx_net_close_recv(p->lib, p->recv_comm)) != ncclSuccess && !first)
        first = ret;
    if (p->listen && (ret = hx_net_close_listen(p->lib, p->listen)) != ncclSuccess && !first)
        first = ret;
    void (*give_back)(void *) = p->cfg.memory ? p->cfg.memory_free : free;
    if (p->send_mem)
        give_back(p->send_mem);
    if (p->recv_mem)
        give_back(p->recv_mem);
    free(p);
    return first;
}

/* Split a vector over the streams as NCCL splits a message over channels: equal parts, rounded to 512 bytes.
 */
static void split(const struct hx_p2p *p, size_t bytes, int i, size_t *base, size_t *len)
{
    size_t part = HX_DIV_UP(HX_DIV_UP(bytes, (size_t)p->streams), 512) * 512;
    size_t beg = part * (size_t)i < bytes ? part * (size_t)i : bytes;

    *base = beg;
    *len = bytes - beg < part ? bytes - beg : part;
}

static ncclResult_t progress_sends(struct hx_p2p *p, const char *send, bool *idle)
{
    for (int i = 0; i < p->streams; i++) {
        struct stream *s = &p->stream[i];
        ncclResult_t ret;

        if (s->sent < s->send_steps && s->sent < s->send_done + HX_STEPS) {
            char *slot = slot_of(p->send_mem, p, i, s->sent);
            size_t at = s->sent * p->cfg.slot,
                   len = s->send_len - at < p->cfg.slot ? s->send_len - at : p->cfg.slot;
            void **req = &s->send_req[s->sent % HX_STEPS];

            if (len && !p->cfg.nocopy)
                memcpy(slot + p->send_seen, send + s->send_base + at, len);
            ret = hx_net_isend(p->lib, p->send_comm, slot, len, 100 + i, p->send_mh, req);
            if (ret != ncclSuccess)
                return ret;
            if (*req) {
                s->sent++;
                *idle = false;
            }
        }
        if (s->send_done < s->sent) {
            void **req = &s->send_req[s->send_done % HX_STEPS];
            int done = 0;

            ret = hx_net_test(p->lib, *req, &done, NULL);
            if (ret != ncclSuccess)
                return ret;
            if (done) {
                *req = NULL;
                s->send_done++;
                *idle = false;
            }
        }
    }
    return ncclSuccess;
}

/* Copy the received bytes of step `step` of the group to the user. */
static ncclResult_t deliver(struct hx_p2p *p, struct group *g, uint64_t step, char *recv)
{
    for (int k = 0; k < g->n; k++) {
        struct stream *s = &p->stream[g->first + k];
        size_t at = step * p->cfg.slot, want;

        if (step >= s->recv_steps)
            continue;
        want = s->recv_len - at < p->cfg.slot ? s->recv_len - at : p->cfg.slot;
        if ((size_t)g->sizes[step % HX_STEPS][k] != want) {
            hx_fail("p2p: stream %d step %llu brought %d bytes, not %zu", g->first + k,
                    (unsigned long long)step, g->sizes[step % HX_STEPS][k], want);
            return HX_BROKEN;
        }
        if (want && !p->cfg.nocopy)
            memcpy(recv + s->recv_base + at, slot_of(p->recv_mem, p, g->first + k, step) + p->recv_seen,
                   want);
    }
    return ncclSuccess;
}

static ncclResult_t progress_group(struct hx_p2p *p, struct group *g, char *recv, bool *idle)
{
    void *data[HX_CALL_CHANNELS], *mh[HX_CALL_CHANNELS];
    size_t sizes[HX_CALL_CHANNELS];
    int tags[HX_CALL_CHANNELS], lens[HX_CALL_CHANNELS];
    ncclResult_t ret;

    if (g->posted < g->steps && g->posted < g->flushed + HX_STEPS) {
        int n = 0;

        for (int k = 0; k < g->n; k++) {
            if (g->posted >= p->stream[g->first + k].recv_steps)
                break; /* earlier streams are never shorter than later ones */
            data[n] = slot_of(p->recv_mem, p, g->first + k, g->posted);
            sizes[n] = p->cfg.slot;
            tags[n] = 100 + g->first + k;
            mh[n++] = p->recv_mh;
        }
        ret = hx_net_irecv(p->lib, p->recv_comm, n, data, sizes, tags, mh, &g->req[g->posted % HX_STEPS]);
        if (ret != ncclSuccess)
            return ret;
        if (g->req[g->posted % HX_STEPS]) {
            g->posted++;
            *idle = false;
        }
    }
    if (g->received < g->posted) {
        int slot = (int)(g->received % HX_STEPS), done = 0, n = 0;

        ret = hx_net_test(p->lib, g->req[slot], &done, g->sizes[slot]);
        if (ret != ncclSuccess)
            return ret;
        if (done) {
            g->req[slot] = NULL;
            for (int k = 0; p->cfg.flush && k < g->n && g->received < p->stream[g->first + k].recv_steps;
                 k++) {
                data[n] = slot_of(p->recv_mem, p, g->first + k, g->received);
                lens[n] = g->sizes[slot][k];
                mh[n++] = p->recv_mh;
            }
            if (n) {
                ret = hx_net_iflush(p->lib, p->recv_comm, n, data, lens, mh, &g->flush[slot]);
                if (ret != ncclSuccess)
                    return ret;
            }
            g->received++;
            *idle = false;
        }
    }
    if (g->flushed < g->received) {
        int slot = (int)(g->flushed % HX_STEPS), done = 1;

        if (g->flush[slot] && (ret = hx_net_test(p->lib, g->flush[slot], &done, NULL)) != ncclSuccess)
            return ret;
        if (done) {
            g->flush[slot] = NULL;
            ret = deliver(p, g, g->flushed, recv);
            if (ret != ncclSuccess)
                return ret;
            g->flushed++;
            *idle = false;
        }
    }
    return ncclSuccess;
}

ncclResult_t hx_p2p_run(struct hx_p2p *p, const void *send, size_t send_bytes, void *recv, size_t recv_bytes,
                        double timeout_s)
{
    double end = hx_now() + timeout_s * hx_env_read()->patience;
    unsigned idle_passes = 0;
    bool busy = true;

    for (int i = 0; i < p->streams; i++) {
        struct stream *s = &p->stream[i];

        memset(s, 0, sizeof *s);
        split(p, send_bytes, i, &s->send_base, &s->send_len);
        split(p, recv_bytes, i, &s->recv_base, &s->recv_len);
        /* An empty message is still one message, on the first stream. */
        s->send_steps = s->send_len ? HX_DIV_UP(s->send_len, p->cfg.slot) : send_bytes == 0 && i == 0;
        s->recv_steps = s->recv_len ? HX_DIV_UP(s->recv_len, p->cfg.slot) : recv_bytes == 0 && i == 0;
    }
    for (int i = 0; i < p->ngroups; i++) {
        struct group *g = &p->group[i];

        g->posted = g->received = g->flushed = 0;
        g->steps = p->stream[g->first].recv_steps;
    }
    while (busy) {
        bool idle = true;
        ncclResult_t ret = progress_sends(p, send, &idle);

        busy = false;
        for (int i = 0; i < p->ngroups && ret == ncclSuccess; i++) {
            ret = progress_group(p, &p->group[i], recv, &idle);
            busy |= p->group[i].flushed < p->group[i].steps;
        }
        if (ret != ncclSuccess)
            return ret;
        for (int i = 0; i < p->streams; i++)
            busy |= p->stream[i].send_done < p->stream[i].send_steps;
        if (!idle)
            idle_passes = 0;
        else if (++idle_passes > 256)
            hx_sleep(20e-6);
        else
            sched_yield();
        if (timeout_s > 0 && idle_passes > 256 && hx_now() > end)
            return HX_TIMEOUT;
    }
    return ncclSuccess;
}
