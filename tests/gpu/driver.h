/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little of the CUDA driver that the tests need, opened at run time, so that they build anywhere. A
 * failing call ends the program with a message.
 */
#ifndef NIBBLE_TESTS_GPU_DRIVER_H
#define NIBBLE_TESTS_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Of the program that is linked with it; a function of another name where that runs in another (model_speed.c). */
int main(int argc, char **argv);

/* Open the driver, the first device and the kernel. 0, or 77 after a line that says what is missing. */
int driver_open(void);
void driver_close(void);
const char *driver_device(void); /* its name */
unsigned driver_multiprocessors(void);
int driver_major(void); /* of its compute capability */

uint64_t driver_alloc(size_t bytes);      /* device memory, zeroed */
void *driver_alloc_managed(size_t bytes); /* memory of both sides, zeroed */
void *driver_alloc_pinned(size_t bytes);  /* host memory that the GPU sees at the same address, zeroed */
void driver_free(uint64_t address);
void driver_write(uint64_t to, const void *from, size_t bytes);
void driver_read(void *to, uint64_t from, size_t bytes);
void driver_copy(uint64_t to, uint64_t from, size_t bytes); /* device to device, not waited for */
void driver_launch(const struct nb_gpu_launch *launch, unsigned blocks);
void driver_wait(void);

/* Time between two points of the stream, in seconds. */
void driver_start(void);
double driver_stop(void);

#endif
