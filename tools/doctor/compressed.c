/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, the collectives that will be compressed under it on nodes like this one, and the reasons for the
 * others. */
#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "base/params.h"
#include "coll/comm/grid.h"
#include "coll/decide/decide.h"
#include "doctor.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"

const char *const function_names[NB_FUNC_COUNT] = {"reduce-scatter", "all-gather", "all-reduce"};

/* Report another vendor's plugin of this name: NCCL loads it without any variable, in nibble's place. */
static bool on_path(struct doctor *d, const char *variable, const char *file, const char *without)
{
    void *lib = nb_env(variable) ? NULL : dlopen(file, RTLD_LAZY | RTLD_LOCAL);

    if (!lib)
        return false;
    dlclose(lib);
    say(&d->report, STATUS_WARNING, "nccl", NULL,
        "%s is on the library path and takes the place of nibble's: %s", file, without);
    say_remedy(&d->report, "export %s=libnccl-net-nibble.so", variable);
    return true;
}

/* Find out whether NCCL takes profiler and tuner from the net plugin's file only if a variable names it:
 * docs/nccl-versions.md. */
static void slots(struct doctor *d, const struct info_nccl *nccl, bool *profiler, bool *tuner)
{
    const bool named_profiler = nb_env("NCCL_PROFILER_PLUGIN") && d->profiler;
    const bool named_tuner = nb_env("NCCL_TUNER_PLUGIN") && d->tuner;

    *profiler = d->profiler && nccl->support.profiler >= 5;
    *tuner = d->tuner && nccl->support.tuner > 0;
    if (*profiler && !named_profiler)
        *profiler = !on_path(d, "NCCL_PROFILER_PLUGIN", "libnccl-profiler.so", "all-reduces stay raw");
    if (*tuner && !named_tuner && nccl->version >= 22700 && nccl->version < 22706) {
        say(&d->report, STATUS_WARNING, "nccl", "export NCCL_TUNER_PLUGIN=libnccl-net-nibble.so",
            "this NCCL does not find the tuner in the net plugin");
        *tuner = false;
    } else if (*tuner && !named_tuner) {
        *tuner = !on_path(d, "NCCL_TUNER_PLUGIN", "libnccl-tuner.so",
                          "NCCL takes CollNet only where its own model prefers it");
    }
}

/* Return why operations of a kind stay uncompressed under every NCCL, or NULL. */
static const char *in_general(const struct doctor *d, bool per_gpu)
{
    if (!d->collnet)
        return "the environment keeps NCCL from nibble's CollNet (above)";
    if (!d->params->enable)
        return "NIBBLE_ENABLE=0";
    if (d->params->shadow)
        return "NIBBLE_SHADOW=1";
    if (!d->list || d->list->n == 0)
        return "there is no network device";
    if (per_gpu && d->gpus > d->list->n)
        return "there are fewer network devices than GPUs";
    if (per_gpu && d->gpus == 1 && !d->nvswitch && !d->params->force_collnet)
        return "NCCL rules CollNet out: no NVSwitch, and NIBBLE_FORCE_COLLNET is not 1";
    return NULL;
}

/* Return the facts that this node would tell the others of a communicator on its slowest device. */
static struct nb_reckon_facts facts_of(const struct doctor *d)
{
    const int n = d->list ? d->list->n : 0;
    int mbps = n ? INT_MAX : 0;
    bool gpu = false;

    for (int i = 0; i < n; i++) {
        mbps = d->list->device[i].net.rate_mbps < mbps ? d->list->device[i].net.rate_mbps : mbps;
        gpu |= (d->list->device[i].mem_support & NB_MEM_CUDA) != 0;
    }
    if (d->options.gbps > 0)
        mbps = (int)(1000 * d->options.gbps);
    return info_reckon_facts(d->params, mbps, gpu, (unsigned)d->threads);
}

/* Find out why operations of each function stay raw whatever the link: d->why, NULL where nothing does
 * that. */
static void causes(struct doctor *d, const struct info_nccl *nccl, bool profiler)
{
    const char *apiece = in_general(d, true), *any = in_general(d, false);
    const struct nb_params *p = d->params;

    d->why[NB_FUNC_REDUCE_SCATTER] = apiece ? apiece : p->rs == NB_SUM_RAW ? "NIBBLE_RS=raw" : NULL;
    d->why[NB_FUNC_ALL_GATHER] = apiece                                     ? apiece
                                 : p->ag == NB_AG_RAW || p->ag == NB_AG_OFF ? "NIBBLE_AG says so"
                                                                            : NULL;
    d->why[NB_FUNC_ALL_REDUCE] = any                   ? any
                                 : p->ar == NB_SUM_RAW ? "NIBBLE_AR=raw"
                                 : nccl->support.profiler < 5
                                     ? "this NCCL reports no calls to profilers (from 2.28 on it does)"
                                 : !profiler ? "another profiler has the place of nibble's"
                                             : NULL;
}

static void raw(struct doctor *d, enum nb_func func, const char *why)
{
    d->raw[func] = true;
    say(&d->report, STATUS_WARNING, "compressed", "remove the cause, or accept that", "%s: raw: %s",
        function_names[func], why);
}

/* Say what becomes of sums of gradients that the reckoning decides on, in the plugin's words. */
static void tell_reckoned(struct doctor *d, enum nb_func func, const struct nb_reckoning *r)
{
    char text[300];

    nb_reckon_text(r, func, text, sizeof(text));
    d->raw[func] = !nb_reckon_pays(r, func);
    if (nb_reckon_never(r, func, 2) || nb_reckon_never(r, func, 4))
        say(&d->report, STATUS_WARNING, "compressed", "remove the cause, or accept that", "%s: %s",
            function_names[func], text);
    else
        say(&d->report, STATUS_OK, "compressed", NULL, "%s: gradients quantized, once recognised: %s",
            function_names[func], text);
}

void tell_compressed(struct doctor *d, const struct nb_reckon_facts *slowest)
{
    const enum nb_ag_word ag = d->params->ag;
    const struct nb_grid grid =
        nb_grid_choose(d->options.nodes >= 2 ? d->options.nodes : 2, d->params->schedule, d->params->group);
    struct nb_reckoning r;
    char why[200];

    nb_facts_reckon(d->params, &grid, slowest, &r);
    const bool declined = nb_policy_declines(d->params, &r, why, sizeof(why));
    for (int i = 0; i < NB_FUNC_COUNT; i++) {
        const enum nb_func func = (enum nb_func)i;
        if (d->why[func])
            raw(d, func, d->why[func]);
        else if (declined)
            raw(d, func, why);
        else if (func != NB_FUNC_ALL_GATHER && r.known && nb_policy_reckons(d->params, func))
            tell_reckoned(d, func, &r);
        else
            say(&d->report, STATUS_OK, "compressed", NULL, "%s: %s", function_names[func],
                func != NB_FUNC_ALL_GATHER              ? "gradients quantized, once recognised"
                : ag == NB_AG_EXACT || ag == NB_AG_AUTO ? "exact differences"
                                                        : "as NIBBLE_AG says");
    }
}

static void collectives(struct doctor *d, const struct info_nccl *nccl)
{
    bool profiler, tuner;

    slots(d, nccl, &profiler, &tuner);
    causes(d, nccl, profiler);
    d->judged = true;
    if (!d->options.together)
        tell_compressed(d, &d->facts);
    if (!tuner)
        say(&d->report, STATUS_WARNING, "compressed", "NCCL 2.24 or later, and nibble's tuner in its place",
            "without nibble's tuner only what NCCL gives to CollNet by its own model is compressed");
    if (nccl->version >= 23000)
        say(&d->report, STATUS_OK, "compressed", NULL,
            "collectives on memory that is registered as a window (symmetric memory) pass CollNet by, and "
            "stay raw");
}

void check_compressed(struct doctor *d)
{
    const struct info_options options = {.python = d->options.python, .nccl = d->options.nccl};
    int known = -1;
    char text[32];

    d->facts = facts_of(d);
    d->nnccl = info_nccl_find(&options, d->nccl);
    for (int i = 0; i < d->nnccl; i++) {
        const struct info_nccl *nccl = &d->nccl[i];
        if (!nccl->supported)
            continue;
        say(&d->report, STATUS_OK, "nccl", NULL, "%s: %s %s%s%s", nccl->from,
            info_nccl_version(nccl->version, text, sizeof(text)), nccl->file,
            *nccl->torch ? ", PyTorch " : "", nccl->torch);
        if (*nccl->support.note)
            say(&d->report, nccl->version >= 23100 ? STATUS_WARNING : STATUS_OK, "nccl",
                nccl->version >= 23100 ? "see docs/nccl-versions.md" : NULL, "%s", nccl->support.note);
        known = i; /* PyTorch's, if there is one: a PyTorch job loads it */
    }
    if (known >= 0) {
        collectives(d, &d->nccl[known]);
        return;
    }
    for (int i = 0; i < d->nnccl; i++) {
        /* The loader's text begins with the file's name already. */
        const size_t n = strlen(d->nccl[i].file);
        const bool named = strncmp(d->nccl[i].problem, d->nccl[i].file, n) == 0;

        say(&d->report, d->nccl[i].version ? STATUS_PROBLEM : STATUS_WARNING, "nccl",
            d->nccl[i].version ? "NCCL 2.28 or later" : "--nccl FILE, or --python NAME: the job's own",
            "%s: %s%s%s", d->nccl[i].from, named ? "" : d->nccl[i].file, named ? "" : ": ",
            d->nccl[i].problem);
    }
}
