/* SPDX-License-Identifier: Apache-2.0 */
/* Replacing files. See out_file.h. */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

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
