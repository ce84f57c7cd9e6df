/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the launching experiments: the GPU's context, kernels and board (launch.h), lines of results, and
 * waits with an end. One process, one GPU. A function that fails ends the program with a message.
 */
#ifndef NIBBLE_TOOLS_GPU_CHECK_EXPERIMENT_H
#define NIBBLE_TOOLS_GPU_CHECK_EXPERIMENT_H

#include <stdbool.h>

#include "tools/gpu-check/driver.h"
#include "tools/gpu-check/launch.h"

#define KERNEL_SECONDS 10u /* a kernel's own limit */
#define WAIT_SECONDS 6.0   /* after which the host releases all kernels */

extern CUcontext context;
extern CUmodule kernels;
extern CUfunction hold, mark, fill, operation, resident, codec;
extern struct nb_board *board;
extern uint64_t board_gpu, counters, limit_ns;
extern int processors, least, greatest; /* multiprocessors; priorities of streams */

/* Open the GPU, load the kernels except nb_late's, and launch each once. `what` follows the names of all
 * results: "one connection". Return 0, or 77 after a line that names the missing part. */
int prepare(const char *what);

double now(void); /* seconds */
void nap(void);
void result(const char *status, const char *name, const char *detail);
CUstream stream(int priority);
CUevent event(void);
void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **arguments);
/* Return whether all streams are empty within the time. The function polls and never blocks. */
bool drained(CUstream *streams, unsigned n, double seconds);
/* Release all kernels and wait for them. If the GPU stays busy even then, the process is useless, and
 * ends. */
void give_up(CUstream *streams, unsigned n);

/* Results of a child (launches.c runs them): each is a process status of ANSWER and bits, or a failure's. */
#define ANSWER 64
/* beside.c: BEHIND_GOES, BEFORE_GOES. `few`: only the questions that depend on the number of hardware queues,
 * without bits. */
int beside(const char *connections, bool few);
#define BEHIND_GOES 1
#define BEFORE_GOES 2

/* together.c: the codec's kernel and NCCL's as two roots of one graph. */
int together(const char *connections);
#define TOGETHER_STARTS 1   /* both run, also while another thread loads, frees and page-locks */
#define TOGETHER_OVERLAPS 2 /* a kernel of another stream runs beside a waiting operation */

/* Of launches.c. Under another name where the program runs inside another one
 * (tests/gpu/model_launches.c). */
int main(int argc, char **argv);

#endif
