/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device over a driver made of threads (gpu/fake_driver.h), and what the tests of its parts share.
 * What fails ends the program with a message. What a real GPU does is not shown by any of it.
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

/* Between fixture_open and fixture_close. */
extern struct nb_context ctx;
extern char last_warning[1024];
extern unsigned warnings;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s; last warning: %s\n", __FILE__, __LINE__, #what, last_warning); \
            abort(); \
        } \
    } while (0)

/* The fake driver, and a context whose settings come from the environment; nothing of CUDA's is set there. */
void fixture_open(void);
void fixture_close(void);
/* Set a variable (NULL: unset it), and read the settings anew. No device is open. */
void settings(const char *name, const char *value);

/* A device for a communicator of NODES nodes on GPU; its parts. */
struct nb_device *open_device(uint64_t comm);
void close_device(struct nb_device *dev);
static inline struct nb_gpu *gpu_of(struct nb_device *dev)
{
    return nb_cuda_of(dev)->gpu;
}

/* Random numbers, the same in each run; n values of about one. */
uint32_t random32(void);
void fill(float *v, size_t n);
/* n bytes are the same. */
void same(const char *what, const void *a, const void *b, size_t n);

/* Buffers of 2 * VALUES floats: of the device's two kinds of memory, and the host's. */
struct buffers {
    struct nb_device *dev;
    float *wire[4], *state[3], *host[4];
};
void make_buffers(struct buffers *b, struct nb_device *dev);
void free_buffers(struct buffers *b);

/* The result of a work, for which a function of the table returned `ret`. */
ssize_t finish(struct nb_device *dev, struct nb_work *w, ssize_t ret);

/* NCCL's kernel of one operation: on the GPU from `begun` until `may_end`. */
struct operation {
    atomic_int begun, may_end, ended;
};
void nccl_kernel(void *operation);
/* Launch it as NCCL does, with a kernel of ours beside it: nb_launch_begin's number, which is not valid any more. */
uint64_t launch(nb_cu_stream stream, uint64_t comm, struct operation *op);
/* The same where nothing of it comes to the engine. */
uint64_t launch_unused(nb_cu_stream stream, uint64_t comm, struct operation *op);
/* What the engine does for an operation whose kernel has begun. */
void serve(struct nb_device *dev, struct buffers *b, unsigned works);

#endif
