/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces, found and filtered as NCCL's own socket transport does it. */
#ifndef NIBBLE_NET_TCP_IF_H
#define NIBBLE_NET_TCP_IF_H

#include <sys/socket.h>

struct nb_tcp_if {
    char name[64];
    char pci_path[256];           /* "" for virtual interfaces */
    struct sockaddr_storage addr; /* port 0 */
    unsigned index;               /* kernel's interface index */
    int speed_mbps;               /* 10000 when the kernel does not know */
    int known_mbps;               /* 0 when it does not */
};

/* Fill up to `max` interfaces, each once, in the kernel's order. NCCL_SOCKET_IFNAME (comma list of prefixes;
 * a leading ^ excludes, = asks for exact names, ^= both) and NCCL_SOCKET_FAMILY (AF_INET, AF_INET6) choose;
 * without the first: names that begin with "ib", else all but loopback, docker and virbr, else docker, else
 * loopback, else virbr, of those that are up. Returns the count (0 is possible) or a negative errno after a
 * WARN: -EINVAL for a bad family, -ENODEV when NCCL_SOCKET_IFNAME matches nothing. */
int nb_tcp_if_find(struct nb_tcp_if *ifs, int max);

/* "address<port>" into buf (at least 64 bytes). */
void nb_tcp_addr_name(const struct sockaddr_storage *addr, char *buf, size_t cap);

/* Length of the socket address for its family. */
socklen_t nb_tcp_addr_len(const struct sockaddr_storage *addr);

#endif
