/* SPDX-License-Identifier: Apache-2.0 */
/* Find the NCCL libraries of this machine: by the loader's search, and in PyTorch's packages. See info.h. */
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "info.h"

/* Print PyTorch's version and the NCCL library of its packages, a line each, without importing PyTorch. */
static const char script[] =
    "import importlib.metadata as m, importlib.util as u, os\n"
    "try: print(m.version('torch'))\n"
    "except m.PackageNotFoundError: print('')\n"
    "try: s = u.find_spec('nvidia.nccl')\n"
    "except ModuleNotFoundError: s = None\n"
    "d = list(s.submodule_search_locations)[0] if s and s.submodule_search_locations else ''\n"
    "f = os.path.join(d, 'lib', 'libnccl.so.2') if d else ''\n"
    "print(f if os.path.exists(f) else '')\n";

/* Return the version of a library, and its path in `path`, or 0 with the reason in `why`. */
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
    return version; /* it stays loaded, since NCCL does not support unloading */
}

/* Read a line without its end, or "". */
static void line_of(FILE *f, char *line, size_t cap)
{
    if (!f || !fgets(line, (int)cap, f))
        line[0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
}

/* Run the interpreter without a shell: its name comes from the user. */
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

static void look_at(struct info_nccl *nccl, const char *from, const char *torch, const char *file)
{
    const char *why = "";

    nccl->from = from;
    snprintf(nccl->torch, sizeof(nccl->torch), "%s", torch);
    nccl->version = version_of(file, nccl->file, sizeof(nccl->file), &why);
    snprintf(nccl->problem, sizeof(nccl->problem), "%s", why);
    nccl->supported = nccl->version && info_support_of(nccl->version, &nccl->support);
    if (nccl->version && !nccl->supported)
        snprintf(nccl->problem, sizeof(nccl->problem), "older than 2.20: not supported");
}

int info_nccl_find(const struct info_options *options, struct info_nccl found[2])
{
    char torch[64], file[PATH_MAX];
    pid_t child = 0;

    if (options->nccl) {
        look_at(&found[0], "asked for", "", options->nccl);
        return 1;
    }
    look_at(&found[0], "library path", "", "libnccl.so.2");
    FILE *answer = ask(options->python, &child);
    line_of(answer, torch, sizeof(torch));
    line_of(answer, file, sizeof(file));
    if (answer) {
        fclose(answer);
        waitpid(child, NULL, 0);
    }
    if (!*file)
        return 1;
    look_at(&found[1], "Python's packages", *torch ? torch : "none", file);
    return 2;
}

static void row(struct emit *e, const struct info_nccl *nccl)
{
    char text[32];

    emit_row(e);
    emit_text(e, "found", nccl->from);
    if (*nccl->torch)
        emit_text(e, "torch", nccl->torch);
    emit_text(e, "file", nccl->file);
    if (nccl->version)
        emit_text(e, "version", info_nccl_version(nccl->version, text, sizeof(text)));
    if (!nccl->supported) {
        emit_text(e, "problem", nccl->problem);
        return;
    }
    emit_number(e, "net_table", nccl->support.net);
    emit_number(e, "tuner_table", nccl->support.tuner);
    emit_number(e, "profiler_table", nccl->support.profiler);
    emit_text(e, "all_gather", "exact differences");
    emit_text(e, "reduce_scatter", "quantized");
    emit_text(e, "all_reduce", nccl->support.profiler >= 5 ? "quantized" : "raw");
    emit_text(e, "note", nccl->support.note);
}

void info_nccl(struct emit *e, const struct info_options *options)
{
    struct info_nccl found[2];

    emit_section(e, "nccl", "NCCL");
    const int n = info_nccl_find(options, found);
    for (int i = 0; i < n; i++)
        row(e, &found[i]);
}

const char *info_nccl_version(int version, char *text, size_t cap)
{
    snprintf(text, cap, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}
