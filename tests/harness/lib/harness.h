/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proxy harness: drives a network plugin on one machine exactly as NCCL's host code does, without NCCL and
 * without a GPU. Used by the programs of tests/harness and by the tools that measure and train.
 *
 *   job     N forked processes, one a "node", with a barrier, mailboxes and log capture in shared memory
 *   lib     the plugin: loaded by dlopen or linked in, any table version from 8 to 12, behind one API
 *   comm    a CollNet communicator brought up and torn down in NCCL's order, with its proxy thread
 *   op      reduce-scatter, all-gather or all-reduce, cut into windows and steps by NCCL's formulas
 *   p2p     a pair of point-to-point connections driven like NCCL's net proxy
 *   data    types, fills, references and measures of error; own code, nothing of the plugin's
 *
 * The proxy follows transport/coll_net.cc of NCCL 2.30 (sendProxyProgress, recvProxyProgress and the offset
 * formulas) step by step: a refused call is retried without testing that group, nothing is called while no
 * operation is active, only the proxy thread calls i* and test. The GPU is simulated inside the proxy thread
 * between two passes: it fills send slots from the user's buffer and drains receive slots into the result.
 *
 * Unless said otherwise a function may be called by the node's main thread only, sizes are bytes, and NULL or
 * a negative value means failure after a line on stderr (see hx_fail).
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
/* Limits, so far away that only what hangs reaches them, whatever else the machine has to do: of a job, and
 * of what is waited for within one. Where a test shows that a setting's time was not waited for, it sets it
 * to HX_LONG. */
#define HX_LIMIT_S 3600.0
#define HX_SOON_S 2400.0
#define HX_LONG "7200" /* seconds */
/* Results of our own beside NCCL's. */
#define HX_TIMEOUT ((ncclResult_t)100) /* hx_wait: not finished in time */
#define HX_BROKEN ((ncclResult_t)101)  /* the plugin broke the contract; the reason was given to hx_fail */

/* ================================================================ job */

/* On several machines (virtual ones that share memory: tests/vm) a program runs on each at the same time with
 * the same arguments; NB_HARNESS_HOST tells which of them it is, "0/2", and NB_HARNESS_MEMORY the file of the
 * common memory. Node r then runs on machine r modulo their number. Namespaces, and signals between nodes,
 * are for one machine only. */

struct hx_shared; /* the job's shared memory */

/* Or on machines that share nothing (tools/perf): this process runs node `rank` alone, and what is gathered
 * goes through `gather`: `len` bytes of every node into all[nnodes * len], 0, or -1 when a node is gone.
 * Mailboxes, scratch memory, logs and ends of other nodes are not seen then, the environment is the caller's
 * but for the job's `env`, and warnings go to stderr. */
struct hx_meeting {
    int rank;
    int (*gather)(void *arg, const void *mine, size_t len, void *all);
    void *arg;
};

/* A node's view of the job; made by hx_job_run, passed to the node function. */
struct hx_node {
    int rank, nnodes;
    uint64_t seed; /* the job's; the same on every node */
    struct hx_shared *shared;
    const struct hx_meeting *meeting; /* NULL: all nodes share memory */
};

typedef int (*hx_node_fn)(struct hx_node *node, void *arg);

struct hx_job {
    const char *name; /* for messages */
    int nnodes;       /* 1..HX_MAX_NODES */
    double
        deadline_s; /* 0: HX_LIMIT_S; NB_HARNESS_PATIENCE multiplies it, as it does the limits of hx_wait and
                        * of point-to-point connections. Nodes still running then are killed and
                        * reported with where they were */
    hx_node_fn fn;  /* runs in every child; 0 is success, HX_SKIP skips the job, anything else fails it */
    void *arg;      /* as it was at the fork; changes made by a node are seen by that node alone */
    /* "NAME=value" sets, "NAME" unsets; NULL ends the list; NULL list is empty. Applied in the child before
     * fn: first the harness' defaults (NCCL_SOCKET_IFNAME=lo, NIBBLE_GRAD=all, NIBBLE_WARMUP_STEPS=0), then
     * NB_HARNESS_SETTINGS, then env, then node_env[rank]. NB_HARNESS_SETTINGS="A=1 B=2|A=3" runs any test
     * over another transport: what stands between bars is for one node, the first part again after the
     * last. */
    const char *const *env;
    const char *const *node_env[HX_MAX_NODES];
    unsigned dies; /* bit r: node r is meant to end by a signal, and every other end is a failure */
    uint64_t seed;
    /* Network namespaces: each node in its own, joined by a bridge. Needs root, ip and tc, else HX_SKIP. The
     * interface in each node is called hx0 (NCCL_SOCKET_IFNAME is set to it), its address 10.77.0.(rank + 1).
     */
    bool netns;
    unsigned rate_mbps; /* netns: tbf limit of each node's sending; 0: none */
    unsigned delay_us;  /* netns: one-way delay added to each node's sending (netem); 0: none */
    /* Or namespaces that exist already ("ip netns add"), called so and then the rank; NULL: none. The
     * interface in each is hx0, too. */
    const char *netns_prefix;
    const struct hx_meeting *meeting; /* NULL: nodes are forked here */
};

struct hx_report {
    bool ok, skipped;
    char reason[512]; /* why it failed or was skipped */
    double seconds;
    struct {
        int status;                              /* as from waitpid */
        bool hung;                               /* killed at the deadline */
        char where[160];                         /* last hx_where */
        char failure[512];                       /* first hx_fail, "" when none */
        int warns;                               /* WARN lines logged */
        char *log;                               /* all captured lines; "W "/"I "/"T " starts each */
        unsigned char scratch[HX_SCRATCH_BYTES]; /* copy of hx_scratch */
    } node[HX_MAX_NODES];
};

/* Memory of zeros that the nodes of the jobs to come see, and this process, on several machines too: there it
 * is one piece, of which the common memory's size is the limit, and all machines have to ask for it alike.
 * NULL: none to be had; the reason is printed. */
void *hx_common_memory(size_t bytes);
/* What it holds after the job, for this process to keep: the memory itself, or (several machines) a copy that
 * outlasts the next piece. NULL: out of memory. */
void *hx_common_memory_keep(void *memory, size_t bytes);
/* Frees what hx_common_memory_keep has given. */
void hx_common_memory_free(void *kept, size_t bytes);

/* Fork, run, wait, collect. 0 when all nodes did what was expected of them, HX_SKIP, else 1. `report` may be
 * NULL (a failure is printed to stderr in any case); else free it with hx_report_free. Call from a process
 * without other threads. */
int hx_job_run(const struct hx_job *job, struct hx_report **report);
void hx_report_free(struct hx_report *report);
/* 1 when the log of `rank` (-1: of any node) has a line containing both strings (the second may be NULL). */
int hx_report_has(const struct hx_report *report, int rank, const char *a, const char *b);

/* Any thread. Record the node's first failure and print it; returns 1 so that `return hx_fail(...)` reads
 * well. */
int hx_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define HX_CHECK(cond, ...) \
    do { \
        if (!(cond)) \
            return hx_fail(__VA_ARGS__); \
    } while (0)
/* Any thread. What this node is doing, for the report of a hang. */
void hx_where(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The node this process is, or NULL in the parent. Any thread. */
struct hx_node *hx_self(void);

/* Wait for all nodes that have not ended (a node that ended by itself or by a signal counts as arrived). */
void hx_barrier(struct hx_node *node);
/* Gather `len` <= 4096 bytes of every node into all[nnodes * len]; a barrier. Ended nodes leave zeros. */
void hx_allgather(struct hx_node *node, const void *mine, size_t len, void *all);
/* 1 when `hash` is the same on all nodes that have not ended; a barrier. */
int hx_all_equal(struct hx_node *node, uint64_t hash);
/* One mailbox for each ordered pair of nodes, len <= 4096. put waits until the box is empty, get until it is
 * full. 0, or -1 after timeout_s or when the other node has ended. Any thread, one at a time for each box. */
int hx_put(struct hx_node *node, int to, const void *data, size_t len, double timeout_s);
int hx_get(struct hx_node *node, int from, void *data, size_t len, double timeout_s);
/* Wait until what the nodes' other threads have to do is done, as it is between two steps of a job:
 * confirmations have arrived. A barrier, and a pause of some milliseconds. */
void hx_settle(struct hx_node *node);
/* HX_SCRATCH_BYTES of shared memory of node `rank`, zero at first; comes back in the report. */
void *hx_scratch(struct hx_node *node, int rank);
/* Instead of the job's deadline: so many seconds from now. For tests of what hangs: called where it will. */
void hx_deadline(struct hx_node *node, double seconds);
/* Process id of a node (of a sibling, to stop or kill it). */
int hx_pid(struct hx_node *node, int rank);
/* 1 when node `rank` has ended. */
int hx_ended(struct hx_node *node, int rank);

/* The logger to hand to init; captures into shared memory and echoes when NB_HARNESS_VERBOSE is set. */
ncclDebugLogger_t hx_logger(void);
/* Own log so far: lines that contain both strings (b may be NULL), or WARN lines. Any thread. */
int hx_log_count(const char *a, const char *b);
int hx_log_warns(void);
/* The same of another node's log. */
int hx_log_count_of(struct hx_node *node, int rank, const char *a, const char *b);
/* The first own line that contains `a` into buf ("" when there is none). */
void hx_log_first(const char *a, char *buf, size_t cap);

/* Seconds of CLOCK_MONOTONIC (comparable between the nodes of a job), and sleeping. Any thread. */
double hx_now(void);
void hx_sleep(double seconds);
/* xorshift64*: the next value of a stream (state must not be 0), and one in [0, n). */
uint64_t hx_rand(uint64_t *state);
uint64_t hx_rand_below(uint64_t *state, uint64_t n);
/* A stream that depends on all arguments. */
uint64_t hx_seed(uint64_t a, uint64_t b, uint64_t c);
/* Of this process: its address space, threads, descriptors. */
long hx_mapped_kb(void);
int hx_thread_count(void);
int hx_settled_threads(int expected); /* waits a little for joined threads to vanish from the count */
int hx_fd_count(void);

/* Named cases, each run in its own fork by hx_main. */
struct hx_case {
    const char *name;
    int (*run)(void); /* 0 passed, HX_SKIP, else failed */
    unsigned flags;
};
/* A case that is one call. */
#define HX_CASE(name, call) \
    static int name(void) \
    { \
        return call; \
    }
#define HX_CASE_FULL 1u /* not with NB_TEST_QUICK=1 */
#define HX_CASE_LONG 2u /* only with NB_LONG_TESTS=1 */
/* Run the cases named on the command line, or all, without the caller's NIBBLE_* settings; prints one line
 * each. Exit status: 0, 1, or HX_SKIP when nothing ran. "-l" lists. */
int hx_main(int argc, char **argv, const struct hx_case *cases, size_t ncases);
/* The main function of a program with these cases. */
#define HX_MAIN(...) \
    int main(int argc, char **argv) \
    { \
        static const struct hx_case cases[] = {__VA_ARGS__}; \
        return hx_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0])); \
    }
/* 1 when NB_TEST_QUICK is set to something other than 0. */
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

/* Path of the plugin under test: NB_HARNESS_PLUGIN, else NB_PLUGIN, else the build's. */
const char *hx_plugin_path(void);
/* dlopen `path` (NULL: hx_plugin_path) and take tables of `version` (0: the newest). NULL after hx_fail, also
 * when the library lacks one of the two halves in that version. */
struct hx_lib *hx_lib_open(const char *path, int version);
/* Wrap linked-in tables (ncclNet_vN_t, ncclCollNet_vN_t). `net` may be NULL when no p2p is used. */
struct hx_lib *hx_lib_static(const void *net, const void *coll, int version);
/* dlclose. Every context must have been finalized before (NCCL's order). */
void hx_lib_close(struct hx_lib *lib);
int hx_lib_version(const struct hx_lib *lib);
/* 1 when `path` exports both halves in this version. */
int hx_lib_has(const char *path, int version);

/* The calls of NCCL's initialisation: net init, devices; CollNet init, devices. Versions below 11 get init
 * only the first time, as NCCL's compatibility layer does. *ctx holds both contexts. */
struct hx_ctx {
    void *net, *coll;
    int ndev, coll_ndev;
    bool net_ok;  /* net init succeeded */
    bool coll_ok; /* CollNet init and devices succeeded */
};
/* Result of the net half; a failing CollNet half shows in ctx->coll_ok, as NCCL then goes on without it. */
ncclResult_t hx_init(struct hx_lib *lib, uint64_t comm_id, struct hx_ctx *ctx);
/* Net first, then CollNet; nothing for versions below 11. */
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
    uint64_t comm_id; /* 0: from the job's seed; the same on every node */
    int channels;     /* 0: 2. The region is sized for so many; an op may use fewer */
    size_t buff_size; /* NCCL_BUFFSIZE; 0: 4 MiB. A slot is buff_size / 8 for each channel */
    size_t chunk;     /* default of ops; 0: buff_size / 8; HX_CHUNK_NCCL: as NCCL halves it for small ops */
    bool flush;       /* call iflush after every window, as GPU-direct does on some machines */
    bool poison;      /* all-reduce: fill what chunks hold beyond the vector with NaN patterns and 1e30, or
                       * with values 3000 times too large (else it is stale memory, as in NCCL) */
    unsigned gpu_delay_us; /* each fill and each drain waits a random time up to this */
    unsigned stall_every;  /* every n-th drained step of a channel (random phase) is left for stall_ms */
    unsigned stall_ms;
    unsigned
        idle_us;   /* the proxy sleeps so long after 64 passes without progress; 0: longer and longer, 50 to
                       * 1000. HX_SPIN: never, it yields only, as NCCL does */
    uint64_t seed; /* of the delays; 0: from the job's seed. Mixed with the rank */
    /* What is received goes to a region of its own in GPU memory, registered as such, as with
     * NCCL_NET_GDR_READ=0; this makes it, and the CPU reaches it. NULL: one region in host memory for both.
     * With gpu_sends what is sent lies in that region, too, and there is no other one, as with GPU-direct for
     * both. */
    void *(*recv_memory)(size_t bytes);
    void (*recv_memory_free)(void *at);
    bool gpu_sends;
};
#define HX_SPIN (~0u)
#define HX_CHUNK_NCCL ((size_t)-1)

/* Bring-up in NCCL's order: init of both halves, equality of their devices, getProperties, listen, exchange
 * of handles, connect (all nodes at the same time), closeListen on success only, region, regMr of the whole
 * region once for each channel and side, reduceSupport, proxy thread. Collective over all nodes of the job.
 * On failure the result of the failing call, *comm NULL, everything undone as NCCL does, and *stage (may be
 * NULL) names the call. */
ncclResult_t hx_comm_open(struct hx_node *node, struct hx_lib *lib, const struct hx_comm_cfg *cfg,
                          struct hx_comm **comm, const char **stage);
/* Let queued operations finish, stop the proxy, deregMr twice, closeColl, finalize net then CollNet. Not
 * collective: nodes close when they like. Result of the first failing call. */
ncclResult_t hx_comm_close(struct hx_comm *comm);
/* The same without waiting for operations: their requests are unfinished when closeColl is called. They need
 * no hx_wait any more, and nobody may be waiting for them. */
ncclResult_t hx_comm_abort(struct hx_comm *comm);

/* For tests that call the plugin themselves while the proxy is asleep. */
void *hx_comm_plugin(struct hx_comm *comm); /* the plugin's collComm */
char *hx_comm_region(struct hx_comm *comm, size_t *size);
void *hx_comm_mhandle(struct hx_comm *comm, bool recv_side);
const struct hx_ctx *hx_comm_ctx(struct hx_comm *comm);
/* Calls made so far: windows handed over, refusals (request NULL), tests, flushes. */
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
    const void *send; /* reduce-scatter: nnodes * count values; all-gather: count; all-reduce: count */
    void *recv;       /* reduce-scatter: count; all-gather: nnodes * count; all-reduce: count.
                       * In place: reduce-scatter recv == send + rank block, all-gather send == recv + rank
                       * block (the own block is then not overwritten), all-reduce recv == send */
    int channels;     /* 0: the communicator's */
    size_t chunk;     /* 0: the communicator's; a multiple of the type's size, <= buff_size / 8;
                       * HX_CHUNK_NCCL */
    unsigned flags;
    /* Called on the proxy thread right before the operation's first window, where NCCL's Coll event has long
     * been fired; NULL for none. */
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

/* Queue an operation; it and its buffers stay with the harness until hx_wait has returned. Operations of one
 * comm run one after the other in this order, the send side of the next one starting while the receive side
 * of the last one drains. Any thread, one at a time for each comm. */
ncclResult_t hx_post(struct hx_comm *comm, struct hx_op *op);
/* Wait for it: ncclSuccess, the plugin's error (which every later op of the comm gets too), HX_BROKEN or
 * HX_TIMEOUT (the op is still queued then). timeout_s 0: no limit. */
ncclResult_t hx_wait(struct hx_comm *comm, struct hx_op *op, double timeout_s);
/* Both. */
ncclResult_t hx_run(struct hx_comm *comm, struct hx_op *op);
/* The error the proxy has stored (ncclCommGetAsyncError). */
ncclResult_t hx_async_error(struct hx_comm *comm);
/* Seconds from the first call on any node to completion on the last; a barrier, the same value on all nodes.
 */
double hx_op_seconds(struct hx_node *node, const struct hx_op *op);

/* ================================================================ p2p */

struct hx_p2p; /* both directions between this node and one peer */

struct hx_p2p_cfg {
    int dev;
    int streams; /* channels sharing the connection, each with its own tag; 0: 1, <= 8 */
    size_t slot; /* bytes of a step; 0: 512 KiB */
    bool flush;
    bool nocopy;
    /* Slots lie in GPU memory, registered as such, that `memory` makes: its address, and *seen where the
     * harness finds the same bytes. NULL: host memory. */
    void *(*memory)(size_t bytes, void **seen);
    void (*memory_free)(void *at);
};
/* Listen, exchange handles by mailbox, connect and accept until both stand. Both nodes call it, at about the
 * same time; other pairs may do so at the same time. ctx from hx_init of this lib. HX_TIMEOUT after 30 s. */
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
/* Like the functions below up to hx_nmse, for memory of the calling thread: ThreadSanitizer does not watch
 * them. */
/* Value i of an array. Stores round to nearest even; integers wrap. 64-bit integers lose bits beyond 2^53. */
double hx_load(ncclDataType_t type, const void *buf, size_t i);
void hx_store(ncclDataType_t type, void *buf, size_t i, double value);

enum hx_fill {
    HX_FILL_NORMAL, /* floats: N(0, 1) times a scale that drifts over the vector by a factor of 100; integers:
                       bits */
    HX_FILL_EXACT,  /* -1, 0, 1: sums of 8 are exact in every type and every order */
    HX_FILL_POW2,   /* +-1, 2, 1/2 (integers: any bits): products of 8 are exact */
    HX_FILL_BITS    /* random bytes */
};
/* Fill n values, the same for the same arguments on every machine. */
void hx_fill(ncclDataType_t type, void *buf, size_t n, uint64_t seed, enum hx_fill kind);
/* acc[i] = acc[i] op x[i] over n values of `type`, each result rounded to the type (so exact data stay exact,
 * and integers wrap as they should, 64 bits too). Sum, prod, max, min. */
void hx_accumulate(ncclDataType_t type, ncclRedOp_t op, void *acc, const void *x, size_t n);
/* sum[i] += x[i] over n values of `type`; returns the sum of their squares. */
double hx_add(ncclDataType_t type, const void *x, size_t n, double *sum);
/* Sum of squared differences, and that over the sum of squares of the reference (0 over 0 is 0). */
double hx_squared_error(const double *ref, ncclDataType_t type, const void *got, size_t n);
double hx_nmse(const double *ref, ncclDataType_t type, const void *got, size_t n);
uint64_t hx_hash(const void *data, size_t bytes);
/* Index of the first value that differs bitwise, or -1. */
long hx_first_difference(ncclDataType_t type, const void *a, const void *b, size_t n);

#endif
