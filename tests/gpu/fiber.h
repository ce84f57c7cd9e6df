/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers: functions with a stack each that take turns within one thread of the operating system, for the
 * emulated GPU's threads (emulate.c) and the model's host threads (model_host.c). A fiber belongs to the thread
 * that runs it first; no call takes a lock or wakes anybody.
 */
#ifndef NIBBLE_TESTS_GPU_FIBER_H
#define NIBBLE_TESTS_GPU_FIBER_H

#include <setjmp.h>
#include <stddef.h>
#include <ucontext.h>

#if defined(__SANITIZE_THREAD__)
#define NB_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NB_TSAN 1
#endif
#endif

#ifdef NB_TSAN
/* The thread sanitizer keeps one stack of calls for each thread of the operating system, on which the fibers'
 * calls would be mixed. It counts calls and returns, so functions that are left by a switch and may never return
 * do not take part. */
#define NB_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define NB_UNSEEN
#endif

/* Zeroed before use. A fiber of zeros that nb_fiber_open has not seen stands for the calling thread and its own
 * stack. */
struct nb_fiber {
    ucontext_t begin; /* where it runs first */
    jmp_buf resume;   /* where it goes on */
    void (*run)(void);
    void *memory; /* its stack; owned */
    int begun;
    const void *stack; /* what the address sanitizer knows of it */
    size_t size;
    void *frames;
};

/* Gives the fiber a stack of 256 KiB. `run` is called at the first switch to it and never returns: it ends by
 * nb_fiber_leave or sleeps in a switch for ever. Aborts where there is no memory. */
void nb_fiber_open(struct nb_fiber *f, void (*run)(void));

/* Frees the stack. The fiber may be asleep anywhere, but does not run. */
void nb_fiber_close(struct nb_fiber *f);

/* `from`, the one that runs, sleeps until somebody switches to it; `to` goes on. */
void nb_fiber_switch(struct nb_fiber *from, struct nb_fiber *to);

/* The same for a fiber to which nobody will switch again. */
void nb_fiber_leave(struct nb_fiber *from, struct nb_fiber *to) __attribute__((noreturn));

#endif
