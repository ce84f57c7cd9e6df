/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins after nibble. See next.h. */
#include "abi/next.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "nibble/nccl_profiler.h"
#include "nibble/nccl_tuner.h"

static const struct kind {
    const char *setting, *library, *symbol;
    int oldest;
} kinds[] = {
    [NB_NEXT_PROFILER] = {"NIBBLE_PROFILER_NEXT", "libnccl-profiler", "ncclProfiler", NB_PROFILER_OLDEST},
    [NB_NEXT_TUNER] = {"NIBBLE_TUNER_NEXT", "libnccl-tuner", "ncclTunerPlugin", NB_TUNER_OLDEST},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char setting[256]; /* for which `dl` was opened. Another setting is for the next process */
    char file[300];
    void *dl;
    bool tried, logged; /* tried: opened, or opening failed. logged: the missing table has been logged */
} library[2];

/* Return the library that an address belongs to, or NULL. */
static const void *library_of(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

static bool try_open(enum nb_next which, const char *file)
{
    snprintf(library[which].file, sizeof(library[which].file), "%s", file);
    library[which].dl = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return library[which].dl != NULL;
}

/* Open as NCCL does: a name that is neither a path nor a library's file name may be the X of
 * libnccl-...-X.so. */
static void open_library(enum nb_next which, const char *name)
{
    const struct kind *kind = &kinds[which];
    char file[300], first[256];
    const size_t n = strlen(name);
    const bool is_library = n > 6 && strncmp(name, "lib", 3) == 0 && strcmp(name + n - 3, ".so") == 0;

    library[which].tried = true;
    if (snprintf(library[which].setting, sizeof(library[which].setting), "%s", name) >=
        (int)sizeof(library[which].setting)) {
        NB_WARN("%s: the name is too long: %s", kind->setting, name);
        return;
    }
    if (try_open(which, name))
        return;
    snprintf(first, sizeof(first), "%s", dlerror());
    snprintf(file, sizeof(file), "%s-%s.so", kind->library, name);
    if (!strchr(name, '/') && !is_library && try_open(which, file))
        return;
    NB_WARN("%s=%s: cannot open it, so that nibble passes nothing on: %s", kind->setting, name, first);
}

struct nb_next_table nb_next_find(enum nb_next which, int newest)
{
    const struct kind *kind = &kinds[which];
    const char *name = nb_env(kind->setting);
    struct nb_next_table found = {.table = NULL};
    char symbol[64];

    if (!name)
        return found;
    pthread_mutex_lock(&lock);
    if (!library[which].tried)
        open_library(which, name);
    for (int v = newest; v >= kind->oldest && library[which].dl && !found.table; v--) {
        snprintf(symbol, sizeof(symbol), "%s_v%d", kind->symbol, v);
        found.table = dlsym(library[which].dl, symbol);
        found.version = v;
    }
    if (found.table && library_of(found.table) == library_of(kinds)) {
        found.table = NULL;
        if (!library[which].logged)
            NB_WARN("%s=%s is nibble itself: it must name another plugin", kind->setting, name);
        library[which].logged = true;
    } else if (library[which].dl && !found.table && !library[which].logged) {
        NB_WARN("%s=%s has no table %s_v%d to _v%d, so that nibble passes nothing on", kind->setting, name,
                kind->symbol, kind->oldest, newest);
        library[which].logged = true;
    }
    found.file = library[which].file;
    /* The first member of all tables. */
    if (found.table)
        found.name = *(const char *const *)found.table;
    pthread_mutex_unlock(&lock);
    return found;
}
