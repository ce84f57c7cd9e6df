/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the communicators of a node: counts by GPU, an observer, the file of NIBBLE_CONTROL. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/periodic.h"
#include "coll/comm/node.h"

/* ---- communicators of a GPU -------------------------------------------------------------------------- */

void nb_node_init(struct nb_coll_node *node)
{
    memset(node, 0, sizeof(*node));
    pthread_mutex_init(&node->lock, NULL);
}

void nb_node_destroy(struct nb_coll_node *node)
{
    pthread_mutex_destroy(&node->lock);
}

uint32_t nb_node_count_comm(struct nb_coll_node *node, int gpu, uint64_t comm_id)
{
    struct nb_comm_count *count = &node->count[(gpu + 1) % NB_NET_MAX_DEVS];
    uint32_t n;

    pthread_mutex_lock(&node->lock);
    if (comm_id == 0 || comm_id != count->last_id)
        count->n++;
    count->last_id = comm_id;
    n = count->n;
    pthread_mutex_unlock(&node->lock);
    return n;
}

/* ---- observer ---------------------------------------------------------------------------------------- */

void nb_observe(struct nb_observer *observer, nb_observer_fn fn, void *arg)
{
    atomic_store(&observer->arg, arg);
    atomic_store(&observer->fn, fn);
}

void nb_observe_report(const struct nb_observer *observer, const struct nb_observation *what)
{
    nb_observer_fn fn = atomic_load(&observer->fn);

    if (fn)
        fn(atomic_load(&observer->arg), what);
}

/* ---- the file of NIBBLE_CONTROL ---------------------------------------------------------------------- */

#define LATE_NS (10 * (int64_t)NB_NS_PER_S) /* report a longer read */
#define PATIENCE_S 2                        /* time to wait for the first read, and for the last */

/* ---- the word ---------------------------------------------------------------------------------------- */

int nb_control_file_read(const char *path, bool *warned)
{
    /* O_NONBLOCK: otherwise opening a pipe would wait for its writer. */
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
        NB_WARN("NIBBLE_CONTROL: %s says \"%s\" instead of on or off", path, word);
    }
    return -1;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

struct nb_control_reader {
    char *path;
    _Atomic int off;
    bool warned, looked;
};

static void release(void *arg)
{
    struct nb_control_reader *r = arg;

    free(r->path);
    free(r);
}

static void turn(void *arg)
{
    struct nb_control_reader *r = arg;
    const int word = nb_control_file_read(r->path, &r->warned);

    if (word >= 0)
        atomic_store(&r->off, word);
    else if (!r->looked && access(r->path, F_OK) != 0)
        NB_WARN("NIBBLE_CONTROL: %s is not there yet, so compression stays on: %s", r->path, strerror(errno));
    r->looked = true;
}

void nb_control_file_open(struct nb_control_file *file, const char *path, const char *label)
{
    struct nb_periodic_work work = {.thread = "nibble-control", .turn = turn, .release = release};
    struct nb_control_reader *r;
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
    atomic_init(&r->off, file->off);
    work.arg = r;
    err = nb_periodic_begin(&work, label, &file->periodic);
    if (err) {
        NB_WARN("NIBBLE_CONTROL: %s is not read, no thread for it: %s", path, strerror(err));
        release(r);
        return;
    }
    file->reader = r;
    file->seen_ns = 0;
    file->told = false;
    nb_periodic_await(file->periodic, 1, PATIENCE_S); /* its first word holds for the first operation */
}

void nb_control_file_close(struct nb_control_file *file, const char *path)
{
    if (!file->reader)
        return;
    file->reader = NULL;
    file->left_behind = !nb_periodic_end(file->periodic, PATIENCE_S);
    file->periodic = NULL;
    if (file->left_behind)
        NB_WARN("NIBBLE_CONTROL: reading %s does not return. Its thread is left behind, and the switch stays "
                "as it is",
                path);
}

/* ---- for the engine ---------------------------------------------------------------------------------- */

/* Report a read that does not end. */
static void check_late(struct nb_control_file *file, const char *path, int64_t now_ns)
{
    const uint64_t looks = nb_periodic_turns(file->periodic);

    if (looks != file->seen || !file->seen_ns) {
        file->seen = looks;
        file->seen_ns = now_ns;
    } else if (looks % 2 && !file->told && now_ns - file->seen_ns > LATE_NS) {
        file->told = true;
        NB_WARN("NIBBLE_CONTROL: reading %s has taken more than %lld s (a dead mount?). Until it returns the "
                "switch stays as it is",
                path, (long long)(LATE_NS / (int64_t)NB_NS_PER_S));
    }
}

void nb_control_file_update(struct nb_control_file *file, const char *path, int64_t now_ns)
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
