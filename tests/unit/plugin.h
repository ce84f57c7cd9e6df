/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tests find the plugin that was built. */
#ifndef NIBBLE_TESTS_PLUGIN_H
#define NIBBLE_TESTS_PLUGIN_H

#include <stdlib.h>

/* "make check" names the file; by hand, a test runs in the build folder. */
static inline const char *plugin_path(void)
{
    const char *path = getenv("NB_PLUGIN");
    return path && *path ? path : "./.libs/libnccl-net-nibble.so";
}

#endif
