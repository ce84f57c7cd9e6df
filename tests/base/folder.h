/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for files that the plugin writes or reads beside the job, for one test. */
#ifndef NIBBLE_TESTS_FOLDER_H
#define NIBBLE_TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

/* Make the folder and put its path into `path`, 64 bytes. Return NULL and set errno where that fails. The
 * folder lies in memory where the system has such a place: on a disk that other programs keep busy, a write
 * may take longer than the plugin waits for it at its end. Tests of that case delay the write themselves. */
static inline char *folder_make(char path[64], const char *name)
{
    snprintf(path, 64, "/dev/shm/nibble-%.32s-XXXXXX", name);
    if (mkdtemp(path))
        return path;
    snprintf(path, 64, "/tmp/nibble-%.32s-XXXXXX", name);
    return mkdtemp(path);
}

#endif
