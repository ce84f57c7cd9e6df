/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test's own for files that the plugin writes or reads beside the job. */
#ifndef NIBBLE_TESTS_FOLDER_H
#define NIBBLE_TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

/* Make it and put its path into `path`, 64 bytes; NULL and errno where it cannot be made. It lies in memory where the
 * system has such a place: on a disk that other programs keep busy a write may take longer than the plugin waits for
 * one at its end, and tests of what it then says make that happen themselves. */
static inline char *folder_make(char path[64], const char *name)
{
    snprintf(path, 64, "/dev/shm/nibble-%.32s-XXXXXX", name);
    if (mkdtemp(path))
        return path;
    snprintf(path, 64, "/tmp/nibble-%.32s-XXXXXX", name);
    return mkdtemp(path);
}

#endif
