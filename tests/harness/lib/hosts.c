/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job whose nodes run on several machines that share a piece of memory: virtual machines with a common
 * ivshmem device. The same program runs on each machine with the same arguments and forks the machine's own
 * nodes, and all machines meet at the beginning of a job. Nodes talk to each other through the memory, as on
 * one machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define MEET_S 300.0

struct memory {                         /* contents of the file */
    atomic_ulong arrived[HX_MAX_HOSTS]; /* meetings to which each machine has ever come */
    _Alignas(4096) struct hx_shared shared;
};

bool hx_hosts_here(int rank)
{
    const struct hx_env *env = hx_env_read();

    return rank % env->hosts == env->host;
}

/* Wait for all machines. Return false when one does not come. */
static bool meet(struct memory *m)
{
    const struct hx_env *env = hx_env_read();
    unsigned long mine = atomic_fetch_add(&m->arrived[env->host], 1) + 1;
    double end = hx_now() + MEET_S;

    for (int h = 0; h < env->hosts; h++) {
        while (atomic_load(&m->arrived[h]) < mine) {
            if (hx_now() > end)
                return false;
            hx_sleep(1e-3);
        }
    }
    return true;
}

struct hx_shared *hx_hosts_begin(void)
{
    const struct hx_env *env = hx_env_read();
    struct memory *m;
    int fd;

    if (env->hosts == 1) {
        struct hx_shared *own =
            mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        return own == MAP_FAILED ? NULL : own;
    }
    fd = open(env->host_memory, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        return NULL;
    /* At the first meeting all machines have finished reading the last job's memory. After the second it is
     * empty, and they may write. */
    if (meet(m)) {
        if (env->host == 0)
            memset(&m->shared, 0, sizeof m->shared);
        if (meet(m))
            return &m->shared;
    }
    fprintf(stderr, "harness: the other machine has not come within %g s\n", MEET_S);
    munmap(m, sizeof *m);
    return NULL;
}

/* Behind the memory of jobs. */
#define COMMON_AT ((sizeof(struct memory) + 4095) / 4096 * 4096)

static void *common_memory(size_t bytes)
{
    const struct hx_env *env = hx_env_read();
    int fd = open(env->host_memory, O_RDWR | O_CLOEXEC);
    struct stat st = {0};
    struct memory *m;
    bool met;
    void *p;

    if (fd < 0)
        return MAP_FAILED;
    if (fstat(fd, &st) != 0 || (size_t)st.st_size < COMMON_AT + bytes) {
        close(fd);
        errno = ENOSPC;
        return MAP_FAILED;
    }
    m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)COMMON_AT);
    close(fd);
    if (m == MAP_FAILED || p == MAP_FAILED)
        return MAP_FAILED;
    /* As in hx_hosts_begin. */
    met = meet(m);
    if (met && env->host == 0)
        memset(p, 0, bytes);
    met = met && meet(m);
    munmap(m, sizeof *m);
    if (met)
        return p;
    munmap(p, bytes);
    errno = ETIMEDOUT;
    return MAP_FAILED;
}

void *hx_common_memory(size_t bytes)
{
    void *p = hx_env_read()->hosts == 1
                  ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
                  : common_memory(bytes);

    if (p != MAP_FAILED)
        return p;
    fprintf(stderr, "harness: no %zu bytes of common memory: %s\n", bytes, strerror(errno));
    return NULL;
}

void *hx_common_memory_keep(void *memory, size_t bytes)
{
    void *copy;

    if (hx_env_read()->hosts == 1)
        return memory;
    copy = malloc(bytes);
    if (copy)
        memcpy(copy, memory, bytes);
    munmap(memory, bytes);
    return copy;
}

void hx_common_memory_free(void *kept, size_t bytes)
{
    if (hx_env_read()->hosts == 1)
        munmap(kept, bytes);
    else
        free(kept);
}

void hx_hosts_end(struct hx_shared *shared)
{
    if (hx_env_read()->hosts == 1)
        munmap(shared, sizeof *shared);
    else
        munmap((char *)shared - offsetof(struct memory, shared), sizeof(struct memory));
}
