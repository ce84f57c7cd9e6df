/* SPDX-License-Identifier: Apache-2.0 */
/* See model_program.h. */
#include "model_program.h"

#include <stdio.h>
#include <time.h>

#include "model_inside.h"

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);

int64_t model_look_ns;

static struct {
    int (*main)(int, char **);
    int argc, status;
    char **argv;
} the;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!model_self())
        return __real_clock_gettime(clock, t);
    if (model_look_ns)
        model_sleep(model_look_ns);
    t->tv_sec = model_now() / MODEL_SECOND;
    t->tv_nsec = model_now() % MODEL_SECOND;
    return 0;
}

static void thread_main(void *argument)
{
    (void)argument;
    model_current(0);
    the.status = the.main(the.argc, the.argv);
}

int model_program(const struct model_settings *settings, int (*program)(int, char **), int argc, char **argv)
{
    const char *said;

#ifdef NB_TSAN
    printf("skipped: the thread sanitizer does not follow contexts that are switched by hand\n");
    return 77;
#endif
    the.main = program;
    the.argc = argc;
    the.argv = argv;
    model_open(settings);
    model_thread("the program", MODEL_JOB, thread_main, NULL);
    said = model_run();
    if (said)
        printf("%s\n", said);
    model_close();
    return said ? 1 : the.status;
}
