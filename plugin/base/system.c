/* SPDX-License-Identifier: Apache-2.0 */
/* Services of the operating system. See system.h. */
#include "base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/log.h"

/* ---- names ------------------------------------------------------------------------------------------ */

/* PROC_PID_INIT_INO of Linux's include/linux/proc_ns.h: the namespace that the machine starts with. */
#define FIRST_NAMESPACE "pid:[4026531836]"

/* FNV-1a. */
static uint32_t digest(uint32_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

void nb_process_name(char name[NB_PROCESS_NAME])
{
    char space[64] = "", boot[64] = "";
    const ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);

    if (n <= 0 || strcmp(space, FIRST_NAMESPACE) == 0) {
        snprintf(name, NB_PROCESS_NAME, "%d", (int)getpid());
        return;
    }
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, boot, sizeof(boot) - 1) < 0)
            boot[0] = '\0'; /* the namespace's number remains */
        close(fd);
    }
    snprintf(name, NB_PROCESS_NAME, "%d-%08x", (int)getpid(),
             (unsigned)digest(digest(2166136261u, boot), space));
}

/* ---- random bytes ----------------------------------------------------------------------------------- */

int nb_random(void *buf, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = getrandom((char *)buf + done, bytes - done, 0);
        if (n < 0 && errno != EINTR) {
            const int err = errno;
            NB_WARN("no random bytes, as connections need them: getrandom: %s%s", strerror(err),
                    err == EPERM || err == EACCES || err == ENOSYS
                        ? " (allow this system call: a filter such as seccomp refuses it)"
                        : "");
            return -err;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------ */

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        const ssize_t n = write(fd, data, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int write_file(const char *path, const void *data, size_t bytes)
{
    /* Without O_NONBLOCK opening a pipe waits for its reader. */
    const int fd =
        open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC | O_TRUNC, 0644);
    struct stat st;
    int ret = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st))
        ret = -errno;
    else if (!S_ISREG(st.st_mode))
        ret = -EEXIST;
    else
        ret = write_all(fd, data, bytes);
    if (close(fd) && !ret)
        ret = -errno;
    return ret;
}

int nb_out_file_replace(const char *path, const void *data, size_t bytes)
{
    char other[PATH_MAX];
    int ret;

    if ((size_t)snprintf(other, sizeof(other), "%s.tmp", path) >= sizeof(other))
        return -ENAMETOOLONG;
    unlink(other); /* a process of the same number may have left it */
    ret = write_file(other, data, bytes);
    if (!ret && rename(other, path))
        ret = -errno;
    if (ret)
        unlink(other);
    return ret;
}
