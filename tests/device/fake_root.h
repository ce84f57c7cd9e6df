/* SPDX-License-Identifier: Apache-2.0 */
/* A machine made of files: a root directory for code that reads /sys and /proc. One at a time. */
#ifndef NIBBLE_TESTS_DEVICE_FAKE_ROOT_H
#define NIBBLE_TESTS_DEVICE_FAKE_ROOT_H

/* Make an empty root. Return its path, which is valid until its removal. */
const char *fake_root_make(void);
/* Make a file with this one line, and its folders. An empty line makes the folders alone. `path` is the path
 * on the machine, from "/" on. */
void fake_root_put(const char *path, const char *line);
void fake_root_remove(void);

#endif
