/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switch stacks. See fiber.h. setcontext enters a fiber once. After that _setjmp leaves it and _longjmp
 * enters it. Unlike swapcontext they make no system call for the signal mask: the kernels' tests switch some
 * hundred million times.
 */

/* The checked longjmp of glibc takes a jump to another stack for a mistake. */
#undef _FORTIFY_SOURCE
#include "tests/gpu/fiber.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define NB_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NB_ASAN 1
#endif
#endif
#ifdef NB_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK (256u << 10)

/* The fiber that switched last, and the fiber to which it switched. */
static _Thread_local struct {
    struct nb_fiber *from, *to;
} last;

/* Tell the address sanitizer which stack this is, and learn from it where the thread came from. Only the
 * sanitizer knows the bounds of a thread's own stack. */
static NB_UNSEEN void arrive(void)
{
#ifdef NB_ASAN
    __sanitizer_finish_switch_fiber(last.to->frames, &last.from->stack, &last.from->size);
#endif
}

static NB_UNSEEN void enter(void)
{
    arrive();
    last.to->run();
    abort();
}

void nb_fiber_open(struct nb_fiber *f, void (*run)(void))
{
    f->run = run;
    f->memory = malloc(STACK);
    if (!f->memory || getcontext(&f->begin))
        abort();
    f->stack = f->memory;
    f->size = STACK;
    f->begin.uc_stack.ss_sp = f->memory;
    f->begin.uc_stack.ss_size = STACK;
    f->begin.uc_link = NULL;
    makecontext(&f->begin, enter, 0);
}

void nb_fiber_close(struct nb_fiber *f)
{
    free(f->memory);
    f->memory = NULL;
}

static NB_UNSEEN void depart(struct nb_fiber *from, struct nb_fiber *to, void **frames)
{
    last.from = from;
    last.to = to;
#ifdef NB_ASAN
    __sanitizer_start_switch_fiber(frames, to->stack, to->size);
#else
    (void)frames;
#endif
}

#ifdef NB_TSAN
/* The thread sanitizer keeps a list of jump targets by the addresses of one stack. */
static NB_UNSEEN void change(struct nb_fiber *from, struct nb_fiber *to)
{
    swapcontext(&from->begin, &to->begin);
}
#else
static void change(struct nb_fiber *from, struct nb_fiber *to)
{
    if (_setjmp(from->resume))
        return;
    from->begun = 1;
    if (to->begun)
        _longjmp(to->resume, 1);
    setcontext(&to->begin);
    abort();
}
#endif

NB_UNSEEN void nb_fiber_switch(struct nb_fiber *from, struct nb_fiber *to)
{
    depart(from, to, &from->frames);
    change(from, to);
    arrive();
}

NB_UNSEEN void nb_fiber_leave(struct nb_fiber *from, struct nb_fiber *to)
{
    depart(from, to, NULL);
    change(from, to);
    abort();
}
