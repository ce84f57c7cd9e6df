/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIBBLE_CONTROL file: its word, a missing file, and a file system that does not answer. An open() of
 * this program, which waits, stands for that file system.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "coll/comm/node.h"
#include "coll/engine.h"
#include "tests/base/folder.h"
#include "tests/suite.h"

#define SECOND ((int64_t)NB_NS_PER_S)

static char dir[64], path[96];
static atomic_uint warnings;
static atomic_bool dead; /* the mount is dead */
static atomic_int left;

/* Takes the place of the C library's. */
int open(const char *name, int flags, ...)
{
    const bool here = strcmp(name, path) == 0;
    int fd;

    while (here && atomic_load(&dead))
        usleep(1000);
    fd = (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0600);
    if (here)
        atomic_fetch_add(&left, 1);
    return fd;
}

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags,
                                                         const char *file, int line, const char *fmt, ...)
{
    (void)flags, (void)file, (void)line, (void)fmt;
    warnings += level == NCCL_LOG_WARN;
}

static void setup(void)
{
    ck_assert_ptr_nonnull(folder_make(dir, "control"));
    snprintf(path, sizeof(path), "%s/word", dir);
    atomic_store(&warnings, 0);
    atomic_store(&dead, false);
    nb_log_set(logger);
}

static void teardown(void)
{
    unlink(path);
    rmdir(path);
    rmdir(dir);
    nb_log_set(NULL);
}

static void write_word(const char *word)
{
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    fputs(word, f);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(words)
{
    static const struct {
        const char *text;
        int word;
        unsigned warnings;
    } cases[] = {{"on\n", 0, 0},       {"off", 1, 0}, {" off", -1, 0}, {"maybe", -1, 1}, {"perhaps", -1, 1},
                 {"off and on", 1, 1}, {"", -1, 1},   {"ON", -1, 2},   {"on\r\n", 0, 2}};
    bool warned = false;

    ck_assert_int_eq(nb_control_file_read(path, &warned), -1); /* the file is missing */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_word(cases[i].text);
        ck_assert_int_eq(nb_control_file_read(path, &warned), cases[i].word);
        ck_assert_uint_eq(atomic_load(&warnings), cases[i].warnings);
    }
}
END_TEST

/* A stepped engine reads the file itself. A pipe without a writer does not hold it up. */
START_TEST(pipe_is_not_read)
{
    struct nb_params params = *nb_params_defaults();
    struct nb_context ctx = {.params = &params};

    params.control = path;
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(nb_engine_open(&ctx, NULL), 0);
    for (int i = 1; i < 5; i++)
        nb_engine_step(ctx.engine, i * SECOND);
    ck_assert_uint_eq(atomic_load(&warnings), 1);
    ck_assert(!nb_engine_node(ctx.engine)->control.off);
    ck_assert_int_eq(unlink(path), 0);
    write_word("off");
    nb_engine_step(ctx.engine, 10 * SECOND);
    ck_assert(nb_engine_node(ctx.engine)->control.off);
    nb_engine_close(&ctx);
}
END_TEST

START_TEST(directory_is_not_read)
{
    bool warned = false;

    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(nb_control_file_read(path, &warned), -1);
    ck_assert_uint_eq(atomic_load(&warnings), 1);
}
END_TEST

/* With a thread, the first word is known at once, a later word after a while. */
START_TEST(read_by_a_thread)
{
    struct nb_control_file file = {0};

    write_word("off");
    nb_control_file_open(&file, path, "");
    nb_control_file_update(&file, path, SECOND);
    ck_assert(file.off);
    write_word("on");
    while (file.off) {
        nb_control_file_update(&file, path, SECOND);
        usleep(1000);
    }
    nb_control_file_close(&file, path);
    ck_assert(!file.left_behind);
    ck_assert_uint_eq(atomic_load(&warnings), 0);
}
END_TEST

/* A file system never answers. Opening, reading and closing return without it, and one log line reports it.
 * When it answers after all, the thread ends. */
START_TEST(dead_mount)
{
    struct nb_control_file file = {0};

    write_word("off");
    atomic_store(&dead, true);
    atomic_store(&left, 0);
    nb_control_file_open(&file, path, "");
    for (int i = 1; i < 100; i++)
        nb_control_file_update(&file, path, i * SECOND);
    ck_assert_uint_eq(atomic_load(&warnings), 1);
    ck_assert(!file.off);
    nb_control_file_close(&file, path);
    ck_assert(file.left_behind);
    ck_assert_uint_eq(atomic_load(&warnings), 2);
    nb_control_file_open(&file, path, "");
    ck_assert_ptr_null(file.reader);
    nb_control_file_update(&file, path, 200 * SECOND);
    ck_assert(!file.off);
    ck_assert_int_eq(atomic_load(&left), 0);
    atomic_store(&dead, false);
    while (atomic_load(&left) == 0)
        usleep(1000);
    usleep(100000); /* lets the thread free its memory, for the sanitizers */
}
END_TEST

SUITE_MAIN("coll/control_file", FIXTURE(setup, teardown), TEST(words), TEST(pipe_is_not_read),
           TEST(directory_is_not_read), TEST(read_by_a_thread), TEST(dead_mount))
