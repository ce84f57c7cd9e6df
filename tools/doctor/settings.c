/* SPDX-License-Identifier: Apache-2.0 */
/* nibble's own settings: bad values, unknown names, and settings without effect. */
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/next.h"
#include "abi/settings.h"
#include "base/params.h"
#include "base/version.h"
#include "coll/comm/grid.h"
#include "doctor.h"
#include "nibble/nccl_profiler.h"
#include "nibble/nccl_tuner.h"

static void without_effect(void *arg, const struct nb_param_view *view)
{
    struct doctor *d = arg;
    const char *why = nb_params_pointless(d->params, view->name);

    if (!view->is_default && why)
        say(&d->report, STATUS_WARNING, "settings", "unset one of the two", "%s=%s has no effect: %s",
            view->name, view->value, why);
}

/* A job would log this among many lines and go on. */
static void check_grid(struct doctor *d)
{
    const struct nb_params *p = d->params;
    const int nodes = d->options.nodes;
    const bool two_level = p->schedule == NB_SCHEDULE_TWO_LEVEL;
    char why[160], asked[32];

    if (nodes < 2 || (!two_level && (p->schedule != NB_SCHEDULE_AUTO || !p->group)))
        return; /* without_effect reports NIBBLE_GROUP beside another schedule */
    /* With sites NIBBLE_SCHEDULE=auto makes a grid of fewer nodes, too. */
    nb_grid_why_not(nodes, p->site[0] ? NB_SCHEDULE_TWO_LEVEL : p->schedule, p->group, why, sizeof(why));
    if (!why[0])
        return;
    if (p->group)
        snprintf(asked, sizeof(asked), "NIBBLE_GROUP=%lld", (long long)p->group);
    else
        snprintf(asked, sizeof(asked), "NIBBLE_SCHEDULE=two-level");
    say(&d->report, STATUS_WARNING, "settings",
        "NIBBLE_GROUP: a divisor of the number of nodes; with few nodes NIBBLE_SCHEDULE=two-level, too",
        "%s: no grid of %d nodes, all are connected with each other: %s", asked, nodes, why);
}

/* A job would log this once and go on. */
static void check_folder(struct doctor *d, const char *setting, const char *folder)
{
    struct stat st;

    if (!folder[0])
        return;
    if (stat(folder, &st) == 0 && !S_ISDIR(st.st_mode))
        errno = ENOTDIR;
    else if (access(folder, W_OK | X_OK) == 0)
        return;
    say(&d->report, STATUS_WARNING, "settings", "make the folder on all nodes, writable for the job",
        "%s=%s: nothing will be written there: %s", setting, folder, strerror(errno));
}

/* The file may appear later, but not in a folder that does not exist. */
static void check_control(struct doctor *d, const char *file)
{
    char folder[4096];

    if (!file[0] || access(file, R_OK) == 0)
        return;
    snprintf(folder, sizeof(folder), "%s", file);
    if (errno == ENOENT && access(dirname(folder), X_OK) == 0)
        return;
    say(&d->report, STATUS_WARNING, "settings", "name a file that this node can read",
        "NIBBLE_CONTROL=%s: it cannot switch compression off: %s", file, strerror(errno));
}

/* Open the plugins after nibble, as a job would. */
static void check_next(struct doctor *d)
{
    char line[400];

    nb_next_find(NB_NEXT_PROFILER, NB_PROFILER_NEWEST);
    nb_next_find(NB_NEXT_TUNER, NB_TUNER_NEWEST);
    while (log_next(line, sizeof(line)))
        say(&d->report, STATUS_WARNING, "settings", "give the path of a library that this node has", "%s",
            line);
}

void check_settings(struct doctor *d)
{
    char settings[400], line[400];

    say(&d->report, STATUS_OK, "version", NULL, "%s, wire format %u, rules %u", nb_version_with_commit(),
        NB_WIRE_VERSION, NB_RULES_VERSION);
    if (nb_settings_read(&d->params)) {
        say(&d->report, STATUS_PROBLEM, "settings", "free memory", "no memory");
        return;
    }
    while (log_next(line, sizeof(line))) {
        const bool bad = d->params->bad_setting[0] && !strstr(line, ", and ignored");
        say(&d->report, bad ? STATUS_PROBLEM : STATUS_WARNING, "settings",
            "correct or unset it on all nodes (nibble-info --all shows what there is)", "%s", line);
    }
    nb_params_each(d->params, without_effect, d);
    check_grid(d);
    nb_params_describe(d->params, settings, sizeof(settings));
    if (!d->params->enable)
        say(&d->report, STATUS_WARNING, "settings", "unset NIBBLE_ENABLE",
            "NIBBLE_ENABLE=0: nothing is compressed");
    if (d->params->shadow)
        say(&d->report, STATUS_WARNING, "settings", "unset NIBBLE_SHADOW to compress",
            "NIBBLE_SHADOW=1: everything is sent raw, the codecs run beside it");
    check_folder(d, "NIBBLE_METRICS", d->params->metrics);
    check_folder(d, "NIBBLE_HANG_REPORT", d->params->hang_report);
    check_control(d, d->params->control);
    check_next(d);
    /* With a bad setting the job stops, unless NIBBLE_REQUIRE lets it go on. */
    if (!d->params->bad_setting[0])
        say(&d->report, STATUS_OK, "settings", NULL, "in force: %s", *settings ? settings : "defaults");
}
