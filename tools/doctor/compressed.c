/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, the collectives that will be compressed under it on nodes like this one, and the reasons for the
 * others. */
#include <dlfcn.h>
#include <string.h>

#include "base/params.h"
#include "doctor.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"

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

static void tell(struct doctor *d, const char *name, const char *how, const char *why)
{
    if (why)
        say(&d->report, STATUS_WARNING, "compressed", "remove the cause, or accept that", "%s: raw: %s", name,
            why);
    else
        say(&d->report, STATUS_OK, "compressed", NULL, "%s: %s", name, how);
}

/* Reckon as the nodes of a job like this do at connect. Return false where codecs run on GPUs, of which no speed is
 * tabled. */
static bool reckon(const struct doctor *d, struct nb_reckoning *r)
{
    int mbps = 0;

    for (int i = 0; d->list && i < d->list->n; i++) {
        mbps = d->list->device[i].net.rate_mbps > mbps ? d->list->device[i].net.rate_mbps : mbps;
        if (d->list->device[i].mem_support & NB_MEM_CUDA)
            return false;
    }
    if (d->options.gbps > 0)
        mbps = (int)(1000 * d->options.gbps);
    info_reckon(d->params, d->options.nodes >= 2 ? d->options.nodes : 2, mbps, (unsigned)d->threads, r);
    return r->known;
}

/* Say what becomes of sums of gradients: `why` they are raw, or what the plugin says of its reckoning (r, if any). */
static void tell_sums(struct doctor *d, const char *name, enum nb_func func, enum nb_sum_word word,
                      const char *why, const struct nb_reckoning *r)
{
    char text[300];

    if (why || word == NB_SUM_RAW || !r || !nb_policy_reckons(d->params, func)) {
        tell(d, name, "gradients quantized, once recognised", why);
        return;
    }
    nb_reckon_text(r, func, text, sizeof(text));
    if (nb_reckon_pays(r, func))
        say(&d->report, STATUS_OK, "compressed", NULL, "%s: gradients quantized, once recognised: %s", name,
            text);
    else
        say(&d->report, STATUS_WARNING, "compressed", "remove the cause, or accept that", "%s: %s", name,
            text);
}

static void collectives(struct doctor *d, const struct info_nccl *nccl)
{
    const char *apiece = in_general(d, true), *any = in_general(d, false);
    bool profiler, tuner;
    char why[200];
    struct nb_reckoning r;
    const bool reckoned = reckon(d, &r);

    if (!any && reckoned && nb_policy_declines(d->params, &r, why, sizeof(why)))
        any = why;
    apiece = apiece ? apiece : any;
    slots(d, nccl, &profiler, &tuner);
    tell_sums(d, "reduce-scatter", NB_FUNC_REDUCE_SCATTER, d->params->rs,
              apiece                        ? apiece
              : d->params->rs == NB_SUM_RAW ? "NIBBLE_RS=raw"
                                            : NULL,
              reckoned ? &r : NULL);
    tell(d, "all-gather",
         d->params->ag == NB_AG_EXACT || d->params->ag == NB_AG_AUTO ? "exact differences"
                                                                     : "as NIBBLE_AG says",
         apiece                                                     ? apiece
         : d->params->ag == NB_AG_RAW || d->params->ag == NB_AG_OFF ? "NIBBLE_AG says so"
                                                                    : NULL);
    tell_sums(d, "all-reduce", NB_FUNC_ALL_REDUCE, d->params->ar,
              any                           ? any
              : d->params->ar == NB_SUM_RAW ? "NIBBLE_AR=raw"
              : nccl->support.profiler < 5  ? "this NCCL reports no calls to profilers (from 2.28 on it does)"
              : !profiler                   ? "another profiler has the place of nibble's"
                                            : NULL,
              reckoned ? &r : NULL);
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
    for (int i = 0; i < d->nnccl; i++)
        say(&d->report, d->nccl[i].version ? STATUS_PROBLEM : STATUS_WARNING, "nccl",
            d->nccl[i].version ? "NCCL 2.28 or later" : "--nccl FILE, or --python NAME: the job's own",
            "%s: %s: %s", d->nccl[i].from, d->nccl[i].file, d->nccl[i].problem);
}
