/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switch stacks. See fiber.h. The kernels' tests switch some hundred million times, so on x86-64 a switch
 * is a few instructions. swapcontext would make a system call for the signal mask. With the address sanitizer
 * so would longjmp, which also clears the sanitizer's marks of the whole stack.
 */
#include "tests/gpu/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

#ifdef NB_FIBER_STACK
/* Put the registers that a function keeps for its caller on this stack, its end into *from, and go on with
 * the stack `to`. */
void nb_fiber_change(void **from, void *to);
__asm__(".pushsection .text\n"
        ".hidden nb_fiber_change\n"
        ".globl nb_fiber_change\n"
        ".type nb_fiber_change, @function\n"
        "nb_fiber_change:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size nb_fiber_change, . - nb_fiber_change\n"
        ".popsection\n");

static void prepare(struct nb_fiber *f)
{
    /* Six registers, the address at which the first switch arrives, and no caller of that. A function begins
     * 8 bytes off 16. */
    void **top = (void **)((char *)f->memory + STACK) - 8;

    memset(top, 0, 8 * sizeof(*top));
    top[6] = (void *)(uintptr_t)enter;
    f->top = top;
}

static NB_UNSEEN void change(struct nb_fiber *from, struct nb_fiber *to)
{
    nb_fiber_change(&from->top, to->top);
}
#else
static void prepare(struct nb_fiber *f)
{
    if (getcontext(&f->context))
        abort();
    f->context.uc_stack.ss_sp = f->memory;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, enter, 0);
}

static NB_UNSEEN void change(struct nb_fiber *from, struct nb_fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

void nb_fiber_open(struct nb_fiber *f, void (*run)(void))
{
    f->run = run;
    f->memory = malloc(STACK);
    if (!f->memory)
        abort();
    f->stack = f->memory;
    f->size = STACK;
    prepare(f);
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
