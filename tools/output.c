/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. */
#include "tools/output.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 3.0 /* without progress on the terminal */

static int output_failed; /* exit status */

static void at_end(void)
{
    const int before = ferror(stdout);

    errno = 0;
    if (fflush(stdout) == 0 && !before)
        return;
    fprintf(stderr, "%s: the output could not be written%s%s\n", program_invocation_short_name,
            errno ? ": " : "", errno ? strerror(errno) : "");
    _exit(output_failed);
}

void output_check(int status)
{
    output_failed = status;
    atexit(at_end);
}

bool output_close(FILE *f, const char *path, long whole, const char *end)
{
    const bool failed = ferror(f) != 0;
    struct stat st;
    int fd;

    errno = 0;
    if (fclose(f) == 0 && !failed)
        return true;
    fprintf(stderr, "%s: cannot write %s whole%s%s\n", program_invocation_short_name, path, errno ? ": " : "",
            errno ? strerror(errno) : "");
    fd = open(path, O_WRONLY | O_CLOEXEC);
    /* The end fits where longer bytes were. */
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ftruncate(fd, whole) == 0 && *end &&
        pwrite(fd, end, strlen(end), whole) < (ssize_t)strlen(end))
        fprintf(stderr, "%s: %s lacks its end\n", program_invocation_short_name, path);
    if (fd >= 0)
        close(fd);
    return false;
}

/* ---- messages about options ---- */

const char *option_name(int c, const struct option *longs)
{
    static char name[40];

    snprintf(name, sizeof(name), "-%c", c);
    for (const struct option *o = longs; o->name; o++)
        if (o->val == c)
            snprintf(name, sizeof(name), "--%s", o->name);
    return name;
}

bool option_wrong(const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "%s: %s: \"%s\": it must be %s\n", program_invocation_short_name, option, value, allowed);
    return false;
}

bool option_whole(const char *option, const char *value, long low, long high, int *out)
{
    char *end, allowed[80];
    const long v = strtol(value, &end, 10);

    *out = (int)v;
    if (end != value && !*end && v >= low && v <= high)
        return true;
    snprintf(allowed, sizeof(allowed), "a whole number from %ld to %ld", low, high);
    return option_wrong(option, value, allowed);
}

bool option_number(const char *option, const char *value, double low, double high, double *out)
{
    char *end, allowed[80];

    *out = strtod(value, &end);
    if (end != value && !*end && *out >= low && *out <= high)
        return true;
    snprintf(allowed, sizeof(allowed), "a number from %g to %g", low, high);
    return option_wrong(option, value, allowed);
}

/* ---- terminals ---- */

/* Open MPI gives each process a terminal of its own and copies the output to wherever mpirun writes. */
static bool can_move(FILE *to)
{
    const char *term = getenv("TERM");

    return isatty(fileno(to)) && term && *term && strcmp(term, "dumb") != 0 &&
           !getenv("OMPI_COMM_WORLD_RANK");
}

const char *output_colour(FILE *to, enum output_colour colour)
{
    static const char *const sequence[OUTPUT_COLOURS] = {"\033[0m", "\033[1m", "\033[31m", "\033[32m",
                                                         "\033[33m"};
    const char *no = getenv("NO_COLOR");

    return (no && *no) || !can_move(to) ? "" : sequence[colour];
}

static bool shown; /* a line of progress stands on the terminal */

void output_progress(const char *fmt, ...)
{
    static struct timespec first;
    struct timespec now;
    char text[61]; /* lines of reports are longer, and overwrite it */
    va_list ap;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!first.tv_sec)
        first = now;
    if ((double)(now.tv_sec - first.tv_sec) + 1e-9 * (double)(now.tv_nsec - first.tv_nsec) < PATIENCE_S ||
        !can_move(stderr))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "\r\033[K%s\r", text);
    fflush(stderr);
    shown = true;
}

void output_progress_end(void)
{
    if (shown)
        fputs("\033[K", stderr);
    shown = false;
}
