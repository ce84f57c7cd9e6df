/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the launching experiments share: the GPU's context, kernels and board (launch.h), lines of results, and waits that
 * end. One process, one GPU; functions that fail leave the program with a message.
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

/* Open the GPU and load the kernels but nb_late's; each is launched once. `what` stands behind the names of all results:
 * "one connection". Status 0, or 77 after a line that says what is missing. */
int prepare(const char *what);

double now(void); /* seconds */
void nap(void);
void result(const char *status, const char *name, const char *detail);
CUstream stream(int priority);
CUevent event(void);
void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **arguments);
/* Whether all streams are empty within the time; asks, never blocks. */
bool drained(CUstream *streams, unsigned n, double seconds);
/* Let everything go and wait for it; a process whose GPU does not come to rest even then is of no further use, and ends. */
void give_up(CUstream *streams, unsigned n);

/* What a child finds out (launches.c runs them); each a status of a process: ANSWER and bits, or a failure's. */
#define ANSWER 64
/* beside.c: BEHIND_GOES, BEFORE_GOES; `few`: only what depends on the number of hardware queues, and no bits. */
int beside(const char *connections, bool few);
#define BEHIND_GOES 1
#define BEFORE_GOES 2

/* Of launches.c; a function of another name where the program runs in another (tests/gpu/model_launches.c). */
int main(int argc, char **argv);

#endif
