/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load, initialise, connect, run, finalize, unload, again and again, through every table version. The plugin
 * must leave no thread, descriptor or memory behind, and every version must work.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/suite.h"
#include "nibble/nccl_net.h"

static const char *const env_raw[] = {"NIBBLE_RS=raw", NULL}; /* so that results compare bit by bit */

static int all_three(struct hx_node *node, struct hx_comm *comm, uint64_t seed)
{
    for (int func = HX_REDUCE_SCATTER; func <= HX_ALL_REDUCE; func++) {
        struct sx_spec spec = {.func = (enum hx_func)func,
                               .type = ncclFloat32,
                               .count = 20011,
                               .fill = HX_FILL_EXACT,
                               .seed = seed};

        if (sx_do(node, comm, &spec, NULL))
            return 1;
    }
    return 0;
}

static int p2p_once(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx)
{
    struct hx_p2p_cfg cfg = {.streams = 4, .slot = 32 << 10, .flush = true};
    enum { N = 300001 };
    char *mem = malloc(3 * N);
    struct hx_p2p *p2p;
    int rc;

    hx_fill(ncclUint8, mem, N, (uint64_t)node->rank, HX_FILL_BITS);
    hx_fill(ncclUint8, mem + N, N, (uint64_t)(node->rank ^ 1), HX_FILL_BITS);
    HX_CHECK(hx_p2p_open(node, lib, ctx, node->rank ^ 1, &cfg, &p2p) == ncclSuccess, "p2p open");
    HX_CHECK(hx_p2p_run(p2p, mem, N, mem + 2 * N, N, HX_SOON_S) == ncclSuccess, "p2p run");
    HX_CHECK(hx_p2p_close(p2p) == ncclSuccess, "p2p close");
    rc = memcmp(mem + N, mem + 2 * N, N);
    free(mem);
    HX_CHECK(rc == 0, "p2p: wrong data");
    return 0;
}

/*
 * Memory that this process holds, exactly: malloc's used blocks, and address space beside malloc's. Resident
 * pages would tell less: malloc keeps more or fewer freed pages, as the threads happen to meet.
 */
struct held {
    long heap_kb, mapped_kb;
};

/* Memory that may come and go: some blocks in threads' caches, and a few stacks (see cycles_node). The test
 * notices 34 cycles that each lose half a KiB of malloc's memory, or 32 KiB of mappings. */
#define MOST_HEAP_KB 16
#define MOST_MAPPED_KB 1024

static struct held held_now(void)
{
    struct mallinfo2 m = mallinfo2();

    return (struct held){.heap_kb = (long)((m.uordblks + m.hblkhd) >> 10),
                         .mapped_kb = hx_mapped_kb() - (long)((m.arena + m.hblkhd) >> 10)};
}

static int cycles_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    int cycles = *(int *)arg, threads = hx_thread_count(), fds = hx_fd_count();
    struct held warm = {0}, now;

    if (!hx_quick()) { /* quick runs do not judge memory, and sanitizers need larger stacks */
        pthread_attr_t small_stacks;

        /* malloc maps 64 MiB for another arena whenever two threads meet in one. Allow one arena. */
        mallopt(M_ARENA_MAX, 1);
        /* glibc keeps the stacks of ended threads, as many as ever ran at once. Small stacks cannot hide a
         * leak. */
        pthread_attr_init(&small_stacks);
        pthread_attr_setstacksize(&small_stacks, 128 << 10);
        pthread_setattr_default_np(&small_stacks);
        pthread_attr_destroy(&small_stacks);
    }
    for (int i = 0; i < cycles; i++) {
        struct hx_lib *lib = hx_lib_open(NULL, 0);
        struct hx_comm *comm, *second = NULL;
        const char *stage = "?";
        struct hx_ctx ctx;

        HX_CHECK(lib, "dlopen in cycle %d", i);
        HX_CHECK(hx_init(lib, 1000 + (uint64_t)i, &ctx) == ncclSuccess, "init in cycle %d", i);
        HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess, "cycle %d: failed in %s", i,
                 stage);
        if (i % 4 == 3) /* two communicators that end in the order in which they began */
            HX_CHECK(hx_comm_open(node, lib, &cfg, &second, &stage) == ncclSuccess, "cycle %d: failed in %s",
                     i, stage);
        if (all_three(node, comm, (uint64_t)i) || (second && all_three(node, second, (uint64_t)i)))
            return 1;
        if (p2p_once(node, lib, &ctx))
            return 1;
        hx_where("closing in cycle %d", i);
        HX_CHECK(hx_comm_close(comm) == ncclSuccess, "close in cycle %d", i);
        HX_CHECK(hx_comm_close(second) == ncclSuccess, "second close in cycle %d", i);
        HX_CHECK(hx_finalize(lib, &ctx) == ncclSuccess, "finalize in cycle %d", i);
        if (i == 0 && hx_quick()) /* a sanitizer starts its own thread beside the first thread of the
                                     plugin */
            threads = hx_settled_threads(threads);
        HX_CHECK(hx_settled_threads(threads) == threads, "cycle %d leaves %d threads, before it were %d", i,
                 hx_thread_count(), threads);
        hx_lib_close(lib);
        HX_CHECK(hx_fd_count() == fds, "cycle %d leaves %d descriptors, before it were %d", i, hx_fd_count(),
                 fds);
        if (i == cycles / 3)
            warm = held_now();
    }
    now = held_now();
    if (node->rank == 0)
        printf("        %ld KiB more in use by malloc, %ld KiB more mapped after %d cycles\n",
               now.heap_kb - warm.heap_kb, now.mapped_kb - warm.mapped_kb, cycles - cycles / 3);
    HX_CHECK(hx_quick() || now.heap_kb - warm.heap_kb < MOST_HEAP_KB,
             "memory in use grew from %ld to %ld KiB in %d cycles", warm.heap_kb, now.heap_kb,
             cycles - cycles / 3);
    HX_CHECK(hx_quick() || now.mapped_kb - warm.mapped_kb < MOST_MAPPED_KB,
             "mappings grew from %ld to %ld KiB in %d cycles", warm.mapped_kb, now.mapped_kb,
             cycles - cycles / 3);
    HX_CHECK(hx_log_warns() == 0, "WARN lines were logged");
    return 0;
}

static int cycles(void)
{
    int n = hx_quick() ? 8 : 50;

    return sx_job("cycles", 2, cycles_node, &n, env_raw);
}

static int version_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 4, .buff_size = 128 << 10, .flush = true};
    int version = *(int *)arg;

    for (int round = 0; round < 2; round++) {
        struct hx_lib *lib = hx_lib_open(NULL, version);
        const char *stage = "?";
        struct hx_comm *comm;
        struct hx_props props;
        struct hx_ctx ctx;

        HX_CHECK(lib && hx_lib_version(lib) == version, "the plugin has no version %d", version);
        HX_CHECK(hx_init(lib, 9, &ctx) == ncclSuccess && ctx.coll_ok, "init");
        HX_CHECK(hx_net_properties(lib, 0, &props) == ncclSuccess, "net properties");
        HX_CHECK(props.name[0] && props.speed > 0 && props.max_comms > 0 && props.max_recvs >= 1 &&
                     (props.ptr_support & NCCL_PTR_HOST) && props.max_p2p_bytes > 0,
                 "properties: name \"%s\" speed %d maxComms %d maxRecvs %d ptrSupport %d", props.name,
                 props.speed, props.max_comms, props.max_recvs, props.ptr_support);
        HX_CHECK(hx_comm_open(node, lib, &cfg, &comm, &stage) == ncclSuccess, "failed in %s", stage);
        if (all_three(node, comm, (uint64_t)version) || p2p_once(node, lib, &ctx))
            return 1;
        HX_CHECK(hx_comm_close(comm) == ncclSuccess && hx_finalize(lib, &ctx) == ncclSuccess, "closing");
        hx_lib_close(lib);
    }
    HX_CHECK(hx_log_warns() == 0, "WARN lines were logged");
    return 0;
}

static int versions(void)
{
    for (int v = NB_NET_OLDEST; v <= NB_NET_NEWEST; v++) {
        char name[32];
        int rc;

        snprintf(name, sizeof name, "version %d", v);
        rc = sx_job(name, 2, version_node, &v, env_raw);
        if (rc)
            return rc;
    }
    return 0;
}

/* An idle communicator must use no CPU time: the engine sleeps. */
static int idle_node(struct hx_node *node, void *arg)
{
    struct hx_comm_cfg cfg = {.channels = 2, .buff_size = 128 << 10};
    struct hx_counts before, after;
    struct hx_lib *lib;
    struct hx_comm *comm;
    struct timespec t0, t1;
    double cpu;

    (void)arg;
    if (sx_open(node, &cfg, &lib, &comm) || all_three(node, comm, 1))
        return 1;
    hx_barrier(node);
    hx_sleep(0.2);
    hx_comm_counts(comm, &before);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    hx_sleep(2.0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    hx_comm_counts(comm, &after);
    cpu = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    HX_CHECK(after.tests == before.tests && after.calls == before.calls,
             "the proxy called while it was asleep");
    HX_CHECK(cpu < 0.1, "2 s without work took %.3f s of CPU time", cpu);
    if (all_three(node, comm, 2))
        return 1;
    return sx_close(lib, comm, false);
}

HX_CASE(idle, sx_job("idle", 3, idle_node, NULL, env_raw))

HX_MAIN({"cycles", cycles, 0}, {"versions", versions, 0}, {"idle", idle, HX_CASE_FULL})
