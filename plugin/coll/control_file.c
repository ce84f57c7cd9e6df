/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the NIBBLE_CONTROL file; see control_file.h. */
#include "coll/control_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define LATE_NS (10 * (int64_t)NB_NS_PER_S) /* a look that takes longer is reported */
#define PATIENCE_S 2                        /* for the first look, and for the last */

/* ---- the word ----------------------------------------------------------------------------------------- */

int nb_control_file_read(const char *path, bool *warned)
{
    /* O_NONBLOCK: to open a pipe waits for its writer otherwise. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    char word[16] = "";
    struct stat st;
    ssize_t n = 0;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        if (!*warned)
            NB_WARN("NIBBLE_CONTROL: %s is not a regular file, so it is not read", path);
        *warned = true;
        return -1;
    }
    n = read(fd, word, sizeof(word) - 1);
    close(fd);
    word[n > 0 ? n : 0] = 0;
    word[strcspn(word, " \t\r\n")] = 0;
    if (strcmp(word, "off") == 0 || strcmp(word, "on") == 0) {
        *warned = false;
        return strcmp(word, "off") == 0;
    }
    if (word[0] && !*warned) {
        *warned = true;
        NB_WARN("NIBBLE_CONTROL: %s says \"%s\", which is neither on nor off", path, word);
    }
    return -1;
}

/* ---- the thread --------------------------------------------------------------------------------------- */

struct nb_control_reader {
    char *path;
    char label[64];
    _Atomic int off;
    _Atomic uint64_t looks; /* begun and ended: odd while one is under way */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;           /* one of these has changed: */
    bool stop, ended, left_behind; /* who left it behind does not free it */
};

static void free_reader(struct nb_control_reader *r)
{
    pthread_cond_destroy(&r->cond);
    pthread_mutex_destroy(&r->lock);
    free(r->path);
    free(r);
}

/* Wait for a change, up to `seconds`: false when that has passed. With the lock. */
static bool wait_for(struct nb_control_reader *r, struct timespec until)
{
    return pthread_cond_timedwait(&r->cond, &r->lock, &until) != ETIMEDOUT;
}

static struct timespec in_seconds(int seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += seconds;
    return t;
}

static void *thread_main(void *arg)
{
    struct nb_control_reader *r = arg;
    bool warned = false, first = true, left_behind;

    nb_log_label(r->label);
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct timespec next;
        int word;

        pthread_mutex_unlock(&r->lock);
        atomic_fetch_add(&r->looks, 1);
        word = nb_control_file_read(r->path, &warned);
        if (word >= 0)
            atomic_store(&r->off, word);
        else if (first && access(r->path, F_OK) != 0)
            NB_WARN("NIBBLE_CONTROL: %s is not there yet, so compression stays on: %s", r->path,
                    strerror(errno));
        first = false;
        atomic_fetch_add(&r->looks, 1);
        pthread_mutex_lock(&r->lock);
        pthread_cond_broadcast(&r->cond);
        next = in_seconds(1);
        while (!r->stop && wait_for(r, next))
            ;
    }
    r->ended = true;
    left_behind = r->left_behind;
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->lock);
    if (left_behind)
        free_reader(r);
    return NULL;
}

static int start(struct nb_control_reader *r)
{
    pthread_condattr_t attr;
    sigset_t all, old;
    int err;

    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->cond, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); /* signals are the application's business */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&r->thread, NULL, thread_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!err)
        pthread_setname_np(r->thread, "nibble-control");
    return err;
}

void nb_control_file_open(struct nb_control_file *file, const char *path, const char *label)
{
    struct nb_control_reader *r;
    struct timespec until = in_seconds(PATIENCE_S);
    int err;

    if (!path[0] || file->left_behind)
        return;
    file->threaded = true;
    r = calloc(1, sizeof(*r));
    if (r)
        r->path = strdup(path);
    if (!r || !r->path) {
        NB_WARN("NIBBLE_CONTROL: %s is not read: out of memory", path);
        free(r);
        return;
    }
    snprintf(r->label, sizeof(r->label), "%s", label);
    atomic_init(&r->off, file->off);
    err = start(r);
    if (err) {
        NB_WARN("NIBBLE_CONTROL: %s is not read, no thread for it: %s", path, strerror(err));
        free_reader(r);
        return;
    }
    file->reader = r;
    file->seen_ns = 0;
    file->told = false;
    /* What the file says at the beginning holds for the first operation. */
    pthread_mutex_lock(&r->lock);
    while (atomic_load(&r->looks) < 2 && wait_for(r, until))
        ;
    pthread_mutex_unlock(&r->lock);
}

void nb_control_file_close(struct nb_control_file *file, const char *path)
{
    struct nb_control_reader *r = file->reader;
    struct timespec until = in_seconds(PATIENCE_S);
    bool ended;

    if (!r)
        return;
    file->reader = NULL;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->cond);
    while (!r->ended && wait_for(r, until))
        ;
    ended = r->ended;
    r->left_behind = !ended;
    if (!ended)
        pthread_detach(r->thread);
    pthread_mutex_unlock(&r->lock);
    if (ended) {
        pthread_join(r->thread, NULL);
        free_reader(r);
        return;
    }
    file->left_behind = true;
    NB_WARN("NIBBLE_CONTROL: reading %s does not return; its thread is left behind, the file is not read any "
            "more",
            path);
}

/* ---- for the engine ----------------------------------------------------------------------------------- */

/* Report a look that does not end. */
static void check_late(struct nb_control_file *file, const char *path, int64_t now_ns)
{
    const uint64_t looks = atomic_load_explicit(&file->reader->looks, memory_order_relaxed);

    if (looks != file->seen || !file->seen_ns) {
        file->seen = looks;
        file->seen_ns = now_ns;
    } else if (looks % 2 && !file->told && now_ns - file->seen_ns > LATE_NS) {
        file->told = true;
        NB_WARN("NIBBLE_CONTROL: reading %s has taken more than %lld s (a dead mount?); until it returns the "
                "switch stays as it is",
                path, (long long)(LATE_NS / (int64_t)NB_NS_PER_S));
    }
}

void nb_control_file_look(struct nb_control_file *file, const char *path, int64_t now_ns)
{
    int word;

    if (!path[0])
        return;
    if (file->reader) {
        file->off = atomic_load_explicit(&file->reader->off, memory_order_relaxed);
        check_late(file, path, now_ns);
        return;
    }
    if (file->threaded || (file->read_ns && now_ns - file->read_ns < (int64_t)NB_NS_PER_S))
        return;
    file->read_ns = now_ns;
    word = nb_control_file_read(path, &file->warned);
    if (word >= 0)
        file->off = word;
}
