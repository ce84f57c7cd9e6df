/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where kernels run in a test: emulated on the CPU (backend_emulated.c) or on a GPU (backend_cuda.c), with
 * what both have in common in backend.c. Memory of backend_alloc is addressed alike by both sides. Failures
 * end the program with a message.
 */
#ifndef NIBBLE_TESTS_GPU_BACKEND_H
#define NIBBLE_TESTS_GPU_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* 0, or 77 after a line that says what is missing. */
int backend_open(void);
void backend_close(void);
const char *backend_name(void);
int backend_encodes_differences(void); /* 0: not on this GPU (NB_GPU_NO_DIFFERENCES) */

/* Zeroed, aligned to 256 bytes. The emulated one ends where the buffer ends, so that a sanitizer sees what
 * reads beyond. */
void *backend_alloc(size_t bytes);
void backend_free(void *p);

/* Run the descriptors as one batch: sets ticket, tickets, id, work, scratch, result; fails if nb_gpu_plan
 * does, if one is not finished, or if a workspace is not left zeroed. `result` gets a copy of each one's
 * result. */
void backend_run(struct nb_gpu_desc *desc, size_t count, struct nb_gpu_result *result);

/* ---- What a backend has for backend_run ---- */

/* Memory that only kernels access, aligned to 256 bytes; zeroed, or of any content. */
uint64_t backend_alloc_device(size_t bytes, int zeroed);
void backend_free_device(uint64_t address);
void backend_read_device(void *to, uint64_t from, size_t bytes);
/* Run a batch of descriptors, of which the launch has all but the state, to its end; from call to call with
 * few blocks and many: tickets wait for each other in different ways. */
void backend_launch(struct nb_gpu_launch *launch);

#endif
