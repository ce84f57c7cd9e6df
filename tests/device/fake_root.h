/* SPDX-License-Identifier: Apache-2.0 */
/* A machine made of files: a root directory of its own for what reads /sys and /proc. One at a time. */
#ifndef NIBBLE_TESTS_DEVICE_FAKE_ROOT_H
#define NIBBLE_TESTS_DEVICE_FAKE_ROOT_H

/* An empty one. Returns its path, which is valid until it is removed. */
const char *fake_root_make(void);
/* A file of this one line, with its folders; an empty line: the folders alone. path: as on the machine, from "/" on. */
void fake_root_put(const char *path, const char *line);
void fake_root_remove(void);

#endif
