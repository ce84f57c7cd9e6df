/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find and start the plugin file that NCCL would load, and ask it for devices, as NCCL does (openPluginLib
 * and ncclNetInit in src/plugin). A process of its own does that, so that a crash or a hang becomes a
 * finding, too.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "base/version.h"
#include "doctor.h"
#include "nibble/nccl_net.h"

#define LIMIT_MS 30000 /* for a start that looks at all devices */

/* The child's answer, written once or not at all. */
struct answer {
    enum { FOUND_NOTHING, FOUND_OTHER, STARTED, START_FAILED } what;
    int devices;
    char file[PATH_MAX], name[64], version[96], line[512];
};

static struct answer answer; /* the child's */

__attribute__((format(printf, 5, 6))) static void hear(ncclDebugLogLevel level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...)
{
    static const char banner[] = "version ";
    char text[512], *at;
    va_list ap;

    (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    at = strstr(text, banner);
    if (level == NCCL_LOG_INFO && at && strstr(at, ", transport ") && !*answer.version) {
        at += sizeof(banner) - 1;
        snprintf(answer.version, sizeof(answer.version), "%.*s", (int)(strstr(at, ", transport ") - at), at);
    }
    if (level == NCCL_LOG_WARN && !*answer.line)
        snprintf(answer.line, sizeof(answer.line), "%s", text);
}

static void *open_plugin(const char *name)
{
    char file[PATH_MAX];
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (lib || strchr(name, '/'))
        return lib;
    snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static void start(const ncclNet_v12_t *net)
{
    ncclNetCommConfig_v11_t config = {.trafficClass = -1};
    void *ctx = NULL;

    answer.what =
        net->init(&ctx, 1, &config, hear, NULL) == ncclSuccess && net->devices(&answer.devices) == ncclSuccess
            ? STARTED
            : START_FAILED;
}

static void child(const char *name, int out)
{
    void *lib = open_plugin(name), *symbol;
    Dl_info where;

    if (!lib) {
        const char *why = dlerror();
        snprintf(answer.line, sizeof(answer.line), "%s", why ? why : "it cannot be opened");
    } else if (!(symbol = dlsym(lib, "ncclNetPlugin_v12"))) {
        answer.what = FOUND_OTHER;
        snprintf(answer.line, sizeof(answer.line), "it has no table of this release's (ncclNetPlugin_v12)");
    } else {
        const ncclNet_v12_t *net = symbol;
        if (dladdr(symbol, &where) && where.dli_fname)
            snprintf(answer.file, sizeof(answer.file), "%s", where.dli_fname);
        snprintf(answer.name, sizeof(answer.name), "%s", net->name);
        if (strcmp(net->name, "nibble") == 0)
            start(net);
        else
            answer.what = FOUND_OTHER;
    }
    _exit(write(out, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* Read the answer until the child ends or the time is over. Return false without an answer. */
static bool await(int in, struct answer *got)
{
    const uint64_t end = nb_now_ns() + LIMIT_MS * NB_NS_PER_MS;
    size_t have = 0;

    while (have < sizeof(*got)) {
        const uint64_t now = nb_now_ns();
        struct pollfd p = {.fd = in, .events = POLLIN};
        const int ready = now < end ? poll(&p, 1, (int)((end - now) / NB_NS_PER_MS) + 1) : 0;
        if (ready == 0)
            return false;
        const ssize_t n = ready > 0 ? read(in, (char *)got + have, sizeof(*got) - have) : -1;
        if (n == 0)
            return false;
        if (n < 0 && errno != EINTR)
            return false;
        have += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool ask(const char *name, struct answer *got, int *status)
{
    int ends[2];
    bool told;

    if (pipe(ends))
        return false;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        child(name, ends[1]);
    }
    close(ends[1]);
    told = pid > 0 && await(ends[0], got);
    close(ends[0]);
    if (pid > 0) {
        if (!told)
            kill(pid, SIGKILL);
        waitpid(pid, status, 0);
    }
    return told;
}

/* Write how NCCL finds this release's plugin, with the folder if it lies beside this program: in a build, or
 * below a prefix. */
static void write_remedy(char *text, size_t cap)
{
    static const char *const places[] = {"../.libs", "../../.libs", "../lib"};
    static const char file[] = "libnccl-net-nibble.so";
    char self[4096], path[4400], folder[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    snprintf(text, cap, "add the folder of this release's %s to LD_LIBRARY_PATH, before others", file);
    self[n > 0 ? n : 0] = '\0';
    if (!strrchr(self, '/'))
        return;
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s/%s", self, places[i], file);
        if (access(path, R_OK))
            continue;
        *strrchr(path, '/') = '\0';
        if (realpath(path, folder) && strlen(folder) <= 300) /* a cut folder would be another one */
            snprintf(text, cap, "export LD_LIBRARY_PATH=%.300s:$LD_LIBRARY_PATH", folder);
        return;
    }
}

static void judge(struct report *r, const struct answer *got)
{
    char remedy[sizeof(r->check->remedy)];

    write_remedy(remedy, sizeof(remedy));

    switch (got->what) {
    case FOUND_NOTHING:
        say(r, STATUS_PROBLEM, "library", remedy, "NCCL finds no plugin: %s", got->line);
        break;
    case FOUND_OTHER:
        say(r, STATUS_PROBLEM, "library", remedy, "NCCL loads another plugin: %s %s%s", got->file,
            *got->name ? got->name : "", got->line);
        break;
    case START_FAILED:
        say(r, STATUS_PROBLEM, "library", "remove the cause that is named", "%s does not start: %s",
            got->file, got->line);
        break;
    case STARTED:
        if (strcmp(got->version, nb_version_with_commit()) != 0)
            say(r, STATUS_PROBLEM, "library", remedy, "NCCL loads %s, which is version %s; this is %s",
                got->file, *got->version ? got->version : "unknown", nb_version_with_commit());
        else
            say(r, STATUS_OK, "library", NULL, "%s: version %s, starts with %d device%s", got->file,
                got->version, got->devices, got->devices == 1 ? "" : "s");
    }
}

void check_library(struct doctor *d)
{
    const char *plugin = nb_env("NCCL_NET_PLUGIN");
    static struct answer got;
    char name[256];
    int status = 0;

    got = (struct answer){0};
    /* Where the variable is missing, another check reports that. Use the name that belongs there. */
    snprintf(name, sizeof(name), "%s", plugin && strstr(plugin, "nibble") ? plugin : "nibble");
    name[strcspn(name, ",")] = '\0';
    if (ask(name, &got, &status))
        judge(&d->report, &got);
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        say(&d->report, STATUS_PROBLEM, "library", "install the release anew",
            "the plugin %s ends its process: %s", name, strsignal(WTERMSIG(status)));
    else
        say(&d->report, STATUS_PROBLEM, "library", "look at the driver of a device (dmesg)",
            "the plugin %s has not started within %d s", name, LIMIT_MS / 1000);
}
