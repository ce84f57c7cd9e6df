/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of GPUs, of the CUDA driver and of the host threads that call it, in virtual time and in one thread
 * of the operating system: it stops where the real thing would stop, and says why. Everything follows from a
 * seed.
 *
 *   model_host.c    host threads (fibers), their mutexes, the clock, the watchdog
 *   model_gpu.c     streams, hardware queues, multiprocessors, kernels
 *   model_calls.c   what host threads call: contexts and their locks, waits for the GPU, launches
 *   model_graph.c   events and graphs
 *   model_driver.c  the table of the driver (device/cuda/driver.c), so that the plugin's own code runs over it
 *   model_codec.c   the codec kernel's side of its ring (kernels/kernels.h)
 *
 * What the model takes for granted, each with its source. "GPU" is what only a GPU can confirm, with the part of
 * gpu-check that does or would.
 *
 *   A1  A stream is mapped to one of the hardware queues when it is made, by turns (CUDA_DEVICE_MAX_CONNECTIONS,
 *       CUDA C++ programming guide, "CUDA environment variables"). By turns: GPU (`experiments`, streams held up).
 *   A2  A queue is served in order. What waits for an event, for the operation before it in its stream or (a memset)
 *       for its own beginning blocks what stands behind it, of whatever stream. A kernel leaves the queue when it may
 *       begin. Seen on an H100 for events and memsets (`experiments`, `hazards` overlap). Not explained: there, with one
 *       queue, a kernel did not start behind one stream that waits, but did behind 40 (docs/results/2026-11-22-gpu-h100);
 *       GPU (`experiments`, streams held up, with one connection: which).
 *   A3  An event without timing that is recorded blocks nothing: it stands for the last operation of its stream.
 *       Only its waiters block. Seen on an H100 with one queue (docs/results/2026-11-22-gpu-h100, experiments: launch
 *       beside an operation, behind which one is recorded); GPU (`experiments`, an event behind one that waits).
 *   A4  The first launch of a kernel loads it: it takes the context's lock and waits until all that was submitted is
 *       done (CUDA C++ programming guide, "lazy loading", possible issues: concurrent execution). Seen on an H100:
 *       1518 ms beside a collective whose peer was 1.5 s late. With CUDA_MODULE_LOADING=EAGER it does not.
 *   A5  NCCL's first launch of a kernel waits for the GPU even so (H100, docs/results/2026-11-22-gpu-h100.md, 1: not
 *       what in it waits).
 *   A6  While the lock is held every other call that is given work or memory waits: launches, events, memory, and
 *       cuPointerGetAttribute. Calls about the thread (contexts, capture mode) do not. GPU (`experiments`, beside a load
 *       that waits: each call).
 *   A7  cudaFree, cudaMalloc's return to the system and page-locked allocation wait for the device
 *       (programming guide, "implicit synchronization"). Virtual memory calls (cuMemMap ...) do not. GPU
 *       (`experiments`, beside a kernel that waits: each call).
 *   A8  The legacy stream waits for all blocking streams, and they for it; non-blocking ones do not (programming
 *       guide, "default stream").
 *   A9  A kernel's blocks are placed breadth-first where registers, threads, shared memory and slots allow; of one
 *       priority in the order in which the kernels left their queues, and one that does not fit makes those behind it
 *       wait. Occupancy limits: programming guide, "compute capabilities". Order: GPU (`experiments`, full GPU).
 *   A10 A graph's branches are submitted in any order, each to a queue of its own as long as there are any (the guide
 *       promises neither).
 *   A11 A round trip over PCIe takes 1.5 us, a call of the driver 2 to 6 us. GPU (`ring`).
 *   A12 The context's lock goes to callers in the order in which they came. GPU (`experiments`, launches
 *       of several threads behind a load); `unfair` is the contrary.
 */
#ifndef NIBBLE_TESTS_GPU_MODEL_H
#define NIBBLE_TESTS_GPU_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/driver.h"
#include "tests/gpu/fiber.h" /* NB_TSAN */

#define MODEL_GPUS 2
#define MODEL_SECOND INT64_C(1000000000)
#define MODEL_MS INT64_C(1000000)
#define MODEL_US INT64_C(1000)

struct model_settings {
    unsigned queues;   /* hardware queues of each GPU (A1); 0: 8 */
    unsigned sms;      /* multiprocessors; 0: 132 */
    uint64_t seed;     /* of all that is random: who runs next, how long calls take, what ends first */
    int eager;         /* kernels are loaded with their module (A4) */
    int unfair;        /* the context's lock goes to who came last: the contrary of A12 */
    int records_block; /* an event that is recorded blocks its queue: the contrary of A3 */
    int branches; /* a graph's branches are submitted: 0 as captured, 1 one by one, 2 the last first, 3 by the seed (A10) */
    int64_t patience; /* virtual time without any movement, after which the model is stuck; 0: 5 s */
};

/* ---- A run --------------------------------------------------------------------------------------------- */

/* Between these two the calling thread of the operating system may call everything below. One run at a time. */
void model_open(const struct model_settings *settings);
void model_close(void);

/* Run until all threads but the waiting helpers (MODEL_BESIDE) have ended: NULL. Or what waits for what, in a circle
 * where there is one, else all that waits; the text lives until model_close. Then nothing of this run may be
 * touched any more but model_close. */
const char *model_run(void);

int64_t model_now(void);
uint64_t model_random(uint64_t below);
/* Something has moved: the watchdog begins anew. Kernels that end and threads that end do so by themselves. */
void model_moved(void);

/* ---- Host threads -------------------------------------------------------------------------------------- */

enum model_role {
    MODEL_JOB, /* the job's: it may wait for the GPU */
    MODEL_SERVES, /* the engine's and NCCL's proxy: what a kernel may wait for. After model_connected it calls no driver */
    MODEL_BESIDE, /* nobody waits for it */
};

struct model_thread;
struct model_thread *model_thread(const char *name, enum model_role role, void (*main)(void *),
                                  void *argument);
/* From now on a driver call of a thread that serves ends the run with its name. */
void model_connected(int yes);

/* On a thread of the model. `ready` is asked again and again; `who` (a model_thread or model_kernel;
 * NULL: nobody) makes it so, and `what` says for what. Sleeping is not movement. */
void model_sleep(int64_t ns);
void model_wait(int (*ready)(void *), void *argument, const void *who, const char *what);
void model_join(struct model_thread *thread);

/* ---- Kernels of the job's and NCCL's ------------------------------------------------------------------- */

struct model_kernel {
    int kind; /* 0 */
    const char *name;
    unsigned blocks, threads, registers, shared; /* registers: of a thread; shared: bytes of a block */
    int64_t ns;                                  /* a block takes so long; 0: until `done` says so */
    int (*done)(void *argument);                 /* asked while all blocks are placed */
    void *argument;
    const void *const
        *waits;       /* list, ended by NULL, of what it waits for until it is done; for the watchdog */
    const char *what; /* ... and for what; NULL: "what it waits for" */
    int *loaded;      /* [MODEL_GPUS]: 0 makes the launch load it (A4); NULL: it is */
    int *grown;       /* [MODEL_GPUS]: 0 makes the launch wait for the GPU (A5); NULL: never */
    const struct model_thread *launcher; /* who will launch it, while nobody has; NULL: not known */
    int aside;                           /* its end is no movement: it may come and go for ever */
    int begun, over;                     /* all its blocks are placed; it has ended */
    void *op;                            /* the model's */
};

/* Launch it on a stream. `kernel` stays until it has ended. */
void model_launch(nb_cu_stream stream, struct model_kernel *kernel);

/* Streams and events as a job has them; on the GPU whose context is current (model_current). */
nb_cu_stream model_stream(int priority);
void model_current(int gpu);
nb_cu_context model_context(int gpu);
void model_record(nb_cu_event event, nb_cu_stream stream);
nb_cu_event model_event(void);
void model_stream_waits(nb_cu_stream stream, nb_cu_event event);
void model_set(nb_cu_stream stream, uint32_t *word, uint32_t value); /* a memset of one word */
/* Waiting on the host: for a stream, for all of the GPU (cudaDeviceSynchronize), in cudaFree. */
void model_synchronize(nb_cu_stream stream);
void model_synchronize_device(void);
void model_free(void);
nb_cu_stream model_legacy(void);

/* Capture what is given to `stream` and those that join it; run the graph on a stream. */
struct model_graph;
void model_capture(nb_cu_stream stream);
struct model_graph *model_capture_end(nb_cu_stream stream);
void model_replay(struct model_graph *graph, nb_cu_stream stream);

/* ---- The driver ---------------------------------------------------------------------------------------- */

extern const struct nb_cuda model_driver;

/* Names for the watchdog: what ring's codec kernel is called, and what it waits for until it is told to end. */
void model_name_codec(const void *host_ring, const char *name, const void *const *waits);
/* Ends the program, with the name of the first, where a thread that serves has called the driver since model_connected. */
void model_none_forbidden(void);
/* So many launches of codec kernels later one fails; 0: none. Of a run: after model_open. */
extern unsigned model_fails;
/* The most descriptors that a round of the codec kernel's carrying block takes; 0: all that are published, as kernel.cuh has it. */
extern unsigned model_carries;

#endif
