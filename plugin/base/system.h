/* SPDX-License-Identifier: Apache-2.0 */
/* Services of the operating system: names of processes, unguessable bytes, files that other programs read. */
#ifndef NIBBLE_BASE_SYSTEM_H
#define NIBBLE_BASE_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* ---- names ------------------------------------------------------------------------------------------ */

/* A name that distinguishes the processes of one host, containers' too. */
#define NB_PROCESS_NAME 24

/* Write "PID", or "PID-XXXXXXXX" in a container with process numbers of its own. There another container of
 * the same host, with the same host name, may have the same number. The eight hexadecimal digits stand for
 * the machine's boot and the process namespace. Any thread. The name is the calling process's, also after a
 * fork. */
void nb_process_name(char name[NB_PROCESS_NAME]);

/* ---- random bytes ----------------------------------------------------------------------------------- */

#define NB_TOKEN_BYTES 16

/* Fill `buf` from the kernel's generator. Return 0, or a negative errno after a WARN line. Any thread. */
int nb_random(void *buf, size_t bytes);

/* Make a token that strangers cannot guess and that differs from run to run. It travels in NCCL's handles,
 * and the accepting side drops a connection that does not show it. Return 0 or a negative errno. */
static inline int nb_random_token(uint8_t token[NB_TOKEN_BYTES])
{
    return nb_random(token, NB_TOKEN_BYTES);
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* For files that other programs read while the job runs. A call may take as long as the file system does, so
 * the threads of the engine and of NCCL must not make it. Replace the file `path` by one with these `bytes`
 * bytes. A reader sees the old or the new file, whole. The new file is written under another name in the same
 * folder, which ends in ".tmp". Return 0 or a negative errno. On an error the old file stays. */
int nb_out_file_replace(const char *path, const void *data, size_t bytes);

#endif
