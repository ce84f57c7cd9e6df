/* SPDX-License-Identifier: Apache-2.0 */
/* Files of /sys, /proc and /dev: of this machine, or of a copy of another one's (--system). */
#ifndef NIBBLE_TOOLS_DOCTOR_SYSTEM_H
#define NIBBLE_TOOLS_DOCTOR_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* Look below this folder from now on; "": the machine's own. The text is the caller's. */
void system_root(const char *root);

/* The first line of a file, without its end. False: there is none, and line is "". */
bool system_line(char *line, size_t cap, const char *path, ...) __attribute__((format(printf, 3, 4)));
/* A number in it; `otherwise` where there is none. */
long system_number(long otherwise, const char *path, ...) __attribute__((format(printf, 2, 3)));
bool system_has(const char *path, ...) __attribute__((format(printf, 1, 2)));
/* Call see(arg, name) for what is in a folder, in no order, names beginning with a dot left out. How many; 0
 * where there is no such folder. `see` may be NULL. */
int system_each(const char *path, void (*see)(void *arg, const char *name), void *arg);

#endif
