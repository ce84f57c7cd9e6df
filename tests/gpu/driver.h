/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few functions of the CUDA driver that the tests need. They are opened at run time, so that the tests
 * build on any machine. A failing call ends the program with a message.
 */
#ifndef NIBBLE_TESTS_GPU_DRIVER_H
#define NIBBLE_TESTS_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* The main of the program that is linked with this file. A program that runs inside another one has it under
 * another name (model_speed.c). */
int main(int argc, char **argv);

/* Open the driver, the first device and the kernel. Return 0, or print a line that names the missing part and
 * return 77. */
int driver_open(void);
void driver_close(void);
const char *driver_device(void); /* the device's name */
unsigned driver_multiprocessors(void);
int driver_major(void); /* major number of its compute capability */

uint64_t driver_alloc(size_t bytes);      /* device memory, zeroed */
void *driver_alloc_managed(size_t bytes); /* zeroed memory that CPU and GPU access */
void *driver_alloc_pinned(size_t bytes);  /* zeroed host memory that the GPU sees at the same address */
void driver_free(uint64_t address);
void driver_write(uint64_t to, const void *from, size_t bytes);
void driver_read(void *to, uint64_t from, size_t bytes);
void driver_copy(uint64_t to, uint64_t from, size_t bytes); /* device to device, returns at once */
extern unsigned driver_teams; /* of a block. Set before driver_open, which lowers it to what the GPU allows */
void driver_launch(const struct nb_gpu_launch *launch, unsigned blocks);
void driver_wait(void);

/* Measure the time between two points of the stream, in seconds. */
void driver_start(void);
double driver_stop(void);

#endif
