/* SPDX-License-Identifier: Apache-2.0 */
/* Shield the tests from settings in the caller's environment, and read the variables that "make check"
 * sets. */
#ifndef NIBBLE_TESTS_ENVIRONMENT_H
#define NIBBLE_TESTS_ENVIRONMENT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Unset all settings. A program calls this first. */
static inline void environment_clear(void)
{
    extern char **environ;
    for (char **e = environ; e && *e;) {
        char name[256];
        if (strncmp(*e, "NIBBLE_", 7) != 0) {
            e++;
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        unsetenv(name);
        e = environ;
    }
}

/* Return the path of the built plugin. "make check" names the file. Started by hand, a test runs in the build
 * folder. */
static inline const char *environment_plugin(void)
{
    const char *path = getenv("NB_PLUGIN");
    return path && *path ? path : "./.libs/libnccl-net-nibble.so";
}

#endif
