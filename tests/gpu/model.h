/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of GPUs, of the CUDA driver and of the host threads that call it, in virtual time and in one thread
 * of the operating system. It stops where the real system would hang, and says why. A seed determines
 * everything.
 *
 *   model_host.c    host threads (fibers), their mutexes, the clock, the watchdog
 *   model_gpu.c     streams, hardware queues, multiprocessors, kernels
 *   model_calls.c   calls of host threads: contexts and their locks, waits for the GPU, launches
 *   model_graph.c   events and graphs
 *   model_driver.c  the driver's table (device/cuda/driver.c), so that the plugin's own code runs over it
 *   model_codec.c   the codec kernel's side of its ring (kernels/kernels.h)
 *
 * The model's assumptions, each with its source. "GPU" marks an assumption that only a GPU can confirm, with
 * the part of gpu-check that does or would.
 *
 *   A1  A stream gets one of the hardware queues when it is made, by turns (CUDA_DEVICE_MAX_CONNECTIONS,
 *       CUDA C++ programming guide, "CUDA environment variables"). By turns: GPU (`experiments`, streams
 *       held up).
 *   A2  A queue is served in order. An item that waits for an event, for the operation before it in its
 *       stream or (a memset) for its own beginning blocks the items behind it, of any stream. A kernel
 *       leaves the queue when it may begin. Seen on an H100 for events and memsets (`experiments`,
 *       `hazards` overlap). Without an explanation: on that GPU, with one queue, a kernel started behind
 *       one waiting stream, but waited behind 40 (docs/results/2026-11-22-gpu-h100). GPU (`experiments`,
 *       streams held up, with one connection: which).
 *   A3  A recorded event without timing blocks no item: it stands for the last operation of its stream.
 *       Only its waiters block. Seen on an H100 with one queue (docs/results/2026-11-22-gpu-h100,
 *       experiments: launch beside an operation, behind which one is recorded). GPU (`experiments`, an
 *       event behind one that waits).
 *   A4  The first launch of a kernel loads it. It takes the context's lock and waits until all submitted
 *       work is done (CUDA C++ programming guide, "lazy loading", possible issues: concurrent execution).
 *       Seen on an H100: 1518 ms beside a collective whose peer was 1.5 s late. With
 *       CUDA_MODULE_LOADING=EAGER the launch does not wait.
 *   A5  NCCL's first launch of a kernel waits for the GPU even then (H100,
 *       docs/results/2026-11-22-gpu-h100.md, 1). Which part of the launch waits is unknown.
 *   A6  While the lock is held, all other calls with work or memory wait: launches, events, memory, and
 *       cuPointerGetAttribute. Calls about the thread (contexts, capture mode) return. GPU (`experiments`,
 *       beside a load that waits: each call).
 *   A7  cudaFree, cudaMalloc's return to the system and page-locked allocation wait for the device
 *       (programming guide, "implicit synchronization"). Virtual memory calls (cuMemMap ...) return. GPU
 *       (`experiments`, beside a kernel that waits: each call).
 *   A8  The legacy stream waits for all blocking streams, and they wait for it. Non-blocking streams run
 *       beside it (programming guide, "default stream").
 *   A9  A kernel's blocks are placed breadth-first where registers, threads, shared memory and slots allow.
 *       Kernels of one priority follow the order in which they left their queues. A kernel that finds no
 *       room makes the kernels behind it wait. Occupancy limits: programming guide, "compute capabilities".
 *       Order: GPU (`experiments`, full GPU).
 *   A10 A graph's branches are submitted in any order, each to a queue of its own while queues last (the
 *       guide promises no order and no queues). With one queue nodes are submitted in the order of their
 *       capture: seen on an H100 (docs/results/2026-11-26-gpu-h100.md, a mark behind the operation). Edges
 *       that no node follows in their branch block no queue (seen there, too).
 *   A11 A round trip over PCIe takes 1.5 us, a call of the driver 2 to 6 us. GPU (`ring`).
 *   A12 Callers get the context's lock in the order of their requests. GPU (`experiments`, launches of
 *       several threads behind a load). `unfair` is the contrary.
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
    unsigned queues;   /* hardware queues of each GPU (A1), 0: 8 */
    unsigned sms;      /* multiprocessors, 0: 132 */
    uint64_t seed;     /* seed of all that is random: the next thread to run, the time of calls, the first
                          to end */
    int eager;         /* kernels are loaded with their module (A4) */
    int unfair;        /* the last caller gets the context's lock: the contrary of A12 */
    int records_block; /* a recorded event blocks its queue: the contrary of A3 */
    int branches; /* order of a graph's branches (A10): 0 as captured, 1 one by one, 2 the last first, 3 by
                     the seed */
    int64_t patience; /* virtual time without any movement, after which the model is stuck. 0: 5 s */
};

/* ---- A run --------------------------------------------------------------------------------------------- */

/* Open and close a run. Between the two calls the calling thread of the operating system may call all
 * functions below. Only one run at a time. */
void model_open(const struct model_settings *settings);
void model_close(void);

/* Run until all threads but the waiting helpers (MODEL_BESIDE) have ended, and return NULL. Or return the
 * text of a circle of waits, or of all waits where the model finds no circle. The text lives until
 * model_close, which is then the only call allowed. */
const char *model_run(void);

int64_t model_now(void);
uint64_t model_random(uint64_t below);
/* Tell the watchdog about a movement: it begins anew. It notices the ends of kernels and threads by
 * itself. */
void model_moved(void);

/* ---- Host threads -------------------------------------------------------------------------------------- */

enum model_role {
    MODEL_JOB,    /* a thread of the job: it may wait for the GPU */
    MODEL_SERVES, /* the engine and NCCL's proxy: kernels may wait for it. After model_connected it must
                     not call the driver */
    MODEL_BESIDE, /* a helper for which no thread waits */
};

struct model_thread;
struct model_thread *model_thread(const char *name, enum model_role role, void (*main)(void *),
                                  void *argument);
/* From now on a driver call of a serving thread ends the run with the call's name. */
void model_connected(int yes);

/* Sleep, or wait, on a thread of the model. The model polls `ready`. `who` (a model_thread or model_kernel,
 * or NULL) makes it ready, and `what` names the awaited thing. Sleeping is not movement. */
void model_sleep(int64_t ns);
void model_wait(int (*ready)(void *), void *argument, const void *who, const char *what);
void model_join(struct model_thread *thread);

/* ---- Kernels of the job and of NCCL -------------------------------------------------------------------- */

struct model_kernel {
    int kind; /* always 0 */
    const char *name;
    unsigned blocks, threads, registers, shared; /* registers of a thread, shared bytes of a block */
    int64_t ns;                                  /* time of a block, 0: until `done` returns 1 */
    int (*done)(void *argument);                 /* polled while all blocks are placed */
    void *argument;
    const void *const
        *waits;       /* for the watchdog: list of the things for which it waits until it is done, ended by
                         NULL */
    const char *what; /* ... and their description, NULL: "what it waits for" */
    int *loaded;      /* [MODEL_GPUS]: 0 makes the launch load it (A4), NULL: it is loaded */
    int *grown;       /* [MODEL_GPUS]: 0 makes the launch wait for the GPU (A5), NULL: it never waits */
    const struct model_thread *launcher; /* the thread that will launch it, until the launch. NULL: unknown */
    int aside;                           /* its end is no movement: it may come and go for ever */
    int begun, over;                     /* all its blocks are placed, it has ended */
    void *op;                            /* used by the model */
};

/* Launch a kernel on a stream. Keep `kernel` until it has ended. */
void model_launch(nb_cu_stream stream, struct model_kernel *kernel);

/* Make streams and events as a job does, on the GPU whose context is current (model_current). */
nb_cu_stream model_stream(int priority);
void model_current(int gpu);
nb_cu_context model_context(int gpu);
void model_record(nb_cu_event event, nb_cu_stream stream);
nb_cu_event model_event(void);
void model_stream_waits(nb_cu_stream stream, nb_cu_event event);
void model_set(nb_cu_stream stream, uint32_t *word, uint32_t value); /* a memset of one word */
/* Wait on the host: for a stream, for the whole GPU (cudaDeviceSynchronize), in cudaFree. */
void model_synchronize(nb_cu_stream stream);
void model_synchronize_device(void);
void model_free(void);
nb_cu_stream model_legacy(void);

/* Capture the work of `stream` and of the streams that join it, and run the graph on a stream. */
struct model_graph;
void model_capture(nb_cu_stream stream);
struct model_graph *model_capture_end(nb_cu_stream stream);
void model_replay(struct model_graph *graph, nb_cu_stream stream);

/* ---- The driver ---------------------------------------------------------------------------------------- */

extern const struct nb_cuda model_driver;

/* Give the watchdog names: of a ring's codec kernel, and of the things for which it waits until it is told to
 * end. */
void model_name_codec(const void *host_ring, const char *name, const void *const *waits);
/* End the program where a serving thread has called the driver since model_connected, with the name of the
 * first call. */
void model_none_forbidden(void);
/* Number of launches of codec kernels until one fails, 0: none fails. Set it after model_open, for one
 * run. */
extern unsigned model_fails;
/* Most descriptors that the codec kernel's carrying block takes in a round. 0: all published ones, as in
 * kernel.cuh. */
extern unsigned model_carries;

#endif
