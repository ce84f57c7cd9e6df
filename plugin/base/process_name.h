/* SPDX-License-Identifier: Apache-2.0 */
/* A name that distinguishes the processes of one host, containers' too. */
#ifndef NIBBLE_BASE_PROCESS_NAME_H
#define NIBBLE_BASE_PROCESS_NAME_H

#define NB_PROCESS_NAME 24

/* Write "PID", or "PID-XXXXXXXX" in a container with process numbers of its own. There another container of
 * the same host, with the same host name, may have the same number. The eight hexadecimal digits stand for
 * the machine's boot and the process namespace. Any thread. The name is the calling process's, also after a
 * fork. */
void nb_process_name(char name[NB_PROCESS_NAME]);

#endif
