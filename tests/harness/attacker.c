/* SPDX-License-Identifier: Apache-2.0 */
/* See attacker.h. */
#include "attacker.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/harness.h"

/* Find the ports on which this process listens. */
static int own_ports(struct sockaddr_in *addr, int max)
{
    unsigned long inode[256];
    char path[300], link[64], line[512];
    struct dirent *e;
    DIR *d = opendir("/proc/self/fd");
    int ninode = 0, n = 0;
    FILE *f;

    while (d && (e = readdir(d)) && ninode < 256) {
        ssize_t len;

        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        len = readlink(path, link, sizeof link - 1);
        if (len > 0) {
            link[len] = 0;
            if (sscanf(link, "socket:[%lu]", &inode[ninode]) == 1)
                ninode++;
        }
    }
    if (d)
        closedir(d);
    f = fopen("/proc/self/net/tcp", "r");
    while (f && fgets(line, sizeof line, f) && n < max) {
        unsigned ip, port, state;
        unsigned long ino;

        if (sscanf(line, "%*d: %x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", &ip, &port, &state, &ino) !=
                4 ||
            state != 10)
            continue;
        for (int i = 0; i < ninode; i++) {
            if (inode[i] == ino) {
                memset(&addr[n], 0, sizeof addr[n]);
                addr[n].sin_family = AF_INET;
                addr[n].sin_addr.s_addr = ip;
                addr[n++].sin_port = htons((uint16_t)port);
                break;
            }
        }
    }
    if (f)
        fclose(f);
    return n;
}

void *attacker(void *arg)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    struct attack *a = arg;
    uint64_t rng = 4711;
    int held[40], nheld = 0;

    while (!atomic_load(&a->stop)) {
        struct sockaddr_in addr[16];
        int n = own_ports(addr, 16);

        for (int i = 0; i < n; i++) {
            struct timeval tv = {0, 100000};
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            unsigned char junk[4096];

            if (fd < 0)
                continue;
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
            if (connect(fd, (struct sockaddr *)&addr[i], sizeof addr[i]) == 0) {
                size_t len = 0;

                atomic_fetch_add(&a->hits, 1);
                switch (hx_rand_below(&rng, 4)) {
                case 0: memcpy(junk, http, len = sizeof http); break;
                case 1:
                    len = 1 + hx_rand_below(&rng, sizeof junk);
                    for (size_t k = 0; k < len; k++)
                        junk[k] = (unsigned char)hx_rand(&rng);
                    break;
                case 2:
                    len = 3;
                    memset(junk, 0, len); /* and send no further byte */
                    break;
                default: break; /* silent */
                }
                if (len && send(fd, junk, len, MSG_NOSIGNAL) < 0)
                    len = 0;
            }
            if (nheld < 40 && hx_rand_below(&rng, 2))
                held[nheld++] = fd; /* stays open */
            else
                close(fd);
        }
        hx_sleep(2e-3);
    }
    while (nheld)
        close(held[--nheld]);
    return NULL;
}
