/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the sources of the proxy harness share: the layout of the job's shared memory, the
 * communicator with its proxy state, and small helpers. Tests do not include it.
 */
#ifndef NIBBLE_TESTS_HARNESS_INTERNAL_H
#define NIBBLE_TESTS_HARNESS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "harness.h"

/* hx_rand for loops. */
static inline uint64_t hx_next_random(uint64_t *state)
{
    uint64_t x = *state;

    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Dull;
}

#define HX_LOG_BYTES (256u << 10)
#define HX_MAX_HOSTS 2
#define HX_BOX_BYTES 4096u

struct hx_box { /* mailbox of one ordered pair of nodes */
    atomic_int full;
    size_t len;
    unsigned char data[HX_BOX_BYTES];
};

struct hx_shared_node {
    atomic_int pid;
    atomic_int ended;     /* set by the parent once it has reaped the node */
    int status, hung;     /* set before */
    atomic_int wired;     /* netns: the parent has moved the node's interface */
    atomic_ulong arrived; /* barriers reached */
    atomic_int failed;
    atomic_int warns;
    char where[160];
    char failure[512], failed_where[160]; /* of the first hx_fail */
    unsigned char gather[HX_BOX_BYTES];
    unsigned char scratch[HX_SCRATCH_BYTES];
    atomic_uint log_len;
    char log[HX_LOG_BYTES]; /* whole lines, each ends in a newline. When it is full, later lines are
                               dropped */
};

struct hx_shared {
    atomic_llong deadline_ms; /* of hx_deadline. 0: the job's */
    struct hx_shared_node node[HX_MAX_NODES];
    struct hx_box box[HX_MAX_NODES][HX_MAX_NODES]; /* [from][to] */
};

/* Variables of the tests themselves. The harness reads them before the fork. Nodes do not have them in their
 * environment, because the plugin refuses unknown names that begin with NIBBLE_. */
struct hx_env {
    char plugin[1024];   /* NB_HARNESS_PLUGIN or NB_PLUGIN, "" when unset */
    int verbose;         /* NB_HARNESS_VERBOSE */
    int quick;           /* NB_TEST_QUICK */
    int long_tests;      /* NB_LONG_TESTS */
    char settings[1024]; /* NB_HARNESS_SETTINGS (harness.h), "" when unset */
    double patience;     /* NB_HARNESS_PATIENCE, which multiplies deadlines on slow machines. 1 when unset */
    int host, hosts;     /* NB_HARNESS_HOST, "0/2": the first of two machines. 0 and 1 when unset */
    char host_memory[256]; /* NB_HARNESS_MEMORY: file of the memory that the machines share */
};
const struct hx_env *hx_env_read(void);
void hx_env_hide(void);
/* Remove every NIBBLE_* variable, so that tests do not depend on the caller's. */
void hx_env_forget_settings(void);

/* The child sets it. NULL in the parent. */
extern struct hx_node *hx_this_node;

/* hosts.c. Return a job's shared memory, zero. Return NULL when it is unavailable, with a line on stderr when
 * another machine does not come. Several machines share it, and all have come when the call returns. */
struct hx_shared *hx_hosts_begin(void);
void hx_hosts_end(struct hx_shared *shared);
/* Return whether node `rank` runs on this machine. */
bool hx_hosts_here(int rank);

/* netns.c. All return 0, or HX_SKIP/1 after a line on stderr. `saved` is the namespace to return to. */
int hx_netns_begin(const struct hx_job *job, int *saved, char *reason, size_t cap);
int hx_netns_child(void);                                         /* in the node, before it is wired */
int hx_netns_wire(const struct hx_job *job, int rank, pid_t pid); /* parent */
int hx_netns_child_up(const struct hx_job *job, int rank,
                      atomic_int *wired); /* in the node, waits for wired */
void hx_netns_end(int saved);
int hx_netns_join(const struct hx_job *job, int rank); /* in the node */

/* ---- proxy ---- */

#define HX_DIV_UP(a, b) (((a) + (b)-1) / (b))

struct hx_req_slot {
    bool send_turn; /* the region's slot belongs to the send side, else to the receive side */
    ssize_t size;
};

struct hx_fifo { /* one side of a channel, between proxy and GPU (ncclRecvMem, ncclSendMem) */
    uint64_t head, tail;
    struct {
        ssize_t offset, size; /* size -1: empty, the GPU has not filled it */
    } slot[HX_STEPS];
};

struct hx_channel { /* sendResources and recvResources of one channel */
    struct hx_fifo send, recv;
    uint64_t send_step, recv_step; /* resources->step of either side */
    struct hx_req_slot fifo[HX_MAX_CHANNELS / HX_CALL_CHANNELS][HX_STEPS];
    /* the GPU's own place */
    uint64_t gpu_send_step, gpu_recv_step;
    double fill_at, drain_at; /* earliest times. 0: not drawn yet */
};

struct hx_sub {
    uint64_t base, posted, received, flushed, transmitted, done;
    void *requests[HX_STEPS];
};

enum hx_side_state { HX_SIDE_READY, HX_SIDE_RUNNING, HX_SIDE_DONE };

struct hx_side {
    enum hx_side_state state;
    struct hx_sub sub[HX_MAX_CHANNELS];
    bool idle;
};

struct hx_op_state {
    struct hx_op *op;
    int nsubs;
    size_t chunk;
    size_t elem;
    size_t size_per_rank; /* bytes */
    size_t bytes;         /* all-reduce: of the vector */
    uint64_t nsteps;
    struct hx_side send, recv;
    /* the GPU's kernel */
    uint64_t filled[HX_MAX_CHANNELS], drained[HX_MAX_CHANNELS];
    uint64_t gpu_send_base[HX_MAX_CHANNELS], gpu_recv_base[HX_MAX_CHANNELS];
    bool gpu_started, gpu_done;
    bool started;  /* first call made */
    bool finished; /* under the comm's lock */
    struct hx_op *next_gpu;
    struct hx_op_state *next_open; /* under the comm's lock */
};

struct hx_comm {
    struct hx_node *node;
    struct hx_lib *lib;
    struct hx_comm_cfg cfg;
    struct hx_ctx ctx;
    struct hx_props props;
    int nchannels;
    ssize_t slot_size; /* buff_size / 8 */
    void *plugin;      /* collComm */
    char *region;
    char *recv_region; /* of the same size, or the same region */
    size_t region_size;
    void *send_mh[HX_MAX_CHANNELS], *recv_mh[HX_MAX_CHANNELS]; /* one for each channel, as NCCL registers */

    struct hx_channel channel[HX_MAX_CHANNELS];
    uint64_t rng;
    unsigned drained_steps, stall_phase;
    bool poison_large; /* alternates between operations */

    /* The proxy thread owns these: the two chains, and the GPU's stream. */
    struct hx_op *send_head, *send_tail, *recv_head, *recv_tail, *gpu_head, *gpu_tail;

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t wake;                /* to the proxy: posted or stop */
    pthread_cond_t done;                /* to waiters */
    struct hx_op *posted, *posted_tail; /* under lock, linked by next_send */
    struct hx_op_state *open;           /* under lock: operations without an hx_wait so far */
    bool stop, abort;
    ncclResult_t async; /* under lock */
    struct hx_counts counts;
};

/* NCCL's formulas (calcAlgoOffset, calcRegionOffset). */
size_t hx_algo_offset(const struct hx_comm *c, const struct hx_op_state *s, bool all, int sub, uint64_t step);
ssize_t hx_region_offset(const struct hx_comm *c, const struct hx_op_state *s, bool recv, int sub,
                         uint64_t step, int side);
/* Return the chunk that NCCL would choose (calcCollChunking for CollNet-direct with one GPU in a node). */
size_t hx_nccl_chunk(size_t total_bytes, int nchannels, size_t buff_size);
/* Make one pass of the simulated GPU over all channels of the operation at the head of its stream. Return
 * true when the GPU made progress. */
bool hx_gpu_pass(struct hx_comm *c);
/* Start and stop the proxy thread. */
int hx_proxy_start(struct hx_comm *c);
void hx_proxy_stop(struct hx_comm *c, bool abort);

#endif
