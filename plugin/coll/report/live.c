/* SPDX-License-Identifier: Apache-2.0 */
/* The socket at which nibble-top asks a running process for its metrics. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/system.h"
#include "coll/report/internal.h"
#include "coll/report/report.h"

#define ANSWER_S 1 /* for a caller that does not read */
#define CANNOT_ASK "nibble-top cannot ask this process (NIBBLE_LIVE): "

int nb_live_open(const char *label)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char process[NB_PROCESS_NAME];
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int length;

    nb_process_name(process);
    length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, NB_LIVE_PREFIX "%s%s%.40s", process,
                      *label ? "-" : "", label);
    if (fd >= 0 &&
        bind(fd, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) == 0 &&
        listen(fd, 4) == 0)
        return fd;
    NB_INFO(NCCL_INIT | NCCL_NET, CANNOT_ASK "socket @%s: %s", address.sun_path + 1, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

int nb_live_accept(int *live)
{
    const struct timeval patience = {.tv_sec = ANSWER_S};
    struct ucred who;
    socklen_t length = sizeof(who);
    /* A blocking socket, with a limit: Linux does not pass SOCK_NONBLOCK on. */
    const int fd = accept4(*live, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EPERM || errno == EACCES || errno == ENOSYS) {
            NB_INFO(NCCL_INIT | NCCL_NET,
                    CANNOT_ASK "allow the system call accept4, a filter such as seccomp refuses it: %s",
                    strerror(errno));
            close(*live);
            *live = -1;
        }
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 &&
        (who.uid == geteuid() || who.uid == 0) &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0)
        return fd;
    close(fd);
    return -1;
}

void nb_live_answer(int fd, const char *text, size_t bytes)
{
    const int64_t end = (int64_t)nb_now_ns() + ANSWER_S * (int64_t)NB_NS_PER_S;

    while (bytes > 0 && (int64_t)nb_now_ns() < end) {
        const ssize_t n = send(fd, text, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        text += n;
        bytes -= (size_t)n;
    }
    close(fd);
}
