/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that other programs read while the job runs. Calls may take as long as the file system does, so the
 * threads of the engine and of NCCL must not make them.
 */
#ifndef NIBBLE_BASE_OUT_FILE_H
#define NIBBLE_BASE_OUT_FILE_H

#include <stddef.h>

/* Replace the file `path` by one with these `bytes` bytes. A reader sees the old or the new file, whole. The
 * new file is written under another name in the same folder, which ends in ".tmp". Return 0 or a negative
 * errno. On an error the old file stays. */
int nb_out_file_replace(const char *path, const void *data, size_t bytes);

#endif
