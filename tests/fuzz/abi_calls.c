/* SPDX-License-Identifier: Apache-2.0 */
/* The calls and their arguments. See abi_calls.h. */
#include "abi_calls.h"

#include <errno.h>
#include <sched.h>

#include "abi/api.h"
#include "base/log.h"
#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "policy/records/records.h"

#define SLOT 24576u         /* bytes of a window at most */
#define REGION (16u * SLOT) /* NCCL's buffer: 8 slots to send, 8 to receive */
#define REQUESTS 40u
#define TURNS 64u /* rounds of both engines that finish all work of a call */

struct cluster abi_cluster;
static bool threads; /* threads drive the engines, else cluster_turn does */

static struct caller {
    uint8_t *region;
    void *mhandle[4];
    struct {
        void *request;
        bool ended; /* a test reported its end: NCCL would not test it again */
    } request[REQUESTS];
    unsigned posted;
    bool stopped; /* its requests must stay untouched: the communicator is closed */
} caller[ABI_NODES];

static void quiet(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
                  ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

/* Run the work that goes on between calls. */
static void turn(void)
{
    if (threads)
        sched_yield();
    else
        cluster_turn(&abi_cluster);
}

/* ---- arguments --------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0,     1,     2,     3,     4,         31,        64,    100,
                               256,   1024,  4095,  4096,  4100,      8192,      12288, 16380,
                               16384, 20000, 24572, 24576, 1ul << 40, (size_t)-1};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static size_t take_size(struct fuzz_input *in)
{
    return sizes[fuzz_take(in, 1) % NSIZES];
}

/* Return a size that the memory from a slot's beginning has. */
static size_t true_size(size_t size)
{
    return size > SLOT ? SLOT : size;
}

static ncclDataType_t take_type(struct fuzz_input *in)
{
    const unsigned v = (unsigned)fuzz_take(in, 1);
    return v & 1 ? ncclFloat32 : (ncclDataType_t)((int)(v / 2 % 16) - 1);
}

static ncclRedOp_t take_op(struct fuzz_input *in)
{
    const unsigned v = (unsigned)fuzz_take(in, 1);
    return v & 3 ? ncclSum : (ncclRedOp_t)((int)(v / 4 % 8) - 1);
}

static uint8_t *slot(int node, unsigned n, bool recv)
{
    return caller[node].region + ((recv ? 8 : 0) + n % 8) * SLOT;
}

/* ---- calls ------------------------------------------------------------------------------------------- */

static void note(int node, ncclResult_t res, void *request)
{
    struct caller *w = &caller[node];

    FUZZ_CHECK(res == ncclSuccess || !request);
    if (!request)
        return;
    FUZZ_CHECK(w->posted < REQUESTS);
    w->request[w->posted].request = request;
    w->request[w->posted++].ended = false;
}

/* Post one window. `sane`: as NCCL posts it, on a boundary of the type. */
static void post(struct fuzz_input *in, int node, unsigned which, bool sane)
{
    struct nb_coll_comm *comm = abi_cluster.node[node].comm;
    struct caller *w = &caller[node];
    const size_t a = take_size(in), b = take_size(in), off = sane ? 0 : take_size(in);
    const ncclDataType_t type = sane ? ncclFloat32 : take_type(in);
    const ncclRedOp_t op = sane ? ncclSum : take_op(in);
    uint8_t *send = slot(node, w->posted, false), *recv = slot(node, w->posted, true);
    void *request = &request;
    ncclResult_t res;

    if (w->posted == REQUESTS)
        return;
    if (sane) {
        const size_t whole = true_size(a) / 8 * 8, count = whole / 4;
        ncclNetSGE_v9_t part = {.mhandle = NULL, .address = which == 1 ? recv : send, .size = whole};
        res = which == 0   ? nb_api_coll_iallreduce(comm, send, recv, count, type, op, NULL, NULL, &request)
              : which == 1 ? nb_api_coll_iallgather(comm, send, 1, &part, whole / 2, 0, whole, NULL, &request)
                           : nb_api_coll_ireducescatter(comm, 1, &part, recv, whole / 2, 0, whole, type, op,
                                                        NULL, &request);
    } else {
        const unsigned odd = (unsigned)fuzz_take(in, 1);
        /* The plugin must refuse sizes beyond the memory, so they must be beyond the sizes that it
         * accepts. */
        const size_t claimed = a > SLOT ? ((size_t)1 << 61) : a;
        ncclNetSGE_v9_t part = {.mhandle = NULL,
                                .address = odd & 1      ? NULL
                                           : which == 1 ? recv
                                                        : send,
                                .size = odd & 2 ? true_size(b) : claimed};
        send = odd & 4 ? NULL : send;
        recv = odd & 8 ? NULL : recv;
        res = which == 0 ? nb_api_coll_iallreduce(comm, send, recv, a > SLOT ? (size_t)1 << 61 : a / 8, type,
                                                  op, NULL, NULL, &request)
              : which == 1 ? nb_api_coll_iallgather(comm, send, odd & 16 ? 0 : 1, odd & 32 ? NULL : &part, b,
                                                    off, claimed, NULL, &request)
                           : nb_api_coll_ireducescatter(comm, odd & 16 ? 2 : 1, odd & 32 ? NULL : &part, recv,
                                                        b, off, claimed, type, op, NULL, &request);
    }
    FUZZ_CHECK(request != (void *)&request);
    note(node, res, request);
}

static void test_one(struct fuzz_input *in, int node)
{
    struct caller *w = &caller[node];
    const unsigned n = (unsigned)fuzz_take(in, 1);
    int done = 7, size;

    if (n % 16 == 15 || !w->posted) {
        FUZZ_CHECK(nb_api_coll_test(NULL, &done, &size) != ncclSuccess);
        return;
    }
    const unsigned i = n % w->posted;
    const ncclResult_t res = nb_api_coll_test(w->request[i].request, &done, n & 64 ? NULL : &size);
    FUZZ_CHECK(done == 0 || done == 1);
    FUZZ_CHECK(!(res != ncclSuccess && done));
    w->request[i].ended |= done || res != ncclSuccess;
}

unsigned abi_collect(int node)
{
    struct caller *w = &caller[node];
    unsigned n = 0;

    for (unsigned i = 0; i < w->posted; i++) {
        int done = 0;
        if (!w->request[i].ended)
            w->request[i].ended = nb_api_coll_test(w->request[i].request, &done, NULL) != ncclSuccess || done;
        if (!w->request[i].ended)
            w->request[n++] = w->request[i];
    }
    w->posted = n;
    return n;
}

static void reg(struct fuzz_input *in, int node)
{
    const unsigned v = (unsigned)fuzz_take(in, 1);
    void *mhandle = &mhandle;
    const ncclResult_t res = nb_api_coll_reg_mr(
        abi_cluster.node[node].comm, v & 1 ? caller[node].region : slot(node, v / 16, false),
        v & 1 ? REGION : true_size(take_size(in)), v & 14 ? NCCL_PTR_HOST : (int)(v / 16), &mhandle);

    FUZZ_CHECK(mhandle != (void *)&mhandle);
    FUZZ_CHECK(res == ncclSuccess || !mhandle);
    caller[node].mhandle[v / 4 % 4] = mhandle;
}

static void tell(struct fuzz_input *in, int node)
{
    const unsigned v = (unsigned)fuzz_take(in, 1);
    struct nb_record r = {.func = (enum nb_func)(v % 3),
                          .type = v & 8 ? ncclFloat32 : ncclInt8,
                          .api_type = take_type(in),
                          .flags = (uint32_t)(v / 16),
                          .bytes = take_size(in),
                          .slot = (int64_t)(v / 32) - 1,
                          .chunk = SLOT,
                          .heads = v & 4 ? 1 << 1 : fuzz_take(in, 1),
                          .head = v & 64 ? -1 : 0};

    if ((unsigned)r.api_type < ncclNumTypes)
        nb_record_push(abi_cluster.node[node].comm, &r);
}

void abi_close_one(int node)
{
    struct cluster_node *n = &abi_cluster.node[node];

    if (!n->comm)
        return;
    if (threads) {
        FUZZ_CHECK(nb_api_coll_close(n->comm) == ncclSuccess);
    } else { /* the table's call blocks, and needs a thread that drives the other node meanwhile */
        n->asleep = false;
        FUZZ_CHECK(nb_coll_close_begin(n->comm) == 0);
        while (nb_coll_close_step(n->comm))
            FUZZ_CHECK(cluster_turn(&abi_cluster));
    }
    n->comm = NULL;
    caller[node].stopped = true;
    caller[node].posted = 0;
}

/* Make a call that needs no communicator. */
static void outside(struct fuzz_input *in)
{
    const unsigned v = (unsigned)fuzz_take(in, 1);
    uint8_t handle[NB_NET_HANDLE_BYTES];
    struct nb_coll_listen *listen = NULL;
    void *handles[ABI_NODES] = {handle, v & 1 ? handle : NULL}, *comm = &comm;
    int yes;

    if (nb_coll_listen(&abi_cluster.node[0].ctx, v & 2 ? 0 : (int)(v / 4) - 3, v, handle, &listen) == 0) {
        if (v & 128) {
            const int nranks = (int)(v / 8 % 4) - 1;
            const ncclResult_t res =
                nb_api_coll_connect(handles, nranks, nranks + (int)(v & 1), listen, &comm);
            FUZZ_CHECK(res != ncclSuccess && !comm); /* the rank is never in the group */
        } else {                                     /* connect has freed it, since NCCL drops it */
            FUZZ_CHECK(nb_api_coll_close_listen(listen) == ncclSuccess);
        }
    }
    FUZZ_CHECK(nb_api_coll_close(NULL) == ncclSuccess && nb_api_coll_close_listen(NULL) == ncclSuccess);
    FUZZ_CHECK(nb_api_coll_reduce_support((ncclDataType_t)((int)v - 4), (ncclRedOp_t)(v % 8), &yes) ==
               ncclSuccess);
}

/* Post an operation on both nodes. `only`: the node whose part this is, -1: both. */
static void post_both(struct fuzz_input *in, int only, unsigned which)
{
    struct fuzz_input same = *in;

    for (int n = 0; n < ABI_NODES; n++) {
        same = *in;
        if ((only < 0 || only == n) && abi_cluster.node[n].comm)
            post(&same, n, which, true);
    }
    *in = same;
}

/* Make a call of one node. */
static void call_node(struct fuzz_input *in, unsigned what, int node)
{
    struct cluster_node *n = &abi_cluster.node[node];
    void *request = &request;

    switch (what & 15) {
    case 3:
    case 4:
    case 5:
        if (n->comm)
            post(in, node, (what & 15) - 3, what & 32);
        break;
    case 6:
        if (n->comm) {
            FUZZ_CHECK(nb_api_coll_iflush(n->comm, slot(node, 0, true), (int)(fuzz_take(in, 1)) - 3, NULL,
                                          &request) == ncclSuccess ||
                       !request);
            FUZZ_CHECK(!request);
        }
        break;
    case 7:
        if (n->comm)
            test_one(in, node);
        break;
    case 9:
        if (n->comm)
            reg(in, node);
        break;
    case 10:
        if (n->comm)
            nb_api_coll_dereg_mr(n->comm, what & 32 ? caller[node].mhandle[what >> 6] : (void *)&request);
        break;
    case 11:
        if (n->comm)
            tell(in, node);
        break;
    case 12:
        if (!threads)
            n->now += (int64_t)fuzz_take(in, 1) * 500000000;
        break;
    case 13: n->asleep = !threads && what & 32; break;
    default:
        if (n->comm && (what & 0xe0) == 0xe0)
            abi_close_one(node);
        else
            outside(in);
        break;
    }
}

void abi_call(struct fuzz_input *in, int node)
{
    const unsigned what = (unsigned)fuzz_take(in, 1);
    const int named = what >> 4 & 1;

    switch (what & 15) {
    case 0:
    case 1:
    case 2: post_both(in, node, what & 15); break;
    case 8:
        for (int n = 0; n < ABI_NODES; n++)
            if ((node < 0 || node == n) && abi_cluster.node[n].comm)
                abi_collect(n);
        break;
    case 15:
        for (unsigned i = 0; i < TURNS; i++)
            turn();
        break;
    default:
        if (node < 0 || node == named)
            call_node(in, what, named);
        break;
    }
    turn();
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

void abi_open(unsigned settings, const struct nb_runner *runner)
{
    threads = runner != NULL;
    nb_log_set(quiet);
    cluster_open_driven(&abi_cluster, ABI_NODES, runner);
    for (int n = 0; n < ABI_NODES; n++) {
        struct nb_params *p = &abi_cluster.node[n].params;
        p->credits = settings & 1 ? 1 : 4;
        p->unit_bytes = settings & 2 ? 4096 : 8192;
        p->rs = p->ar = settings / 4 % 3;
        p->ag = settings / 16 % 4;
        p->grad = settings & 64 ? "all" : "";
        p->warmup_steps = 0;
        p->rs_min_bytes = p->ar_min_bytes = p->ag_min_bytes = 0;
        p->payload_check = settings / 64 % NB_PAYLOAD_CHECK_COUNT;
        p->shadow = settings == 0xff;
        p->close_timeout = 3;
        caller[n] = (struct caller){.region = fuzz_alloc(REGION, n + 1)};
    }
}

void abi_close(void)
{
    cluster_close(&abi_cluster);
    for (int n = 0; n < ABI_NODES; n++)
        free(caller[n].region);
    nb_log_set(NULL);
}
