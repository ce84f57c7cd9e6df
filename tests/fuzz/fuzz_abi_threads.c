/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target, for the thread sanitizer: sequences of NCCL's calls (abi_calls.h) on two nodes as a process
 * has them. Each node has its engine's thread, a thread that makes NCCL's calls, and a thread that reports
 * operations as a profiler does, in real time. No sequence, at any time, may race, crash or hang, and at the
 * end the plugin must have given back all memory.
 *
 * Input: settings u8, then calls, each in ABI_CALL_BYTES, so that both nodes read the same calls.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "abi_calls.h"
#include "coll/coll.h"
#include "coll/engine.h"
#include "policy/records/records.h"

#define CALLS 200u
/* Turns that the end waits for open requests: for all of them, unless it has no other end. */
#define PATIENCE 2000u

static void *handles[ABI_NODES];

static struct caller_thread {
    pthread_t thread, teller;
    int node;
    struct fuzz_input in;
    bool wait; /* wait for open requests, before it closes */
    atomic_bool leaving;
} thread[ABI_NODES];

static void *tell(void *arg)
{
    struct caller_thread *t = arg;
    uint64_t n = 0;

    while (!atomic_load(&t->leaving)) {
        const struct nb_record r = {.func = n % 2 ? NB_FUNC_REDUCE_SCATTER : NB_FUNC_ALL_GATHER,
                                    .type = n % 2 ? ncclFloat32 : ncclInt8,
                                    .api_type = ncclFloat32,
                                    .bytes = 4096 << n % 3,
                                    .slot = -1,
                                    .chunk = 4096,
                                    .head = -1};
        nb_record_push(abi_cluster.node[t->node].comm, &r);
        n++;
        sched_yield();
    }
    return NULL;
}

static void *make_calls(void *arg)
{
    struct caller_thread *t = arg;
    struct cluster_node *n = &abi_cluster.node[t->node];
    struct fuzz_input in = t->in;
    unsigned calls = 0;

    FUZZ_CHECK(nb_coll_connect(handles, ABI_NODES, t->node, n->listen, &n->comm) == 0);
    FUZZ_CHECK(nb_coll_close_listen(n->listen) == 0);
    FUZZ_CHECK(pthread_create(&t->teller, NULL, tell, t) == 0);
    while (calls < CALLS && in.left && n->comm) {
        const size_t bytes = in.left < ABI_CALL_BYTES ? in.left : ABI_CALL_BYTES;
        struct fuzz_input call = {in.p, bytes};
        /* A close is the end, which comes below: the teller must be gone first. */
        if ((in.p[0] & 0xef) == 0xee && (in.p[0] >> 4 & 1) == t->node)
            break;
        abi_call(&call, t->node);
        in.p += bytes;
        in.left -= bytes;
        calls++;
    }
    for (unsigned i = 0; t->wait && i < PATIENCE && abi_collect(t->node); i++)
        sched_yield();
    atomic_store(&t->leaving, true);
    FUZZ_CHECK(pthread_join(t->teller, NULL) == 0);
    abi_close_one(t->node);
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned settings = (unsigned)fuzz_take(&in, 1);

    abi_open(settings, &nb_runner_thread);
    for (int i = 0; i < ABI_NODES; i++) {
        struct cluster_node *n = &abi_cluster.node[i];
        handles[i] = n->handle;
        FUZZ_CHECK(nb_coll_listen(&n->ctx, 0, 17, n->handle, &n->listen) == 0);
    }
    for (int i = 0; i < ABI_NODES; i++) {
        thread[i].node = i;
        thread[i].in = in;
        thread[i].wait = settings & 128;
        atomic_store(&thread[i].leaving, false);
        FUZZ_CHECK(pthread_create(&thread[i].thread, NULL, make_calls, &thread[i]) == 0);
    }
    for (int i = 0; i < ABI_NODES; i++)
        FUZZ_CHECK(pthread_join(thread[i].thread, NULL) == 0);
    abi_close();
    return 0;
}
