/* SPDX-License-Identifier: Apache-2.0 */
/* See handback_shared.h. */
#include "policy/handback_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nibble/codec.h"

#define MAGIC 0x6e626862u
#define FOLDER "/dev/shm"

/* ---- making it, and joining ---------------------------------------------------------------------------- */

static int begin(struct nb_handback_shared *s, unsigned ranks, const struct nb_handback_config *config)
{
    struct nb_handback_config c = *config;
    pthread_mutexattr_t attr;
    int ret = pthread_mutexattr_init(&attr);

    if (ret)
        return -ret;
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    ret = pthread_mutex_init(&s->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    if (ret)
        return -ret;
    c.ranks = ranks;
    c.heads = 1;
    c.leader = 0;
    nb_handback_init(&s->machine, &c);
    s->magic = MAGIC;
    s->bytes = sizeof(*s);
    return 0;
}

static unsigned join(struct nb_handback_shared *s)
{
    unsigned rank;

    nb_handback_shared_lock(s);
    rank = s->joined++;
    if (s->joined > s->machine.config.ranks) {
        nb_handback_stop(&s->machine);
        rank = 0;
    }
    nb_handback_shared_unlock(s);
    return rank;
}

int nb_handback_share_make(struct nb_handback_share *share, const struct nb_handback_share *with,
                           unsigned ranks, const struct nb_handback_config *config, unsigned *rank)
{
    struct nb_handback_shared *s = with ? with->at : calloc(1, sizeof(*s));
    int ret;

    if (!s)
        return -ENOMEM;
    if (!with) {
        ret = begin(s, ranks, config);
        if (ret) {
            free(s);
            return ret;
        }
    }
    s->users++;
    *rank = join(s);
    *share = (struct nb_handback_share){.at = s};
    return 0;
}

/* NCCL takes ranks for one node's by NCCL_HOSTID, or else by the host's name (and by an identifier of its boot, which
 * all have in common that see one /dev/shm). */
static void name_file(struct nb_handback_share *share, uint64_t comm_id)
{
    char host[HOST_NAME_MAX + 1] = "";
    const char *id = getenv("NCCL_HOSTID");

    if (!id || !*id) {
        gethostname(host, sizeof(host) - 1);
        id = host;
    }
    snprintf(share->name, sizeof(share->name), FOLDER "/nibble-%u-%016llx-%016llx", (unsigned)geteuid(),
             (unsigned long long)comm_id, (unsigned long long)nb_hash64(id, strlen(id), 0));
}

/* The open and locked file: map it, and make it what it has to be where it is new. */
static int map(struct nb_handback_share *share, int fd, unsigned ranks,
               const struct nb_handback_config *config)
{
    struct nb_handback_shared *s;
    struct stat st;
    bool is_new;
    int ret;

    if (fstat(fd, &st))
        return -errno;
    is_new = st.st_size == 0;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return -EPERM;
    if (!is_new && st.st_size != sizeof(*s))
        return -EPROTO;
    if (is_new) { /* with its memory: where there is none, an access would be a signal */
        ret = -posix_fallocate(fd, 0, sizeof(*s));
        if (ret)
            goto fail;
    }
    s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) {
        ret = -errno;
        goto fail;
    }
    ret = is_new ? begin(s, ranks, config) : s->magic == MAGIC && s->bytes == sizeof(*s) ? 0 : -EPROTO;
    if (!ret && s->machine.config.ranks != ranks)
        ret = -EPROTO;
    if (ret) {
        munmap(s, sizeof(*s));
        goto fail;
    }
    share->at = s;
    share->mapped = true;
    return 0;
fail:
    if (is_new) /* nobody else has it, and nobody has to find it */
        unlink(share->name);
    return ret;
}

static int lock_file(int fd)
{
    while (flock(fd, LOCK_EX))
        if (errno != EINTR)
            return -errno;
    return 0;
}

int nb_handback_share_map(struct nb_handback_share *share, uint64_t comm_id, unsigned ranks,
                          const struct nb_handback_config *config, unsigned *rank)
{
    int fd, ret;

    *share = (struct nb_handback_share){.at = NULL};
    name_file(share, comm_id);
    fd = open(share->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    ret = lock_file(fd);
    if (!ret)
        ret = map(share, fd, ranks, config);
    if (!ret) {
        *rank = join(share->at);
        if (share->at->joined >= ranks) { /* nobody else has to find it */
            unlink(share->name);
            share->name[0] = '\0';
        }
    }
    flock(fd, LOCK_UN); /* closing does not do it: the mapping keeps the file open */
    close(fd);
    return ret;
}

void nb_handback_share_close(struct nb_handback_share *share)
{
    struct nb_handback_shared *s = share->at;

    if (!s)
        return;
    if (share->mapped) {
        nb_handback_shared_lock(s);
        if (s->joined <
            s->machine.config.ranks) /* somebody never came; else another one took the name away */
            unlink(share->name);
        nb_handback_shared_unlock(s);
        munmap(s, sizeof(*s));
    } else if (--s->users == 0) {
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
    share->at = NULL;
}

/* ---- using it ------------------------------------------------------------------------------------------ */

void nb_handback_shared_lock(struct nb_handback_shared *s)
{
    if (pthread_mutex_lock(&s->lock) != EOWNERDEAD)
        return;
    nb_handback_fail(&s->machine); /* it may be half changed, and the job has lost a process */
    nb_handback_shared_wake(s);
    pthread_mutex_consistent(&s->lock);
}

void nb_handback_shared_unlock(struct nb_handback_shared *s)
{
    pthread_mutex_unlock(&s->lock);
}

void nb_handback_shared_wake(struct nb_handback_shared *s)
{
    __atomic_fetch_add(&s->news, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &s->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int nb_handback_shared_wait(struct nb_handback_shared *s, const struct timespec *end)
{
    const uint32_t seen = __atomic_load_n(&s->news, __ATOMIC_ACQUIRE);
    long ret;

    nb_handback_shared_unlock(s);
    /* With a mask of what it waits for the time is one of the clock, not a span of it. */
    ret = syscall(SYS_futex, &s->news, FUTEX_WAIT_BITSET, seen, end, NULL, FUTEX_BITSET_MATCH_ANY);
    ret = ret && errno == ETIMEDOUT ? -ETIMEDOUT : 0;
    nb_handback_shared_lock(s);
    return (int)ret;
}

int nb_handback_shared_attach(struct nb_handback_shared *s, uint64_t group, int node, int nnodes)
{
    const unsigned n = s->attached;

    if (s->has_leader || n == NB_HANDBACK_RANKS)
        return -1;
    s->head[n].group = group;
    s->head[n].node = node;
    s->head[n].nnodes = nnodes;
    s->attached++;
    return (int)n;
}

/* What a group is called is random: two of one name would lead at once, or neither. */
static void choose_leader(struct nb_handback_shared *s)
{
    struct nb_handback_config *c = &s->machine.config;
    unsigned leader = 0;

    for (unsigned i = 1; i < s->attached; i++) {
        if (s->head[i].group == s->head[leader].group)
            nb_handback_stop(&s->machine);
        if (s->head[i].group < s->head[leader].group)
            leader = i;
    }
    c->heads = s->attached;
    c->leader = leader;
    c->node = s->head[leader].node;
    c->nnodes = s->head[leader].nnodes;
    s->has_leader = true;
}

bool nb_handback_shared_leads(struct nb_handback_shared *s, int head)
{
    if (head < 0 || s->joined != s->machine.config.ranks)
        return false;
    if (!s->has_leader)
        choose_leader(s);
    return s->machine.config.leader == (unsigned)head;
}
