/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL is here: by the loader's search, and as PyTorch's packages bring it. */
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "info.h"

/* Prints PyTorch's version and the NCCL library of its packages, a line each, without importing PyTorch. */
static const char script[] =
    "import importlib.metadata as m, importlib.util as u, os\n"
    "try: print(m.version('torch'))\n"
    "except m.PackageNotFoundError: print('')\n"
    "try: s = u.find_spec('nvidia.nccl')\n"
    "except ModuleNotFoundError: s = None\n"
    "d = list(s.submodule_search_locations)[0] if s and s.submodule_search_locations else ''\n"
    "f = os.path.join(d, 'lib', 'libnccl.so.2') if d else ''\n"
    "print(f if os.path.exists(f) else '')\n";

/* The version of a library, and its path in `path`; 0: there is none, and `why` says so. */
static int version_of(const char *file, char *path, size_t cap, const char **why)
{
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *) = NULL;
    int version = 0;
    Dl_info where;

    snprintf(path, cap, "%s", file);
    if (!lib) {
        *why = dlerror();
        return 0;
    }
    void *symbol = dlsym(lib, "ncclGetVersion");
    memcpy(&get_version, &symbol, sizeof(symbol));
    if (!get_version || get_version(&version) != 0 || version <= 0) {
        *why = "it does not tell its version";
        return 0;
    }
    if (dladdr(symbol, &where) && where.dli_fname)
        snprintf(path, cap, "%s", where.dli_fname);
    return version; /* it stays loaded: NCCL does not expect to be unloaded */
}

static void row(struct emit *e, const char *from, const char *torch, const char *file)
{
    struct info_support s;
    char path[PATH_MAX], text[32];
    const char *why = NULL;
    const int version = version_of(file, path, sizeof(path), &why);

    emit_row(e);
    emit_text(e, "found", from);
    if (torch)
        emit_text(e, "torch", torch);
    emit_text(e, "file", path);
    if (!version) {
        emit_text(e, "problem", why);
        return;
    }
    snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    emit_text(e, "version", text);
    if (!info_support_of(version, &s)) {
        emit_text(e, "problem", "older than 2.20: not supported");
        return;
    }
    emit_number(e, "net_table", s.net);
    emit_number(e, "tuner_table", s.tuner);
    emit_number(e, "profiler_table", s.profiler);
    emit_text(e, "all_gather", "exact differences");
    emit_text(e, "reduce_scatter", "quantized");
    emit_text(e, "all_reduce", s.profiler >= 5 ? "quantized" : "raw");
    emit_text(e, "note", s.note);
}

/* A line without its end; "" where there is none. */
static void line_of(FILE *f, char *line, size_t cap)
{
    if (!f || !fgets(line, (int)cap, f))
        line[0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
}

/* The interpreter is run without a shell: its name is the user's. */
static FILE *ask(const char *python, pid_t *child)
{
    int ends[2];

    if (!*python || pipe(ends))
        return NULL;
    fflush(NULL);
    *child = fork();
    if (*child == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        if (!freopen("/dev/null", "w", stderr))
            _exit(127);
        execlp(python, python, "-c", script, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (*child < 0) {
        close(ends[0]);
        return NULL;
    }
    return fdopen(ends[0], "r");
}

void info_nccl(struct emit *e, const struct info_options *options)
{
    char torch[64], file[PATH_MAX];
    pid_t child = 0;

    emit_section(e, "nccl", "NCCL");
    if (options->nccl) {
        row(e, "asked for", NULL, options->nccl);
        return;
    }
    row(e, "library path", NULL, "libnccl.so.2");
    FILE *answer = ask(options->python, &child);
    line_of(answer, torch, sizeof(torch));
    line_of(answer, file, sizeof(file));
    if (answer) {
        fclose(answer);
        waitpid(child, NULL, 0);
    }
    if (*file)
        row(e, "Python's packages", *torch ? torch : "none", file);
}
