/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver made of threads, in place of the real driver (nb_cuda_override). GPU memory is host memory, a
 * stream is a thread with a queue, and the kernel is C. The fake driver finds mistakes that the real driver
 * punishes late or never: a context that is not current, calls outside of relaxed capture mode, memory that
 * is freed twice or never.
 */
#ifndef NIBBLE_TESTS_GPU_FAKE_DRIVER_H
#define NIBBLE_TESTS_GPU_FAKE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/driver.h"

extern const struct nb_cuda fake_driver;

enum fake_memory { FAKE_UNKNOWN, FAKE_PINNED, FAKE_DEVICE }; /* the last two are values of CUmemorytype */

struct fake_settings {
    int no_virtual_memory;
    enum fake_memory other; /* the kind of memory that the driver did not allocate */
    size_t memory;          /* bytes of GPU memory, 0: 256 MiB */
    int version;            /* of the driver's CUDA, 0: 13000 */
    int multiprocessors;    /* 0: 8 */
    int major;              /* major number of the compute capability, 0: 9 */
    int emulate;            /* 1: the kernel's own source on emulated threads, 0: a C rendering of
                               kernels.h */
    int no_dmabuf;          /* no descriptors for GPU memory */
    void (*waiting)(void);  /* called by calls that may wait for kernels or for other calls: memory that is
                               made, pinned or set, streams that are waited for. NULL: nothing */
    unsigned lazy_us;       /* delay before a kernel begins */
    _Atomic int never;      /* a kernel never begins */
    _Atomic int stuck;      /* a kernel begins but idles until it is told to end */
    int blocking;           /* streams wait for the legacy stream */
    int no_update;          /* an executable graph cannot take another graph */
    int invalidated;        /* each capture is spoiled by another thread's call */
};
extern struct fake_settings fake;

/* Make call number `nth` from now, counted from 1, fail with `code`. 0 lets all calls succeed. */
void fake_fail(long nth, nb_cu_result code);
/* Forbid this thread to call the driver with 1, or allow it again with 0. Such a thread serves the things
 * that kernels wait for, as an engine or a proxy does, and a call could wait for these kernels. A forbidden
 * call ends the program with the call's name. */
void fake_serves(int yes);
/* Return the calls since the last fake_fail, and the name of the call that failed. NULL: all succeeded. */
long fake_calls(void);
const char *fake_failed(void);
/* Return the number of objects that are not freed: contexts, modules, streams, events, memory. */
long fake_alive(void);
/* Stop counting the objects that are left now. */
void fake_forget(void);
/* Return the bytes of GPU memory that are mapped on demand. */
size_t fake_created(void);
/* Return the number of kernels that began and ended, and the blocks of the last kernel. */
unsigned long fake_kernels(void);

/* Allocate GPU memory outside the CPU's reach. Return its address, and in *seen where the test finds the same
 * bytes. */
void *fake_gpu_memory(size_t bytes, void **seen);
void fake_gpu_memory_free(void *at);
/* Allocate GPU memory that the CPU reaches. */
void *fake_gpu_window(size_t bytes);
void fake_gpu_window_free(void *at);

/* Play the job: make a stream of its own, run a function on it, wait for the whole stream. */
nb_cu_stream fake_stream(void);
void fake_stream_free(nb_cu_stream stream);
void fake_run(nb_cu_stream stream, void (*function)(void *), void *argument);
void fake_wait(nb_cu_stream stream);

/* Capture the work of `stream` and of the streams that join it. fake_replay runs a whole graph and returns
 * when all its work has run. */
struct fake_graph;
void fake_capture(nb_cu_stream stream);
struct fake_graph *fake_capture_end(nb_cu_stream stream);
void fake_replay(struct fake_graph *graph);
void fake_graph_free(struct fake_graph *graph);

#endif
