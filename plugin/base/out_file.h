/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files for others to read while the job runs. Calls may take as long as the file system does: never on the engine's thread or
 * NCCL's.
 */
#ifndef NIBBLE_BASE_OUT_FILE_H
#define NIBBLE_BASE_OUT_FILE_H

#include <stddef.h>

/* Put a file with these `bytes` bytes in the place of `path`: a reader sees the old one or the new one,
 * whole. It is written under another name in the same folder, which ends in ".tmp". 0 or a negative errno;
 * the old one stays then. */
int nb_out_file_replace(const char *path, const void *data, size_t bytes);

#endif
