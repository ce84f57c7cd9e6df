/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where kernels run in a test: emulated on the CPU (backend_emulated.c) or on a GPU (backend_cuda.c).
 * backend.c has the code that both share. CPU and kernels see memory of backend_alloc at the same address. A
 * failure ends the program with a message.
 */
#ifndef NIBBLE_TESTS_GPU_BACKEND_H
#define NIBBLE_TESTS_GPU_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Open the backend. Return 0, or print a line that names the missing part and return 77. */
int backend_open(void);
void backend_close(void);
const char *backend_name(void);
int backend_encodes_differences(void); /* 0: this GPU does not encode differences (NB_GPU_NO_DIFFERENCES) */

/* Allocate zeroed memory, aligned to 256 bytes. The emulated memory ends where the buffer ends, so that a
 * sanitizer sees reads beyond it. */
void *backend_alloc(size_t bytes);
void backend_free(void *p);

/* Run the descriptors as one batch. The function sets ticket, tickets, id, work, scratch and result. It fails
 * when nb_gpu_plan fails, when a descriptor is unfinished, or when a workspace is not left zeroed. Copy each
 * descriptor's result to `result`. */
void backend_run(struct nb_gpu_desc *desc, size_t count, struct nb_gpu_result *result);

/* ---- Functions that each backend provides for backend_run ---- */

/* Allocate memory that only kernels access, aligned to 256 bytes. Without `zeroed` its content is
 * arbitrary. */
uint64_t backend_alloc_device(size_t bytes, int zeroed);
void backend_free_device(uint64_t address);
void backend_read_device(void *to, uint64_t from, size_t bytes);
/* Run a batch of descriptors to its end. The launch has everything but the state. Calls alternate between few
 * and many blocks, because tickets then wait for each other in different ways. */
void backend_launch(struct nb_gpu_launch *launch);

#endif
