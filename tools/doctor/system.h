/* SPDX-License-Identifier: Apache-2.0 */
/* Files of /sys, /proc and /dev, of this machine or of a copy of another one's (--system). */
#ifndef NIBBLE_TOOLS_DOCTOR_SYSTEM_H
#define NIBBLE_TOOLS_DOCTOR_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* Look below this folder from now on. "": the machine's own. The caller keeps the text. */
void system_root(const char *root);

/* Read the first line of a file, without its end. Return false, with line "", when there is none. */
bool system_line(char *line, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));
/* Return the number in a file, or `otherwise`. */
long system_number(long otherwise, const char *path, ...) __attribute__((format(printf, 2, 3)));
bool system_has(const char *path, ...) __attribute__((format(printf, 1, 2)));
/* Call see(arg, name) for each entry of a folder, in any order, without names that begin with a dot. Return
 * their number, 0 for a missing folder. `see` may be NULL. */
int system_each(const char *path, void (*see)(void *arg, const char *name), void *arg);

#endif
