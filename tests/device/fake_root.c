/* SPDX-License-Identifier: Apache-2.0 */
/* A machine made of files. See fake_root.h. */
#include "tests/device/fake_root.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

const char *fake_root_make(void)
{
    snprintf(root, sizeof(root), "/tmp/nb-root-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    return root;
}

void fake_root_put(const char *path, const char *line)
{
    char full[256];
    FILE *f;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *at = strchr(full + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(full, 0700);
        *at = '/';
    }
    if (!*line)
        return;
    f = fopen(full, "we");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%s\n", line);
    fclose(f);
}

void fake_root_remove(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
}
