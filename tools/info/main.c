/* SPDX-License-Identifier: Apache-2.0 */
/* nibble-info: describe this build, its findings on this machine, and the settings here. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "abi/settings.h"
#include "base/log.h"
#include "base/version.h"
#include "info.h"
#include "tools/output.h"

static const char help[] =
    "usage: nibble-info [OPTION]... [NAME]...\n"
    "\n"
    "Describe this build of nibble and this machine: settings of the environment, network devices, codecs, "
    "GPU,\n"
    "NCCL and the collectives that are compressed under it. It sends nothing over the network.\n"
    "With names, show only these settings: value, default, allowed values, meaning. \"RS\" stands for\n"
    "NIBBLE_RS, and a part of a name for all names that contain it.\n"
    "\n"
    "  --json           one JSON object instead of text\n"
    "  --all            all settings with their meaning, also those at their defaults\n"
    "  --no-speed       skip measuring the codecs\n"
    "  --nccl FILE      use this NCCL library instead of looking for one\n"
    "  --python NAME    interpreter whose packages are searched for PyTorch (default python3; \"\": none)\n"
    "  --version, -h, --help\n"
    "\n"
    "Exit status: 0; 1 where a setting is bad or no network device is usable; 2 for a wrong call, or where "
    "no\n"
    "setting has such a name.\n";

/* Warnings, which are facts here. */
static char problems[32][1024];
static unsigned nproblems;

__attribute__((format(printf, 5, 6))) static void note(ncclDebugLogLevel level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)flags, (void)file, (void)line;
    if (level != NCCL_LOG_WARN || nproblems == sizeof(problems) / sizeof(problems[0]))
        return;
    va_start(ap, fmt);
    vsnprintf(problems[nproblems++], sizeof(problems[0]), fmt, ap);
    va_end(ap);
}

/* Show devices as a job would see them. Return their number. */
static int devices(struct emit *e, const struct nb_params *params)
{
    struct nb_context *ctx = calloc(1, sizeof(*ctx));
    int n = 0;

    if (!ctx || nb_context_init(ctx, NULL)) {
        free(ctx);
        return 0;
    }
    ctx->params = params;
    if (nb_context_start(ctx, NULL) == 0)
        n = info_devices(e, ctx);
    else
        emit_section(e, "devices", "network devices");
    if (n > 0)
        info_gain(e, ctx);
    else
        emit_section(e, "gain", "communicators");
    nb_context_stop(ctx);
    nb_context_fini(ctx);
    free(ctx);
    return n;
}

static void tell_problems(struct emit *e)
{
    emit_section(e, "problems", "problems");
    for (unsigned i = 0; i < nproblems; i++) {
        emit_row(e);
        emit_text(e, "text", problems[i]);
    }
}

/* Show the settings of these names, and which values of the environment are bad. Return the exit status. */
static int settings(struct emit *e, struct nb_params *params, char **name)
{
    int status = 0;

    emit_section(e, "settings", "settings");
    for (; *name; name++)
        if (!info_setting(e, params, *name)) {
            fprintf(stderr, "nibble-info: no setting has \"%s\" in its name; --all lists them\n", *name);
            status = 2;
        }
    if (nproblems > 0 || e->json)
        tell_problems(e);
    if (params->bad_setting[0] && status == 0)
        status = 1;
    nb_params_free(params);
    return emit_end(e) ? 1 : status;
}

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"json", no_argument, NULL, 'j'},         {"all", no_argument, NULL, 'a'},
        {"no-speed", no_argument, NULL, 's'},     {"nccl", required_argument, NULL, 'n'},
        {"python", required_argument, NULL, 'p'}, {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},         {0},
    };
    struct info_options options = {.python = "python3", .speed = true};
    struct nb_params *params;
    struct emit e;
    bool json = false, good;
    int c;

    output_check(1);
    while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        switch (c) {
        case 'j': json = true; break;
        case 'a': options.all = true; break;
        case 's': options.speed = false; break;
        case 'n': options.nccl = optarg; break;
        case 'p': options.python = optarg; break;
        case 'v': printf("nibble-info %s\n", nb_version_with_commit()); return 0;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-info --help\n", stderr); return 2;
        }
    }
    setenv("NCCL_DEBUG", "WARN", 1); /* warnings go to note() and stay off stderr */
    nb_log_set(note);
    if (nb_settings_read(&params)) {
        fprintf(stderr, "nibble-info: no memory\n");
        return 1;
    }
    good = !params->bad_setting[0];
    emit_begin(&e, stdout, json);
    if (optind < argc)
        return settings(&e, params, argv + optind);
    info_version(&e);
    info_settings(&e, params, options.all);
    good &= devices(&e, params) > 0;
    info_codecs(&e, options.speed);
    info_threads(&e, params);
    info_gpu(&e);
    info_nccl(&e, &options);
    tell_problems(&e);
    nb_params_free(params);
    return emit_end(&e) || !good;
}
