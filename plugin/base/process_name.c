/* SPDX-License-Identifier: Apache-2.0 */
/* See process_name.h. */
#include "base/process_name.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
