/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver made of threads, to put in place of the real one (nb_cuda_override): GPU memory is host
 * memory, a stream is a thread with a queue, the kernel is C. It checks what the real one would punish late
 * or never: a context that is not current, calls outside of relaxed capture mode, memory that is freed twice
 * or never.
 */
#ifndef NIBBLE_TESTS_GPU_FAKE_DRIVER_H
#define NIBBLE_TESTS_GPU_FAKE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/driver.h"

extern const struct nb_cuda fake_driver;

enum fake_memory { FAKE_UNKNOWN, FAKE_PINNED, FAKE_DEVICE }; /* the latter two: CUmemorytype */

struct fake_settings {
    int no_virtual_memory;
    enum fake_memory other; /* what memory is that the driver has not made */
    size_t memory;          /* of the GPU; 0: 256 MiB */
    int major;              /* of its compute capability; 0: 9 */
    int emulate;            /* the kernel's own source on emulated threads, else a C rendering of kernels.h */
    unsigned lazy_us;       /* a kernel begins so late */
    _Atomic int never;      /* a kernel never begins */
    _Atomic int stuck;      /* it begins, and does nothing until it is told to end */
};
extern struct fake_settings fake;

/* From now on call number `nth` (from 1) fails with `code`; 0: none. */
void fake_fail(long nth, nb_cu_result code);
/* From now on this thread may not call the driver (1), or may again (0): it serves what kernels wait for (an engine, a
 * proxy), and a call could wait for these kernels. A call ends the program with its name. */
void fake_serves(int yes);
/* Calls since the last fake_fail, and the name of the one that failed (NULL: none did). */
long fake_calls(void);
const char *fake_failed(void);
/* Things made and not freed: contexts, modules, streams, events, memory. */
long fake_alive(void);
/* What is left now does not count any more. */
void fake_forget(void);
/* Kernels that have begun and ended; blocks of the last. */
unsigned long fake_kernels(void);

/* GPU memory that the CPU does not reach: its address, and *seen where the test finds the same bytes. */
void *fake_gpu_memory(size_t bytes, void **seen);
void fake_gpu_memory_free(void *at);
/* GPU memory that it does reach. */
void *fake_gpu_window(size_t bytes);
void fake_gpu_window_free(void *at);

/* What a job does. A stream that is not ours; a function on it; waiting for all of it. */
nb_cu_stream fake_stream(void);
void fake_stream_free(nb_cu_stream stream);
void fake_run(nb_cu_stream stream, void (*function)(void *), void *argument);
void fake_wait(nb_cu_stream stream);

/* Capture what is given to `stream` and to those that join it. A graph is replayed as a whole: fake_replay
 * returns when everything in it has run. */
struct fake_graph;
void fake_capture(nb_cu_stream stream);
struct fake_graph *fake_capture_end(nb_cu_stream stream);
void fake_replay(struct fake_graph *graph);
void fake_graph_free(struct fake_graph *graph);

#endif
