/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proxy harness: drives a network plugin on one machine exactly as NCCL's host code does, without NCCL and
 * without a GPU. The programs of tests/harness use it, and so do the tools that measure and train.
 *
 *   job     N forked processes, one for each "node", with barrier, mailboxes and log capture in shared memory
 *   lib     the plugin: loaded by dlopen or linked in, any table version from 8 to 12, behind one API
 *   comm    a CollNet communicator brought up and torn down in NCCL's order, with its proxy thread
 *   op      reduce-scatter, all-gather or all-reduce, cut into windows and steps by NCCL's formulas
 *   p2p     a pair of point-to-point connections driven like NCCL's net proxy
 *   data    types, fills, references and measures of error, independent of the plugin's code
 *
 * The proxy follows transport/coll_net.cc of NCCL 2.30 step by step: sendProxyProgress, recvProxyProgress and
 * the offset formulas. It retries a refused call without testing that group, makes calls only while an
 * operation is active, and is the only thread that calls i* and test. The proxy thread simulates the GPU
 * between two passes: it fills send slots from the user's buffer and drains receive slots into the result.
 *
 * Unless a comment says otherwise, only the node's main thread may call a function, sizes are in bytes, and
 * NULL or a negative value means failure after a line on stderr (see hx_fail).
 */
#ifndef NIBBLE_TESTS_HARNESS_H
#define NIBBLE_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "nibble/nccl_types.h"

#define HX_MAX_NODES 16
#define HX_STEPS 8         /* NCCL_STEPS */
#define HX_CALL_CHANNELS 8 /* COLLNET_GROUP_NSUBS: channels that share one call */
#define HX_MAX_CHANNELS 32
#define HX_HANDLE_BYTES 128 /* NCCL_NET_HANDLE_MAXSIZE */
#define HX_SCRATCH_BYTES 65536
#define HX_SKIP 77
/* Limits of a job and of a wait inside it. They are so large that only a hang reaches them, however busy the
 * machine is. A test which shows that the plugin did not wait for a setting's time sets it to HX_LONG. */
#define HX_LIMIT_S 3600.0
#define HX_SOON_S 2400.0
#define HX_LONG "7200" /* seconds */
/* Results of the harness beside NCCL's. */
#define HX_TIMEOUT ((ncclResult_t)100) /* hx_wait: not finished in time */
#define HX_BROKEN ((ncclResult_t)101)  /* the plugin broke the contract. hx_fail has the reason */

/* ================================================================ job */

/* A job on several machines, virtual ones that share memory (tests/vm): a program runs on each machine at the
 * same time with the same arguments. NB_HARNESS_HOST gives the machine's number and their count, "0/2", and
 * NB_HARNESS_MEMORY the file of the common memory. Node r then runs on machine r modulo their count.
 * Namespaces, and signals between nodes, work on one machine only. */

struct hx_shared; /* the job's shared memory */

/* A job on machines without shared memory (tools/perf): this process runs node `rank` alone. hx_allgather
 * goes through `gather`, which copies `len` bytes of every node into all[nnodes * len] and returns 0, or -1
 * when a node is gone. Mailboxes, scratch memory, logs and ends of other nodes are then invisible. The
 * environment is the caller's plus the job's `env`, and warnings go to stderr. */
struct hx_meeting {
    int rank;
    int (*gather)(void *arg, const void *mine, size_t len, void *all);
    void *arg;
};

/* A node's view of the job. hx_job_run makes it and passes it to the node function. */
struct hx_node {
    int rank, nnodes;
    uint64_t seed; /* the job's, the same on every node */
    struct hx_shared *shared;
    const struct hx_meeting *meeting; /* NULL: all nodes share memory */
    bool log, quiet;                  /* the job's */
};

typedef int (*hx_node_fn)(struct hx_node *node, void *arg);

struct hx_job {
    const char *name;  /* for messages */
    int nnodes;        /* 1..HX_MAX_NODES */
    double deadline_s; /* 0: HX_LIMIT_S. NB_HARNESS_PATIENCE multiplies it, and the limits of hx_wait and of
                       point-to-point connections. At the deadline the parent kills the nodes that still
                       run, and reports where each of them was */
    hx_node_fn fn; /* runs in every child. 0 is success, HX_SKIP skips the job, any other value fails it */
    void *arg;     /* as it was at the fork: only the node itself sees its changes */
    /* "NAME=value" sets, "NAME" unsets, NULL ends the list. A NULL list is empty. The child applies them
     * before fn: first the harness's defaults (NCCL_SOCKET_IFNAME=lo, NIBBLE_GRAD=all,
     * NIBBLE_WARMUP_STEPS=0), then NB_HARNESS_SETTINGS, then env, then node_env[rank].
     * NB_HARNESS_SETTINGS="A=1 B=2|A=3" runs any test over another transport. Each part between bars is for
     * one node, and after the last part the first comes again. */
    const char *const *env;
    const char *const *node_env[HX_MAX_NODES];
    unsigned dies; /* bit r: a signal must end node r, and every other end is a failure */
    uint64_t seed;
    /* Network namespaces: each node has its own, and a bridge joins them. This needs root, ip and tc, else
     * the result is HX_SKIP. The interface in each node is hx0, to which the harness sets NCCL_SOCKET_IFNAME.
     * Its address is 10.77.0.(rank + 1). */
    bool netns;
    unsigned rate_mbps; /* netns: tbf limit of each node's sending. 0: unlimited */
    unsigned delay_us;  /* netns: one-way delay added to each node's sending (netem). 0: no delay */
    /* Use existing namespaces ("ip netns add") whose names are this prefix and then the rank. NULL: do not.
     * The interface in each is hx0, too. */
    const char *netns_prefix;
    const struct hx_meeting *meeting; /* NULL: this process forks the nodes */
    bool log;                         /* show the nodes' whole log on stderr, too */
    bool quiet;                       /* print no failures: the caller shows the report's reason */
};

struct hx_report {
    bool ok, skipped;
    char reason[1024]; /* why the job failed or was skipped */
    double seconds;
    struct {
        int status;                              /* as from waitpid */
        bool hung;                               /* killed at the deadline */
        char where[160];                         /* last hx_where before the first hx_fail, if any */
        char failure[512];                       /* first hx_fail, "" without one */
        int warns;                               /* WARN lines logged */
        char *log;                               /* all captured lines. "W "/"I "/"T " starts each */
        unsigned char scratch[HX_SCRATCH_BYTES]; /* copy of hx_scratch */
    } node[HX_MAX_NODES];
};

/* Return zeroed memory that this process and the nodes of later jobs see, on several machines, too. There it
 * is one piece, of which the common memory's size is the limit, and all machines must make the same call.
 * Return NULL when there is not enough memory, after printing the reason. */
void *hx_common_memory(size_t bytes);
/* Return the contents after the job, for this process to keep: the memory itself, or on several machines a
 * copy that outlasts the next piece. Return NULL when out of memory. */
void *hx_common_memory_keep(void *memory, size_t bytes);
/* Free memory that hx_common_memory_keep returned. */
void hx_common_memory_free(void *kept, size_t bytes);

/* Fork, run, wait, collect. Return 0 when all nodes ended as expected, HX_SKIP, else 1. `report` may be NULL:
 * a failure goes to stderr in any case. Otherwise free it with hx_report_free. Call from a process without
 * other threads. */
int hx_job_run(const struct hx_job *job, struct hx_report **report);
void hx_report_free(struct hx_report *report);
/* Return 1 when the log of `rank` (-1: of any node) has a line containing both strings. `b` may be NULL. */
int hx_report_has(const struct hx_report *report, int rank, const char *a, const char *b);

/* Record the node's first failure. Print it unless another node has failed with the same text. Return 1, so
 * that `return hx_fail(...)` reads well. Any thread. */
int hx_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Do the same for a call of the plugin that returned `result`, with its first warning here as the cause. */
int hx_fail_by_plugin(const char *what, ncclResult_t result);
#define HX_CHECK(cond, ...) \
    do { \
        if (!(cond)) \
            return hx_fail(__VA_ARGS__); \
    } while (0)
/* Note the node's present action, for the report of a hang. Any thread. */
void hx_where(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Return the node that this process is, NULL in the parent. Any thread. */
struct hx_node *hx_self(void);

/* Wait for all nodes that have not ended. A node that ended by itself or by a signal counts as arrived. */
void hx_barrier(struct hx_node *node);
/* Gather `len` <= 4096 bytes of every node into all[nnodes * len]. The call is a barrier. Ended nodes leave
 * zeros. */
void hx_allgather(struct hx_node *node, const void *mine, size_t len, void *all);
/* Return 1 when `hash` is the same on all nodes that have not ended. The call is a barrier. */
int hx_all_equal(struct hx_node *node, uint64_t hash);
/* One mailbox for each ordered pair of nodes, len <= 4096. put waits until the box is empty, get until it is
 * full. Return 0, or -1 after timeout_s or when the other node has ended. Any thread, one at a time for each
 * box. */
int hx_put(struct hx_node *node, int to, const void *data, size_t len, double timeout_s);
int hx_get(struct hx_node *node, int from, void *data, size_t len, double timeout_s);
/* Wait until the other threads of all nodes have finished their work, as between two steps of a job:
 * confirmations have then arrived. A barrier, and a pause of some milliseconds. */
void hx_settle(struct hx_node *node);
/* Return HX_SCRATCH_BYTES of shared memory of node `rank`, zero at first. The report has a copy. */
void *hx_scratch(struct hx_node *node, int rank);
/* Replace the job's deadline by `seconds` from now. A test of a hang calls it where the hang will be. */
void hx_deadline(struct hx_node *node, double seconds);
/* Return the process id of a node, for a sibling that stops or kills it. */
int hx_pid(struct hx_node *node, int rank);
/* Return 1 when node `rank` has ended. */
int hx_ended(struct hx_node *node, int rank);

/* Return the logger to pass to init. It captures into shared memory, and echoes when NB_HARNESS_VERBOSE is
 * set. */
ncclDebugLogger_t hx_logger(void);
/* Count lines of the own log that contain both strings, or WARN lines. `b` may be NULL. Any thread. */
int hx_log_count(const char *a, const char *b);
int hx_log_warns(void);
/* Do the same with another node's log. */
int hx_log_count_of(struct hx_node *node, int rank, const char *a, const char *b);
/* Copy the first own line that contains `a` into buf, "" without such a line. */
void hx_log_first(const char *a, char *buf, size_t cap);

/* Return seconds of CLOCK_MONOTONIC, which the nodes of a job can compare. Sleep. Any thread. */
double hx_now(void);
void hx_sleep(double seconds);
/* xorshift64*: return the next value of a stream, whose state must not be 0, and a value in [0, n). */
uint64_t hx_rand(uint64_t *state);
uint64_t hx_rand_below(uint64_t *state, uint64_t n);
/* Return a stream that depends on all arguments. */
uint64_t hx_seed(uint64_t a, uint64_t b, uint64_t c);
/* Return this process's address space, threads, descriptors. */
long hx_mapped_kb(void);
int hx_thread_count(void);
int hx_settled_threads(int expected); /* waits a little for joined threads to vanish from the count */
int hx_fd_count(void);

/* Named cases. hx_main runs each in its own fork. */
struct hx_case {
    const char *name;
    int (*run)(void); /* 0 passed, HX_SKIP, else failed */
    unsigned flags;
};
/* A list of settings for hx_job's env, as an argument of a call. */
#define HX_ENV(...) ((const char *const[]){__VA_ARGS__, NULL})
/* A case that is one call. */
#define HX_CASE(name, call) \
    static int name(void) \
    { \
        return call; \
    }
#define HX_CASE_FULL 1u /* not with NB_TEST_QUICK=1 */
#define HX_CASE_LONG 2u /* only with NB_LONG_TESTS=1 */
#define HX_CASE_SLOW 4u /* nor with NB_TEST_QUICK=1 and ThreadSanitizer, where it takes longest */
/* Run the cases named on the command line, or all, without the caller's NIBBLE_* settings, and print one line
 * for each. Return the exit status: 0, 1, or HX_SKIP when no case ran. "-l" lists the cases. */
int hx_main(int argc, char **argv, const struct hx_case *cases, size_t ncases);
/* Define the main function of a program with these cases. */
#define HX_MAIN(...) \
    int main(int argc, char **argv) \
    { \
        static const struct hx_case cases[] = {__VA_ARGS__}; \
        return hx_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0])); \
    }
/* Return 1 when NB_TEST_QUICK is set to another value than 0. */
int hx_quick(void);

/* ================================================================ lib */

struct hx_lib; /* a plugin with its net and CollNet tables */

struct hx_props { /* the parts of ncclNetProperties that all versions have */
    char name[64];
    char pci_path[256];
    uint64_t guid;
    int ptr_support, reg_is_global, force_flush, speed, port, max_comms, max_recvs;
    float latency;
    size_t max_p2p_bytes, max_coll_bytes; /* versions below 9: as NCCL fills them in */
};

/* Return the path of the plugin under test: NB_HARNESS_PLUGIN, else NB_PLUGIN, else the build's. */
const char *hx_plugin_path(void);
/* dlopen `path` (NULL: hx_plugin_path) and take tables of `version` (0: the newest). Return NULL after
 * hx_fail, also when the library lacks one of the two halves in that version. */
struct hx_lib *hx_lib_open(const char *path, int version);
/* Wrap linked-in tables (ncclNet_vN_t, ncclCollNet_vN_t). `net` may be NULL for a job without p2p. */
struct hx_lib *hx_lib_static(const void *net, const void *coll, int version);
/* Close the library. Every context must have been finalized before, which is NCCL's order. */
void hx_lib_close(struct hx_lib *lib);
int hx_lib_version(const struct hx_lib *lib);
/* Return 1 when `path` exports both halves in this version. */
int hx_lib_has(const char *path, int version);

/* Make the calls of NCCL's initialisation: net init, devices, then CollNet init, devices. Versions below 11
 * get init only the first time, as NCCL's compatibility layer does. *ctx holds both contexts. */
struct hx_ctx {
    void *net, *coll;
    int ndev, coll_ndev;
    bool net_ok;  /* net init succeeded */
    bool coll_ok; /* CollNet init and devices succeeded */
};
/* Return the result of the net half. ctx->coll_ok shows a failing CollNet half, as NCCL then goes on without
 * it. */
ncclResult_t hx_init(struct hx_lib *lib, uint64_t comm_id, struct hx_ctx *ctx);
/* Finalize net first, then CollNet. Versions below 11 have no finalize. */
ncclResult_t hx_finalize(struct hx_lib *lib, struct hx_ctx *ctx);

ncclResult_t hx_net_properties(struct hx_lib *lib, int dev, struct hx_props *props);
ncclResult_t hx_net_listen(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **listen);
ncclResult_t hx_net_connect(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **send_comm);
ncclResult_t hx_net_accept(struct hx_lib *lib, void *listen, void **recv_comm);
ncclResult_t hx_net_reg_mr(struct hx_lib *lib, void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t hx_net_dereg_mr(struct hx_lib *lib, void *comm, void *mhandle);
ncclResult_t hx_net_isend(struct hx_lib *lib, void *comm, void *data, size_t size, int tag, void *mhandle,
                          void **request);
ncclResult_t hx_net_irecv(struct hx_lib *lib, void *comm, int n, void **data, const size_t *sizes,
                          const int *tags, void **mhandles, void **request);
ncclResult_t hx_net_iflush(struct hx_lib *lib, void *comm, int n, void **data, const int *sizes,
                           void **mhandles, void **request);
ncclResult_t hx_net_test(struct hx_lib *lib, void *request, int *done, int *sizes);
ncclResult_t hx_net_close_send(struct hx_lib *lib, void *comm);
ncclResult_t hx_net_close_recv(struct hx_lib *lib, void *comm);
ncclResult_t hx_net_close_listen(struct hx_lib *lib, void *listen);

ncclResult_t hx_coll_properties(struct hx_lib *lib, int dev, struct hx_props *props);
ncclResult_t hx_coll_listen(struct hx_lib *lib, struct hx_ctx *ctx, int dev, void *handle, void **listen);
ncclResult_t hx_coll_connect(struct hx_lib *lib, void **handles, int nranks, int rank, void *listen,
                             void **comm);
ncclResult_t hx_coll_reduce_support(struct hx_lib *lib, ncclDataType_t type, ncclRedOp_t op, int *supported);
ncclResult_t hx_coll_reg_mr(struct hx_lib *lib, void *comm, void *data, size_t size, int type,
                            void **mhandle);
ncclResult_t hx_coll_dereg_mr(struct hx_lib *lib, void *comm, void *mhandle);
ncclResult_t hx_coll_iallreduce(struct hx_lib *lib, void *comm, void *send, void *recv, size_t count,
                                ncclDataType_t type, ncclRedOp_t op, void *send_mh, void *recv_mh,
                                void **request);
ncclResult_t hx_coll_iallgather(struct hx_lib *lib, void *comm, void *send, void *recv, size_t recv_bytes,
                                void *recv_mh, size_t bytes_per_rank, size_t offset, size_t bytes,
                                void *send_mh, void **request);
ncclResult_t hx_coll_ireducescatter(struct hx_lib *lib, void *comm, void *send, size_t send_bytes,
                                    void *send_mh, void *recv, size_t bytes_per_rank, size_t offset,
                                    size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mh,
                                    void **request);
ncclResult_t hx_coll_iflush(struct hx_lib *lib, void *comm, void *data, int size, void *mhandle,
                            void **request);
ncclResult_t hx_coll_test(struct hx_lib *lib, void *request, int *done, int *size);
ncclResult_t hx_coll_close(struct hx_lib *lib, void *comm);
ncclResult_t hx_coll_close_listen(struct hx_lib *lib, void *listen);

/* ================================================================ comm */

struct hx_comm;

struct hx_comm_cfg {
    int dev;
    uint64_t comm_id; /* 0: from the job's seed. The same on every node */
    int channels;     /* 0: 2. The size of the region is for so many. An op may use fewer */
    size_t buff_size; /* NCCL_BUFFSIZE. 0: 4 MiB. A slot is buff_size / 8 for each channel */
    size_t chunk;     /* default of ops. 0: buff_size / 8. HX_CHUNK_NCCL: as NCCL halves it for small ops */
    bool flush;       /* call iflush after every window, as GPU-direct does on some machines */
    bool poison;      /* all-reduce: fill the bytes of chunks beyond the vector with NaN patterns and 1e30,
                         or with values 3000 times too large. Otherwise they are stale memory, as in NCCL */
    unsigned gpu_delay_us; /* each fill and each drain waits a random time up to this */
    unsigned stall_every;  /* every n-th drained step of a channel (random phase) is left for stall_ms */
    unsigned stall_ms;
    unsigned idle_us; /* the proxy sleeps so long after 64 passes without progress. 0: longer and longer, 50
                      to 1000. HX_SPIN: the proxy only yields, as NCCL does */
    uint64_t seed;    /* of the delays. 0: from the job's seed. Mixed with the rank */
    /* Makes a receive region in GPU memory, registered as such, as with NCCL_NET_GDR_READ=0. The CPU can
     * reach it. NULL: one region in host memory for both sides. With gpu_sends the send side uses that
     * region, too, and it is the only one, as with GPU-direct for both. */
    void *(*recv_memory)(size_t bytes);
    void (*recv_memory_free)(void *at);
    bool gpu_sends;
};
#define HX_SPIN (~0u)
#define HX_CHUNK_NCCL ((size_t)-1)

/* Bring a communicator up in NCCL's order: init of both halves, equality of their devices, getProperties,
 * listen, exchange of handles, connect (all nodes at the same time), closeListen on success only, region,
 * regMr of the whole region once for each channel and side, reduceSupport, proxy thread. All nodes of the job
 * call it together. On failure return the result of the failing call, set *comm to NULL, undo everything as
 * NCCL does, and name the call in *stage, which may be NULL. */
ncclResult_t hx_comm_open(struct hx_node *node, struct hx_lib *lib, const struct hx_comm_cfg *cfg,
                          struct hx_comm **comm, const char **stage);
/* Let queued operations finish, stop the proxy, deregMr twice, closeColl, finalize net then CollNet. Each
 * node may close at any time. Return the result of the first failing call. */
ncclResult_t hx_comm_close(struct hx_comm *comm);
/* Do the same without waiting for operations: their requests are unfinished at closeColl. They then need no
 * hx_wait, and no thread may be waiting for them. */
ncclResult_t hx_comm_abort(struct hx_comm *comm);

/* For tests that call the plugin themselves while the proxy sleeps. */
void *hx_comm_plugin(struct hx_comm *comm); /* the plugin's collComm */
char *hx_comm_region(struct hx_comm *comm, size_t *size);
void *hx_comm_mhandle(struct hx_comm *comm, bool recv_side);
const struct hx_ctx *hx_comm_ctx(struct hx_comm *comm);
/* Calls made so far: windows posted, refusals (request NULL), tests, flushes. */
struct hx_counts {
    uint64_t calls, refused, tests, flushes, sleeps;
};
void hx_comm_counts(struct hx_comm *comm, struct hx_counts *counts);

/* ================================================================ op */

enum hx_func { HX_REDUCE_SCATTER, HX_ALL_GATHER, HX_ALL_REDUCE };

struct hx_op {
    enum hx_func func;
    ncclDataType_t type;
    ncclRedOp_t op; /* ignored by all-gather */
    size_t count; /* values: of each rank's block (reduce-scatter, all-gather), of the vector (all-reduce) */
    const void *send; /* reduce-scatter: nnodes * count values. all-gather, all-reduce: count */
    void *recv;       /* reduce-scatter: count. all-gather: nnodes * count. all-reduce: count. In place:
                         reduce-scatter recv == send + rank block, all-gather send == recv + rank block
                         (the own block then stays), all-reduce recv == send */
    int channels;     /* 0: the communicator's */
    size_t chunk;     /* 0: the communicator's. A multiple of the type's size, <= buff_size / 8.
                         HX_CHUNK_NCCL */
    unsigned flags;
    /* Called on the proxy thread right before the operation's first window, long after NCCL's Coll event. May
     * be NULL. */
    void (*on_start)(struct hx_op *op, void *arg);
    void *on_start_arg;
    /* Filled in when done. */
    ncclResult_t result;
    double t_post, t_first, t_done; /* hx_now: posted, first call made, last slot drained */
    /* Private to the harness. */
    struct hx_op *next_send, *next_recv;
    void *state;
};
#define HX_OP_NOCOPY 1u /* the simulated GPU touches no data (to measure the plugin alone) */

/* Queue an operation. It and its buffers stay with the harness until hx_wait has returned. Operations of one
 * comm run one after the other in this order, and the send side of the next starts while the receive side of
 * the last drains. Any thread, one at a time for each comm. */
ncclResult_t hx_post(struct hx_comm *comm, struct hx_op *op);
/* Wait for it. Return ncclSuccess, the plugin's error, which every later op of the comm gets too, HX_BROKEN
 * or HX_TIMEOUT, after which the op is still queued. timeout_s 0: no limit. */
ncclResult_t hx_wait(struct hx_comm *comm, struct hx_op *op, double timeout_s);
/* Both. */
ncclResult_t hx_run(struct hx_comm *comm, struct hx_op *op);
/* Return the error that the proxy has stored (ncclCommGetAsyncError). */
ncclResult_t hx_async_error(struct hx_comm *comm);
/* Return the seconds from the first call on any node to completion on the last, the same value on all nodes.
 * The call is a barrier. */
double hx_op_seconds(struct hx_node *node, const struct hx_op *op);

/* ================================================================ p2p */

struct hx_p2p; /* both directions between this node and one peer */

struct hx_p2p_cfg {
    int dev;
    int streams; /* channels sharing the connection, each with its own tag. 0: 1, <= 8 */
    size_t slot; /* bytes of a step. 0: 512 KiB */
    bool flush;
    bool nocopy;
    /* Makes slots in GPU memory, registered as such. Returns their address, and sets *seen to where the
     * harness finds the same bytes. NULL: host memory. */
    void *(*memory)(size_t bytes, void **seen);
    void (*memory_free)(void *at);
};
/* Listen, exchange handles by mailbox, connect and accept until both connections are up. Both nodes call it,
 * at about the same time, and other pairs may do so then, too. ctx comes from hx_init of this lib. Return
 * HX_TIMEOUT after 30 s. */
ncclResult_t hx_p2p_open(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx, int peer,
                         const struct hx_p2p_cfg *cfg, struct hx_p2p **p2p);
/* Send and receive at the same time on the calling thread: streams x 8 steps in flight, receives of all
 * streams grouped in one irecv as far as maxRecvs allows. The peer makes the mirrored call. Sizes may be 0
 * and differ in the two directions. timeout_s 0: no limit. */
ncclResult_t hx_p2p_run(struct hx_p2p *p2p, const void *send, size_t send_bytes, void *recv,
                        size_t recv_bytes, double timeout_s);
ncclResult_t hx_p2p_close(struct hx_p2p *p2p);

/* ================================================================ data */

size_t hx_type_size(ncclDataType_t type); /* 0 when unknown */
const char *hx_type_name(ncclDataType_t type);
bool hx_type_is_float(ncclDataType_t type);
/* Do the same as the functions below up to hx_nmse, for memory of the calling thread. ThreadSanitizer does
 * not watch these. */
/* Load or store value i of an array. Stores round to nearest even, and integers wrap. 64-bit integers lose
 * bits beyond 2^53. */
double hx_load(ncclDataType_t type, const void *buf, size_t i);
void hx_store(ncclDataType_t type, void *buf, size_t i, double value);

enum hx_fill {
    HX_FILL_NORMAL, /* floats: N(0, 1) times a scale that drifts over the vector by a factor of 100.
                       integers: any bits */
    HX_FILL_EXACT,  /* -1, 0, 1: sums of 8 are exact in every type and every order */
    HX_FILL_POW2,   /* +-1, 2, 1/2 (integers: any bits): products of 8 are exact */
    HX_FILL_BITS    /* random bytes */
};
/* Fill n values, the same for the same arguments on every machine. */
void hx_fill(ncclDataType_t type, void *buf, size_t n, uint64_t seed, enum hx_fill kind);
/* Set acc[i] = acc[i] op x[i] over n values of `type`, each result rounded to the type. So exact data stay
 * exact, and integers wrap as they should, of 64 bits, too. Sum, prod, max, min. */
void hx_accumulate(ncclDataType_t type, ncclRedOp_t op, void *acc, const void *x, size_t n);
/* Add x[i] to sum[i] over n values of `type`, and return the sum of their squares. */
double hx_add(ncclDataType_t type, const void *x, size_t n, double *sum);
/* Return the sum of squared differences, and the same over the sum of squares of the reference (0 over 0 is
 * 0). */
double hx_squared_error(const double *ref, ncclDataType_t type, const void *got, size_t n);
double hx_nmse(const double *ref, ncclDataType_t type, const void *got, size_t n);
uint64_t hx_hash(const void *data, size_t bytes);
/* Return the index of the first value that differs bitwise, or -1. */
long hx_first_difference(ncclDataType_t type, const void *a, const void *b, size_t n);

#endif
