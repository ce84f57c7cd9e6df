/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device over a driver made of threads (gpu/fake_driver.h), and the code that the tests of its parts
 * share. A failure ends the program with a message. These tests do not show how a real GPU behaves.
 */
#ifndef NIBBLE_TESTS_DEVICE_CUDA_FIXTURE_H
#define NIBBLE_TESTS_DEVICE_CUDA_FIXTURE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "base/context.h"
#include "device/cuda/cuda.h"
#include "device/cuda/table.h"
#include "tests/gpu/emulate.h" /* NB_TSAN */
#include "tests/gpu/fake_driver.h"

#define GPU 1
#define NODES 3
#define COMM 77u
#define VALUES 20000u
#ifdef NB_TSAN
#define EMULATES 0 /* the emulation changes stacks, which the thread sanitizer does not follow */
#else
#define EMULATES 1
#endif

/* Valid between fixture_open and fixture_close. */
extern struct nb_context ctx;
extern char last_warning[1024], last_info[1024];
extern unsigned warnings;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s; last warning: %s\n", __FILE__, __LINE__, #what, last_warning); \
            abort(); \
        } \
    } while (0)

/* Open the fake driver, and a context whose settings come from the environment, without any setting of
 * CUDA. */
void fixture_open(void);
void fixture_close(void);
/* Set a variable (NULL: unset it), and read the settings anew. All devices must be closed. */
void settings(const char *name, const char *value);

/* Open a device for a communicator of NODES nodes on GPU, and find its parts. */
struct nb_device *open_device(uint64_t comm);
void close_device(struct nb_device *dev);
static inline struct nb_gpu *gpu_of(struct nb_device *dev)
{
    return nb_cuda_of(dev)->gpu;
}

/* Random numbers, the same in each run. Also n values of about one. */
uint32_t random32(void);
void fill(float *v, size_t n);
/* Require that n bytes are the same. */
void same(const char *what, const void *a, const void *b, size_t n);

/* Buffers of 2 * VALUES floats: in the device's two kinds of memory, and in the host's. */
struct buffers {
    struct nb_device *dev;
    float *wire[4], *state[3], *host[4];
};
void make_buffers(struct buffers *b, struct nb_device *dev);
void free_buffers(struct buffers *b);

/* Return the result of work for which a function of the table returned `ret`. */
ssize_t finish(struct nb_device *dev, struct nb_work *w, ssize_t ret);

/* NCCL's kernel of one operation. It is on the GPU from `begun` until `may_end`. */
struct operation {
    atomic_int begun, may_end, ended;
};
void nccl_kernel(void *operation);
enum operations { ALL_REDUCE, GATHER, RING }; /* RING: no window of it comes to the engine */
/* Launch it as NCCL does, with a codec kernel beside it. Return nb_launch_begin's number, which is invalid by
 * then. */
uint64_t launch(nb_cu_stream stream, uint64_t comm, struct operation *op, enum operations what);
/* Do the engine's part for an operation whose kernel has begun. */
void serve(struct nb_device *dev, struct buffers *b, unsigned works);

#endif
