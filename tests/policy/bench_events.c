/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure the cost of profiler events and tuner questions to NCCL's threads, in nanoseconds each, alone and
 * with other threads at the same queue. Also measure the search for the caller. Argument: rounds (default
 * 1000000).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/process.h"
#include "base/clock.h"
#include "base/context.h"
#include "events.h"
#include "nibble/nccl_tuner.h"
#include "policy/reckon/reckon.h"
#include "policy/records/records.h"
#include "torch_stack.h"

extern const ncclProfiler_v7_t ncclProfiler_v7;

static long rounds = 1000000;

struct result {
    struct ev_comm comm;
    double call_ns, launch_ns;
};

static void *produce(void *arg)
{
    struct result *r = arg;
    struct ev_op o = {.func = EV_REDUCE_SCATTER, .type = "ncclBfloat16", .type_bytes = 2, .count = 4096};
    uint64_t calls = 0, launches = 0;

    for (long i = 0; i < rounds; i += 64) {
        struct ev_op batch[64];
        uint64_t t0 = nb_now_ns(), t1;
        for (int k = 0; k < 64; k++) {
            batch[k] = o;
            ev_call(&ncclProfiler_v7, &r->comm, &batch[k]);
        }
        t1 = nb_now_ns();
        for (int k = 0; k < 64; k++)
            ev_launch(&ncclProfiler_v7, &r->comm, &batch[k], 1);
        launches += nb_now_ns() - t1;
        calls += t1 - t0;
    }
    r->call_ns = (double)calls / (double)rounds;
    r->launch_ns = (double)launches / (double)rounds;
    return NULL;
}

static volatile int stop;

static void *consume(void *arg)
{
    struct nb_record r[32];

    while (!stop)
        nb_queue_take(arg, r, 32);
    return NULL;
}

static void producers(struct nb_queue *queue, int n)
{
    struct result r[4];
    pthread_t thread[4], consumer;
    double call = 0, launch = 0;

    stop = 0;
    pthread_create(&consumer, NULL, consume, queue);
    for (int i = 0; i < n; i++)
        ev_open(&ncclProfiler_v7, &r[i].comm, 1 + (uint64_t)i, 2, 2, 0);
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, produce, &r[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        ev_close(&ncclProfiler_v7, &r[i].comm);
        call += r[i].call_ns / n;
        launch += r[i].launch_ns / n;
    }
    stop = 1;
    pthread_join(consumer, NULL);
    printf("%d producing thread%s: user's call (start and stop) %.0f ns, launch %.0f ns\n", n,
           n == 1 ? "" : "s", call, launch);
}

/* ---- finding the caller -------------------------------------------------------------------------------- */

static void look(void *arg)
{
    const long n = rounds / 100;
    uint64_t t0;

    nb_stack_caller(); /* looks up symbols once */
    t0 = nb_now_ns();
    for (long i = 0; i < n; i++)
        *(volatile int *)arg = (int)nb_stack_caller();
    printf("%.0f ns (caller %d)\n", (double)(nb_now_ns() - t0) / (double)n, *(int *)arg);
}

/* Measure with `between` frames between the call and the frame that decides. Each takes two of the program's
 * own frames. */
static void frames(const char *what, enum torch_function outermost, unsigned between)
{
    enum torch_function f[8] = {outermost};
    int caller = 0;

    for (unsigned i = 0; i < between; i++)
        f[1 + i] = TORCH_USED;
    printf("who calls: %s, %u frames between: ", what, 2 * between);
    torch_call(f, 1 + between, look, &caller);
}

int main(int argc, char **argv)
{
    struct nb_context *ctx = nb_process_context();
    struct nb_queue *queue = nb_queue_get(ctx, 1, -1);
    struct nb_tuning tuning = {.params = ctx->params, .nranks = 16, .nnodes = 2, .records = 1};
    float table[7][3];
    uint64_t t0;

    if (argc > 1)
        rounds = atol(argv[1]);
    if (rounds < 64 || !queue || nb_queue_attach(queue, 2))
        return 1;
    producers(queue, 1);
    producers(queue, 2);
    t0 = nb_now_ns();
    for (long i = 0; i < rounds; i++) {
        for (int a = 0; a < 7; a++)
            for (int p = 0; p < 3; p++)
                table[a][p] = (float)(a + p + i % 3);
        nb_tuning_costs(&tuning, ncclFuncReduceScatter, 1 << 24, &table[0][0], 7, 3);
    }
    printf("tuner's answer %.0f ns\n", (double)(nb_now_ns() - t0) / (double)rounds);
    frames("DDP's reducer", TORCH_BUCKET, 4);
    frames("a script", TORCH_PYTHON, 7);
    nb_queue_detach(queue);
    nb_queue_put(queue);
    return 0;
}
