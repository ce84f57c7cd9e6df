/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fibers: functions with a stack each that take turns within one thread of the operating system. The emulated
 * GPU's threads are fibers (emulate.c), and so are the model's host threads (model_host.c). A fiber belongs
 * to the thread that runs it first. No call takes a lock or wakes another thread.
 */
#ifndef NIBBLE_TESTS_GPU_FIBER_H
#define NIBBLE_TESTS_GPU_FIBER_H

#include <stddef.h>

#ifdef __x86_64__
#define NB_FIBER_STACK 1
#else
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define NB_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NB_TSAN 1
#endif
#endif

#ifdef NB_TSAN
/* The thread sanitizer keeps one stack of calls for each thread of the operating system, on which it would
 * mix the fibers' calls. It counts calls and returns. A function that a switch leaves may never return, so
 * such functions are hidden from it. */
#define NB_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define NB_UNSEEN
#endif

/* A fiber. Zero it before use. A zeroed fiber that nb_fiber_open has not seen stands for the calling thread
 * and its own stack. */
struct nb_fiber {
#ifdef NB_FIBER_STACK
    void *top; /* of its stack, where its registers are while it sleeps */
#else
    ucontext_t context;
#endif
    void (*run)(void);
    void *memory;      /* its own stack */
    const void *stack; /* the address sanitizer's data about it */
    size_t size;
    void *frames;
};

/* Give the fiber a stack of 256 KiB. The first switch to the fiber calls `run`, which never returns: it ends
 * by nb_fiber_leave or sleeps in a switch for ever. Abort where memory runs out. */
void nb_fiber_open(struct nb_fiber *f, void (*run)(void));

/* Free the stack. The fiber must not run, but may be asleep anywhere. */
void nb_fiber_close(struct nb_fiber *f);

/* Put the running fiber `from` to sleep until another fiber switches to it, and continue `to`. */
void nb_fiber_switch(struct nb_fiber *from, struct nb_fiber *to);

/* End the running fiber `from` and continue `to`. Later switches to `from` are forbidden. */
void nb_fiber_leave(struct nb_fiber *from, struct nb_fiber *to) __attribute__((noreturn));

#endif
