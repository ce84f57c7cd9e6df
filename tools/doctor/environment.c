/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's variables and configuration files that keep traffic away from nibble. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/params.h"
#include "doctor.h"

/* ---- Files ---- */

/* Take lines NAME=value, as setEnvFile in NCCL's src/misc/param.cc does: variables that are set stay. */
static void take_file(struct doctor *d, const char *path)
{
    FILE *f = fopen(path, "re");
    char line[2048];

    while (f && fgets(line, sizeof(line), f)) {
        char *value = strchr(line, '=');
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || !value)
            continue;
        *value++ = '\0';
        const char *had = getenv(line);
        if (had)
            continue;
        setenv(line, value, 0);
        say(&d->report, STATUS_OK, "environment", NULL, "%s=%s, of %s", line, value, path);
    }
    if (f)
        fclose(f);
}

void check_files(struct doctor *d)
{
    const char *named = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
    char path[1024];

    if (named && *named) {
        take_file(d, named);
    } else if (home) {
        snprintf(path, sizeof(path), "%s/.nccl.conf", home);
        take_file(d, path);
    }
    take_file(d, "/etc/nccl.conf");
}

/* ---- Variables ---- */

static bool contains(const char *text, const char *word)
{
    const size_t n = strlen(word);

    for (; *text; text++)
        if (strncasecmp(text, word, n) == 0)
            return true;
    return false;
}

static bool is_ours(const char *plugin)
{
    return contains(plugin, "nibble");
}

static void bad(struct doctor *d, const char *remedy, const char *name, const char *value, const char *effect)
{
    d->collnet = false;
    if (value)
        say(&d->report, STATUS_PROBLEM, "environment", remedy, "%s=%s: %s", name, value, effect);
    else
        say(&d->report, STATUS_PROBLEM, "environment", remedy, "%s is not set: %s", name, effect);
}

static void loading(struct doctor *d)
{
    const char *plugin = nb_env("NCCL_NET_PLUGIN"), *net = nb_env("NCCL_NET");
    const char *collnet = nb_env("NCCL_COLLNET_ENABLE");

    if (!plugin || !is_ours(plugin))
        bad(d, "export NCCL_NET_PLUGIN=nibble", "NCCL_NET_PLUGIN", plugin, "NCCL does not load nibble");
    else if (strchr(plugin, ','))
        say(&d->report, STATUS_WARNING, "environment", "export NCCL_NET_PLUGIN=nibble",
            "NCCL_NET_PLUGIN=%s: with a list NCCL takes the first that starts", plugin);
    else
        say(&d->report, STATUS_OK, "environment", NULL, "NCCL_NET_PLUGIN=%s", plugin);
    if (!collnet || atoi(collnet) != 1)
        bad(d, "export NCCL_COLLNET_ENABLE=1", "NCCL_COLLNET_ENABLE", collnet,
            "NCCL uses no CollNet, so nothing is compressed");
    else
        say(&d->report, STATUS_OK, "environment", NULL, "NCCL_COLLNET_ENABLE=%s", collnet);
    if (!net)
        say(&d->report, STATUS_WARNING, "environment", "export NCCL_NET=nibble",
            "NCCL_NET is not set: where nibble does not start NCCL goes on with its own transport, "
            "uncompressed");
    else if (strcasecmp(net, "nibble") != 0)
        bad(d, "export NCCL_NET=nibble", "NCCL_NET", net, "NCCL takes another transport");
    else
        say(&d->report, STATUS_OK, "environment", NULL, "NCCL_NET=%s", net);
}

/* NCCL_ALGO: "tree,ring", "^collnetdirect", "allreduce:collnetdirect;allgather:ring". */
static void choosing(struct doctor *d)
{
    const char *algo = nb_env("NCCL_ALGO"), *proto = nb_env("NCCL_PROTO");
    const char *threshold = nb_env("NCCL_COLLNET_NODE_THRESHOLD");

    if (algo && (*algo == '^' ? contains(algo, "collnet") : !contains(algo, "collnet")))
        bad(d, "unset NCCL_ALGO", "NCCL_ALGO", algo, "it rules CollNet out");
    else if (algo)
        say(&d->report, STATUS_WARNING, "environment", "unset NCCL_ALGO",
            "NCCL_ALGO=%s overrules nibble's tuner: functions that it gives to other algorithms stay raw",
            algo);
    if (proto && (*proto == '^' ? contains(proto, "simple") : !contains(proto, "simple")))
        bad(d, "unset NCCL_PROTO", "NCCL_PROTO", proto, "CollNet has the protocol Simple only");
    if (threshold && d->options.nodes > 0 && atoi(threshold) > d->options.nodes)
        bad(d, "unset NCCL_COLLNET_NODE_THRESHOLD", "NCCL_COLLNET_NODE_THRESHOLD", threshold,
            "NCCL uses CollNet only from so many nodes on");
    else if (threshold && d->options.nodes == 0 && atoi(threshold) > 2)
        say(&d->report, STATUS_WARNING, "environment", "unset NCCL_COLLNET_NODE_THRESHOLD",
            "NCCL_COLLNET_NODE_THRESHOLD=%s: no CollNet with fewer nodes", threshold);
}

/* NCCL has room for one profiler and one tuner. */
static bool slot(struct doctor *d, const char *name, const char *without)
{
    const char *value = nb_env(name);

    if (!value || is_ours(value))
        return true;
    say(&d->report, STATUS_WARNING, "environment", "unset it, or accept that",
        "%s=%s takes the place of nibble's: %s", name, value, without);
    return false;
}

void check_environment(struct doctor *d)
{
    d->collnet = true;
    loading(d);
    choosing(d);
    d->profiler = slot(d, "NCCL_PROFILER_PLUGIN", "all-reduces stay raw");
    d->tuner = slot(d, "NCCL_TUNER_PLUGIN", "NCCL takes CollNet only where its own model prefers it");
    if (!nb_env("NCCL_COMM_SPLIT_SHARE_RESOURCES"))
        say(&d->report, STATUS_OK, "environment", NULL,
            "NCCL_COMM_SPLIT_SHARE_RESOURCES is not set: export it as 1 where the framework splits "
            "communicators");
    else
        say(&d->report, STATUS_OK, "environment", NULL, "NCCL_COMM_SPLIT_SHARE_RESOURCES=%s",
            nb_env("NCCL_COMM_SPLIT_SHARE_RESOURCES"));
}
