/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf: count instructions one by one. A child runs the code under ptrace and stops after every
 * instruction. That is slow, but gives the same figure every time on a busy machine, also for instructions
 * that simulators (callgrind) lack.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf.h"

#ifdef __x86_64__
#include <sys/user.h>

extern const char __executable_start; /* the linker's symbol: load address of the program */

/* Return the next instruction's address in the program's file, or 0 in a library. */
static unsigned long at(pid_t pid)
{
    const unsigned long base = (unsigned long)&__executable_start;
    extern const char etext;
    struct user_regs_struct regs;

    if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) != 0 || regs.rip < base || regs.rip >= (unsigned long)&etext)
        return 0;
    return regs.rip - base;
}
#else
static unsigned long at(pid_t pid)
{
    (void)pid;
    return 0;
}
#endif

static double count_between_stops(void (*run)(void *arg), void *arg, FILE *trace)
{
    const pid_t pid = fork();
    double steps = 0;
    int status;

    if (pid < 0)
        return NAN;
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        raise(SIGSTOP);
        run(arg);
        raise(SIGSTOP);
        _exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFSTOPPED(status)) {
        fprintf(stderr, "nibble-perf: tracing is not allowed here\n");
        return NAN;
    }
    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid ||
            !WIFSTOPPED(status) || WSTOPSIG(status) == SIGSEGV || WSTOPSIG(status) == SIGILL) {
            steps = NAN;
            break;
        }
        if (WSTOPSIG(status) == SIGSTOP)
            break;
        if (trace)
            fprintf(trace, "%lx\n", at(pid));
        steps++;
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return steps;
}

static void nothing(void *arg)
{
    (void)arg;
}

double perf_count_instructions(void (*run)(void *arg), void *arg, FILE *trace)
{
    /* The count includes raise() and its return to the caller. */
    const double base = count_between_stops(nothing, NULL, NULL);

    return isfinite(base) ? count_between_stops(run, arg, trace) - base : NAN;
}

double perf_clock_ghz(void)
{
#ifdef __x86_64__
    double best = 0;

    /* A multiplication takes three cycles, and each waits for the last one. Take the fastest try: the others
     * were disturbed. */
    for (int i = 0; i < 20; i++) {
        const unsigned rounds = 200000;
        const double start = perf_now();
        unsigned long x = 3;

        for (unsigned r = 0; r < rounds; r++)
            __asm__ volatile("imulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\t"
                             "imulq %0, %0\n\timulq %0, %0\n\timulq %0, %0\n\timulq %0, %0"
                             : "+r"(x));
        const double ghz = 1e-9 * 24 * rounds / (perf_now() - start);
        if (ghz > best)
            best = ghz;
    }
    return best;
#else
    return NAN;
#endif
}
