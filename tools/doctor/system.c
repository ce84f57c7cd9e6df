/* SPDX-License-Identifier: Apache-2.0 */
/* See system.h. */
#include "system.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *top = "";

void system_root(const char *root)
{
    top = root;
}

__attribute__((format(printf, 2, 0))) static void path_of(char full[PATH_MAX], const char *path, va_list ap)
{
    const int n = snprintf(full, PATH_MAX, "%s", top);

    if (n >= 0 && n < PATH_MAX)
        vsnprintf(full + n, (size_t)(PATH_MAX - n), path, ap);
}

static bool read_line(char *line, size_t cap, const char *full)
{
    FILE *f = fopen(full, "re");
    bool good = f && fgets(line, (int)cap, f);

    if (f)
        fclose(f);
    if (!good)
        line[0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    return good;
}

bool system_line(char *line, size_t cap, const char *path, ...)
{
    char full[PATH_MAX];
    va_list ap;

    va_start(ap, path);
    path_of(full, path, ap);
    va_end(ap);
    return read_line(line, cap, full);
}

long system_number(long otherwise, const char *path, ...)
{
    char full[PATH_MAX], line[64], *end;
    va_list ap;

    va_start(ap, path);
    path_of(full, path, ap);
    va_end(ap);
    if (!read_line(line, sizeof(line), full))
        return otherwise;
    const long value = strtol(line, &end, 10);
    return end == line ? otherwise : value;
}

bool system_has(const char *path, ...)
{
    char full[PATH_MAX];
    va_list ap;

    va_start(ap, path);
    path_of(full, path, ap);
    va_end(ap);
    return access(full, F_OK) == 0;
}

int system_each(const char *path, void (*see)(void *arg, const char *name), void *arg)
{
    char full[PATH_MAX];
    struct dirent *entry;
    int n = 0;

    if (snprintf(full, sizeof(full), "%s%s", top, path) >= (int)sizeof(full))
        return 0;
    DIR *dir = opendir(full);
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        if (see)
            see(arg, entry->d_name);
        n++;
    }
    if (dir)
        closedir(dir);
    return n;
}
